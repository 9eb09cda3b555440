"""Nothing outside a device kind's own module names what is a vendor's: read off the syntax tree of all of src."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline
from paceline.core.device import accelerator_kinds
from paceline.devices import visible_variables

ROOT = Path(paceline.__file__).parent
LIBRARIES = {"pynvml", "amdsmi"}
LIBRARY_CALL = re.compile(r"\b(nvml|amdsmi_)[A-Za-z]|NVML_[A-Z]|\bpynvml\b|\bamdsmi\b")


def offences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that only a device kind may have, and why."""
    kinds = accelerator_kinds()
    hidden = {*visible_variables(), "ROCR_VISIBLE_DEVICES"}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Attribute) and node.attr == "cuda" and getattr(node.value, "id", "") == "torch":
            yield line, "torch.cuda"
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from ((line, name) for name in names if name.split(".")[0] in LIBRARIES or name == "torch.cuda")
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
            forbidden = module.split(".")[0] in LIBRARIES or module.startswith("torch.cuda") or "torch.cuda" in names
            yield from ((line, name) for name in names if forbidden)
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if LIBRARY_CALL.search(name):
                yield line, name
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if LIBRARY_CALL.search(node.value):
                yield line, node.value[:60]
            yield from ((line, variable) for variable in hidden if variable in node.value)
        for asked in _asked(node):
            if asked in kinds or asked.partition(":")[0] in kinds:
                yield line, f"asks whether something is '{asked}'"


def _asked(node: ast.AST) -> Iterator[str]:
    """Strings by which a branch tells things apart."""
    parts: list[ast.expr | None] = []
    if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("startswith", "endswith"):
        parts = [*node.args]
    elif isinstance(node, ast.Dict):
        parts = [*node.keys]
    elif isinstance(node, ast.Subscript):
        parts = [node.slice]
    elif isinstance(node, ast.MatchValue):
        parts = [node.value]
    for part in parts:
        inner = part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]
        for one in inner:
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                yield one.value


def test_only_device_kinds_name_what_is_a_vendors() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        if path.is_relative_to(ROOT / "devices"):
            continue
        for line, what in offences(ast.parse(path.read_text(encoding="utf-8"))):
            found.append(f"{path.relative_to(ROOT)}:{line}: {what}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_a_vendors_library_is_imported_by_its_own_kind_alone(library: str) -> None:
    owner = {"pynvml": "cuda", "amdsmi": "rocm"}[library]
    for path in (ROOT / "devices").rglob("*.py"):
        names = [alias.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import)
                 for alias in node.names]  # fmt: skip
        of = path.relative_to(ROOT / "devices").parts[0].removesuffix(".py")
        assert library not in names or of == owner


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.cuda.synchronize()",
        "import pynvml",
        "from torch import cuda",
        "from torch.cuda import Stream",
        'library.ask("nvmlDeviceGetCount")',
        'os.environ["CUDA_VISIBLE_DEVICES"] = "0"',
        'if device.kind == "cuda": pass',
        'if target.startswith("cuda"): pass',
        'if target in ("cuda:*", "cuda:0"): pass',
        'sizes = {"cuda": 1, "cpu": 2}',
        'if "rocm" != kind: pass',
    ],
)
def test_the_check_sees_what_it_forbids(text: str) -> None:
    assert list(offences(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        '"use --target cuda:0"',
        "target = 'cuda:0' if ranks == 1 else 'cuda:*'",
        'if target == "cpu": pass',
        "x.is_cuda",
    ],
)
def test_the_check_lets_messages_and_values_be(text: str) -> None:
    assert not list(offences(ast.parse(text)))
