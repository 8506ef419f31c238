/* The editor: Ctrl or Command and Enter runs the query. Tab leaves the editor, as everywhere. */
"use strict";

const editor = document.getElementById("editor");
const run = editor.querySelector("button.primary");

document.getElementById("keys").hidden = false;

editor.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.isComposing) return;
  event.preventDefault();
  editor.requestSubmit();
});

editor.addEventListener("submit", () => {
  run.setAttribute("aria-busy", "true");
  run.textContent = "Running…";
});

/* A page that the browser kept, shown again by its back button. */
addEventListener("pageshow", () => {
  run.removeAttribute("aria-busy");
  run.textContent = "Run";
});
