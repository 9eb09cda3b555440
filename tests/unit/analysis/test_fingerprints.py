"""Nodes that should compute the same bit for bit: one that does not is outvoted and named; a tie is called a tie."""

from __future__ import annotations

import pytest

from paceline.analysis.diagnose.judge import Diagnosis, diagnose
from paceline.analysis.diagnose.rules import default_rules
from paceline.analysis.diagnose.table import assemble, results_of
from paceline.api.fleet import NodeRun, outvoted_nodes
from paceline.cli import _fleet
from paceline.core.environment import Environment
from paceline.core.record import Measurement
from paceline.core.run import RunRecords
from paceline.core.subject import Fingerprint
from paceline.report.diagnose import answer
from support.records import STEP_TIME, case, record, run_of

BASIS = "NVIDIA H200, torch 2.11.0, CUDA 13.0"


def node(name: str, *digests: str, basis: str = BASIS, target: str = "cuda:{}") -> RunRecords:
    """A node with a device for each digest, whose first steps agree."""
    records = [
        record(
            case(number, "training-fingerprint", "gpt2-small", target=target.format(number)),
            [Measurement.of_samples(STEP_TIME, [0.1, 0.1])],
            fingerprint=Fingerprint(digest=digest, basis=basis, steps=("same", "same", digest)),
        )
        for number, digest in enumerate(digests)
    ]
    return run_of(records, environment=Environment(host=name))


def judged(*runs: RunRecords) -> Diagnosis:
    return diagnose(assemble(results_of(runs)), default_rules())


def test_of_three_nodes_the_one_that_disagrees_is_outvoted_and_named() -> None:
    diagnosis = judged(node("a", "1f"), node("b", "2e"), node("c", "1f"))
    (verdict,) = diagnosis.defective
    assert (verdict.node, verdict.categories) == ("b", ("silent corruption",))
    (finding,) = verdict.accusations
    assert "cuda:0 is 2e, not 1f that 2 of 3 like devices have" in finding.text
    assert BASIS in finding.text and "from step 3 on" in finding.text
    assert answer(diagnosis) == "1 of 3 nodes is defective: b (silent corruption)."


def test_nodes_that_agree_are_healthy() -> None:
    diagnosis = judged(node("a", "1f"), node("b", "1f"), node("c", "1f"))
    assert diagnosis.defective == () and not any(one.kind == "no majority" for one in diagnosis.caveats)


def test_without_a_majority_nobody_is_accused_and_that_is_said() -> None:
    diagnosis = judged(node("a", "1f"), node("b", "2e"))
    assert diagnosis.defective == ()
    (caveat,) = [one for one in diagnosis.caveats if one.kind == "no majority"]
    assert "1f: a, cuda:0; 2e: b, cuda:0" in caveat.message and "burn" in caveat.remedy


def test_every_device_of_a_node_has_a_vote() -> None:
    diagnosis = judged(node("a", "1f", "1f", "1f"), node("b", "1f", "2e", "1f"))
    (verdict,) = diagnosis.defective
    assert verdict.node == "b" and "fingerprint of cuda:1" in verdict.accusations[0].text


def test_other_devices_and_other_software_have_no_say() -> None:
    others = [node(name, "2e", basis="NVIDIA A100, torch 2.11.0") for name in ("c", "d", "e")]
    diagnosis = judged(node("a", "1f"), node("b", "1f"), *others)
    assert diagnosis.defective == () and not any(one.kind == "no majority" for one in diagnosis.caveats)


def test_a_repetition_has_no_vote_of_its_own() -> None:
    again = node("b", "2e", "2e", "2e", target="cuda:0")
    diagnosis = judged(node("a", "1f"), again, node("c", "1f"))
    assert [verdict.node for verdict in diagnosis.defective] == ["b"]


def test_a_node_with_many_runs_has_no_more_votes_than_others() -> None:
    diagnosis = judged(*[node("b", "2e")] * 3, node("a", "1f"), node("c", "1f"))
    (verdict,) = diagnosis.defective
    (finding,) = verdict.accusations
    assert verdict.node == "b" and "not 1f that 2 of 3 like devices have" in finding.text


def test_a_device_that_disagrees_with_itself_has_its_vote_divided_and_is_named() -> None:
    diagnosis = judged(node("a", "1f"), node("b", "2e"), node("b", "1f"))
    (verdict,) = diagnosis.defective
    assert verdict.node == "b"
    assert verdict.accusations[0].text.endswith("; at other times it is 1f")
    alone = NodeRun("a", state="finished", cases=2, result=node("a", "1f", "2e", target="cuda:0"))
    wrong, (undecided,) = outvoted_nodes([alone])
    assert wrong == {} and "1f: a, cuda:0; 2e: a, cuda:0" in undecided


def test_runs_of_one_device_are_not_called_devices() -> None:
    diagnosis = judged(node("a", "1f"), node("a", "2e"), node("a", "1f"))
    (verdict,) = diagnosis.defective
    assert "not 1f that 2 of 3 runs on like devices have" in verdict.accusations[0].text


def test_a_run_over_hosts_names_the_host_and_does_not_succeed(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        NodeRun(name, state="finished", cases=1, result=node(name, digest))
        for name, digest in (("h1", "1f"), ("h2", "1f"), ("h3", "2e"))
    ]
    wrong, undecided = outvoted_nodes(nodes)
    assert list(wrong) == ["h3"] and undecided == []
    assert _fleet.end("fleet-x", nodes, as_json=False) == 1
    assert "h3 does not compute what the others do" in " ".join(capsys.readouterr().out.split())
    assert _fleet.end("fleet-x", nodes[:2], as_json=False) == 0
