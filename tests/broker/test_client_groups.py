"""Other people's clients on a real broker: their groups are read as the recorded ones are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from grouptrail.history.assignors import explain
from servers.kafka import Broker
from support.client_groups import CLIENTS, Client, Programs, record
from support.client_records import Dealt, Recorded, lines_dealt, recorded_group

pytestmark = pytest.mark.full

GROUPS = [(client, assignor) for client in CLIENTS for assignor in client.assignors]
# It goes through sets of strings, whose order is another in each process.
VARYING = {("aiokafka", "sticky")}
TOOLS = {"go": ("go",), "node": ("node", "npm"), "python": ()}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("clients"))


def command(programs: Programs, client: Client) -> list[str]:
    """Return the client's command; skip where its language or its packages are not to be had, but fail in CI."""
    missing = [tool for tool in TOOLS[client.language] if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} on this machine")
    try:
        return programs.command(client)
    except subprocess.CalledProcessError as error:
        reason = f"{client.library} cannot be built: {error.stderr.decode()[-500:]}"
        pytest.fail(reason) if "CI" in os.environ else pytest.skip(reason)


@pytest.mark.parametrize(("client", "assignor"), GROUPS, ids=[f"{one.library}-{name}" for one, name in GROUPS])
def test_group_of_another_client_is_read_as_the_recorded_one(
    broker: Broker, programs: Programs, client: Client, assignor: str
) -> None:
    """The same topics and error; an assignment that was recognised is so again, and none is called another."""
    command(programs, client)
    found = Recorded.from_json(record(broker, programs, client, assignor))
    known = recorded_group(client.library, assignor)
    row, expected = found.newest_generation(), known.newest_generation()
    assert [member["topics"] for member in row["members"]] == [member["topics"] for member in expected["members"]]
    assert found.subscription_error() == known.subscription_error()
    assert row["is_assignors_own"] is not False
    assert row["is_assignors_own"] or not expected["is_assignors_own"] or (client.library, assignor) in VARYING
    owned = {
        member["member_id"]: {one["topic"]: one["partitions"] for one in member["partitions"]}
        for member in row["members"]
    }
    assert owned == found.owned


def test_assignments_that_go_libraries_compute_now_are_not_called_another(programs: Programs, tmp_path: Path) -> None:
    """For the recorded groups; some of them differ each time."""
    program, _ = command(programs, next(client for client in CLIENTS if client.language == "go"))
    lines = lines_dealt()
    groups = "".join(json.dumps(line) + "\n" for line in lines)
    printed = subprocess.run([program, "deal"], input=groups, capture_output=True, text=True, check=True).stdout
    for line, dealt in zip(lines, printed.splitlines(), strict=True):
        group = Dealt.from_json(line | {"dealt": json.loads(dealt)})
        assert explain(group.assignor, group.subscribers, group.counts, group.assigned).is_own is not False
