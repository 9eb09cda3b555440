"""What ranks under mpirun wrote is understood as a whole or refused in words; nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.benchmarks._micro.tools import ToolError
from paceline.benchmarks.communication._mpi import MARK, Failed, PointLine, read
from paceline.core.errors import SilentCorruption

RECORDED = (Path(__file__).parent / "recorded" / "open-mpi-4.1.4-all-gather.txt").read_text()
LINES = RECORDED.splitlines()


def test_a_recorded_output_is_understood() -> None:
    told = read(RECORDED, 2)
    assert told.library.startswith("Open MPI v4.1.4")
    assert [(point.size, len(point.samples)) for point in told.points] == [(64, 5), (65536, 5)]
    assert told.points[0].samples[2] == pytest.approx(4.967999302607495e-06)
    assert "host monotonic clock" in told.facts["timing"][0]
    assert [warning.kind for warning in told.warnings] == ["short", "imprecise", "noisy"]


def test_what_mpirun_and_libraries_write_in_between_is_passed_over() -> None:
    noise = "--------\nA warning about a missing InfiniBand device\n\n--------\n"
    assert read(noise + noise.join(f"{line}\n" for line in LINES), 2) == read(RECORDED, 2)


@pytest.mark.parametrize("cut", range(0, len(RECORDED) - 1, 37))
def test_an_output_that_was_cut_off_is_an_error_that_says_so(cut: int) -> None:
    with pytest.raises(ToolError, match="the output of the ranks under mpirun cannot be understood"):
        read(RECORDED[:cut], 2)


@pytest.mark.parametrize("missing", range(len(LINES)))
def test_an_output_without_one_of_its_lines_is_an_error(missing: int) -> None:
    with pytest.raises(ToolError):
        read("\n".join(line for number, line in enumerate(LINES) if number != missing), 2)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "mpirun: command line error",
        MARK,
        f"{MARK}null",
        f"{MARK}[]",
        f'{MARK}{{"kind": "poem"}}',
        f"{MARK}\x00\ufffd",
        RECORDED.replace('"size":64,', '"size":0,'),
        RECORDED.replace('"size":64,', '"size":"large",'),
        RECORDED.replace("0.002190970000810921", "0"),
        RECORDED.replace("0.002190970000810921", "-1"),
        RECORDED.replace("0.002190970000810921", "NaN"),
        RECORDED.replace("0.002190970000810921", "Infinity"),
        RECORDED.replace('"samples":[', '"samples":[[', 1),
        RECORDED.replace('"points":2', '"points":3'),
    ],
)
def test_a_garbled_output_is_an_error_in_words(wrong: str) -> None:
    assert wrong != RECORDED
    with pytest.raises(ToolError, match="cannot be understood"):
        read(wrong, 2)


def test_an_output_of_fewer_ranks_names_the_likely_reason() -> None:
    with pytest.raises(ToolError, match=r"mpirun started 4 processes, but 2 of them met.*install one MPI alone"):
        read(RECORDED, 4)


def test_wrong_data_that_a_rank_reports_is_silent_corruption() -> None:
    words = "rank 1 received a wrong element in all-reduce of 64 B: element 7 is 3, expected 5"
    output = "\n".join([*LINES[:2], str(Failed(rank=1, why="corruption", message=words))])
    with pytest.raises(SilentCorruption, match="element 7 is 3, expected 5"):
        read(output, 2)


def test_what_is_written_is_what_is_read() -> None:
    line = PointLine(size=2**40, samples=[1e-9, 0.1, 1 / 3])
    assert read("\n".join([LINES[0], LINES[1], str(line), LINES[-1]]), 2).points[1] == line
