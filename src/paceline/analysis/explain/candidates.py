"""What would make a step faster, each with the gain that a formula predicts and the reason for it.

Signs of needless work come first, then settings that could be others; of both the larger gain first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.analysis.explain.budget import DATASHEET, Traced
from paceline.core.quantity import show_count, show_duration, show_size
from paceline.core.subject import BYTES, number_format
from paceline.core.trace_signs import Operation, Sign

LEAST = 0.01  # of the step: a smaller predicted gain of a setting is not worth a try
SEEN = 0.02  # of the step: what takes less is not named, if it takes time at all
LARGE_COPY = 2**20  # bytes
ALIGNED = {"fp8": 16, "int8": 16}  # sizes that tensor cores take whole; 8 for the others
PADDED = 64
LARGE = 64  # smaller sizes are not worth padding
FEW_ROWS = 32  # of a product without known ceilings: below, reading the weights takes the time


@dataclass(frozen=True)
class Candidate:
    """One change, and what it should gain."""

    what: str
    reason: str
    saved: float | None  # seconds of a step for the same work; None where nothing tells
    step: float  # seconds, as it is
    setting: str = ""  # name=value of a parameter that makes the change; empty where code has to be changed
    where: str = ""

    @property
    def gain(self) -> float | None:
        """How many times as fast it should be; never more than tenfold, because something else is then the bound."""
        return None if self.saved is None else self.step / max(self.step - self.saved, 0.1 * self.step)


def candidates(case: Traced) -> list[Candidate]:
    """All that the trace gives a reason for."""

    def by_gain(one: Candidate) -> float:
        return -(one.saved or 0.0)

    signs = [*_signs(case), *_unaligned(case), *_wide_products(case)]
    settings = [one for one in _settings(case) if (one.saved or 0.0) >= LEAST * case.step]
    return [*sorted(signs, key=by_gain), *sorted(settings, key=by_gain)]


def _signs(case: Traced) -> Iterator[Candidate]:
    for sign in case.details.signs:
        share = sign.seconds / case.spent.step_seconds
        count, time = show_count(sign.calls), show_duration(sign.seconds)
        if sign.kind == "synchronisation":
            on_device = case.spent.on_device
            why = f"{count} a step: the host waits {time}, and the device then for the host"
            why = why if on_device else f"{count} a step; on a CPU it costs little, on a GPU the host waits there"
            saved = case.idle if on_device else sign.seconds
            yield Candidate("remove the synchronisation with the host", why, saved, case.step, where=sign.where)
        elif sign.kind == "host-copy" and (share >= SEEN or sign.bytes >= LARGE_COPY):
            why = f"{show_size(sign.bytes)} a step {sign.detail}, in {time}: keep it on the device, or copy ahead"
            yield Candidate("remove the host-to-device copy", why, sign.seconds, case.step, where=sign.where)
        elif sign.kind == "cast" and share >= SEEN:
            why = f"{sign.detail}: {count} a step, {time}"
            yield Candidate("remove the cast", why, sign.seconds, case.step, where=sign.where)
        elif sign.kind == "math-attention" and share >= SEEN:
            why = f"softmax and its neighbours pass over {sign.detail} matrices in {time}; a fused kernel stores none"
            what = "use fused attention (scaled_dot_product_attention)"
            yield Candidate(what, why, sign.seconds, case.step, where=sign.where)
        elif sign.kind == "data-wait" and share >= SEEN:
            why = f"{time} a step in {sign.detail}, while nothing computes: load ahead, with more workers"
            yield Candidate("remove the wait for data", why, sign.seconds, case.step, where=sign.where)
        elif sign.kind == "recompilation":
            why = f"{sign.detail}: keep sizes and Python values the same, or mark them as dynamic"
            yield Candidate("remove the recompilation", why, None, case.step, where=sign.where)
        elif sign.kind == "layout" and (sign.seconds or BYTES.get(case.format, 4) <= 2 or not case.spent.on_device):
            yield _channels_last(case, sign)  # wider formats of a GPU take either layout as it is


def _channels_last(case: Traced, sign: Sign) -> Candidate:
    """What converts between layouts; where nothing is seen to, each convolution's images at the memory's ceiling."""
    saved: float | None = sign.seconds
    if not saved:
        saved = sign.bytes / case.memory.value if case.memory else None
    why = f"{show_count(sign.calls)} convolutions a step take images as NCHW, which is converted for them and back"
    setting = next((one for one in case.trace.alternatives if one == "channels_last=on"), "")
    return Candidate("channels last (NHWC)", why, saved, case.step, setting, sign.where)


def _unaligned(case: Traced) -> Iterator[Candidate]:
    """Products with an odd size, against the rate of those without one; a ceiling where there are none."""
    products = [one for one in case.details.operations if one.is_product]
    odd: dict[int, list[Operation]] = defaultdict(list)
    for one in products:
        if sizes := _odd_sizes(one):
            odd[max(sizes)].append(one)
    even = [one for one in products if not _odd_sizes(one)]
    for size, mine in odd.items():
        seconds = sum(one.seconds for one in mine)
        if seconds < SEEN * case.spent.step_seconds:
            continue
        alike = [one for one in even if one.format == mine[0].format]
        roof = case.compute(mine[0].format)
        rate = sum(one.flops or 0.0 for one in alike) / sum(one.seconds for one in alike) if alike else None
        rate = rate or (roof.value if roof else None)
        padded = -(-size // PADDED) * PADDED
        flops = sum(one.flops or 0.0 for one in mine) * padded / size
        saved = max(0.0, seconds - flops / rate) if rate else None
        why = f"products with a size of {size:,} take {show_duration(seconds)} a step, and units work on multiples of 8"
        yield Candidate(f"pad the size {size:,} to {padded:,}", why, saved, case.step, where=mine[0].where)


def _odd_sizes(one: Operation) -> list[int]:
    """Sizes of an unbatched product, rows left out, that leave units empty."""
    count, _, columns, inner = one.sizes[0]
    multiple = ALIGNED.get(one.format, 8)
    return [size for size in (columns, inner) if count == 1 and size >= LARGE and size % multiple]


def _wide_products(case: Traced) -> Iterator[Candidate]:
    """Products in fp32 although the case computes in fewer bits."""
    if BYTES.get(case.format, 4) > 2:
        return
    wide = [one for one in case.details.operations if one.is_product and one.format == "fp32"]
    seconds = sum(one.seconds for one in wide)
    if seconds < SEEN * case.spent.step_seconds:
        return
    slow, fast = case.compute("fp32"), case.compute()
    saved = seconds * max(0.0, 1.0 - slow.value / fast.value) if slow and fast else None
    why = f"products in fp32 take {show_duration(seconds)} of a step that computes in {case.format}"
    where = ", ".join(dict.fromkeys(one.where for one in wide[:3] if one.where))
    yield Candidate(f"compute the products left in fp32 in {case.format}", why, saved, case.step, where=where)


def _settings(case: Traced) -> Iterator[Candidate]:
    details, spent, idle = case.details, case.spent, case.idle
    for setting in case.trace.alternatives:
        name, _, value = setting.partition("=")
        if name == "compile":
            why = "chains of operators that touch each number once become one pass, with fewer launches"
            saved = details.fusible_seconds + idle * details.fusible_calls
            yield Candidate("compile", why, saved, case.step, setting)
        elif name == "graph":
            yield Candidate("replay the step as a CUDA graph", "launches leave gaps", idle, case.step, setting)
        elif name == "frozen":
            saved = spent.groups.get("normalisation", 0.0) * spent.step_seconds
            yield Candidate("freeze the weights", "batch norms are folded into them", saved, case.step, setting)
        elif name == "precision":
            yield _precision(case, value, setting)
        elif name == "batch_size":
            yield _batch(case, int(value), setting)


def _precision(case: Traced, value: str, setting: str) -> Candidate:
    new = number_format(value)
    now, then = case.compute(), case.compute(new)
    fewer = 1.0 - BYTES.get(new, 4) / BYTES.get(case.format, 4)
    # A ceiling that was measured says nothing of one that is in a datasheet.
    is_known = now and then and (now.source == DATASHEET) == (then.source == DATASHEET)
    faster = max(0.0, 1.0 - now.value / then.value if is_known and now and then else fewer)
    if new == "fp8":
        why = "matrix products run faster, less what it takes to scale and convert their inputs; all else stays"
        return Candidate(f"compute in {value}", why, _saved_by_fp8(case, faster), case.step, setting)
    saved, why = case.of("compute") * faster + case.of("memory") * fewer, "products run faster, and fewer bytes move"
    if case.step - saved < case.host_bound:
        saved = case.step - case.host_bound
        why += f"; then the host is the bound, which takes {show_duration(case.host_bound)} to issue a step"
    return Candidate(f"compute in {value}", why, saved, case.step, setting)


def _saved_by_fp8(case: Traced, faster: float) -> float | None:
    """Seconds of the products, each input of which is read twice, to scale and to convert it, and written in 8 bits."""
    memory = case.memory
    products = [one for one in case.details.operations if one.is_product]
    if memory is None or not products:
        return None
    converted = 0.0
    for one in products:
        count, rows, columns, inner = one.sizes[0]
        converted += one.calls * count * inner * (rows + columns) * (2 * BYTES.get(case.format, 4) + 1)
    return max(0.0, faster * sum(one.seconds for one in products) - converted / memory.value)


def _batch(case: Traced, size: int, setting: str) -> Candidate:
    """What does not grow with the batch is shared by more samples: gaps, dispatch, the optimizer, reading weights."""
    spent = case.spent
    fixed = case.idle + spent.step_seconds * sum(spent.groups.get(one, 0.0) for one in ("dispatch", "the optimizer"))
    for one in case.details.operations:
        if one.is_product:
            count, rows, *_ = one.sizes[0]
            best = case.best(one)
            is_read = best[0] == "memory" if best else rows < FEW_ROWS
            fixed += one.seconds if is_read and count == 1 else 0.0
    fixed = min(fixed, case.step)
    factor = size / (case.record.subject.batch or size)
    saved = fixed * (1.0 - 1.0 / factor) if factor > 1 else 0.0
    why = f"{show_duration(fixed)} of a step do not depend on the batch: gaps, the optimizer, reading the weights"
    return Candidate(f"a batch of {size}", why, saved, case.step, setting)
