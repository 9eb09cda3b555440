"""One rank of a training by megatron-core: its model, its data parallelism, its schedules and its optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn

from paceline.benchmarks.parallel._optimizer import (
    BETAS,
    CLIP,
    EPSILON,
    FIRST_SCALE,
    GROWTH_STEPS,
    WEIGHT_DECAY,
    byte_count,
)
from paceline.benchmarks.parallel._parameters import LEARNING_RATE, ParallelParameters, build, draw
from paceline.benchmarks.parallel._stage import Mesh
from paceline.devices import Device, DeviceKind
from paceline.devices.cuda import CudaKind
from paceline.models.base import Batch, low_dtype, seed_everything

ABOUT = "megatron-core runs on GPUs only: here its calls to CUDA were answered for the CPU"
Function = Callable[..., Any]
MicroBatch = tuple[tuple[Tensor | None, ...], dict[str, Tensor], Function]  # what the model takes, and the loss of it


@contextmanager
def on_cpu() -> Iterator[None]:
    """While it is open, CUDA means the CPU, in the whole process."""
    from megatron.core.tensor_parallel import random

    cuda = CudaKind.torch_module()
    factories = ("arange", "empty", "full", "ones", "tensor", "zeros")
    # Only dropout and weights that are replaced draw from the random states of a GPU.
    no_state = torch.empty(0, dtype=torch.uint8)
    replacements: list[tuple[Any, str, Function]] = [
        *((torch, name, _made_on_cpu(getattr(torch, name))) for name in factories),
        (torch.Tensor, "type", _named_as_on_gpu(torch.Tensor.type)),
        (torch.Tensor, "cuda", lambda tensor, *_, **__: tensor),
        (cuda, "current_device", lambda: torch.device("cpu")),
        (cuda, "current_stream", lambda *_: None),
        (cuda, "synchronize", lambda *_, **__: None),
        (cuda, "manual_seed", lambda *_: None),
        (cuda, "get_rng_state", lambda *_, **__: no_state),
        (random, "_get_cuda_rng_state", lambda *_, **__: no_state),
        (random, "_set_cuda_rng_state", lambda *_, **__: None),
        (random.CudaRNGStatesTracker, "fork", lambda *_, **__: nullcontext()),
    ]
    with ExitStack() as stack:
        for replacement in replacements:
            stack.enter_context(patch.object(*replacement))
        yield


def _made_on_cpu(factory: Function) -> Function:
    @wraps(factory)
    def make(*arguments: Any, **more: Any) -> Any:
        if str(more.get("device", "")).startswith(CudaKind.name):
            more["device"] = torch.device("cpu")
        return factory(*arguments, **more)

    return make


def _named_as_on_gpu(name_of: Function) -> Function:
    @wraps(name_of)
    def name(*arguments: Any, **more: Any) -> Any:
        result = name_of(*arguments, **more)
        return result.replace("torch.", f"torch.{CudaKind.name}.", 1) if isinstance(result, str) else result

    return name


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the record says that Transformer Engine and apex are missing
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

# Their names of what is in a layer and around the layers, and ours.
_IN_A_LAYER = {
    "input_layernorm": "attention_norm",
    "self_attention.linear_qkv": "attention.qkv",
    "self_attention.linear_proj": "attention.output",
    "pre_mlp_layernorm": "feed_forward_norm",
    "mlp.linear_fc1": "feed_forward.expand",
    "mlp.linear_fc2": "feed_forward.contract",
}
_AROUND = {
    "embedding.word_embeddings.weight": "token_embedding.weight",
    "embedding.position_embeddings.weight": "position_embedding.weight",
    "embedding.tokentype_embeddings.weight": "type_embedding.weight",
    "decoder.final_layernorm.weight": "final_norm.weight",
    "decoder.final_layernorm.bias": "final_norm.bias",
    # BERT's: pre-norm layers end with the norm that post-norm layers begin with.
    "encoder.final_layernorm.weight": "embedding_norm.weight",
    "encoder.final_layernorm.bias": "embedding_norm.bias",
    "lm_head.dense.weight": "head_transform.weight",
    "lm_head.dense.bias": "head_transform.bias",
    "lm_head.layer_norm.weight": "head_norm.weight",
    "lm_head.layer_norm.bias": "head_norm.bias",
    "output_layer.weight": "token_embedding.weight",
    "output_layer.bias": "head_bias",
}
_EPSILON = {"gpt2": 1e-5, "bert": 1e-12}


def transformer_config(parameters: ParallelParameters, *, fused: bool) -> TransformerConfig:
    """The sizes of the layout as megatron-core takes them; everything else is its default."""
    layout = parameters.layout
    low = low_dtype(layout.precision)
    gelu: Any = F.gelu if fused or layout.model == "bert" else partial(F.gelu, approximate="tanh")
    recompute: dict[str, Any] = {}
    if layout.checkpointing:
        recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=layout.layers,
        hidden_size=parameters.hidden,
        ffn_hidden_size=4 * parameters.hidden,
        num_attention_heads=parameters.heads,
        layernorm_epsilon=_EPSILON[layout.model],
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        pipeline_dtype=low or torch.float32,
        params_dtype=low or torch.float32,
        fp16=layout.precision == "fp16",
        bf16=layout.precision == "bf16",
        activation_func=gelu,
        bias_activation_fusion=fused,  # its fused GELU is the tanh form
        bias_dropout_fusion=fused,
        gradient_accumulation_fusion=False,  # a kernel of apex
        **recompute,
    )


def build_model(parameters: ParallelParameters, config: TransformerConfig, device: torch.device) -> nn.Module:
    """This pipeline rank's part of the model on the device; megatron-core's own weights are to be replaced."""
    common: dict[str, Any] = {
        "config": config,
        "vocab_size": parameters.padded_vocabulary,
        "max_sequence_length": parameters.tokens,
        "pre_process": parallel_state.is_pipeline_first_stage(),
        "post_process": parallel_state.is_pipeline_last_stage(),
        "share_embeddings_and_output_weights": True,
    }
    if parameters.layout.model == "gpt2":
        model = GPTModel(transformer_layer_spec=get_gpt_layer_local_spec(), **common)
    else:
        model = BertModel(
            transformer_layer_spec=bert_layer_local_spec, num_tokentypes=2, add_binary_head=False, **common
        )
    return model.to(device)  # type: ignore[no-any-return]


def copy_weights(model: Any, ours: Mapping[str, Tensor]) -> None:
    """Give the model the weights of ours; each tensor-parallel rank takes its part."""
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    rank = parallel_state.get_tensor_model_parallel_rank()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            block, _, rest = name.partition(".layers.")
            if rest:
                index, _, inside = rest.partition(".")
                module, _, kind = inside.rpartition(".")
                number = getattr(model, block).layers[int(index)].layer_number - 1  # of the whole model, not this stage
                whole = ours[f"blocks.{number}.{_IN_A_LAYER[module]}.{kind}"]
            else:
                whole = ours[_AROUND[name]]
            # It is split along the one axis on which the part is shorter.
            axes = [axis for axis, length in enumerate(parameter.shape) if length != whole.shape[axis]]
            parameter.copy_(whole.chunk(ranks, axes[0])[rank] if axes else whole)


@contextmanager
def groups(device_kind: DeviceKind, world_size: int) -> Iterator[None]:
    """megatron-core needs a process group even for one rank; its own groups are destroyed at the end."""
    if world_size == 1:
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(device_kind.collective_backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        if world_size == 1:
            distributed.destroy_process_group()


class MegatronTrainer:
    """This rank's part of the training."""

    pipeline = None  # its schedules do not say how busy they keep a rank

    def __init__(self, parameters: ParallelParameters, device: Device, mesh: Mesh, *, compiled: bool) -> None:
        self.parameters = parameters
        self.device = device
        self.norm: Tensor | None = None  # of the last step's gradient
        layout = parameters.layout
        self.layers = [layout.layers // layout.pipeline] * layout.pipeline
        self._calls = nullcontext if device.kind.is_accelerator else on_cpu
        with self._calls():
            parallel_state.initialize_model_parallel(layout.tensor, layout.pipeline)
            seed_everything(parameters.seed)
            with torch.device(device.torch()):
                workload = build(parameters)
            self.parameter_count = sum(one.numel() for one in workload.module.parameters())
            batch, size = draw(parameters, workload, mesh.data_rank).to(device.torch()), layout.micro_batch
            self._micro_batches = [
                _micro_batch(batch.rows(number * size, (number + 1) * size)) for number in range(layout.micro_batches)
            ]
            model_parallel_cuda_manual_seed(parameters.seed)
            self._config = transformer_config(parameters, fused=compiled)
            model = build_model(parameters, self._config, device.torch())
            copy_weights(model, dict(workload.module.named_parameters()))
            del workload, batch
            device.release_memory()  # the copied model's, which the record would count as reserved
            if layout.precision in ("fp16", "bf16"):
                model = Float16Module(self._config, model)
            # With the buffers for gradients that data-parallel ranks average; one such rank has them too. The format is
            # megatron-core's default: fp16 is accumulated and reduced in fp16, bf16 in fp32.
            settings = DistributedDataParallelConfig(grad_reduce_in_fp32=self._config.bf16)
            self._model = DistributedDataParallel(config=self._config, ddp_config=settings, module=model)
            self._model.train()
            self._optimizer = build_optimizer(self._model, parameters)
            self._config.grad_scale_func = self._optimizer.scale_loss
            self._config.finalize_model_grads_func = finalize_model_grads
            self._run = get_forward_backward_func()

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by."""
        with self._calls():
            return float(self._optimizer.get_loss_scale())

    def step(self) -> Tensor | None:
        """One training step; this data-parallel rank's loss, still on the device, where the last stage is."""
        layout = self.parameters.layout
        with self._calls():
            self._model.zero_grad_buffer()
            self._optimizer.zero_grad()
            losses = self._run(
                forward_step_func=_forward,
                data_iterator=iter(self._micro_batches),
                model=[self._model],
                num_microbatches=layout.micro_batches,
                seq_length=self.parameters.tokens,
                micro_batch_size=layout.micro_batch,
                forward_only=False,
            )
            _, norm, _ = self._optimizer.step()
            self.norm = torch.tensor(float("inf") if norm is None else float(norm))  # None: overflowed, and not stepped
        return torch.stack(losses).mean() if losses else None

    def memory(self) -> dict[str, int]:
        """Bytes of this rank's weights, of their gradients, and of the optimizer's state with its fp32 weights."""
        weights = list(self._model.parameters())
        inner = [one.optimizer for one in getattr(self._optimizer, "chained_optimizers", [self._optimizer])]
        state = [value for one in inner for values in one.state.values() for value in values.values()]
        masters = [one.main_param for one in weights if getattr(one, "main_param", None) is not None]
        return {
            "parameter_memory": byte_count(weights),
            "gradient_memory": byte_count(one.main_grad for one in weights),
            "optimizer_memory": byte_count([*masters, *(value for value in state if isinstance(value, Tensor))]),
        }


def build_optimizer(model: Any, parameters: ParallelParameters) -> Any:
    """megatron-core's optimizer in its default form."""
    precision = parameters.layout.precision
    settings = OptimizerConfig(
        optimizer="adam",
        lr=LEARNING_RATE[parameters.layout.model],
        weight_decay=WEIGHT_DECAY,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        adam_eps=EPSILON,
        clip_grad=CLIP,
        fp16=precision == "fp16",
        bf16=precision == "bf16",
        params_dtype=next(model.parameters()).dtype,
        initial_loss_scale=FIRST_SCALE,
        loss_scale_window=GROWTH_STEPS,
    )
    return get_megatron_optimizer(settings, [model])


def _micro_batch(batch: Batch) -> MicroBatch:
    inputs, targets = batch.inputs, batch.targets[0]
    tokens = inputs[0].contiguous()
    if len(inputs) == 1:
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens).contiguous()
        return (tokens, positions, None), {"labels": targets.contiguous()}, _mean
    _, types, masked = inputs
    labels = torch.zeros_like(tokens).scatter(1, masked, targets)
    shares = torch.zeros(tokens.shape, device=tokens.device).scatter(1, masked, 1.0 / masked.numel())
    keywords = {"tokentype_ids": types.contiguous(), "lm_labels": labels}
    return (tokens, torch.ones_like(tokens)), keywords, partial(_mean, shares=shares)


def _forward(micro_batches: Iterator[MicroBatch], model: Any) -> tuple[Tensor, Function]:
    inputs, keywords, loss = next(micro_batches)
    output = model(*inputs, **keywords)
    # The last stage of BERT returns a pair, of which the second belongs to a head that is left out.
    return output[0] if isinstance(output, tuple) else output, loss


def _mean(losses: Tensor, shares: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean over all tokens or over those to fill in, once for the backward pass and once to report."""
    loss = losses.float().mean() if shares is None else (losses.float() * shares).sum()
    return loss, loss.detach().clone()  # megatron-core divides the first one in place
