"""iperf3's JSON is understood or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.benchmarks._micro.tools import ToolError
from paceline.benchmarks.communication import _iperf3
from paceline.benchmarks.communication._iperf3 import parse
from support.recordings import anything, places, recorded, replaced

ONE = recorded("iperf3/one-stream-3.12.json")
FOUR = recorded("iperf3/four-streams-3.12.json")
PLACES = places(json.loads(FOUR))


@pytest.mark.parametrize(("text", "sent"), [(ONE, 100_000_000), (FOUR, 400_000_000)])
def test_what_the_receiver_has_counts(text: str, sent: int) -> None:
    moved = parse(text)
    told = json.loads(text)["end"]["sum_received"]
    assert (moved.bytes, moved.seconds) == (told["bytes"], told["seconds"])
    assert 0.5 * sent < moved.bytes <= sent * 1.01


def test_an_error_that_it_reports_with_exit_code_0_is_an_error() -> None:
    with pytest.raises(ToolError, match="unable to connect to server"):
        parse(recorded("iperf3/refused-3.12.json"))


@given(st.integers(0, len(FOUR.rstrip()) - 1))
@settings(max_examples=60)
def test_output_that_breaks_off_is_refused(end: int) -> None:
    with pytest.raises(ToolError, match="iperf3"):
        parse(FOUR[:end])


@given(st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(ToolError, match="iperf3"):
        parse(noise.decode(errors="replace"))


@given(st.sampled_from(PLACES), anything)
@settings(max_examples=200)
def test_a_wrong_value_anywhere_is_understood_or_refused(place: tuple[str | int, ...], value: object) -> None:
    try:
        moved = parse(replaced(FOUR, place, value))
    except ToolError:
        return
    assert moved.bytes >= 0
    assert moved.seconds > 0


@pytest.mark.parametrize("value", [0, -1, "x", None, float("inf"), []])
def test_a_time_that_cannot_be_is_refused(value: object) -> None:
    with pytest.raises(ToolError, match="seconds"):
        parse(replaced(ONE, ("end", "sum_received", "seconds"), value))


BUSY = "the server is busy running a test. try again later"
RESET = "unable to receive control message: Connection reset by peer"


def refusing(folder: Path, monkeypatch: pytest.MonkeyPatch, times: int, said: str = BUSY) -> None:
    """An iperf3 whose server turns it away, so many times."""
    (folder / "answer").write_text(ONE)
    text = f"""#!/bin/sh
        echo x >> {folder}/asked
        if [ $(wc -l < {folder}/asked) -gt {times} ]; then cat {folder}/answer; exit; fi
        echo '{{"error": "{said}"}}'
    """
    (folder / "iperf3").write_text(text)
    (folder / "iperf3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(_iperf3, "RETRY_SECONDS", 0.001)


@pytest.mark.parametrize("said", [BUSY, RESET, "unable to connect to server: Connection refused"])
def test_a_server_that_cannot_just_now_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    refusing(tmp_path, monkeypatch, 2, said)
    assert _iperf3.send("node2", 5201, 1000, 1) == parse(ONE)


def test_a_server_that_stays_busy_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(tmp_path, monkeypatch, 1000)
    monkeypatch.setattr(_iperf3, "BUSY_SECONDS", 0.05)
    with pytest.raises(ToolError, match=r"node2:5201 is busy with another client"):
        _iperf3.send("node2", 5201, 1000, 1)


@pytest.mark.parametrize(("said", "times"), [(RESET, 1000), ("unable to create a new stream", 1)])
def test_what_does_not_pass_is_told_as_iperf3_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, times: int
) -> None:
    refusing(tmp_path, monkeypatch, times, said)
    monkeypatch.setattr(_iperf3, "SHAKEN_SECONDS", 0.05)
    with pytest.raises(ToolError, match=f"iperf3: {said}"):
        _iperf3.send("node2", 5201, 1000, 1)
