"""Vega's charts, drawn by a process of their own.

Vega takes a second to start, which it does while the report is worked out; and its library ends the whole process on
some input, which must not be the process that measures or serves. As a script, this file is that process.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from importlib.util import find_spec
from typing import Any


class _Converter:
    """One process, started when first needed and again when it ended; used by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            command = [sys.executable, "-P", __file__]
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, start_new_session=True, **streams)  # type: ignore[call-overload]
            atexit.register(self.close)
        return self._process

    def ask(self, request: dict[str, Any]) -> bytes:
        with self._lock:
            process = self.start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                content = process.stdout.read(answer["bytes"])
            except (OSError, ValueError):
                self.close()
                raise ValueError("the chart could not be drawn: Vega's process ended") from None
        if "error" in answer:
            raise ValueError(f"the chart could not be drawn: {answer['error']}")
        return content

    def close(self) -> None:
        atexit.unregister(self.close)
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


_CONVERTER = _Converter()


def is_installed() -> bool:
    """Whether charts can be drawn here."""
    return find_spec("vl_convert") is not None


def warm_up() -> None:
    """Let Vega start while something else is done; nothing if it is not installed."""
    if is_installed():
        _CONVERTER.start()


def convert(function: str, source: Any, **options: Any) -> bytes:
    """What a function of the library makes of a chart or a picture."""
    if not is_installed():
        from paceline.core.errors import MissingDependency  # not in the process that draws

        raise MissingDependency("vl-convert, which draws charts,", "pip install '.[charts]'")
    return _CONVERTER.ask({"function": function, "source": source, "options": options})


def _serve() -> None:
    import vl_convert

    vl_convert.vegalite_to_svg({"data": {"values": [{}]}, "mark": "point"})  # so that it has started
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            content = getattr(vl_convert, request["function"])(request["source"], **request["options"])
        except Exception as error:
            answer, content = {"error": str(error)}, ""
        content = content.encode() if isinstance(content, str) else bytes(content)
        sys.stdout.buffer.write(json.dumps(answer | {"bytes": len(content)}).encode() + b"\n" + content)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
