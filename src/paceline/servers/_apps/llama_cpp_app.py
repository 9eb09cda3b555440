"""llama.cpp's own server from its wheel: MODEL NAME HOST PORT CONTEXT PARALLEL SEED THREADS GPU_LAYERS."""

from __future__ import annotations

import signal
import sys

import xllamacpp


def main(model: str, name: str, host: str, *numbers: str) -> None:
    """Serve until somebody ends it."""
    port, context, parallel, seed, threads, gpu_layers = map(int, numbers)
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.model_alias = model, {name}
    settings.hostnames, settings.port, settings.endpoint_metrics = [host], port, True
    settings.n_parallel, settings.n_ctx, settings.warmup = parallel, parallel * context, False
    settings.sampling.seed, settings.n_gpu_layers = seed, gpu_layers
    if threads:
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)  # noqa: T201 -- in its log
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
