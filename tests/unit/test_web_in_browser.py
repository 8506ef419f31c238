"""The web pages in Chromium: no errors, at any width, in both colour schemes, by keyboard and without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from urllib.parse import urlencode

import pytest

from grouptrail.config import Config
from grouptrail.exporter.service import Exporter
from grouptrail.runtime.serving import exporter_with_pages
from support import sample_groups, small_tables
from support.broker_facts import lay_cluster
from support.chromium import Browser, Page
from support.deadlines import until
from support.exporter_tables import OPEN, configured, lag_row, lag_table, now, progress
from support.small_tables import lay
from support.streams_tables import lay_streams_group

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\n{{7*7}}"
LAG_OVER_TIME = """SELECT sampled_at, topic, sum(lag) AS lag, max(lag_seconds) AS lag_seconds
FROM consumer_lag
WHERE group_id = 'billing'
GROUP BY sampled_at, topic"""
REBALANCES_BY_CAUSE = """SELECT cause, count(*) AS rebalances, sum(partitions_moved) AS partitions_moved
FROM rebalances
GROUP BY cause
ORDER BY rebalances DESC"""
_VALUE, _NAME = HOSTILE.replace("'", "''"), HOSTILE.replace('"', '""')
HOSTILE_ROWS = f"""SELECT '{_VALUE}' AS "{_NAME}", 7 AS "n{_NAME}", '{_VALUE}' AS plain"""
PAGES = {
    "groups": "/",
    "topics": "/topics",
    "rebalances": "/rebalances",
    "changes": "/changes?since=deploy",
    "group": "/groups/billing",
    "group-deployed": "/groups/deployed",
    "group-streams": "/groups/app",
    "rollouts": "/rollouts/deployed",
    "topic": "/topics/orders",
    "brokers": "/brokers/3",
    "group-at": "/groups/billing?at={at}",
    "not-found": "/groups/biling",
    "hostile-group": "/groups/{hostile}",
    "hostile-search": "/?group={hostile}",
    "sql": "/sql",
    "sql-table": f"/sql?{urlencode({'q': 'SELECT * FROM group_states ORDER BY started_at'})}",
    "sql-lines": f"/sql?{urlencode({'q': LAG_OVER_TIME, 'view': 'chart'})}",
    "sql-bars": f"/sql?{urlencode({'q': REBALANCES_BY_CAUSE, 'view': 'chart'})}",
    "sql-error": f"/sql?{urlencode({'q': 'SELECT * FROM rebalancs'})}",
    "sql-hostile": f"/sql?{urlencode({'q': HOSTILE_ROWS, 'view': 'chart'})}",
}
# The least contrast of all texts on a page with what is behind them (WCAG 2.2, 1.4.3).
LEAST_CONTRAST = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const luminance = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return rgb(getComputedStyle(document.documentElement).backgroundColor);
  };
  let least = [99, ""];
  for (const element of document.querySelectorAll("body *:not(svg *, script, option)")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!hasText || !element.checkVisibility()) continue;
    const lights = [rgb(getComputedStyle(element, "::first-line").color), behind(element)].map(luminance);
    const contrast = (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
    if (contrast < least[0]) least = [contrast, element.outerHTML.slice(0, 200)];
  }
  return least;
})()
"""

ROLLOUTS_ARE_LOADED = "document.querySelector('#rollouts[data-source] > p a') === null"

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A group with an eventful history that ends now, one with a hostile name, and some more."""
    config = configured(tmp_path_factory.mktemp("lake"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_tables, "NOON", now() - timedelta(minutes=91))
        patch.setattr(sample_groups, "KNOWN_UNTIL", small_tables.at(90))
        sample_groups.billing(config)
        sample_groups.deployed(config)
        lay_streams_group(config)
    lay(config, "ingest_progress", progress(0, 10))
    lay_cluster(config, HOSTILE)
    lay(config, "group_states", *({**OPEN, "group_id": name, "state": "Stable"} for name in ("billing", HOSTILE)))
    return config


def sample(**of_stopped: object) -> list[dict[str, object]]:
    """Return current rows of lag for many groups; `of_stopped` are values of one of them."""
    several = [lag_row(number % 3, group_id=f"team-{number:02d}-service") for number in range(60)]
    own = [lag_row(number) for number in range(6)]
    stopped = lag_row(2, **{"group_id": "ledger", "status": "STOP", "lag_seconds": 5400.0, **of_stopped})
    return [*several, *own, stopped, lag_row(3, group_id=HOSTILE, topic=HOSTILE, status="REWIND")]


@pytest.fixture(scope="module")
def exporter(config: Config) -> Iterator[Exporter]:
    """A server of these tables, to which the newest samples have been published."""
    with exporter_with_pages([config], lambda _: None) as running:
        running.publish(config.cluster, lag_table(*sample()))
        until(lambda: running.page is not None and len(running.page.snapshots[0].lag))
        yield running


@pytest.fixture
def visit(browser: Browser, exporter: Exporter) -> Iterator[Visit]:
    """Open a page; at the end its console must have no errors and no violations of the policy."""
    opened: list[Page] = []

    def visit_(path: str, **options: object) -> Page:
        encoded = "".join(f"%{byte:02X}" for byte in HOSTILE.encode())
        at = f"{now() - timedelta(minutes=30):%Y-%m-%dT%H:%M:%SZ}"
        opened.append(browser.visit(exporter.url + path.format(hostile=encoded, at=at), **options))  # type: ignore[arg-type]
        return opened[-1]

    yield visit_
    for page in opened:
        page.close()
    statuses = ("404 (NOT FOUND)", "400 (BAD REQUEST)")
    expected = {f"Failed to load resource: the server responded with a status of {status}" for status in statuses}
    assert [message for page in opened for message in page.messages if message not in expected] == []


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [1400, 360])
def test_page_is_wide_as_the_window_and_readable(visit: Visit, name: str, width: int) -> None:
    page = visit(PAGES[name], size=(width, 900))
    page.wait_for(ROLLOUTS_ARE_LOADED)
    for scheme in ("light", "dark"):
        page.show_scheme(scheme)
        page.screenshot(f"web-{name}-{width}-{scheme}", whole=True)
        assert page.value("document.documentElement.scrollWidth") <= width
        contrast, of = page.value(LEAST_CONTRAST)
        assert contrast >= 4.5, of
    assert page.value("[...document.querySelectorAll('img')].every((image) => image.naturalWidth > 0)")


@pytest.mark.parametrize("name", PAGES)
def test_page_has_one_heading_a_landmark_and_headers_with_scope(visit: Visit, name: str) -> None:
    page = visit(PAGES[name])
    assert page.value("document.querySelectorAll('h1').length") == 1
    assert page.value("document.querySelectorAll('main').length") == 1
    assert page.value("document.documentElement.lang") == "en"
    assert page.value("[...document.querySelectorAll('th')].filter((head) => !head.scope).length") == 0
    assert page.value("[...document.querySelectorAll('input:not([type=hidden]), select, textarea')].filter((one) => "
                      "!one.labels.length && !one.ariaLabel).length") == 0  # fmt: skip
    assert page.value("document.querySelectorAll('[style]:not(#picture *, #tip, #picture)').length") == 0


def test_hostile_name_is_shown_as_text_on_every_page(visit: Visit) -> None:
    for path in (
        "/",
        PAGES["hostile-group"],
        PAGES["hostile-search"],
        "/topics/{hostile}",
        "/brokers/3",
        PAGES["sql-hostile"],
    ):
        page = visit(path)
        assert page.value("document.querySelectorAll('main script:not([type]), main img').length") == 0
        assert "<script>alert(1)</script>" in page.value("document.querySelector('main').textContent")


def test_link_of_a_hostile_name_leads_to_its_page(visit: Visit) -> None:
    page = visit("/?status=REWIND")
    page.value("document.querySelector('tbody th a').click()")
    page.wait_for("document.readyState === 'complete' && document.title.startsWith('<script>')")
    assert page.value("document.querySelector('h1').textContent").startswith("<script>alert(1)</script>")


def test_skip_link_is_the_first_that_the_keyboard_reaches(visit: Visit) -> None:
    page = visit("/")
    page.send("Input.dispatchKeyEvent", type="keyDown", key="Tab", windowsVirtualKeyCode=9)
    assert page.value("document.activeElement.className") == "skip"
    assert page.value("document.activeElement.getBoundingClientRect().left") >= 0


def test_group_page_draws_the_timeline_and_links_rebalances(visit: Visit) -> None:
    page = visit("/groups/billing#generation-5")
    page.wait_for("document.documentElement.dataset.drawnMs !== undefined")
    assert page.value("document.querySelectorAll('#lanes path.span').length") >= 3  # one for each colour
    assert page.value("document.querySelector('tr:target').id") == "generation-5"
    assert page.value("document.querySelectorAll('.chart.lag path').length") > 5


NOTE_REQUESTS = """{
  window.asked = [];
  const original = fetch;
  window.fetch = (address, ...more) => {
    asked.push(address);
    return original(address, ...more);
  };
}"""
MARKS = "[...document.querySelectorAll('.of-rollout')].map((one) => one.textContent)"


def test_group_page_shows_its_rollout_and_marks_the_rebalances_of_it(visit: Visit) -> None:
    page = visit("/groups/deployed")
    page.wait_for(ROLLOUTS_ARE_LOADED)
    page.drawn()
    assert page.value("document.querySelector('#rollouts td.number').textContent") == "4 of 4"
    marks = page.value(MARKS)
    assert len(marks) == 8
    assert len(set(marks)) == 1
    assert marks[0].startswith("part of the rollout at ")
    [label] = page.value("[...document.querySelectorAll('rect.rollout')].map((one) => one.ariaLabel)")
    assert label.startswith("rollout of 4 of 4 members; ")
    assert "8 rebalances, to 2–9" in label
    refreshed(page, "true")
    page.drawn()
    assert page.value(MARKS) == marks
    assert page.value("document.querySelectorAll('rect.rollout').length") == 1


def test_group_page_loads_rollouts_again_when_members_have_changed(visit: Visit) -> None:
    page = visit("/groups/deployed")
    page.wait_for(ROLLOUTS_ARE_LOADED)
    page.value(NOTE_REQUESTS)
    refreshed(page, "asked.length > 0")
    page.drawn()
    assert not page.value("asked.some((url) => String(url).includes('/rollouts/'))")
    page.value("DATA.people[0].at(-1).left_at = DATA.known; document.dispatchEvent(new Event('refreshed'))")
    page.wait_for("asked.some((url) => String(url).includes('/rollouts/'))")


def test_groups_page_refreshes_in_place_and_announces_changes(
    visit: Visit, exporter: Exporter, config: Config
) -> None:
    page = visit("/")
    assert page.value("document.querySelector('tbody tr td').textContent") == "REWIND"
    page.value("document.querySelector('tbody th a').focus()")
    before = exporter.page
    exporter.publish(config.cluster, lag_table(*sample(status="OK", lag=0, lag_seconds=0.0)))
    until(lambda: exporter.page is not before)
    page.value("document.querySelector('.pause').click()")
    page.value("document.dispatchEvent(new Event('visibilitychange'))")
    page.drawn()
    assert "STOP" in page.value("document.getElementById('live').textContent")
    page.value("document.querySelector('.pause').click()")
    page.wait_for("!document.getElementById('live').textContent.includes('STOP')")
    assert "STOP" not in page.value("document.getElementById('announce').textContent")
    assert page.value("document.getElementById('announce').textContent") != ""
    assert page.value("document.getElementById('announce').getAttribute('aria-live')") == "polite"
    assert page.value("document.activeElement.textContent").startswith("<script>")


def refreshed(page: Page, condition: str) -> None:
    """Refresh the page at once, by pausing and resuming, until the condition holds."""
    page.value("for (const _ of [1, 2]) document.querySelector('.pause').click()")
    page.wait_for(condition)


def test_group_page_refreshes_and_keeps_what_the_reader_chose(
    visit: Visit, exporter: Exporter, config: Config
) -> None:
    page = visit("/groups/billing#generation-5")
    page.wait_for("document.documentElement.dataset.drawnMs !== undefined")
    page.value("document.getElementById('in').click()")
    page.value("document.getElementById('close').click()")
    page.value("document.querySelector('input[name=from]').focus()")
    page.send("Input.insertText", text="3h")
    page.value("scrollTo(0, 300); document.querySelector('#tables .wide').scrollTop = 7")
    page.drawn()
    chosen = """[document.getElementById('shown').textContent,
      document.activeElement.name, document.activeElement.value,
      scrollY, document.querySelector('#tables .wide').scrollTop, document.querySelector('tr:target')?.id,
      document.querySelectorAll('#lanes text.lane').length]"""
    before, sampled = page.value(chosen), page.value("DATA.start + DATA.known")
    assert (before[1:4], before[5:]) == (["from", "3h", 300], ["generation-5", 0])
    lay(config, "consumer_lag", lag_row(1, sampled_at=now()))
    published = exporter.page
    exporter.publish(config.cluster, lag_table(*sample(), lag_row(7, lag=12_345)))
    until(lambda: exporter.page is not published)
    refreshed(page, "document.getElementById('live').textContent.includes('12,420')")  # the others are 75
    refreshed(page, f"DATA.start + DATA.known > {sampled}")
    page.drawn()
    assert page.value(chosen) == before


def test_evidence_that_a_reader_opened_stays_open_when_the_page_refreshes(
    visit: Visit, exporter: Exporter, config: Config
) -> None:
    page = visit("/groups/billing")
    page.value("document.querySelector('.why summary').click()")
    shown = "document.querySelector('.why dl').checkVisibility() && document.querySelector('.why dl').textContent"
    assert "offset 1,512 of partition 9: member ids are gone" in page.value(shown)
    published = exporter.page
    exporter.publish(config.cluster, lag_table(*sample(), lag_row(7, lag=54_321)))
    until(lambda: exporter.page is not published)
    refreshed(page, "document.getElementById('live').textContent.includes('54,396')")
    assert "member ids are gone" in page.value(shown)


def test_link_keeps_the_focus_when_a_refresh_adds_a_row_above_it(visit: Visit) -> None:
    page = visit("/groups/billing")
    page.value("document.querySelector('#tables tr[id]').remove()")
    page.value("document.querySelector('#tables tr[id] a').focus()")
    focused = page.value("document.activeElement.getAttribute('href')")
    refreshed(page, f"document.querySelector('#tables tr[id] a').getAttribute('href') !== '{focused}'")
    assert page.value("document.activeElement.getAttribute('href')") == focused


@pytest.mark.parametrize("moment", ["at={at}", "to={at}", "from=2h&at=1h"])
def test_group_page_of_a_fixed_moment_does_not_refresh(visit: Visit, moment: str) -> None:
    page = visit(f"/groups/billing?{moment}")
    assert page.value("document.querySelectorAll('[data-refresh-seconds], .pause').length") == 0


def test_pages_work_without_scripts(visit: Visit) -> None:
    page = visit("/groups/billing")
    page.value("window.isOld = true")
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.send("Page.reload")
    page.wait_for("window.isOld === undefined && document.readyState === 'complete'")
    assert page.value("document.querySelectorAll('[id^=generation-]').length") > 10
    assert page.value("document.querySelectorAll('.pause').length") == 0


def test_printed_page_has_no_controls(visit: Visit) -> None:
    page = visit("/groups/billing")
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.value("getComputedStyle(document.querySelector('.top')).display") == "none"
    assert page.value("getComputedStyle(document.querySelector('form.filter')).display") == "none"
    assert page.send("Page.printToPDF")["data"].startswith("JVBERi")


def key(page: Page, name: str, code: int, *, modifiers: int = 0) -> None:
    """Press a key that edits or moves the focus."""
    for type_ in ("rawKeyDown", "keyUp"):
        page.send("Input.dispatchKeyEvent", type=type_, key=name, windowsVirtualKeyCode=code, modifiers=modifiers)


@pytest.mark.parametrize("modifiers", [2, 4], ids=["control", "command"])
def test_editor_runs_its_query_with_the_keyboard(visit: Visit, modifiers: int) -> None:
    """The address is then a link to the result."""
    page = visit("/sql")
    page.value("document.getElementById('query').focus()")
    page.send("Input.insertText", text="SELECT 6 * 7 AS answer")
    key(page, "Enter", 13, modifiers=modifiers)
    page.wait_for(
        "document.readyState === 'complete' && document.querySelector('table.result td')?.textContent === '42'"
    )
    assert page.value("new URL(location).searchParams.get('q')") == "SELECT 6 * 7 AS answer"
    assert page.value("document.getElementById('query').value") == "SELECT 6 * 7 AS answer"


def test_editor_lets_tab_leave_and_enter_add_a_line(visit: Visit) -> None:
    page = visit("/sql")
    page.value("document.getElementById('query').focus()")
    page.send("Input.insertText", text="SELECT 1")
    page.send("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r", windowsVirtualKeyCode=13)
    assert page.value("document.getElementById('query').value") == "SELECT 1\n"
    key(page, "Tab", 9)
    assert page.value("document.activeElement.textContent.trim()") == "Run"


def test_editor_works_without_scripts(visit: Visit) -> None:
    page = visit("/")
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.value("document.querySelector('nav a[href=\"/sql\"]').click()")
    page.wait_for("document.readyState === 'complete' && document.getElementById('keys') !== null")
    assert page.value("document.getElementById('keys').hidden")
    page.value("document.getElementById('query').value = 'SELECT 6 * 7 AS answer'")
    page.value("document.querySelector('.editor button').click()")
    page.wait_for("document.querySelector('table.result td')?.textContent === '42'")


def test_query_too_long_for_a_link_has_its_result_and_its_chart(visit: Visit) -> None:
    page = visit("/sql", size=(1000, 900))
    page.value("document.getElementById('query').focus()")
    page.send("Input.insertText", text=f"SELECT 'a' AS name, 42 AS answer -- {'x' * 9000}")
    key(page, "Enter", 13, modifiers=2)
    page.wait_for("document.readyState === 'complete' && document.querySelector('table.result td.number') !== null")
    assert page.value("location.search") == ""
    page.screenshot("web-sql-long")
    assert page.value(LEAST_CONTRAST)[0] >= 4.5
    assert page.value("document.documentElement.scrollWidth") <= 1000
    page.value("document.querySelector('.views button[value=chart]').click()")
    page.wait_for("document.readyState === 'complete' && document.querySelector('.bars') !== null")
    assert page.value("document.querySelectorAll('.bars rect').length") == 1


def test_chart_of_sql_is_drawn_inside_its_frame(visit: Visit) -> None:
    page = visit(PAGES["sql-lines"], size=(360, 800))
    assert page.value("document.querySelectorAll('.plot .field path').length") >= 2
    inside = """[...document.querySelectorAll('.plot')].every((plot) => {
      const [field, scale] = [...plot.querySelectorAll('.field, .scale')].map((one) => one.getBoundingClientRect());
      return [...plot.querySelectorAll('path')].every((path) => {
        const box = path.getBoundingClientRect();
        return box.height > 0 && box.right <= innerWidth && box.bottom <= Math.max(field.bottom, scale.bottom) + 2;
      });
    })"""
    assert page.value(inside)
    assert page.value("[...document.querySelectorAll('.plot text')].every((text) => "
                      "text.getBoundingClientRect().left >= 0)")  # fmt: skip


def test_printed_sql_has_the_query_and_its_result(visit: Visit) -> None:
    page = visit(PAGES["sql-table"])
    page.send("Emulation.setEmulatedMedia", media="print")
    hidden = [
        page.value(f"getComputedStyle(document.querySelector('{one}')).display") for one in (".sql-aside", ".run")
    ]
    assert hidden == ["none", "none"]
    assert page.value("document.querySelector('table.result').checkVisibility()")
