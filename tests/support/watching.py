"""A runner in a process of its own that a test watches while it measures."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from support.cli import Sandbox, events


@dataclass
class Watched:
    """A runner whose events are read as they come."""

    process: subprocess.Popen[str]
    said: list[dict[str, Any]] = field(default_factory=list)
    errors: str = ""  # what it wrote to stderr, once it has ended

    @classmethod
    def start(cls, sandbox: Sandbox, *arguments: str) -> Self:
        """`paceline ...`, which must be told to speak JSON."""
        return cls(sandbox.start(*arguments, env={"PYTHONFAULTHANDLER": "1"}))

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # the last line of a killed runner may be torn
                self.said += events(line)

    def wait_for(self, event: str, **fields: Any) -> bool:
        """Until it was said, and of a case's progress what it measures; False when the runner ended before."""

        def is_meant(said: dict[str, Any]) -> bool:
            return said["event"] == event and fields.items() <= said.items() and said.get("phase") != "preparing"

        while not any(map(is_meant, list(self.said))):
            if not self._reader.is_alive():
                return False
            time.sleep(0.001)
        return True

    def finish(self) -> int:
        return self.finish_within(60)

    def finish_within(self, seconds: float) -> int:
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # which has it print where its threads are
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read()) from None
        self._reader.join(timeout=30)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.errors = self.process.stderr.read()
        self.process.stderr.close()
        return code

    @property
    def run_id(self) -> str | None:
        return next((event["run"] for event in self.said if event["event"] == "run_started"), None)

    @property
    def acknowledged(self) -> set[tuple[int, int, str]]:
        """Case, attempt and outcome of everything that was said to be kept."""
        records = [event["record"] for event in self.said if event["event"] == "case_ended"]
        return {(record["case"]["index"], record["attempt"], record["outcome"]) for record in records}
