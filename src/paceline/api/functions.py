"""`@paceline.benchmark`: a function of the user's own becomes a benchmark, its keywords become parameters."""

from __future__ import annotations

import inspect
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, update_wrapper
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, get_type_hints, overload

from paceline.core.errors import InputError
from paceline.core.registry import PlugIn, file_used
from paceline.core.shipping import SUFFIX, ship, unship

if TYPE_CHECKING:
    from paceline.api.result import Result
    from paceline.core.benchmark import Benchmark

P = ParamSpec("P")
R = TypeVar("R")
_SEED = "seed"  # which every benchmark has, and a function may take
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class BenchmarkFunction(PlugIn, Generic[P, R]):
    """A function that can still be called, and that is a benchmark."""

    def __init__(self, function: Callable[P, R], name: str) -> None:
        self.function = function
        self.name = name
        update_wrapper(self, function)

    def __call__(self, *arguments: P.args, **more: P.kwargs) -> R:
        return self.function(*arguments, **more)

    def __reduce__(self) -> Any:
        return type(self), (self.function, self.name)

    def run(self, **parameters: Any) -> Result:
        """Measure it, as `paceline.run` does; a list of values measures each."""
        from paceline.api.run import run

        return run(self, **parameters)

    @cached_property
    def plugin(self) -> type[Benchmark[Any]]:
        """The benchmark; made when it is needed, as that imports more than a decorator should."""
        from pydantic import create_model
        from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

        from paceline.benchmarks._function import FunctionBenchmark
        from paceline.benchmarks._micro.parameters import MicroParameters
        from paceline.core.suite import CaseKeys

        fields: dict[str, Any] = {}
        signature = inspect.signature(self.function)
        hints = _hints(self.function)
        for name, one in signature.parameters.items():
            if one.kind not in _KINDS:
                raise self._refused("not-a-keyword", f"takes '{one}': a benchmark takes parameters by their names")
            if name != _SEED and (name in MicroParameters.model_fields or name in CaseKeys.model_fields):
                raise self._refused("name-taken", f"has a parameter '{name}', which every benchmark has: rename it")
            is_required = one.default is inspect.Parameter.empty
            guess = Any if is_required or one.default is None else type(one.default)
            fields[name] = (hints.get(name, guess), ... if is_required else one.default)
        try:
            parameters = create_model(f"{self.name}_parameters", __base__=MicroParameters, **fields)
        except (PydanticSchemaGenerationError, PydanticUserError, NameError) as error:
            first = str(error).splitlines()[0]
            why = f"has a parameter that is neither a number, a text, a truth value nor a list of such: {first}"
            raise self._refused("not-a-parameter", why) from None
        summary = next(iter((inspect.getdoc(self.function) or "").splitlines()), f"the function {self.name}")
        members = {
            "name": self.name,
            "summary": summary,
            "Parameters": parameters,
            "call": staticmethod(self.function),
            "arguments": tuple(signature.parameters),
            "__module__": self.function.__module__,
            "__doc__": summary,
        }
        return type(f"{self.function.__name__}_benchmark", (FunctionBenchmark,), members)

    def _refused(self, code: str, why: str) -> InputError:
        return InputError(code, f"the benchmark '{self.name}' {why}", value=self.name)


@overload
def benchmark(function: Callable[P, R], /) -> BenchmarkFunction[P, R]: ...
@overload
def benchmark(*, name: str) -> Callable[[Callable[P, R]], BenchmarkFunction[P, R]]: ...
def benchmark(function: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:
    """Make a benchmark of a function: `@paceline.benchmark`, or `@paceline.benchmark(name="my-decode")`.

    Its keyword parameters, with their annotations and defaults, become parameters of the benchmark, and the time of a
    call is the metric. `decode.run(batch=[8, 16])`, `paceline.run(decode, batch=8)` and, on the command line,
    `paceline run ./bench.py --batch 8,16` measure it.
    """

    def make(function: Callable[..., Any]) -> BenchmarkFunction[..., Any]:
        given = name or getattr(function, "__name__", "").replace("_", "-").strip("-")
        if not callable(function) or inspect.isclass(function) or not given or given.startswith("<"):
            message = f"@paceline.benchmark takes a function with a name, and not {function!r}"
            raise InputError("not-a-function", message)
        return BenchmarkFunction(function, given)

    return make if function is None else make(function)


def as_benchmark(function: Callable[..., Any]) -> BenchmarkFunction[..., Any]:
    """A function that may be one already."""
    return function if isinstance(function, BenchmarkFunction) else benchmark(function)


@contextmanager
def installed(function: BenchmarkFunction[..., Any]) -> Iterator[str]:
    """Let this process, and those that it starts, know the benchmark under its name, for a while."""
    from paceline.core.benchmark import BENCHMARKS

    if function.name in BENCHMARKS.registry().entries:
        message = (
            f"there is a benchmark '{function.name}' already: give yours another name, "
            f'as in @paceline.benchmark(name="my-{function.name}")'
        )
        raise InputError("name-taken", message, value=function.name)
    with TemporaryDirectory(prefix="paceline-function-") as folder:
        stem = f"function_{secrets.token_hex(4)}"
        path = Path(folder, f"{stem}.py")
        path.with_suffix(SUFFIX).write_bytes(ship(function, "the function"))
        path.write_text(f"from {__name__} import of_file\n\nfunction = of_file(__file__)\n", encoding="utf-8")
        with file_used(path) as name:
            spec = spec_from_file_location(name, path)
            assert spec is not None
            module = module_from_spec(spec)  # not executed: here the function is at hand
            vars(module)["function"] = function
            function.plugin.__module__ = name  # which processes that fork a case import beforehand
            sys.modules[name] = module
            try:
                yield function.name
            finally:
                del sys.modules[name]


def of_file(file: str) -> BenchmarkFunction[..., Any]:
    """The function next to the file that stands for it, in another process."""
    function: BenchmarkFunction[..., Any] = unship(Path(file).with_suffix(SUFFIX).read_bytes())
    return function


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):  # a name that exists for type checkers alone
        return {}
