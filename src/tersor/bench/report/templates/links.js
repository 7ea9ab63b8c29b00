"use strict";
// Adds a bandwidth slider that shows the fastest encoder and a breakdown of its time.
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

  // times are relative to sending float32; the share of coding grows with the bandwidth
  function timed([name, ratio, encode, decode], gbit) {
    const gbytes = gbit / 8;
    const times = [gbytes / encode, 1 / ratio, gbytes / decode];
    const slope = (1 / encode + 1 / decode) / 8;
    return { name, times, slope, whole: times[0] + times[1] + times[2] };
  }

  const float32 = { name: "float32", times: [0, 1, 0], slope: 0, whole: 1 };

  // the next encoder with less coding to become the fastest, as [Gbit/s, name]
  function followerOf(best, encoders) {
    const meets = encoders
      .filter((encoder) => encoder.slope < best.slope)
      .map((encoder) => [(encoder.times[1] - best.times[1]) / (best.slope - encoder.slope), encoder.name]);
    return meets.sort(([a], [b]) => a - b)[0];
  }

  function times(encoder) {
    const gain = 1 / encoder.whole;
    return Math.abs(gain - 1) < 0.01 ? "about as fast as float32" : `${digits(gain)} times float32`;
  }

  function verdict(encoders, gbit) {
    const [best, next] = encoders;
    const at = `At ${digits(gbit)} Gbit/s`;
    if (best === float32) {
      const coding = next.times[0] + next.times[2];
      return `${at} float32 as it is comes first. Next is ${next.name}, ${times(next)}: its encoding and decoding `
        + `take ${digits(100 * coding)} % of the time that sending float32 does.`;
    }
    const [encode, send, decode] = best.times.map((time) => Math.round((100 * time) / best.whole));
    const [until, follower] = followerOf(best, encoders);
    const after = next === float32 ? "float32" : `${next.name}, ${times(next)}`;
    return `${at} ${best.name} is fastest, ${times(best)}: ${encode} % of its time is encoding, ${send} % sending, `
      + `${decode} % decoding. Next is ${after}. From ${digits(until)} Gbit/s on, ${follower} is faster.`;
  }

  function bar(encoder) {
    const words = "of the time of float32: "
      + parts.map((part, k) => `${part} ${digits(100 * encoder.times[k])} %`).join(", ");
    const pieces = parts.map((part, k) =>
      make("i", { class: part, style: `width:${Math.min(100, 100 * encoder.times[k])}%` }));
    return make("li", encoder.whole > 1 ? { class: "slow" } : {},
      make("span", { class: "name" }, encoder.name),
      make("span", { class: "bar", role: "img", title: words, "aria-label": words }, ...pieces),
      make("span", { class: "gain" }, digits(1 / encoder.whole)));
  }

  function show(given, words, list, gbit) {
    if (!(gbit > 0)) {
      words.textContent = "Give a bandwidth above 0.";
      list.replaceChildren();
      return;
    }
    const encoders = [...given.map((encoder) => timed(encoder, gbit)), float32].sort((a, b) => a.whole - b.whole);
    words.textContent = verdict(encoders, gbit);
    const shown = encoders.filter((encoder, k) => k < numShown || encoder === float32);
    list.replaceChildren(...shown.map(bar));
  }

  function fill(section) {
    const given = JSON.parse(section.dataset.encoders);
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
      if (number.valueAsNumber > 0) slider.value = Math.log10(number.valueAsNumber);
      show(given, words, list, number.valueAsNumber);
    });
    slider.addEventListener("input", () => {
      number.value = Number((10 ** slider.valueAsNumber).toPrecision(2));
      show(given, words, list, number.valueAsNumber);
    });
    const note = section.querySelector(".note");
    section.append(make("p", { class: "ask" }, make("label", {}, "Bandwidth ", number, " Gbit/s"), slider), words, list, legend, ...(note === null ? [] : [note]));
    show(given, words, list, number.valueAsNumber);
    section.hidden = false;
  }

  document.querySelectorAll(".links").forEach(fill);
})();
