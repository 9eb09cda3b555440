"""The compiled engine of Paceline's own server on a GPU: recorded batches answer as the eager model does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from paceline.core.record import Outcome
from paceline.devices import device_count
from support.cli import Sandbox

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU and its driver"),
]

SIZES = (1, 2, 4)
MODELS = {"generated/transformer": "fp32", "resnet18": "bf16"}
CALLS = 50
WAITING = '''
import torch
from torch import nn
from paceline.models import Batch, Workload

class Waiting(nn.Linear):
    def forward(self, rows):
        scale = 2.0 if rows.sum().item() > -1e9 else 0.0  # the host waits for the device
        return super().forward(rows) * scale

def make_batch(samples, generator):
    rows = torch.stack([torch.randn(8, generator=generator) for _ in range(samples)])
    return Batch(inputs=(rows,), targets=(torch.zeros(samples, dtype=torch.int64),))

def loss(output, batch):
    return nn.functional.cross_entropy(output, batch.targets[0])

def waiting() -> Workload:
    """A layer that asks for a value on its way."""
    return Workload(module=Waiting(8, 4), make_batch=make_batch, loss=loss)
'''


@pytest.mark.parametrize("model", MODELS)
def test_recorded_batches_answer_as_the_eager_model_does_each_instance_by_itself(model: str) -> None:
    import torch

    from paceline.servers._embedded.cuda_sessions import Replaying
    from paceline.servers._embedded.engines import open_engine
    from paceline.servers.base import Need
    from paceline.servers.export import TOLERANCES, export, load_module, sample_inputs

    precision = MODELS[model]
    artifact = export(Need(model, "tiny", precision, "cuda:0"), "eager")
    module = load_module(artifact, "cuda:0")
    samples = sample_inputs(artifact, 2 * max(SIZES), seed=5)

    def batch(rows: int, start: int) -> dict[str, Any]:
        chosen = [samples[(start + row) % len(samples)] for row in range(rows)]
        return {name: np.stack([one[name] for one in chosen]) for name in samples[0]}

    def expect(inputs: dict[str, Any]) -> Any:
        with torch.inference_mode():
            found = module(*(torch.from_numpy(inputs[spec.name]).to("cuda:0") for spec in artifact.inputs))
        return (found[0] if isinstance(found, tuple) else found).cpu().numpy()

    def assert_right(found: Any, expected: Any) -> None:
        found = found[artifact.outputs[0].name]
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= TOLERANCES[precision] * np.abs(expected).max()

    asked = {(rows, start): batch(rows, start) for rows in (*SIZES, 3) for start in range(len(samples))}
    expected = {key: expect(inputs) for key, inputs in asked.items()}
    engine = open_engine("torch-compile", artifact, "cuda:0", SIZES)

    # As the server does it: each instance has a thread, loads there one after the other, and computes side by side.
    pools = [ThreadPoolExecutor(1) for _ in range(2)]
    try:
        sessions: list[Any] = [pool.submit(engine.session, 1).result() for pool in pools]
        assert engine.facts() == {"graph": "captured for batches of 1, 2, 4"}
        assert all(isinstance(session, Replaying) for session in sessions)
        assert sessions[0].buffers(3) is None

        def all_of(session: Any) -> None:
            keys = sorted(asked)
            mixed = [keys[(7 * i) % len(keys)] for i in range(len(keys))]
            kept = {key: session(asked[key]) for key in mixed}
            for key, answer in kept.items():  # only now: the calls that came after must have left it alone
                assert_right(answer, expected[key])

        for pool, session in zip(pools, sessions, strict=True):
            pool.submit(all_of, session).result()

        def many(session: Any, shift: int) -> None:
            keys = [key for key in sorted(asked) if key[0] in SIZES]
            for i in range(CALLS):
                key = keys[(5 * i + shift) % len(keys)]
                place = session.buffers(key[0])
                for name, array in asked[key].items():
                    place[name][:] = array
                assert_right(session(place), expected[key])

        running = [pool.submit(many, sessions[i], 3 * i) for i, pool in enumerate(pools)]
        for one in running:
            one.result()
    finally:
        for pool in pools:
            pool.shutdown()


def test_the_server_says_whether_it_replays(sandbox: Sandbox) -> None:
    sandbox.write("my_model.py", WAITING)
    common = {
        "benchmark": "serve",
        "target": "cuda:0",
        "load": {"arrival": "closed", "users": 4, "duration": "1s"},
        "warm_up": "0.2s",
    }
    server = {"kind": "embedded", "engine": "torch-compile", "max_batch": 2, "instances": 2, "ready_timeout": "5min"}
    done = sandbox.run(
        "run",
        sandbox.suite(
            common | {"model": "generated/transformer", "scale": "tiny", "server": server},
            common | {"model": "generated/transformer", "scale": "tiny", "server": server | {"graph": "off"}},
            common | {"model": "my_model:waiting", "server": server},
            common | {"model": "generated/transformer", "scale": "tiny", "server": server, "wire": "kserve-shm"},
        ),
        "--no-report",
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = sandbox.load().records
    assert [record.outcome for record in records] == [Outcome.OK] * 4
    assert all(int(record.facts["answers_checked"].partition(",")[0]) > 0 for record in records)
    said = [record.facts["server"]["graph"] for record in records]
    assert said[:2] == ["captured for batches of 1, 2", "off"]
    assert said[2].startswith("not captured: ")
    assert said[3] == said[0]


def test_a_recorded_language_model_says_what_it_says_without_graphs() -> None:
    from paceline.servers._embedded.continuous_batching import Scheduler, TokenSequence
    from paceline.servers._embedded.kv_blocks import BlockPool
    from paceline.servers._embedded.paged_decoder import PagedDecoder
    from paceline.servers.base import Need

    texts = []
    for with_graphs in (True, False):
        need = Need("llama3-8b", "tiny", "fp32", "cuda:0", 7)
        decoder = PagedDecoder(need, max_sequences=4, max_length=None, blocks=6, with_graphs=with_graphs)
        assert (decoder.facts()["graph"] == "captured for 1, 2, 4 sequences") == with_graphs
        scheduler = Scheduler(BlockPool(decoder.blocks), max_sequences=4, prefill_tokens=24)
        sequences = [
            TokenSequence(list(range(5, 9 + 4 * row)), 20, on_token=lambda *_: None, on_error=lambda _: None)
            for row in range(7)
        ]
        scheduler.waiting.extend(sequences)
        while scheduler.waiting or scheduler.running:
            if chunks := scheduler.decodes():
                scheduler.advance(chunks, decoder.decode(chunks))
            if chunks := scheduler.prefills():
                scheduler.advance(chunks, decoder.prefill(chunks))
        assert scheduler.preemptions > 0
        texts.append([one.tokens for one in sequences])
    assert texts[0] == texts[1]
