"""A label that no job could ask for is refused, by the leader and by its followers alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli import follower, leader
from support.refused import refused


@pytest.mark.parametrize("label", ["", " ", "rack-1,nvlink"])
def test_a_label_that_no_job_could_ask_for_is_refused(label: str, tmp_path: Path) -> None:
    (tmp_path / "ray-token").write_text("secret")
    following = ["--leader", "10.0.0.1", "--token-file", str(tmp_path / "ray-token")]
    for verb, words in ((leader.command, ["--store", str(tmp_path / "store.db")]), (follower.command, following)):
        with refused("invalid-label", key="--label", value=label):
            CliRunner().invoke(verb, [*words, "--label", label], catch_exceptions=False)
    assert not (tmp_path / "store.db").exists()
