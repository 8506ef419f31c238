/* The page of a cluster. Times are milliseconds since DATA.start, which is when all this was so. */

const MOST_ROWS = 500;
const DAY = 86400e3;

const groups = rowsOf(DATA.groups).map((it) => ({ ...it, status: it.status ?? "no lag sampled" }));
const causes = rowsOf(DATA.causes);
const filterBox = byId("filter");
let chosen = null;

function rank(status) {
  const place = STATUSES.indexOf(status);
  return place < 0 ? STATUSES.length : place;
}

function verdictCell(status) {
  return html("span", {}, html("span", { class: `key verdict ${status.replaceAll(" ", "-")}` }), ` ${status}`);
}

/** What to type for the picture of a group, and a button that copies it. */
function commandCell(command) {
  if (!command) return html("span", { class: "faint" }, "no history");
  const code = html("code", {}, command);
  const copy = html("button", { type: "button", class: "link", "aria-label": `copy ${command}` }, "copy");
  copy.addEventListener("click", () => {
    getSelection().selectAllChildren(code);
    navigator.clipboard?.writeText(command).then(() => (copy.textContent = "copied"), () => {});
  });
  return html("span", { class: "command" }, code, " ", copy);
}

function figure(value, isLeast) {
  return value === null ? "unknown" : `${isLeast ? "≥ " : ""}${number(value)}`;
}

function seconds(it) {
  return it.partitions === null ? "" : figure(it.seconds, it.is_bounded || it.partitions_with_seconds < it.partitions);
}

function offsets(it) {
  return it.partitions === null ? "" : figure(it.lag, it.partitions_with_lag < it.partitions);
}

function groupRow(it) {
  const lost = it.lost_records > 0 ? `; ${plural(it.lost_records, "record")} deleted unread` : "";
  return [
    verdictCell(it.status),
    html("strong", {}, it.group_id),
    it.state ?? "",
    it.member_count === null ? "" : number(it.member_count),
    seconds(it),
    offsets(it),
    it.worst ? `${it.worst}: ${it.status_reason}${lost}` : "",
    it.rebalances_day ? number(it.rebalances_day) : "",
    it.last_commit === null ? "" : time(it.last_commit).slice(0, 19),
    commandCell(it.command),
  ];
}

function worstFirst(one, other) {
  return rank(one.status) - rank(other.status) || (other.seconds ?? -1) - (one.seconds ?? -1)
    || (other.lag ?? -1) - (one.lag ?? -1);
}

function showGroups() {
  const text = filterBox.value.trim().toLowerCase();
  const selected = groups
    .filter((it) => (chosen === null || it.status === chosen) && it.group_id.toLowerCase().includes(text))
    .sort(worstFirst);
  const more = selected.length > MOST_ROWS ? `, the first ${MOST_ROWS} shown: filter for others` : "";
  byId("shown").textContent = plural(selected.length, "group") + more;
  fillTable(byId("groups"), selected.slice(0, MOST_ROWS).map(groupRow));
}

function showVerdicts() {
  const counts = new Map();
  for (const { status } of groups) counts.set(status, (counts.get(status) ?? 0) + 1);
  const sorted = [...counts].sort((one, other) => rank(one[0]) - rank(other[0]));
  byId("verdicts").replaceChildren(...sorted.map(([status, count]) => {
    const button = html("button", { type: "button", class: "tile", "aria-pressed": "false" },
      html("strong", {}, number(count)), verdictCell(status));
    button.addEventListener("click", () => {
      chosen = chosen === status ? null : status;
      for (const other of byId("verdicts").children) {
        other.setAttribute("aria-pressed", String(other === button && chosen !== null));
      }
      showGroups();
    });
    return button;
  }));
}

function showWorst() {
  const worst = rowsOf(DATA.worst);
  byId("worst-lag").hidden = worst.length === 0;
  fillTable(byId("worst"), worst.map((it) => [
    verdictCell(it.status),
    html("strong", {}, it.group_id),
    `${it.topic}-${it.partition}`,
    figure(it.seconds, it.is_bounded),
    number(it.lag),
    it.status_reason,
    commandCell(it.command),
  ]));
}

function showStorms() {
  const storms = rowsOf(DATA.storms);
  byId("storms-about").textContent = storms.length
    ? `more than 3 rebalances within 10 minutes, of the last ${DATA.days.length} days`
    : `none in the last ${DATA.days.length} days`;
  fillTable(byId("storms"), storms.map((it) => [
    html("strong", {}, it.group_id),
    time(it.began_us).slice(0, 19),
    time(it.ended_us).slice(0, 19),
    number(it.rebalances),
    causeCell(it.sort, `${it.main_cause} (${number(it.main_cause_rebalances)})`),
    commandCell(it.command),
  ]));
  byId("storms").hidden = storms.length === 0;
}

/** A column a day, its parts the sorts of causes, from below in the order of the legend. */
function drawDays() {
  const [width, height, left, bottom] = [820, 190, 48, 22];
  const totals = DATA.days.map((day) => Object.keys(SORTS).map(
    (sort) => causes.filter((it) => it.day === day && it.sort === sort).reduce((sum, it) => sum + it.rebalances, 0),
  ));
  const most = roundAbove(Math.max(2, ...totals.map((parts) => parts.reduce((sum, part) => sum + part, 0))));
  const y = (value) => height - bottom - (value / most) * (height - bottom - 14);
  const step = (width - left) / DATA.days.length;
  const parts = [0, most / 2, most].flatMap((value) => [
    svg("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }),
    svg("text", { class: "faint end", x: left - 6, y: y(value) + 4 }, short(value)),
  ]);
  DATA.days.forEach((day, index) => {
    let below = 0;
    const x = left + index * step;
    Object.keys(SORTS).forEach((sort, rank) => {
      const value = totals[index][rank];
      if (value === 0) return;
      const title = `${time(day).slice(0, 10)}: ${plural(value, "rebalance")}, ${SORTS[sort][1]}`;
      const height = Math.max(y(below) - y(below + value) - 1, 1);
      const box = { x: x + 4, width: step - 8, y: y(below + value), height };
      parts.push(svg("rect", { class: `part ${sort}`, ...box }, svg("title", {}, title)));
      const place = { x: x + step / 2, y: box.y + height / 2 + 4 };
      if (height > 13) parts.push(svg("text", { class: "sign middle", ...place }, number(value)));
      below += value;
    });
    parts.push(svg("text", { class: "faint middle", x: x + step / 2, y: height - 6 }, time(day).slice(5, 10)));
  });
  byId("chart").replaceChildren(...parts);
  byId("chart").setAttribute("viewBox", `0 0 ${width} ${height}`);
  const used = new Set(causes.map((it) => it.sort));
  byId("legend").replaceChildren(...causeLegend(used));
  fillTable(byId("days"), causes.toReversed().map((it) => [time(it.day).slice(0, 10), it.cause, number(it.rebalances)]));
}

function showDormant() {
  const isDormant = (it) => (it.state === "Empty" && it.state_since < -DAY)
    || (it.last_commit !== null && it.last_commit < -DAY);
  const dormant = groups.filter(isDormant).sort((one, other) => (one.last_commit ?? 0) - (other.last_commit ?? 0));
  fillTable(byId("dormant"), dormant.slice(0, MOST_ROWS).map((it) => [
    html("strong", {}, it.group_id),
    it.state ?? "no history",
    it.state_since === null ? "" : time(it.state_since).slice(0, 19),
    it.last_commit === null ? "none known" : time(it.last_commit).slice(0, 19),
    it.committed_partitions === null ? "" : number(it.committed_partitions),
    offsets(it),
    commandCell(it.command),
  ]));
  if (dormant.length === 0) byId("dormant").replaceWith(html("p", { class: "faint" }, "none"));
}

function start() {
  byId("cluster").textContent = `cluster ${DATA.cluster}`;
  const rebalances = groups.reduce((sum, it) => sum + (it.rebalances_day ?? 0), 0);
  const facts = [
    DATA.stale ?? `as of ${time(0).slice(0, 19)} UTC`,
    DATA.sampled === null ? "no lag sampled" : `lag ${DATA.staleLag ?? `as of ${time(DATA.sampled).slice(0, 19)}`}`,
    plural(groups.length, "group"),
    `${plural(rebalances, "rebalance")} in the day before`,
  ];
  byId("facts").replaceChildren(...facts.map((fact) => html("li", {}, fact)));
  filterBox.addEventListener("input", showGroups);
  showVerdicts();
  showGroups();
  showWorst();
  showStorms();
  drawDays();
  showDormant();
  document.documentElement.dataset.drawnMs = performance.now().toFixed(1);
}

start();
