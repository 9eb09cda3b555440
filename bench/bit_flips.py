"""Bits flipped on purpose in tensors, by format, bit and layer: which of the checks for silent errors find them, and
whether any of them finds an error where there is none."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from paceline.benchmarks._micro import formats
from paceline.benchmarks._model.session import open_session
from paceline.benchmarks.compute.gemm import GemmParameters, Product
from paceline.benchmarks.ranks import Ranks
from paceline.benchmarks.training.fingerprint import FingerprintParameters, StepPrint, StepPrinter
from paceline.benchmarks.training.train import Trainer
from paceline.devices import Device, open_device
from paceline.measure.digest import bits
from paceline.models.gpt2 import Gpt2Shape, build_gpt2
from paceline.models.sources import find_model

if TYPE_CHECKING:
    from torch import Tensor

TARGET = os.environ.get("BIT_FLIPS_TARGET", "cpu")
CLEAN_STEPS = int(os.environ.get("BIT_FLIPS_CLEAN", "10000" if TARGET == "cpu" else "2000"))
TRIALS = int(os.environ.get("BIT_FLIPS_TRIALS", "8"))  # for each bit, format and layer
ROUND = 100  # clean steps from one state, before it is taken up again
EDGE = 48 if TARGET == "cpu" else 1024
SMALL = Gpt2Shape(layers=1, hidden=32, heads=2, vocabulary=128, context=16, sequence=16)
LARGER = Gpt2Shape(layers=6, hidden=512, heads=8, vocabulary=8192, context=256, sequence=256)
PRODUCTS = ("fp32", "bf16", "fp16", "fp8", "int8")
STEPS = ("fp32", "bf16") if TARGET == "cpu" else ("fp32", "bf16", "fp16")
LAYERS = ("inputs", "weights", "activations", "gradients", "results")
# Sign, exponent and mantissa from the highest bit on; the mantissa in halves.
_FIELDS = {
    "fp32": (1, 8, 11, 12),
    "bf16": (1, 8, 3, 4),
    "fp16": (1, 5, 5, 5),
    "fp8": (1, 4, 1, 2),
    "int8": (1, 3, 0, 4),
    "int32": (1, 15, 0, 16),
}
_NAMES = ("sign", "exponent", "upper mantissa", "lower mantissa")


@dataclass
class Rates:
    """How many of the planted flips each check has found."""

    planted: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # layer, format, part of the number
    found: dict[str, Counter[tuple[str, str, str]]] = field(default_factory=dict)

    def add(self, layer: str, number_format: str, bit: int, **found: bool) -> None:
        key = (layer, number_format, part_of(number_format, bit))
        self.planted[key] += 1
        for check, is_found in found.items():
            self.found.setdefault(check, Counter())[key] += is_found

    def show(self, title: str) -> None:
        click.echo(f"\n### {title}\n")
        click.echo(f"| in | format | flips | {' | '.join(self.found)} | missed |")
        click.echo(f"| --- | --- | ---: |{' ---: |' * len(self.found)} --- |")
        for layer, number_format in dict.fromkeys(key[:2] for key in self.planted):
            keys = [key for key in self.planted if key[:2] == (layer, number_format)]
            missed = []
            for check, counts in self.found.items():
                parts = [
                    f"{self.planted[key] - counts[key]} {key[2]}" for key in keys if counts[key] < self.planted[key]
                ]
                missed += [f"{check}: {', '.join(parts)}"] if parts else []
            self._line(f"{layer} | {number_format}", keys, "; ".join(missed))
        self._line("all | ", list(self.planted), "")

    def _line(self, name: str, keys: list[tuple[str, str, str]], missed: str) -> None:
        planted = sum(self.planted[key] for key in keys)
        rates = [100 * sum(counts[key] for key in keys) / planted for counts in self.found.values()]
        click.echo(f"| {name} | {planted} | {' | '.join(f'{rate:.4g} %' for rate in rates)} | {missed} |")


def part_of(number_format: str, bit: int) -> str:
    """What a bit is for in a format, counted from the lowest."""
    place, names = sum(_FIELDS[number_format]) - 1 - bit, list(_NAMES)
    if number_format.startswith("int"):
        names = ["sign", "upper bits", "", "lower bits"]
    for name, width in zip(names, _FIELDS[number_format], strict=True):
        if place < width:
            return name
        place -= width
    raise LookupError(f"{number_format} has no bit {bit}")


def flip(tensor: Tensor, bit: int, choose: random.Random) -> Callable[[], None]:
    """Flip a bit of some element; what is returned flips it back."""
    words = bits(tensor.detach()).view(-1)
    place, width = choose.randrange(words.numel()), 8 * words.element_size()
    mask = (1 << bit) - (1 << width if bit == width - 1 and words.element_size() > 1 else 0)

    def change() -> None:
        words[place] ^= mask

    change()
    return change


def main() -> None:
    """Print the tables."""
    import torch

    device, choose = open_device(TARGET), random.Random(7)
    commit = ""
    with suppress(OSError):  # a machine need not have git
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    click.echo(f"{datetime.now(UTC):%Y-%m-%d}, commit {commit or 'unknown'}, {device.name}, torch {torch.__version__}")
    begun = time.monotonic()
    if CLEAN_STEPS:
        clean_steps(device)
    in_products(device, choose).show("One flipped bit in a matrix product")
    in_steps(device, choose).show("One flipped bit in a training step")
    click.echo(f"\n{time.monotonic() - begun:.0f} s")


def clean_steps(device: Device) -> None:
    """Steps in which nothing is planted: every alarm is false."""
    printer, restore = printed_trainer("bf16" if device.kind.is_accelerator else "fp32", device)
    reference = [printer.step().digest for _ in range(ROUND)]
    steps = alarms = 0
    begun = time.monotonic()
    while steps < CLEAN_STEPS:
        restore()
        alarms += sum(printer.step().digest != right for right in reference)
        steps += ROUND
    click.echo(f"\nfalse alarms in {steps} clean steps: {alarms} ({time.monotonic() - begun:.0f} s)")


def printed_trainer(precision: str, device: Device) -> tuple[StepPrinter, Callable[[], None]]:
    """A small GPT that is trained with fingerprints, and what takes it back to where it begins."""
    import torch

    shape = LARGER if device.kind.is_accelerator else SMALL
    spec = replace(find_model("gpt2-small", allow_import=False), build=lambda _scale: build_gpt2(shape))
    parameters = FingerprintParameters.read({"precision": precision})
    trainer = Trainer(open_session(spec, parameters.training(), device, Ranks(0, 1), "train"))
    trainer.load(4)
    printer = StepPrinter(trainer)
    printer.step()  # the optimizer makes its state in the first one
    optimizer, weights = trainer._optimizer, [weight for _, weight in trainer.named_parameters()]
    tensors = [*weights, *(one for state in optimizer.state.values() for one in state.values() if torch.is_tensor(one))]
    saved, scale = [one.detach().clone() for one in tensors], trainer._scaler.state_dict()

    def restore() -> None:
        with torch.no_grad():
            for one, value in zip(tensors, saved, strict=True):
                one.copy_(value)
        if scale:
            trainer._scaler.load_state_dict(scale)

    return printer, restore


def in_products(device: Device, choose: random.Random) -> Rates:
    """Flips in both operands and in the result, on random data (burn) and on whole numbers (known-answers)."""
    import torch

    rates, seed = Rates(), torch.Generator(device.torch())
    for number_format in PRODUCTS:
        dtype = formats.dtype_of(number_format)
        shape = (2, EDGE, EDGE)
        drawn = formats.random_operand(number_format, shape, seed.manual_seed(1))
        whole = (2 * torch.randint(-2, 2, shape, device=device.torch(), generator=seed) + 1).to(dtype)
        burned, known = (Multiplied(number_format, tuple(pair), device) for pair in (drawn, whole))
        for layer in ("inputs", "weights", "results"):
            for bit in range(8 * drawn.element_size()) if layer != "results" else range(8 * burned.result_size):
                for _ in range(TRIALS):
                    at = (layer, bit, choose)
                    of = burned.format if layer == "results" else number_format
                    rates.add(
                        f"{layer} of {number_format}" if of != number_format else layer,
                        of,
                        bit,
                        **{"burn": burned.is_found(*at), "known-answers": known.is_found(*at)},
                    )
    return rates


class Multiplied:
    """A product and its right result."""

    def __init__(self, number_format: str, operands: Any, device: Device) -> None:
        import torch

        support = device.format(number_format)
        if support.how == "none":  # in fp32, of operands in the format
            self.call: Callable[[], Tensor] = lambda: operands[0].float() @ operands[1].float()
        else:
            of = GemmParameters.model_validate({"precision": number_format, "size": EDGE})
            if number_format in ("fp8", "int8"):
                operands = operands[0], operands[1].mT.contiguous().mT
            product = Product(of, device, operands)
            self.call = product.call
        self._operands = operands
        self._right = self.call().clone()
        self.result_size = self._right.element_size()
        names = {torch.float32: "fp32", torch.int32: "int32", torch.bfloat16: "bf16", torch.float16: "fp16"}
        self.format = names[self._right.dtype]

    def is_found(self, layer: str, bit: int, choose: random.Random) -> bool:
        """Whether a flip there changes a bit of the result."""
        if layer == "results":
            result = self.call()
            flip(result, bit, choose)
        else:
            operand = self._operands[layer == "weights"]
            flip_back = flip(operand if operand.is_contiguous() else operand.mT, bit, choose)
            result = self.call()
            flip_back()
        return bool((bits(result) != bits(self._right)).any())


def in_steps(device: Device, choose: random.Random) -> Rates:
    """Flips in a training step; it and the next one are looked at."""
    rates = Rates()
    for number_format in STEPS:
        printer, restore = printed_trainer(number_format, device)
        restore()
        right = [printer.step(), printer.step()]
        for layer in LAYERS:
            of = number_format if layer == "activations" else "fp32"
            for bit in range(32 if of == "fp32" else 16):
                for _ in range(max(1, TRIALS // 4)):
                    restore()
                    with planted(printer, layer, bit, choose):
                        prints = [printer.step()]
                    prints.append(printer.step())
                    is_found = any(one.digest != other.digest for one, other in zip(prints, right, strict=True))
                    name = layer if number_format == "fp32" else f"{layer}, steps in {number_format}"
                    checks = {"fingerprint": is_found, "loss and output's mean": means(prints, right)}
                    rates.add(name, of, bit, **checks)
    return rates


def means(prints: list[StepPrint], right: list[StepPrint]) -> bool:
    """Whether the figures tell that SuperBench compares: the means of losses and of activations."""
    figures = [
        (sum(one.loss for one in both) / len(both), sum(one.activation for one in both) / len(both))
        for both in (prints, right)
    ]
    return figures[0] != figures[1]


@contextmanager
def planted(printer: StepPrinter, layer: str, bit: int, choose: random.Random) -> Iterator[None]:
    """A step with one flip in it."""
    from torch import nn

    trainer = printer.trainer
    weights = [weight for _, weight in trainer.named_parameters()]
    modules = list(trainer.session.workload.module.modules())
    if layer == "weights":
        flip(choose.choice(weights), bit, choose)
        yield
    elif layer in ("inputs", "activations"):
        embedding = next(one for one in modules if isinstance(one, nn.Embedding))  # of the tokens
        linear = choose.choice([one for one in modules if isinstance(one, nn.Linear)])
        was_planted = False

        def spoil(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            nonlocal was_planted
            changed = output.clone()
            flip(changed, bit, choose)
            was_planted = True
            return changed

        handle = (embedding if layer == "inputs" else linear).register_forward_hook(spoil)
        yield
        handle.remove()
        if not was_planted:
            raise LookupError(f"nothing was planted in the {layer}")
    else:
        whole = trainer._backward if layer == "gradients" else trainer._scaler.update

        def spoil_after() -> Any:
            returned = whole()
            weight = choose.choice([one for one in weights if one.grad is not None])
            flip(weight.grad if layer == "gradients" and weight.grad is not None else weight, bit, choose)
            return returned

        owner, name = (trainer, "_backward") if layer == "gradients" else (trainer._scaler, "update")
        setattr(owner, name, spoil_after)
        yield
        delattr(owner, name)
