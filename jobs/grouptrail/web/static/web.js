/* Refreshes the part of the page that changes, in place; a button pauses it. Without this script pages are as they
   were when they were opened. */
"use strict";

const live = document.querySelector("[data-refresh-seconds]");

if (live) {
  const seconds = Number(live.dataset.refreshSeconds);
  const button = document.createElement("button");
  button.type = "button";
  button.className = "pause";
  let isPaused = false;

  const label = () => {
    button.textContent = isPaused ? "Resume" : "Pause";
    button.setAttribute("aria-label", isPaused ? "Resume the automatic refresh" : "Pause the automatic refresh");
  };

  /** Whether a reader would lose something: a selection, or an open list. */
  const isInUse = () => !getSelection().isCollapsed || live.contains(document.activeElement?.closest("select, input"));

  const announce = (before) => {
    const said = document.getElementById("announce");
    const after = counts();
    if (said && after !== before) said.textContent = after;
  };

  const counts = () => [...live.querySelectorAll(".verdicts a")].map((one) => one.textContent.trim()).join(", ");

  const refresh = async () => {
    if (isPaused || document.hidden || isInUse()) return;
    let failure = "";
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(live.id);
      if (fresh) replace(fresh);
      else failure = `status ${answer.status}`;
    } catch {
      failure = "no answer";
    }
    document.body.classList.toggle("disconnected", failure !== "");
    button.title = failure ? `The last refresh failed: ${failure}` : `Refreshed every ${seconds} s`;
  };

  const replace = (fresh) => {
    const before = counts();
    const focused = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const scrolled = [...live.querySelectorAll(".wide")].map((one) => [one.scrollLeft, one.scrollTop]);
    live.replaceChildren(...fresh.childNodes);
    live.querySelectorAll(".wide").forEach((one, index) => one.scrollTo(...(scrolled[index] ?? [0, 0])));
    if (focused !== null) {
      [...live.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus({ preventScroll: true });
    }
    announce(before);
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
