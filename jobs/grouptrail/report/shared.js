/* DOM builders and texts for both pages. Names are untrusted: text is set by textContent alone. */

let DATA = JSON.parse(document.getElementById("data").textContent);

const derived = [];

/** Computes something from the data, and again whenever newer data are loaded. */
function derive(compute) {
  derived.push(compute);
  compute();
}

function load(data) {
  DATA = data;
  for (const compute of derived) compute();
}

function byId(id) {
  return document.getElementById(id);
}

/** An SVG element; children may be elements or text. */
function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

/** An HTML element; children may be elements or text. */
function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/** Milliseconds since `start` as UTC: 2026-03-04 12:05:00, with milliseconds where there are any. */
function time(ms) {
  const text = new Date(DATA.start + ms).toISOString().replace("T", " ");
  return text.slice(0, text.endsWith(".000Z") ? 19 : 23);
}

function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60e3) return `${+(ms / 1000).toFixed(1)} s`;
  if (ms < 3600e3) return `${+(ms / 60e3).toFixed(1)} min`;
  if (ms < 2 * 86400e3) return `${+(ms / 3600e3).toFixed(1)} h`;
  return `${+(ms / 86400e3).toFixed(1)} days`;
}

function number(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

/** 12,345 as 12 k: for an axis. */
function short(value) {
  for (const [size, sign] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (value >= size) return +(value / size).toFixed(1) + sign;
  }
  return String(+value.toFixed(1));
}

function plural(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** As much of a text as fits into this many pixels of the small font. */
function fitting(text, pixels, end = 0) {
  const most = Math.floor(pixels / 6.4);
  if (text.length <= most) return text;
  if (most < 3) return "";
  const kept = Math.min(end, Math.floor((most - 1) / 2));
  return `${text.slice(0, most - 1 - kept)}…${text.slice(text.length - kept)}`;
}

/** As `fitting`, with the end of the text, where a partition has its number and a member what tells it apart. */
function fittingEnds(text, pixels) {
  return fitting(text, pixels, 6);
}

/** The least round number that is not below a value, of 1 or more: 1, 2 or 5 and zeros. */
function roundAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((digit) => digit * power >= value) * power;
}

/** The least round time that is not below some seconds, in seconds. */
function roundTimeAbove(seconds) {
  const sizes = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200];
  return sizes.find((size) => size >= seconds) ?? 86400 * roundAbove(Math.max(1, seconds / 86400));
}

/** The rows of a table that names its columns once, as objects. */
function rowsOf({ columns, rows }) {
  return rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])));
}

const SORTS = {
  joined: ["+", "joined or started"],
  left: ["−", "left or emptied"],
  lost: ["!", "expired, or left unseen"],
  both: ["±", "joined and left"],
  replaced: ["⇄", "static member replaced"],
  metadata: ["#", "subscription, topics or settings"],
  again: ["↻", "follow-up, or same members"],
  unknown: ["?", "unknown"],
};

/** A cause's sign and some words. */
function causeCell(sort, words) {
  return html("span", {}, html("span", { class: `sort ${sort}` }, SORTS[sort][0]), ` ${words}`);
}

/** What the signs mean that are there. */
function causeLegend(used) {
  const sorts = Object.entries(SORTS).filter(([sort]) => used.has(sort));
  return sorts.map(([sort, [, words]]) => html("li", {}, causeCell(sort, words)));
}

const STATUSES = DATA.statuses;

const tip = byId("tip");

/** Shows lines at a place of the window; the first is the heading, false ones are left out. */
function showTip(lines, x, y) {
  tip.replaceChildren(...lines.filter(Boolean).map((line, index) => html(index ? "p" : "strong", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 14 + box.width > innerWidth ? x - box.width - 14 : x + 14)}px`;
  tip.style.top = `${Math.max(4, y + 14 + box.height > innerHeight ? y - box.height - 14 : y + 14)}px`;
}

function hideTip() {
  tip.hidden = true;
}

/** Puts rows into a table's body, each cell, text or an element, of the class of its column's head. */
function fillTable(table, rows) {
  const classes = [...table.tHead.rows[0].cells].map((cell) => cell.className || null);
  const drawn = (cell, index) => html("td", { class: classes[index] }, cell ?? "");
  table.tBodies[0].replaceChildren(...rows.map((cells) => html("tr", {}, ...cells.map(drawn))));
}
