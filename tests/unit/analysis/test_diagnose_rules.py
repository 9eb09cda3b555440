"""Rule files: ours are typed, and a hostile one is refused before it costs or does anything."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from paceline.analysis.diagnose.patterns import read_pattern
from paceline.analysis.diagnose.rules import default_rules, read_document, read_rules, rules_from_text
from paceline.core.errors import InputError
from support import docs_markdown
from support.refused import refused

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
    ("text", "code", "fields"),
    [
        ("", "not-rules", {"where": "rules.yaml"}),
        ("- 1", "not-rules", {"where": "rules.yaml"}),
        ("rule: {}", "unknown-key", {"key": "rule", "suggestion": "rules"}),
        ("rules: []", "no-rules", {"key": "rules"}),
        ("rules: {a: 5}", "not-a-rule", {"where": "rules.yaml, rule 'a'", "value": 5}),
        ("rules: {a: {check: varience}}", "invalid-value", {"key": "check", "suggestion": "variance"}),
        ("rules: {a: {check: value, wen: x > 1}}", "unknown-key", {"key": "wen", "suggestion": "when"}),
        ("rules: {a: {check: value, when: x + 1}}", "not-a-condition", {"key": "when", "value": "x + 1"}),
        ("rules: {a: {check: multi, when: 'rules[\"b\"] > 0'}}", "not-stored", {"value": "b"}),
        ("rules: {a: {check: value, when: x > 1, metrics: ['(a']}}", "unbalanced-parentheses", {"key": "metrics"}),
        ("rules: {a: {check: failure}, a: {check: failure}}", "duplicate-key", {"where": "rules.yaml, line 1"}),
        ("superbench: {rules: {}}", "no-rules", {"key": "superbench.rules"}),
        ("superbench: 5", "no-rules", {"key": "superbench.rules"}),
    ],
)
def test_a_mistake_is_named(text: str, code: str, fields: dict[str, object]) -> None:
    with refused(code, **fields):
        rules_from_text(text, "rules.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("check: value", "needs 'when'"),
        ("check: variance, when: x > 0, worse_by: 1%", "in place of 'when'"),
        ("check: failure, when: x > 0", "takes neither"),
        ("check: multi, metrics: [b], when: 'rules[\"b\"] > 0'", "not at metrics"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"rules.yaml, rule 'a': .*{message}") as caught:
        rules_from_text(f"rules: {{a: {{{text}}}}}", "rules.yaml")
    assert caught.value.code == "invalid-value"


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with refused("unreadable-file", key="--rules", value=str(tmp_path / "none.yaml")):
        read_rules(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with refused("not-text", key="--rules"):
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
    "object": ("rules: !!python/object/apply:os.system ['touch owned']", "forbidden-tag"),
    "name": ("rules: !!python/name:os.system", "forbidden-tag"),
    "module": ("a: !!python/module:os", "forbidden-tag"),
    "new": ("!!python/object/new:type {args: [x]}", "forbidden-tag"),
    "own tag": ("rules: !danger {a: 1}", "forbidden-tag"),
    "aliases": (_bomb(12), "too-many-parts"),
    "merges": (_merge_bomb(12), "too-many-parts"),
    "itself": ("a: &a {b: *a}", "endless-anchor"),
    "deep": ("[" * 5000, "too-deep"),
    "deep mappings": ("{a: " * 5000, "too-deep"),
    "deep blocks": ("\n".join(f"{' ' * n}a:" for n in range(400)), "too-deep"),
    "large": ("a: " + "x" * 400_000, "too-many-bytes"),
    "many": ("[" + "1," * 50_000 + "]", "too-many-parts"),
    "digits": (f"a: {'9' * 5000}", "too-many-digits"),
    "sexagesimal": (f"a: 1{':59' * 20_000}", "too-many-digits"),
    "set": ("a: !!set {b, c}", "forbidden-tag"),
    "binary": ("a: !!binary aGk=", "forbidden-tag"),
    "control": ("a: \x00", "not-yaml"),
}


@pytest.mark.parametrize(("text", "code"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_document_is_refused_and_runs_nothing(
    text: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = time.process_time()
    with refused(code):
        rules_from_text(text, "rules.yaml")
    assert time.process_time() - started < 5.0  # milliseconds, where Python's parser of YAML is the compiled one
    assert list(tmp_path.iterdir()) == []


def test_anchors_and_merge_keys_are_understood() -> None:
    text = "base: &base {function: value, store: true}\na: {<<: *base, store: false}\nb: [*base, 1.5, 2_000, null, yes]"
    assert read_document(text) == {
        "base": {"function": "value", "store": True},
        "a": {"function": "value", "store": False},
        "b": [{"function": "value", "store": True}, 1.5, 2000, None, True],
    }


@pytest.mark.parametrize(
    ("code", "sources"),
    [
        ("not-a-pattern", [""]),
        ("unbalanced-parentheses", ["(a", "a)"]),
        ("unfinished-pattern", ["[a", "a\\"]),
        ("two-quantifiers", ["a**", "a{3}{4}", "a*+"]),
        ("nothing-to-repeat", ["*a", "{3}"]),
        ("not-repeatable", ["^*"]),
        ("unsupported-group", ["(?=a)", "(?!a)", "(?<=a)b", "(?P<n>a)", "(?i)a", "(?>a)"]),
        ("unsupported-escape", [r"(a)\1", r"\b", r"\Z", r"[\b]"]),
        ("unsupported-class", ["[[:alpha:]]"]),
        ("too-many-repeats", ["a{201}", "a{99999}"]),
        ("too-large", ["((((a{99}){99}){99}){99})", "(((((){200}){200}){200}){200}){200}"]),
        ("too-deep", ["(" * 40 + ")" * 40]),
        ("too-many-characters", ["a" * 501]),
        ("invalid-range", ["[z-a]", "a{3,2}"]),
    ],
)
def test_patterns_beyond_the_automaton_are_refused_at_once(code: str, sources: list[str]) -> None:
    started = time.process_time()
    for source in sources:
        with refused(code, key="metrics"):
            read_pattern(source)
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
        assert read_pattern(source).search(name)
