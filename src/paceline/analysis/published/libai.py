"""LiBai's comparison with Megatron-LM: its tables of BERT and GPT-2 on up to 32 GPUs, with our columns in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.analysis.published import PublishedTable, published_rows, shown_rate
from paceline.core.errors import InputError
from paceline.core.layout import Layout
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import RunRecords

TITLE = "Compared with LiBai's published figures"
SOURCE = (
    "LiBai's Benchmark.md: samples/s of LiBai and of Megatron-LM (e156d2f) in fp16, on GPUs that it does not name. "
    "Ours are sequences/s with the half-width of the 95 % interval. A ratio is that of the two columns before it, with "
    "? where one of them has warnings; empty is not measured."
)
CONTRADICTION = (
    "* contradicts itself as published: 8x1x1 is 8 ranks, 1n4g is 4 GPUs. Its batch and its log are those of 4x1x1, "
    "which is what is measured here."
)
FAMILIES = {"BERT": "bert", "GPT-2": "gpt2"}
AXES = {"data": "Data Parallel", "tensor": "Tensor Model Parallel", "pipeline": "Pipeline Model Parallel"}


@dataclass(frozen=True)
class Training:
    """What a benchmark and its peer do alike: a layout, and whatever else is not as published."""

    layout: Layout
    more: str = ""

    @classmethod
    def of(cls, record: Record) -> Training | None:
        """As its title says; None for what trains no layout."""
        word, _, more = record.case.title.removesuffix(f" x{record.case.ranks}").partition(" ")
        try:
            return cls(Layout.parse(word), more)
        except InputError:
            return None

    @property
    def label(self) -> str:
        """Without the model, as the published tables have it."""
        return f"{str(self.layout).partition('/')[2]} {self.more}".rstrip()

    def is_like(self, published: Layout) -> bool:
        """Whether it differs from the published one in precision or settings alone, not in the work laid out."""
        return self.layout.model_copy(update={"precision": published.precision}) == published

    @property
    def section(self) -> str:
        """The section of the published page that it would be in."""
        if self.layout.tensor > 1 and self.layout.pipeline > 1:
            return "3-D Parallel"
        return " + ".join(title for axis, title in AXES.items() if getattr(self.layout, axis) > 1) or AXES["data"]


@dataclass(frozen=True)
class PublishedRow:
    """A row of a published table."""

    benchmark: str  # that does the same here
    section: str
    model: str
    word: str  # as published
    libai: str  # samples/s, as published
    megatron: str

    @property
    def is_contradictory(self) -> bool:
        """Whether the mesh has another number of ranks than there are GPUs."""
        layout = self._published
        return layout.world_size != layout.nodes * layout.gpus

    @property
    def layout(self) -> Layout:
        """What was run: where the row contradicts itself, as many data-parallel ranks as there are GPUs."""
        layout = self._published
        if not self.is_contradictory:
            return layout
        ranks = layout.nodes * layout.gpus // (layout.tensor * layout.pipeline)
        return layout.model_copy(update={"data": ranks}).check()

    @property
    def cells(self) -> tuple[str, ...]:
        """The figures and their ratio."""
        return self.libai, self.megatron, _ratio(float(self.libai), float(self.megatron))

    @property
    def _published(self) -> Layout:
        return Layout.parse(f"{FAMILIES[self.model]}/{self.word}")


def libai_rows() -> tuple[PublishedRow, ...]:
    """All 44 rows, in the order of the page; a few are in two tables."""
    columns = ("benchmark", "section", "model", "case", "libai_samples_per_s", "megatron_samples_per_s")
    return tuple(PublishedRow(*(row[name] for name in columns)) for row in published_rows("libai_vs_megatron"))


def libai_tables(records: RunRecords) -> tuple[PublishedTable, ...]:
    """The published tables with our columns in them; none where nothing was measured."""
    measured = _Measured(records.records)
    if not measured.any_ok:
        return ()
    headers = ("Model", "Case", "Paceline", *measured.headers, "LiBai", "Megatron-LM", "LiBai / Megatron-LM")
    sections = tuple(dict.fromkeys(row.section for row in libai_rows()))
    return tuple(
        PublishedTable(
            title=f"{TITLE}: {section}",
            source=f"{SOURCE} {CONTRADICTION}{measured.notes}" if section == sections[-1] else "",
            headers=headers,
            named=2,
            lines=tuple(_lines(section, measured)),
        )
        for section in sections
    )


class _Measured:
    """Records by training and benchmark, and how they are shown."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records: dict[Training, dict[str, list[Record]]] = {}
        for record in records:
            training = Training.of(record)
            if training is not None:
                self._records.setdefault(training, {}).setdefault(record.case.benchmark, []).append(record)
        everything = [one for by_name in self._records.values() for same in by_name.values() for one in same]
        self.any_ok = any(record.outcome is Outcome.OK for record in everything)
        self.trainings = tuple(self._records)
        self._ours = libai_rows()[0].benchmark  # that trains the same layouts here
        self._peers = list(dict.fromkeys(one.case.benchmark for one in everything if one.case.benchmark != self._ours))
        self.headers = tuple(header for peer in self._peers for header in (peer, f"Paceline / {peer}"))
        notes = [f" Measured on {one.subject.device}." for one in everything if one.subject.device]
        notes += [f" {one.subject.engine}." for one in everything if one.subject.engine]
        self.notes = "".join(dict.fromkeys(notes))

    def cells(self, training: Training) -> tuple[str, ...]:
        """Ours, then each peer's with the ratio."""
        by_name = self._records.get(training, {})
        ours, cell = _typical(by_name.get(self._ours, []))
        cells = [cell]
        for peer in self._peers:
            theirs, cell = _typical(by_name.get(peer, []))
            ratio = ""
            if ours and theirs:
                (our_rate, our_record), (their_rate, their_record) = ours, theirs
                mark = " ?" if our_record.warnings or their_record.warnings else ""
                ratio = _ratio(our_rate.value, their_rate.value) + mark
            cells += [cell, ratio]
        return tuple(cells)


def _lines(section: str, measured: _Measured) -> Iterator[tuple[str, ...]]:
    """Each published row, below it what differs from it in little; after a model's rows what is like none of them."""
    rows = libai_rows()
    for model, family in FAMILIES.items():
        for row in (row for row in rows if (row.section, row.model) == (section, model)):
            same = Training(row.layout)
            yield model, row.word + (" *" if row.is_contradictory else ""), *measured.cells(same), *row.cells
            for training in measured.trainings:
                if training != same and training.is_like(row.layout):
                    yield model, training.label, *measured.cells(training), "", "", ""
        for training in measured.trainings:
            is_new = not any(training.is_like(row.layout) for row in rows)
            if is_new and (training.layout.model, training.section) == (family, section):
                yield model, training.label, *measured.cells(training), "", "", ""


def _typical(records: Sequence[Record]) -> tuple[tuple[Measurement, Record] | None, str]:
    """The middle throughput of the repetitions that succeeded with its record, and as a cell; or how they ended."""
    rates = [
        (rate, record)
        for record in records
        if record.outcome is Outcome.OK and (rate := record.measurement("throughput")) is not None
    ]
    if not rates:
        ends = [record.outcome.value for record in records if record.outcome not in (Outcome.OK, Outcome.UNSUPPORTED)]
        return None, ends[-1] if ends else ""
    middle = sorted(rates, key=lambda pair: pair[0].value)[(len(rates) - 1) // 2]
    return middle, shown_rate(middle[0])


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}"
