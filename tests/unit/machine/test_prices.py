"""Prices come from the shipped table, or from the user's own in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.errors import InputError
from paceline.machine.prices import price_of, price_table

HEAD = "instance,provider,device,devices,usd_per_hour,as_of,source\n"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "paceline").mkdir()
    return tmp_path / "paceline"


def test_every_shipped_price_says_what_it_rests_on() -> None:
    table = price_table()
    assert {"g4dn.xlarge", "p3.2xlarge", "p4"} <= set(table)  # the platforms of the seed
    assert all(one.usd_per_hour > 0 and ": " in one.basis for one in table.values())


def test_a_machine_of_several_devices_is_priced_by_the_device() -> None:
    assert price_of("p5.48xlarge").per_device == pytest.approx(price_of("p5.48xlarge").usd_per_hour / 8)


def test_the_users_table_takes_the_place_of_ours(data: Path) -> None:
    (data / "prices.csv").write_text(HEAD + 'mine,own,A40,2,3.0,2026-11,"a contract"\n')
    assert price_of("mine").per_device == 1.5
    with pytest.raises(InputError, match="unknown instance"):
        price_of("g4dn.xlarge")


def test_an_unknown_instance_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'g4dn"):
        price_of("g4dn.xlarg")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("instance,price\nx,1\n", "the columns must be"),
        (HEAD + "x,p,d,1,cheap,2026,s\n", "row 1"),
        (HEAD + "x,p,d,0,1.0,2026,s\n", "positive"),
        (HEAD + "x,p,d,1,nan,2026,s\n", "positive"),
        (HEAD + "x\n", "row 1"),
    ],
)
def test_a_broken_table_is_refused_with_its_row(data: Path, text: str, words: str) -> None:
    (data / "prices.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        price_table()
