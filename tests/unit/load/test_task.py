"""A task on its way to a worker: it arrives as it was, and nothing else is taken for one."""

from __future__ import annotations

import json
import math
import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import InputError
from paceline.load.request import Endpoint
from paceline.load.task import WorkerTask, read_task, task_message

TASK = WorkerTask(
    loop="closed",
    intended=np.array([0.1, 2.5e9]),
    kinds=np.array([1, 0], np.int32),
    users=np.int64(3),  # type: ignore[arg-type]  # as arithmetic with arrays makes it
    requests=None,
    duration=np.float64(1.5),
    up=np.array([0.25]),
    down_bandwidth=math.inf,
    parent=7,
    endpoint=Endpoint("kserve-grpc", "h", 1, "/", "x", tls=True, headers={"authorization": "secret"}, hidden=("s",)),
    payloads=[b"\x00\xff", b""],
    metadata=[(("a", "b"), ("c", "ü")), ()],
    samples=np.array([3, 4], np.int32),
    cpu=2,
)


def test_a_task_arrives_as_it_was_sent() -> None:
    received = read_task(json.loads(json.dumps(task_message(TASK))))
    for one in fields(WorkerTask):
        sent, got = getattr(TASK, one.name), getattr(received, one.name)
        if isinstance(sent, np.ndarray):
            assert (got.dtype, got.tolist()) == (sent.dtype, sent.tolist()), one.name
        else:
            assert got == sent, one.name


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"number": "1"}, "'number'"),
        ({"number": True}, "'number'"),
        ({"loop": "endless"}, "'loop'"),
        ({"intended": "AAA"}, "'intended'"),
        ({"intended": [1.0]}, "'intended'"),
        ({"payloads": ["no base64!"]}, "'payloads'"),
        ({"metadata": [[["a"]]]}, "'metadata'"),
        ({"endpoint": {"host": "h"}}, "'endpoint'"),
        ({"endpoint": {"headers": {"a": 1}}}, "'endpoint'"),
        ({"surprise": 1}, "unknown field 'surprise'"),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(change: dict[str, Any], names: str) -> None:
    with pytest.raises(InputError, match=names):
        read_task(task_message(TASK) | change)


@pytest.mark.parametrize("message", [None, [], "gASVIAAAAAAA", {}, {"parent": 1}])
def test_what_is_not_a_task_is_refused(message: object) -> None:
    with pytest.raises(InputError, match="not a task"):
        read_task(message)


def test_no_message_of_any_kind_is_an_error_of_another_sort() -> None:
    draw = random.Random(1)
    odd = [None, True, -1, 1e400, "x", "AAAA", [], [[]], {}, {"a": {}}, [["a", "b"]], "\ud800"]
    for _ in range(2000):
        message = task_message(TASK)
        for name in draw.sample(sorted(message), 2):
            message[name] = draw.choice(odd)
        try:
            read_task(message)
        except InputError:
            continue
