"""One rank of a training by megatron-core: its model, its data parallelism, its schedules and its optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from paceline.benchmarks.parallel._adamw import BETAS, EPSILON, WEIGHT_DECAY
from paceline.benchmarks.parallel._batch import draw
from paceline.benchmarks.parallel._megatron_cpu import on_cpu
from paceline.benchmarks.parallel._megatron_model import (
    build_model,
    copy_weights,
    in_low_precision,
    transformer_config,
)
from paceline.benchmarks.parallel._mesh import Mesh
from paceline.benchmarks.parallel._optimizer import CLIP, FIRST_SCALE, GROWTH_STEPS
from paceline.benchmarks.parallel._parameters import LEARNING_RATE, ParallelParameters
from paceline.benchmarks.parallel._shape import build
from paceline.devices import Device, DeviceKind
from paceline.models.base import Batch, Workload
from paceline.models.building import seed_everything

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed


@contextmanager
def groups(device_kind: DeviceKind, world_size: int) -> Iterator[None]:
    """megatron-core wants a process group even for one rank; its own groups are forgotten at the end."""
    if world_size == 1:
        backend = device_kind.collective_backend
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        if world_size == 1:
            distributed.destroy_process_group()


class MegatronTrainer:
    """This rank's part of the training."""

    pipeline = None  # its schedules do not tell how busy they keep a rank

    def __init__(self, parameters: ParallelParameters, device: Device, mesh: Mesh, *, compiled: bool) -> None:
        self.parameters = parameters
        self.device = device
        self.norm: Tensor | None = None  # of the last step's gradient
        layout = parameters.layout
        self.layers = [layout.layers // layout.pipeline] * layout.pipeline
        self._calls = nullcontext if device.kind.is_accelerator else on_cpu
        with self._calls():
            parallel_state.initialize_model_parallel(layout.tensor, layout.pipeline)
            workload = self._our_model()
            self.parameter_count = sum(one.numel() for one in workload.module.parameters())
            self._micro_batches = list(self._divided(draw(parameters, workload, mesh).to(device.torch())))
            model_parallel_cuda_manual_seed(parameters.seed)
            self._config = transformer_config(parameters, fused=compiled)
            model = build_model(parameters, self._config, device.torch())
            copy_weights(layout.model, model, dict(workload.module.named_parameters()))
            del workload
            device.release_memory()  # the copied model's, which the record would count as reserved
            self._model = self._shared(in_low_precision(self._config, model))
            self._model.train()
            self.optimizer = MegatronOptimizer(self._model, parameters)
            self._config.grad_scale_func = self.optimizer.scale_loss
            self._config.finalize_model_grads_func = finalize_model_grads
            self._run = get_forward_backward_func()

    @property
    def scale(self) -> LossScale:
        """What the loss is multiplied by."""
        with self._calls():
            return LossScale(self.optimizer.scale())

    def step(self) -> Tensor | None:
        """One training step; this data-parallel rank's loss, still on the device, where the last stage is."""
        layout = self.parameters.layout
        with self._calls():
            self.optimizer.zero()
            losses = self._run(
                forward_step_func=self._forward,
                data_iterator=iter(self._micro_batches),
                model=[self._model],
                num_microbatches=layout.micro_batches,
                seq_length=self.parameters.tokens,
                micro_batch_size=layout.micro_batch,
                forward_only=False,
            )
            self.norm = self.optimizer.step()
        return torch.stack(losses).mean() if losses else None

    def _forward(self, micro_batches: Iterator[_MicroBatch], model: Any) -> tuple[Tensor, Any]:
        batch = next(micro_batches)
        if self.parameters.layout.model == "gpt2":
            return model(batch.tokens, batch.positions, None, labels=batch.labels), _mean
        output = model(batch.tokens, batch.attended, tokentype_ids=batch.types, lm_labels=batch.labels)
        # The last stage returns a pair, of which the second belongs to a head that is not there.
        return output[0] if isinstance(output, tuple) else output, batch.mean_of_masked

    def _our_model(self) -> Workload:
        seed_everything(self.parameters.seed)
        with torch.device(self.device.torch()):
            return build(self.parameters)

    def _shared(self, model: Any) -> Any:
        """With the buffers for gradients that data-parallel ranks average; one such rank has them too."""
        # Its own default: fp16 is accumulated and reduced in fp16, bf16 in fp32.
        settings = DistributedDataParallelConfig(grad_reduce_in_fp32=self._config.bf16)
        return DistributedDataParallel(config=self._config, ddp_config=settings, module=model)

    def _divided(self, batch: Batch) -> Iterator[_MicroBatch]:
        layout = self.parameters.layout
        for number in range(layout.micro_batches):
            rows = slice(number * layout.micro_batch, (number + 1) * layout.micro_batch)
            yield _MicroBatch.of([one[rows] for one in batch.inputs], batch.targets[0][rows])


@dataclass(frozen=True)
class LossScale:
    """As it is now."""

    value: Tensor


@dataclass(frozen=True)
class _MicroBatch:
    """What the model takes of a micro-batch."""

    tokens: Tensor
    labels: Tensor  # one for each token
    positions: Tensor
    types: Tensor | None = None
    attended: Tensor | None = None
    scored: Tensor | None = None  # the share of each token in the loss

    @classmethod
    def of(cls, inputs: list[Tensor], targets: Tensor) -> _MicroBatch:
        tokens = inputs[0].contiguous()
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens).contiguous()
        if len(inputs) == 1:
            return cls(tokens, targets.contiguous(), positions)
        _, types, masked = inputs
        scored = torch.zeros(tokens.shape, device=tokens.device).scatter(1, masked, 1.0 / masked.numel())
        labels = torch.zeros_like(tokens).scatter(1, masked, targets)
        return cls(tokens, labels, positions, types.contiguous(), torch.ones_like(tokens), scored)

    def mean_of_masked(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """The mean over the tokens to fill in, once for the backward pass and once to keep."""
        assert self.scored is not None
        loss = (losses.float() * self.scored).sum()
        return loss, loss.detach().clone()


class MegatronOptimizer:
    """megatron-core's optimizer in its default form, and the buffers of gradients that it empties."""

    def __init__(self, model: Any, parameters: ParallelParameters) -> None:
        precision = parameters.layout.precision
        self._model = model
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
        self._optimizer = get_megatron_optimizer(settings, [model])

    def zero(self) -> None:
        """Forget gradients."""
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()

    def step(self) -> Tensor:
        """Take the step, with all micro-batches' gradients there; returns the global norm before clipping."""
        _, norm, _ = self._optimizer.step()
        return torch.tensor(float("inf") if norm is None else float(norm))  # None: overflowed, and not stepped

    def scale_loss(self, loss: Tensor) -> Tensor:
        """What the backward pass of a micro-batch begins with."""
        return self._optimizer.scale_loss(loss)  # type: ignore[no-any-return]

    def scale(self) -> Tensor:
        """What the loss is multiplied by."""
        return self._optimizer.get_loss_scale()  # type: ignore[no-any-return]

    def memory(self) -> dict[str, int]:
        """Bytes of this rank's weights, of their gradients, and of the optimizer's state with its fp32 weights."""
        own = list(self._model.parameters())
        inner = [one.optimizer for one in getattr(self._optimizer, "chained_optimizers", [self._optimizer])]
        state = [value for one in inner for values in one.state.values() for value in values.values()]
        masters = [one.main_param for one in own if getattr(one, "main_param", None) is not None]
        return {
            "parameter_memory": _bytes(own),
            "gradient_memory": _bytes(one.main_grad for one in own),
            "optimizer_memory": _bytes([*masters, *(value for value in state if isinstance(value, Tensor))]),
        }


def _mean(losses: Tensor) -> tuple[Tensor, Tensor]:
    loss = losses.float().mean()
    return loss, loss.detach().clone()  # megatron-core divides the first one in place


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
