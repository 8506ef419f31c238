/* The lanes: a row for each partition by topic, and one for each member. Only rows in sight are drawn. */

const ROW = 20;
const MOST_OPEN = 60;
const NARROW = 8;
const STRIP = { least: 26, most: 240 };

let rebalancesTo;
derive(() => {
  rebalancesTo = new Map();
  for (const rebalance of rebalances) {
    if (!rebalancesTo.has(rebalance.to_generation)) rebalancesTo.set(rebalance.to_generation, []);
    rebalancesTo.get(rebalance.to_generation).push(rebalance);
  }
});

/** A lane's list of numbers as spans; `to` is where an open one is known up to. */
function decoded(lane) {
  const spans = [];
  let from = 0;
  for (let index = 0; index < lane.spans.length; index += 6) {
    const [member, track, gap, length, generation, ending] = lane.spans.slice(index, index + 6);
    from += gap;
    const isOpen = length < 0;
    const to = isOpen ? Math.max(DATA.known, from) : from + length;
    spans.push({ member, track, from, to, isOpen, generation, ended: ending < 0 ? null : DATA.words[ending] });
  }
  return spans;
}

function verdictsOf(lane) {
  const verdicts = [];
  for (let index = 0; index < lane.verdicts.length; index += 5) {
    const [from, until, status, reason, others] = lane.verdicts.slice(index, index + 5);
    verdicts.push({ from, until, status: DATA.words[status], reason: DATA.words[reason], ruledOut: DATA.words[others] });
  }
  return verdicts;
}

/** When a group without members committed. */
function commitsOf(lane) {
  const runs = [];
  for (let index = 0; index < lane.commits.length; index += 3) {
    const [from, until, commits] = lane.commits.slice(index, index + 3);
    runs.push({ from, until, commits });
  }
  return runs;
}

/** The sections of the picture, each with its lanes; open ones show every lane. */
function makeSections() {
  const sections = DATA.topics.map(({ topic, lane_is, lanes }) => ({
    kind: "topic",
    name: topic,
    about: plural(lanes.length, lane_is),
    lanes: lanes.map((lane) => ({
      kind: "lane",
      name: lane.name,
      tracks: Math.max(lane.tracks, 1),
      height: ROW + Math.min(Math.max(lane.tracks - 1, 0), 6) * 9,
      spans: decoded(lane),
      verdicts: verdictsOf(lane),
      commits: commitsOf(lane),
    })),
  }));
  sections.push({ kind: "people", name: "members", about: number(DATA.members.length), lanes: DATA.people.map(person) });
  let open = 0;
  for (const section of sections) {
    open += section.lanes.length;
    section.open = open <= MOST_OPEN;
  }
  return sections;
}

function person(lives) {
  const last = DATA.members[lives.at(-1).member];
  return { kind: "life", name: last.label, height: ROW, lives, members: lives.map((life) => life.member) };
}

/** The rows to draw, from top to bottom, each with its place. */
function placed(sections, filter) {
  const rows = [];
  let top = 0;
  const add = (row) => {
    rows.push({ ...row, top });
    top += row.height;
  };
  for (const section of sections) {
    const isFiltered = section.kind === "people" && filter;
    const lanes = isFiltered ? section.lanes.filter((lane) => filter(lane.members)) : section.lanes;
    const strip = Math.min(Math.max(lanes.length, STRIP.least), STRIP.most);
    add({ kind: "section", section, height: section.open ? 24 : section.kind === "people" ? 48 : strip + 6 });
    if (section.open) lanes.forEach((lane) => add({ kind: lane.kind, lane, height: lane.height }));
  }
  return { rows, height: top };
}

/** Many small boxes as one path for each look: a browser draws ten thousand elements slowly, and few paths fast. */
class Crowd {
  constructor() {
    this.shapes = new Map();
  }

  add(style, { x, y, width, height }) {
    if (!this.shapes.has(style)) this.shapes.set(style, []);
    const [w, h] = [width.toFixed(1), height.toFixed(1)];
    this.shapes.get(style).push(`M${x.toFixed(1)} ${y.toFixed(1)}h${w}v${h}h-${w}z`);
  }

  paths() {
    return [...this.shapes].map(([style, boxes]) => svg("path", { class: style, d: boxes.join("") }));
  }
}

class Lanes {
  constructor(box, view) {
    this.box = box;
    this.view = view;
    this.room = box.querySelector("div");
    this.canvas = box.querySelector("svg");
    this.sections = makeSections();
    this.filter = null;
    this.arrange();
  }

  /** Shows newer data; sections stay open or closed. */
  reload() {
    const isOpen = new Map(this.sections.map(({ kind, name, open }) => [`${kind} ${name}`, open]));
    this.sections = makeSections();
    for (const section of this.sections) section.open = isOpen.get(`${section.kind} ${section.name}`) ?? section.open;
  }

  arrange() {
    const { rows, height } = placed(this.sections, this.filter);
    this.rows = rows;
    this.room.style.height = `${height}px`;
    this.box.classList.toggle("scrolls", height > this.box.clientHeight + 1);
  }

  draw() {
    const top = this.box.scrollTop;
    const height = this.box.clientHeight;
    const parts = [];
    const crowd = new Crowd();
    for (const tick of ticks(this.view)) {
      const x = this.view.x(tick.at);
      parts.push(svg("line", { class: "grid", x1: x, x2: x, y1: 0, y2: height }));
    }
    for (const row of this.rows) {
      if (row.top + row.height < top || row.top > top + height) continue;
      const y = row.top - top;
      if (row.kind === "section") parts.push(...this.drawSection(row, y, crowd));
      else if (row.kind === "lane") parts.push(...this.drawLane(row.lane, y, crowd));
      else parts.push(...this.drawLife(row.lane, y));
    }
    this.canvas.setAttribute("width", this.view.width);
    this.canvas.setAttribute("height", height);
    this.canvas.replaceChildren(...parts, ...crowd.paths());
  }

  drawSection({ section, height }, y, crowd) {
    const sign = section.open ? "▾" : "▸";
    const parts = [
      svg("rect", { class: "section", x: 0, y, width: section.open ? this.view.width : GUTTER, height: height - 1 }),
      svg("text", { class: "name", x: 8, y: y + 16 }, `${sign} ${fitting(section.name, GUTTER - 70)}`),
      svg("text", { class: "faint end", x: GUTTER - 8, y: y + 16 }, section.about.replace(/ partitions?$/, "")),
    ];
    if (section.open) return parts;
    if (section.kind === "people") return [...parts, ...this.drawCount(section, y)];
    const shown = stripLanes(section, height - 6);
    const each = (height - 6) / shown.length;
    shown.forEach((lane, index) => {
      parts.push(...this.drawSpans(lane, y + 2 + index * each, each, each > 4 ? 1 : 0, crowd));
    });
    return parts;
  }

  /** How many members there were, as a line, where their lanes are closed. */
  drawCount(section, y) {
    const steps = membersOverTime(section);
    const most = Math.max(1, ...steps.map((step) => step.count));
    const height = (count) => y + 43 - (count / most) * 36;
    const start = Math.max(this.view.x(steps[0]?.at ?? 0), GUTTER);
    let path = `M${Math.min(start, this.view.width)} ${height(0)}`;
    for (const { at, count } of steps) {
      const x = Math.min(Math.max(this.view.x(at), GUTTER), this.view.width);
      path += `H${x}V${height(count)}`;
    }
    const end = Math.min(Math.max(this.view.x(DATA.known), GUTTER), this.view.width);
    return [
      svg("path", { class: "count", d: `${path}H${end}V${height(0)}Z` }),
      svg("text", { class: "faint end", x: GUTTER - 8, y: y + 34 }, `most at a time ${number(most)}`),
    ];
  }

  isDim(members) {
    return this.filter !== null && !this.filter(members);
  }

  /** Spans of a lane: wide ones as elements that say what they are, narrow ones into the crowd. */
  drawSpans(lane, y, height, gap, crowd) {
    const parts = [];
    const painted = new Array(lane.tracks).fill(-1);
    const each = height / lane.tracks;
    for (const it of lane.spans) {
      if (it.to < this.view.from || it.from > this.view.to) continue;
      const left = Math.max(this.view.x(it.from), GUTTER);
      const right = Math.min(this.view.x(it.to), this.view.width);
      if (right - painted[it.track] < 0.6) continue;
      painted[it.track] = right;
      const member = DATA.members[it.member];
      const dim = this.isDim([it.member]) ? " dim" : "";
      const width = Math.max(right - left - (right - left > 4 ? gap : 0), 0.6);
      const at = { x: left, y: y + it.track * each, width, height: Math.max(each - gap, 0.5) };
      const style = `span s${member.slot}${dim}`;
      if (width < NARROW || each < 4) {
        crowd.add(style, at);
        continue;
      }
      const title = `${lane.name}: ${member.label}, ${span(it.from, it.isOpen ? null : it.to)}`;
      parts.push(svg("rect", { class: style, ...at }, svg("title", {}, title)));
      const text = each > 13 && width > 40 ? fittingEnds(member.label, width - 10) : "";
      if (text) parts.push(svg("text", { class: `on${dim}`, x: left + 5, y: at.y + each / 2 + 3.5 }, text));
    }
    return parts;
  }

  drawLane(lane, y, crowd) {
    const parts = this.drawSpans(lane, y + 1, lane.height - 5, 1, crowd);
    for (const [, left, right] of inView(this.view, lane.commits, "from", "until")) {
      const box = { x: left, y: y + 5, width: Math.max(right - left, 1.5), height: lane.height - 12 };
      parts.push(svg("rect", { class: "commits", ...box }));
    }
    for (const [verdict, left, right] of inView(this.view, lane.verdicts, "from", "until")) {
      const width = Math.max(right - left, 1.5);
      parts.push(svg("rect", { class: `verdict ${verdict.status}`, x: left, y: y + lane.height - 4, width, height: 3 }));
    }
    parts.push(svg("text", { class: "lane end", x: GUTTER - 8, y: y + 14 }, fittingEnds(lane.name, GUTTER - 16)));
    return parts;
  }

  drawLife(lane, y) {
    const parts = [svg("text", { class: "lane end", x: GUTTER - 8, y: y + 14 }, fittingEnds(lane.name, GUTTER - 16))];
    const shown = [...inView(this.view, lane.lives, "joined_at", "left_at")];
    shown.forEach(([life, left, right], index) => {
      const dim = this.isDim([life.member]) ? " dim" : "";
      const slot = DATA.members[life.member].slot;
      const width = Math.max(right - left - 1, 2);
      const title = `${DATA.members[life.member].label}, ${span(life.joined_at, life.left_at)}`;
      const box = { x: left, y: y + 4, width, height: 11, rx: 2 };
      parts.push(svg("rect", { class: `span s${slot}${dim}`, ...box }, svg("title", {}, title)));
      const room = (shown[index + 1]?.[1] ?? this.view.width) - right - 6;
      const words = life.ended === null ? "" : life.ended.replaceAll("_", " ");
      if (words && room > words.length * 6.4) {
        parts.push(svg("text", { class: "faint", x: right + 4, y: y + 13.5 }, words));
      }
    });
    return parts;
  }

  /** The row at a height of the box, and how far down in it. */
  rowAt(y) {
    const place = y + this.box.scrollTop;
    const row = this.rows.find((one) => place >= one.top && place < one.top + one.height);
    return row && [row, place - row.top];
  }

  /** The lane and span, or life, at a point; undefined where there is none. */
  spanAt(x, y) {
    const hit = this.rowAt(y);
    if (!hit || x < GUTTER) return undefined;
    const [row, down] = hit;
    const at = this.view.at(x);
    const slack = (this.view.to - this.view.from) / (this.view.width - GUTTER);
    if (row.kind === "life") {
      const isThere = (one) => one.joined_at <= at + slack && at <= (one.left_at ?? DATA.known) + slack;
      const life = row.lane.lives.findLast(isThere);
      return life && { lane: row.lane, life, member: life.member, at };
    }
    let lane = row.lane;
    let share = down / row.height;
    if (row.kind === "section") {
      if (row.section.open || row.section.kind === "people") return undefined;
      const shown = stripLanes(row.section, row.height - 6);
      const place = Math.min(Math.max((down - 2) / (row.height - 6), 0), 0.9999) * shown.length;
      lane = shown[Math.floor(place)];
      share = place % 1;
    }
    const track = Math.floor(share * lane.tracks);
    const it = lane.spans.findLast((one) => one.track === track && one.from <= at + slack && at <= one.to + slack);
    return it ? { lane, span: it, member: it.member, at } : { lane, at };
  }

  describe(x, y) {
    const row = this.rowAt(y)?.[0];
    if (row?.kind === "section" && (x < GUTTER || row.section.kind === "people" || row.section.open)) {
      const about = row.section.kind === "people" ? `${row.section.about} in this time` : row.section.about;
      return [row.section.name, about, `click to ${row.section.open ? "close" : "open"}`];
    }
    const span = this.spanAt(x, y);
    if (!span) return row?.lane && x < GUTTER ? [row.lane.name] : undefined;
    if (span.life) return membershipLines(span.life);
    return spanLines(span);
  }
}

/** The lanes that a strip of some height has pixels for. */
function stripLanes(section, height) {
  const count = Math.min(section.lanes.length, Math.floor(height));
  return Array.from({ length: count }, (_, index) => section.lanes[Math.floor((index * section.lanes.length) / count)]);
}

function membersOverTime(section) {
  const changes = [];
  for (const { lives } of section.lanes) {
    for (const life of lives) {
      changes.push([life.joined_at, 1]);
      if (life.left_at !== null) changes.push([life.left_at, -1]);
    }
  }
  changes.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  let count = 0;
  return changes.map(([at, change]) => ({ at, count: (count += change) }));
}

function memberLines(number) {
  const member = DATA.members[number];
  const client = member.client && member.client !== member.label ? `client ${member.client}` : "";
  const parts = [client, member.instance && "static", member.host && `from ${member.host}`].filter(Boolean);
  return [parts.join(", "), member.id !== member.label && `member id ${member.id}`];
}

function spanLines({ lane, span: it, at }) {
  const verdict = lane.verdicts.findLast((one) => one.from <= at && at < one.until);
  const judged = verdict && `${verdict.status}: ${verdict.reason}`;
  const ruledOut = verdict?.ruledOut && `ruled out: ${verdict.ruledOut}`;
  if (!it) {
    const run = lane.commits.findLast((one) => one.from <= at && at < one.until);
    const committed = run && `${plural(run.commits, "commit")} without a member, ${span(run.from, run.until)}`;
    return [`${lane.name}: no owner`, `${time(Math.round(at))} UTC`, committed, judged, ruledOut];
  }
  const why = nearest(rebalancesTo.get(it.generation) ?? [], it.from);
  const word = DATA.kind === "classic" ? "generation" : "epoch";
  return [
    `${lane.name}: ${DATA.members[it.member].label}`,
    ...memberLines(it.member),
    span(it.from, it.isOpen ? null : it.to),
    `assigned in ${word} ${it.generation}`,
    why && `because: ${why.cause} (${why.certainty})${why.cause_note ? `: ${why.cause_note}` : ""}`,
    it.ended && `ended: ${it.ended.replaceAll("_", " ")}`,
    judged,
    ruledOut,
  ];
}

function nearest(rebalances, at) {
  return rebalances.toSorted((one, other) => Math.abs(one.at - at) - Math.abs(other.at - at))[0];
}

function membershipLines(life) {
  return [
    DATA.members[life.member].label,
    ...memberLines(life.member),
    span(life.joined_at, life.left_at),
    life.began === "there" ? "was there when history begins" : `${life.began} in generation ${life.joined_generation}`,
    life.ended && `${life.ended.replaceAll("_", " ")}${life.ended_because ? `: ${life.ended_because}` : ""}`,
    ...(life.evidence ?? []),
    life.ruled_out && `ruled out: ${life.ruled_out}`,
  ];
}
