"""Small files of the kernel are read as it writes them; what is not there is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from paceline.core.environment import Environment
from paceline.core.probe import attempt, cpu_info, parse_size, read_cpu_list, read_int, read_table, read_text


def test_a_text_is_without_the_space_around_it_and_without_zeros(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b" a b \xff\0\r\n")
    assert read_text(file) == "a b \N{REPLACEMENT CHARACTER}"
    assert read_text(file, limit=3) == "a"
    assert read_text(tmp_path / "nothing") is None


@pytest.mark.parametrize(("text", "number"), [(" 12\n", 12), ("0", 0), ("", None), ("many", None)])
def test_a_file_that_holds_one_number(tmp_path: Path, text: str, number: int | None) -> None:
    (tmp_path / "number").write_text(text)
    assert read_int(tmp_path / "number") == number


def test_a_table_has_keys_before_colons_or_spaces_and_the_first_of_equal_ones_counts(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("MemTotal:  16 kB\nuser 12 of us\nMemTotal: 3 kB\nempty\n")
    assert read_table(tmp_path / "table") == {"MemTotal": "16 kB", "user": "12 of us", "empty": ""}
    assert read_table(tmp_path / "table", limit=13) == {"MemTotal": "16"}
    assert read_table(tmp_path / "nothing") == {}


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", [0]), ("0-3", [0, 1, 2, 3]), ("0-1,8", [0, 1, 8]), ("0-1, 4-5\n", [0, 1, 4, 5]), ("", []), ("7-7", [7])],
)
def test_cpus_are_read_in_the_kernel_s_notation(text: str, cpus: list[int]) -> None:
    assert read_cpu_list(text) == set(cpus)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("32K", 32 * 1024),
        ("1M", 1024**2),
        ("2G", 2 * 1024**3),
        ("16 kB", 16 * 1024),
        (" 3 MB ", 3 * 1024**2),
        ("5 GiB", 5 * 1024**3),
        ("7", 7),
        ("9 B", 9),
    ],
)
def test_the_kernel_s_sizes_are_binary(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_of_many_processors_the_beginning_is_read(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("model : first\n" + "x" * 16370 + "\nmodel name : far away\n")
    assert cpu_info(tmp_path)["model"] == "first"
    assert "model name" not in cpu_info(tmp_path)
    assert len(next(reversed(cpu_info(tmp_path)))) == 16384 - len("model : first\n")


def test_a_probe_that_fails_fails_alone() -> None:
    assert attempt(lambda: 1 // 0) is None
    assert attempt(lambda: 3) == 3


def test_a_part_of_another_shape_is_set_aside() -> None:
    read = Environment.read({"host": "node-1", "cpu": "fast", "memory": {"total": 5}})
    assert (read.host, read.memory.total, read.cpu.model) == ("node-1", 5, None)
    assert read.model_extra == {"unread": {"cpu": "fast"}}
    assert Environment.read({"host": "node-1"}).model_extra == {}


def test_an_environment_with_a_name_that_is_no_text_is_damaged() -> None:
    with pytest.raises(ValidationError, match="unable to parse raw data as a unicode string"):
        Environment.read({"host": "node-1", "un\ud800read": 7})


def test_a_target_can_only_name_gpus_that_this_process_sees() -> None:
    machine = Environment.model_validate({"gpus": [{"index": 0}, {"index": 1, "cuda_index": 0}]})
    assert [gpu.index for gpu in machine.usable_gpus] == [1]


def test_a_published_table_has_no_environment() -> None:
    assert not Environment().is_known
    assert Environment(host="node-1").is_known
    assert (Environment().host_name, Environment(host="node-1").host_name) == ("unknown", "node-1")
