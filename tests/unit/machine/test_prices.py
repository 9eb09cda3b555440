"""Prices come from the shipped table, or from the user's own in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.machine.profile import price_of, price_table
from support.refused import refused

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
    with refused("unknown-instance", value="g4dn.xlarge"):
        price_of("g4dn.xlarge")


def test_an_unknown_instance_names_the_nearest() -> None:
    with refused("unknown-instance", suggestion="g4dn.xlarge"):
        price_of("g4dn.xlarg")


@pytest.mark.parametrize(
    ("text", "code", "row"),
    [
        ("instance,price\nx,1\n", "wrong-columns", ""),
        (HEAD + "x,p,d,1,cheap,2026,s\n", "not-a-number", ", row 1"),
        (HEAD + "x,p,d,1,1.0,2026,s\nx,p,d,0,1.0,2026,s\n", "out-of-range", ", row 2"),
        (HEAD + "x,p,d,1,nan,2026,s\n", "out-of-range", ", row 1"),
        (HEAD + "x\n", "not-a-number", ", row 1"),
    ],
)
def test_a_broken_table_is_refused_with_its_row(data: Path, text: str, code: str, row: str) -> None:
    (data / "prices.csv").write_text(text)
    with refused(code, where=f"{data / 'prices.csv'}{row}"):
        price_table()
