"""Whatever a file or a message holds, its reader gives plain data or refuses it, and does nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from paceline.analysis.baseline import read_baseline
from paceline.analysis.diagnose.rules import read_rules
from paceline.analysis.diagnose.superbench import read_nodes
from paceline.api.sources import read_sources
from paceline.benchmarks.compute._function_lists import read_list
from paceline.benchmarks.compute.blas_functions import GemmFunction
from paceline.benchmarks.serving.texts import read_prompts
from paceline.core.errors import InputError, StoreError
from paceline.core.run import RunRecords
from paceline.core.suite import Suite
from paceline.core.text import parse_json
from paceline.core.yaml_text import read_yaml
from paceline.load.arrivals import read_arrivals
from paceline.remote import agent as messages
from paceline.report.export import jsonl
from paceline.runner.hosts import read_hosts
from paceline.service.engines.base import Assignment
from paceline.service.follower.spool import Spool
from paceline.store import codec, open_store
from support.fuzzing import fuzz
from support.store_samples import a_failed_record, a_record, a_run

DATA = Path(__file__).parent.parent / "data"
SUITE = b"""name: mine
cases:
- &a {benchmark: gemm, size: [64, 128], repeat: 2}
- <<: *a
  precision: "fp32"
  timeout: 2h
"""


@dataclass(frozen=True)
class Reader:
    """What reads bytes, good inputs, and how it may refuse others."""

    read: Callable[[Path, bytes], object]
    seeds: tuple[bytes, ...]
    refusals: tuple[type[Exception], ...] = (InputError,)


def of_file(read: Callable[[Path], object], name: str = "input") -> Callable[[Path, bytes], object]:
    """A reader of bytes from a reader of a file."""

    def reading(folder: Path, data: bytes) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return reading


def text_of(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def import_spool(folder: Path, data: bytes) -> None:
    path = folder / "records.jsonl"
    path.write_bytes(data)
    with open_store(folder / "store.db") as store:
        if not store.has("run-1"):
            store.begin(a_run())
        store.import_spool(path)


def read_items(folder: Path, data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as attempt:
        spool = Spool.make(Path(attempt), Assignment(job_id="job", attempt=1, run_id="run-1", suite={}))
        (Path(attempt) / "items.jsonl").write_bytes(data)
        items = spool.items()
        assert [item.number for item in items] == list(range(1, len(items) + 1))


def items_of_attempt() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool.make(Path(folder), Assignment(job_id="job", attempt=1, run_id="run-1", suite={}))
        spool.append("began", run=a_run())
        spool.append("record", record=a_record())
        spool.append("ended", text="bye\n")
        return (Path(folder) / "items.jsonl").read_bytes()


EXPORTED = jsonl.render(RunRecords(run=a_run(), records=[a_record(), a_failed_record(index=1)])).encode()
SPOOLED = "".join(f"{codec.to_line(record)}\n" for record in (a_record(), a_failed_record(index=1))).encode()
RULES = (DATA / "superbench/rules.yaml").read_bytes()
READERS = {
    "yaml": Reader(lambda _, data: read_yaml(text_of(data)), (SUITE, RULES)),
    "suite": Reader(lambda _, data: Suite.read(read_yaml(text_of(data)), "mine"), (SUITE,)),
    "json": Reader(lambda _, data: parse_json(data), (SPOOLED, b'[1, {"a": [null, "\\ud83d\\ude00"]}]'), (ValueError,)),
    "rules": Reader(of_file(read_rules), (RULES,)),
    "baseline": Reader(of_file(read_baseline), ((DATA / "superbench/baseline.json").read_bytes(),)),
    "superbench": Reader(of_file(read_nodes), ((DATA / "superbench/results-summary.jsonl").read_bytes()[:4000],)),
    "results": Reader(of_file(lambda path: read_sources([str(path)], None), "results.jsonl"), (EXPORTED,)),
    "functions": Reader(of_file(partial(read_list, kind=GemmFunction)), (f"- {GemmFunction.EXAMPLE}".encode(), SUITE)),
    "arrivals": Reader(
        of_file(read_arrivals, "times.csv"), (b"timestamp,kind\n0.5,0\n2026-01-31 12:00:00.5,1\n", b"1\n2\n")
    ),
    "arrivals-json": Reader(of_file(read_arrivals, "times.jsonl"), (b'{"timestamp": 1}\n{"timestamp": 2.5}\n',)),
    "prompts": Reader(
        of_file(read_prompts),
        (b'"one"\n{"prompt": "two"}\n', b'[{"conversations": [{"from": "human", "value": "a"}]}]'),
    ),
    "hosts": Reader(of_file(lambda path: read_hosts(str(path))), (b"a slots=2\nb # this\n",)),
    "spool": Reader(import_spool, (SPOOLED,), (InputError, StoreError)),
    "items": Reader(read_items, (items_of_attempt(),), ()),
    "messages": Reader(lambda _, data: messages.decode(data), (messages.encode({"progress": {"a": [1]}}),), ()),
}
EXPENSIVE = {"spool": 40, "results": 60, "items": 60, "superbench": 60}


@pytest.fixture(scope="module", autouse=True)
def _own_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither the user's own store nor their spools are touched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.mark.parametrize("name", READERS)
def test_a_reader_gives_data_or_refuses(tmp_path: Path, name: str) -> None:
    reader = READERS[name]
    fuzz(name, reader.seeds, partial(reader.read, tmp_path), reader.refusals, EXPENSIVE.get(name, 150))


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_a_reader_gives_data_or_refuses_for_longer(tmp_path: Path, name: str) -> None:
    reader = READERS[name]
    fuzz(name, reader.seeds, partial(reader.read, tmp_path), reader.refusals, 20 * EXPENSIVE.get(name, 150))
