"use strict";
// Lets readers save every figure as the file that it is. Without this script the figures have no link.
(() => {
  const writer = new XMLSerializer();

  // a copy of every figure in the page would make that twice as large
  function fill(link) {
    const figure = link.closest("figure").querySelector("svg");
    link.href = `data:image/svg+xml,${encodeURIComponent(writer.serializeToString(figure))}`;
  }

  for (const link of document.querySelectorAll("figcaption a[download]")) {
    link.hidden = false;
    for (const kind of ["click", "contextmenu"]) link.addEventListener(kind, () => fill(link));
  }
})();
