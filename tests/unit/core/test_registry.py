"""The registry finds plug-ins of every provider; what is broken disables itself alone and says why."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.core import registry as registry_module
from paceline.core.errors import InputError
from paceline.core.registry import Broken, Kind, Registry
from support.refused import refused

Provide = Callable[..., Registry[SimpleNamespace]]


def write_package(root: Path, name: str, files: dict[str, str]) -> None:
    for path, text in files.items():
        file = root / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for folder in file.relative_to(root).parents[:-1]:
            (root / folder / "__init__.py").touch()


THINGS: Kind[SimpleNamespace] = Kind("thing", "things", SimpleNamespace)


def of_things(text: str) -> str:
    """A module's text; `THINGS = ['a']` makes things of these names that know where they are from."""
    if not text.startswith("THINGS"):
        return text
    return f"from types import SimpleNamespace\n{text}\nTHINGS = [SimpleNamespace(name=n, of=__name__) for n in THINGS]"


def origins(registry: Registry[SimpleNamespace]) -> dict[str, str]:
    return {name: thing.of for name, thing in registry.entries.items()}


@pytest.fixture
def provide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provide]:
    """Scans packages that are made of the files given for each."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def scan_packages(**packages: dict[str, str]) -> Registry[SimpleNamespace]:
        for name, files in packages.items():
            write_package(tmp_path, name, {path: of_things(text) for path, text in files.items()})
        registry_module._forget()
        monkeypatch.setattr(registry_module, "providers", lambda: tuple(packages))
        return THINGS.registry()

    yield scan_packages
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_every_module_of_a_provider_is_looked_at(provide: Provide) -> None:
    found = provide(
        pace_all={
            "things/one.py": "THINGS = ['a', 'b']",
            "things/deep/er/two.py": "THINGS = ['c']",
            "other/x.py": "1/0",
        }
    )
    assert origins(found) == {
        "a": "pace_all.things.one",
        "b": "pace_all.things.one",
        "c": "pace_all.things.deep.er.two",
    }
    assert found.broken == []


def test_a_folder_may_be_a_single_module(provide: Provide) -> None:
    assert list(provide(pace_single={"things.py": "THINGS = ['a']"}).entries) == ["a"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def (", "SyntaxError: "),
    ],
)
def test_a_broken_module_disables_itself_alone_and_says_why(provide: Provide, text: str, reason: str) -> None:
    found = provide(pace_mixed={"things/bad_one.py": text, "things/good.py": "THINGS = ['a']"})
    assert list(found.entries) == ["a"]
    (broken,) = found.broken
    assert broken.module == "pace_mixed.things.bad_one"
    assert broken.reason.startswith(reason)


def test_asking_for_what_a_broken_module_would_have_given_tells_its_reason(provide: Provide) -> None:
    found = provide(pace_asked={"things/bad_one.py": "raise RuntimeError('no driver')"})
    with refused("disabled-thing", value="bad-one", says="RuntimeError: no driver"):
        found.get("bad-one")


def test_a_broken_package_does_not_hide_its_neighbours(provide: Provide) -> None:
    found = provide(
        pace_folder={
            "things/bad/__init__.py": "1/0",
            "things/bad/x.py": "THINGS = ['x']",
            "things/ok.py": "THINGS = ['a']",
        }
    )
    assert list(found.entries) == ["a"]
    assert {broken.module for broken in found.broken} == {"pace_folder.things.bad", "pace_folder.things.bad.x"}


@pytest.mark.parametrize("text", ["1/0", "raise SystemExit('no license')"])
def test_a_broken_provider_does_not_hide_the_others(provide: Provide, text: str) -> None:
    found = provide(pace_worse={"__init__.py": text, "things/x.py": ""}, pace_fine={"things/x.py": "THINGS = ['a']"})
    assert list(found.entries) == ["a"]
    assert [broken.module for broken in found.broken] == ["pace_worse.things"]


def test_a_provider_that_is_not_installed_is_broken_and_one_without_the_folder_is_fine(
    provide: Provide, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = provide(pace_empty={"others/x.py": ""})
    assert (found.entries, found.broken) == ({}, [])
    monkeypatch.setattr(registry_module, "providers", lambda: ("pace_absent",))
    found = THINGS.registry()
    assert found.broken == [Broken("pace_absent.things", "ModuleNotFoundError: No module named 'pace_absent'")]


def test_a_provider_may_be_one_module_that_holds_things_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pace_one_file.py").write_text(of_things("THINGS = ['a', 'b']"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry_module, "providers", lambda: ("pace_one_file",))
    assert origins(THINGS.registry()) == {"a": "pace_one_file", "b": "pace_one_file"}
    assert THINGS.get("b").of == "pace_one_file"


def test_one_thing_is_found_without_importing_the_others(provide: Provide) -> None:
    provide(pace_lazy={"things/one_thing.py": "THINGS = ['one-thing']"})
    assert THINGS.get("one-thing").of == "pace_lazy.things.one_thing"


def test_folders_are_looked_through_once_and_what_is_defined_anew_is_the_new_one(
    provide: Provide, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide(pace_once={"things/one_thing.py": "THINGS = ['one-thing']"})
    first = THINGS.get("one-thing")
    monkeypatch.setattr(pkgutil, "iter_modules", lambda *_: pytest.fail("looked again"))
    assert THINGS.get("one-thing") is first
    anew = SimpleNamespace(name="one-thing", of="elsewhere")
    monkeypatch.setattr(sys.modules["pace_once.things.one_thing"], "THINGS", [anew])
    assert THINGS.get("one-thing") is anew


def test_modules_that_start_with_an_underscore_are_not_looked_at(provide: Provide) -> None:
    found = provide(
        pace_private={"things/_hidden.py": "1/0", "things/_more/x.py": "1/0", "things/a.py": "THINGS = ['a']"}
    )
    assert list(found.entries) == ["a"]
    assert found.broken == []


def test_of_two_with_one_name_the_first_stays_and_the_second_is_told(provide: Provide) -> None:
    found = provide(pace_first={"things/x.py": "THINGS = ['a']"}, pace_second={"things/y.py": "THINGS = ['a', 'b']"})
    assert origins(found) == {"a": "pace_first.things.x", "b": "pace_second.things.y"}
    assert found.broken == [Broken("pace_second.things.y", "the name 'a' is taken already")]


def test_the_same_thing_twice_is_no_duplicate() -> None:
    registry: Registry[object] = Registry("thing")
    thing = object()
    registry.add("a", thing, "x")
    registry.add("a", thing, "y")
    assert registry.broken == []


def test_an_unknown_name_is_refused_with_the_nearest_or_with_all() -> None:
    registry: Registry[int] = Registry("model", {"resnet50": 1, "resnet101": 2, "gpt2-small": 3})
    assert registry.get("resnet50") == 1
    with refused("unknown-model", value="ResNet-50", suggestion="resnet50"):
        registry.get("ResNet-50")
    with pytest.raises(InputError, match="unknown model 'xyz': known are gpt2-small, resnet101, resnet50"):
        registry.get("xyz")
    with pytest.raises(InputError, match="known are none"):
        Registry[int]("model").get("xyz")


BENCHMARK = """
from paceline.core.benchmark import Benchmark
from paceline.core.parameters import Parameters
from paceline.core.record import Result

class Mine(Benchmark[Parameters]):
    name = "mine"
    summary = "a third party's"
    Parameters = Parameters
    metrics = ()
    primary = ""

    def measure(self, parameters, context):
        return Result()
"""

ASK = """
import json
from paceline.core.benchmark import BENCHMARKS
from paceline.core.registry import providers
found = BENCHMARKS.registry()
print(json.dumps([providers(), list(found.entries), [[b.module, b.reason] for b in found.broken]]))
"""


def answer_of(code: str, path: Path) -> str:
    """In a process of its own, as a user would have it: the path is read when Python starts."""
    environment = os.environ | {"PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_a_third_party_s_package_is_found_through_its_entry_point(tmp_path: Path) -> None:
    write_package(
        tmp_path,
        "their_plugins",
        {"benchmarks/mine.py": BENCHMARK, "benchmarks/bad.py": "import no_such_library"},
    )
    info = tmp_path / "their_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[paceline.plugins]\ntheirs = their_plugins\nlost = no_such_plugins\n")
    providers, names, broken = json.loads(answer_of(ASK, tmp_path))
    assert providers[0] == "paceline"
    assert providers.count("paceline") == 1
    assert "their_plugins" in providers
    assert {"mine", "train", "inference"} <= set(names)
    assert ["their_plugins.benchmarks.bad", "ModuleNotFoundError: No module named 'no_such_library'"] in broken
    assert ["no_such_plugins.benchmarks", "ModuleNotFoundError: No module named 'no_such_plugins'"] in broken


def test_a_provider_in_an_archive_is_found_too(tmp_path: Path) -> None:
    archive = tmp_path / "theirs.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("theirs-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        file.writestr("theirs-1.0.dist-info/entry_points.txt", "[paceline.plugins]\ntheirs = their_archive\n")
    ask = "from paceline.core.registry import providers; print(*providers())"
    assert answer_of(ask, archive).split() == ["paceline", "their_archive"]
