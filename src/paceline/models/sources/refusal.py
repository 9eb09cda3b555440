"""How a model of the user's own is refused: what is wrong, and four lines that would be right."""

from __future__ import annotations

from pathlib import Path

from paceline.core.errors import InputError

FACTORY = """
  # net.py, for: paceline run inference --model ./net.py:make --input 1x8
  import torch
  def make():
      return torch.nn.Linear(8, 2)"""
WITH_INPUTS = """
  # net.py, for: paceline run train --model ./net.py:make
  import torch
  def make():
      return torch.nn.Linear(8, 2), torch.zeros(1, 8)"""
ONNX = """
  import torch  # for: paceline run inference --model ./net.onnx
  net, example, rows = torch.nn.Linear(8, 2), torch.zeros(2, 8), torch.export.Dim("rows")
  torch.onnx.export(net, (example,), "net.onnx", dynamo=True, dynamic_shapes=({0: rows},))
  # needs: pip install onnx onnxscript onnxruntime"""
PROGRAM = """
  import torch  # for: paceline run inference --model ./net.pt2
  net, example, rows = torch.nn.Linear(8, 2), torch.zeros(2, 8), torch.export.Dim("rows")
  program = torch.export.export(net, (example,), dynamic_shapes=({0: rows},))
  torch.export.save(program, "net.pt2")"""
CONFIG = """
  # for: paceline run inference --model ./tiny
  from transformers import BertConfig
  config = BertConfig(num_hidden_layers=2, architectures=["BertModel"])
  config.save_pretrained("tiny")"""


def refusal(code: str, text: str, why: str, example: str = FACTORY) -> InputError:
    """The error for a model that was given as `text`."""
    return InputError(code, f"model '{text}'{why}\nfor example:{example}", value=text)


def existing_file(text: str, example: str) -> Path:
    """The file that a text names; one that is not there, or not a file, is refused."""
    path = Path(text).expanduser()
    if path.is_file():
        return path.absolute()
    what = "is a folder" if path.is_dir() else "does not exist"
    raise refusal("missing-file", text, f": the file {what}; paths begin at {Path.cwd()}", example)
