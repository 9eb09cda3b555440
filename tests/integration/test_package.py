"""What is installed from a package: every file of the source tree, and links that work outside a checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from paceline.version import VERSION
from support.docs_markdown import ROOT

REPOSITORY = "https://code.example/team/paceline"
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def package_files() -> set[str]:
    """All that belongs to the package, as an archive names it."""
    source = ROOT / "src"
    every = {path for path in (source / "paceline").rglob("*") if path.is_file()}
    return {path.relative_to(source).as_posix() for path in every if path.suffix not in (".pyc", ".pyo")}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution, and the wheel that is made of it alone; building writes into the sources, so of a copy."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "src", folder / "tree" / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / "tree")
    made = folder / "dist"
    made.mkdir()
    env = {**os.environ, "PACELINE_REPOSITORY": f"{REPOSITORY}/"}
    _run([sys.executable, "-c", BUILD, str(made)], folder / "tree", env)
    (source,) = made.glob("*.tar.gz")
    wheel = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(made)]
    _run([sys.executable, *wheel, str(source)], folder, env)
    return made


def _run(command: list[str], cwd: Path, env: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def wheel_of(packages: Path) -> zipfile.ZipFile:
    (path,) = packages.glob(f"paceline-{VERSION}-py3-none-any.whl")
    return zipfile.ZipFile(path)


def metadata_of(packages: Path) -> Message:
    with wheel_of(packages) as wheel:
        return message_from_bytes(wheel.read(f"paceline-{VERSION}.dist-info/METADATA"))


def test_the_wheel_has_every_file_of_the_package(packages: Path) -> None:
    with wheel_of(packages) as wheel:
        names = {name for name in wheel.namelist() if not name.startswith(f"paceline-{VERSION}.dist-info/")}
    files = package_files()
    assert {Path(name).suffix for name in files} >= {
        ".c",
        ".css",
        ".csv",
        ".cu",
        ".html",
        ".js",
        ".py",
        ".yaml",
    }
    assert names == files


def test_the_source_distribution_has_every_file_of_the_package(packages: Path) -> None:
    (path,) = packages.glob(f"paceline-{VERSION}.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in package_files()} | set(FILES) <= names


def test_a_package_links_to_the_repository_that_built_it(packages: Path) -> None:
    metadata = metadata_of(packages)
    links = dict(link.split(", ") for link in metadata.get_all("Project-URL", []))
    assert links["Source"] == REPOSITORY
    assert links.keys() == {"Source", "Documentation", "Changelog", "Issues"}
    assert all(link.startswith(REPOSITORY) for link in links.values())


def test_links_of_the_readme_work_on_a_package_index(packages: Path) -> None:
    metadata = metadata_of(packages)
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = str(metadata.get_payload())
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", text)
    assert ("!", f"{REPOSITORY}/raw/v{VERSION}/docs/images/report.png") in links
    assert ("", f"{REPOSITORY}/blob/v{VERSION}/CONTRIBUTING.md") in links
    assert all(address.startswith("https://") for _, address in links)
