"""Outputs that fail, folders that mislead, suites with anchors: the measurement goes on, or the refusal is one line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.cli import Sandbox

NAP = {"benchmark": "nap", "duration": "20ms"}


def shell(sandbox: Sandbox, line: str) -> subprocess.CompletedProcess[str]:
    """`paceline` as $P in a shell, so that pipes and redirections are real."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=sandbox.work,
        env=sandbox.environment({"P": f"{sys.executable} -m paceline"}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "output", ["| head -n 0; exit ${PIPESTATUS[0]}", "> /dev/full", ">&-"], ids=["no reader", "full disk", "closed"]
)
def test_a_lost_output_ends_no_measurement(sandbox: Sandbox, output: str) -> None:
    suite = sandbox.suite(NAP, NAP)
    done = shell(sandbox, f"$P run {suite} --no-report {output}")
    assert "Traceback" not in done.stderr
    stored = sandbox.load()
    assert stored.run.status == "finished"
    assert stored.all_ok
    assert done.returncode == 0 or output.startswith(">")  # a redirection that fails is told at the end


def test_a_reader_that_has_seen_enough_is_no_failure(sandbox: Sandbox) -> None:
    done = shell(sandbox, "$P list | head -n 1; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (0, "")


def test_files_in_the_current_folder_shadow_no_library(sandbox: Sandbox) -> None:
    (sandbox.work / "paceline").mkdir()
    (sandbox.work / "paceline" / "__init__.py").touch()
    (sandbox.work / "json.py").write_text("raise SystemExit('not the json you wanted')")
    suite = sandbox.suite(NAP)
    installed = os.path.join(os.path.dirname(sys.executable), "paceline")  # noqa: PTH118, PTH120
    done = shell(sandbox, f"{installed} run {suite} --no-report")
    assert done.returncode == 0, done.stderr


def test_a_suite_may_merge_what_an_anchor_names(sandbox: Sandbox) -> None:
    suite = sandbox.write(
        "merged.yaml",
        "name: merged\ncases:\n  - &usual {benchmark: nap, duration: 20ms}\n  - {<<: *usual, duration: 30ms}\n",
    )
    done = sandbox.ask("run", suite, "--dry-run")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "--csv", "--md"),
        ("results", "--limit", "0"),
        ("nope",),
        ("run", "--resume", "last", "--dry-run"),
        ("run", "--resume", "last", "--budget", "1s"),
        ("run", "nap", "--report", "."),
        ("run", "nap", "--tag", ""),
        ("run", "nap", "--tag", "two\nlines"),
        ("run", "nap", "--tag", "caf\udce9"),
    ],
)
def test_every_refusal_is_one_line(sandbox: Sandbox, arguments: tuple[str, ...]) -> None:
    done = sandbox.ask(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("paceline: ")


def test_flags_of_parameters_need_no_suite_name_before_them(sandbox: Sandbox) -> None:
    assert sandbox.ask("run", "--budget", "1s", "--dry-run").returncode == 0
    done = sandbox.ask("run", "--scale", "tiny", "train", "--model", "lstm", "--dry-run")
    assert "lstm fp32 tiny" in done.stdout


def test_a_path_that_is_no_utf_8_spoils_no_export(sandbox: Sandbox) -> None:
    suite = sandbox.suite(NAP)
    done = shell(sandbox, f"cp {suite} $'caf\\xe9.yaml' && $P run $'caf\\xe9.yaml' --no-report && $P report --jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert "caf\ufffd.yaml" in sandbox.load().run.command
