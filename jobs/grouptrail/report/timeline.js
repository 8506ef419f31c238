/* The timeline of one group: puts the parts together, and fills the tables below them, where there are any. */

const MOST_ROWS = 300;

const picture = byId("picture");
const view = new View(DATA.until);
const lanes = new Lanes(byId("lanes"), view);
let verdicts = worstLast(lanes.sections);
const filterBox = byId("filter");
let pinned = null;
let isDue = false;

function draw() {
  isDue = false;
  // A page that is hidden or not laid out yet has no width.
  if (!byId("lanes").clientWidth) return;
  view.width = byId("lanes").clientWidth;
  lanes.arrange();
  drawHead(byId("head"), view);
  lanes.draw();
  drawLag(byId("lag"), view, verdicts);
  shadeUnknown();
  showView();
}

function drawSoon() {
  if (!isDue) requestAnimationFrame(draw);
  isDue = true;
}

/** Shades the time before the history begins and after it ends. */
function shadeUnknown() {
  for (const [id, from, to] of [["before", 0, DATA.first], ["after", DATA.known, DATA.until]]) {
    const [left, right] = [from, to].map((at) => Math.min(Math.max(view.x(at), GUTTER), view.width));
    byId(id).style.top = `${rebalancesTop() + HEAD.rebalances}px`;
    byId(id).style.left = `${left}px`;
    byId(id).style.width = `${Math.max(right - left, 0)}px`;
  }
}

function showView() {
  byId("shown").textContent = `${time(Math.round(view.from))} to ${time(Math.round(view.to))} UTC`;
  if (!byId("rebalances")) return;
  const shown = rebalances.filter((it) => view.from <= it.at && it.at <= view.to);
  const more = shown.length > MOST_ROWS ? `, the last ${MOST_ROWS} shown: zoom in for others` : "";
  byId("rebalances-about").textContent = shown.length ? `${number(shown.length)} in view${more}` : "none in this time";
  fillTable(byId("rebalances"), shown.slice(-MOST_ROWS).reverse().map(rebalanceRow));
}

function rebalanceRow(it) {
  const rollout = rolloutOf(it);
  const place = html("button", { type: "button", class: "link" }, time(it.at));
  place.addEventListener("click", () => {
    const length = Math.min(view.to - view.from, Math.max((view.to - view.from) / 8, 60e3));
    view.show(it.at - length / 2, it.at + length / 2);
    picture.scrollIntoView({ block: "nearest" });
  });
  return [
    place,
    String(it.to_generation),
    causeCell(it.sort, it.cause),
    it.certainty,
    namesOf(it.members_joined, 3),
    namesOf(it.members_left, 3),
    number(it.partitions_moved),
    number(it.partitions_kept),
    it.duration_ms === null ? "" : `${duration(it.duration_ms)} (${it.duration_of})`,
    [rollout && partOf(rollout, it.at), it.cause_note].filter(Boolean).join("; "),
  ];
}

function showMembers() {
  if (!byId("members")) return;
  const lives = DATA.people.flat().filter((life) => lanes.filter === null || lanes.filter([life.member]));
  byId("members-about").textContent =
    number(lives.length) + (lives.length > MOST_ROWS ? `, the first ${MOST_ROWS} shown: filter for others` : "");
  fillTable(byId("members"), lives.slice(0, MOST_ROWS).map((life) => {
    const member = DATA.members[life.member];
    return [
      html("span", {}, html("span", { class: `swatch s${member.slot}` }), ` ${member.label}`),
      member.client,
      member.instance,
      member.host,
      `${life.began} ${time(life.joined_at)}`,
      life.left_at === null ? "" : time(life.left_at),
      (life.ended ?? "").replaceAll("_", " "),
      life.ended_because,
      member.id,
    ];
  }));
}

/** Shows only members that are pinned, or that hold the text in a name; null is all of them. */
function chooseMembers() {
  const text = filterBox.value.trim().toLowerCase();
  const has = (member) => ["id", "client", "instance", "host"].some((name) => member[name].toLowerCase().includes(text));
  if (pinned !== null) lanes.filter = (members) => members.some(sameAs);
  else if (text) lanes.filter = (members) => members.some((member) => has(DATA.members[member]));
  else lanes.filter = null;
  if (text) lanes.sections.at(-1).open = true;
  byId("unpin").hidden = pinned === null;
  byId("unpin").textContent = pinned === null ? "" : `only ${DATA.members[pinned].label} ✕`;
  showMembers();
  drawSoon();
}

function sameAs(member) {
  const [one, other] = [DATA.members[member], DATA.members[pinned]];
  return one.id === other.id || (one.instance !== "" && one.instance === other.instance);
}

function pin(member) {
  pinned = member === pinned ? null : member;
  chooseMembers();
}

function clicked(event) {
  const panel = event.target.closest?.("#lanes");
  if (!panel) return;
  const box = panel.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const row = lanes.rowAt(y)?.[0];
  const span = lanes.spanAt(x, y);
  if (span?.member !== undefined) pin(span.member);
  else if (row?.kind === "section") {
    row.section.open = !row.section.open;
    drawSoon();
  } else if (row?.kind === "life") pin(row.lane.members[0]);
}

function hovered(event) {
  const panel = event.target.closest?.("#head, #lanes, #lag");
  const cursor = byId("cursor");
  cursor.hidden = !panel || event.clientX - picture.getBoundingClientRect().left < GUTTER;
  if (!panel) {
    hideTip();
    return;
  }
  const box = panel.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  cursor.style.left = `${x}px`;
  const describe = {
    head: () => x >= GUTTER && headTooltip(view, x, y),
    lanes: () => lanes.describe(x, y),
    lag: () => x >= GUTTER && lagTooltip(view, verdicts, x, y),
  };
  const lines = describe[panel.id]();
  if (lines) showTip(lines, event.clientX, event.clientY);
  else hideTip();
}

function showFacts() {
  const counted = (kind) =>
    DATA.topics.reduce((sum, { lane_is, lanes }) => sum + (lane_is === kind ? lanes.length : 0), 0);
  byId("group").textContent = DATA.group;
  const kind = DATA.kind ? `${DATA.kind} group` : "group";
  const facts = [
    `${kind} of cluster ${DATA.cluster}${DATA.protocol ? `, ${DATA.protocol}` : ""}`,
    plural(rebalances.length, "rebalance") + (storms.length ? `, ${plural(storms.length, "storm")}` : "")
      + (rollouts.length ? `, ${plural(rollouts.length, "rollout")}` : ""),
    plural(DATA.members.length, "member"),
    ...["task", "partition"].filter(counted).map((kind) => plural(counted(kind), kind)),
    `history from ${time(DATA.first).slice(0, 19)} to ${time(DATA.known).slice(0, 19)} UTC`,
  ];
  byId("facts").replaceChildren(...facts.map((fact) => html("li", {}, fact)));
  const used = new Set(rebalances.map((it) => it.sort));
  byId("causes").replaceChildren(...causeLegend(used));
  const named = [...new Set(states.map((it) => it.state))];
  const key = (name, words) => html("li", {}, html("span", { class: `key ${name}` }), ` ${words}`);
  byId("states").replaceChildren(...named.map((state) => key(`state ${state}`, state)));
  const judged = STATUSES.filter((status) => verdicts.some((it) => it.status === status));
  const committed = lanes.sections.some((section) => section.lanes.some((lane) => lane.commits?.length));
  byId("judged").replaceChildren(
    ...judged.map((status) => key(`verdict ${status}`, status)),
    ...(committed ? [key("commits", "commits without a member")] : []),
  );
}

/** Shows newer data of the same group, and leaves what the reader has chosen: the interval, lanes, members. */
function showNewer(data) {
  const isDragging = !byId("brush").hidden;
  if (isDragging) return;
  const isWhole = view.from === 0 && view.to === view.whole;
  const [from, to] = [view.from, view.to].map((at) => at + DATA.start - data.start);
  const pinnedId = pinned === null ? null : DATA.members[pinned].id;
  load(data);
  lanes.reload();
  verdicts = worstLast(lanes.sections);
  const place = DATA.members.findIndex((member) => member.id === pinnedId);
  pinned = place < 0 ? null : place;
  view.whole = DATA.until;
  if (isWhole) view.all();
  else view.show(from, to);
  showFacts();
  chooseMembers();
}

function start() {
  showFacts();
  view.changed = drawSoon;
  const isDragging = listen(picture, view, byId("brush"), clicked);
  picture.addEventListener("pointermove", (event) => isDragging() || hovered(event));
  picture.addEventListener("pointerleave", () => {
    hideTip();
    byId("cursor").hidden = true;
  });
  byId("lanes").addEventListener("scroll", drawSoon);
  new ResizeObserver(() => byId("lanes").clientWidth !== view.width && drawSoon()).observe(byId("lanes"));
  filterBox.addEventListener("input", chooseMembers);
  byId("unpin").addEventListener("click", () => pin(pinned));
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    hideTip();
    filterBox.value = "";
    pinned = null;
    chooseMembers();
  });
  const actions = {
    in: () => view.zoom(0.5), out: () => view.zoom(2), left: () => view.pan(-0.5), right: () => view.pan(0.5),
    all: () => view.all(), open: () => openAll(true), close: () => openAll(false),
  };
  for (const [id, act] of Object.entries(actions)) byId(id).addEventListener("click", act);
  byId("data").addEventListener("refreshed", (event) => showNewer(JSON.parse(event.target.textContent)));
  draw();
  showMembers();
  document.documentElement.dataset.drawnMs = performance.now().toFixed(1);
}

function openAll(isOpen) {
  for (const section of lanes.sections) section.open = isOpen;
  drawSoon();
}

start();
