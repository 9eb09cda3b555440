"""SuperBench's names and units for micro benchmarks and others that it also has: a small function for each of ours.

A function is told the case and says under which benchmark of SuperBench it goes, which of that benchmark's metrics it
yields, and how to read them from a record. Times are means, as there; so are rates but where it says so. What
SuperBench measures on a GPU alone carries a note when it was measured on a CPU, so that it never passes for the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.core.case import Case
from paceline.core.record import At, Measurement, Record

Values = dict[str, float]
Reading = Callable[[Record], Values]

MS, US, NS = 1e-3, 1e-6, 1e-9
TERA, GIGA, MEGA = 1e12, 1e9, 1e6
GIBI = 2.0**30


@dataclass(frozen=True)
class Names:
    """Where a case stands among SuperBench's results."""

    benchmark: str
    part: str  # which of the benchmark's metrics; cases of different parts share no key
    figures: Reading
    note: str = ""  # what sets it apart from what SuperBench measures under this name


def names_of(case: Case) -> Names | None:
    """SuperBench's names for a case, if it has them."""
    find = BENCHMARKS.get(case.benchmark)
    return find(case) if find else None


def word(value: object) -> str:
    """A value as a part of a key: without the signs that divide keys."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text)


def _kernel_launch(case: Case) -> Names:
    return Names("kernel-launch", "", _read({"event_time": ("event_time", MS), "wall_time": ("wall_time", MS)}))


def _gemm(case: Case) -> Names | None:
    precision = _text(case, "precision", "fp32")
    if precision == "fp8":
        return Names("cublaslt-gemm", _text(case, "size", ""), _fp8_gemm, _on_cpu(case))
    # Of fp32 the plain units are measured either way; tf32 is what Tensor Cores make of it.
    on_units = _on_gpu(case) and _text(case, "tensor_cores", "auto") == "auto" and precision != "fp32"
    key = f"{precision}{'_tc' if on_units else ''}_{'iops' if precision == 'int8' else 'flops'}"
    return Names("gemm-flops", key, _read({key: ("compute_rate", GIGA)}), _on_cpu(case))


def _fp8_gemm(record: Record) -> Values:
    shape = record.facts.get("shape")
    rate = record.measurement("compute_rate")
    if not isinstance(shape, dict) or rate is None:
        return {}
    # There, no batch is written as 0.
    batch = 0 if shape.get("batch", 1) == 1 else shape["batch"]
    parts = "_".join(str(size) for size in (batch, shape.get("m"), shape.get("n"), shape.get("k")))
    return {f"fp8e4m3_{parts}_flops": rate.summary.mean / 1e12}


def _matmul(case: Case) -> Names:
    def figures(record: Record) -> Values:
        # There, every call is waited for.
        key = "nosharding_time"
        return _read({key: ("latency", MS)})(record) or _read({key: ("time", MS)})(record)

    return Names("pytorch-matmul", "", figures, _on_cpu(case))


def _sharding_matmul(case: Case) -> Names:
    key = f"{_joined(_text(case, 'mode', ''))}_time"
    return Names("pytorch-sharding-matmul", key, _read({key: ("time", MS)}), _on_cpu(case))


def _overlap(case: Case) -> Names:
    keys = {"mul_time": ("multiply_time_together", MS), "matmul_time": ("matmul_time_together", MS)}
    return Names("pytorch-computation-communication-overlap", "", _read(keys), _on_cpu(case))


def _blas_functions(case: Case) -> Names:
    is_single = _text(case, "precision", "fp32") in ("fp32", "tf32")
    functions = (
        ("cublassgemm", "cublassgemmstridedbatched") if is_single else ("cublasgemmex", "cublasgemmstridedbatchedex")
    )

    def figures(record: Record) -> Values:
        shapes = {one.get("function"): one for one in _listed(record, "functions")}
        return {
            f"name_{_blas_name(functions, point.at['function'], shapes)}_time": point.summary.mean / US
            for point in _points(record, "time", ("function",))
        }

    return Names("cublas-function", "", figures, _on_cpu(case))


def _blas_name(functions: tuple[str, str], function: object, shapes: dict[Any, dict[str, Any]]) -> str:
    shape = shapes.get(function, {})
    batched = shape.get("batch", 1) > 1
    told = {"batchcount": shape.get("batch")} if batched else {}
    told |= {key: shape[key] for key in ("k", "m", "n") if key in shape}
    told |= {f"trans{side}": int(shape[f"transpose_{side}"]) for side in "ab" if f"transpose_{side}" in shape}
    return f"{functions[batched]}_" + ("_".join(f"{key}_{value}" for key, value in told.items()) or word(function))


def _dnn_functions(case: Case) -> Names:
    passes = {"forward": "forward", "backward-data": "backwarddata", "backward-weight": "backwardfilter"}

    def figures(record: Record) -> Values:
        found: Values = {}
        for point in _points(record, "time", ("function", "pass")):
            way = passes.get(str(point.at["pass"]), word(point.at["pass"]))
            found[f"name_cudnnconvolution{way}_{word(point.at['function'])}_time"] = point.summary.mean / US
        return found

    return Names("cudnn-function", "", figures, _on_cpu(case))


def _copy(case: Case) -> Names | None:
    direction = _text(case, "direction", "auto")
    if direction == "auto":
        direction = "d2d" if _on_gpu(case) else "h2h"
    if direction not in ("h2d", "d2h", "d2d") or case.parameters.get("both"):
        return None
    key = f"{direction}_bw"
    memory = _text(case, "host_memory", "pinned")
    note = "" if memory == "pinned" or direction == "d2d" else f"host_memory={word(memory)}"
    # There, a copy within the device counts what is read and what is written.
    unit = GIGA / 2 if direction == "d2d" else GIGA
    return Names("mem-bw", key, _read({key: ("bandwidth", unit)}), note)


def _peer_copy(case: Case) -> Names:
    def figures(record: Record) -> Values:
        return {
            f"gpu{point.at['from']}_to_gpu{point.at['to']}_write_by_dma_bw": point.summary.mean / GIGA
            for point in _points(record, "bandwidth", ("from", "to"))
        }

    return Names("gpu-copy-bw", "", figures)


def _stream(case: Case) -> Names:
    kernels = ("copy", "scale", "add", "triad")
    if not _on_gpu(case):

        def on_cpu(record: Record) -> Values:
            threads = record.facts.get("threads")
            found = {"threads": float(threads)} if isinstance(threads, int) else {}
            for kernel in kernels:
                rate, seconds = record.measurement(f"{kernel}_bandwidth"), record.measurement(f"{kernel}_time")
                if rate is not None:
                    found[f"{kernel}_throughput"] = rate.summary.maximum / MEGA  # there, of the fastest pass
                if seconds is not None:
                    found[f"{kernel}_time_avg"] = seconds.summary.mean
                    found[f"{kernel}_time_min"] = seconds.summary.minimum
                    found[f"{kernel}_time_max"] = seconds.summary.maximum
            return found

        return Names("cpu-stream", "", on_cpu)

    def on_gpu(record: Record) -> Values:
        index = case.target.partition(":")[2] or "0"
        sizes = record.facts.get("array_sizes")
        buffer = f"_buffer_{sizes[-1]}" if isinstance(sizes, list) and sizes else ""
        middle = f"double_gpu_{word(index)}{buffer}"
        keys = {f"STREAM_{kernel.upper()}_{middle}_bw": (f"{kernel}_bandwidth", GIGA) for kernel in kernels}
        return _read(keys)(record)

    return Names("gpu-stream", "", on_gpu)


def _memory_latency(case: Case) -> Names:
    def figures(record: Record) -> Values:
        node = record.facts.get("numa_node")
        key = f"mem_bandwidth_matrix_numa_{node}_{node}_lat" if isinstance(node, int) else "mem_latency_lat"
        by_size = {
            f"mem_latency_{point.at['size']}_lat": point.summary.mean / NS
            for point in _points(record, "latency", ("size",))
        }
        return _read({key: ("latency", NS)})(record) | by_size

    return Names("cpu-memory-bw-latency", "", figures)


def _collective(case: Case) -> Names:
    backend = _text(case, "backend", "auto")
    if backend == "auto":
        backend = "nccl" if _on_gpu(case) else "gloo"
    operation = _joined(_text(case, "operation", "all-reduce"))
    metrics = {"time": ("time", US), "algbw": ("algorithm_bandwidth", GIGA), "busbw": ("bus_bandwidth", GIGA)}

    def figures(record: Record) -> Values:
        return {
            f"{operation}_{point.at['size']}_{key}": point.summary.mean / unit
            for key, (metric, unit) in metrics.items()
            for point in _points(record, metric, ("size",))
        }

    return Names(f"{word(backend)}-bw", operation, figures)


def _tcp(case: Case) -> Names:
    def figures(record: Record) -> Values:
        hosts = [host for host in record.facts.get("hosts") or [] if isinstance(host, str)]
        found: Values = {}
        for host in hosts:
            at: At = {"host": host} if len(hosts) > 1 else {}  # the only host's figures are the case's own
            made, rate = record.measurement("connect_time", at=at), record.measurement("success_rate", at=at)
            if made is None or rate is None:
                continue
            attempts = round(100.0 * made.summary.count / rate.value)
            seconds = {"min": made.summary.minimum, "max": made.summary.maximum, "avg": made.summary.mean}
            found |= {f"{word(host)}_time_{key}": value / MS for key, value in seconds.items()}
            found[f"{word(host)}_successed_count"] = float(made.summary.count)
            found[f"{word(host)}_failed_count"] = float(attempts - made.summary.count)
            found[f"{word(host)}_success_rate"] = rate.value
        return found

    return Names("tcp-connectivity", "", figures)


def _rdma(case: Case) -> Names | None:
    if case.parameters.get("peer") is not None:
        return None  # there, two hosts are named by their place in a pattern of traffic
    operation = _text(case, "operation", "write")

    def figures(record: Record) -> Values:
        return {
            f"ib_{operation}_bw_{point.at['size']}:0": point.summary.mean / GIGA
            for point in _points(record, "bandwidth_average", ("size",))
        }

    return Names("ib-loopback", operation, figures)


def _disk(case: Case) -> Names:
    pattern = _text(case, "pattern", "read")
    order = "rand" if pattern.startswith("random") else "seq"
    kind = pattern.removeprefix("random-")
    job = f"{order}_{'readwrite' if kind == 'mixed' else kind}"

    def figures(record: Record) -> Values:
        device = word(_text(case, "raw_device", "").rpartition("/")[2]) or "file"
        block = record.facts.get("block_size")
        found = {f"{device}_{job}_bs": float(block)} if isinstance(block, int | float) else {}
        sides: dict[str, At] = (
            {side: {"direction": side} for side in ("read", "write")} if kind == "mixed" else {kind: {}}
        )
        for side, at in sides.items():
            start = f"{device}_{job}_{side}"
            found |= _read({f"{start}_iops": ("iops", 1.0)}, at)(record)
            latency = record.measurement("latency", at=at)
            for name, value in (latency.summary.percentiles if latency else {}).items():
                if name in ("95", "99", "99.9"):
                    found[f"{start}_lat_ns_{float(name):.1f}"] = value / NS
        return found

    return Names("disk-benchmark", job, figures)


def _megatron_gpt(case: Case) -> Names:
    start = f"{word(_text(case, 'precision', 'bf16'))}_train"
    keys = {
        f"{start}_step_time": ("step_time", MS),
        f"{start}_throughput": ("throughput", 1.0),  # of all ranks together, there too
        f"{start}_tflops": ("flops_per_gpu", TERA),
    }
    memory = {f"{start}_mem_allocated": "device_memory", f"{start}_max_mem_allocated": "peak_device_memory"}

    def figures(record: Record) -> Values:
        found = _read(keys)(record)
        for key, metric in memory.items():  # there, the mean of the ranks that tell it
            ranks = [m.value for m in record.measurements if m.metric.name == metric and m.scope]
            if ranks:
                found[key] = sum(ranks) / len(ranks) / GIBI
        return found

    return Names("megatron-gpt", start, figures, _on_cpu(case))


BENCHMARKS: dict[str, Callable[[Case], Names | None]] = {
    "kernel-launch": _kernel_launch,
    "gemm": _gemm,
    "matmul": _matmul,
    "sharding-matmul": _sharding_matmul,
    "compute-during-collective": _overlap,
    "blas-functions": _blas_functions,
    "dnn-functions": _dnn_functions,
    "copy": _copy,
    "p2p": _peer_copy,
    "stream": _stream,
    "memory-latency": _memory_latency,
    "collective": _collective,
    "tcp": _tcp,
    "rdma": _rdma,
    "disk": _disk,
    "megatron-gpt": _megatron_gpt,
}


def _read(keys: dict[str, tuple[str, float]], at: At | None = None) -> Reading:
    """A reading of metrics of the whole case, or of one point, each in its unit."""

    def figures(record: Record) -> Values:
        found = {key: (record.measurement(metric, at=at), unit) for key, (metric, unit) in keys.items()}
        return {key: measured.summary.mean / unit for key, (measured, unit) in found.items() if measured}

    return figures


def _points(record: Record, metric: str, axes: tuple[str, ...]) -> list[Measurement]:
    return [m for m in record.measurements if m.metric.name == metric and tuple(m.at) == axes and not m.scope]


def _listed(record: Record, key: str) -> list[dict[str, Any]]:
    found = record.facts.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _text(case: Case, key: str, otherwise: str) -> str:
    value = case.parameters.get(key)
    return otherwise if value is None else str(value)


def _joined(operation: str) -> str:
    """all-reduce as SuperBench writes it."""
    return word(operation).replace("-", "")


def _on_gpu(case: Case) -> bool:
    return case.target.startswith("cuda")


def _on_cpu(case: Case) -> str:
    return "" if _on_gpu(case) else "target=cpu"
