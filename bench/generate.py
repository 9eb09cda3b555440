"""`generate` next to transformers' `generate`, with the same shape in the same process, interleaved.

Theirs: the model with a static cache, its forward pass compiled as their documentation says, greedy. Ours: prefill
compiled, the decoding step compiled and replayed as a graph. Both read the same prompts and make the same number of
tokens, and the time is that of the whole: first token and all others.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from bench.ratio import Ratio, Wanted
from paceline.benchmarks.inference._generator import FEW, Conversation, Generator
from paceline.devices import Device, open_device
from paceline.models import MODELS

if TYPE_CHECKING:
    from paceline.models.llama import DecoderShape

MODEL = "llama3-8b"
ON_A_GPU = ((1, 1024, 128), (8, 1024, 128), (64, 1024, 128))  # sequences, tokens of a prompt, new tokens
ON_A_CPU = ((1, 32, 16), (4, 32, 16))
TURNS = 5

Run = Callable[[], object]


def generate_ratios(wanted: Wanted) -> Iterator[Ratio]:
    """New tokens per second of ours over those of transformers; the median of the turns."""
    import torch

    from paceline.devices import device_count

    device = open_device(wanted.target or ("cuda:0" if device_count() else "cpu"))
    on_gpu = device.kind.is_accelerator
    chosen = [one for one in (ON_A_GPU if on_gpu else ON_A_CPU) if wanted(_name(one[0]))]
    if not chosen:
        return
    precision = "bf16" if on_gpu else "fp32"
    with torch.no_grad():
        generator = Generator(
            MODELS.registry().get(MODEL), "full" if on_gpu else "tiny", precision, "same", device, seed=1
        )
        theirs = _their_model(generator.shape, generator.module.token_embedding.weight)
        for batch, context, new_tokens in chosen:
            if not wanted(_name(batch)):  # time may be up by now
                continue
            click.echo(f"compiling for a batch of {batch}", err=True)
            runs = [
                _ours(generator, batch, context, new_tokens),
                _theirs(theirs, generator.prompt(batch, context), new_tokens, compiled=on_gpu),
            ]
            turns = [[_seconds(run, device) for run in runs] for _ in range(TURNS)]
            ours, their = (batch * new_tokens / median(times) for times in zip(*turns, strict=True))
            ratios = sorted(one[1] / one[0] for one in turns)
            value = median(ratios)
            made_of = (
                f"{ours:,.1f} / {their:,.1f} tokens/s, {ratios[0]:.3f} to {ratios[-1]:.3f} in {TURNS} turns, "
                f"prompts of {context}, {new_tokens} new"
            )
            yield Ratio(_name(batch), value, ">= 1", value >= 1, made_of)
            del runs
            gc.collect()
            device.release_memory()


def _name(batch: int) -> str:
    return f"generate b{batch} / transformers"


def _ours(generator: Generator, batch: int, context: int, new_tokens: int) -> Run:
    on_gpu = generator.device.kind.is_accelerator
    split = on_gpu and batch * generator.shape.key_heads < FEW
    made = Conversation(generator, batch, context, new_tokens, compiled=on_gpu, split=split)
    made.check()
    step: Run = generator.device.capture(made.step) if on_gpu else made.step

    def run() -> None:
        made.prefill()
        for _ in range(new_tokens - 1):
            step()

    run()
    return run


def _their_model(shape: DecoderShape, like: Any) -> Any:
    import torch

    transformers = _transformers()
    config = transformers.LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        intermediate_size=shape.feed_forward,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        rms_norm_eps=shape.epsilon,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    usual = torch.get_default_dtype()
    torch.set_default_dtype(like.dtype)
    try:
        with torch.device(like.device):
            model: Any = transformers.LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(usual)
    return model


def _theirs(model: Any, prompt: Any, new_tokens: int, *, compiled: bool) -> Run:
    import torch

    settings = _transformers().GenerationConfig(
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        cache_implementation="static",
        disable_compile=not compiled,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=None,
    )
    seen = torch.ones_like(prompt)

    def run() -> None:
        made = model.generate(prompt, attention_mask=seen, generation_config=settings)
        assert made.shape[1] == prompt.shape[1] + new_tokens, made.shape

    for _ in range(2):  # the second one records graphs, where it compiles
        run()
    return run


def _transformers() -> Any:
    importlib.import_module("paceline.models._modules.torchvision_import")  # which it imports, too
    return importlib.import_module("transformers")


def _seconds(run: Run, device: Device) -> float:
    device.synchronize()
    begun = time.perf_counter()
    run()
    device.synchronize()
    return time.perf_counter() - begun
