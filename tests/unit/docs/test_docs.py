"""What the texts say is true: examples run, commands exist, links lead somewhere, nothing is left out."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from paceline.benchmarks._micro import session
from paceline.benchmarks.compute._function_lists import MOST_TRACED, read_list
from paceline.benchmarks.compute.blas_functions import GemmFunction
from paceline.benchmarks.compute.dnn_functions import ConvolutionFunction
from paceline.cli import run
from paceline.cli.main import Verbs, paceline
from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import is_micro
from paceline.core.parameters import SPAN
from paceline.core.record import CauseKind, Outcome, Record
from paceline.core.suite import Here, Suite, expand
from paceline.measure import loop
from paceline.runner.sides import make_side
from support import docs_markdown as markdown
from support.cli import Sandbox, ended, events, sandbox_in
from support.docs_markdown import ROOT

GUIDE = ROOT / "docs" / "guide"
MICRO_GUIDE = GUIDE / "micro-benchmarks.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
OF_USERS = {  # files that the texts take for granted
    "sharegpt.json": '[{"conversations": [{"from": "human", "value": "Hello?"}, {"from": "gpt", "value": "Hello."}]}]',
    "trace.jsonl": '{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}',
}
SHORT = ("--budget", "0.2s", "--warm-up", "0.2s", "--target", "cpu", "--no-report", "--json")


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """CONTRIBUTING's package, installed in a folder of its own; the environment that finds it."""
    folder = tmp_path_factory.mktemp("plugin") / "site"
    files = markdown.files(CONTRIBUTING)
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(points))
    return {"PYTHONPATH": str(folder)}


def test_contributing_has_a_benchmark_and_a_model() -> None:
    assert set(markdown.files(CONTRIBUTING)) == {
        "pyproject.toml",
        "my_package/benchmarks/matmul.py",
        "my_package/models/mlp.py",
    }


def test_the_plug_in_of_contributing_is_listed(sandbox: Sandbox, plugin: dict[str, str]) -> None:
    listed = sandbox.run("list", env=plugin)
    assert listed.returncode == 0, listed.stderr
    assert "my-matmul" in listed.stdout
    assert "my-mlp" in listed.stdout
    assert "disabled" not in listed.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, plugin: dict[str, str]) -> Iterator[dict[str, list[Record]]]:
    """The benchmark and the model of CONTRIBUTING and the model of the guide in one run, by what is measured."""
    (module,) = markdown.files(GUIDE / "models.md").items()
    models = [("my-mlp", {"batch_size": 4}), ("my_models:classifier", {"scale": "tiny"})]
    cases = [
        {"benchmark": "my-matmul", "size": [32, 64]},
        *({"benchmark": kind, "model": name, **more} for name, more in models for kind in ("train", "inference")),
    ]
    with sandbox_in(tmp_path_factory.mktemp("measured") / "sandbox") as sandbox:
        sandbox.write(*module)
        run = sandbox.run("run", sandbox.suite(*cases), *SHORT, env=plugin)
        assert run.returncode == 0, run.stdout + run.stderr
        acknowledged, records = ended(events(run.stdout)), sandbox.load().records
    assert [record.case for record in acknowledged] == [record.case for record in records]
    yield {
        name: [record for record in records if name in (record.case.benchmark, record.case.parameters.get("model"))]
        for name in ("my-matmul", "my-mlp", "my_models:classifier")
    }


@pytest.mark.slow
def test_the_benchmark_of_contributing_is_measured(measured: dict[str, list[Record]]) -> None:
    records = measured["my-matmul"]
    assert [record.case.parameters["size"] for record in records] == [32, 64]
    for record in records:
        rate, time = record.measurement("flops"), record.measurement("step_time")
        assert rate is not None
        assert time is not None
        assert rate.value == pytest.approx(2 * record.case.parameters["size"] ** 3 / time.summary.mean)
        assert time.samples


@pytest.mark.slow
def test_the_model_of_contributing_is_measured(
    measured: dict[str, list[Record]], sandbox: Sandbox, plugin: dict[str, str]
) -> None:
    records = measured["my-mlp"]
    assert [record.case.benchmark for record in records] == ["train", "inference"]
    shown = sandbox.run("show", "my-mlp", env=plugin)
    for record in records:
        throughput = record.measurement("throughput")
        assert throughput is not None
        assert throughput.metric.unit == "vectors/s"
        assert f"{record.facts['parameter_count']:,} parameters" in shown.stdout


@pytest.mark.slow
def test_the_own_model_of_the_guide_is_measured(measured: dict[str, list[Record]]) -> None:
    records = measured["my_models:classifier"]
    assert [record.case.benchmark for record in records] == ["train", "inference"]
    assert all(record.measurement("achieved_flops") is not None for record in records)


def test_the_reference_is_fresh() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("page", markdown.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in markdown.links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no such file"
        assert ROOT in target.parents, f"{link}: leads out of the project"
        assert not anchor or anchor in markdown.anchors(target), f"{link}: {target.name} has no such heading"


@pytest.mark.parametrize("page", markdown.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_suites_in_the_texts_expand(page: Path) -> None:
    for block in markdown.blocks(page, "yaml"):
        suite = Suite.read(yaml.safe_load(block.text), str(page))
        for gpus in (0, 2):
            assert expand(suite, BENCHMARKS.registry().get, Here(devices={"cuda": gpus}))


@pytest.mark.parametrize("page", markdown.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_texts_are_accepted(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags_of_every_run = list(run.command.params)
    for block in markdown.blocks(page, "yaml"):
        name = yaml.safe_load(block.text)["name"]
        (tmp_path / f"{name}.yaml").write_text(block.text, encoding="utf-8")
    for block in markdown.blocks(page, "yml"):  # YAML that is no suite
        assert block.file, f"{page.name}: a block of YAML that is no suite must name its file"
        (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    for name, text in markdown.files(page).items() if page.parent == GUIDE else ():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name, text in OF_USERS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    of_plug_in = {"my-matmul", "my-mlp"}  # they are run above
    for line in markdown.commands(page):
        words = shlex.split(line)[1:]
        if of_plug_in & set(words):
            continue
        outer, inner = words, []
        if "--" in words:  # of ab, what both sides measure
            outer, inner = words[: words.index("--")], words[words.index("--") + 1 :]
            if "://" in outer[1]:
                inner += make_side("A", "server", outer[1], inner, None, print).settings
        for part in (outer, inner if inner[:1] == ["run"] else None):
            if part is None:
                continue
            # The command adds the flags of what it is asked to run, for good.
            monkeypatch.setattr(run.command, "params", list(flags_of_every_run))
            # There is no run to resume or to report here; --help still refuses a flag that does not exist.
            dry = ["--dry-run"] if part[0] == "run" and "--resume" not in part else ["--help"]
            result = CliRunner().invoke(paceline, [*part, *dry])
            assert result.exit_code == 0, f"{line}: {result.output} {result.exception}"


def test_every_verb_is_in_a_guide() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *GUIDE.glob("*.md")))
    assert isinstance(paceline, Verbs)
    for verb in paceline.list_commands(paceline.make_context("paceline", [], resilient_parsing=True)):
        assert f"paceline {verb}" in text


def test_every_warning_is_explained() -> None:
    text = (GUIDE / "measuring.md").read_text(encoding="utf-8")
    kinds = set(_warning_kinds())
    assert "unsteady" in kinds
    assert not {kind for kind in kinds if f"| `{kind}` |" not in text}


def test_every_warning_has_a_letter_of_its_own_on_the_hardware_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from hardware_marks import MARKS

    letters = [letter for letter, _ in MARKS.values()]
    assert set(_warning_kinds()) <= MARKS.keys()
    assert len(set(letters)) == len(letters)


def test_every_micro_benchmark_is_explained() -> None:
    explained = set(re.findall(r"^### (\S+)$", MICRO_GUIDE.read_text(encoding="utf-8"), re.MULTILINE))
    assert explained == {
        name for name, benchmark in BENCHMARKS.registry().entries.items() if is_micro(benchmark.category)
    }


def test_the_lists_of_functions_in_the_guide_are_read(tmp_path: Path) -> None:
    written = {block.file: block.text for block in markdown.blocks(MICRO_GUIDE, "yml")}
    for name, text in written.items():
        (tmp_path / str(name)).write_text(text, encoding="utf-8")
    products = read_list(tmp_path / "products.yaml", GemmFunction)
    assert list(products.values()) == [24, 24, 1]
    assert [function.batch for function in products] == [1, 1, 256]
    convolutions = read_list(tmp_path / "convolutions.yaml", ConvolutionFunction)
    assert list(convolutions.values()) == [1, 3]
    assert [function.output for function in convolutions] == [(112, 112), (56, 56)]


def test_every_benchmark_that_superbench_has_is_in_the_table_of_its_names() -> None:
    text = MICRO_GUIDE.read_text(encoding="utf-8")
    sources = {
        name: inspect.getsource(sys.modules[one.__module__]) for name, one in BENCHMARKS.registry().entries.items()
    }
    named = {name for name, source in sources.items() if "_superbench.alias(" in source}
    assert len(named) > 10
    assert not {name for name in named if f"| `{name}`" not in text}


def test_the_guide_to_micro_benchmarks_has_the_constants_of_the_code() -> None:
    text = " ".join(MICRO_GUIDE.read_text(encoding="utf-8").split())
    on_gpu, on_cpu = (session.DEVICE_SAMPLE * 1e3, session.HOST_SAMPLE * 1e3)
    assert f"shorter than {on_gpu:g} ms on a GPU or {on_cpu:g} ms on a CPU" in text
    assert f"calls shorter than {session.GRAPH_BELOW * 1e6:g} µs" in text
    assert f"the {MOST_TRACED} with the most work" in text


def test_every_outcome_and_cause_is_explained() -> None:
    text = (GUIDE / "suites.md").read_text(encoding="utf-8")
    assert not {word.value for word in (*Outcome, *CauseKind) if f"| `{word.value}` |" not in text}


def test_the_measuring_guide_has_the_constants_of_the_code() -> None:
    text = " ".join((GUIDE / "measuring.md").read_text(encoding="utf-8").split())
    bound = f"{loop.BOUND:.0%}".replace("%", " %")
    assert f"({loop.WINDOW_STEPS} at least)" in text
    assert f"changes of more than {bound} are ruled out" in text
    assert f"with a time constant of up to {loop.SLOWEST:g} s" in text
    assert f"`span` ({SPAN:g} s by default)" in text
    assert f"(and {loop.MIN_SECONDS:g} s; or the span or the budget, if shorter)" in text
    assert f"until {loop.PATIENCE:g} times the span" in text
    assert {f"`{reason.value}`" for reason in loop.Stop} <= set(re.findall(r"`\w+`", text))


def test_every_decision_is_listed_and_short() -> None:
    folder = ROOT / "docs" / "decisions"
    found = sorted(folder.glob("[0-9]*.md"))
    assert found
    assert markdown.links(folder / "README.md") == [path.name for path in found]
    for path in found:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 25, path.name
        assert all(f"## {part}" in text for part in ("Context", "Decision", "Consequence")), path.name


def _warning_kinds() -> Iterator[str]:
    """Every kind of warning that the code can raise."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("warning", "RecordWarning"):
                named = [keyword.value for keyword in node.keywords if keyword.arg == "kind"]
                for kind in (*named, *node.args[:1]):
                    if isinstance(kind, ast.Constant):
                        yield str(kind.value)


def test_the_navigation_has_every_guide_once() -> None:
    named = re.findall(r"<docs/guide/([\w-]+)>", (ROOT / "docs/site/navigation.txt").read_text())
    assert sorted(named) == sorted(path.stem for path in (ROOT / "docs/guide").glob("*.md"))
