"""Trouble that lasts is logged once in a while, with how often it came."""

from __future__ import annotations

import logging

import pytest

from paceline.service.quiet_log import QuietLog


def test_the_same_message_is_written_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    quiet = QuietLog(logging.getLogger("quiet"), lambda: now)
    for _ in range(1000):
        quiet.warning("the disk is full")
    quiet.warning("another")
    assert [record.getMessage() for record in caplog.records] == ["the disk is full", "another"]
    now = 3600.0
    quiet.warning("the disk is full")
    again = "the disk is full (999 times more since the last such message)"
    assert [record.getMessage() for record in caplog.records][2:] == [again]


def test_a_defect_is_written_with_where_it_is_from_only_once(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    quiet = QuietLog(logging.getLogger("quiet"), lambda: now)
    quiet.warning("a defect", ValueError("x"))
    now = 3600.0
    quiet.warning("a defect", ValueError("x"))
    assert [record.exc_info is not None for record in caplog.records] == [True, False]
