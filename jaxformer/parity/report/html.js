"use strict";

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Sorting: figures by size, NaN as the largest, what is missing last either way; names by their numbers too.
function compareCells(number) {
  if (!number) return (a, b) => a.localeCompare(b, "en", { numeric: true });
  const size = (text) => (text === "NaN" ? Infinity : Number(text));
  return (a, b) => (size(a) === size(b) ? 0 : size(a) - size(b));
}

function sortBy(heading) {
  const table = heading.closest("table");
  const column = all("th", heading.parentNode).indexOf(heading);
  const before = heading.getAttribute("aria-sort");
  const order = before ? (before === "ascending" ? "descending" : "ascending") : heading.dataset.first;
  const compare = compareCells(heading.classList.contains("number"));
  const rows = all("tbody tr", table).map((row) => [row.cells[column].dataset.value, row]);
  rows.sort(([a], [b]) => (!a || !b ? !a - !b : order === "ascending" ? compare(a, b) : compare(b, a)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
  all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", order);
}

all("th button").forEach((button) => button.addEventListener("click", () => sortBy(button.parentNode)));

// Positions: one module's plot at a time.
const chosen = document.getElementById("position-module");
function showPosition() {
  all("#positions figure").forEach((figure) => (figure.hidden = figure.id !== chosen.value));
}
if (chosen) {
  chosen.addEventListener("change", showPosition);
  showPosition(); // a browser keeps what was chosen before a reload
}

// Plots of calls: what one points at, or reaches by arrow keys, is said below; Enter goes to its row.
function readOut(plot) {
  const says = plot.nextElementSibling;
  const calls = all("a.call", plot);
  let here = null;
  const say = (call) => {
    if (here) here.classList.remove("here");
    here = call;
    here.classList.add("here");
    says.textContent = here.querySelector("title").textContent;
  };
  const diverging = calls.find((call) => call.classList.contains("diverging"));
  says.textContent = diverging ? diverging.querySelector("title").textContent : "Point at a module, or use the arrow keys.";
  calls.forEach((call) => call.addEventListener("pointerenter", () => say(call)));
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      const last = calls.length - 1;
      say(calls[here ? Math.min(Math.max(calls.indexOf(here) + step, 0), last) : step > 0 ? 0 : last]);
      here.scrollIntoView({ block: "nearest", inline: "nearest" });
      event.preventDefault();
    } else if (event.key === "Enter" && here) {
      location.hash = here.getAttribute("href");
    }
  });
}

all(".plot.calls").forEach(readOut);

// A row that one goes to is shown, whatever is filtered.
window.addEventListener("hashchange", () => {
  const row = document.getElementById(location.hash.slice(1));
  const filter = document.getElementById("diverging-only");
  if (filter && row && row.matches("tr:not(.diverging)")) {
    filter.checked = false;
    row.scrollIntoView();
  }
});
