"""One command measures on every node of a Ray cluster: a slow, a dead and a dying one are named, resuming finishes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from paceline.api.client import new_client
from paceline.store import open_store
from support.cli import Sandbox
from support.namespaces import cpu_quota
from support.ray_cluster import RayCluster, a_cluster, free_port, wait_for
from support.watching import Watched

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[cluster]'")
pytestmark = [pytest.mark.alone, pytest.mark.long]

NODES = {"slow": 3, "dying": 4, "dead": 5}
# What node-check measures without torch.
CHECK = ["node-check", "--only", "memory-latency", "--only", "tcp loopback"]
CHECK += ["--set", "memory_latency.sizes=[256KiB,16MiB]"]
PATIENCE = 600  # seconds; only what hangs takes so long


@pytest.fixture
def cluster(sandbox: Sandbox) -> Iterator[RayCluster]:
    with a_cluster(sandbox, NODES, NODES, http=free_port("127.0.0.1", 20_000)) as made:
        yield made


def test_slow_dead_and_dying_nodes_are_named_and_resuming_finishes(
    sandbox: Sandbox, cluster: RayCluster, tmp_path: Path
) -> None:
    """The slow one has a twentieth of a core from its first case on."""
    cluster.lead()
    leader = ["--leader", f"http://127.0.0.1:{cluster.http}"]
    with open_store(sandbox.folder / "store.db") as store, cpu_quota(f"paceline-{tmp_path.name}", 0.05) as quota:
        for name in NODES:
            cluster.follow(name)
            wait_for(name, lambda name=name: cluster.knows(store, name))
        cluster.kill("dead")
        wait_for("the end of the dead one", lambda: "dead" not in _present(leader[1]))

        watched = Watched.start(sandbox, "submit", *CHECK, "--each", "--wait", "--json", *leader)
        assert watched.wait_for("node", node="dying", state="measuring"), watched.errors
        cluster.kill("dying")
        assert watched.wait_for("node", node="slow", state="measuring"), watched.errors
        for process in cluster.processes("slow", "follower.measuring") + cluster.processes("slow", "paceline.runner"):
            with suppress(OSError):
                quota.write_text(str(process.pid))
        assert watched.finish_within(PATIENCE) == 1, watched.errors
        (end,) = [event for event in watched.said if event["event"] == "fleet_ended"]
        (home,) = set(end["nodes"]) - set(NODES)
        assert end["nodes"] == {home: "finished", "slow": "finished", "dying": "lost", "dead": "unreachable"}
        assert set(end["slow"]) == {"slow"}
        assert "times as long as on the others" in end["slow"]["slow"]
        causes = {event["node"]: event["cause"] for event in watched.said if event.get("cause")}
        assert "dying" in causes["dying"], causes
        assert "it was seen last at " in causes["dead"]

        for name in ("dying", "dead"):
            cluster.follow(name)
            wait_for(name, lambda name=name: cluster.knows(store, name))
    again = sandbox.run("submit", "--resume", end["fleet"], "--wait", *leader, timeout=PATIENCE)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "4 of 4 nodes measured everything." in again.stdout
    with open_store(sandbox.folder / "store.db") as store:
        whole = [run.id for run in store.runs(20) if run.status == "finished"]
        assert len(whole) == 4 and all(store.load(run).all_ok for run in whole)


def _present(leader: str) -> set[str]:
    return {view["id"] for view in new_client(leader, None).get("/followers")["followers"] if view["present"]}
