"""What `--hosts` starts on each host: takes orders from standard input, measures the ranks of this host, answers.

It ends, with everything it started, when its orders end: the user's command closed them, or is not heard of any more.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.network import free_port, is_loopback, own_address
from paceline.remote.agent import Orders
from paceline.runner.execute import CaseExecution
from paceline.runner.fork_client import WarmServer
from paceline.runner.launcher_ranks import bound_to
from paceline.runner.run import OnProgress, execute_at_once, imports_of
from paceline.version import VERSION

REACH_SECONDS = 10.0
Words = dict[str, Any]


class Agent:
    """Obeys, one order after the other."""

    def __init__(self, orders: Orders, server: WarmServer) -> None:
        self._orders = orders
        self._server = server
        self._door: socket.socket | None = None  # where the other hosts try whether they reach this one
        self._network: dict[str, str] = {}

    def serve(self) -> None:
        """Until the orders end."""
        obey = {
            "hello": self._hello,
            "describe": self._describe,
            "listen": self._listen,
            "reach": self._reach,
            "face": self._face,
            "port": lambda _order: {"port": free_port("")},
            "run": self._run,
            "measure": self._measure,
        }
        self._orders.obey(obey)

    def _hello(self, order: Words) -> Words:
        from paceline.devices import counts
        from paceline.machine.inventory import parts

        # What the command was given counts here, too, as far as this host has it.
        os.environ.update(order["environment"])
        paths = [*order["path"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        sys.path[:0] = [folder for folder in order["path"] if folder not in sys.path]
        with suppress(OSError):
            os.chdir(order["folder"] if Path(order["folder"]).is_dir() else Path.home())
        return {"hello": {"version": VERSION, "devices": counts(), "parts": parts()}}

    def _describe(self, _order: Words) -> Words:
        from paceline.machine import describe

        return {"environment": describe().model_dump(mode="json")}

    def _listen(self, _order: Words) -> Words:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._door = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        return {"port": self._door.getsockname()[1]}

    def _reach(self, order: Words) -> Words:
        """From here to the first rank's host."""
        host, port = order["address"], order["port"]
        try:
            with socket.create_connection((host, port), timeout=REACH_SECONDS) as connection:
                address = str(connection.getsockname()[0]).removeprefix("::ffff:")
        except OSError as error:
            message = f"cannot reach the first host at {host}, port {port}: {error}; try another --master-address"
            raise InputError("cannot-reach", message, key="--master-address", value=host) from None
        self._network = {} if is_loopback(address) else bound_to(address)
        return {"address": address}

    def _face(self, order: Words) -> Words:
        """From the first rank's host to another."""
        try:
            address = own_address(order["address"])
        except OSError as error:
            message = f"finds no route to {order['address']}: {error}"
            raise InputError("no-route", message, value=order["address"]) from None
        self._network = {} if is_loopback(address) else bound_to(address)
        if self._door is not None:
            self._door.close()
        return {"address": address}

    def _run(self, order: Words) -> Words:
        case = Case.model_validate(order["case"])
        ranks = {int(rank): self._network | environment for rank, environment in order["ranks"].items()}

        def report(progress: Words) -> None:
            if 0 in ranks:
                self._orders.say({"progress": progress})

        execution = CaseExecution(
            self._server,
            case,
            ranks=ranks,
            world_size=case.ranks,
            on_progress=report,
            abort=self._orders.stop.is_set,
        )
        return {"ended": execution.run(imports_of(case)).words()}

    def _measure(self, order: Words) -> Words:
        """Cases at the same time, all of their ranks here."""

        def reporter(index: int) -> OnProgress:
            return lambda progress: self._orders.say({"progress": progress, "index": index})

        cases = [Case.model_validate(words) for words in order["cases"]]
        at_once = [(case, reporter(case.index)) for case in cases]
        return {"ended": [end.words() for end in execute_at_once(self._server, at_once, self._orders.stop.is_set)]}


def main() -> None:
    """Serve on the streams that the remote shell connects."""
    orders = Orders.of_streams()
    try:
        with WarmServer() as server, suppress(BrokenPipeError):
            Agent(orders, server).serve()
    except OSError as error:  # such as a full disk; whoever asked sees what is printed
        sys.exit(f"no case can be measured here: {error}")


if __name__ == "__main__":
    main()
