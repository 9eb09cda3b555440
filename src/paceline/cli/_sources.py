"""What a person names when asked for results: a run, a tag, a file, or published figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import InputError
from paceline.core.run import RunRecords

if TYPE_CHECKING:
    from paceline.store.reading import Reader

PUBLISHED = "published:"  # before the name of figures that others published


@dataclass(frozen=True)
class Source:
    """One side of a question: the runs behind the words that were typed."""

    name: str  # as it was typed; `last` becomes the run's id
    runs: tuple[RunRecords, ...]


def read_source(text: str, store: str | None = None) -> Source:
    """The runs behind one word; of a tag all that carry it, the oldest first."""
    return read_sources([text], store)[0]


def read_sources(texts: list[str] | tuple[str, ...], store: str | None = None) -> list[Source]:
    """The same for several words; the store is opened only if one of them is to be found there."""
    from paceline.store import open_reader

    found: dict[int, Source] = {}
    stored: list[int] = []
    for place, text in enumerate(texts):
        if text.startswith(PUBLISHED):
            found[place] = _published(text)
        elif _looks_like_a_file(text):
            found[place] = _file(Path(text))
        else:
            stored.append(place)
    if stored:
        with open_reader(store) as opened:
            for place in stored:
                found[place] = _stored(texts[place], opened)
    return [found[place] for place in range(len(texts))]


def _stored(text: str, store: Reader) -> Source:
    ids = store.find_runs(text)
    name = text if len(ids) > 1 or text != "last" else ids[0]
    return Source(name, tuple(store.load(run_id) for run_id in ids))


def _looks_like_a_file(text: str) -> bool:
    return "/" in text or text.endswith((".jsonl", ".json"))


def _file(path: Path) -> Source:
    from paceline.report.export import jsonl

    try:
        with path.open(encoding="utf-8") as lines:
            first = lines.readline()
            if not jsonl.is_ours(first):
                return _foreign(path)
            lines.seek(0)
            return Source(str(path), tuple(jsonl.parse(lines, str(path))))
    except OSError as error:
        message = f"cannot read '{path}': {error.strerror}; name a run, a tag, or a file of results"
        raise InputError("unreadable-file", message, value=str(path)) from None
    except UnicodeDecodeError:
        message = f"'{path}' is not a text file: name a file of `paceline report --jsonl`"
        raise InputError("not-text", message, value=str(path)) from None


def _foreign(path: Path) -> Source:
    """A file of another system's results."""
    from paceline.analysis.diagnose.superbench import read_results

    return Source(str(path), tuple(read_results(path)))


def _published(text: str) -> Source:
    """Figures that ship with Paceline."""
    from paceline.analysis.published.records import published_records

    return Source(text, (published_records(text.removeprefix(PUBLISHED)),))
