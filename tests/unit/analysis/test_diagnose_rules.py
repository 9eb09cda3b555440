"""Rule files: ours are typed, and a hostile one is refused before it costs or does anything."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from paceline.analysis.diagnose.document import read_document
from paceline.analysis.diagnose.patterns import read_pattern
from paceline.analysis.diagnose.rules import default_rules, read_rules, rules_from_text
from paceline.core.errors import InputError
from support import docs_markdown

OURS = """
name: strict
rules:
  slow:
    check: variance
    worse_by: 5%
    metrics: ["gemm .*", "copy .*/bandwidth"]
    category: Performance
    store: true
  hot:
    check: value
    when: x > 90
    metrics: .*temperature
    store: true
  kept:
    check: value
    store: true
    metrics: [".*bandwidth"]
  both:
    check: multi
    when: rules["slow"] + rules["hot"] >= 2 or max(rules["kept"].values()) < 5
  failed:
    check: failure
"""


def test_a_file_of_ours_is_read() -> None:
    rules = rules_from_text(OURS, "strict.yaml")
    assert rules.name == "strict"
    slow, hot, kept, both, failed = rules.rules
    assert (slow.check, slow.worse_by, slow.category, slow.store) == ("variance", 0.05, "Performance", True)
    assert [selector.source for selector in hot.selectors] == [".*temperature"]
    assert kept.criterion is None
    assert both.category == "both"
    assert failed.category == "FailedTest"
    assert not rules.is_theirs


def test_the_default_rules_are_five_percent_and_failures() -> None:
    slower, failed = default_rules().rules
    assert (slower.check, slower.worse_by, failed.check) == ("variance", 0.05, "failure")


def test_the_rules_of_the_guide_are_read() -> None:
    (block,) = docs_markdown.blocks(docs_markdown.ROOT / "docs" / "guide" / "diagnosing.md", "yml")
    assert [rule.check for rule in rules_from_text(block.text, "fleet.yaml").rules] == [
        "variance", "variance", "value", "variance", "multi", "failure",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rules are a mapping"),
        ("- 1", "rules are a mapping"),
        ("rule: {}", "did you mean 'rules'"),
        ("rules: []", "mapping of at least one rule"),
        ("rules: {a: 5}", "a rule is a mapping"),
        ("rules: {a: {check: varience}}", "did you mean 'variance'"),
        ("rules: {a: {check: value, wen: x > 1}}", "did you mean 'when'"),
        ("rules: {a: {check: value}}", "needs 'when'"),
        ("rules: {a: {check: variance, when: x > 0, worse_by: 1%}}", "in place of 'when'"),
        ("rules: {a: {check: failure, when: x > 0}}", "takes neither"),
        ("rules: {a: {check: multi, when: 'rules[\"b\"] > 0'}}", "no rule before it stores a count"),
        ("rules: {a: {check: multi, metrics: [b], when: 'rules[\"b\"] > 0'}}", "not at metrics"),
        ("rules: {a: {check: value, when: x > 1, metrics: ['(a']}}", "lacks a '\\)'"),
        ("rules: {a: {check: failure}, a: {check: failure}}", "stands twice"),
        ("superbench: {rules: {}}", "has no 'rules'"),
        ("superbench: 5", "has no 'rules'"),
    ],
)
def test_a_mistake_is_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rules_from_text(text, "rules.yaml")


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the rules"):
        read_rules(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="no text"):
        read_rules(tmp_path / "binary.yaml")


def _bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join([*lines, f"rules: *a{levels - 1}"])


def _merge_bomb(levels: int) -> str:
    lines = ["a0: &a0 {b: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, levels)]
    return "\n".join(lines)


HOSTILE = {
    "object": "rules: !!python/object/apply:os.system ['touch owned']",
    "name": "rules: !!python/name:os.system",
    "module": "a: !!python/module:os",
    "new": "!!python/object/new:type {args: [x]}",
    "own tag": "rules: !danger {a: 1}",
    "aliases": _bomb(12),
    "merges": _merge_bomb(12),
    "itself": "a: &a {b: *a}",
    "deep": "[" * 5000,
    "deep mappings": "{a: " * 5000,
    "deep blocks": "\n".join(f"{' ' * n}a:" for n in range(400)),
    "large": "a: " + "x" * 400_000,
    "many": "[" + "1," * 50_000 + "]",
    "digits": f"a: {'9' * 5000}",
    "sexagesimal": f"a: 1{':59' * 20_000}",
    "set": "a: !!set {b, c}",
    "binary": "a: !!binary aGk=",
    "control": "a: \x00",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_document_is_refused_and_runs_nothing(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = time.process_time()
    with pytest.raises(InputError):
        rules_from_text(text, "rules.yaml")
    assert time.process_time() - started < 5.0  # milliseconds, where Python's parser of YAML is the compiled one
    assert list(tmp_path.iterdir()) == []


def test_anchors_and_merge_keys_are_understood() -> None:
    text = "base: &base {function: value, store: true}\na: {<<: *base, store: false}\nb: [*base, 1.5, 2_000, null, yes]"
    assert read_document(text, "r") == {
        "base": {"function": "value", "store": True},
        "a": {"function": "value", "store": False},
        "b": [{"function": "value", "store": True}, 1.5, 2000, None, True],
    }


@pytest.mark.parametrize(
    "source",
    [
        "", "(a", "a)", "[a", "a**", "*a", "a{3}{4}", "(?=a)", "(?!a)", "(?<=a)b", "(?P<n>a)", r"(a)\1", r"\b", r"\Z",
        "(?i)a", "(?>a)", "a*+", "a{201}", "a{99999}", "((((a{99}){99}){99}){99})",
        "(((((){200}){200}){200}){200}){200}", "(" * 40 + ")" * 40, "a" * 501, "[z-a]", "[[:alpha:]]", "{3}",
    ],
)  # fmt: skip
def test_patterns_beyond_the_automaton_are_refused_at_once(source: str) -> None:
    started = time.process_time()
    with pytest.raises(InputError, match="pattern"):
        read_pattern(source, "rule 1")
    assert time.process_time() - started < 1.0


def test_patterns_of_published_rules_match() -> None:
    train = "throughput_train_float16"
    for source, name in (
        (r"kernel-launch/event_overhead:\d+", "kernel-launch/event_overhead:11"),
        ("kernel-launch:*.*/.*_time", "kernel-launch/event_time:0"),
        ("bert_models/pytorch-bert-base/throughput_train_float(32|16)", f"bert_models/pytorch-bert-base/{train}"),
        ("resnet_models/pytorch-resnet.*/throughput_train_.*", f"resnet_models/pytorch-resnet50/{train}"),
        (
            "model-benchmarks:stress-run.*/pytorch-gpt2-large/fp32.*",
            "model-benchmarks:stress-run1/pytorch-gpt2-large/fp32_x",
        ),
    ):
        assert read_pattern(source, "r").search(name)
