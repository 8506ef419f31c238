"""The pages of `grouptrail timeline` and `grouptrail report`, opened in Chromium; pictures of them are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grouptrail.config import Config
from grouptrail.report.report import report_page
from grouptrail.report.timeline import timeline_page, timeline_rows
from grouptrail.runtime.warehouses import warehouse_of
from support.chromium import Browser, Page
from support.from_config import SAMPLE_SECONDS
from support.sample_groups import crowd, deployed, hostile, memberless, shared
from support.small_tables import at, lay

Open = Callable[..., Page]
PATHS = "[...document.querySelectorAll('#lanes path.span')].map((one) => one.getAttribute('d'))"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A group of 300 members."""
    config = Config(warehouse=str(tmp_path_factory.mktemp("crowded")))
    crowd(config, members=300, generations=40)
    return config


@pytest.fixture
def opened(tmp_path: Path, browser: Browser) -> Iterator[Open]:
    """Open a page and yield it; at the end its console must have no errors."""
    pages: list[Page] = []

    def open_(text: str, **options: Any) -> Page:
        path = tmp_path / f"page-{len(pages)}.html"
        path.write_text(text, "utf-8")
        pages.append(browser.open(path, **options))
        return pages[-1]

    yield open_
    for page in pages:
        page.close()
    assert [message for page in pages for message in page.messages] == []


def texts(page: Page, selector: str) -> list[str]:
    """Return the text of the matching elements."""
    contents: list[str] = page.value(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)")
    return contents


def count(page: Page, selector: str) -> int:
    """Return the number of matching elements."""
    return int(page.value(f"document.querySelectorAll({selector!r}).length"))


def box(page: Page, selector: str, number: int = 0) -> dict[str, float]:
    """Return the box of the element with that index in the window."""
    edges: dict[str, float] = page.value(
        f"document.querySelectorAll({selector!r})[{number}].getBoundingClientRect().toJSON()"
    )
    return edges


def middle(place: dict[str, float]) -> tuple[float, float]:
    """Return the centre of a box."""
    return place["left"] + place["width"] / 2, place["top"] + place["height"] / 2


def shown_seconds(page: Page) -> float:
    """Return the length of the visible interval."""
    return float(page.value("(view.to - view.from) / 1000"))


def timeline(config: Config, group: str) -> str:
    return timeline_page(timeline_rows(warehouse_of(config), group, since=None, until=None))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_timeline_page_small_group_draws_every_lane_and_table(simulated: Config, opened: Open, scheme: str) -> None:
    """Every lane, membership, rebalance and state is drawn; the tables are filled."""
    page = opened(timeline(simulated, "billing"), dark=scheme == "dark")
    page.screenshot(f"timeline-3-{scheme}")
    assert texts(page, "h1") == ["billing"]
    lanes = texts(page, "#lanes .lane")
    assert lanes[:3] == ["orders-0", "orders-1", "orders-2"]
    assert lanes[-2:] == ["billing-dora", "edge-1"]
    assert len(lanes) == 8 + 3 + 5
    assert "billing-boris" in texts(page, "#lanes .on")
    marks = texts(page, "#head .mark > text")
    assert marks.count("!") == 1
    assert sum(int(mark) if mark.isdigit() else 1 for mark in marks) == 24
    assert count(page, "#head .state.Stable") == 24
    assert count(page, "#lag path.line.least") > 0
    assert count(page, "#head .storm") == 1
    assert count(page, "#rebalances tbody tr") == 24
    assert count(page, "#members tbody tr") == 14
    dark = page.value("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")


def test_timeline_page_members_with_one_client_id_have_lanes_that_differ(config: Config, opened: Open) -> None:
    """Also where the name is too long for its lane: the middle is left out, not the end."""
    shared(config)
    client = "checkout-events-consumer-of-the-payment-service"
    ids = [f"{client}-8f2f5d0a-{number}0e1" for number in range(3)]
    member = {"group_id": "notifications", "client_id": client, "client_host": "/10.0.0.1", "began": "joined"}
    lay(config, "memberships", *(member | {"member_id": one, "joined_at": at(0)} for one in ids))
    owned = {"group_id": "notifications", "client_id": client, "topic": "orders", "owned_from": at(0)}
    lay(config, "partition_ownership", *(owned | {"member_id": one, "partition": 5} for one in ids))
    page = opened(timeline(config, "notifications"))
    page.screenshot("timeline-one-client-id")
    lanes = texts(page, "#lanes .lane")
    assert [lane[-7:] for lane in lanes if lane.startswith("checkout")] == [f"… …{number}0e1" for number in range(3)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_timeline_page_three_hundred_members_draws_only_visible_lanes(
    crowded: Config, opened: Open, scheme: str
) -> None:
    """The topic begins as a strip; once it is opened, only visible lanes are drawn, and scrolling draws others."""
    page = opened(timeline(crowded, "crowd"), dark=scheme == "dark")
    page.screenshot(f"timeline-300-{scheme}")
    assert texts(page, "#lanes .name") == ["▸ clicks", "▸ members"]
    boxes = sum(path.count("M") for path in page.value(PATHS))
    assert boxes >= 240
    assert count(page, "#lanes path") < 50
    page.value("byId('open').click()")
    page.drawn()
    page.screenshot(f"timeline-300-open-{scheme}")
    first = texts(page, "#lanes .lane")
    assert first[0] == "clicks-0"
    assert 10 < len(first) < 60
    page.value("byId('lanes').scrollTop = 2000")
    page.drawn()
    assert "clicks-100" in texts(page, "#lanes .lane")
    assert box(page, "#head")["top"] < box(page, "#lanes")["top"]


def test_timeline_page_zooms_and_pans_by_mouse_keys_and_button(simulated: Config, opened: Open) -> None:
    """Drag, wheel, keys and buttons update the axis, the lanes and the tables."""
    page = opened(timeline(simulated, "billing"))
    whole = shown_seconds(page)
    lane = box(page, "#lanes svg")
    page.drag((lane["left"] + 400, lane["top"] + 60), (lane["left"] + 600, lane["top"] + 60))
    dragged = shown_seconds(page)
    assert dragged == pytest.approx(whole * 200 / (page.value("view.width") - 190))
    assert count(page, "#rebalances tbody tr") < 24
    began = page.value("view.from")
    page.drag((lane["left"] + 600, lane["top"] + 60), (lane["left"] + 500, lane["top"] + 60), modifiers=8)
    assert shown_seconds(page) == pytest.approx(dragged)
    assert page.value("view.from") > began
    page.mouse("mouseWheel", *middle(box(page, "#head")), deltaX=0, deltaY=-400)
    page.wait_for(f"view.to - view.from < {dragged * 1000} / 2")
    page.value("picture.focus()")
    page.press("0")
    assert shown_seconds(page) == pytest.approx(whole)
    page.press("+")
    assert shown_seconds(page) == pytest.approx(whole / 2)
    page.press("ArrowLeft")
    assert page.value("view.from") < whole * 1000 / 4 - 1
    page.value("byId('all').click()")
    page.drawn()
    assert shown_seconds(page) == pytest.approx(whole)


def test_timeline_page_hover_shows_a_tooltip(simulated: Config, opened: Open) -> None:
    """Partitions, members, rebalances, states and lag have tooltips."""
    page = opened(timeline(simulated, "billing"))
    place = box(page, "#lanes svg")
    minute = page.value("(view.width - 190) * 60000 / view.whole")
    start = place["left"] + page.value("view.x(DATA.first)")

    def tip(x: float, y: float) -> str:
        page.mouse("mouseMoved", x, y)
        return "\n".join(texts(page, "#tip > *")) if page.value("!tip.hidden") else ""

    lanes = {
        lane: middle(box(page, "#lanes .lane", number))[1] for number, lane in enumerate(texts(page, "#lanes .lane"))
    }
    text = tip(start + 23 * minute, lanes["orders-5"])
    page.screenshot("timeline-tip")
    assert text.startswith("orders-5: billing-anna\n")
    assert "2026-03-04 12:22:00 to 2026-03-04 12:24:00 UTC (2 min)" in text
    assert "because: member_left_or_expired (ambiguous): a clean leave, an expired session" in text
    assert "STALL: lag" in tip(start + 21 * minute, lanes["orders-5"])
    assert "replaced: the same instance id joined" in tip(start + 60 * minute, lanes["edge-1"])
    head = box(page, "#head")["top"]
    assert "1 generation before it not in the log" in tip(start + 22 * minute, head + 43)
    assert "a storm of 17 rebalances" in tip(start + 45 * minute, head + 43)
    assert "Stable" in tip(start + 30 * minute, head + 84)
    assert "at least" in tip(start + 45 * minute, box(page, "#lag")["top"] + 50)
    assert tip(5, 5) == ""


def test_timeline_page_arrow_key_moves_between_rebalance_marks(simulated: Config, opened: Open) -> None:
    """The tooltip of a mark is also its label."""
    page = opened(timeline(simulated, "billing"))
    whole = shown_seconds(page)
    page.value("document.querySelector('.mark[tabindex=\\'0\\']').focus()")
    assert texts(page, "#tip strong") == ["2 rebalances"]
    page.press("ArrowRight")
    assert texts(page, "#tip > *")[:3] == [
        "rebalance to generation 3",
        "2026-03-04 12:06:00 UTC",
        "member_joined (recorded)",
    ]
    assert page.value("document.activeElement.getAttribute('aria-label')").startswith("rebalance to generation 3; ")
    assert shown_seconds(page) == whole


def test_timeline_page_selected_member_fades_the_others_until_escape(simulated: Config, opened: Open) -> None:
    """A member is selected by a click or by its name."""
    page = opened(timeline(simulated, "billing"))
    page.drag(middle(box(page, "#lanes .span")), middle(box(page, "#lanes .span")))
    assert texts(page, "#unpin") == ["only billing-anna ✕"]
    assert count(page, "#lanes .span.dim") > 0
    assert count(page, "#members tbody tr") == 1
    page.press("Escape")
    assert count(page, "#lanes .span.dim") == 0
    page.value("filterBox.value = 'edge'; filterBox.dispatchEvent(new Event('input'))")
    page.drawn()
    assert count(page, "#members tbody tr") == 2
    assert texts(page, "#lanes .lane")[-1] == "edge-1"
    page.drag((60, box(page, "#lanes")["top"] + 60), (160, box(page, "#lanes")["top"] + 60))
    assert page.value("view.to - view.from === view.whole")


def test_timeline_page_hidden_one_is_drawn_once_it_is_shown(simulated: Config, opened: Open) -> None:
    page = opened(timeline(simulated, "billing"))
    width = "+byId('lanes').querySelector('svg').getAttribute('width')"
    before = page.value(width)
    page.value("document.body.style.display = 'none'; draw()")
    page.value("document.body.style = 'width: 700px'; byId('lanes').clientWidth")
    page.wait_for(f"{width} < {before}")
    assert 0 < page.value(width) <= 700


@pytest.mark.parametrize("group", ["notifications", "audit", "campaign-2025"])
def test_timeline_page_share_kip_848_and_empty_groups_are_drawn(simulated: Config, opened: Open, group: str) -> None:
    """Share groups, KIP-848 epochs, a group that has no members and no lag."""
    page = opened(timeline(simulated, group))
    page.screenshot(f"timeline-{group}")
    assert texts(page, "h1") == [group]
    assert count(page, "#lanes .lane") > 0
    words = {"notifications": "epochs", "audit": "epochs", "campaign-2025": "generations"}
    assert words[group] in texts(page, "#head .name")
    assert texts(page, "#lag text") == ["lag: no samples of it in this time"]
    tracks = page.value(
        "new Set([...document.querySelectorAll('#lanes .span')].map((one) => one.getAttribute('y'))).size"
    )
    assert group != "notifications" or tracks == 2 * 3 + 3


def test_pages_hostile_names_are_shown_as_text(config: Config, opened: Open) -> None:
    """They create no element, script or style; invisible characters are shown."""
    group = hostile(config)
    for name, text in (
        ("timeline", timeline(config, group)),
        ("report", report_page(warehouse_of(config), sample_seconds=SAMPLE_SECONDS)),
    ):
        page = opened(text)
        page.screenshot(f"hostile-{name}")
        assert page.value("window.taken") is None
        assert count(page, "script") == 2
        assert count(page, "img, iframe, b, object, style:not(head style)") == 0
        assert any("<img src=x onerror=" in shown for shown in texts(page, "h1, td"))
        assert "\u202e" not in page.value("document.body.innerText")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_page_shows_groups_and_filters_them_by_status(simulated: Config, opened: Open, scheme: str) -> None:
    """Verdicts, groups, storms, causes and dormant groups; selecting a verdict shows only its groups."""
    page = opened(
        report_page(warehouse_of(simulated), sample_seconds=SAMPLE_SECONDS),
        dark=scheme == "dark",
        size=(1400, 1500),
    )
    page.screenshot(f"report-{scheme}")
    assert texts(page, "#verdicts .tile") == ["1 STOP", "1 OK", "4 no lag sampled"]
    assert texts(page, "#groups tbody strong")[0] == "ledger"
    assert "≥ 5,401" in texts(page, "#groups tbody tr:first-child td")
    assert "grouptrail timeline ledger" in texts(page, "#groups code")
    assert texts(page, "#dormant tbody strong") == ["campaign-2025", "mirror"]
    assert count(page, "#chart .part") > 1
    page.value("document.querySelector('.tile').click()")
    assert texts(page, "#groups tbody strong") == ["ledger"]
    assert texts(page, "#shown") == ["1 group"]


def test_report_page_many_groups_scroll_in_their_own_table(config: Config, opened: Open) -> None:
    """The table's header stays visible."""
    sample = {"topic": "orders", "sampled_at": at(0), "status": "OK", "status_reason": "as laid", "lag": 1}
    lay(config, "consumer_lag", *({**sample, "group_id": f"service-{number:03}"} for number in range(600)))
    lay(config, "group_states")
    page = opened(report_page(warehouse_of(config), sample_seconds=SAMPLE_SECONDS), size=(1280, 900))
    assert count(page, "#groups tbody tr") == 500
    assert box(page, "#worst-lag")["top"] < 900
    page.value("document.querySelector('.tall').scrollTop = 3000")
    assert box(page, "#groups th")["top"] >= box(page, ".tall")["top"] > box(page, "#groups tbody tr")["top"]


# The lowest contrast of each kind of element on the page, by the formula of WCAG 2.2.
CONTRASTS = """
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => linear(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const root = getComputedStyle(document.documentElement);
  const named = (name) => luminance(root.getPropertyValue(name));
  const classed = (name) => {
    const element = document.body.appendChild(document.createElement('i'));
    element.className = name;
    const shade = luminance(getComputedStyle(element).color);
    element.remove();
    return shade;
  };
  const contrast = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  const least = (ones, other) => Math.min(...ones.map((one) => contrast(one, named(other))));
  const members = Array.from({length: 24}, (_, slot) => classed(`s${slot}`));
  const words = ['--text', '--faint', '--link'].map(named);
  const states = ['Stable', 'PreparingRebalance', 'CompletingRebalance', 'Empty', 'Dead'];
  return {
    words: Math.min(least(words, '--back'), least(words, '--raised')),
    labels: least(members, '--on'),
    members: least(members, '--back'),
    signs: least([...Object.keys(SORTS), 'mixed'].map(classed), '--sign'),
    states: least(states.map((state) => classed(`state ${state}`)), '--text'),
  };
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_timeline_page_colours_have_wcag_contrast(simulated: Config, opened: Open, scheme: str) -> None:
    """WCAG 2.2 requires 4.5 for text and 3 for a member's colour, against their backgrounds."""
    page = opened(timeline(simulated, "billing"), dark=scheme == "dark")
    contrasts = page.value(CONTRASTS)
    assert min(contrasts[name] for name in ("words", "labels", "signs", "states")) >= 4.5, contrasts
    assert contrasts["members"] >= 3, contrasts


def test_timeline_of_a_group_without_members_draws_its_commits(opened: Open, config: Config) -> None:
    shared(config)
    memberless(config)
    page = opened(timeline(config, "standalone"))
    assert count(page, "#lanes rect.commits") >= 6
    assert "commits without a member" in texts(page, "#judged")[0]
    page.mouse("mouseMoved", *middle(box(page, "#lanes rect.commits")))
    page.drawn()
    assert "without a member" in texts(page, "#tip")[0]


def test_timeline_draws_a_rollout_above_the_rebalances_of_it(opened: Open, tmp_path: Path) -> None:
    config = Config(warehouse=str(tmp_path / "lake"))
    deployed(config)
    lay(config, "ingest_progress", {"landed_at": at(90)})
    page = opened(timeline_page(timeline_rows(warehouse_of(config), "deployed", since=None, until=None)))
    page.drawn()
    assert texts(page, "#head text.name")[:3] == ["time, UTC", "rollouts", "rebalances"]
    rollout, mark = box(page, "rect.rollout"), box(page, ".mark", 1)
    assert rollout["y"] + rollout["height"] <= mark["y"]
    page.mouse("mouseMoved", rollout["x"] + rollout["width"] / 2, rollout["y"] + rollout["height"] / 2)
    page.drawn()
    lines = texts(page, "#tip > *")
    assert lines[0] == "rollout of 4 of 4 members"
    assert lines[2] == "rolling, likely"
    assert lines[3] == "8 rebalances, to 2–9"
    notes = [text for text in texts(page, "#rebalances td:last-child") if text]
    assert notes == ["part of the rollout at 12:30"] * 8
