"""A leader in a process of its own, to be killed: takes a job for each line it reads, and says when it has it.

Arguments are its folder, and the ports of its Ray cluster and of its API, if it leads one; 0 is none. A line is a job
as JSON, or the id of a nap.
It ends when there is nothing more to read.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from paceline.service.api.app import create_app
from paceline.service.api.server import bind, make_server
from paceline.service.credentials import Credentials
from paceline.service.engines import ENGINES, EngineOptions
from paceline.service.jobs import LEASE
from paceline.service.leader import Leader
from paceline.store import open_store
from support.leading import plain_page
from support.scripted_followers import a_job

SHORT_LEASE = timedelta(seconds=12)


def main() -> None:
    folder, ports = Path(sys.argv[1]), [int(port) for port in sys.argv[2:]]
    kind, lease = ("ray", SHORT_LEASE) if ports else ("local", LEASE)
    with open_store(folder / "store.db") as store:
        credentials = Credentials(store.queue.tokens)
        engine = ENGINES.get(kind).make(
            EngineOptions(folder, ("home",), port=(ports or [0])[0], credentials=credentials)
        )
        leader = Leader(store, engine, lease=lease)
        leading = threading.Thread(target=leader.run, daemon=True)
        leading.start()
        if ports[1:] and ports[1]:
            app = create_app(leader, store, is_local=True, report=plain_page)
            listening = bind("127.0.0.1", ports[1])
            threading.Thread(target=make_server(app, None).run, kwargs={"sockets": [listening]}, daemon=True).start()
        print("leading", flush=True)
        for line in sys.stdin:
            wanted = json.loads(line) if line.startswith("{") else {"name": line.strip()}
            leader.submit(a_job(at=datetime.now(UTC), **wanted))
            print(wanted["name"], flush=True)
        leader.close()


if __name__ == "__main__":
    main()
