"""A step that a compiler has made wrong is found when it is measured."""

from __future__ import annotations

from support.cli import Sandbox

MODEL = '''
import torch
from torch import nn
from paceline.models import Batch, Workload

class Forgetful(nn.Module):
    """Compiled, it is another function."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, rows):
        hidden = self.first(rows)
        if torch.compiler.is_compiling():
            hidden = hidden.detach() if self.training else hidden * 0
        return self.second(hidden.relu())

def make_batch(samples, generator):
    rows = torch.randn(samples, 8, generator=generator)
    return Batch(inputs=(rows,), targets=(torch.zeros(samples, dtype=torch.int64),))

def forgetful() -> Workload:
    """Two layers; compiled, the first has no gradient."""
    loss = lambda output, batch: nn.functional.cross_entropy(output, batch.targets[0])
    return Workload(module=Forgetful(), make_batch=make_batch, loss=loss)
'''


def test_what_a_compiler_left_out_is_told_with_the_figures(sandbox: Sandbox) -> None:
    sandbox.write("my_model.py", MODEL)
    common = {"model": "my_model:forgetful", "target": "cpu", "batch_size": 8, "budget": "0.3s", "warm_up": "0.1s"}
    suite = sandbox.suite(
        common | {"benchmark": "train", "compile": "on"},
        common | {"benchmark": "inference", "compile": "on"},
        common | {"benchmark": "train", "compile": "off"},
    )
    done = sandbox.run("run", suite, "--no-report")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "miscompiled" in done.stdout
    training, inference, uncompiled = sandbox.load().records
    found = [[doubt.message for doubt in one.doubts if doubt.kind == "miscompiled"] for one in (training, inference)]
    assert "gradient of network.first." in found[0][0]
    assert "of its norm" in found[1][0]
    assert "compared_with_uncompiled" not in uncompiled.facts
    assert not any(doubt.kind == "miscompiled" for doubt in uncompiled.doubts)
