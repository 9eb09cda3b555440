"""Vega's process: what it draws, and what happens when it ends."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from paceline.report import vega

pytestmark = pytest.mark.skipif(not vega.is_installed(), reason="needs vl-convert: pip install '.[charts]'")


def points(name: str) -> dict[str, Any]:
    return {"title": name, "data": {"values": [{"a": 1}]}, "mark": "point", "encoding": {"x": {"field": "a"}}}


def drawing_processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if vega.__file__ in child.cmdline()]


def test_charts_are_drawn_by_one_process_that_is_not_this_one() -> None:
    before = "vl_convert" in sys.modules
    assert vega.convert("vegalite_to_svg", points("one")).startswith(b"<svg")
    assert vega.convert("vegalite_to_png", points("two"), scale=0.5).startswith(b"\x89PNG")
    assert len(drawing_processes()) == 1
    assert ("vl_convert" in sys.modules) == before


def test_threads_get_their_own_charts() -> None:
    names = [f"chart-{number}" for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda name: vega.convert("vegalite_to_svg", points(name)).decode(), names))
    assert [name in svg for name, svg in zip(names, drawn, strict=True)] == [True] * len(names)


def test_a_chart_that_is_wrong_is_an_error_and_the_next_is_drawn() -> None:
    with pytest.raises(ValueError, match="could not be drawn"):
        vega.convert("vegalite_to_svg", {"mark": 7})
    assert vega.convert("vegalite_to_svg", points("next")).startswith(b"<svg")


def test_a_process_that_was_killed_is_started_again() -> None:
    vega.convert("vegalite_to_svg", points("first"))
    (process,) = drawing_processes()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    assert vega.convert("vegalite_to_svg", points("second")).startswith(b"<svg")
    assert [child.pid for child in drawing_processes()] != [process.pid]


def test_input_that_ends_the_library_ends_only_its_process() -> None:
    with pytest.raises(ValueError, match="could not be drawn"):
        vega.convert("vegalite_to_svg", points("\x00"))
    assert vega.convert("vegalite_to_svg", points("next")).startswith(b"<svg")
