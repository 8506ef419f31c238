"""The page of brokers: what would happen if they stopped together."""

from __future__ import annotations

from http import HTTPStatus

from grouptrail.query.show_what_if import consequence_texts
from grouptrail.query.what_if import NotSampledError, UnknownBrokerError, describe_loss
from grouptrail.web.answers import BrokersQuery, Stop, StoppedGroup
from grouptrail.web.group_index import GroupIndex
from grouptrail.web.requests import PageError, of_cluster

MOST_LISTED = 500
"""Topics and groups of an answer."""

_MOST_BROKER_ID = 2**31 - 1


def broker_page(index: GroupIndex, ids: str, query: BrokersQuery) -> Stop:
    """Return what a stop of brokers would do. Raises PageError for unknown ones, and if none were sampled."""
    clusters = {name: index.served(name) for name in index.clusters}
    served = of_cluster(clusters, query.cluster) if query.cluster else clusters[index.clusters[0]]
    racks = [query.rack] if query.rack else []
    try:
        loss = describe_loss(
            served.warehouse, _parsed(ids), racks=racks, at=query.at, sample_seconds=served.sample_seconds
        )
    except UnknownBrokerError as error:
        near = list(map(str, error.near))
        raise PageError(HTTPStatus.NOT_FOUND, str(error), near, kind="brokers") from error
    except NotSampledError as error:
        raise PageError(HTTPStatus.NOT_FOUND, str(error)) from error
    groups, topics = loss["groups"], loss["topics"]
    listed = {
        "groups_total": len(groups),
        "groups": [
            {name: group[name] for name in StoppedGroup.model_fields if name != "meaning"}
            | {"meaning": list(consequence_texts(group))}
            for group in groups[:MOST_LISTED]
        ],
        "topics_total": len(topics),
        "topics": topics[:MOST_LISTED],
        "notices": list(index.of(served.name).notices),
    }
    known = {name: loss[name] for name in Stop.model_fields if name in loss}
    return Stop.model_validate({**known, **listed})


def _parsed(ids: str) -> list[int]:
    """Return the ids of a path such as `3` or `3,4`."""
    parts = [part.strip() for part in ids.split(",") if part.strip()]
    wrong = [
        part for part in parts if not (part.isascii() and part.isdecimal() and int(part[:11]) <= _MOST_BROKER_ID)
    ]
    if wrong:
        detail = f"{wrong[0][:50]!r} is no id of a broker: give numbers such as 3, or 3,4"
        raise PageError(HTTPStatus.BAD_REQUEST, detail)
    return [int(part) for part in parts]
