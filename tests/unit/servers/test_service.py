"""The server with a simple engine: whose answer goes to whom, what is refused, shed, dropped, padded and told."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from paceline.load.kserve import Array, ProtocolError, TensorSpec, byte_strings, decode_error, encode_request
from paceline.servers._embedded.engines import Arrays, Buffered, InferenceSession
from paceline.servers.processing import INDICES, VALUES, Processing
from support.embedded import PATH, Doubling, Running, artifact_of, running
from support.kserve_requests import with_fields
from support.stages import stages_of


def rows(count: int, start: float = 0.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return (start + np.arange(count * 3, dtype=np.float32)).reshape(count, 3)


class InPlace(Doubling):
    """With memory for the inputs of one and of four samples."""

    def __init__(self, *, pads: bool) -> None:
        super().__init__(pads=pads)
        self.room = {size: {"x": np.zeros((size, 3), np.float32)} for size in (1, 4)}

    def session(self, threads: int) -> InferenceSession:
        run, room = super().session(threads), self.room

        class InRoom(Buffered):
            def buffers(self, rows: int) -> Arrays | None:
                return room.get(rows)

            def __call__(self, inputs: Arrays) -> Arrays:
                return run(inputs)

        return InRoom()


def of_texts(before: Callable[[Sequence[bytes]], dict[str, Array]] | None = None) -> Processing:
    """Text of three words for x, whose numbers are its likeliest classes doubled."""
    x, y = TensorSpec("x", "FP32", (3,)), TensorSpec("y", "FP32", (3,))

    class Words(Processing):
        def before(self, samples: Sequence[bytes]) -> dict[str, Array]:
            if before is not None:
                return before(samples)
            try:
                return {"x": np.array([one.split() for one in samples], np.float32)}
            except ValueError:
                raise ProtocolError("a word is no number") from None

    return Words("text", "x", (3,), (x,), {}, y)


def get(server: Running, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body


@pytest.mark.parametrize("binary", [False, True])
def test_an_answer_in_the_form_of_the_request(binary: bool) -> None:
    with running(Doubling()) as server:
        answer, found = server.ask(rows(2), binary=binary)
        assert isinstance(found, dict)
        assert np.array_equal(found["y"], rows(2) * 2)
        assert (answer.getheader("Content-Type") == "application/octet-stream") == binary


def test_the_stages_are_told() -> None:
    with running(Doubling(), max_batch=1) as server:
        answer, _ = server.ask(rows(1))
        stages = stages_of(answer.headers["x-paceline"])
        assert stages is not None
        assert all(part >= 0 for part in stages)
        assert stages.size == 1


def test_requests_that_come_together_are_computed_together_and_each_gets_its_own() -> None:
    engine = Doubling()
    with running(engine, max_batch=6, max_delay=30.0) as server, ThreadPoolExecutor(3) as pool:
        asked = [rows(count, start=100.0 * count) for count in (1, 2, 3)]
        found = list(pool.map(server.ask, asked))
        assert [len(seen) for seen in engine.seen] == [6]
        for x, (answer, response) in zip(asked, found, strict=True):
            assert isinstance(response, dict)
            assert np.array_equal(response["y"], x * 2)
            assert answer.headers["x-paceline"].endswith("n=6")
        assert get(server, "/v2/models/m/stats")[1]["batches"] == {"6": 1}


def test_different_shapes_are_not_computed_together() -> None:
    engine = Doubling(artifact_of(width=-1))
    with running(engine, max_batch=2, max_delay=0.1) as server, ThreadPoolExecutor(2) as pool:
        asked = [np.ones((1, width), np.float32) for width in (3, 4)]
        for x, (_, found) in zip(asked, pool.map(server.ask, asked), strict=True):
            assert isinstance(found, dict)
            assert np.array_equal(found["y"], x * 2)
        assert sorted(seen.shape for seen in engine.seen) == [(1, 3), (1, 4)]


def test_batches_are_filled_up_for_an_engine_that_knows_a_few_sizes() -> None:
    engine = Doubling(pads=True)
    with running(engine, max_batch=4, sizes=(1, 4)) as server:
        _, found = server.ask(rows(3))
        assert isinstance(found, dict)
        assert np.array_equal(found["y"], rows(3) * 2)
        assert [len(seen) for seen in engine.seen] == [4]
        assert get(server, "/v2/models/m/stats")[1]["padding"] == 1


def test_a_batch_is_put_together_where_the_session_wants_it() -> None:
    engine = InPlace(pads=True)
    with running(engine, max_batch=4, max_delay=30.0, sizes=(1, 4)) as server, ThreadPoolExecutor(2) as pool:
        for start in (0.0, 100.0):  # the second batch must leave the answers to the first alone
            asked = [rows(2, start=start), rows(2, start=start + 50.0)]
            for x, (_, found) in zip(asked, pool.map(server.ask, asked), strict=True):
                assert isinstance(found, dict)
                assert np.array_equal(found["y"], x * 2)
        assert [seen is engine.room[4]["x"] for seen in engine.seen] == [True, True]
        engine.seen.clear()
        del engine.room[4]  # it has no place for so many any more
        _, found = server.ask(rows(4))
        assert isinstance(found, dict)
        assert np.array_equal(found["y"], rows(4) * 2)


def test_a_place_of_the_sessions_own_is_filled_up_with_the_last_sample() -> None:
    engine = InPlace(pads=True)
    with running(engine, max_batch=4, max_delay=0.0, sizes=(4,)) as server:
        engine.room[4]["x"][:] = np.nan
        _, found = server.ask(rows(3))
        assert isinstance(found, dict)
        assert np.array_equal(found["y"], rows(3) * 2)
        assert np.array_equal(engine.room[4]["x"], rows(3)[[0, 1, 2, 2]])


def test_beyond_the_queue_requests_are_shed_and_told_to_come_again() -> None:
    gate = threading.Event()
    gate.set()
    with running(Doubling(wait=gate.wait), max_batch=1, max_queue=2) as server, ThreadPoolExecutor(3) as pool:
        gate.clear()
        accepted = [pool.submit(server.ask, rows(1)) for _ in range(3)]
        server.wait(lambda: server.service.describe()["queue"] == 2)
        answer, body = server.ask(rows(1))
        assert answer.status == 503
        assert answer.getheader("Retry-After") == "1"
        assert "2 requests are waiting" in decode_error(body if isinstance(body, bytes) else b"")
        gate.set()
        assert [one.result()[0].status for one in accepted] == [200, 200, 200]
        assert get(server, "/v2/models/m/stats")[1]["requests"]["shed"] == 1


def test_who_leaves_while_waiting_is_not_computed_and_who_stays_is() -> None:
    gate = threading.Event()
    gate.set()
    engine = Doubling(wait=gate.wait)
    with running(engine, max_batch=1) as server, ThreadPoolExecutor(2) as pool:
        gate.clear()
        first = pool.submit(server.ask, rows(1))
        server.wait(lambda: server.service.describe()["running"] == 1)
        with socket.create_connection(("127.0.0.1", server.port)) as leaving:
            body = encode_request({"x": rows(1, start=50.0)}).body
            leaving.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(body)))
            leaving.sendall(body)
            server.wait(lambda: server.service.describe()["queue"] == 1)
        server.wait(lambda: server.service.describe()["queue"] == 0)
        last = pool.submit(server.ask, rows(1, start=70.0))
        gate.set()
        assert first.result()[0].status == 200
        assert last.result()[0].status == 200
        assert [float(seen[0, 0]) for seen in engine.seen] == [0.0, 70.0]
        assert server.service.describe()["requests"]["cancelled"] == 1


def test_an_engine_that_fails_is_told_of_and_goes_on() -> None:
    with running(Doubling(), max_batch=1) as server:
        answer, body = server.ask(np.full((1, 3), np.nan, np.float32))
        assert answer.status == 500
        assert "FloatingPointError: not a number" in decode_error(body if isinstance(body, bytes) else b"")
        assert server.ask(rows(1))[0].status == 200
        assert get(server, "/v2/models/m/stats")[1]["requests"] == {
            "ok": 1,
            "refused": 0,
            "shed": 0,
            "failed": 1,
            "cancelled": 0,
        }


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"z": np.ones((1, 3), np.float32)}, "the model takes x, but the request has z"),
        ({"x": np.ones((1, 3), np.float64)}, "'x' is FP64; the model takes FP32"),
        ({"x": np.ones((1, 4), np.float32)}, r"shape [1, 4]; the model takes [-1, 3]"),
        ({"x": np.ones((1, 3, 1), np.float32)}, r"shape [1, 3, 1]"),
        ({"x": np.float32(1)}, "scalar"),
        ({"x": np.ones((0, 3), np.float32)}, "0 samples; the server takes 1 to 4"),
        ({"x": np.ones((5, 3), np.float32)}, "5 samples; the server takes 1 to 4 (max_batch)"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(inputs: dict[str, Any], said: str) -> None:
    with running(Doubling()) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        body = encode_request({name: np.asarray(value) for name, value in inputs.items()}).body
        for wrong, words in ((body, said), (body[:-2], "not JSON"), (b'{"inputs":1}', "must be a list")):
            connection.request("POST", PATH, wrong)
            answer = connection.getresponse()
            assert answer.status == 400
            assert words in decode_error(answer.read())
        connection.close()
        assert server.ask(rows(1))[0].status == 200


def test_an_output_that_the_model_does_not_have() -> None:
    with running(Doubling()) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("POST", PATH, with_fields(encode_request({"x": rows(1)}), outputs=[{"name": "q"}]).body)
        assert "there is no 'q'; the model has y" in decode_error(connection.getresponse().read())
        connection.close()


def test_the_questions_one_may_ask() -> None:
    with running(Doubling()) as server:
        assert get(server, "/v2")[1]["name"] == "paceline"
        assert get(server, "/v2/health/live")[0] == 200
        assert get(server, "/v2/health/ready")[0] == 200
        assert get(server, "/v2/models/m/ready")[0] == 200
        assert get(server, "/v2/models/m")[1] == {
            "name": "m",
            "versions": ["1"],
            "platform": "test",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
        }
        assert get(server, "/v2/models/other")[0] == 404
        assert get(server, "/v2/models/other/infer")[0] == 404
        assert get(server, PATH)[0] == 405
        assert get(server, "/")[0] == 404


def test_alive_but_not_ready_before_the_model_is_there() -> None:
    with running(Doubling()) as server:
        service, server.app.service = server.app.service, None
        assert get(server, "/v2/health/live")[0] == 200
        assert get(server, "/v2/health/ready")[0] == 503
        assert get(server, "/v2/models/m/stats")[0] == 503
        assert server.ask(rows(1))[0].status == 503
        server.app.service = service


def test_texts_are_read_before_they_wait_and_answered_with_the_likeliest() -> None:
    with running(Doubling(), processing=of_texts(), max_batch=4, max_delay=0.0) as server:
        answer, found = server.ask(byte_strings([b"1 9 5", b"7 8 6"]), name="text", binary=False)
        assert isinstance(found, dict)
        assert found[VALUES].tolist() == [[18, 10, 2], [16, 14, 12]]
        assert found[INDICES].tolist() == [[1, 2, 0], [1, 0, 2]]
        stages = stages_of(answer.headers["x-paceline"])
        assert stages is not None and stages.pre > 0 and stages.size == 2
        told = get(server, "/v2/models/m")[1]
        assert told["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        assert [one["name"] for one in told["outputs"]] == [VALUES, INDICES]


def test_what_cannot_be_read_is_refused_alone() -> None:
    with running(Doubling(), processing=of_texts(), max_batch=8, max_delay=0.05) as server:
        with ThreadPoolExecutor(4) as pool:
            asked = [byte_strings([text]) for text in (b"1 2 3", b"1 2 x", b"4 5 6", b"y")]
            found = list(pool.map(lambda one: server.ask(one, name="text"), asked))
        assert [answer.status for answer, _ in found] == [200, 400, 200, 400]
        assert b"a word is no number" in (found[1][1] if isinstance(found[1][1], bytes) else b"")
        assert server.ask(rows(1))[0].status == 400  # tensors are not what it takes now
        counted = server.service.describe()["requests"]
        assert (counted["ok"], counted["refused"], counted["failed"]) == (2, 3, 0)


def test_requests_that_are_being_read_count_as_waiting_and_may_leave() -> None:
    gate = threading.Event()

    def slowly(samples: Sequence[bytes]) -> dict[str, Array]:
        gate.wait(30)
        return {"x": np.zeros((len(samples), 3), np.float32)}

    engine = Doubling()
    text = byte_strings([b"any"])
    with running(engine, processing=of_texts(slowly), max_queue=2) as server, ThreadPoolExecutor(1) as pool:
        stays = pool.submit(server.ask, text, name="text")
        body = encode_request({"text": text}).body
        with socket.create_connection(("127.0.0.1", server.port)) as leaving:
            leaving.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(body)))
            leaving.sendall(body)
            server.wait(lambda: server.service.describe()["queue"] == 2)
            assert server.ask(text, name="text")[0].status == 503
        server.wait(lambda: server.service.describe()["requests"]["cancelled"] == 1)
        gate.set()
        assert stays.result()[0].status == 200
        server.wait(lambda: server.service.describe()["queue"] == 0)
        assert [len(seen) for seen in engine.seen] == [1]


def test_a_fault_of_the_preparation_is_the_servers_own() -> None:
    def broken(samples: Sequence[bytes]) -> dict[str, Array]:
        raise KeyError("oh")

    with running(Doubling(), processing=of_texts(broken)) as server:
        assert server.ask(byte_strings([b"1"]), name="text")[0].status == 500
        assert server.service.describe()["requests"]["failed"] == 1
