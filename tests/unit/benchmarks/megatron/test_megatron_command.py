"""What pretrain_gpt.py is told, and what is refused before it is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.benchmarks.megatron import megatron_gpt
from paceline.benchmarks.megatron.megatron_gpt import MegatronGpt, MegatronParameters
from paceline.core.benchmark import BENCHMARKS, Context
from paceline.core.case import Case, Origin
from paceline.core.suite import Here, Suite, expand
from support.refused import refused

LM = "parser.add_argument('--mock-data')\nparser.add_argument('--log-throughput')\n"
DEEPSPEED = "import deepspeed\nparser = deepspeed.add_config_arguments(parser)\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of Megatron-LM, as far as anybody looks at it."""
    folder = tmp_path / "Megatron-LM"
    (folder / "megatron" / "training").mkdir(parents=True)
    (folder / "pretrain_gpt.py").touch()
    (folder / "megatron" / "training" / "arguments.py").write_text(LM, encoding="utf-8")
    return folder


def parameters(checkout: Path, **more: Any) -> MegatronParameters:
    return MegatronParameters.read({"code_base": str(checkout), **more})


def options(words: list[str]) -> dict[str, str]:
    """Each option with the word after it."""
    return {word: after for word, after in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


def check(checkout: Path, *, target: str = "cpu", origin: Origin = "local", **more: Any) -> None:
    case = Case(index=0, benchmark="megatron-gpt", parameters={}, title="", target=target, origin=origin)
    MegatronGpt.check(parameters(checkout, **more), case)


def test_the_defaults_are_those_of_superbench(checkout: Path) -> None:
    told = options(megatron_gpt.script_arguments(parameters(checkout), 8, checkout, None))
    wanted = {
        "--num-layers": "32",
        "--hidden-size": "4096",
        "--num-attention-heads": "32",
        "--seq-length": "2048",
        "--max-position-embeddings": "2048",
        "--micro-batch-size": "2",
        "--global-batch-size": "16",  # a micro-batch on each of eight ranks
        "--train-iters": "60",  # ten of which warm up
        "--log-interval": "1",
        "--eval-iters": "0",
        "--tokenizer-type": "NullTokenizer",
        "--vocab-size": "50257",
    }
    assert wanted.items() <= told.items()
    assert {"--mock-data", "--log-throughput", "--bf16", "--use-distributed-optimizer"} <= told.keys()
    assert not {"--deepspeed", "--data-path", "--initial-loss-scale"} & told.keys()


def test_the_mesh_decides_the_batch(checkout: Path) -> None:
    split = parameters(checkout, tensor_parallel=2, pipeline_parallel=2)
    told = options(megatron_gpt.script_arguments(split, 8, checkout, None))
    assert told["--tensor-model-parallel-size"] == told["--pipeline-model-parallel-size"] == "2"
    assert told["--global-batch-size"] == "4"
    assert options(megatron_gpt.script_arguments(parameters(checkout, global_batch_size=64), 8, checkout, None))[
        "--global-batch-size"
    ] == "64"  # fmt: skip


@pytest.mark.parametrize(("precision", "flags"), [("fp32", set()), ("bf16", {"--bf16"}), ("fp16", {"--fp16"})])
def test_precisions(checkout: Path, precision: str, flags: set[str]) -> None:
    told = options(megatron_gpt.script_arguments(parameters(checkout, precision=precision), 1, checkout, None))
    assert told.keys() & {"--fp16", "--bf16"} == flags
    assert told.get("--initial-loss-scale") == ("65536" if precision == "fp16" else None)


def test_data_of_ones_own(checkout: Path) -> None:
    given = {"data_path": "corpus", "vocab_file": "vocab.json", "merge_file": "merges.txt"}
    told = options(megatron_gpt.script_arguments(parameters(checkout, **given), 1, checkout, None))
    assert told["--tokenizer-type"] == "GPT2BPETokenizer"
    assert (told["--data-path"], told["--vocab-file"], told["--merge-file"]) == tuple(given.values())
    assert not {"--mock-data", "--vocab-size"} & told.keys()


def test_a_checkout_is_told_only_what_its_generation_knows(checkout: Path) -> None:
    (checkout / "megatron" / "training" / "arguments.py").write_text("", encoding="utf-8")
    with refused("missing-key", key="data_path"):
        check(checkout)
    given = {"data_path": "corpus", "vocab_file": "vocab.json", "merge_file": "merges.txt"}
    assert "--log-throughput" not in megatron_gpt.script_arguments(parameters(checkout, **given), 1, checkout, None)


def test_options_that_are_fields_of_a_class_are_known_too(checkout: Path) -> None:
    (checkout / "megatron" / "training" / "arguments.py").write_text("mock_data: bool = False\n", encoding="utf-8")
    assert megatron_gpt.mentions(checkout, "mock-data")


def test_deepspeed_has_its_arguments_and_its_file(checkout: Path) -> None:
    (checkout / "megatron" / "arguments.py").write_text(DEEPSPEED, encoding="utf-8")
    check(checkout, zero_stage=2)
    staged = parameters(checkout, zero_stage=2, precision="fp16", micro_batch_size=4)
    told = options(megatron_gpt.script_arguments(staged, 2, checkout, Path("config.json")))
    assert (told["--deepspeed_config"], told["--zero-stage"]) == ("config.json", "2")
    assert "--no-pipeline-parallel" in told
    assert "--use-distributed-optimizer" not in told
    config = json.loads(megatron_gpt.deepspeed_config(staged, 2))
    assert config["train_batch_size"] == int(told["--global-batch-size"]) == 8
    assert config["train_micro_batch_size_per_gpu"] == 4
    assert config["zero_optimization"] == {"stage": 2}
    assert config["fp16"]["enabled"] is True
    assert "bf16" not in config
    assert config["gradient_clipping"] == float(told["--clip-grad"])


def test_extra_arguments_come_last_so_that_they_win(checkout: Path) -> None:
    words = megatron_gpt.script_arguments(parameters(checkout, extra=["--lr", 0.001, "--swiglu"]), 1, checkout, None)
    assert words[-3:] == ["--lr", "0.001", "--swiglu"]


def test_torchrun_stays_on_this_machine() -> None:
    words = megatron_gpt.launch_command("python3", 4, Path("/co/pretrain_gpt.py"), ["--a"])
    assert words[:3] == ["python3", "-m", "torch.distributed.run"]
    assert words[words.index("--local-addr") + 1] == "127.0.0.1"
    assert words[words.index("--nproc-per-node") + 1] == "4"
    assert words[-3:] == [str(megatron_gpt.DIE_WITH_PARENT), "/co/pretrain_gpt.py", "--a"]


def test_the_leash_becomes_the_script_with_its_own_folder_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'found'\n", encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text("import beside, sys\nprint(beside.WORD, __name__, *sys.argv[1:])\n", encoding="utf-8")
    command = [sys.executable, str(megatron_gpt.DIE_WITH_PARENT), str(script), "--a", "b c"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "found __main__ --a b c\n"


@pytest.mark.parametrize(
    ("target", "set_before", "shown"),
    [
        ("cuda:*", None, None),
        ("cuda:1", None, "1"),
        ("cuda:1", "4,7", "7"),
        ("cpu", "4,7", ""),  # a GPU's figures must not pass for the CPU's
    ],
)
def test_the_ranks_see_the_gpus_of_the_target(
    monkeypatch: pytest.MonkeyPatch, target: str, set_before: str | None, shown: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if set_before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", set_before)
    assert megatron_gpt.launch_environment(target).get("CUDA_VISIBLE_DEVICES") == shown


def test_a_users_own_number_of_connections_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    assert megatron_gpt.launch_environment("cuda:*") == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert megatron_gpt.launch_environment("cuda:*") == {}


@pytest.mark.parametrize(
    ("given", "code", "key", "value"),
    [
        ({"hidden_size": 100}, "not-a-multiple", "hidden_size", 100),
        ({"tensor_parallel": 3, "processes": 3}, "not-a-multiple", "attention_heads", 32),
        ({"layers": 31, "pipeline_parallel": 2}, "not-a-multiple", "layers", 31),
        ({"tensor_parallel": 2, "processes": 3}, "not-divisible", "processes", 3),
        ({"tensor_parallel": 2}, "not-divisible", "processes", 1),
        ({"global_batch_size": 6, "processes": 2}, "not-a-multiple", "global_batch_size", 6),
        ({"zero_stage": 3, "pipeline_parallel": 2, "processes": 2}, "conflicting-keys", "zero_stage", 3),
        ({"zero_stage": 1}, "key-does-not-apply", "zero_stage", 1),
        ({"data_path": "corpus"}, "missing-key", "vocab_file", None),
        ({"data_path": "corpus", "vocab_file": "vocab.json"}, "missing-key", "merge_file", None),
        ({"merge_file": "merges.txt"}, "key-does-not-apply", "merge_file", "merges.txt"),
        ({"extra": ["--num-layers", "2"]}, "reserved-argument", "extra", "--num-layers"),
        ({"extra": ["--log-interval=10"]}, "reserved-argument", "extra", "--log-interval=10"),
        ({"extra": "--swiglu --lr 1"}, "several-words", "extra", "--swiglu --lr 1"),
        ({"processes": 2, "target": "cuda:0"}, "one-device-for-several-ranks", "target", "cuda:0"),
        ({"origin": "network"}, "not-from-network", "benchmark", "megatron-gpt"),
    ],
)
def test_what_does_not_go_together_is_refused(
    checkout: Path, given: dict[str, Any], code: str, key: str, value: object
) -> None:
    with refused(code, key=key, value=value):
        check(checkout, **given)


def test_an_argument_of_paceline_is_refused_with_its_parameter(checkout: Path) -> None:
    with refused("reserved-argument", suggestion="layers"):
        check(checkout, extra=["--num-layers", "2"])
    with refused("reserved-argument", suggestion=None):
        check(checkout, extra=["--log-interval=10"])


def test_a_tokenizer_of_ones_own_goes_with_data(checkout: Path) -> None:
    check(checkout, data_path="corpus", extra=["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "x"])


def test_a_folder_without_the_script_is_refused(tmp_path: Path) -> None:
    with refused("not-a-checkout", key="code_base", value=str(tmp_path)):
        check(tmp_path)
    with refused("not-a-folder", key="code_base"):
        check(tmp_path / "nowhere")


def test_all_gpus_are_one_launcher(checkout: Path) -> None:
    suite = Suite.read(
        {"name": "s", "cases": [{"benchmark": "megatron-gpt", "code_base": str(checkout), "target": "cuda:*"}]}, "s"
    )
    (case,) = expand(suite, BENCHMARKS.registry().get, Here(devices={"cuda": 8}))
    assert case.ranks == 1
    assert case.title == "nl32 h4096 s2048 bf16 mb2"


def test_over_hosts_every_rank_is_one_of_the_case_and_the_mesh_is_over_all(checkout: Path) -> None:
    apart = Here(devices={"cuda": 8}, world=16, nodes=2)

    def case_of(**more: Any) -> Case:
        entry = {"benchmark": "megatron-gpt", "code_base": str(checkout), **more}
        return expand(Suite(name="s", cases=[entry]), BENCHMARKS.registry().get, apart)[0]

    assert (case_of().ranks, case_of(tensor_parallel=16).ranks, case_of(processes=16).ranks) == (16, 16, 16)
    with refused("not-divisible", key="processes", value=16):
        case_of(tensor_parallel=3, attention_heads=24, hidden_size=4800)
    with refused("wrong-number-of-ranks"):
        case_of(processes=8)


def test_a_case_from_the_network_is_refused_where_it_would_run_too(checkout: Path) -> None:
    case = Case(index=0, benchmark="megatron-gpt", parameters={}, title="", origin="network")
    with refused("not-from-network", key="benchmark"):
        MegatronGpt().measure(parameters(checkout), Context(case=case))
