"""A folder with a model in every form that a user may have, made by the software that makes such files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

def with_inputs():
    return make(), torch.randn(3, 8)

def squared(output):
    return output.square().sum()

def with_loss():
    return make(), (torch.randn(3, 8),), squared

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, x):
        return {"answer": self.layer(x)}

net = Net()

def frozen():
    return torch.nn.ReLU(), torch.randn(3, 8)

def number():
    return 3
"""
LEAVING = """
import os
print("what is printed is for nobody")
os.write(2, b"goodbye\\n")
os._exit(3)
"""
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}


def write_forms(folder: Path) -> None:
    """A script, exported programs, a config, and files that are no models."""
    import torch

    (folder / "net.py").write_text(SCRIPT)
    (folder / "leaving.py").write_text(LEAVING)
    net, rows = torch.nn.Linear(8, 2), torch.export.Dim("rows")
    program = torch.export.export(net, (torch.randn(2, 8),), dynamic_shapes=({0: rows},))
    torch.export.save(program, folder / "net.pt2")
    torch.export.save(torch.export.export(net, (torch.randn(3, 8),)), folder / "three.pt2")
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "empty").mkdir()
    for name in ("broken.onnx", "broken.pt2", "weights.pt", "notes.h5"):
        (folder / name).write_text("no model")


def write_onnx(path: Path, *sizes: int | str) -> None:
    """y = relu(x w), by the package onnx itself."""
    onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: no ONNX file is tested")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: no ONNX file is tested")
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    weight = helper.make_tensor("w", real, [8, 2], [0.5] * 16)
    ends = [helper.make_tensor_value_info("x", real, sizes)], [helper.make_tensor_value_info("y", real, ["n", 2])]
    graph = helper.make_graph(nodes, "net", *ends, initializer=[weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(path))
