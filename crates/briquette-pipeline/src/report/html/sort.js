// Sorts the table of tensors or jobs by a column. Without scripts it is in the order of the model or the jobs file.
const body = document.querySelector("#tensors, #jobs");
const heads = body.closest("table").querySelectorAll("thead th");
const value = (row, column) => {
  const cell = row.children[column];
  if ("v" in cell.dataset) return Number(cell.dataset.v);
  return cell.classList.contains("num") ? null : cell.textContent;
};
const compare = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
heads.forEach((head, column) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const rows = [...body.rows].map(row => [value(row, column), row]);
    rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b));
    body.append(...rows.map(([, row]) => row));
  });
});
