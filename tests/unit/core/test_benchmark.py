"""What any record says of itself by the usual names, and what a case's process knows of its place."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from paceline.core.benchmark import START_SECONDS, Benchmark, Context, usual_description
from paceline.core.case import Case, is_micro, section_order
from paceline.core.device import is_accelerator, read_target
from paceline.core.parameters import MeasuringParameters, Parameters
from paceline.core.record import Outcome, Record
from paceline.core.subject import Description


def said(facts: dict[str, Any], **parameters: Any) -> Description:
    case = Case(index=0, benchmark="b", title="", parameters=parameters)
    started = datetime(2026, 1, 1, tzinfo=UTC)
    record = Record(run_id="r", case=case, outcome=Outcome.OK, started_at=started, seconds=1.0, facts=facts)
    return usual_description(record, "throughput")


def test_facts_say_what_was_computed_in_before_parameters_do() -> None:
    assert said({"precision": "bf16"}, precision="fp32").subject.precision == "bf16"
    assert said({}, precision="fp32").subject.precision == "fp32"
    assert said({}, precision="auto").subject.precision is None


@pytest.mark.parametrize(
    ("facts", "parameters", "batch"),
    [
        ({"global_batch_size": 8, "batch_size": 4}, {"batch_size": 2}, 8),
        ({"batch_size": 4}, {"batch_size": 2}, 4),
        ({}, {"batch_size": 2}, 2),
        ({}, {"batch_size": "auto"}, None),
        ({"batch_size": True}, {}, None),
        ({}, {}, None),
    ],
)
def test_the_batch_is_that_of_all_ranks_where_it_is_on_record(
    facts: dict[str, Any], parameters: dict[str, Any], batch: int | None
) -> None:
    assert said(facts, **parameters).subject.batch == batch


def test_a_model_is_the_one_that_was_asked_for() -> None:
    assert said({"model": "gpt2"}, model="bert").subject.model == "bert"
    assert said({"model": "gpt2"}, model="").subject.model == "gpt2"
    assert said({"model": 7}).subject.model is None


@pytest.mark.parametrize(
    ("facts", "engine"),
    [
        ({"engine": "a", "backend": "b", "framework": "c"}, "a"),
        ({"backend": "b", "framework": "c"}, "b"),
        ({"framework": "c"}, "c"),
        ({}, None),
    ],
)
def test_an_engine_is_called_engine_backend_or_framework(facts: dict[str, Any], engine: str | None) -> None:
    assert said(facts).subject.engine == engine


def test_facts_of_another_type_are_not_repeated() -> None:
    odd = said({"compiled": "yes", "threads": "four", "device": "", "layout": 3}, seed=True, carbon=True)
    assert odd.subject.compiled is None
    assert (odd.subject.threads, odd.subject.device, odd.subject.layout, odd.subject.seed) == (None, None, None, None)
    assert odd.economy.carbon is None
    usual = said({"compiled": False, "threads": 4, "device": "H100"}, seed=0, carbon=400)
    assert usual.subject.compiled is False
    assert (usual.subject.threads, usual.subject.device, usual.subject.seed) == (4, "H100", 0)
    assert usual.economy.carbon == 400.0


def test_where_energy_and_prices_are_from_is_empty_where_nobody_says() -> None:
    assert said({"energy_source": "NVML", "price_basis": "a table"}).economy.energy_source == "NVML"
    assert said({"energy_source": "NVML", "price_basis": "a table"}).economy.price_basis == "a table"
    assert (said({}).economy.energy_source, said({}).economy.price_basis) == ("", "")


def test_how_times_were_taken_may_have_several_parts() -> None:
    assert said({"timing": ["by events", 2]}).timing == "by events; 2"
    assert said({"timing": "by events"}).timing == "by events"
    assert said({"timing": 3}).timing == ""


def test_what_became_of_a_trace() -> None:
    trace = said({"trace": {"missing": "no profiler"}}).trace
    assert trace is not None
    assert trace.missing == "no profiler"
    cut = said({"trace": {"missing": "no profiler"}, "cut_short": "time was up"}).trace
    assert cut is not None
    assert cut.missing == "no profiler: time was up"


@pytest.mark.parametrize("fact", [{"other": 1}, "a trace", None])
def test_a_fact_that_is_no_trace_says_nothing_of_one(fact: object) -> None:
    assert said({"trace": fact}).trace is None


def test_of_a_trace_of_another_version_its_file_is_left() -> None:
    trace = said({"trace": {"spent": "long", "file": "a.json.gz", "bytes": 3}}).trace
    assert trace is not None
    assert (trace.file, trace.spent, trace.bytes) == ("a.json.gz", None, None)
    assert trace.missing.startswith("another version of Paceline took it")


@pytest.mark.parametrize(
    ("target", "world", "local", "where"),
    [
        ("cuda:*", 1, 0, "cuda:0"),
        ("cuda:*", 4, 3, "cuda:3"),
        ("cuda:0", 2, 1, "cuda:1"),
        ("cuda:2", 1, 0, "cuda:2"),
        ("cpu", 2, 1, "cpu"),
    ],
)
def test_several_ranks_have_a_device_each(target: str, world: int, local: int, where: str) -> None:
    case = Case(index=0, benchmark="b", title="", parameters={}, target=target, ranks=world)
    assert Context(case, world_size=world, local_rank=local).target == where


def test_parameters_are_those_of_the_base_unless_others_are_named() -> None:
    class Usual(Benchmark[MeasuringParameters]):
        metrics = ()
        primary = "none"

    class Other(Usual):
        Parameters = Parameters

    class Further(Other):
        pass

    assert Usual.Parameters is MeasuringParameters
    assert Other.Parameters is Further.Parameters is Parameters


def test_a_process_alone_is_the_first_of_one() -> None:
    context = Context(Case(index=0, benchmark="b", title="", parameters={}))
    assert (context.rank, context.world_size, context.local_rank) == (0, 1, 0)


def test_a_case_is_expected_to_take_its_budget_and_a_start() -> None:
    assert Benchmark.expected_seconds(MeasuringParameters(budget=30.0)) == 30.0 + START_SECONDS
    assert Benchmark.expected_seconds(MeasuringParameters(budget=0.5)) == 0.5 + START_SECONDS
    assert Benchmark.expected_seconds(Parameters()) is None
    assert Benchmark.expected_seconds(MeasuringParameters.model_construct(budget=0)) is None


def test_benchmarks_of_one_operation_are_told_from_those_of_models() -> None:
    assert is_micro("compute")
    assert is_micro("ours")  # a category that somebody added
    assert not any(is_micro(category) for category in ("training", "serving", "harness", "", "other"))


def test_sections_of_others_follow_ours() -> None:
    assert section_order("training") < section_order("compute") < section_order("harness") < section_order("ours")


def test_only_the_host_is_no_accelerator() -> None:
    assert not is_accelerator("cpu")
    assert is_accelerator("cuda:0")
    assert is_accelerator("rocm")


def test_a_target_that_is_none_is_refused_with_all_kinds_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def complaint(*kinds: str) -> str:
        monkeypatch.setattr("paceline.core.device.accelerator_kinds", lambda: list(kinds))
        with pytest.raises(ValueError, match="is not a target") as caught:
            read_target("gpu")
        return str(caught.value).partition("; write ")[2]

    assert complaint("cuda") == "auto, cpu, cuda:0, cuda:* or cuda:each"
    assert complaint("cuda", "rocm", "xpu") == "auto, cpu, cuda:0, cuda:* or cuda:each (rocm, xpu likewise)"
    assert complaint() == "auto, cpu, KIND:0, KIND:* or KIND:each"
