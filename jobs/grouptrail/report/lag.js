/* Lag below the lanes, on the same axis: verdicts, seconds of the worst partition, offsets of all. */

const LAG = { verdicts: 16, chart: 62, gap: 8 };
const LAG_HEIGHT = LAG.verdicts + 2 * (LAG.chart + LAG.gap);

const CHARTS = [
  {
    name: "lag in seconds", about: "worst partition", value: "seconds", least: "seconds_are_least",
    unit: (seconds) => duration(seconds * 1000), round: roundTimeAbove,
  },
  {
    name: "lag in offsets", about: "all partitions", value: "lag", least: "lag_is_least",
    unit: short, round: roundAbove,
  },
];

let lag;
derive(() => {
  lag = rowsOf(DATA.lag);
});

/** The verdicts on all lanes, the worst last, each with its lane's name. */
function worstLast(sections) {
  const named = sections.flatMap(({ lanes }) => lanes)
    .flatMap((lane) => (lane.verdicts ?? []).map((verdict) => ({ ...verdict, name: lane.name })));
  const rank = (verdict) => -STATUSES.indexOf(verdict.status);
  return named.sort((one, other) => rank(one) - rank(other) || one.from - other.from);
}

function drawLag(element, view, verdicts) {
  element.setAttribute("width", view.width);
  element.setAttribute("height", lag.length ? LAG_HEIGHT : 28);
  if (!lag.length) {
    element.replaceChildren(svg("text", { class: "faint", x: 8, y: 18 }, "lag: no samples of it in this time"));
    return;
  }
  const parts = [svg("text", { class: "name", x: 8, y: 12 }, "verdicts")];
  const painted = {};
  for (const [verdict, left, right] of inView(view, verdicts, "from", "until")) {
    if (right - (painted[verdict.status] ?? 0) < 0.6) continue;
    painted[verdict.status] = right;
    const box = { x: left, y: 2, width: Math.max(right - left, 1.5), height: 11 };
    parts.push(svg("rect", { class: `verdict ${verdict.status}`, ...box }));
  }
  for (const tick of ticks(view)) {
    const x = view.x(tick.at);
    parts.push(svg("line", { class: "grid", x1: x, x2: x, y1: LAG.verdicts, y2: LAG_HEIGHT }));
  }
  CHARTS.forEach((chart, index) => {
    parts.push(...drawChart(chart, view, LAG.verdicts + index * (LAG.chart + LAG.gap)));
  });
  element.replaceChildren(...parts);
}

function drawChart(chart, view, top) {
  const shown = lag.filter((it) => it.at + DATA.lag_step >= view.from && it.at <= view.to);
  const known = shown.filter((it) => it[chart.value] !== null);
  const most = chart.round(known.reduce((most, it) => Math.max(most, it[chart.value]), 1));
  const bottom = top + LAG.chart;
  const y = (value) => bottom - (value / most) * (LAG.chart - 8);
  const parts = [
    svg("line", { class: "tick", x1: GUTTER, x2: view.width, y1: bottom, y2: bottom }),
    svg("line", { class: "grid", x1: GUTTER, x2: view.width, y1: y(most), y2: y(most) }),
    svg("text", { class: "name", x: 8, y: top + 22 }, chart.name),
    svg("text", { class: "faint", x: 8, y: top + 36 }, chart.about),
    svg("text", { class: "faint end", x: GUTTER - 6, y: y(most) + 4 }, chart.unit(most)),
    svg("text", { class: "faint end", x: GUTTER - 6, y: bottom }, "0"),
  ];
  const inside = (at) => Math.min(Math.max(view.x(at), GUTTER), view.width);
  for (const run of runs(known, chart.least)) {
    const line = run.points.map((it, index) => {
      const right = inside(Math.min(it.at + DATA.lag_step, DATA.known));
      return `${index ? "V" : `M${inside(it.at)} `}${y(it[chart.value])}H${right}`;
    }).join("");
    const least = run.isLeast ? " least" : "";
    parts.push(svg("path", { class: `area ${chart.value}${least}`, d: `${line}V${bottom}H${inside(run.points[0].at)}Z` }));
    parts.push(svg("path", { class: `line ${chart.value}${least}`, d: line }));
  }
  return parts;
}

/** Points that follow one another without a hole and are of the same kind: exact, or a lower bound. */
function runs(points, least) {
  const unbroken = [];
  let before = null;
  for (const it of points) {
    const goesOn = before && it.at - before.at < DATA.lag_step * 1.5 && it[least] === before[least];
    if (goesOn) unbroken.at(-1).points.push(it);
    else unbroken.push({ isLeast: it[least], points: [it] });
    before = it;
  }
  return unbroken;
}

function lagTooltip(view, verdicts, x, y) {
  if (!lag.length) return undefined;
  const at = view.at(x);
  if (y < LAG.verdicts) {
    const shown = verdicts.filter((it) => it.from <= at && at < it.until).reverse();
    const lines = shown.slice(0, 6).map((it) => `${it.status} ${it.name}: ${it.reason}`);
    if (shown.length > 6) lines.push(`and ${number(shown.length - 6)} more`);
    return shown.length ? [plural(shown.length, "verdict"), `${time(Math.round(at))} UTC`, ...lines] : undefined;
  }
  const point = lag.findLast((it) => it.at <= at && at < it.at + DATA.lag_step);
  if (!point) return ["no samples of lag", `${time(Math.round(at))} UTC`];
  return [
    "lag",
    `${time(point.at)} UTC, the greatest in ${duration(DATA.lag_step)}`,
    point.seconds === null ? "seconds: unknown"
      : `${point.seconds_are_least ? "at least " : ""}${duration(point.seconds * 1000)}, worst ${point.worst}`,
    point.lag === null ? "offsets: unknown"
      : `${point.lag_is_least ? "at least " : ""}${plural(point.lag, "offset")} unread`,
    point.partitions_with_lag < point.partitions && `known for ${point.partitions_with_lag} of ${plural(point.partitions, "partition")}`,
  ];
}
