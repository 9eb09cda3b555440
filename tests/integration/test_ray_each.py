"""One command measures on every node of a Ray cluster: a slow, a dead and a dying one are named, resuming finishes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.api.client import new_client
from paceline.store import open_store
from support.cli import Sandbox
from support.ray_cluster import RayCluster, a_cluster, free_port, wait_for
from support.watching import Watched

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[cluster]'")
pytestmark = [pytest.mark.alone, pytest.mark.long]

NODES = {"slow": 3, "dying": 4, "dead": 5}
NAPS = [{"benchmark": "nap", "steps": steps, "duration": "100ms"} for steps in (2, 3)]
SLOW = {"PACELINE_TEST_NAP_FACTOR": "150"}  # longer than any start of a process takes, on whichever machine this runs
PATIENCE = 400  # seconds; only what hangs takes so long


@pytest.fixture
def cluster(sandbox: Sandbox) -> Iterator[RayCluster]:
    with a_cluster(sandbox, NODES, NODES, http=free_port("127.0.0.1", 33_000)) as made:
        yield made


def test_slow_dead_and_dying_nodes_are_named_and_resuming_finishes(sandbox: Sandbox, cluster: RayCluster) -> None:
    cluster.lead()
    leader = ["--leader", f"http://127.0.0.1:{cluster.http}"]
    with open_store(sandbox.folder / "store.db") as store:
        for name, variables in {"slow": SLOW, "dying": SLOW, "dead": {}}.items():
            cluster.follow(name, **variables)
            wait_for(name, lambda name=name: cluster.knows(store, name))
        cluster.kill("dead")
        wait_for("the end of the dead one", lambda: "dead" not in _present(leader[1]))

        watched = Watched.start(sandbox, "submit", sandbox.suite(*NAPS), "--each", "--wait", "--json", *leader)
        assert watched.wait_for("node", node="dying", state="measuring"), watched.errors
        cluster.kill("dying")
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
