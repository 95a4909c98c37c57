// Sorts the table by a column, and switches between light and dark.
"use strict";

const root = document.documentElement;
const scheme = document.getElementById("scheme");
const table = document.querySelector(".standings");

function setScheme() {
  const forced = root.dataset.theme;
  const isDark = forced ? forced === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.classList.toggle("dark", isDark);
  scheme.textContent = isDark ? "Light" : "Dark";
}

// Cells without a number stay last in both directions.
function compare(a, b, direction) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const [x, y] = [Number(a), Number(b)];
  const order = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  return direction * order;
}

function sortBy(head) {
  // Large numbers first, except ranks and names.
  const isFirst = head.getAttribute("aria-sort") === null;
  const before = isFirst ? head.dataset.first : head.getAttribute("aria-sort");
  const flipped = before === "ascending" ? "descending" : "ascending";
  const now = isFirst ? before : flipped;
  for (const other of table.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", now);
  const direction = now === "ascending" ? 1 : -1;
  const value = (row) => row.cells[head.dataset.column].dataset.value;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compare(value(a), value(b), direction));
  table.tBodies[0].append(...rows);
}

for (const head of table.querySelectorAll("th[data-column]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  button.addEventListener("click", () => sortBy(head));
  head.append(button);
}
scheme.hidden = document.getElementById("hint").hidden = false;
scheme.addEventListener("click", () => {
  root.dataset.theme = root.classList.contains("dark") ? "light" : "dark";
  setScheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", setScheme);
setScheme();
document.querySelectorAll(".frame > .scroll").forEach(watchEdges);
