"""Imports code of the user's own: a module by its name, or a script by its path."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from paceline.core.errors import PacelineError
from paceline.models.sources.refusal import FACTORY, existing_file, refusal

T = TypeVar("T")
SCRIPT = ".py:"
_FORM = "write it as ./script.py:factory or package.module:factory"


def attribute(reference: str) -> Any:
    """What a reference names, `package.module:name` or `path/script.py:name`."""
    place, colon, name = reference.rpartition(":")
    is_script = f"{place}:".endswith(SCRIPT)
    if not colon or not name.isidentifier() or not (is_script or _is_dotted(place)):
        raise refusal("malformed-reference", reference, f" is malformed: {_FORM}")
    try:
        module = mended(lambda: _script(place) if is_script else _module(place))
    except ModuleNotFoundError as error:
        if is_script or error.name is None or not f"{place}.".startswith(f"{error.name}."):
            why = f": its module needs '{error.name}', which is not installed"
            raise refusal("missing-dependency", reference, why) from error
        why = f": there is no module '{error.name}' in {Path.cwd()} or among the installed packages"
        raise refusal("missing-module", reference, why) from error
    except PacelineError:
        raise
    except (Exception, SystemExit) as error:
        why = f": importing '{place}' failed: {type(error).__name__}: {error}"
        raise refusal("failing-import", reference, why) from error
    try:
        return getattr(module, name)
    except AttributeError as error:
        public = ", ".join(sorted(one for one in vars(module) if not one.startswith("_"))[:20]) or "no public names"
        raise refusal("missing-attribute", reference, f": '{place}' has no '{name}'; it has {public}") from error


def mended(load: Callable[[], T]) -> T:
    """What it loads, also where torchvision's compiled operators are missing: the second try declares them."""
    try:
        return load()
    except (RuntimeError, ImportError) as error:
        cause: BaseException | None = error
        while cause is not None and "torchvision::nms" not in str(cause):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        importlib.import_module("paceline.models._modules.torchvision_import")
        return load()


def _is_dotted(place: str) -> bool:
    return all(part.isidentifier() for part in place.split("."))


def _module(name: str) -> ModuleType:
    _search_first(Path.cwd())
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _script(place: str) -> ModuleType:
    """A script as a module, with its own folder first on the import path, as when Python runs it."""
    path = existing_file(place, FACTORY)
    name = "paceline_script_" + re.sub(r"\W", "_", path.stem)
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    _search_first(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # compilers and picklers look a class up by the name of its module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
