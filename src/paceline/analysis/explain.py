"""What traces say of steps: a budget that adds up, what would make them faster, and what their shares show alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from paceline.analysis.roofline import BEYOND, KnownCeilings, Roof, RoofKey, device_of, known_roofs
from paceline.analysis.summary import CaseRow
from paceline.core.errors import InputError
from paceline.core.quantity import show_count, show_duration, show_scaled, show_size
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords
from paceline.core.subject import BYTES, DEVICE_MEMORY, MAIN_MEMORY, StepTrace, Work, number_format
from paceline.core.trace_events import IDLE, KINDS, TimeSpent
from paceline.core.trace_signs import Operation, Sign, StepDetails

STEP_TIME = "step_time"
DATASHEET = "datasheet"


@dataclass(frozen=True)
class BudgetPart:
    """Some of the time of a step."""

    name: str
    seconds: float  # below zero only of what is unexplained: then the traced steps were longer than the measured ones
    why: str


@dataclass(frozen=True)
class BoundOperation:
    """An operation or a kernel, and how far it stays from what its machine can do."""

    name: str
    does: str
    where: str
    calls: float
    seconds: float
    bound: str = ""  # compute or memory; empty where its work is not known
    best: float | None = None  # seconds at the ceiling


@dataclass(frozen=True)
class Traced:
    """One traced case with all that an explanation rests on."""

    record: Record
    step: float  # seconds, measured
    trace: StepTrace
    spent: TimeSpent
    roofs: Mapping[RoofKey, Roof]

    @property
    def looked_at(self) -> float:
        """Seconds of the step that times are parts of: what a host computes takes longer while it is traced."""
        return self.spent.step_seconds if self.spent.on_device else min(self.step, self.spent.step_seconds)

    @cached_property
    def details(self) -> StepDetails:
        """Of the slower trace; on a host, with times as parts of the step that is looked at."""
        found = self.trace.details or StepDetails()
        is_longer = not self.spent.on_device and found.step_seconds > self.looked_at
        return found.scaled(self.looked_at / found.step_seconds) if is_longer else found

    @property
    def format(self) -> str:
        """What its units compute in."""
        work, precision = self.record.work, self.record.subject.precision
        return work.number_format if work else number_format(precision or "fp32")

    def compute(self, number: str | None = None) -> Roof | None:
        """The ceiling of products in a number format, that of the case unless another is named."""
        return self.roofs.get((device_of(self.record), "compute", number or self.format))

    @property
    def memory(self) -> Roof | None:
        device = device_of(self.record)
        return self.roofs.get((device, "memory", MAIN_MEMORY if device == "cpu" else DEVICE_MEMORY))

    def traced(self, kind: str) -> float:
        """Seconds of a traced step that went to one kind of work."""
        return self.spent.shares.get(kind, 0.0) * self.spent.step_seconds

    def of(self, kind: str) -> float:
        """Seconds of the step that is looked at that went to one kind of work."""
        return self.spent.shares.get(kind, 0.0) * self.looked_at

    @property
    def idle(self) -> float:
        """Seconds without work that a measured step can have had."""
        return self.trace.idle(self.step) if self.spent.on_device else self.of(IDLE)

    @property
    def product_flops(self) -> float:
        """Of all products of a step that were seen."""
        return sum(one.flops or 0.0 for one in self.details.operations if KINDS[one.group] == "compute")

    @property
    def host_bound(self) -> float:
        """Seconds that the host needs to issue a step; none where it also waits for the device in it."""
        waits = any(sign.kind == "synchronisation" for sign in self.details.signs)
        return 0.0 if waits else min(self.step, self.trace.issue_seconds or 0.0)

    def best(self, one: Operation) -> tuple[str, float] | None:
        """What bounds an operation, and its seconds at that ceiling; None where its work or a ceiling is not known."""
        times = {}
        if one.flops and (compute := self.compute(one.format or None)):
            times["compute"] = one.flops / compute.value
        if one.bytes and self.memory:
            times["memory"] = one.bytes / self.memory.value
        if not times or (one.is_product and len(times) < 2):
            return None
        bound = max(times, key=times.__getitem__)
        if times[bound] > BEYOND * one.seconds:  # it works from caches, or on less than its inputs
            return None
        return bound, times[bound]


def traced_case(source: RunRecords, known: KnownCeilings, record: Record) -> Traced:
    """A case to explain; one without a trace is refused with how to take one."""
    step, trace = record.measurement(STEP_TIME), record.trace
    if record.outcome is not Outcome.OK or step is None or trace is None or trace.spent is None:
        why = trace.missing if trace is not None and trace.missing else "it has no trace"
        name = f"{record.case.benchmark} {record.case.title}".strip()
        remedy = f"paceline run {record.case.benchmark} ... --explain"
        message = f"'{name}' cannot be explained: {why}; take one with: {remedy}"
        raise InputError("no-trace", message, value=name, suggestion=remedy)
    return Traced(record, step.value, trace, trace.spent, known_roofs(source, known))


ALL_SEEN = 0.95  # of the time of products: then those whose FLOPs are known tell what a step computes
LARGE_REST = 0.05  # of a measured step: what the trace leaves out is to be told


def budget(case: Traced, clock: float | None = None) -> list[BudgetPart]:
    """The parts of the measured step; `clock` is the device's as a part of its maximum, where that is known."""
    work = case.record.work
    parts = [
        *_products(case, work, clock),
        *_split("memory", case.traced("memory"), *_best_memory(case, work)),
        BudgetPart("exposed communication", case.traced("communication"), "data travels and nothing hides it"),
        BudgetPart("other work", case.traced("other"), "compiled code, dispatch, kernels that no pattern knows"),
        BudgetPart("launch and host gaps", case.trace.gaps, _why_gaps(case)),
    ]
    explained = [part for part in parts if part.seconds > 0]
    rest = case.step - sum(part.seconds for part in explained)
    why = "the measured step less all of the above"
    if rest < 0:
        why = "traced steps were longer than the measured ones: short operators and gaps are shown too large"
    elif case.step - case.spent.step_seconds > LARGE_REST * case.step:
        why = f"traced steps took only {show_duration(case.spent.step_seconds)}: the trace does not show the rest"
    return [*explained, BudgetPart("unexplained", rest, why)]


def _products(case: Traced, work: Work | None, clock: float | None) -> list[BudgetPart]:
    parts = _split("products", case.traced("compute"), *_best_products(case, work))
    if work is None or len(parts) < 2:
        return parts
    at, beyond = parts
    left, why, found = beyond.seconds, beyond.why, [at]
    if clock is not None and (roof := case.compute()) is not None and roof.source == DATASHEET:
        slower = min(left, case.traced("compute") * (1.0 - min(1.0, clock)))
        why_slower = f"{clock:.0%} of the maximum clock; less where the datasheet's rate is of a lower one"
        found.append(BudgetPart("power: the clock below its maximum", slower, why_slower))
        left -= slower
    if (extra := _beyond_formula(case, work)) is not None:
        more, why = min(left, extra), "tiles, waves, shapes"
        counted = f"products of {show_scaled(case.product_flops, 'FLOP')} were seen"
        found.append(BudgetPart("products beyond the formula", more, counted))
        left -= more
    return [*found, BudgetPart(beyond.name, left, why)]


def _beyond_formula(case: Traced, work: Work) -> float | None:
    """Seconds at the ceiling of the FLOPs that the formula does not count; None where too few of them were seen."""
    products = [one for one in case.details.operations if KINDS[one.group] == "compute"]
    seen = sum(one.seconds for one in products if one.flops)
    roof = case.compute()
    if roof is None or seen < ALL_SEEN * max(case.of("compute"), sum(one.seconds for one in products)):
        return None
    return max(0.0, case.product_flops - work.flops) / roof.value


def _why_gaps(case: Traced) -> str:
    why = "measured in the trace: nothing runs"
    if case.trace.added_gaps <= 0:
        return why
    cost, each = show_duration(case.trace.added_gaps), show_duration(case.trace.launch_cost or 0.0)
    return f"{why}; less {cost} of tracing, {each} before each kernel as in a graph of small ones"


def _split(name: str, seconds: float, best: float | None, why: str) -> list[BudgetPart]:
    if best is None:
        return [BudgetPart(name, seconds, why)]
    at = min(best, seconds)
    beyond = {"products": "tiles, shapes, work beyond the formula", "memory": "more passes than one, partial lines"}
    return [
        BudgetPart(f"{name} at the ceiling", at, why),
        BudgetPart(f"{name} beyond the ceiling", seconds - at, beyond[name]),
    ]


def _best_products(case: Traced, work: Work | None) -> tuple[float | None, str]:
    roof = case.compute()
    if work is None:
        return None, "the record does not count its FLOPs"
    if roof is None:
        return None, f"no ceiling for {case.format} is known: paceline machine --measure"
    best = work.flops / roof.value
    why = f"{show_scaled(work.flops, 'FLOP')} at {show_scaled(roof.value, 'FLOP/s')}, {roof.source}"
    if best <= BEYOND * case.traced("compute"):
        return best, why
    too_low = "the ceiling is too low (paceline machine --measure on a quiet machine), or less is computed than counted"
    return None, f"{why} would take {show_duration(best)}: {too_low}"


def _best_memory(case: Traced, work: Work | None) -> tuple[float | None, str]:
    roof = case.memory
    if roof is None:
        return None, "no ceiling of the memory is known: paceline machine --measure"
    counted = [one for one in case.details.operations if KINDS[one.group] == "memory" and one.bytes]
    seen = sum(one.seconds for one in counted)
    rate = f"at {show_scaled(roof.value, 'B/s')}, {roof.source}"
    if seen > 0:
        best = sum(min(one.seconds, (one.bytes or 0.0) / roof.value) for one in counted)
        return case.of("memory") * best / seen, f"what its operators read and write {rate}"
    if work is None:
        return None, "the record does not count its bytes"
    return work.bytes / roof.value, f"{show_scaled(work.bytes, 'B')} by formula {rate}"


def operations(case: Traced, most: int = 8) -> list[BoundOperation]:
    """What took longest: operators with their place and bound, or kernels where a trace shows too few operators."""
    found: Sequence[Operation] = case.details.operations
    busy = case.looked_at - case.of(IDLE)
    if sum(one.seconds for one in found) < busy / 2:
        return [BoundOperation(one.name, one.group, "", one.calls, one.seconds) for one in case.spent.kernels[:most]]
    bounds = [(one, case.best(one) or ("", None)) for one in found[:most]]
    return [
        BoundOperation(_named(one), one.group, one.where, one.calls, one.seconds, bound, best)
        for one, (bound, best) in bounds
    ]


def _named(one: Operation) -> str:
    name, kind = one.name.removeprefix("aten::"), f" {one.format}" if one.format else ""
    if one.is_product:
        count, rows, columns, inner = one.sizes[0]
        many = f"{count} of " if count > 1 else ""
        return f"{name} {many}{rows} x {columns} x {inner}{kind}"
    return f"{name} {' x '.join(map(str, one.sizes[0]))}{kind}" if one.sizes else name


LEAST = 0.01  # of the step: a smaller predicted gain of a setting is not worth a try
SEEN = 0.02  # of the step: what takes less is not named, if it takes time at all
LARGE_COPY = 2**20  # bytes
ALIGNED = {"fp8": 16, "int8": 16}  # sizes that tensor cores take whole; 8 for the others
PADDED = 64
LARGE = 64  # smaller sizes are not worth padding
FEW_ROWS = 32  # of a product without known ceilings: below, reading the weights takes the time
MOST_GAIN = 10.0  # times as fast: a larger gain is not predicted more closely


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
        """How many times as fast it should be, or at least this many times: little else of a step is known so well."""
        return None if self.saved is None else self.step / max(self.step - self.saved, self.step / MOST_GAIN)


def candidates(case: Traced) -> list[Candidate]:
    """All that the trace gives a reason for."""

    def by_gain(one: Candidate) -> float:
        return -(one.saved or 0.0)

    def is_worth_a_try(one: Candidate) -> bool:
        return not one.setting or one.saved is None or one.saved >= LEAST * case.step

    signs = [*filter(is_worth_a_try, _signs(case)), *_unaligned(case), *_wide_products(case)]
    settings = [one for one in _settings(case) if (one.saved or 0.0) >= LEAST * case.step]
    return [*sorted(signs, key=by_gain), *sorted(settings, key=by_gain)]


def _signs(case: Traced) -> Iterator[Candidate]:
    for sign in case.details.signs:
        share = sign.seconds / case.looked_at
        count, time = show_count(sign.calls), show_duration(sign.seconds)
        if sign.kind == "synchronisation":
            on_device = case.spent.on_device
            why = f"{count} a step: the host waits {time}, and the device then for the host"
            at_most = f"{why}, which at most saves what it idles"
            why = at_most if on_device else f"{count} a step; on a CPU it costs little, on a GPU the host waits there"
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
    known = {size for one in products for size in _odd_sizes(one)}
    odd: dict[int, list[Operation]] = defaultdict(list)
    for one in products:
        count, rows, *_ = one.sizes[0]
        # Of a gradient the rows are the columns of a weight; other rows, a batch, leave nothing empty.
        sizes = [*_odd_sizes(one), *(size for size in (rows,) if count == 1 and size in known)]
        odd[max(sizes, default=0)].append(one)
    even = odd.pop(0, [])
    for size, mine in odd.items():
        seconds = sum(one.seconds for one in mine)
        if seconds < SEEN * case.looked_at:
            continue
        alike = [one for one in even if one.format == mine[0].format]
        roof = case.compute(mine[0].format)
        rate = sum(one.flops or 0.0 for one in alike) / sum(one.seconds for one in alike) if alike else None
        rate = rate or (roof.value if roof else None)
        padded = -(-size // PADDED) * PADDED
        flops = sum(one.flops or 0.0 for one in mine) * padded / size
        why = f"products with a size of {size:,} take {show_duration(seconds)} a step, and units work on multiples of 8"
        saved, why = _host_allows(case, max(0.0, seconds - flops / rate), why) if rate else (None, why)
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
    if seconds < SEEN * case.looked_at:
        return
    slow, fast = case.compute("fp32"), case.compute()
    why = f"products in fp32 take {show_duration(seconds)} of a step that computes in {case.format}"
    saved = seconds * max(0.0, 1.0 - slow.value / fast.value) if slow and fast else None
    saved, why = (None, why) if saved is None else _host_allows(case, saved, why)
    where = ", ".join(dict.fromkeys(one.where for one in wide[:3] if one.where))
    yield Candidate(f"compute the products left in fp32 in {case.format}", why, saved, case.step, where=where)


def _settings(case: Traced) -> Iterator[Candidate]:
    details, spent, idle = case.details, case.spent, case.idle
    for setting in case.trace.alternatives:
        name, _, value = setting.partition("=")
        if name == "compile":
            why = "chains of operators that touch each number once become one pass, with fewer launches"
            saved = details.fusible_seconds + idle * details.fusible_calls
            if layout := next((sign for sign in details.signs if sign.kind == "layout" and spent.on_device), None):
                saved += layout.seconds
                why += "; images are laid out as NHWC"
            yield Candidate("compile", why, saved, case.step, setting)
        elif name == "graph":
            yield Candidate("replay the step as a CUDA graph", "launches leave gaps", idle, case.step, setting)
        elif name == "frozen":
            saved = spent.groups.get("normalisation", 0.0) * case.looked_at
            yield Candidate("freeze the weights", "batch norms are folded into them", saved, case.step, setting)
        elif name == "checkpointing":
            # Forward, forward again, and backward of twice that; the optimizer runs once.
            once = case.of("compute") + case.of("memory") - spent.groups.get("the optimizer", 0.0) * case.looked_at
            why = "the forward pass of every layer is computed twice; without that, activations take more memory"
            yield Candidate("keep the activations", why, max(0.0, once) / 4, case.step, setting)
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
    saved = case.of("compute") * faster + case.of("memory") * fewer
    saved, why = _host_allows(case, saved, "products run faster, and fewer bytes move")
    return Candidate(f"compute in {value}", why, saved, case.step, setting)


def _host_allows(case: Traced, saved: float, why: str) -> tuple[float, str]:
    """What is saved where as many operators have to be issued as before, and why."""
    if case.step - saved >= case.host_bound:
        return saved, why
    why += f"; then the host is the bound, which takes {show_duration(case.host_bound)} to issue a step"
    return case.step - case.host_bound, why


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
    groups = case.spent.groups
    fixed = case.idle + case.looked_at * sum(groups.get(one, 0.0) for one in ("dispatch", "the optimizer"))
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


MUCH = 0.2  # of a step: worth doing something about
MOST = 0.5
SLOWED = 1.1  # from this ratio on, tracing itself is to be seen in the shares


@dataclass(frozen=True)
class TracedRow:
    """One case that was to be traced."""

    row: CaseRow
    trace: StepTrace

    @property
    def is_slowed(self) -> bool:
        """Whether tracing made the steps so much longer that the shares show it."""
        return self.trace.slowdown is not None and self.trace.slowdown > SLOWED


def traced(rows: Iterable[CaseRow]) -> list[TracedRow]:
    """The cases that were to be traced."""
    return [TracedRow(row, row.record.trace) for row in rows if row.record.trace is not None]


def trace_advice(trace: StepTrace) -> tuple[str, ...]:
    """What would make the step shorter, where the shares show it plainly."""
    if trace.spent is None:
        return ()
    shares = trace.spent.shares
    remedies = []
    if trace.spent.on_device and shares.get(IDLE, 0.0) >= MUCH:
        ways = ["a larger batch", *trace.switches]
        remedies.append(f"the device waits for the host: give it more at once with {' or '.join(ways)}")
    if shares.get("communication", 0.0) >= MUCH:
        remedies.append(
            "communication is waited for: larger batches for each rank, or another layout (paceline plan), hide it"
        )
    if shares.get("memory", 0.0) >= MOST:
        compiling = ", and --compile on moves them fewer times" if "--compile on" in trace.switches else ""
        remedies.append(
            f"moving numbers takes longer than computing with them: a narrower precision moves fewer bytes{compiling}"
        )
    return tuple(remedies)
