"""GuideLLM against the same server that does nothing, for comparison: requests per second of its CPU time.

It is not installed with Paceline. Make an environment for it, and name that in PACELINE_BENCH_PEERS:

    python -m venv peers && peers/bin/pip install torch==2.13.0 && peers/bin/pip install guidellm==0.8.1 torch==2.13.0
    PACELINE_BENCH_PEERS=peers make bench
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from paceline.load.processes import on_cores
from paceline.load.request import Endpoint

PEERS = "PACELINE_BENCH_PEERS"
_FEW, _MANY = 200, 2200  # requests: what both runs take alike, the start above all, cancels out
_PATIENCE = 600.0  # seconds


def program() -> Path | None:
    """GuideLLM in the environment that the user names; None if none is named."""
    folder = os.environ.get(PEERS)
    if not folder:
        return None
    found = Path(folder) / "bin" / "guidellm"
    if not found.exists():
        raise FileNotFoundError(f"{PEERS}={folder}: there is no {found}; install guidellm into that environment")
    return found


def per_cpu_second(guidellm: Path, endpoint: Endpoint, users: int, cpu: int) -> float:
    """Requests per second of CPU time of all its processes, in a closed loop, without those of its start."""
    few, many = (_cpu_seconds(guidellm, endpoint, users, cpu, count) for count in (_FEW, _MANY))
    if many <= few:
        raise ValueError(f"guidellm took {many:.1f} s of CPU time for {_MANY} requests, and {few:.1f} s for {_FEW}")
    return (_MANY - _FEW) / (many - few)


def _cpu_seconds(guidellm: Path, endpoint: Endpoint, users: int, cpu: int, requests: int) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-guidellm-") as name:
        folder = Path(name)
        prompts, told = folder / "prompts.txt", folder / "told.json"
        prompts.write_text("\n".join(f"say a word about {number}" for number in range(2 * _MANY)))
        target = f"http://{endpoint.host}:{endpoint.port}"
        backend = f"kind=openai_http,target={target},model=any,validate_backend=false,stream=false"
        command = [str(guidellm), "run", "--backend", f"{backend},request_format=/v1/chat/completions"]
        command += ["--profile", f"kind=concurrent,streams={users}", "--data", f"kind=text_file,path={prompts}"]
        command += ["--constraint", f"kind=max_requests,count={requests}"]
        command += ["--output", f"kind=json,path={told}", "--disable-console"]
        offline = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        before = os.times()
        with on_cores((cpu,)):
            subprocess.run(command, check=True, capture_output=True, env=offline, timeout=_PATIENCE)
        after = os.times()
        made = json.loads(told.read_text())["benchmarks"][0]["scheduler_metrics"]["requests_made"]
    if made["successful"] != requests:
        raise ValueError(f"of {requests} requests of guidellm {made['successful']} were answered")
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)
