"""Imports torchvision, also where its compiled operators cannot be loaded; take it from here and nowhere else.

The torchvision wheel may be built for CUDA while torch is built for the CPU. Its compiled part then does not load, and
its import stops at `operator torchvision::nms does not exist`. The classification models need none of these operators,
so that declaring them (without giving them a body) lets the import through; detection models stay unusable.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

from paceline.core.errors import MissingDependency

_keep_alive: list[torch.library.Library] = []  # the declarations vanish with their library object


def _load() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        remedy = "install the torchvision release that fits this torch (pip install '.[torch]')"
        raise MissingDependency("torchvision", remedy) from error
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    _keep_alive.append(library)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # what the failed import left half done
    return importlib.import_module("torchvision")


torchvision = _load()
models = importlib.import_module("torchvision.models")
