"""llama.cpp's own server from its wheel: MODEL NAME HOST KIND PORT CONTEXT PARALLEL SEED THREADS GPU_LAYERS.

KIND is text, embeddings or rerank.
"""

from __future__ import annotations

import signal
import sys

import xllamacpp


def main(model: str, name: str, host: str, kind: str, *numbers: str) -> None:
    """Serve until somebody ends it."""
    port, context, parallel, seed, threads, gpu_layers = map(int, numbers)
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.model_alias = model, {name}
    settings.hostnames, settings.port, settings.endpoint_metrics = [host], port, True
    settings.n_parallel, settings.n_ctx, settings.warmup = parallel, parallel * context, False
    settings.sampling.seed, settings.n_gpu_layers = seed, gpu_layers
    if kind != "text":
        settings.embedding, settings.n_batch, settings.n_ubatch = True, context, context  # a text is one batch
    if kind == "rerank":
        settings.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    if threads:
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)  # noqa: T201 -- in its log
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
