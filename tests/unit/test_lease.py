"""Who may run a job: the lock of a local folder, and the lease of any other place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grouptrail.config import Config, load_config
from grouptrail.runtime.lease import EXPIRE_SECONDS, AlreadyRunningError, Lease, sole_driver
from grouptrail.runtime.warehouses import warehouse_of

HOLD = """
import sys
from grouptrail.config import load_config
from grouptrail.runtime.lease import sole_driver
from grouptrail.runtime.warehouses import warehouse_of
with sole_driver(warehouse_of(load_config(None, {"warehouse": sys.argv[1]}, {})), ["decode", "lag"], print):
    print("held", flush=True)
    sys.stdin.read()
"""


def config(folder: Path) -> Config:
    return load_config(None, {"warehouse": str(folder)}, {})


def hold(folder: Path, *jobs: str) -> None:
    with sole_driver(warehouse_of(config(folder)), jobs, print):
        pass


def test_local_lock_refuses_second_driver_of_a_job_until_sigkill(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            AlreadyRunningError, match=rf"job lag is already run by pid {holder.pid} on .* UTC, .*lag\.lock"
        ):
            hold(tmp_path, "lag")
        hold(tmp_path, "history")
        holder.send_signal(signal.SIGKILL)
    hold(tmp_path, "decode", "lag")


def test_local_lock_foreign_content_is_not_shown_in_the_error(tmp_path: Path) -> None:
    lock = Path(f"{warehouse_of(config(tmp_path)).checkpoint_path('lag')}.lock")
    with sole_driver(warehouse_of(config(tmp_path)), ["lag"], print):
        lock.write_text('{"pid": "\x1b[31mrm"}')
        with pytest.raises(AlreadyRunningError, match="is already run by another driver") as refusal:
            hold(tmp_path, "lag")
    assert "\x1b" not in str(refusal.value)


def test_local_lock_link_that_leads_out_is_refused_and_its_target_is_kept(tmp_path: Path) -> None:
    warehouse = warehouse_of(Config(warehouse=str(tmp_path / "warehouse")))
    target = tmp_path / "target"
    target.write_text("content")
    lock = Path(f"{warehouse.checkpoint_path('decode')}.lock")
    lock.parent.mkdir(parents=True)
    lock.symlink_to(target)
    with pytest.raises(AlreadyRunningError, match="is a link to a file outside its folder"):
        sole_driver(warehouse, ["decode"], print).__enter__()
    assert target.read_text() == "content"


@pytest.mark.parametrize("target", ["other", "nowhere"])
def test_local_lock_link_within_its_folder_is_not_followed(tmp_path: Path, target: str) -> None:
    warehouse = warehouse_of(Config(warehouse=str(tmp_path)))
    lock = Path(f"{warehouse.checkpoint_path('decode')}.lock")
    lock.parent.mkdir(parents=True)
    (lock.parent / "other").write_text("content")
    lock.symlink_to(target)
    with pytest.raises(AlreadyRunningError, match="cannot be written"):
        sole_driver(warehouse, ["decode"], print).__enter__()
    assert {file.name for file in lock.parent.iterdir()} == {"other", lock.name}
    assert (lock.parent / "other").read_text() == "content"


def test_local_lock_pipe_is_refused_at_once(tmp_path: Path) -> None:
    warehouse = warehouse_of(Config(warehouse=str(tmp_path)))
    lock = Path(f"{warehouse.checkpoint_path('decode')}.lock")
    lock.parent.mkdir(parents=True)
    os.mkfifo(lock)
    with pytest.raises(AlreadyRunningError, match="no regular file"):
        sole_driver(warehouse, ["decode"], print).__enter__()


def test_local_lock_unwritable_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "_checkpoints").touch()
    with pytest.raises(AlreadyRunningError, match="cannot be written"):
        hold(tmp_path, "lag")


# --- the lease -----------------------------------------------------------------------------------------------


class Shared:
    """A file system shared by several drivers, with a clock that advances when a driver waits."""

    path = "s3a://lake/_checkpoints/lag.lease"

    def __init__(self) -> None:
        self.text: str | None = None
        self.waited = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def read(self) -> str | None:
        return self.text

    def write(self, text: str) -> None:
        self.text = text

    def delete(self) -> None:
        self.text = None

    def pause(self, seconds: float) -> None:
        self.waited += seconds
        self.meanwhile()

    def lease(self) -> Lease:
        return Lease(self, "lag", self.pause)


@pytest.fixture
def place() -> Shared:
    return Shared()


def test_lease_take_while_holder_renews_is_refused(place: Shared) -> None:
    holder = place.lease()
    holder.take(print)
    place.meanwhile = holder.renew
    with pytest.raises(AlreadyRunningError, match=r"job lag is already run by pid \d+ on .*, which holds s3a://lake"):
        place.lease().take(print)
    assert holder.renew() is None


def test_lease_take_after_holder_was_killed_succeeds_despite_clock_skew(place: Shared) -> None:
    dead = place.lease()
    dead.take(print)
    place.text = json.dumps({**json.loads(str(place.text)), "since": "2099-01-01 00:00:00 UTC"})
    place.waited = 0
    lines: list[str] = []
    heir = place.lease()
    heir.take(lines.append)
    assert place.waited >= EXPIRE_SECONDS
    assert len(lines) == 1
    assert heir.renew() is None
    assert "is already run by" in str(dead.renew())
    dead.release()
    assert place.text is not None
    heir.release()
    assert place.text is None


def test_lease_take_after_release_does_not_wait_for_expiry(place: Shared) -> None:
    first = place.lease()
    first.take(print)
    first.release()
    place.waited = 0
    place.lease().take(print)
    assert place.waited < EXPIRE_SECONDS


def test_lease_two_concurrent_takes_refuses_one(place: Shared) -> None:
    other = Lease(place, "lag", lambda _seconds: None)
    place.meanwhile = lambda: other.take(print) if place.waited == 2.0 else None
    with pytest.raises(AlreadyRunningError):
        place.lease().take(print)
    assert other.renew() is None
