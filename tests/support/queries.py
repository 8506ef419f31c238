"""Queries of `grouptrail sql`, asked within the process."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from grouptrail.config import Config
from grouptrail.query.errors import QueryError
from grouptrail.query.formats import TextFormat
from grouptrail.query.sql import Engine, run_sql
from support.from_config import sql_context


def printed(config: Config, text: str, format: TextFormat = "json", engine: Engine | None = None) -> str:
    """Return what `grouptrail sql` prints, by default with delta-rs."""
    out = io.StringIO()
    run_sql(sql_context(config, engine), text, format=format, out=out)
    return out.getvalue()


def asked(config: Config, text: str, engine: Engine | None = None) -> list[dict[str, Any]]:
    """Return the rows of a query's answer, as they are in its JSON."""
    return [json.loads(line) for line in printed(config, text, engine=engine).splitlines()]


def refused(config: Config, text: str) -> str:
    """Return the line with which a query is refused."""
    with pytest.raises(QueryError) as caught:
        printed(config, text)
    assert "\n" not in str(caught.value)
    return str(caught.value)
