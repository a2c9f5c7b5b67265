// The console works without this file. It adds live updates, a question in place of a page, and keys.
"use strict";

const region = document.querySelector("[data-live]");
const state = document.querySelector("[data-live-state]");

// A reader who is inside the region (a link has the focus, something is unfolded, text is marked) keeps it.
function isBusy() {
  const selected = document.getSelection();
  return (
    region.contains(document.activeElement) ||
    region.querySelector("details[open]") !== null ||
    (selected !== null && !selected.isCollapsed && region.contains(selected.anchorNode))
  );
}

function replace(html) {
  const scrolled = [...region.querySelectorAll(".table")].map((table) => table.scrollLeft);
  region.innerHTML = html;
  region.querySelectorAll(".table").forEach((table, place) => (table.scrollLeft = scrolled[place] ?? 0));
}

function follow() {
  const toggle = state.querySelector("button");
  let source = null;

  function start() {
    if (source !== null) return;
    source = new EventSource(region.dataset.live);
    source.addEventListener("part", (event) => {
      if (!isBusy()) replace(event.data);
    });
    source.addEventListener("over", () => location.reload());
    source.addEventListener("error", () => {
      // A browser tries again by itself, but not after a refusal: the node may have had too many of us.
      if (source !== null && source.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(react, 15000);
      }
    });
  }

  function stop() {
    if (source !== null) source.close();
    source = null;
  }

  function react() {
    const paused = toggle.getAttribute("aria-pressed") === "true";
    if (paused || document.hidden) stop();
    else start();
  }

  toggle.addEventListener("click", () => {
    const paused = toggle.getAttribute("aria-pressed") !== "true";
    toggle.setAttribute("aria-pressed", String(paused));
    react();
  });
  document.addEventListener("visibilitychange", react);
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", react);
  state.hidden = false;
  react();
}

// Forms with a question: ask in a dialog, and tell the server that it need not ask again.
function ask(form, submitter) {
  const dialog = document.createElement("dialog");
  const text = document.createElement("p");
  const row = document.createElement("div");
  const yes = document.createElement("button");
  const no = document.createElement("button");
  text.textContent = form.dataset.question;
  text.id = "question";
  yes.textContent = `Yes, ${submitter.textContent.trim().toLowerCase()}`;
  yes.className = submitter.className;
  no.textContent = "No, go back";
  row.className = "row";
  row.append(yes, no);
  dialog.setAttribute("aria-labelledby", text.id);
  dialog.append(text, row);
  no.addEventListener("click", () => dialog.close());
  yes.addEventListener("click", () => {
    const confirmed = document.createElement("input");
    confirmed.type = "hidden";
    confirmed.name = "confirmed";
    confirmed.value = "yes";
    form.append(confirmed);
    dialog.close();
    form.submit();
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    submitter.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.question && form.elements.confirmed === undefined) {
    event.preventDefault();
    ask(form, event.submitter ?? form.querySelector("button"));
  }
});

// "/" goes to the search field, Escape closes an opened form.
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select, dialog") !== null;
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const search = document.querySelector("[data-search]");
    if (search !== null) {
      event.preventDefault();
      search.focus();
    }
  } else if (event.key === "Escape") {
    const opened = event.target.closest("details[open]");
    if (opened !== null) {
      opened.open = false;
      opened.querySelector("summary").focus();
    }
  }
});

if (region !== null) follow();
