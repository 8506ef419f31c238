/* The rows above the lanes: the axis, rebalances, generations and states. */

let rebalances, generations, states, storms, rollouts;
derive(() => {
  [rebalances, generations, states, storms, rollouts] =
    [DATA.rebalances, DATA.generations, DATA.states, DATA.storms, DATA.rollouts].map(rowsOf);
});

const HEAD = { axis: 32, rebalances: 24, generations: 20, states: 18 };
const HEAD_HEIGHT = Object.values(HEAD).reduce((sum, height) => sum + height) + 4;
const ROLLOUTS = 19;
const MARK = 17;

/** Where the row of rebalances begins: that of rollouts is above it, if there are any. */
function rebalancesTop() {
  return HEAD.axis + (rollouts.length ? ROLLOUTS : 0);
}

/** Rebalances in view, grouped where their marks would overlap. */
function rebalanceMarks(view) {
  const marks = [];
  for (const rebalance of rebalances) {
    const x = view.x(rebalance.at);
    if (x < GUTTER || x > view.width) continue;
    const last = marks.at(-1);
    if (last && x - last.x < MARK) last.of.push(rebalance);
    else marks.push({ x, of: [rebalance] });
  }
  return marks;
}

function drawHead(element, view) {
  const parts = [];
  for (const tick of ticks(view)) {
    const x = view.x(tick.at);
    parts.push(svg("line", { class: "tick", x1: x, x2: x, y1: 27, y2: HEAD.axis }));
    if (x < view.width - 24) parts.push(svg("text", { class: "label middle", x, y: 24 }, tick.label));
    if (tick.day && x < view.width - 60) parts.push(svg("text", { class: "day middle", x, y: 11 }, tick.day));
  }
  parts.push(svg("text", { class: "name", x: 8, y: 24 }, "time, UTC"));
  if (rollouts.length) parts.push(...drawRollouts(view, HEAD.axis));
  let top = rebalancesTop();
  parts.push(svg("text", { class: "name", x: 8, y: top + 15 }, "rebalances"));
  for (const [, left, right] of inView(view, storms, "began", "until")) {
    const box = { x: left - MARK / 2, y: top, width: right - left + MARK, height: HEAD.rebalances - 2 };
    parts.push(svg("rect", { class: "storm", ...box, rx: 5 }, svg("title", {}, "storm")));
  }
  parts.push(...rebalanceMarks(view).map((mark, index) => drawMark(mark, top + 11, index === 0 ? 0 : -1)));
  top += HEAD.rebalances;
  parts.push(svg("text", { class: "name", x: 8, y: top + 14 }, DATA.kind === "classic" ? "generations" : "epochs"));
  parts.push(...drawGenerations(view, top));
  top += HEAD.generations;
  parts.push(svg("text", { class: "name", x: 8, y: top + 12 }, "state"));
  parts.push(...drawStates(view, top));
  element.replaceChildren(...parts);
  element.setAttribute("width", view.width);
  element.setAttribute("height", HEAD_HEIGHT + rebalancesTop() - HEAD.axis);
}

function drawRollouts(view, top) {
  const parts = [svg("text", { class: "name", x: 8, y: top + 13 }, "rollouts")];
  for (const [rollout, left, right] of inView(view, rollouts, "began", "until")) {
    const width = Math.max(right - left, 4);
    const lines = rolloutLines(rollout);
    const box = { x: left, y: top + 1, width, height: ROLLOUTS - 5, rx: 3 };
    const style = rollout.until === null ? "rollout open" : "rollout";
    parts.push(svg("rect", { class: style, ...box, role: "img", "aria-label": lines.filter(Boolean).join("; ") }));
    const text = fitting(`${rollout.members} of ${rollout.of_members}`, width - 8);
    if (text && width > 36) parts.push(svg("text", { class: "label", x: left + 5, y: top + 12 }, text));
  }
  return parts;
}

/** A mark. The Tab key focuses the first one; the arrow keys move to the next. */
function drawMark(mark, y, tabindex) {
  const sorts = new Set(mark.of.map((rebalance) => rebalance.sort));
  const sort = sorts.size === 1 ? mark.of[0].sort : "mixed";
  const text = mark.of.length > 1 ? String(mark.of.length) : SORTS[sort][0];
  const width = Math.max(15, text.length * 7 + 6);
  const lines = rebalanceLines(mark.of);
  const element = svg(
    "g",
    { class: `mark ${sort}`, tabindex, role: "img", "aria-label": lines.join("; ") },
    svg("title", {}, lines.join("\n")),
    svg("rect", { x: mark.x - width / 2, y: y - 8, width, height: 16, rx: mark.of.length > 1 ? 3 : 8 }),
    svg("text", { class: "middle", x: mark.x, y: y + 4 }, text),
  );
  element.addEventListener("focus", () => {
    const box = element.getBoundingClientRect();
    showTip(lines, box.left, box.bottom);
  });
  element.addEventListener("blur", hideTip);
  element.addEventListener("keydown", (event) => {
    const next = { ArrowLeft: element.previousElementSibling, ArrowRight: element.nextElementSibling }[event.key];
    if (!next?.classList.contains("mark")) return;
    next.focus();
    event.stopPropagation();
    event.preventDefault();
  });
  return element;
}

/** The rollout that a rebalance was part of, if any. */
function rolloutOf({ at, to_generation: generation }) {
  return rollouts.find((it) => {
    const isIn = it.first_generation !== null && it.first_generation <= generation && generation <= it.last_generation;
    return isIn && it.began <= at && (it.until === null || at <= it.until);
  });
}

/** What a rebalance at a time was part of: `part of the rollout at 12:03`, with the day if it is another one. */
function partOf(rollout, at) {
  const [day, minute] = [time(rollout.began).slice(0, 10), time(rollout.began).slice(11, 16)];
  return `part of the rollout at ${time(at).startsWith(day) ? minute : `${day} ${minute}`}`;
}

function rolloutLines(it) {
  return [
    `rollout of ${it.members} of ${plural(it.of_members, "member")}`,
    span(it.began, it.until) + (it.until === null ? ": more members may follow" : ""),
    `${it.way ? `${it.way}, ` : ""}${it.certainty}${it.certainty === "ambiguous" ? ": or the same processes joined again" : ""}`,
    plural(it.rebalances, "rebalance")
      + (it.first_generation === null ? "" : `, to ${it.first_generation}`)
      + (it.last_generation === it.first_generation ? "" : `–${it.last_generation}`),
    it.seconds_without_owner !== null
      && `partitions without an owner for ${duration(it.seconds_without_owner * 1000)} in sum, at least`,
  ];
}

function rebalanceLines(shown) {
  if (shown.length === 1) return oneRebalance(shown[0]);
  const causes = new Map();
  for (const { cause } of shown) causes.set(cause, (causes.get(cause) ?? 0) + 1);
  const moved = shown.reduce((sum, rebalance) => sum + rebalance.partitions_moved, 0);
  return [
    `${number(shown.length)} rebalances`,
    `${time(shown[0].at)} to ${time(shown.at(-1).at)} UTC`,
    ...[...causes].sort((one, other) => other[1] - one[1]).map(([cause, times]) => `${number(times)} × ${cause}`),
    `${plural(moved, "partition")} moved; zoom in to see each`,
  ];
}

function oneRebalance(it) {
  const names = (numbers) => namesOf(numbers, 6);
  const rollout = rolloutOf(it);
  return [
    `rebalance to ${DATA.kind === "classic" ? "generation" : "epoch"} ${it.to_generation}`,
    `${time(it.at)} UTC`,
    `${it.cause} (${it.certainty})`,
    rollout && partOf(rollout, it.at),
    it.cause_note,
    ...(it.evidence ?? []),
    it.ruled_out && `ruled out: ${it.ruled_out}`,
    it.members_joined.length > 0 && `joined: ${names(it.members_joined)}`,
    it.members_left.length > 0 && `left: ${names(it.members_left)}`,
    it.subscriptions_changed.length > 0 && `new subscriptions: ${names(it.subscriptions_changed)}`,
    `partitions: ${it.partitions_moved} moved, ${it.partitions_kept} kept, ${it.partitions_added} added, `
      + `${it.partitions_removed} removed`,
    it.duration_ms !== null && `took ${duration(it.duration_ms)} (${it.duration_of})`,
    it.unowned_partition_ms > 0 && `partitions without an owner for ${duration(it.unowned_partition_ms)} in sum`,
    it.may_be_read_twice > 0 && `about ${plural(it.may_be_read_twice, "record")} may be read twice`,
    it.skipped > 0 && `${plural(it.skipped, "generation")} before it not in the log`,
  ].filter(Boolean);
}

function namesOf(numbers, most) {
  const names = numbers.slice(0, most).map((member) => DATA.members[member].label);
  return names.join(", ") + (numbers.length > most ? ` and ${number(numbers.length - most)} more` : "");
}

/** Visible intervals as [item, left, right]; open ones end where the history does. */
function* inView(view, things, begun = "started_at", ended = "ended_at") {
  for (const thing of things) {
    const until = Math.min(thing[ended] ?? DATA.known, DATA.known);
    if (until < view.from || thing[begun] > view.to) continue;
    yield [thing, Math.max(view.x(thing[begun]), GUTTER), Math.min(view.x(until), view.width)];
  }
}

function drawGenerations(view, top) {
  const parts = [];
  let last = -9;
  for (const [generation, left, right] of inView(view, generations)) {
    if (right - left < 1 && right - last < 1) continue;
    last = right;
    const width = Math.max(right - left - 1, 0.5);
    parts.push(svg("rect", { class: "generation", x: left, y: top + 1, width, height: 17 }));
    const text = String(generation.generation);
    if (right - left > text.length * 6.6 + 3) {
      parts.push(svg("text", { class: "label middle", x: (left + right) / 2, y: top + 14 }, text));
    }
  }
  return parts;
}

function drawStates(view, top) {
  const parts = [];
  for (const [state, left, right] of inView(view, states)) {
    const width = Math.max(right - left, 1.5);
    parts.push(svg("rect", { class: `state ${state.state}`, x: left, y: top + 1, width, height: 15 }));
    const text = fitting(state.state, width - 8);
    if (text && width > 36) parts.push(svg("text", { class: "label", x: left + 5, y: top + 12 }, text));
  }
  return parts;
}

/** Tooltip lines of the item under the pointer, in the rows above the lanes. */
function headTooltip(view, x, y) {
  const at = view.at(x);
  if (y < HEAD.axis) return [time(Math.round(at)), "drag to zoom in, wheel to zoom, shift and drag to move"];
  if (y < rebalancesTop()) {
    const slack = (4 * (view.to - view.from)) / (view.width - GUTTER);
    const it = rollouts.findLast((one) => one.began <= at && at <= Math.max(one.until ?? DATA.known, one.began + slack));
    return it && rolloutLines(it);
  }
  if (y < rebalancesTop() + HEAD.rebalances) {
    const near = rebalanceMarks(view).find((mark) => Math.abs(mark.x - x) < MARK / 2 + 4);
    const storm = storms.find((one) => one.began <= at && at <= one.until);
    if (!near) return storm && stormLines(storm);
    return [...rebalanceLines(near.of), storm && stormLines(storm).join(", ")];
  }
  if (y < rebalancesTop() + HEAD.rebalances + HEAD.generations) {
    const it = generations.findLast((one) => one.started_at <= at && at < (one.ended_at ?? DATA.known));
    return it && generationLines(it);
  }
  const it = states.findLast((one) => one.started_at <= at && at < (one.ended_at ?? DATA.known));
  return it && stateLines(it);
}

function stormLines(it) {
  return [
    `a storm of ${plural(it.rebalances, "rebalance")}`,
    `${time(it.began)} to ${time(it.until)} UTC`,
    `${number(it.main_cause_rebalances)} × ${it.main_cause}`,
  ];
}

function span(begun, ended) {
  return ended === null
    ? `since ${time(begun)} UTC`
    : `${time(begun)} to ${time(ended)} UTC (${duration(ended - begun)})`;
}

function generationLines(it) {
  const own = { true: "the assignor's own", false: "not the assignor's own" };
  return [
    `${it.group_kind === "classic" ? "generation" : "epoch"} ${it.generation}`,
    span(it.started_at, it.ended_at),
    `${plural(it.member_count, "member")}, ${it.partition_count === null ? "unknown" : it.partition_count} partitions`
      + (it.skew === null ? "" : `, skew ${it.skew}`),
    it.protocol,
    it.is_assignors_own !== null && `assignment: ${own[it.is_assignors_own]}`,
    it.assignment_note,
    it.skipped > 0 && `${plural(it.skipped, "generation")} before it not in the log`,
    it.skipped === null && "history begins here",
  ];
}

function stateLines(it) {
  return [
    it.state,
    span(it.started_at, it.ended_at),
    { inferred: "inferred: it follows from later records", polled: "polled: a poll found it" }[it.evidence] ?? it.evidence,
    it.not_before !== null && it.not_before < it.started_at && `began after ${time(it.not_before)}, then at the latest`,
    it.note,
  ];
}
