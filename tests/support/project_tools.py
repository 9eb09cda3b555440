"""Loads the programs in `tools`, which are files and not a package."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from support.docs_markdown import ROOT


def tool(name: str) -> ModuleType:
    """One of them, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
