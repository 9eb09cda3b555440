"""Native code is built and loaded wherever that is possible, and where it is not, the reason can be acted on."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core.errors import MissingDependency, Unsupported
from paceline.measure import native

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler: apt install gcc"
)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    native.load.cache_clear()
    yield
    native.load.cache_clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return 42; }\n")
    return path


def kept(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "paceline" / "native").iterdir())


def program(folder: Path, text: str) -> str:
    path = folder / "compiler"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@needs_compiler
def test_what_was_built_is_kept_and_nothing_else(source: Path, tmp_path: Path) -> None:
    assert native.load(source).answer() == 42
    (built,) = kept(tmp_path)
    assert built.suffix == ".so"


@needs_compiler
@pytest.mark.parametrize("damage", [b"", b"garbage"])
def test_a_damaged_library_is_built_anew(source: Path, tmp_path: Path, damage: bytes) -> None:
    built = tmp_path / "cache/paceline/native" / f"answer-{native._identity(source)}.so"
    built.parent.mkdir(parents=True)
    built.write_bytes(damage)
    assert native.load(source).answer() == 42
    assert ctypes.CDLL(str(built)).answer() == 42


@needs_compiler
@pytest.mark.parametrize("cache", ["/dev/null", "/proc"])
def test_a_cache_that_cannot_be_written_to_is_replaced_by_temporary_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert native.load(source).answer() == 42
    assert len(list((tmp_path / "tmp").glob("*/answer-*.so"))) == 1


@needs_compiler
def test_a_cache_that_is_there_but_takes_nothing_is_replaced_too(source: Path, tmp_path: Path) -> None:
    in_the_way = tmp_path / "cache/paceline/native" / f"answer-{native._identity(source)}.so"
    in_the_way.mkdir(parents=True)
    assert native.load(source).answer() == 42


@needs_compiler
def test_a_user_without_a_home_has_temporary_files(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert native.load(source).answer() == 42


@needs_compiler
def test_where_nothing_can_be_kept_the_places_are_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    with pytest.raises(Unsupported, match=r"nowhere.*/dev/null.*\$XDG_CACHE_HOME"):
        native.load(source)


@pytest.mark.parametrize("told", ["no-such-compiler", "gcc 'x", "/"])
def test_a_compiler_that_is_none_is_named(source: Path, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("CC", told)
    with pytest.raises(MissingDependency) as caught:
        native.load(source)
    assert f"'{told}', which $CC names" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/sh\nexit 0\n", "it made nothing"),
        ("#!/bin/sh\nexit 3\n", "exit code 3"),
        ("#!/bin/sh\nprintf '\\377 odd' >&2; exit 1\n", "odd"),
        ("no program at all", r"cannot be started \(Exec format error\)"),
    ],
)
def test_a_compiler_that_fails_is_unsupported_with_its_words(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setenv("CC", program(tmp_path, text))
    with pytest.raises(Unsupported, match=rf"{words}.*try another with \$CC"):
        native.load(source)


def test_a_compiler_that_hangs_is_unsupported(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "VERSION_SECONDS", 0.1)
    monkeypatch.setenv("CC", program(tmp_path, "#!/bin/sh\nexec sleep 60\n"))
    with pytest.raises(Unsupported, match="did not end within"):
        native.load(source)


# ---- which compiler


def test_the_compiler_may_be_named_with_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path, "#!/bin/sh\n")
    monkeypatch.setenv("CC", f"{path} -m64 '-DNAME=a b'")
    assert native.compiler() == [path, "-m64", "-DNAME=a b"]
    command = native.build_command(Path("in.c"), Path("out.so"))
    assert command == [path, "-m64", "-DNAME=a b", *native.FLAGS, "in.c", "-o", "out.so", "-ldl"]


def test_a_name_of_nothing_but_blanks_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", " ")
    with pytest.raises(MissingDependency, match=r"which \$CC names"):
        native.compiler()


@pytest.mark.parametrize(
    ("installed", "taken"), [(("cc", "gcc", "clang"), "cc"), (("gcc", "clang"), "gcc"), (("clang",), "clang")]
)
def test_the_first_compiler_that_is_installed_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], taken: str
) -> None:
    for name in installed:
        Path(program(tmp_path, "#!/bin/sh\n")).rename(tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.compiler() == [taken]


def test_a_machine_without_a_compiler_is_told_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"a C compiler.*apt install gcc.*\$CC"):
        native.compiler()


# The second word from the end is the output; a compiler that is asked for its version has none.
MAKES = 'if [ $# -gt 2 ]; then while [ $# -gt 2 ]; do shift; done; echo made > "$1"; fi'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"#!/bin/sh\n{MAKES}; exit 4\n", "ended with exit code 4"),  # what a failed compiler left is not used
        ("#!/bin/sh\necho first; echo second; exit 1\n", "answer.c: first; try"),
        ("#!/bin/sh\necho out; echo error >&2; exit 1\n", "answer.c: error; try"),
    ],
)
def test_the_first_words_of_a_compiler_that_fails_are_passed_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setenv("CC", program(tmp_path, text))
    with pytest.raises(Unsupported, match=words):
        native.load(source)
    assert kept(tmp_path) == []


# ---- what is built, and where


@needs_compiler
def test_what_is_built_is_built_once_and_nobody_else_reads_it(source: Path, tmp_path: Path) -> None:
    assert native.load(source).answer() == 42
    (built,) = kept(tmp_path)
    assert built.parent.stat().st_mode & 0o777 == 0o700
    written = built.stat().st_mtime_ns
    native.load.cache_clear()
    assert native.load(source).answer() == 42
    assert built.stat().st_mtime_ns == written


def test_sources_compilers_and_processors_are_told_apart(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []

    def named(version: str) -> None:
        monkeypatch.setenv("CC", program(tmp_path, f"#!/bin/sh\necho {version}\n"))
        names.append(native._identity(source))

    named("1.0")
    named("1.0")
    assert names[0] == names[1]
    named("1.1")
    source.write_text("int answer(void) { return 43; }\n")
    named("1.1")
    for listed in ({"flags": "sse avx"}, {"flags": "sse"}, {"Features": "asimd sve"}, {"processor": "0"}):
        monkeypatch.setattr(native, "cpu_info", lambda listed=listed: listed)
        named("1.1")
    assert len(set(names)) == 7
    assert {len(name) for name in names} == {16}


def test_built_code_is_kept_in_the_cache_and_otherwise_among_temporary_files(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp" / f"paceline-native-{os.getuid()}"
    places = [tmp_path / "cache/paceline/native", temporary]
    assert list(native._folders()) == places
    temporary.mkdir()
    assert list(native._folders()) == places  # this user's, from before


def test_a_folder_of_somebody_else_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    (tmp_path / "tmp" / f"paceline-native-{somebody}").mkdir()
    with pytest.raises(Unsupported, match=r"belongs to somebody else; set \$XDG_CACHE_HOME"):
        list(native._folders())
