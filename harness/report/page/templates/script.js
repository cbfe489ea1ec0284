"use strict";
{
  // Theme: the system's until somebody chooses.
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = dark() ? "light theme" : "dark theme"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  name();

  // Columns sort by their heading: a button, so that keyboards reach it. What was not measured stays last.
  const key = (row, place) => {
    const cell = row.cells[place];
    if (cell.dataset.sort === undefined) return cell.textContent.trim();
    return cell.dataset.sort === "" ? null : Number(cell.dataset.sort);
  };
  const compare = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  const sort = (table, heading) => {
    const place = heading.cellIndex;
    const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    const rows = [...table.tBodies[0].rows].map((row) => [key(row, place), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return direction === "ascending" ? compare(a, b) : compare(b, a);
    });
    for (const each of heading.parentElement.cells) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", direction);
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  for (const table of document.querySelectorAll("table")) {
    if (table.tBodies[0].rows.length < 2) continue;
    for (const heading of table.tHead.rows[0].cells) {
      const inner = document.createElement("button");
      inner.type = "button";
      inner.append(...heading.childNodes);
      heading.append(inner);
      inner.addEventListener("click", () => sort(table, heading));
    }
  }

  // Paper has no clicks: what is folded is printed as well.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const each of folded) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of folded) each.open = false; });
}
