"use strict";
// Makes every table sortable by column. Without this script the tables keep their order.
(() => {
  const number = /^[~<>+-]?\s*(\d[\d,]*(\.\d+)?|\.\d+)(e[+-]?\d+)?/i;
  const words = new Intl.Collator("en", { numeric: true });

  function textOf(row, column) {
    return row.cells[column].textContent.trim();
  }

  function valueOf(text) {
    const found = number.exec(text);
    return found === null ? NaN : Number(found[0].replace(/[~<>,\s]/g, ""));
  }

  // a column is numeric if each nonempty cell begins with a number
  function isNumeric(rows, column) {
    const texts = rows.map((row) => textOf(row, column)).filter((text) => text !== "");
    return texts.length > 0 && texts.every((text) => number.test(text));
  }

  function sort(table, head, column) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const numeric = isNumeric(rows, column);
    const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const keyed = rows.map((row) => [textOf(row, column), row]);
    keyed.sort(([a], [b]) => {
      // empty cells stay last in both directions
      if (a === "" || b === "") return (a === "") - (b === "");
      return direction * (numeric ? valueOf(a) - valueOf(b) : words.compare(a, b));
    });
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    body.append(...keyed.map(([, row]) => row));
  }

  for (const table of document.querySelectorAll("table")) {
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      if (head.textContent.trim() === "") return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(table, head, column));
    });
  }
})();
