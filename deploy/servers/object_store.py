"""An S3 server on loopback that can throttle its clients: moto, in a process of its own.

It must be another process than its clients', for delta-rs keeps Python's lock while it reads. `python -m
servers.object_store PORT` runs it.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import EndpointConnectionError

from servers import processes
from servers.ports import free_ports

BUCKET = "lake"
_DEADLINE_SECONDS = 60
_THROTTLE_PATH = "/-/throttle"
_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Throttle:
    """A WSGI application that refuses a share of the requests with 503 SlowDown, as S3 does; the others it passes on.

    A request to `/-/throttle` sets the share to the number in its body; the answer is how many have been refused.
    """

    def __init__(self, application: Application) -> None:
        self._application = application
        self._share = 0.0
        self._refused = 0
        self._random = random.Random(1)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _THROTTLE_PATH:
            self._share = float(_body(environ))
            return _answer(start_response, "200 OK", "text/plain", str(self._refused).encode())
        if self._random.random() < self._share:
            self._refused += 1
            _body(environ)  # what is left unread would be taken for the connection's next request
            return _answer(start_response, "503 Slow Down", "application/xml", _SLOW_DOWN)
        return self._application(environ, start_response)


def _body(environ: dict[str, Any]) -> bytes:
    whole = -1 if environ.get("wsgi.input_terminated") else int(environ.get("CONTENT_LENGTH") or 0)
    content: bytes = environ["wsgi.input"].read(whole)
    return content


def _answer(start_response: Callable[..., Any], status: str, kind: str, body: bytes) -> Iterable[bytes]:
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def throttle(options: dict[str, str], share: float) -> int:
    """Make the store refuse this share of the requests; return how many it has refused so far."""
    url = options["aws_endpoint_url"] + _THROTTLE_PATH
    with urllib.request.urlopen(url, data=str(share).encode(), timeout=_DEADLINE_SECONDS) as answer:
        return int(answer.read())


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[dict[str, str]]:
    """Run the server with one bucket, and its log in `folder`; yield the settings of `[storage]`."""
    [port] = free_ports(1)
    options = {
        "aws_endpoint_url": f"http://127.0.0.1:{port}",
        "aws_allow_http": "true",
        "aws_region": "eu-central-1",
        "aws_access_key_id": "reader",
        "aws_secret_access_key": "hunter2",
    }
    command = [sys.executable, "-m", "servers.object_store", str(port)]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with (folder / "objects.log").open("wb") as log:
        server = processes.launch(command, stdout=log, stderr=subprocess.STDOUT, environ=environ)
    try:
        _make_bucket(options, server)
        yield options
    finally:
        processes.kill(server)


def upload(folder: Path, options: dict[str, str], prefix: str) -> None:
    """Copy the files of a folder into the bucket."""
    for file in folder.rglob("*"):
        if file.is_file():
            _client(options).upload_file(str(file), BUCKET, f"{prefix}/{file.relative_to(folder)}")


def _client(options: dict[str, str]) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=options["aws_endpoint_url"],
        region_name=options["aws_region"],
        aws_access_key_id=options["aws_access_key_id"],
        aws_secret_access_key=options["aws_secret_access_key"],
    )


def _make_bucket(options: dict[str, str], server: subprocess.Popen[bytes]) -> None:
    client = _client(options)
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        try:
            client.create_bucket(
                Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": options["aws_region"]}
            )
        except EndpointConnectionError:
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


def main() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple

    store = Throttle(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), store, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
