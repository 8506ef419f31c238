/* Refreshes the parts of the page that change, in place; a button pauses it. Without this script pages are as they
   were when they were opened. */
"use strict";

const parts = [...document.querySelectorAll("[data-refresh-seconds]")];

if (parts.length) {
  const seconds = Number(parts[0].dataset.refreshSeconds);
  const button = document.createElement("button");
  button.type = "button";
  button.className = "pause";
  let isPaused = false;

  const label = () => {
    button.textContent = isPaused ? "Resume" : "Pause";
    button.setAttribute("aria-label", isPaused ? "Resume the automatic refresh" : "Pause the automatic refresh");
  };

  const has = (element) => parts.some((part) => part.contains(element));

  /** Whether a reader would lose something: a selection, or an open list. */
  const isInUse = () => {
    const selection = getSelection();
    return (!selection.isCollapsed && has(selection.anchorNode)) || has(document.activeElement?.closest("select, input"));
  };

  const announced = () => [...document.querySelectorAll("[data-announced]")].map((one) => one.textContent.trim()).join(", ");

  const refresh = async () => {
    if (isPaused || document.hidden || isInUse()) return;
    let failure = "";
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!answer.ok) failure = `status ${answer.status}`;
      else if (fresh.querySelectorAll("[data-refresh-seconds]").length !== parts.length) location.reload();
      else if (!isInUse()) showAll(fresh);
    } catch {
      failure = "no answer";
    }
    document.body.classList.toggle("disconnected", failure !== "");
    button.title = failure ? `The last refresh failed: ${failure}` : `Refreshed every ${seconds} s`;
  };

  const showAll = (fresh) => {
    const before = announced();
    const focused = has(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    for (const part of parts) show(part, fresh.getElementById(part.id));
    if (focused !== null && document.activeElement?.getAttribute("href") !== focused) {
      const links = parts.flatMap((part) => [...part.querySelectorAll("a")]);
      links.find((one) => one.getAttribute("href") === focused)?.focus({ preventScroll: true });
    }
    const said = document.getElementById("announce");
    const after = announced();
    if (said && after !== before) said.textContent = after;
    document.dispatchEvent(new Event("refreshed"));
  };

  const show = (part, fresh) => {
    if (part.nodeName !== "SCRIPT") update(part, fresh);
    else if (part.textContent !== fresh.textContent) {
      part.textContent = fresh.textContent;
      part.dispatchEvent(new Event("refreshed"));
    }
  };

  /** Makes an element like a fresh one. What is the same stays: scroll position, focus, the row that a link names; and
      what a reader has opened. */
  const update = (element, fresh) => {
    if (element.isEqualNode(fresh)) return;
    if (element.nodeType !== Node.ELEMENT_NODE) {
      element.nodeValue = fresh.nodeValue;
      return;
    }
    const opened = element.nodeName === "DETAILS" ? "open" : "";
    for (const { name } of [...element.attributes]) {
      if (!fresh.hasAttribute(name) && name !== opened) element.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) if (element.getAttribute(name) !== value) element.setAttribute(name, value);
    const named = new Map([...element.children].filter((one) => one.id).map((one) => [one.id, one]));
    let next = element.firstChild;
    for (const child of [...fresh.childNodes]) {
      const same = child.id ? named.get(child.id) : next && !next.id && next.nodeName === child.nodeName ? next : undefined;
      if (!same) {
        element.insertBefore(child, next);
        continue;
      }
      if (same === next) next = next.nextSibling;
      else element.insertBefore(same, next);
      update(same, child);
    }
    while (next) {
      const gone = next;
      next = next.nextSibling;
      gone.remove();
    }
  };

  button.addEventListener("click", () => {
    isPaused = !isPaused;
    label();
    if (!isPaused) refresh();
  });
  label();
  document.getElementById("refresh").append(button);
  setInterval(refresh, seconds * 1000);
  document.addEventListener("visibilitychange", refresh);
}
