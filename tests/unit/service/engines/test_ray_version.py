"""Ray without token authentication would let everybody in: it is neither installed nor used."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.core.errors import InputError
from paceline.service.engines import EngineOptions, ray

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("version", ["2.40.0", "2.51.1", "1.99.9"])
def test_a_version_without_tokens_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__version__=version))
    with pytest.raises(InputError, match=f"Ray {version} has no tokens.*at least 2.52") as refusal:
        ray.RayEngine(EngineOptions(folder=tmp_path, address="10.0.0.1:6379"))
    assert refusal.value.code == "ray-without-tokens"
    with pytest.raises(InputError, match="has no tokens"):
        ray.join("10.0.0.1:6379", tmp_path / "token", "n1", ())


@pytest.mark.parametrize("version", ["2.52.0", "2.60.0rc1", "3.0.0.dev0"])
def test_a_version_with_tokens_is_used(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    module = SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "ray", module)
    assert ray._ray() is module


def test_the_first_version_with_tokens_is_what_the_package_asks_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"ray>={'.'.join(map(str, ray._FIRST_WITH_TOKENS))}" in extras["cluster"]
