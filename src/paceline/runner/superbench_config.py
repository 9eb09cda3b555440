"""SuperBench's config files as suites: benchmarks, modes and parameters, and what has no counterpart, with why.

A benchmark of a config is `NAME[:note]` with modes (how many processes, and what starts them) and parameters. What it
measures keeps its name in `superbench`, so that results can be written under the keys that they had. The first half of
this file says which benchmarks of ours measure what SuperBench's do, the second reads the files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import InputError, located, nearest, unknown
from paceline.core.quantity import parse_size
from paceline.core.suite import Suite
from paceline.runner.superbench_modes import LOCAL, MODE_KEYS, MODES, LeftOut, read_count, read_mode

MODELS_BENCHMARK = "model-benchmarks"
_STEADY = "a measurement warms up until it is steady, and ends when it is precise enough"
_CHECKED = "results are always checked"
_PROGRAM = "no program of SuperBench's is started"
_NO_FORMAT = "no product is measured in this number format"
_ON_DEVICE = "the data is made on the device"
_OWN_SHAPE = "the model has its own shape: 'paceline show MODEL' names it, and generated/... takes others"


@dataclass(frozen=True)
class Unmapped:
    """Something that is not measured, or not in that way."""

    what: str  # which follows the name of the benchmark: `, parameters, graph_iters`; empty for the benchmark itself
    why: str
    is_needless: bool = False  # it changes nothing of what is measured here


_ALL_NODES = {"type": "all-nodes"}
# What describes a pattern, and what it is called here.
_PATTERN_KEYS = {
    "batch": "batch",
    "ibnetdiscover": "topology",
    "ibstat": "ibstat",
    "min_dist": "min_distance",
    "max_dist": "max_distance",
}
Made = Iterator[dict[str, Any] | Unmapped]


class _Taking:
    """Parameters that are taken one by one; what is left over has no counterpart."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.left = dict(parameters)
        self.known: set[str] = set()  # what was asked for

    def one(self, key: str, default: Any = None) -> Any:
        """A parameter; the default where it is not given."""
        self.known.add(key)
        value = self.left.pop(key, None)
        return default if value is None else value

    def several(self, key: str, default: list[Any]) -> list[Any]:
        """A list, or the words of a text."""
        value = self.one(key, default)
        return list(value) if isinstance(value, list) else str(value).split()

    def steps(self) -> dict[str, Any]:
        """Exactly so many steps, or as many as fit into a time."""
        steps, duration = self.one("num_steps"), self.one("duration", 0)
        return {**({"steps": steps} if steps else {}), **({"budget": duration} if duration else {})}


def counterpart(name: str, parameters: Mapping[str, Any], *, pattern: Mapping[str, Any] = _ALL_NODES) -> Made:
    """The entries of a suite that measure what this benchmark does, and what of it they do not."""
    if name in _MISSING or name not in _MAPPED:
        unknown_name = f"no benchmark of this name is known{_guess(name, [*_MAPPED, *_MISSING])}"
        yield Unmapped("", _MISSING.get(name, unknown_name))
        return
    kind = str(pattern.get("type", "all-nodes"))
    if kind in ("pair-wise", "k-batch", "topo-aware"):
        yield Unmapped(f", pattern, {kind}", "pairs are measured by 'pairs', whose results have other names")
        keys = {_PATTERN_KEYS[key]: value for key, value in pattern.items() if key in _PATTERN_KEYS and value}
        by = {"by": "rdma"} if name.startswith("ib-") else {}
        yield {"benchmark": "pairs", "target": "auto:*", "pattern": kind, **by, **keys}
        pattern = {key: value for key, value in pattern.items() if key not in _PATTERN_KEYS}
    elif kind != "all-nodes":
        yield Unmapped(f", pattern, {kind}", "known are all-nodes, pair-wise, k-batch and topo-aware")
    for key in set(pattern) - {"type", "mpi_pattern"}:
        yield Unmapped(f", pattern, {key}", f"the pattern {kind} does not use it")
    if kind in ("pair-wise", "k-batch", "topo-aware"):
        return
    take = _Taking(parameters)
    yield from _MAPPED[name](take)
    for key, value in take.left.items():
        if value in _NO_NEWS.get(key, ()):
            continue
        if key in _NEEDLESS:
            yield Unmapped(f", parameters, {key}", _NEEDLESS[key], is_needless=True)
        else:
            without = f"it has no counterpart{_guess(key, [*take.known, *_NEEDLESS, *_WITHOUT], SLIP)}"
            yield Unmapped(f", parameters, {key}", _WITHOUT.get(key, without))


SLIP = 0.85  # how alike a parameter and a known one are; many that SuperBench has are known to nobody here


def _guess(name: object, known: Iterable[str], cutoff: float = 0.5) -> str:
    """`: did you mean ...?`, where a known name is like this one."""
    guess = nearest(str(name), known, cutoff=cutoff)
    return f": did you mean '{guess}'?" if guess else ""


def _no_such_key(key: object, known: Iterable[str]) -> str:
    return f"there is no such key{_guess(key, known)}"


# Parameters of any benchmark that our way of measuring makes needless.
_NEEDLESS = {
    **dict.fromkeys(("num_warmup", "num_warm_up", "warmup_iters", "num_loops", "iters", "num_in_step"), _STEADY),
    **dict.fromkeys(("num_steps", "interval", "n_warmup", "n_iters"), _STEADY),
    **dict.fromkeys(("check_data", "check", "correctness", "eps"), _CHECKED),
    **dict.fromkeys(("bin_dir", "tolerant_fail", "log_raw_data", "log_flushing", "log_n_steps", "cpu_arch"), _PROGRAM),
    **dict.fromkeys(("sample_count", "pin_memory", "num_workers"), _ON_DEVICE),
}
# Parameters of any benchmark whose values change what SuperBench measures, but not what is measured here.
_WITHOUT = {
    **dict.fromkeys(
        ("seq_len", "seq_length", "hidden_size", "input_size", "num_hidden_layers", "num_attention_heads"), _OWN_SHAPE
    ),
    "duration": "steps are counted, not timed",
    "graph_iters": "collectives are launched one by one, not as a graph",
    "config_json_str": "give the functions as 'functions' of blas-functions or dnn-functions",
    "distributed_impl": "ranks are joined by DDP",
    "distributed_backend": "ranks are joined by the library of their devices",
    "optimizer_eps": "optimizers have their usual settings",
}
# Values that ask for nothing.
_NO_NEWS: dict[str, tuple[Any, ...]] = {"duration": (0,), "tolerant_fail": (True, False), "correctness": (False,)}


def _same(benchmark: str, **more: Any) -> Callable[[_Taking], Made]:
    """One entry without parameters."""
    return lambda take: iter([{"benchmark": benchmark, **more}])


_GEMM_FORMATS: dict[str, dict[str, Any]] = {
    "fp64": {"precision": "fp64", "tensor_cores": "off"},
    "fp32": {"precision": "fp32"},
    "fp16": {"precision": "fp16", "tensor_cores": "off"},
    "fp64_tc": {"precision": "fp64"},
    "tf32_tc": {"precision": "tf32"},
    "bf16_tc": {"precision": "bf16"},
    "fp16_tc": {"precision": "fp16"},
    "int8_tc": {"precision": "int8"},
}


def _gemm_flops(take: _Taking) -> Made:
    given = {key: take.one(key) for key in ("m", "n", "k")}
    shape = {key: value or 16384 for key, value in given.items()} if any(given.values()) else {}
    for one in take.several("precision", list(_GEMM_FORMATS)):
        if one in _GEMM_FORMATS:
            yield {"benchmark": "gemm", **_GEMM_FORMATS[one], **shape}
        else:
            yield Unmapped(f", precision, {one}", _NO_FORMAT)


def _blaslt_gemm(take: _Taking) -> Made:
    formats = {
        "fp8e4m3": "fp8",
        "fp8": "fp8",
        "fp4e2m1": "fp4",
        **{name: name for name in ("fp64", "fp32", "fp16", "bf16", "int8")},
    }
    route = {"route": "autotuned"} if take.one("enable_autotune") else {}
    batch, types = max(1, int(take.one("batch", 1))), take.several("in_types", ["fp8e4m3"])
    yield from (Unmapped(f", in_types, {one}", _NO_FORMAT) for one in types if one not in formats)
    for shape in take.several("shapes", [f"{edge},{edge},{edge}" for edge in (2048, 4096, 8192)]):
        sizes = str(shape).split(",")
        if len(sizes) != 3 or not all(map(str.isdecimal, sizes)):
            yield Unmapped(f", shapes, {shape}", "write out a range, each shape as m,n,k")
            continue
        m, n, k = map(int, sizes)
        for one in (one for one in types if one in formats):
            yield {"benchmark": "gemm", "precision": formats[one], "m": m, "n": n, "k": k, "batch": batch, **route}


def _gpu_burn(take: _Taking) -> Made:
    single = "tf32" if take.one("tensor_core", False) else "fp32"
    formats = ["fp64" if take.one("doubles", False) else single]
    yield {"benchmark": "burn", "duration": take.one("time", 10), "formats": formats, "target": "auto:each"}


def _matmul(take: _Taking) -> Made:
    shape = {key: value for key in ("m", "n", "k") if (value := take.one(key)) is not None}
    yield {"benchmark": "matmul", **shape, **take.steps()}


def _sharding_matmul(take: _Taking) -> Made:
    shape = {key: value for key in ("m", "n", "k") if (value := take.one(key)) is not None}
    modes = {"allreduce": "all-reduce", "allgather": "all-gather"}
    for mode in take.several("mode", list(modes)):
        if mode in modes:
            yield {"benchmark": "sharding-matmul", "mode": modes[mode], **shape, "target": "auto:*"}
        else:
            yield Unmapped(f", mode, {mode}", "'matmul' measures the undivided product")


def _mem_bw(take: _Taking) -> Made:
    ways = {"htod": "h2d", "dtoh": "d2h", "dtod": "d2d"}
    for one in take.several("memory", list(ways)):
        yield {"benchmark": "copy", "direction": ways[one]} if one in ways else Unmapped(f", memory, {one}", "unknown")


def _gpu_copy_bw(take: _Taking) -> Made:
    patterns = {"dtod": {}, **{name: {"pattern": name.replace("_", "-")} for name in _PATTERNS}}
    kinds, size = take.several("mem_type", ["htod", "dtoh", "dtod"]), take.one("size")
    engines = {"sm": "sm", "dma": "engine"}
    for one, copier in itertools.product(kinds, take.several("copy_type", ["sm", "dma"])):
        by = {"by": engines.get(copier, copier)}
        if one in patterns:
            yield {"benchmark": "p2p", "target": "auto", **patterns[one], **by, **({"size": size} if size else {})}
        elif one in ("htod", "dtoh"):
            sizes = {"sizes": [size]} if size else {}
            way = "h2d" if one == "htod" else "d2h"
            yield {"benchmark": "copy", "direction": way, "numa_node": "each", **by, **sizes}
        else:
            yield Unmapped(f", mem_type, {one}", "no such copies are measured")


_PATTERNS = ("one_to_all", "all_to_one", "all_to_all")
_OPERATIONS = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
}
_ELEMENTS = {"float": "fp32", "half": "fp16", "bfloat16": "bf16"}


def _collective(take: _Taking) -> Made:
    devices = read_count("ngpus", take.one("ngpus"))
    least, most = (parse_size(_binary(take.one(key, value))) for key, value in (("minbytes", "8"), ("maxbytes", "8G")))
    given = int(take.one("stepfactor", 2))
    factor = max(2, given)
    if factor != given:
        yield Unmapped(f", parameters, stepfactor, {given}", "sizes grow by a factor of at least 2, and so by 2")
    sizes = list(itertools.takewhile(lambda size: size <= most, (least * factor**power for power in range(64))))
    kind, in_place = str(take.one("data_type", "float")), take.one("in_place")
    if kind not in _ELEMENTS:
        yield Unmapped(f", data_type, {kind}", _NO_FORMAT)
    more = {"in_place": in_place} if in_place is not None else {}
    more |= {"most_devices": devices} if devices is not None else {}
    for one in take.several("operation", ["allreduce"]):
        if one in _OPERATIONS and kind in _ELEMENTS:
            fixed = {"operation": _OPERATIONS[one], "precision": _ELEMENTS[kind], "sizes": sizes, "target": "auto:*"}
            yield {"benchmark": "collective", **fixed, **more}
        elif one not in _OPERATIONS:
            yield Unmapped(f", operation, {one}", "no such collective is measured")


def _binary(size: object) -> str:
    """8G of nccl-tests, which are GiB."""
    text = str(size)
    return f"{text}iB" if text[-1:] in "KMG" else text


def _rdma(take: _Taking) -> Made:
    size, adapters = take.one("msg_size"), take.several("adapters", [])
    commands = take.several("commands", ["ib_write_bw"])
    for command, adapter in itertools.product(commands, adapters or [None]):
        operation = str(command).removeprefix("ib_").removesuffix("_bw")
        if operation not in ("write", "read", "send"):
            yield Unmapped(f", commands, {command}", "bandwidths of write, read and send are measured")
            continue
        device = {"device": f"mlx5_{adapter}"} if adapter is not None else {}
        sizes = {"sizes": [size]} if size else {}
        fixed = {"operation": operation, "measure": "bandwidth", "target": "cpu"}
        yield {"benchmark": "rdma", **fixed, **device, **sizes}


def _traffic(take: _Taking) -> Made:
    pattern = take.one("pattern", "one-to-one")
    if pattern == "one-to-one":
        yield {"benchmark": "pairs", "by": "rdma", "target": "auto:*"}
    else:
        yield Unmapped(f", pattern, {pattern}", "hosts meet in pairs, or all of them at once ('pairs')")


def _stream_on_cpu(take: _Taking) -> Made:
    cores = take.several("cores", [])
    if cores:
        yield Unmapped(", parameters, cores", "as many threads, not bound to these cores; --affinity binds them")
    yield {"benchmark": "stream", "target": "cpu", **({"threads": len(cores)} if cores else {})}


def _memory_latency(take: _Taking) -> Made:
    pairs = {"target": "cpu", "numa_node": "each", "memory_node": "each"}
    tests: dict[str, dict[str, Any]] = {
        "latency_matrix": {"benchmark": "memory-latency", **pairs},
        "bandwidth_matrix": {"benchmark": "stream", "mix": "reads", **pairs},
        "max_bandwidth": {"benchmark": "stream", "mix": ["reads", "3r1w", "2r1w", "1r1w"], "target": "cpu"},
    }
    for test in take.several("tests", list(tests)):
        yield tests.get(test) or Unmapped(f", tests, {test}", "no such test is measured")


def _hpl(take: _Taking) -> Made:
    given = {"n": take.one("problemSize"), "nb": take.one("blockSize")}
    yield {"benchmark": "hpl", "target": "cpu", **{key: int(value) for key, value in given.items() if value}}


def _disk(take: _Taking) -> Made:
    patterns = {
        f"{order}_{kind}": (order, kind) for order in ("seq", "rand") for kind in ("read", "write", "readwrite")
    }
    devices = take.several("block_devices", [])
    for device in (device for device in devices if not Path(device).exists()):
        yield Unmapped(f", block_devices, {device}", "this machine has no such device")
    devices = [device for device in devices if Path(device).exists()]
    if not devices:
        yield Unmapped(", block_devices", "no device is left, so there is nothing to measure")
    seconds = {name: float(take.one(f"{name}_runtime", 0)) for name in patterns}
    for key in ("seq_precond_time", "rand_precond_time"):
        if take.one(key, 0):
            yield Unmapped(f", parameters, {key}", "devices are not written to before they are measured")
    chosen = {name: time for name, time in seconds.items() if time} or dict.fromkeys(("seq_read", "rand_read"), 60.0)
    for name, time in chosen.items():
        order, kind = patterns[name]
        if kind != "read":
            yield Unmapped(f", {name}", "it overwrites the device: 'disk' does so with destroy_data alone")
            continue
        for device in devices:
            pattern = "read" if order == "seq" else "random-read"
            yield {"benchmark": "disk", "target": "cpu", "pattern": pattern, "raw_device": device, "budget": time}


_MODEL_FORMATS = {"float16": "fp16", "bfloat16": "bf16", "fp8_hybrid": "fp8_hybrid", "fp8_e4m3": "fp8_e4m3"}


def _models(take: _Taking) -> Made:
    from paceline.models import MODELS

    batch, steps = take.one("batch_size"), take.steps()
    is_exact, deterministic = take.one("force_fp32", False), take.one("enable_determinism", False)
    more = {**({"batch_size": batch} if batch else {}), **steps, **({"deterministic": True} if deterministic else {})}
    formats, actions = take.several("precision", ["float32", "float16"]), take.several("model_action", ["train"])
    for model in take.several("models", []):
        if model not in MODELS.registry().entries:
            yield Unmapped(f", models, {model}", "it is not a model of the zoo ('paceline list models')")
            continue
        for action, one in itertools.product(actions, formats):
            entry = {"benchmark": action, "model": model, **more}
            if action not in ("train", "inference"):
                yield Unmapped(f", model_action, {action}", "models train or infer")
            elif one == "float32" and not is_exact:  # there, products take TF32 where a GPU has it
                yield {**entry, "precision": "tf32", "only_on": "gpu"}
                yield {**entry, "precision": "fp32", "only_on": "cpu"}
            elif one == "float32":
                yield {**entry, "precision": "fp32"}
            elif one in _MODEL_FORMATS:
                yield {**entry, "precision": _MODEL_FORMATS[one]}
            else:
                yield Unmapped(f", precision, {one}", "models are not computed in this format")


def _tensorrt_inference(take: _Taking) -> Made:
    from paceline.models import MODELS

    formats = {"float32": "tf32", "fp32": "tf32", "float16": "fp16", "fp16": "fp16"}  # as trtexec has it by itself
    precision, batch = take.one("precision", "int8"), take.one("batch_size", 32)
    models = take.several("pytorch_models", ["resnet50", "resnet101", "vgg16"])
    if precision not in formats:
        yield Unmapped(f", precision, {precision}", "an engine in it takes data to calibrate with; use float16")
        return
    for model in models:
        if model in MODELS.registry().entries:
            fixed = {"engine": "tensorrt", "precision": formats[precision], "batch_size": batch}
            yield {"benchmark": "inference", "model": model, **fixed}
        else:
            yield Unmapped(f", pytorch_models, {model}", "it is not a model of the zoo ('paceline list models')")


_MAPPED: dict[str, Callable[[_Taking], Made]] = {
    "kernel-launch": _same("kernel-launch"),
    "gemm-flops": _gemm_flops,
    "cublaslt-gemm": _blaslt_gemm,
    "hipblaslt-gemm": _blaslt_gemm,
    "matmul": _matmul,
    "sharding-matmul": _sharding_matmul,
    "computation-communication-overlap": _same("compute-during-collective", target="auto:*"),
    "cublas-function": _same("blas-functions"),
    "cudnn-function": _same("dnn-functions"),
    "gpu-burn": _gpu_burn,
    "mem-bw": _mem_bw,
    "gpu-copy-bw": _gpu_copy_bw,
    "gpu-stream": _same("stream"),
    "cpu-stream": _stream_on_cpu,
    "cpu-memory-bw-latency": _memory_latency,
    "nccl-bw": _collective,
    "rccl-bw": _collective,
    "nccl-lat": _collective,
    "cpu-hpl": _hpl,
    "ib-loopback": _rdma,
    "ib-traffic": _traffic,
    "disk-benchmark": _disk,
    "tensorrt-inference": _tensorrt_inference,
    MODELS_BENCHMARK: _models,
}
_MISSING = {
    "ort-inference": "ONNX Runtime is not measured under this name; 'inference' takes --engine onnxruntime on a CPU",
    "gpu-sm-copy-bw": "'gpu-copy-bw' has copies by SM, under its own names",
    "nvbandwidth": "'copy' and 'p2p' measure these copies, under other names",
    **dict.fromkeys(
        ("dist-inference", "dist-inference-simulation"),
        "its model is its own; 'parallel' with mode: inference divides a transformer",
    ),
    "tcp-connectivity": "it goes to the hosts of a list: paceline run tcp --endpoints A:22,B:22",
    "gpcnet-network-test": "GPCNET is not started; 'pairs' and 'collective' measure the network",
    "gpcnet-network-load-test": "GPCNET is not started; 'pairs' and 'collective' measure the network",
    "megatron-gpt": "name the checkout and the layout: paceline run megatron-gpt, with --hosts over several",
    **dict.fromkeys(("megatron-deepseek-v2", "megatron-deepseek-v2-lite"), "this model is not in the zoo"),
    **dict.fromkeys(("onnxruntime-ort-models", "fambench"), "no container is started"),
    **{f"directx-gpu-{name}": "DirectX is not measured" for name in ("copy-bw", "mem-bw", "core-flops")},
    "directx-gpu-encoding-latency": "DirectX is not measured",
}


_OUTER = {"enable", "monitor", "env", "var", "benchmarks"}
_BENCHMARK = {"enable", "timeout", "modes", "frameworks", "models", "parameters"}
_MONITOR = "clocks, temperature, power, throttling and errors are in every record as series ('conditions', 'watched')"


def is_config(document: object) -> bool:
    """Whether a document is meant as a config of SuperBench's, which no suite of ours has at its top."""
    return isinstance(document, Mapping) and "superbench" in document


def read_config(document: Mapping[str, Any], name: str) -> Suite:
    """The config as a suite; its notes say what of it has no counterpart."""
    with located(name):
        inner = _mapping(document["superbench"], "superbench")
        left = LeftOut()
        left.notes += [f"superbench.{key}: {_no_such_key(key, _OUTER)}" for key in inner if key not in _OUTER]
        if isinstance(monitor := inner.get("monitor"), Mapping) and monitor.get("enable"):
            left.needless.append(f"superbench.monitor: {_MONITOR}")
        benchmarks = _mapping(inner.get("benchmarks"), "superbench.benchmarks")
        shared = _mapping(inner.get("env") or {}, "superbench.env")
        cases: list[dict[str, Any]] = []
        for title in _enabled(inner.get("enable"), benchmarks, left):
            entry = _mapping(benchmarks[title], title)
            left.notes += [f"{title}.{key}: {_no_such_key(key, _BENCHMARK)}" for key in entry if key not in _BENCHMARK]
            with located(title):
                for mode in _listed(entry, "modes") or [{"name": LOCAL}]:
                    try:
                        cases += _cases(title, entry, _mapping(mode, "modes"), shared, left)
                    except (TypeError, ValueError) as error:  # int() and its like, of what is no number
                        raise InputError("invalid-value", f"a value cannot be used: {error}") from None
        if not cases:
            why = [*left.notes, *left.needless] or ["no benchmark of it says 'enable: true'"]
            raise InputError("no-cases", "nothing of it can be measured:\n" + "\n".join(why))
        title = name.rpartition("/")[2].partition(".")[0]
        return Suite(name=title, cases=cases, notes=left.notes, needless=left.needless, asked=left.asked)


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError("not-a-mapping", f"'{where}' must be a mapping, but is {value!r}", key=where)
    return value


def _listed(entry: Mapping[str, Any], key: str) -> list[Any]:
    value = entry.get(key) or []
    if not isinstance(value, list):
        raise InputError("not-a-list", f"'{key}' must be a list, but is {value!r}", key=key, value=value)
    return value


def _enabled(chosen: object, benchmarks: Mapping[str, Any], left: LeftOut) -> list[str]:
    """Which benchmarks run: those that are named, otherwise those that say so."""
    if chosen:
        names = [str(name) for name in (chosen if isinstance(chosen, list) else [chosen])]
        for name in names:
            if name not in benchmarks:
                raise unknown("benchmark", name, benchmarks, key="superbench.enable")
        return names
    silent = [title for title, entry in benchmarks.items() if not isinstance(entry, Mapping) or "enable" not in entry]
    left.notes += [f"{title}: it does not say 'enable: true', so SuperBench leaves it out" for title in silent]
    return [title for title, entry in benchmarks.items() if isinstance(entry, Mapping) and entry.get("enable")]


def _cases(
    title: str, entry: Mapping[str, Any], mode: Mapping[str, Any], shared: Mapping[str, Any], left: LeftOut
) -> Iterator[dict[str, Any]]:
    """The entries of one benchmark in one mode."""
    kind = str(mode.get("name") or LOCAL)
    if kind not in MODES:
        raise unknown("mode", kind, MODES, key="modes")
    unknown_keys = [key for key in mode if key not in MODE_KEYS]
    left.notes += [f"{title}, mode {kind}, {key}: {_no_such_key(key, MODE_KEYS)}" for key in unknown_keys]
    name = title.partition(":")[0]
    is_of_models = name == MODELS_BENCHMARK or name.endswith("_models")
    frameworks = _listed(entry, "frameworks") or ["none"]
    for framework in frameworks:
        if framework not in ("none", "pytorch"):
            left.notes.append(f"{title}, frameworks, {framework}: models and products are measured by PyTorch alone")
    if not {"none", "pytorch"} & set(frameworks):
        return
    started = read_mode(title, kind, mode, _mapping(mode.get("env") or {}, "env"), left)
    variables = {str(key): str(value) for key, value in {**shared, **started.env}.items() if value is not None}
    keys: dict[str, Any] = {"env": variables} if variables else {}
    if timeout := entry.get("timeout"):
        keys["timeout"] = max(60, timeout) if isinstance(timeout, int | float) else timeout
    prefix = "pytorch-" if "pytorch" in frameworks and not is_of_models else ""
    keys["superbench"] = f"{prefix}{title}"
    parameters = dict(_mapping(entry.get("parameters") or {}, "parameters"))
    if run_count := parameters.pop("run_count", None):
        keys["repeat"] = run_count
    if started.adapters is not None:
        parameters["adapters"] = started.adapters
    if is_of_models:
        name, parameters["models"] = MODELS_BENCHMARK, _listed(entry, "models")
    pattern = _mapping(mode.get("pattern") or {}, "pattern")
    for made in counterpart(name, parameters, pattern=pattern):
        if isinstance(made, Unmapped):
            (left.needless if made.is_needless else left.notes).append(f"{title}{made.what}: {made.why}")
        else:
            yield started.place(made, keys, left)
