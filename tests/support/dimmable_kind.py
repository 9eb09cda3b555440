"""A device kind of a third party whose power limit is a file: 700 W at first, and a line for every value set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cli import PLUGIN, Sandbox, sandbox_in

BEFORE = 700.0
KIND = '''
"""A device whose power limit is the last line of a file."""

import os
from pathlib import Path

from paceline.core.errors import Unsupported
from paceline.devices.base import DeviceKind


class DimmableKind(DeviceKind):
    name = "dimmable"
    noun = "dimmable device"

    def count(self):
        return 1

    def open(self, index):
        raise Unsupported("nobody opens it")

    def limit_power(self, target, watts, undo):
        if watts > 700:
            raise Unsupported("it takes at most 700 W")
        file = Path(os.environ["DIMMABLE_FILE"])
        before = float(file.read_text().splitlines()[-1])
        self.set(file, watts)
        undo.callback(self.set, file, before)

    @staticmethod
    def set(file, watts):
        if watts == 700 and (file.parent / "stuck").exists():
            raise OSError("the knob is stuck")
        if watts == 700 and (file.parent / "dies").exists():
            os._exit(3)
        with file.open("a") as log:
            log.write(f"{watts:g}\\n")
'''


def limits_set(place: Sandbox) -> list[float]:
    """Every limit that the device has had, the first one included."""
    return [float(line) for line in _file(place).read_text().splitlines()]


def _file(place: Sandbox) -> Path:
    return place.folder / "watts"


@contextmanager
def dimmable_machine(folder: Path) -> Iterator[Sandbox]:
    """A sandbox whose machine has one such device."""
    with sandbox_in(folder) as place:
        plugins = place.folder / "plugins"
        information = plugins / "pace_dimmable-1.0.dist-info"
        information.mkdir(parents=True)
        (plugins / "pace_dimmable.py").write_text(KIND)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: pace-dimmable\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text("[paceline.plugins]\ndimmable = pace_dimmable\n")
        _file(place).write_text(f"{BEFORE:g}\n")
        yield place


def environment(place: Sandbox) -> dict[str, str]:
    """That of a machine with the device."""
    path = os.pathsep.join([str(place.folder / "plugins"), str(PLUGIN)])
    return {"PYTHONPATH": path, "DIMMABLE_FILE": str(_file(place)), "CUDA_VISIBLE_DEVICES": ""}
