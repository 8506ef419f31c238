"""Pages are compressed for clients that accept it: how small, and which are not."""

from __future__ import annotations

import gzip
import re

import pytest

from grouptrail.config import Config
from support.exporter_tables import configured, lag_row
from support.small_tables import lay
from support.web_client import LOCAL, Site

ACCEPTED = {"Accept-Encoding": "br;q=1.0, gzip;q=0.8"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    config: Config = configured(tmp_path_factory.mktemp("lake"))
    lay(config, "consumer_lag", *(lag_row(number % 7, group_id=f"team-{number:03d}") for number in range(300)))
    return Site(config)


def without_times(text: str) -> str:
    return re.sub(r"[\d.]+ m?s ago|>now<", "", text)


@pytest.mark.parametrize("path", ["/?per_page=300", "/api/v1/groups?per_page=300"])
def test_long_page_for_a_client_that_accepts_gzip_is_less_than_a_sixth(site: Site, path: str) -> None:
    plain = site.client.get(path, base_url=LOCAL)
    packed = site.client.get(path, base_url=LOCAL, headers=ACCEPTED)
    assert (plain.headers.get("Content-Encoding"), packed.headers["Content-Encoding"]) == (None, "gzip")
    assert "Accept-Encoding" in plain.headers["Vary"]
    assert "Accept-Encoding" in packed.headers["Vary"]
    assert without_times(gzip.decompress(packed.data).decode()) == without_times(plain.text)
    assert int(packed.headers["Content-Length"]) == len(packed.data) < len(plain.data) / 6


def test_head_of_a_compressed_page_has_its_length_and_no_body(site: Site) -> None:
    answer = site.client.head("/?per_page=300", base_url=LOCAL, headers=ACCEPTED)
    assert answer.headers["Content-Encoding"] == "gzip"
    assert int(answer.headers["Content-Length"]) > 1000
    assert answer.data == b""


@pytest.mark.parametrize("accepted", ["", "identity", "gzip;q=0", "br"])
def test_client_that_does_not_accept_gzip_gets_plain_text(site: Site, accepted: str) -> None:
    answer = site.client.get("/", base_url=LOCAL, headers={"Accept-Encoding": accepted})
    assert answer.headers.get("Content-Encoding") is None
    assert "<h1>Consumer groups</h1>" in answer.text


def test_short_answer_is_not_compressed(site: Site) -> None:
    answer = site.client.get("/api/v1/groups?group=nothing", base_url=LOCAL, headers=ACCEPTED)
    assert answer.headers.get("Content-Encoding") is None


def test_style_is_compressed_and_kept(site: Site) -> None:
    path = site.get("/").partition('rel="stylesheet" href="')[2].partition('"')[0]
    answer = site.client.get(path, base_url=LOCAL, headers=ACCEPTED)
    assert answer.headers["Content-Encoding"] == "gzip"
    assert "immutable" in answer.headers["Cache-Control"]
    assert b".verdicts" in gzip.decompress(answer.data)


def test_parquet_is_not_compressed_again(site: Site) -> None:
    query = "SELECT group_id, lag FROM consumer_lag"
    answer = site.client.get(
        "/api/v1/sql", base_url=LOCAL, headers=ACCEPTED, query_string={"q": query, "format": "parquet"}
    )
    assert answer.headers.get("Content-Encoding") is None
    assert answer.data[:4] == b"PAR1"
