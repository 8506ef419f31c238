"""The faults of `make soak`: which are planned, and that each of them does what it says."""

from __future__ import annotations

import contextlib
import io
import os
import random
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from servers.object_store import Throttle
from servers.proxy import GARBAGE, Proxy
from soak.faults import plan, slow_clients
from support.deadlines import scaled, until

FATAL = ["kill -9 of the driver", "restart of the pipeline"]
OTHERS = [f"fault {number}" for number in range(9)]
DEADLINE_SECONDS = scaled(20)


# --- the plan ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_plan_tries_every_fault_once_before_it_repeats_one(seed: int) -> None:
    planned = plan(FATAL, OTHERS, 27, random.Random(seed))
    assert len(planned) == 27
    assert set(planned) == {*FATAL, *OTHERS}
    for count in range(1, 28):
        times = Counter(planned[:count])
        assert max(times.values()) - min(times[name] for name in (*FATAL, *OTHERS)) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_plan_leaves_most_of_a_round_to_one_driver(seed: int) -> None:
    """Both faults that end it come first, so that its memory can be measured afterwards."""
    planned = plan(FATAL, OTHERS, 33, random.Random(seed))
    assert [name in FATAL for name in planned] == [True, True, *[False] * 9] * 3


def test_plan_same_seed_returns_the_same_faults_and_another_seed_others() -> None:
    assert plan(FATAL, OTHERS, 30, random.Random(1)) == plan(FATAL, OTHERS, 30, random.Random(1))
    assert plan(FATAL, OTHERS, 30, random.Random(1)) != plan(FATAL, OTHERS, 30, random.Random(2))


# --- a broker that answers garbage ---------------------------------------------------------------------------


@pytest.fixture
def echo() -> Iterator[Proxy]:
    """A proxy to a server that answers what it is sent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

        def answer(client: socket.socket) -> None:
            with contextlib.suppress(OSError), client:
                while content := client.recv(1 << 16):
                    client.sendall(content)

        threading.Thread(target=serve, daemon=True).start()
        with Proxy(listening.getsockname()[1]) as proxy:
            yield proxy
        listening.shutdown(socket.SHUT_RDWR)


def client_of(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=DEADLINE_SECONDS)


REQUEST = b"\x00\x00\x00\x1c\x00\x00\x00\x07" + b"twenty-four bytes of it."


@pytest.mark.parametrize("kind", sorted(GARBAGE))
def test_proxy_garble_replaces_answers_until_the_connection_is_ended(echo: Proxy, kind: str) -> None:
    """Connections that got garbage end with it; the others go on, and new ones get what the server answers."""
    with client_of(echo) as spoiled, client_of(echo) as spared:
        for client in (spoiled, spared):
            client.sendall(REQUEST)
            assert client.recv(1 << 16) == REQUEST
        echo.garble(GARBAGE[kind])
        spoiled.sendall(REQUEST)
        garbage = spoiled.recv(1 << 16)
        assert garbage
        assert garbage != REQUEST
        assert (garbage[:8] == REQUEST[:8]) is (kind == "responses with a random body")
        assert echo.answer() == 1
        assert spoiled.recv(1 << 16) == b""
        spared.sendall(REQUEST)
        assert spared.recv(1 << 16) == REQUEST
        with client_of(echo) as new:
            new.sendall(REQUEST)
            assert new.recv(1 << 16) == REQUEST


# --- clients of the metrics that are slow --------------------------------------------------------------------


def test_slow_clients_stay_connected_half_of_them_in_a_request() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        listening.settimeout(DEADLINE_SECONDS)
        host, port = listening.getsockname()
        with contextlib.ExitStack() as accepted:
            with slow_clients(f"{host}:{port}", 10):
                clients = [accepted.enter_context(listening.accept()[0]) for _ in range(10)]
                for client in clients:
                    client.setblocking(False)
                begun = dict.fromkeys(clients, b"")

                def are_there() -> bool:
                    for client in clients:
                        with contextlib.suppress(BlockingIOError):
                            begun[client] += client.recv(1 << 16)
                    return sum(map(bool, begun.values())) == 5

                until(are_there)
                assert all(b"\r\n\r\n" not in content for content in begun.values())
            for client in clients:
                client.setblocking(True)
                client.settimeout(DEADLINE_SECONDS)
                assert client.recv(1 << 16) == b""


# --- a full disk ---------------------------------------------------------------------------------------------

FILL = """
import os, sys
from pathlib import Path
from servers.small_disk import SmallDisk, in_mount_namespace
if not in_mount_namespace([sys.executable, *sys.orig_argv[1:]]):
    sys.exit(77)
folder = Path(sys.argv[1])
def write(name):
    try:
        (folder / name).write_bytes(bytes(1 << 20))
        return "written"
    except OSError as error:
        return os.strerror(error.errno)
with SmallDisk(folder, 8 << 20) as disk:
    print(write("before"))
    disk.fill()
    print(write("full"))
    disk.free()
    print(write("after"))
"""


def test_small_disk_fill_refuses_writes_until_it_is_free_and_nobody_else_sees_it(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", FILL, str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("the kernel does not let this user mount a file system")
    assert (done.returncode, done.stdout.splitlines()) == (0, ["written", "No space left on device", "written"]), done
    assert list(folder.iterdir()) == []


# --- an object store that throttles --------------------------------------------------------------------------


class Client:
    """Sends requests to a WSGI application behind a throttle, and counts those that reach it."""

    def __init__(self) -> None:
        self.reached = 0
        self._throttle = Throttle(self._application)

    def _application(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        self.reached += 1
        start_response("200 OK", [])
        return [environ["wsgi.input"].read()]

    def put(self, path: str, body: bytes) -> tuple[str, bytes, bytes]:
        """Return the status, the answer, and what was left unread of the request."""
        statuses: list[str] = []
        content = io.BytesIO(body)
        environ = {"PATH_INFO": path, "CONTENT_LENGTH": str(len(body)), "wsgi.input": content}
        answer = self._throttle(environ, lambda status, _headers: statuses.append(status))
        return statuses[0], b"".join(answer), content.read()


@pytest.mark.parametrize(("share", "least", "most"), [("0", 0, 0), ("0.5", 60, 140), ("1", 200, 200)])
def test_throttle_refuses_its_share_of_the_requests_with_slow_down(share: str, least: int, most: int) -> None:
    client = Client()
    assert client.put("/-/throttle", share.encode())[:2] == ("200 OK", b"0")
    answers = [client.put("/lake/a", b"content") for _ in range(200)]
    refused = [answer for status, answer, _ in answers if status == "503 Slow Down"]
    assert least <= len(refused) <= most
    assert all(b"<Code>SlowDown</Code>" in answer for answer in refused)
    assert {unread for _, _, unread in answers} == {b""}
    assert client.reached == 200 - len(refused)
    assert client.put("/-/throttle", b"0")[1] == str(len(refused)).encode()
    assert client.put("/lake/a", b"content")[:2] == ("200 OK", b"content")
