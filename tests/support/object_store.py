"""An S3 server on loopback: moto, in a process of its own, for delta-rs keeps Python's lock while it reads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
from botocore.exceptions import EndpointConnectionError

from demo import processes
from demo.kafka import free_ports

BUCKET = "lake"
_DEADLINE_SECONDS = 60


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[dict[str, str]]:
    """With a bucket; gives what `[storage]` has of it."""
    [port] = free_ports(1)
    options = {
        "aws_endpoint_url": f"http://127.0.0.1:{port}",
        "aws_allow_http": "true",
        "aws_region": "eu-central-1",
        "aws_access_key_id": "reader",
        "aws_secret_access_key": "hunter2",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "objects.log").open("wb") as log:
        server = processes.launch(command, stdout=log, stderr=subprocess.STDOUT, environ=os.environ)
    try:
        _make_bucket(options, server)
        yield options
    finally:
        processes.kill(server)


def _make_bucket(options: dict[str, str], server: subprocess.Popen[bytes]) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=options["aws_endpoint_url"],
        region_name=options["aws_region"],
        aws_access_key_id=options["aws_access_key_id"],
        aws_secret_access_key=options["aws_secret_access_key"],
    )
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
