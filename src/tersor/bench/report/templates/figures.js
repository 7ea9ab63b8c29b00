"use strict";
// Adds a link to every figure that saves it as an SVG file. Without this script the links stay hidden.
(() => {
  const writer = new XMLSerializer();

  // filled on demand, because embedded copies would double the page
  function fill(link) {
    const figure = link.closest("figure").querySelector("svg");
    link.href = `data:image/svg+xml,${encodeURIComponent(writer.serializeToString(figure))}`;
  }

  for (const link of document.querySelectorAll("figcaption a[download]")) {
    link.hidden = false;
    for (const kind of ["click", "contextmenu"]) link.addEventListener(kind, () => fill(link));
  }
})();
