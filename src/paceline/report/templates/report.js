"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const numeric = head.classList.contains("num");
    const key = (row) => row.cells[index].dataset.sort;
    const compare = numeric ? (a, b) => Number(a) - Number(b) : (a, b) => a.localeCompare(b, "en", { numeric: true });
    [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      return down ? compare(y, x) : compare(x, y);
    }).forEach((row) => body.append(row));
  }));
}
const reveal = () => {
  const part = location.hash && document.getElementById(location.hash.slice(1));
  if (part instanceof HTMLDetailsElement) { part.open = true; part.scrollIntoView(); }
};
addEventListener("hashchange", reveal);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
reveal();
