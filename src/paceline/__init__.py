"""Paceline benchmarks deep learning from one kernel to a whole cluster."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from paceline.version import VERSION as __version__

if TYPE_CHECKING:
    from paceline.api.comparison import Comparison, Diagnosis, compare, diagnose
    from paceline.api.functions import BenchmarkFunction, benchmark
    from paceline.api.jobs import Job, submit
    from paceline.api.result import CaseResult, Figure, Result, load
    from paceline.api.run import run
    from paceline.core.errors import InputError, PacelineError

# Where each public name is; imported when it is first asked for, so that `import paceline` costs next to nothing.
_PUBLIC = {
    "BenchmarkFunction": "paceline.api.functions",
    "CaseResult": "paceline.api.result",
    "Comparison": "paceline.api.comparison",
    "Diagnosis": "paceline.api.comparison",
    "Figure": "paceline.api.result",
    "InputError": "paceline.core.errors",
    "Job": "paceline.api.jobs",
    "PacelineError": "paceline.core.errors",
    "Result": "paceline.api.result",
    "benchmark": "paceline.api.functions",
    "compare": "paceline.api.comparison",
    "diagnose": "paceline.api.comparison",
    "load": "paceline.api.result",
    "run": "paceline.api.run",
    "submit": "paceline.api.jobs",
}

__all__ = [
    "BenchmarkFunction",
    "CaseResult",
    "Comparison",
    "Diagnosis",
    "Figure",
    "InputError",
    "Job",
    "PacelineError",
    "Result",
    "__version__",
    "benchmark",
    "compare",
    "diagnose",
    "load",
    "run",
    "submit",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'paceline' has no attribute '{name}'")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps `paceline.load` the function, although the package of that name is imported at some time or other."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _PUBLIC or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
