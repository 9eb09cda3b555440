"""Making text with one model in process: reading a prompt, then one token of each sequence after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import (
    BANDWIDTH,
    PRODUCT_SHARE,
    MicroParameters,
    OneOrMore,
    TorchBenchmark,
    Upwards,
    join_words,
    rate_metric,
    time_metric,
)
from paceline.benchmarks._micro.session import MicroSession, TimedPoint, headline
from paceline.benchmarks._model.benchmark import Switch
from paceline.benchmarks._model.measuring import lower
from paceline.benchmarks._model.session import whether_to_compile
from paceline.benchmarks.compute.gemm import product_rate
from paceline.benchmarks.inference._generator import FEW, Conversation, Generator, Weights
from paceline.benchmarks.ranks import emulated
from paceline.core.benchmark import Context, Progress
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, Unsupported
from paceline.core.metric import Merge
from paceline.core.quantity import Duration
from paceline.core.record import At, Measurement, Record, Result
from paceline.core.subject import Description, MatmulPrecision, Work
from paceline.devices import open_device
from paceline.measure.memory import Peak, memory_peak
from paceline.models import MODELS
from paceline.models.base import Scale
from paceline.models.sources import MODEL_NAME, check_model, find_model

TTFT = time_metric("ttft", "time to first token: reading the prompts until the host could read their first tokens")
TPOT = time_metric("time_per_output_token", "time of one decoding step, which makes one token of each sequence")
OUTPUT_RATE = rate_metric(
    "output_throughput", "tokens made over the time of decoding steps, all sequences", unit="tokens/s"
)
PREFILL_RATE = rate_metric("prefill_throughput", "tokens of prompts over the time to the first token", unit="tokens/s")
MEMORY_SHARE = rate_metric(
    "memory_share",
    "what a decoding step must read over its time, as a part of the memory's bandwidth by the datasheet, otherwise as "
    "paceline machine --measure found it; absent where neither is known",
    Merge.MEAN,
    unit="%",
)
PREFILL_SHARE = PRODUCT_SHARE.model_copy(
    update={
        "description": "operations of the prompts over the time to the first token, as a part of the rate of a plain "
        "matrix product in the precision of the case, measured in it, however weights are held: fp8_dynamic, whose own "
        "products are in fp8, may reach more than all of it"
    }
)
ENERGY_PER_TOKEN = lower(
    "energy_per_token", "J", Merge.MEAN, "energy of the device per token made in decoding steps, from its own counter"
)
KV_MEMORY = lower("kv_memory", "B", Merge.MAXIMUM, "the cache of keys and values, as long as prompt and new tokens")
WEIGHT_MEMORY = lower("weight_memory", "B", Merge.MAXIMUM, "the weights that decoding steps read, as they are stored")
_FORMULA = "each weight read once in a step, keys and values of all tokens so far read once"


class GenerateParameters(MicroParameters):
    """A decoder, what it reads, and how it is computed."""

    warm_up: Duration = 2.0
    """Time to spend on warming up each phase, at most: a GPU takes this long to settle at its power limit"""
    model: Annotated[str, MODEL_NAME]
    """A decoder of the zoo (paceline list models), such as llama3-8b"""
    scale: Scale = "full"
    """full, or tiny: the same kind of model, small enough for a slow machine"""
    precision: MatmulPrecision | None = None
    """fp32 (true), tf32, fp16, bf16; unset takes bf16 on a GPU and fp32 on a CPU"""
    weights: Weights = "same"
    """How linear layers hold their weights: same as the precision; fp8, int8 or int4, widened for each product; or
    fp8_dynamic, multiplied in fp8 with activations that are scaled row by row"""
    batch_size: int = Field(default=1, ge=1)
    """Sequences at once"""
    context: Annotated[list[Annotated[int, Field(ge=1)]], OneOrMore, Field(min_length=1), Upwards] | None = None
    """Tokens of each prompt, a sweep inside the case; unset takes 1024, or half of what the model takes"""
    new_tokens: int = Field(default=32, ge=1)
    """Tokens after the prompt that the cache has room for; decoding goes through them again and again"""
    compile: Switch = "auto"
    """Compile both phases with torch.compile; auto does on a GPU where it can"""
    graph: Switch = "auto"
    """Replay each decoding step as one CUDA graph; auto does where the device has them"""
    attention: Literal["auto", "fused", "split"] = "auto"
    """Attention of a decoding step: torch's fused kernel, or split over the cache; auto splits on a GPU where sequences
    and heads alone would not fill it"""


class Generate(TorchBenchmark[GenerateParameters]):
    """Prefill and decoding with a static cache, compared with a pass without one."""

    name = "generate"
    summary = "prefill and decoding of a language model in process: TTFT, time per output token, tokens/s, KV memory"
    category = "inference"
    metrics = (
        OUTPUT_RATE,
        TPOT,
        TTFT,
        PREFILL_RATE,
        MEMORY_SHARE,
        PREFILL_SHARE,
        BANDWIDTH,
        ENERGY_PER_TOKEN,
        KV_MEMORY,
        WEIGHT_MEMORY,
    )

    @classmethod
    def title(cls, parameters: GenerateParameters) -> str:
        contexts = parameters.context or []
        ends = " to ".join(map(str, dict.fromkeys(contexts[:1] + contexts[-1:])))
        switches = {key: getattr(parameters, key) for key in ("compile", "graph", "attention")}
        return join_words(
            parameters.model,
            parameters.precision,
            f"{parameters.weights} weights" if parameters.weights != "same" else "",
            parameters.scale if parameters.scale != "full" else "",
            f"b{parameters.batch_size}",
            f"context {ends}" if ends else "",
            *(f"{key} {value}" for key, value in switches.items() if value != "auto"),
        )

    @classmethod
    def check(cls, parameters: GenerateParameters, case: Case) -> None:
        check_model(parameters.model, is_local=case.origin == "local")
        spec = MODELS.registry().entries.get(parameters.model)
        if spec and "key_heads" not in spec.settings:
            message = f"model '{spec.name}' has no cache of keys and values: use a decoder such as llama3-8b"
            raise InputError("no-cache", message, key="model", value=spec.name, suggestion="llama3-8b")
        most = spec.settings.get("context") if spec and parameters.scale == "full" else None
        longest = max(parameters.context or [1]) + parameters.new_tokens
        if most is not None and longest > most:
            message = f"context and new_tokens are {longest} tokens together: {parameters.model} takes at most {most}"
            raise InputError("out-of-range", message, key="context", value=max(parameters.context or [1]))

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        narrow = ("torchao.quantization",) if parameters.get("weights", "same") != "same" else ()
        return ("torch", "torch._dynamo", *narrow)

    @classmethod
    def describe(cls, record: Record, parameters: GenerateParameters, environment: Environment) -> Description:
        time, step = record.measurement(TPOT.name), record.facts.get("step")
        if time is None or not isinstance(step, dict):
            return Description()
        work = Work(
            flops=step["flops"],
            bytes=step["bytes"],
            rate=step["flops"] / time.value,
            unit="FLOP/s",
            number_format=record.facts["precision"],
            formula=_FORMULA,
            is_modelled=True,
        )
        return Description(work=work)

    def measure(self, parameters: GenerateParameters, context: Context) -> Result:
        import torch

        device = open_device(context.target)
        precision: MatmulPrecision = parameters.precision or ("bf16" if device.kind.is_accelerator else "fp32")
        formats.check_device(precision, device)
        compiled, not_compiled_because = whether_to_compile(parameters.compile, device)
        spec = find_model(parameters.model, allow_import=context.case.origin == "local")
        with torch.no_grad():
            generator = Generator(spec, parameters.scale, precision, parameters.weights, device, parameters.seed)
            with MicroSession(parameters, context, device) as session:
                contexts = parameters.context or [min(1024, generator.shape.context // 2)]
                points = [_point(session, generator, parameters, tokens, compiled) for tokens in contexts]
                product = product_rate(session, precision, parameters.seed)
        memory = memory_peak(device.name) if points[-1].step_bytes else None
        swept = [one for point in points for one in point.measurements(parameters.batch_size, product, memory)]
        last = points[-1]
        whole = [headline([one]) for one in swept if one.at == last.at]
        whole.append(Measurement.of_value(WEIGHT_MEMORY, generator.read_bytes))
        facts = {
            "model": spec.name,
            "parameter_count": generator.parameter_count,
            "precision": precision,
            "weights": parameters.weights,
            "weights_apart": generator.weights_apart,
            "batch_size": parameters.batch_size,
            "compiled": compiled,
            **({"not_compiled_because": not_compiled_because} if not_compiled_because else {}),
            "graph": last.is_graph,
            "attention": last.attention,
            "cache": "static, of the length of prompt and new tokens",
            "decoding": "the likeliest token, which the next step takes on the device; the host waits for none of them",
            "input": "random tokens, on the device before the timed region",
            **({"step": {"flops": last.step_flops, "bytes": last.step_bytes}} if last.step_bytes else {}),
            "counted": _FORMULA if last.step_bytes else "no bytes: which experts are read depends on the tokens",
            "product": product.rate,
            "product_source": product.source,
            "memory_bandwidth": memory.rate if memory else None,
            "memory_bandwidth_source": memory.source if memory else "unknown for this device",
            **({"energy_source": session.energy_source} if last.tpot.joules is not None else {}),
            "checked": f"{last.apart:.2%} of the logits' norm from an uncompiled pass without a cache, before",
        }
        result = session.result([*whole, *(swept if len(points) > 1 else [])], facts)
        result.warnings += emulated(precision, device)
        return result


@dataclass(frozen=True)
class ContextPoint:
    """What was measured and counted at one length of the prompts."""

    at: At
    ttft: TimedPoint
    tpot: TimedPoint
    prefill_flops: float
    step_flops: float
    step_bytes: float  # 0 where they depend on the tokens
    kv_bytes: int
    apart: float
    is_graph: bool
    attention: str

    def measurements(self, batch: int, product: Peak, memory: Peak | None) -> list[Measurement]:
        """All figures of the point."""
        first, each = self.ttft.time, self.tpot.time
        found = [
            Measurement.of_rate(OUTPUT_RATE, float(batch), each),
            each,
            first,
            Measurement.of_rate(PREFILL_RATE, float(batch) * float(self.at["context"]), first),
            Measurement.of_rate(PREFILL_SHARE, 100.0 * self.prefill_flops / product.rate, first),
            Measurement.of_value(KV_MEMORY, self.kv_bytes, at=self.at),
        ]
        if self.tpot.joules is not None:
            found.append(Measurement.of_value(ENERGY_PER_TOKEN, self.tpot.joules / batch, at=self.at))
        if self.step_bytes:
            found.append(Measurement.of_rate(BANDWIDTH, self.step_bytes, each))
        if memory:
            found.append(Measurement.of_rate(MEMORY_SHARE, 100.0 * self.step_bytes / memory.rate, each))
        return found


def _point(
    session: MicroSession, generator: Generator, parameters: GenerateParameters, tokens: int, compiled: bool
) -> ContextPoint:
    device, batch, new = session.device, parameters.batch_size, parameters.new_tokens
    is_graph = device.kind.supports_graphs if parameters.graph == "auto" else parameters.graph == "on"
    if is_graph and not device.kind.supports_graphs:
        raise Unsupported(f"graph = on replays CUDA graphs, which a {device.kind.noun} does not have; leave it out")
    few = device.kind.is_accelerator and batch * generator.shape.key_heads < FEW
    split = few if parameters.attention == "auto" else parameters.attention == "split"
    session.context.report(Progress(phase="compiling" if compiled else "first step"))
    device.release_memory()
    made = Conversation(generator, batch, tokens, new, compiled=compiled, split=split)
    apart = made.check()
    at: At = {"context": tokens}
    read = float(batch * tokens)
    ttft = session.time(made.prefill, TTFT, at=at, work=read, rate_unit="tokens/s", each=True)
    made.prefill()
    step: Callable[[], object] = device.capture(made.step) if is_graph else made.step
    tpot = session.time(step, TPOT, at=at, work=float(batch), rate_unit="tokens/s")
    so_far = (tokens + new / 2) / made.cache.max_length
    depends = hasattr(generator.shape, "experts")
    return ContextPoint(
        at=at,
        ttft=ttft,
        tpot=tpot,
        prefill_flops=generator.prefill_flops(batch, tokens),
        step_flops=generator.step_flops(batch, tokens),
        step_bytes=0.0 if depends else generator.read_bytes + made.cache.nbytes * so_far,
        kv_bytes=made.cache.nbytes,
        apart=apart,
        is_graph=is_graph,
        attention="split over the cache" if split else "torch's fused kernel",
    )
