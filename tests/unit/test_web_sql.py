"""The page of SQL, its JSON and its exports."""

from __future__ import annotations

import csv
import io
import json
import re
import socket
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow.parquet as pq
import pytest
from werkzeug.datastructures import Headers

from grouptrail import contracts
from grouptrail.config import Config, load_config
from grouptrail.runtime.serving import exporter_with_pages
from grouptrail.storage.sql import datafusion_literal
from grouptrail.web.answers import MAX_SQL, SqlRows
from grouptrail.web.pages import _QUERIES, Pages
from grouptrail.web.security import is_foreign
from grouptrail.web.sql_page import MAX_LINK
from support.deadlines import scaled, until
from support.web_client import LOCAL, Site, fetched

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\n{{7*7}}"
LAG = "SELECT sampled_at, topic, partition, lag, lag_seconds FROM consumer_lag WHERE group_id = 'billing'"


def configured(example: Config, **web: Any) -> Config:
    named = {f"web.{name}": str(value) for name, value in web.items()}
    return load_config(None, {"warehouse": example.warehouse, "exporter.listen": "127.0.0.1:0", **named}, {})


@pytest.fixture(scope="module")
def site(example: Config) -> Site:
    return Site(configured(example, sql_max_rows=1000, sql_timeout_seconds=25))


def page(site: Site, q: str, *, status: int = 200, **parameters: str) -> str:
    return site.get(f"/sql?{urlencode({'q': q, **parameters})}", status=status)


def api(site: Site, q: str, *, status: int = 200, **parameters: str) -> str:
    return site.get(f"/api/v1/sql?{urlencode({'q': q, **parameters})}", status=status)


def text_of(html: str) -> str:
    """Return the visible text of a page."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def test_page_without_a_query_lists_every_table_view_column_and_recipe(site: Site) -> None:
    html = site.get("/sql")
    for source in (*contracts.tables().values(), *contracts.views().values()):
        assert f">{source.name}</a>" in html
        assert all(f"<code>{column.name}</code>" in html for column in source.columns)
    links = [unescape(link) for link in re.findall(r'href="(/sql\?[^"]+)"', html)]
    recipes = {f"/sql?{urlencode({'q': view.example})}" for view in contracts.views().values()}
    assert recipes <= set(links)


def test_recipe_of_another_group_says_which_groups_there_are(site: Site) -> None:
    assert "3 rows in" in text_of(page(site, "SELECT * FROM owners_at('billing', '2026-03-04T12:01:30Z')"))
    assert "did you mean billing?" in page(site, "SELECT * FROM owners_at('biling', now())", status=400)


def test_page_shows_types_null_and_numbers_on_the_right(site: Site) -> None:
    html = page(site, "SELECT 'a' AS name, NULL AS nothing, 7 AS seven, TIMESTAMP '2026-03-04T12:00:00Z' AS at")
    assert '<th scope="col" class="number">seven<small>bigint</small></th>' in html
    assert '<td class="number">7</td>' in html
    assert '<td><span class="null">NULL</span></td>' in html
    assert "<td>a</td>" in html
    assert '<td class="whole">2026-03-04 12:00:00' in html
    assert "1 row in" in html


def test_page_shows_times_in_utc(site: Site) -> None:
    assert ">2026-03-04 12:00:00Z<" in page(site, "SELECT at FROM rebalances ORDER BY at LIMIT 1")


def test_wrong_query_stays_in_the_editor_with_one_line(site: Site) -> None:
    html = page(site, "SELECT * FROM rebalancs -- <b>", status=400)
    assert "There is no table rebalancs: did you mean rebalances?" in html
    assert "SELECT * FROM rebalancs -- &lt;b&gt;</textarea>" in html
    assert 'role="alert"' in html
    assert 'aria-invalid="true"' in html


def test_editor_keeps_lines_of_a_query_also_an_empty_first_one(site: Site) -> None:
    """HTML drops one line end after <textarea>."""
    assert 'name="q"' in page(site, "\nSELECT 1")
    assert re.search(r"<textarea[^>]*>\n\nSELECT 1</textarea>", page(site, "\nSELECT 1"))


def test_result_beyond_the_limit_says_so_on_page_in_json_and_in_exports(site: Site) -> None:
    query = "SELECT value FROM generate_series(1, 5000)"
    html = text_of(page(site, query))
    assert "These are the first 1,000 rows, and the query has more" in html
    assert "The first 500 of 1,000 rows are shown; exports have all of them" in html
    rows_shown = SqlRows.model_validate_json(api(site, query))
    assert (len(rows_shown.rows), rows_shown.is_cut) == (1000, True)
    answer = site.client.get(f"/api/v1/sql?{urlencode({'q': query, 'format': 'csv'})}", base_url=LOCAL)
    assert answer.headers["X-Grouptrail-Is-Cut"] == "true"


def test_result_of_old_data_says_so_on_page_in_json_and_in_exports(site: Site) -> None:
    query = "SELECT group_id FROM current_lag"
    assert re.search(r"As of 2026-03-04 .* ago\): nothing has been recorded since", text_of(page(site, query)))
    assert json.loads(api(site, query))["note"].startswith("as of 2026-03-04 ")
    exported = site.client.get(f"/api/v1/sql?{urlencode({'q': query, 'format': 'csv'})}", base_url=LOCAL)
    assert exported.headers["X-Grouptrail-Note"].startswith("as of 2026-03-04 ")
    assert json.loads(api(site, "SELECT 1 AS one"))["note"] is None


def test_json_has_rows_by_the_names_of_columns(site: Site) -> None:
    answer = json.loads(api(site, "SELECT at, cause, partitions_moved FROM rebalances ORDER BY at LIMIT 1"))
    assert answer["columns"] == [
        {"name": "at", "type": "timestamp"},
        {"name": "cause", "type": "string"},
        {"name": "partitions_moved", "type": "int"},
    ]
    assert answer["rows"] == [{"at": "2026-03-04T12:00:00Z", "cause": "group_started", "partitions_moved": 0}]
    assert (answer["cluster"], answer["is_cut"]) == ("default", False)


def test_exports_have_the_rows(site: Site) -> None:
    query = "SELECT group_id, lag FROM consumer_lag WHERE lag IS NOT NULL ORDER BY group_id, lag"
    expected = [(row["group_id"], row["lag"]) for row in json.loads(api(site, query))["rows"]]
    assert len(expected) > 3
    lines = api(site, query, format="jsonl").splitlines()
    assert [tuple(json.loads(line).values()) for line in lines] == expected
    read = list(csv.DictReader(io.StringIO(api(site, query, format="csv"))))
    assert [(row["group_id"], int(row["lag"])) for row in read] == expected
    table = api(site, query, format="markdown").splitlines()
    assert [tuple(line.strip("| ").split(" | ")) for line in table[2:]] == [(one, str(lag)) for one, lag in expected]
    answer = site.client.get(f"/api/v1/sql?{urlencode({'q': query, 'format': 'parquet'})}", base_url=LOCAL)
    assert answer.headers["Content-Disposition"] == 'attachment; filename="grouptrail.parquet"'
    parquet = pq.read_table(io.BytesIO(answer.data)).to_pylist()
    assert [tuple(row.values()) for row in parquet] == expected


def test_reset_offsets_export_is_what_kafka_reads(site: Site) -> None:
    query = "SELECT * FROM offsets_as_of('billing', '2026-03-04T12:02:30Z')"
    assert api(site, query, format="reset-offsets") == "orders,0,15\n"
    assert "the query has no column topic" in api(site, "SELECT 1", format="reset-offsets", status=400)


def test_page_links_the_other_view_and_exports_with_the_query(site: Site) -> None:
    html = unescape(page(site, "SELECT 'a&b' AS x", view="chart"))
    given = urlencode({"q": "SELECT 'a&b' AS x"})
    assert f'href="?{given}"' in html
    assert f'href="/api/v1/sql?{given}&format=csv"' in html
    assert '<input type="hidden" name="view" value="chart">' in html


def test_chart_of_lag_has_lines_axes_and_a_legend(site: Site) -> None:
    html = page(site, LAG, view="chart")
    assert html.count('class="panel"') == 2
    assert '<path class="series-0" d="M' in html
    assert 'lag_seconds <span class="faint">in s</span>' in html
    assert "orders · 0</li>" in html
    assert "UTC</p>" in html
    assert "style=" not in html


def test_chart_of_texts_and_numbers_has_bars(site: Site) -> None:
    html = page(
        site, "SELECT group_id, count(*) AS commits FROM offset_commits GROUP BY 1 ORDER BY 2 DESC", view="chart"
    )
    assert html.count("<rect ") >= 2
    assert '<th scope="row">billing</th>' in html


def test_columns_without_a_chart_say_what_fits(site: Site) -> None:
    assert "These columns fit no chart: select a time and numbers" in page(site, "SELECT 1 AS one", view="chart")


@pytest.mark.parametrize("view", ["table", "chart"])
def test_hostile_names_and_values_are_shown_as_text(site: Site, view: str) -> None:
    quoted = HOSTILE.replace("'", "''")
    named = HOSTILE.replace('"', '""')
    html = page(site, f'SELECT \'{quoted}\' AS "{named}", 7 AS "n{named}"', view=view)
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    shown = html.partition('class="views"')[2].partition("</section>")[0]
    assert "\u202e" not in re.sub(r"<a href=[^>]*>", "", shown)
    assert "&lt;script&gt;alert(1)" in shown
    assert "{{7*7}}" in shown


def test_huge_cells_are_cut_on_the_page_alone(site: Site) -> None:
    query = "SELECT repeat('x', 100000) AS wide"
    assert len(page(site, query)) < len(site.get("/sql")) + 10_000
    assert len(json.loads(api(site, query))["rows"][0]["wide"]) == 100_000


def test_plan_keeps_its_lines(site: Site) -> None:
    html = page(site, "EXPLAIN SELECT * FROM rebalances")
    assert 'class="result plan"' in html
    assert re.search(r"<td>[^<]*\n[^<]*</td>", html)


FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "-", "-inf")
NO_FORMULAS = ("-5", "+5", "-1.5e-3", "a=1", " -x", "", "'=1")


def test_csv_begins_formulas_with_an_apostrophe_unless_guard_is_false(site: Site) -> None:
    """Also names of columns. Numbers stay numbers, and other formats have no guard."""
    texts = (*FORMULAS, *NO_FORMULAS)
    values = ", ".join(f"({number}, {datafusion_literal(text)})" for number, text in enumerate(texts))
    columns = 'place AS "=place", text, -place AS negative, -1.5 AS part'
    query = f"SELECT {columns} FROM (VALUES {values}) AS t(place, text) ORDER BY place"

    def read(**parameters: str) -> list[list[str]]:
        return list(csv.reader(io.StringIO(api(site, query, format="csv", **parameters), newline="")))

    (guarded, *rows), (plain, *plain_rows) = read(), read(guard="false")
    assert (guarded[0], plain[0]) == ("'=place", "=place")
    assert [row[1] for row in plain_rows] == list(texts)
    assert [row[1] for row in rows] == [*(f"'{text}" for text in FORMULAS), *NO_FORMULAS]
    assert [row[2:] for row in rows] == [row[2:] for row in plain_rows]
    assert rows[3][2:] == ["-3", "-1.5"]
    assert json.loads(api(site, query, format="jsonl").splitlines()[0])["text"] == FORMULAS[0]


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({}, "parameter q"),
        ({"q": ""}, "parameter q"),
        ({"q": " "}, "only queries are answered: begin with SELECT"),
        ({"q": "DROP TABLE rebalances"}, "only queries are answered: begin with SELECT"),
        ({"q": "SELECT 1", "format": "exe"}, "parameter format"),
        ({"q": "SELECT 1", "limit": "3"}, "there is no parameter limit: q, cluster, format, guard are known"),
        ({"q": "x" * (MAX_SQL + 1)}, "parameter q: String should have at most"),
    ],
)
def test_wrong_request_is_refused_with_one_line(site: Site, parameters: dict[str, str], complaint: str) -> None:
    problem = json.loads(site.get(f"/api/v1/sql?{urlencode(parameters)}", status=400))
    assert complaint in problem["detail"]
    assert "\n" not in problem["detail"]


def test_unknown_cluster_is_not_found(site: Site) -> None:
    assert "there is no cluster 'east': known are default" in api(site, "SELECT 1", cluster="east", status=404)
    page(site, "", cluster="east", status=404)


def test_views_read_the_cluster_that_is_asked_for(example: Config) -> None:
    others = [configured(example).model_copy(update={"cluster": name}) for name in ("other", "elsewhere")]
    site = Site(configured(example), *others)
    query = "SELECT count(*) AS groups FROM worst_groups"
    assert json.loads(api(site, query))["rows"] == [{"groups": 3}]
    assert json.loads(api(site, query, cluster="other"))["rows"] == [{"groups": 3}]
    html = page(site, query, cluster="other")
    assert '<option value="other" selected>' in html
    assert "cluster=other" in html.partition('class="recipes"')[2]
    assert 'has no cluster "elsewhere": it has "default", "other"' in page(
        site, query, cluster="elsewhere", status=400
    ).replace("&#34;", '"')


@pytest.mark.parametrize("setting", ["sql_timeout_seconds", "sql_max_queries"])
def test_settings_limit_queries(example: Config, setting: str) -> None:
    value, expected = {"sql_timeout_seconds": (1, "longer than 1 s"), "sql_max_queries": (0, "SQL is disabled")}[
        setting
    ]
    site = Site(configured(example, **{setting: value}))
    endless = (
        "SELECT count(*) FROM generate_series(1, 10000000) a, generate_series(1, 10000000) b WHERE a.value < b.value"
    )
    assert expected in page(site, endless, status=400)


def test_empty_warehouse_says_that_nothing_has_landed(tmp_path: Path) -> None:
    site = Site(configured(Config(warehouse=str(tmp_path))))
    assert "Nothing has landed in consumer_lag" in page(site, LAG, status=400)


CROSS = {"Sec-Fetch-Site": "cross-site"}
OPENED = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "none", **OPENED}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}, 200),
        ({**CROSS, **OPENED}, 200),
        ({**CROSS, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ({**CROSS, "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}, 403),
        ({**CROSS, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        (CROSS, 403),
    ],
)
def test_request_of_another_site_is_foreign_but_a_link_is_not(headers: dict[str, str], status: int) -> None:
    """Another port of this machine is the same site to a browser, but another program."""
    assert is_foreign(Headers(headers)) == (status == 403)


@pytest.mark.parametrize("path", ["/", "/sql", "/sql?q=SELECT+1", "/api/v1/sql?q=SELECT+1"])
def test_request_of_another_site_is_refused(site: Site, path: str) -> None:
    assert "ages of other sites get no answer" in site.get(path, status=403, **CROSS)
    assert site.get("/sql", **CROSS, **OPENED)


LONG = f"SELECT 6 * 7 AS answer -- {'x' * MAX_LINK}"


def test_form_of_a_short_query_leads_to_its_link(site: Site) -> None:
    answer = site.client.post("/sql", base_url=LOCAL, data={"q": "SELECT 1", "view": "chart"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/sql?q=SELECT+1&view=chart")


@pytest.mark.parametrize("query", ["", " \n"])
def test_form_without_a_query_leads_to_the_editor(site: Site, query: str) -> None:
    answer = site.client.post("/sql", base_url=LOCAL, data={"q": query}, follow_redirects=True)
    assert answer.status_code == 200
    assert "Choose a recipe" in answer.text


def test_form_of_a_query_too_long_for_a_link_shows_its_result_and_says_so(site: Site) -> None:
    answer = site.client.post("/sql", base_url=LOCAL, data={"q": LONG})
    assert answer.status_code == 200
    assert '<td class="number">42</td>' in answer.text
    assert "too long for a link" in text_of(answer.text)
    assert 'href="?' not in answer.text
    assert f'name="q" value="{LONG}"' in unescape(answer.text)
    chart = site.client.post("/sql", base_url=LOCAL, data={"q": LONG, "view": "chart"})
    assert re.search(r'value="chart" aria-current="page"', chart.text)


def test_form_with_the_longest_query_is_answered_and_a_longer_one_refused(site: Site) -> None:
    longest = "SELECT '" + "ß" * (MAX_SQL - 9) + "'"
    assert site.client.post("/sql", base_url=LOCAL, data={"q": longest}).status_code == 200
    refused = site.client.post("/sql", base_url=LOCAL, data={"q": f"{longest} "})
    assert refused.status_code == 400
    assert "at most 50000 characters" in refused.text


def test_api_answers_a_form_like_an_address(site: Site) -> None:
    response = site.client.post("/api/v1/sql", base_url=LOCAL, data={"q": LONG})
    assert response.json is not None
    assert response.json["rows"] == [{"answer": 42}]
    table = site.client.post("/api/v1/sql?format=csv", base_url=LOCAL, data={"q": LONG})
    assert table.text.splitlines() == ["answer", "42"]


@pytest.mark.parametrize("path", ["/sql", "/api/v1/sql"])
@pytest.mark.parametrize(
    ("headers", "is_answered"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": LOCAL}, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, False),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, False),
        ({"Origin": "https://evil.example.com"}, False),
        ({"Origin": "null"}, False),
    ],
)
def test_form_that_a_page_of_another_site_sends_is_refused(
    site: Site, path: str, headers: dict[str, str], is_answered: bool
) -> None:
    """Links to queries are answered, forms of other sites are not, even if they open a page."""
    answer = site.client.post(path, base_url=LOCAL, data={"q": LONG}, headers=headers)
    assert answer.status_code == (200 if is_answered else 403)


@pytest.mark.parametrize("type_", ["text/plain", "application/json", "multipart/form-data; boundary=x"])
def test_body_that_is_no_plain_form_is_refused(site: Site, type_: str) -> None:
    answer = site.client.post("/api/v1/sql", base_url=LOCAL, data=b"q=SELECT+1", content_type=type_)
    assert answer.status_code == 415


@pytest.mark.parametrize("path", ["/", "/groups/billing", "/topics/orders", "/api/v1/groups", "/api/v1/openapi.json"])
def test_form_for_another_page_is_not_allowed(site: Site, path: str) -> None:
    answer = site.client.post(path, base_url=LOCAL, data={"q": "SELECT 1"})
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("is_form", [True, False])
def test_query_whose_client_is_gone_makes_room_for_the_next_one(example: Config, is_form: bool) -> None:
    """The next one is answered, although one at a time is run and the first has many seconds left."""
    endless = urlencode({"q": "SELECT sum(a.value % b.value) FROM range(1, 9999999) a, range(1, 9999999) b"})
    target, body = ("/api/v1/sql", endless) if is_form else (f"/sql?{endless}", "")
    head = f"{'POST' if is_form else 'GET'} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    config = configured(example, sql_max_queries=1, sql_timeout_seconds=25)
    with exporter_with_pages([config], lambda _: None) as running:
        assert fetched(running.url, "/api/v1/sql?q=SELECT+1")[0] == 200
        pages = running._endpoints.pages
        assert isinstance(pages, Pages)
        host, port = running.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=scaled(30)) as client:
            client.sendall(f"{head}Content-Type: application/x-www-form-urlencoded\r\n\r\n{body}".encode())
            until(lambda: pages._queries._answered._value < _QUERIES)
        assert fetched(running.url, "/api/v1/sql?q=SELECT+1")[0] == 200
        until(lambda: pages._queries._answered._value == _QUERIES)
