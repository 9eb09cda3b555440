"""What is stored and shared with a result names no home folder and holds no secret."""

from __future__ import annotations

import os
import shutil

from paceline.store import open_store
from support.cli import PLUGIN, Sandbox

SECRET = "hunter2-and-some-more"


def test_neither_home_folder_nor_secret_is_stored_or_reported(sandbox: Sandbox) -> None:
    home = sandbox.home
    shutil.copytree(PLUGIN, home / "plugin")  # so that tracebacks go through it
    (home / "suites").mkdir()
    suite = home / "suites" / "mine.yaml"
    suite.write_text("name: mine\ncases:\n  - benchmark: nap\n  - benchmark: raises\n")
    env = {
        "PYTHONPATH": str(home / "plugin"),
        "MY_TOKEN": SECRET,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "TORCH_API_KEY": SECRET,
        "NCCL_TOPO_FILE": str(home / "topology.xml"),
        "OMP_NUM_THREADS": "2",
    }
    report = home / "report.html"
    done = sandbox.run(
        "run", str(suite), "--store", str(home / "mine.db"), "--report", str(report), "--json", env=env, cwd=home
    )
    assert done.returncode == 1, done.stderr

    files = [path for path in home.glob("mine.db*") if path.is_file()]
    assert files
    for path in (*files, report):
        content = path.read_bytes()
        assert SECRET.encode() not in content
        assert str(home).encode() not in content, path
    assert SECRET not in done.stdout
    with open_store(home / "mine.db") as store:
        stored = store.load(store.find_run("last"))
    assert stored.run.environment.variables["NCCL_TOPO_FILE"] == "~/topology.xml"
    assert stored.run.environment.variables["OMP_NUM_THREADS"] == "2"
    assert "TORCH_API_KEY" not in stored.run.environment.variables
    assert stored.run.command[:3] == ["paceline", "run", "~/suites/mine.yaml"]
    raised = stored.records[1].cause
    assert raised is not None
    assert raised.message == "ValueError: no weights in ~/weights"
    assert f"~{os.sep}plugin" in raised.detail
