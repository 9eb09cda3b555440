"""How far load generators are off: each against a server that knows exactly what it sent and when.

`python -m bench load-accuracy` measures Paceline and a plain loop with aiohttp, and those peers whose environments are
named by GUIDELLM and AIPERF, each a folder made by `python -m venv` into which that tool was installed.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.truth_server import STALL, STALL_EVERY, TOKENS_PER_CHUNK

RATE, TOKENS, PROMPT = 25, 64, 32  # requests/s; tokens of answers and prompts
COUNT, FEW = 600, 200  # requests of a load without failures, and of one with them
EVERY = 20  # requests, of which one fails
_PATIENCE = 300.0  # seconds
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_WORDS = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="<s>")
made.save_pretrained(sys.argv[1])
"""  # a tokenizer, without which AIPerf does not start


@dataclass(frozen=True)
class Load:
    """What a tool is to send."""

    url: str  # without /v1
    count: int
    folder: Path  # for whatever it writes

    @property
    def seconds(self) -> int:
        return self.count // RATE


Figures = Mapping[str, float | None]  # by name; what a tool does not tell is missing
COLUMNS = ("rate", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "tokens")


def print_load_accuracy() -> None:
    """A line of errors for each tool, in percent of the truth."""
    click.echo(
        f"{RATE} requests/s for {COUNT // RATE} s, constant; {TOKENS} tokens each, {TOKENS_PER_CHUNK} in a chunk; all "
        f"stands still for {STALL:g} of every {STALL_EVERY:g} s.\nErrors in % of the truth. Rate: what arrived "
        f"against what was asked for. TPOT: time for each token "
        f"behind the first chunk, mean of a request.\nFailed: of {FEW} other requests, as told and in truth.\n"
    )
    click.echo(f"{'':16}" + "".join(f"{one:>10}" for one in (*COLUMNS, "failed", "CPU, s")))
    for name, drive in _tools():
        told, true, used = _driven(drive, COUNT, 0)
        cells = [_error(true["rate"], RATE), *(_error(told.get(one), true[one]) for one in COLUMNS[1:])]
        told, true, _ = _driven(drive, FEW, EVERY)
        failed = told.get("failed")
        cells += [f"{'–' if failed is None else format(failed, 'g')} / {true['failed']:g}", f"{used:.1f}"]
        click.echo(f"{name:16}" + "".join(f"{one:>10}" for one in cells))


def _driven(drive: Callable[[Load], Figures], count: int, every: int) -> tuple[Figures, dict[str, float], float]:
    with tempfile.TemporaryDirectory(prefix="bench-accuracy-") as name:
        folder, before = Path(name), _cpu()
        with _serving(folder / "log.jsonl", every) as url:
            told = drive(Load(url, count, folder))
            used = _cpu() - before
        return told, _truth(folder / "log.jsonl", count), used


def _error(told: float | None, true: float) -> str:
    return "–" if told is None else f"{100.0 * (told / true - 1.0):+.2f}"


def _truth(log: Path, count: int) -> dict[str, float]:
    """Of the last requests, before which a tool may have warmed up."""
    lines = [json.loads(line) for line in log.read_text().splitlines()][-count:]
    good = [line for line in lines if line["status"] == 200]
    first = [line["chunks"][0][0] - line["arrived"] for line in good]
    each = [
        (line["chunks"][-1][0] - line["chunks"][0][0]) / (line["tokens"] - line["chunks"][0][1]) for line in good
    ]  # of the tokens behind the first chunk: those within it came at once
    return {
        "rate": (len(lines) - 1) / (lines[-1]["arrived"] - lines[0]["arrived"]),
        **_percentiles(first, each),
        "tokens": float(sum(line["tokens"] for line in good)),
        "failed": float(len(lines) - len(good)),
    }


def _percentiles(first: Sequence[float], each: Sequence[float]) -> dict[str, float]:
    values = {"TTFT": first, "TPOT": each}
    return {f"{name} p{one}": float(np.percentile(values[name], one)) for name in values for one in (50, 99)}


@contextmanager
def _serving(log: Path, every: int) -> Iterator[str]:
    command = [sys.executable, "-m", "bench.truth_server", str(log), str(every)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()
            server.wait(_PATIENCE)


def _cpu() -> float:
    """Seconds of all that was started and has ended; the server ends later."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tools() -> Iterator[tuple[str, Callable[[Load], Figures]]]:
    yield "Paceline", _paceline
    yield "aiohttp loop", _aiohttp
    for variable, name, drive in (("GUIDELLM", "GuideLLM", _guidellm), ("AIPERF", "AIPerf", _aiperf)):
        if variable in os.environ:
            yield name, drive
        else:
            click.echo(f"bench: {variable} names no environment, so that {name} is left out", err=True)


def _run(command: Sequence[object], **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        env=os.environ | environment,
        check=False,
    )
    return done.stdout


def _paceline(load: Load) -> Figures:
    server = f"{{kind: url, url: '{load.url}/v1', model: truth}}"
    requests = f"{{prompt_tokens: {PROMPT}, output_tokens: {TOKENS}}}"
    paceline, store = [sys.executable, "-m", "paceline"], ["--store", str(load.folder / "store.db")]
    command = [*paceline, "run", "serve", "--server", server, "--wire", "openai-chat", "--requests", requests]
    command += ["--load.arrival", "constant", "--load.rate", str(RATE), "--load.duration", f"{load.seconds}s"]
    _run([*command, "--timeout-per-request", "30s", "--no-report", *store])
    told = _run([*paceline, "report", "last", "--jsonl", *store])
    record: dict[str, Any] = next(one for one in map(json.loads, told.splitlines()) if "measurements" in one)
    found = {one["metric"]["name"]: one["summary"] for one in record["measurements"] if not one.get("at")}
    names = {
        "TTFT p50": "first_token_p50",
        "TTFT p99": "first_token_p99",
        "TPOT p50": "between_tokens_p50",
        "TPOT p99": "between_tokens_p99",
    }
    figures: dict[str, float | None] = {key: found[name]["mean"] for key, name in names.items() if name in found}
    tokens = found["output_tokens"]
    failed = round(found["error_rate"]["mean"] / 100.0 * load.count)
    return figures | {"tokens": tokens["mean"] * tokens["count"], "failed": failed}


def _aiohttp(load: Load) -> Figures:
    """What many write first: a task for each request, a time for each chunk, and a chunk taken for a token."""
    told = json.loads(
        _run([sys.executable, Path(__file__).with_name("aiohttp_stream.py"), load.url, RATE, load.count, TOKENS])
    )
    good = [one for one in told if one]
    each = [(one[-1] - one[1]) / (len(one) - 2) for one in good]
    first = [one[1] - one[0] for one in good]
    tokens = float(sum(len(one) - 1 for one in good))
    return {**_percentiles(first, each), "tokens": tokens, "failed": load.count - len(good)}


def _guidellm(load: Load) -> Figures:
    prompts, told = load.folder / "prompts.txt", load.folder / "told.json"
    prompts.write_text("\n".join(f"say {TOKENS} words about {number}" for number in range(2 * load.count)))
    backend = f"kind=openai_http,target={load.url},model=truth,validate_backend=false,stream=true"
    extras = f'extras={{"body":{{"max_tokens":{TOKENS}}}}}'
    command: list[object] = [Path(os.environ["GUIDELLM"]) / "bin" / "guidellm", "run"]
    command += ["--backend", f"{backend},request_format=/v1/chat/completions,{extras}"]
    command += ["--profile", f"kind=constant,rate={RATE}", "--data", f"kind=text_file,path={prompts}"]
    command += ["--constraint", f"kind=max_requests,count={load.count}"]
    command += ["--output", f"kind=json,path={told}", "--disable-console"]
    _run(command, **_OFFLINE)
    (found,) = json.loads(told.read_text())["benchmarks"]
    return _guidellm_figures(found)


def _guidellm_figures(found: Mapping[str, Any]) -> Figures:
    metrics, made = found["metrics"], found["scheduler_metrics"]["requests_made"]

    def of(name: str, percentile: str) -> float:
        value: float = metrics[name]["successful"]["percentiles"][percentile]
        return value / 1e3

    return {
        "TTFT p50": of("time_to_first_token_ms", "p50"),
        "TTFT p99": of("time_to_first_token_ms", "p99"),
        "TPOT p50": of("inter_token_latency_ms", "p50"),
        "TPOT p99": of("inter_token_latency_ms", "p99"),
        "tokens": metrics["output_token_count"]["successful"]["total_sum"],
        "failed": made["errored"],
    }


def _aiperf(load: Load) -> Figures:
    environment, prompts, tokenizer = Path(os.environ["AIPERF"]) / "bin", load.folder / "prompts", load.folder / "words"
    asked = [{"text": f"say {TOKENS} words about {number}"} for number in range(2 * load.count)]
    prompts.write_text("".join(json.dumps(one) + "\n" for one in asked))
    _run([environment / "python", "-c", _WORDS, tokenizer])
    command: list[object] = [environment / "aiperf", "profile", "--model", "truth", "--url", load.url]
    command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", tokenizer, "--use-server-token-count"]
    command += ["--request-rate", RATE, "--request-rate-mode", "constant", "--request-count", load.count]
    command += ["--input-file", prompts, "--custom-dataset-type", "single_turn"]
    command += ["--extra-inputs", f"max_completion_tokens:{TOKENS}"]
    _run([*command, "--artifact-dir", load.folder / "aiperf", "--ui", "none"])
    (path,) = (load.folder / "aiperf").rglob("profile_export_aiperf.json")
    told = json.loads(path.read_text())

    def of(name: str, key: str) -> float | None:
        return told[name][key] / 1e3 if told.get(name, {}).get(key) is not None else None

    return {
        "TTFT p50": of("time_to_first_token", "p50"),
        "TTFT p99": of("time_to_first_token", "p99"),
        "TPOT p50": of("inter_token_latency", "p50"),
        "TPOT p99": of("inter_token_latency", "p99"),
        "tokens": told.get("total_output_tokens", {}).get("avg"),
        "failed": (told.get("error_request_count") or {"avg": 0.0})["avg"],
    }
