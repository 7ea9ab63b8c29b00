"use strict";
// Lets readers move the bandwidth of a link: which encoder is fastest there, and where its time goes.
(() => {
  const numShown = 8;
  const parts = ["encode", "send", "decode"];
  const slowest = 0.1, fastest = 3200;

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function digits(value, count = 3) {
    if (value >= 10 ** (count - 1)) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(value < 1 ? count - 1 : count)));
  }

  // times are shares of what sending float32 takes
  function timed([name, ratio, encode, decode], gbit) {
    const gbytes = gbit / 8;
    const times = [gbytes / encode, 1 / ratio, gbytes / decode];
    return { name, times, whole: times[0] + times[1] + times[2], limit: limitOf(ratio, encode, decode) };
  }

  // the bandwidth in Gbit/s up to which it is faster than float32
  function limitOf(ratio, encode, decode) {
    return (8 * Math.max(0, 1 - 1 / ratio)) / (1 / encode + 1 / decode);
  }

  function verdict(ways, gbit) {
    const [best, next] = ways;
    const at = `At ${digits(gbit)} Gbit/s`;
    const after = next === undefined ? "" : `; next is ${next.name}, ${digits(1 / next.whole)} times.`;
    if (best.whole < 1) {
      const [encode, send, decode] = best.times.map((time) => Math.round((100 * time) / best.whole));
      return `${at} ${best.name} is fastest, ${digits(1 / best.whole)} times float32: ${encode} % of its time is `
        + `encoding, ${send} % sending, ${decode} % decoding. It pays up to ${digits(best.limit)} Gbit/s${after || "."}`;
    }
    const coding = best.times[0] + best.times[2];
    return `${at} plain float32 is fastest. ${best.name} comes nearest, at ${digits(1 / best.whole)} times its `
      + `speed: encoding and decoding take ${digits(coding)} times as long as sending float32.`;
  }

  function bar(way) {
    const words = parts.map((part, k) => `${part} ${digits(100 * way.times[k])} %`).join(", ");
    const pieces = parts.map((part, k) =>
      make("i", { class: part, style: `width:${Math.min(100, 100 * way.times[k])}%` }));
    return make("li", way.whole > 1 ? { class: "slow" } : {},
      make("span", { class: "way" }, way.name),
      make("span", { class: "bar", role: "img", title: words, "aria-label": words }, ...pieces),
      make("span", { class: "gain" }, digits(1 / way.whole)));
  }

  function show(given, words, list, gbit) {
    const ways = given.map((way) => timed(way, gbit)).sort((a, b) => a.whole - b.whole);
    words.textContent = verdict(ways, gbit);
    const float32 = { name: "float32", times: [0, 1, 0], whole: 1 };
    const shown = [...ways.slice(0, numShown), float32].sort((a, b) => a.whole - b.whole);
    list.replaceChildren(...shown.map(bar));
  }

  function fill(section) {
    const given = JSON.parse(section.dataset.ways);
    const number = make("input", { type: "number", min: 0.001, step: "any", value: section.dataset.gbit });
    const slider = make("input", {
      type: "range", min: Math.log10(slowest), max: Math.log10(fastest), step: 0.01,
      value: Math.log10(number.value), "aria-label": "Bandwidth, by its powers of ten",
    });
    const words = make("p", { "aria-live": "polite" });
    const list = make("ol", {});
    const legend = make("p", { class: "key" },
      ...parts.flatMap((part, k) => [make("i", { class: part }), ` ${part}${k < 2 ? ", " : ""}`]),
      "; a full bar is the time that float32 takes as it is, and slower ones fade out");
    number.addEventListener("input", () => {
      if (!(number.valueAsNumber > 0)) return;
      slider.value = Math.log10(number.valueAsNumber);
      show(given, words, list, number.valueAsNumber);
    });
    slider.addEventListener("input", () => {
      number.value = Number((10 ** slider.valueAsNumber).toPrecision(2));
      show(given, words, list, number.valueAsNumber);
    });
    section.append(make("p", { class: "ask" }, make("label", {}, "Bandwidth ", number, " Gbit/s"), slider), words, list, legend);
    show(given, words, list, number.valueAsNumber);
    section.hidden = false;
  }

  document.querySelectorAll(".links").forEach(fill);
})();
