"""Rule files: ours are typed, and a hostile one is refused before it costs or does anything."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from paceline.analysis.diagnose.rules import (
    Rule,
    RuleSet,
    benchmark_of,
    default_rules,
    read_document,
    read_pattern,
    read_rules,
    rules_from_text,
)
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


def test_the_default_rules_are_outliers_and_failures() -> None:
    slower, failed = default_rules().rules
    assert (slower.check, slower.text, failed.check) == ("outlier", "worse than chance explains", "failure")


def test_the_rules_of_the_guide_are_read() -> None:
    fleet, seen = docs_markdown.blocks(docs_markdown.ROOT / "docs" / "guide" / "diagnosing.md", "yml")
    assert [rule.check for rule in rules_from_text(fleet.text, "fleet.yaml").rules] == [
        "outlier", "variance", "variance", "value", "variance", "multi", "failure",
    ]  # fmt: skip
    assert {rule.check for rule in rules_from_text(seen.text, "seen.yaml").rules} == {"value"}


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
        ("rules: {a: {check: value, when: x > 1, metrics: ['(a']}}", "invalid-pattern", {"key": "metrics"}),
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
        ("check: value, when: ''", "needs 'when'"),
        ("check: value, when: ' ', store: true", "needs 'when'"),
        ("check: outlier, when: x > 0", "takes no 'when'"),
        ("check: outlier, worse_by: 1%", "goes with check: variance"),
        ("check: variance, when: x > 0, worse_by: 1%", "in place of 'when'"),
        ("check: failure, when: x > 0", "takes neither"),
        ("check: variance, worse_by: 3", "3 is 300 %: write 3% or 300%"),
        ("check: variance, worse_by: '3'", "3 is 300 %: write 3% or 300%"),
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
    "aliases": (_bomb(12), "too-many-values"),
    "merges": (_merge_bomb(12), "too-many-values"),
    "itself": ("a: &a {b: *a}", "endless-anchor"),
    "deep": ("[" * 5000, "too-deep"),
    "deep mappings": ("{a: " * 5000, "too-deep"),
    "deep blocks": ("\n".join(f"{' ' * n}a:" for n in range(400)), "too-deep"),
    "large": ("a: " + "x" * 400_000, "too-many-bytes"),
    "many": ("[" + "1," * 50_000 + "]", "too-many-values"),
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
        ("invalid-pattern", ["(a", "a)", "[a", "a\\", "a**", "a{3}{4}", "a*+", "*a", "^**"]),
        ("invalid-pattern", ["(?=a)", "(?!a)", "(?<=a)b", "(?>a)", r"(a)\1", r"\Z"]),
        ("invalid-pattern", ["a{99999}", "((((a{99}){99}){99}){99})", "[z-a]", "a{3,2}"]),
        ("ambiguous-pattern", ["[[:alpha:]]"]),
        ("too-many-characters", ["a" * 501]),
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True), ("True", True), ("on", True), ("no", False), ("false", False), ("OFF", False),
        ("~", None), ("null", None), ("12", 12), ("010", 10), ("-3", -3), ("1_000.5", 1000.5), ("1.0e+3", 1000.0),
        ("0x10", "0x10"), ("1:30", "1:30"), (".inf", ".inf"), ("2026-03-14", "2026-03-14"), ("'12'", "12"),
        ("9" * 30, int("9" * 30)), ("{1: a}", {"1": "a"}), ("[]", []), ("{}", {}), ("!!str 5", "5"),
    ],
)  # fmt: skip
def test_a_scalar_is_what_a_person_means(text: str, value: object) -> None:
    assert read_document(text) == value
    assert type(read_document(text)) is type(value)


def test_what_is_written_wins_over_what_is_merged_and_the_first_merged_over_the_others() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2, w: 2}\nc: {w: 3, <<: [*a, *b], x: 3}"
    assert read_document(text)["c"] == {"x": 3, "y": 1, "z": 2, "w": 3}
    assert read_document("a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc: {<<: *a, <<: *b}")["c"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        ("a: 1\nb: ]\nc: 2", "not-yaml", {"where": "line 2"}),
        ("a: 1\n<<: 5", "not-a-mapping", {"where": "line 2", "key": "<<", "value": 5}),
        ("a: {b: 1}\n<<: [{c: 1}, 5]", "not-a-mapping", {"where": "line 2", "value": 5}),
        ("a: 1\nb: 2\na: 3", "duplicate-key", {"where": "line 3", "key": "a"}),
        ("a:\n  - " + "9" * 31, "too-many-digits", {"where": "line 2"}),
        ("a: !!seq {b: 1}", "forbidden-tag", {"where": "line 1", "value": "tag:yaml.org,2002:seq"}),
        ("a: !!map [1]", "forbidden-tag", {"where": "line 1", "value": "tag:yaml.org,2002:map"}),
        ("a: !mine [1]", "forbidden-tag", {"value": "!mine"}),
        ("a: !mine 1", "forbidden-tag", {"value": "!mine"}),
    ],
)
def test_a_document_says_which_line_is_wrong(text: str, code: str, fields: dict[str, object]) -> None:
    with refused(code, **fields):
        read_document(text)


def test_a_document_may_be_as_deep_and_large_as_the_limits() -> None:
    value = read_document("[" * 30 + "]" * 30)
    for _ in range(29):
        (value,) = value
    assert value == []
    assert len(read_document("a: " + "x" * (256 * 1024 - 3))["a"]) == 256 * 1024 - 3
    assert len(read_document("[" + "1," * 19_999 + "]")) == 19_999
    assert len(read_document("[" + "[]," * 19_998 + "1]")) == 19_999


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("[" * 31 + "]" * 31, "too-deep", "30 deep"),
        ("[[],[],[]," + "[" * 30 + "]" * 30 + "]", "too-deep", "30 deep"),
        ("a: " + "é" * (128 * 1024), "too-many-bytes", "256 KiB"),
        ("[" + "1," * 20_000 + "]", "too-many-values", "more than 20,000 values"),
        ("[" + "[]," * 19_998 + "1,1]", "too-many-values", "more than 20,000 values"),
        ("[" + "[]," * 25_000 + "]", "too-many-values", "more than 20,000 values"),
    ],
)
def test_a_document_just_beyond_a_limit_is_refused(text: str, code: str, says: str) -> None:
    with refused(code, says=says):
        read_document(text)


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        ("rules: {}", "no-rules", {"key": "rules"}),
        ("rules: [1]", "no-rules", {"key": "rules"}),
        ("name: a", "no-rules", {"key": "rules"}),
        ("superbench: {rules: [1]}", "no-rules", {"key": "superbench.rules"}),
        ("superbench: {}", "no-rules", {"key": "superbench.rules"}),
        ("nam: a\nrules: {a: {check: failure}}", "unknown-key", {"key": "nam", "suggestion": "name"}),
        ("zzz: a\nrules: {a: {check: failure}}", "unknown-key", {"key": "zzz", "suggestion": "rules"}),
        ("superbench: {rules: {a: 5}}", "not-a-rule", {"value": 5}),
        (OURS.replace('max(rules["kept"].values())', 'max(rules["slow"].values())'), "not-stored", {"value": "slow"}),
        (OURS.replace('rules["slow"] +', 'rules["kept"] +'), "not-stored", {"value": "kept"}),
        (OURS.replace('rules["slow"] +', 'rules["zz"] + rules["aa"] +'), "not-stored", {"value": "aa"}),
        (OURS.replace('rules["slow"] +', 'rules["both"] +'), "not-stored", {"value": "both"}),
    ],
)
def test_another_mistake_is_named(text: str, code: str, fields: dict[str, object]) -> None:
    with refused(code, **fields):
        rules_from_text(text, "rules.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("check: variance", "check: variance needs 'when'"),
        ("check: multi", "check: multi needs 'when'"),
        ("check: variance, store: true", "check: variance needs 'when'"),
        ("check: failure, store: true", "takes neither"),
        ("check: failure, worse_by: 1%", "'worse_by' goes with check: variance"),
        ("check: value, when: x > 0, worse_by: 1%", "'worse_by' goes with check: variance"),
    ],
)
def test_keys_that_lack_another_or_go_with_another_check_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"rules.yaml, rule 'a': .*{message}"):
        rules_from_text(f"rules: {{a: {{{text}}}}}", "rules.yaml")


@pytest.mark.parametrize(
    ("text", "shown", "category"),
    [
        ("check: variance, worse_by: 7.5%", "worse by more than 7.5 %", "a"),
        ("check: variance, worse_by: 0", "worse by more than 0 %", "a"),
        ("check: value, when: ' x > 1 ', category: Hot", "x > 1", "Hot"),
        ("check: value, store: true", "", "a"),
        ("check: failure", "", "FailedTest"),
        ("check: failure, category: Broken", "", "Broken"),
    ],
)
def test_a_rule_says_its_condition_and_what_its_defects_are_called(text: str, shown: str, category: str) -> None:
    (rule,) = rules_from_text(f"rules: {{a: {{{text}}}}}", "some/fleet.yaml").rules
    assert (rule.name, rule.text, rule.category, rule.selectors, rule.is_theirs) == ("a", shown, category, (), False)


def test_rules_without_a_name_are_called_after_their_file() -> None:
    assert rules_from_text("rules: {a: {check: failure}}", "some/fleet.yaml").name == "fleet"
    assert rules_from_text("name: ours\nrules: {a: {check: failure}}", "some/fleet.yaml").name == "ours"


def theirs(**entry: object) -> Rule:
    document = {"superbench": {"rules": {"r": {"categories": "K"} | entry}}}
    (rule,) = rules_from_text(json.dumps(document), "some/theirs.yaml").rules
    return rule


@pytest.mark.parametrize(
    ("entry", "check", "stores_values", "metrics"),
    [
        ({"store": True, "metrics": ["a/b", "a/c"]}, "value", True, ["a/b", "a/c"]),
        ({"store": True, "metrics": "a/b", "function": "value"}, "value", True, ["a/b"]),
        ({"store": True, "metrics": "a/b", "function": "variance"}, "variance", True, ["a/b"]),
        ({"function": "variance", "criteria": "lambda x: x > 0", "metrics": "a/b"}, "variance", False, ["a/b"]),
        ({"function": "failure_check", "criteria": "lambda x: x > 0", "metrics": ["a/b"]}, "failure", False, ["a/b"]),
        ({"function": "multi_rules", "criteria": "lambda label: True", "metrics": ["a/b"]}, "multi", False, []),
    ],
)
def test_a_rule_of_superbench_is_read(
    entry: dict[str, object], check: str, stores_values: bool, metrics: list[str]
) -> None:
    rule = theirs(**entry)
    assert (rule.check, rule.category, rule.is_theirs) == (check, "K", True)
    assert rule.store is bool(entry.get("store"))
    assert (rule.criterion is None) is stores_values
    assert [selector.source for selector in rule.selectors] == metrics


@pytest.mark.parametrize(
    ("entry", "code", "key"),
    [
        ({"store": True, "criteria": "lambda x: x > 0", "metrics": ["a/b"]}, "half-a-rule", "function"),
        ({"store": True, "function": "multi_rules", "metrics": ["a/b"]}, "half-a-rule", "criteria"),
        ({"store": True, "function": "failure_check", "metrics": ["a/b"]}, "half-a-rule", "criteria"),
        ({"function": 5, "criteria": "lambda x: x > 0", "metrics": ["a/b"]}, "unknown-function", "function"),
        ({"function": ["value"], "criteria": "lambda x: x > 0", "metrics": ["a/b"]}, "unknown-function", "function"),
        ({"function": "value", "criteria": "lambda x: x > 0", "metrics": []}, "missing-key", "metrics"),
        ({"function": "value", "criteria": "lambda x: x > 0", "metrics": 5}, "missing-key", "metrics"),
        ({"function": "value", "criteria": "lambda x: x > 0", "metrics": [5]}, "not-a-pattern", "metrics"),
        ({"store": True}, "missing-key", "metrics"),
        ({"store": 1, "metrics": ["a/b"]}, "not-a-boolean", "store"),
    ],
)
def test_half_a_rule_of_superbench_is_refused(entry: dict[str, object], code: str, key: str) -> None:
    with refused(code, key=key):
        theirs(**entry)


def test_a_pattern_of_superbench_looks_at_its_own_benchmark_alone() -> None:
    (selector,) = theirs(store=True, metrics=["mem-bw:x/.*_bw"]).selectors
    names = ["mem-bw/h2d_bw", "mem-bw:x/h2d_bw", "mem-bw:x/m/h2d_bw", "gpu-mem-bw:x/h2d_bw", "mem-bw:x/time", "h2d_bw"]
    assert [name for name in names if selector.picks(name)] == ["mem-bw:x/h2d_bw", "mem-bw:x/m/h2d_bw"]
    (bare,) = theirs(store=True, metrics=["gpu_.*"]).selectors
    assert not any(bare.picks(name) for name in ("gpu_power", "a/gpu_power", "gpu_power:0"))
    assert bare.picks("gpu_.*")


def test_a_name_is_picked_as_it_is_written_even_if_it_is_another_pattern() -> None:
    (rule,) = rules_from_text("rules: {a: {check: value, store: true, metrics: ['c+ (x)/rate']}}", "r").rules
    (selector,) = rule.selectors
    assert selector.picks("c+ (x)/rate")
    assert selector.picks("cc x/rate")
    assert not selector.picks("c (x)/rate")


@pytest.mark.parametrize(
    ("name", "benchmark"),
    [("a:n/m/x:1", "a"), ("a/x", "a"), ("x:1", None), ("/x", ""), (":n/x", "")],
)
def test_the_benchmark_of_a_key_is_what_precedes_its_note(name: str, benchmark: str | None) -> None:
    assert benchmark_of(name) == benchmark


def test_a_set_of_rules_has_superbenchs_names_if_one_of_them_is_theirs() -> None:
    one, (other, *_) = theirs(store=True, metrics=["a/b"]), default_rules().rules
    assert RuleSet("a", (one, other)).is_theirs
    assert RuleSet("a", (other, one)).is_theirs
    assert not RuleSet("a", (other,)).is_theirs
