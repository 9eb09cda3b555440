"""TorchServe: Java in front of Python workers, with batching."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Any

from paceline.core.network import free_port
from paceline.servers._environment import Requirements
from paceline.servers._program import HOST, HTTP_ERRORS, MODEL, AppSettings, ExportedModelServer, http_get

# Without a line for every request and its metrics.
_LOGGING = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration>
  <Appenders><Console name="console"><PatternLayout pattern="%d{ISO8601} [%-5p] %t %c - %m%n"/></Console></Appenders>
  <Loggers>
    <Root level="warn"><AppenderRef ref="console"/></Root>
    <Logger name="MODEL_LOG" level="info"/>
  </Loggers>
</Configuration>
"""


class TorchServe(ExportedModelServer):
    """A handler of ours decodes the body and runs the model as TorchScript."""

    name = "torchserve"
    summary = "TorchServe with TorchScript; HTTP, batching"
    wires = ("kserve-json",)
    path = f"/predictions/{MODEL}"
    format = "torchscript"
    apps = ("torchserve_app.py", "onnx_model.py")
    requirements = Requirements(
        server="torchserve",
        packages=("torchserve==0.12.0", "pyyaml==6.0.3", "numpy>=1.26"),  # pyyaml: used, but not declared
        shown=("torchserve", "torch"),
        torch=True,
        programs=(("java", "install OpenJDK 17 or newer"),),
    )
    ready_path = "/ping"

    settings: AppSettings
    management_port = 0

    def _is_ready(self) -> bool:
        """It reports that it is healthy while its workers still load the model, so that they are checked too."""
        if not super()._is_ready():
            return False
        try:
            _, body = http_get(HOST, self.management_port, f"/models/{MODEL}", timeout=5)
            workers = json.loads(body)[0]["workers"]
        except (*HTTP_ERRORS, ValueError, KeyError):
            return False
        return len(workers) == self.settings.workers and all(worker["status"] == "READY" for worker in workers)

    def _command(self) -> Sequence[str]:
        self.management_port = free_port()
        self._write_app_config()
        # A folder as it would be inside of an archive.
        folder = self.folder / "store" / MODEL
        (folder / "MAR-INF").mkdir(parents=True, exist_ok=True)
        for name in (*self.apps, "serve.json"):
            shutil.copyfile(self.folder / name, folder / name)
        about = {"modelName": MODEL, "modelVersion": "1.0", "handler": self.apps[0]}
        manifest = {"runtime": "python", "model": about, "archiverVersion": "0.12.0"}
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
        properties = "".join(f"{key}={value}\n" for key, value in self._properties().items())
        (self.folder / "config.properties").write_text(properties)
        (self.folder / "log4j2.xml").write_text(_LOGGING)
        program = "from ts.model_server import start; start()"
        start = [str(self.python), "-c", program, "--start", "--foreground", "--ncs"]
        where = ["--model-store", str(self.folder / "store"), "--ts-config", str(self.folder / "config.properties")]
        quiet = ["--log-config", str(self.folder / "log4j2.xml")]
        return [*start, *where, *quiet, "--models", f"{MODEL}={MODEL}"]

    def _environment(self) -> dict[str, str]:
        # What it would put into the folders of all users: its number, its logs, the models that it unpacks.
        temporary = dict.fromkeys(("TMPDIR", "TEMP"), str(self._short_path()))
        logs = dict.fromkeys(("LOG_LOCATION", "METRICS_LOCATION"), str(self.folder))
        return super()._environment() | temporary | logs

    def _properties(self) -> dict[str, Any]:
        settings = self.settings
        served = {
            "defaultVersion": True,
            "marName": MODEL,
            "minWorkers": settings.workers,
            "maxWorkers": settings.workers,
            "batchSize": settings.max_batch,
            "maxBatchDelay": max(1, round(settings.max_delay * 1000)),
            "responseTimeout": 3600,  # who asks decides how long an answer may take
        }
        return {
            "inference_address": f"http://{HOST}:{self.port}",
            "management_address": f"http://{HOST}:{self.management_port}",
            "metrics_address": f"http://{HOST}:{free_port()}",
            "grpc_inference_address": HOST,
            "grpc_inference_port": free_port(),
            "grpc_management_address": HOST,
            "grpc_management_port": free_port(),
            "initial_worker_port": free_port(),  # names the sockets, which two servers must not share
            "disable_token_authorization": "true",
            "install_py_dep_per_model": "false",
            "job_queue_size": 1000,
            "max_request_size": 2**30,
            "max_response_size": 2**30,
            "models": json.dumps({MODEL: {"1.0": served}}),
        }
