"""`paceline.compare` and `paceline.diagnose`: what runs say together, with the probability of being wrong behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.analysis.compare.sides import compare as compare_sides
from paceline.analysis.compare.sides import compare_paired, is_interleaved, require_different
from paceline.analysis.compare.verdicts import Comparison as ComparedSides
from paceline.analysis.compare.verdicts import ComparisonRow, ComparisonVerdict, Side
from paceline.api.result import Result, dataframe, write_by_suffix
from paceline.api.sources import earlier_runs, read_sources, read_table
from paceline.core.errors import InputError
from paceline.core.gc_pause import no_garbage
from paceline.report.compare import document as compare_pages
from paceline.report.compare import words as compare_words
from paceline.report.text import clean

if TYPE_CHECKING:
    import pandas

    from paceline.analysis.diagnose.judge import Diagnosis as JudgedNodes
    from paceline.report.document import Document

Source = str | Path | Result | Sequence[Result]


class _Answer:
    """What a notebook shows of an answer, and how it is written to a file."""

    def document(self, *, full: bool = False) -> Document:
        """As the command line shows it; in full for a file."""
        raise NotImplementedError

    def report(self, path: str | Path) -> Path:
        """Write it as a page (.html), Markdown (.md) or a picture (.png)."""
        from paceline.report.charts import draw_first
        from paceline.report.render import html, markdown

        makers: dict[str, Callable[[Document], str | bytes]] = {
            ".html": html.render,
            ".md": markdown.render,
            ".png": lambda document: draw_first(document.charts),
        }
        return write_by_suffix(path, makers, self.document(full=True))

    def _repr_html_(self) -> str:
        from paceline.report.render.html import fragment

        return fragment(self.document())


class Comparison(_Answer):
    """Every other side against the first: ratios with intervals, and verdicts."""

    def __init__(self, sides: ComparedSides) -> None:
        self.sides = sides

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """One for each case and metric: `label`, `metric`, `ratio` with its interval, `verdict`."""
        return tuple(self.sides.rows)

    @property
    def verdict(self) -> str:
        """The whole comparison in a sentence for each side that was compared with the first."""
        is_paired = self.sides.is_paired
        return "\n".join(compare_words.answer(one, is_paired=is_paired) for one in self.sides.pairings)

    @property
    def verdicts(self) -> dict[str, str]:
        """A sentence for each case and metric; what is not decided says what would decide it."""
        words = {}
        for row in self.rows:
            remedy = compare_words.remedy(row, is_paired=self.sides.is_paired)
            name = f"{row.label}, {compare_words.metric_words(row)}"
            words[name] = compare_words.verdict_words(row) + (f"; {remedy}" if remedy else "")
        return words

    @property
    def changed(self) -> tuple[ComparisonRow, ...]:
        """What is significantly better, worse or other than in the reference; empty (false) if nothing is."""
        return tuple(row for row in self.rows if row.is_change)

    @property
    def worse(self) -> tuple[ComparisonRow, ...]:
        """What is significantly worse."""
        return tuple(row for row in self.rows if row.verdict is ComparisonVerdict.WORSE)

    def document(self, *, full: bool = False) -> Document:
        """As `paceline compare` shows it; in full for a file."""
        return compare_pages.document(self.sides, full=full)

    def to_dataframe(self) -> pandas.DataFrame:
        """One row for each case and metric, as in `paceline compare --csv`."""
        return dataframe(compare_pages.rows_of(self.sides))

    def __repr__(self) -> str:
        return clean(self.verdict)


def compare(
    reference: Source,
    *others: Source,
    metrics: Sequence[str] = (),
    all_metrics: bool = False,
    store: str | Path | None = None,
) -> Comparison:
    """Compare every other side with the reference, by each case's headline, or by the metrics named.

    A side is a result, several results that count as one, the name of a run (an id, `last`), a tag, or a file. A run of
    `paceline ab` is compared with itself: give it alone.
    """
    given = [reference, *others]
    place = store if store is not None else next((one.store for one in given if isinstance(one, Result)), None)
    url = None if place is None else str(place)
    texts = [_text_of(one) for one in given]
    if len(set(texts)) < len(texts):  # sides with the same tag
        texts = [str(one) if isinstance(one, str | Path) else _results(one)[0].run_id for one in given]
    metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    with no_garbage():
        sides = [_side(one, text, url) for one, text in zip(given, texts, strict=True)]
        return Comparison(compared(texts, sides, url, metrics=metrics, every=all_metrics))


def compared(texts: Sequence[str], sides: Sequence[Side], store: str | None, **selection: Any) -> ComparedSides:
    """Every side with the first; a run of `paceline ab` alone with itself. The texts name the sides."""
    runs = sides[0].runs
    if len(sides) > 1:
        require_different(sides)
        return compare_sides(sides, earlier=earlier_runs(texts, store), **selection)
    if len(runs) == 1 and is_interleaved(runs[0]):
        return compare_paired(runs[0], **selection)
    message = f"'{texts[0]}' alone is not a comparison: name another run, tag or file to compare it with"
    raise InputError("one-side", message, value=texts[0])


class Diagnosis(_Answer):
    """Which machines are defective, and why."""

    def __init__(self, nodes: JudgedNodes) -> None:
        self.nodes = nodes

    @property
    def defective(self) -> tuple[str, ...]:
        """The names of the nodes to look after."""
        return tuple(verdict.node for verdict in self.nodes.defective)

    def document(self, *, full: bool = False) -> Document:
        """As `paceline diagnose` shows it."""
        from paceline.report.diagnose import document

        return document(self.nodes)

    def __repr__(self) -> str:
        return clean(self.document().lead)


def diagnose(
    *sources: Source,
    rules: str | Path | None = None,
    baseline: str | Path | None = None,
    store: str | Path | None = None,
) -> Diagnosis:
    """Judge the machines behind results, runs, tags or files: with a baseline, otherwise each by the others."""
    texts = [str(one) for one in sources if isinstance(one, str | Path)]
    runs = [result.records for one in sources if not isinstance(one, str | Path) for result in _results(one)]
    return Diagnosis(
        judged(
            texts,
            None if store is None else str(store),
            Path(rules) if rules is not None else None,
            Path(baseline) if baseline is not None else None,
            runs,
        )
    )


def judged(
    texts: Sequence[str], store: str | None, rules: Path | None, baseline: Path | None, runs: Sequence[Any] = ()
) -> JudgedNodes:
    """The nodes behind these sources, judged; rules, baseline and results must have the same names of metrics."""
    from paceline.analysis.baseline import read_baseline
    from paceline.analysis.diagnose.judge import diagnose as judge
    from paceline.analysis.diagnose.rules import default_rules, read_rules

    ruleset = read_rules(rules) if rules else default_rules()
    reference = read_baseline(baseline) if baseline else None
    is_ours = reference is not None and reference.names != "superbench"
    if is_ours and ruleset.is_theirs:
        message = (
            f"the rules '{rules}' have SuperBench's names of metrics, but the baseline '{baseline}' has Paceline's: "
            "make it with `paceline baseline RUN... --superbench`"
        )
        raise InputError("rules-with-other-names", message, key="--baseline", value=str(baseline))
    superbench = ruleset.is_theirs or (reference is not None and not is_ours)
    table, is_theirs = read_table(texts, store, superbench=superbench, more=runs)
    if is_theirs and is_ours:
        message = f"the results have SuperBench's names of metrics, but the baseline '{baseline}' has Paceline's"
        raise InputError("results-with-other-names", message, key="--baseline", value=str(baseline))
    return judge(table, ruleset, reference)


def _side(source: Source, text: str, store: str | None) -> Side:
    if isinstance(source, str | Path):
        return read_sources([text], store)[0]
    return Side(text, tuple(result.records for result in _results(source)))


def _results(source: Result | Sequence[Result]) -> list[Result]:
    results = [source] if isinstance(source, Result) else list(source)
    wrong = next((one for one in results if not isinstance(one, Result)), None)
    if wrong is not None or not results:
        kind = type(wrong).__name__ if results else "an empty list"
        message = f"a side is a result, a list of results, or the name of a run or tag, and not {kind}"
        raise InputError("not-a-side", message, value=kind)
    return results


def _text_of(source: Source) -> str:
    """What a side is called."""
    if isinstance(source, str | Path):
        return str(source)
    results = _results(source)
    shared = [tag for tag in results[0].tags if all(tag in one.tags for one in results)]
    return shared[0] if shared else results[0].run_id
