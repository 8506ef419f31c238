/* Loads the rollouts of a group after its page: the section, the spans in the timeline, and marks at the rebalances that
   were part of one. Loads them again only when members have changed, or while one may go on. */
"use strict";

{
  const section = byId("rollouts");
  let loaded = [];
  let changedAt = null;

  /** When members joined or left last, in milliseconds since 1970: only then there is another rollout. */
  const lastChange = () => {
    const changes = DATA.people.flat().map((life) => life.left_at ?? life.joined_at);
    return DATA.start + [...changes, ...rebalances.map((it) => it.at)].reduce((last, at) => Math.max(last, at), 0);
  };

  const show = () => {
    const inTimeline = (it) => ({ ...it, began: it.began - DATA.start, until: it.until === null ? null : it.until - DATA.start });
    rollouts = loaded.map(inTimeline);
    drawSoon();
    mark();
  };

  /** Says at each rebalance which rollout it was part of. */
  const mark = () => {
    for (const row of document.querySelectorAll("tr[data-at]")) {
      const rebalance = { at: Number(row.dataset.at) - DATA.start, to_generation: Number(row.dataset.generation) };
      const rollout = rolloutOf(rebalance);
      const text = rollout ? partOf(rollout, rebalance.at) : "";
      const old = row.querySelector(".of-rollout");
      if ((old?.textContent ?? "") === text) continue;
      old?.remove();
      const link = html("a", { href: "#rollouts" }, text);
      if (text) row.querySelector(".cause").parentElement.append(html("small", { class: "of-rollout" }, link));
    }
  };

  const load = async () => {
    show();
    const change = lastChange();
    if (change === changedAt && loaded.every((it) => it.until !== null)) return;
    try {
      const answer = await fetch(section.dataset.source, { headers: { Accept: "text/html" } });
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("rollouts");
      changedAt = change;
      loaded = rowsOf(JSON.parse(fresh.querySelector("script").textContent));
      if (!section.contains(document.activeElement)) section.replaceChildren(...fresh.childNodes);
    } catch {
      // The link to them stays; the next refresh tries again.
    }
    show();
  };

  document.addEventListener("refreshed", load);
  load();
}
