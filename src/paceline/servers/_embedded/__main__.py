"""The server process: `python -m paceline.servers._embedded CONFIGURATION.json`.

Next to the configuration it writes `port` as soon as it listens, and `failure` with one sentence if it cannot serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.core.files import write_atomic
from paceline.servers._embedded.app import DRAIN, App, Regions, ServerConfiguration
from paceline.servers._embedded.engines import InferenceEngine, open_engine
from paceline.servers._embedded.grpc_server import GrpcServer
from paceline.servers._embedded.http import listen
from paceline.servers._embedded.language_service import LanguageService
from paceline.servers._embedded.openai_app import OpenAIApp
from paceline.servers._embedded.service import Policy, Service

if TYPE_CHECKING:
    from paceline.servers._embedded.paged_decoder import PagedDecoder

# Seconds that one thread may keep the interpreter while another waits: a finished batch must not wait for long until
# the event loop has finished what it is doing.
_SWITCH = 0.0005
_LAST_WORDS = 0.5  # seconds for answers over gRPC that are made already


class CannotServe(Exception):
    """Why the server ends before it is ready, in one sentence."""


async def serve(configuration: ServerConfiguration, folder: Path) -> None:
    """Listen, load, serve until a signal comes, then answer what was accepted."""
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    app: App | OpenAIApp
    if configuration.artifact is None:
        app = OpenAIApp(configuration.name)
    else:
        regions = Regions() if configuration.need.wire == "kserve-shm" else None
        app = App(configuration.name, configuration.engine, regions)
    host = configuration.host
    grpc_server = None
    with _explained(host, configuration.port):
        server, connections = await listen(app, host, configuration.port)
    if configuration.need.wire == "kserve-grpc" and isinstance(app, App):
        grpc_server = GrpcServer(app)
        with _explained(host, configuration.grpc_port):
            write_atomic(folder / "grpc_port", str(await grpc_server.listen(host, configuration.grpc_port)))
    write_atomic(folder / "port", str(server.sockets[0].getsockname()[1]))
    load = _load if configuration.artifact is not None else _load_language
    loading: asyncio.Future[Any] = asyncio.ensure_future(load(configuration, folder))
    stopping = asyncio.ensure_future(ending.wait())
    await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
    if loading.done():
        try:
            service = app.service = loading.result()
        except CannotServe:
            raise
        except Exception as error:
            raise CannotServe(f"the engine {configuration.engine} failed: {type(error).__name__}: {error}") from error
        print(f"{configuration.need.model} with {configuration.engine} is ready at {host}", flush=True)  # noqa: T201
        await ending.wait()
        app.is_ending = True
        server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN):
                await service.drain()
                while any(connection.is_busy for connection in connections):
                    await asyncio.sleep(0.005)
        if grpc_server is not None:
            await grpc_server.close(_LAST_WORDS)
        service.close()
    for connection in list(connections):
        connection.abort()


@contextlib.contextmanager
def _explained(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} of {host} is in use; choose another one, or 0 for any that is free"
        else:
            message = f"cannot listen at {host}, port {port}: {error.strerror or error}"
        raise CannotServe(message) from None


def _placement(configuration: ServerConfiguration) -> list[tuple[tuple[int, ...] | None, int]]:
    available = sorted(os.sched_getaffinity(0))
    if configuration.cpus is not None and not set(configuration.cpus) <= set(available):
        raise CannotServe(f"cpus = {list(configuration.cpus)}: this process may use {available}")
    return placed(configuration.instances, configuration.cpus, configuration.threads, available)


async def _load_language(configuration: ServerConfiguration, folder: Path) -> LanguageService:
    def load() -> PagedDecoder:
        from paceline.servers._embedded.paged_decoder import PagedDecoder

        decoder = PagedDecoder(
            configuration.need,
            max_sequences=configuration.max_sequences,
            max_length=configuration.max_length,
            blocks=configuration.kv_blocks,
            with_graphs=configuration.graph == "auto",
        )
        write_atomic(folder / "facts", json.dumps(decoder.facts()))
        return decoder

    service = LanguageService(configuration, load, _placement(configuration)[0])
    await service.start()
    return service


async def _load(configuration: ServerConfiguration, folder: Path) -> Service:
    assert configuration.artifact is not None
    placement = _placement(configuration)
    sizes = batch_sizes(configuration.max_batch, configuration.preferred)
    # Importing and loading takes seconds, in which the server should answer that it is alive.
    engine: InferenceEngine = await asyncio.to_thread(
        open_engine,
        configuration.engine,
        configuration.artifact,
        configuration.need.device,
        sizes,
        allow_import=configuration.need.allow_import,
        graph=configuration.graph == "auto",
    )
    policy = Policy(
        max_batch=configuration.max_batch,
        max_delay=round(configuration.max_delay * 1e9),
        max_queue=configuration.max_queue,
        preferred=configuration.preferred,
    )
    if not engine.pads:
        sizes = sorted({1, configuration.max_batch, *configuration.preferred})
    service = Service(configuration.name, engine, policy, placement, sizes, configuration.processing)
    await service.start()
    facts = {
        "versions": engine.versions(),
        "threads": [threads for _, threads in placement],
        "cpus": [list(share) if share else None for share, _ in placement],
        "padded_to": sizes if engine.pads else None,
        "event_loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
        **engine.facts(),
    }
    write_atomic(folder / "facts", json.dumps(facts))
    return service


def placed(
    instances: int, cpus: Sequence[int] | None, threads: int | None, available: Sequence[int]
) -> list[tuple[tuple[int, ...] | None, int]]:
    """CPUs and threads for each instance, as many threads as CPUs unless the user says otherwise.

    CPUs are disjoint where they suffice, otherwise all for each; None leaves it to the system.
    """
    chosen = available if cpus is None else cpus
    shares: list[tuple[int, ...] | None] = [tuple(chosen)] * instances
    if len(chosen) >= instances:
        shares = [tuple(part.tolist()) for part in np.array_split(chosen, instances)]
    if cpus is None and (instances == 1 or len(available) < instances):
        shares = [None] * instances
    return [(share, threads or len(share or available)) for share in shares]


def batch_sizes(max_batch: int, preferred: Sequence[int]) -> list[int]:
    """To which sizes batches are padded where every size needs preparing."""
    if preferred:
        return sorted({*preferred, max_batch})
    return sorted({*(2**power for power in range(max_batch.bit_length())), max_batch})


def main() -> int:
    path = Path(sys.argv[1])
    configuration = ServerConfiguration.model_validate_json(path.read_bytes())
    sys.setswitchinterval(_SWITCH)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every client takes a descriptor
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        asyncio.run(serve(configuration, path.parent))
    except CannotServe as error:
        if error.__cause__ is not None:
            sys.excepthook(type(error.__cause__), error.__cause__, error.__cause__.__traceback__)
        print(error, file=sys.stderr)  # noqa: T201
        write_atomic(path.parent / "failure", str(error))
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # an instance may still compute a batch that is not needed any more
