"use strict";
// The page stands without this file: here are the choice of colours and what lies under the pointer.

(() => {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const choices = ["system", "light", "dark"];
  let chosen = "system";
  try { chosen = localStorage.getItem("cosformer-theme") || "system"; } catch { /* a page from a file may have no store */ }
  const show = () => {
    if (!choices.includes(chosen)) chosen = "system";
    if (chosen === "system") delete root.dataset.theme; else root.dataset.theme = chosen;
    button.textContent = `Theme: ${chosen}`;
  };
  button.addEventListener("click", () => {
    chosen = choices[(choices.indexOf(chosen) + 1) % choices.length];
    try { localStorage.setItem("cosformer-theme", chosen); } catch { /* then it lasts as long as the page */ }
    show();
  });
  button.hidden = false;
  show();
})();

(() => {
  const told = (x) => {
    if (Number.isInteger(x)) return x.toLocaleString("en");
    return Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(4)));
  };
  const make = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const { x: xName, series } = JSON.parse(figure.dataset.chart);
    const tip = figure.querySelector(".tip");
    const places = [...new Set(series.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
    let at = places.length - 1;
    const hide = () => {
      tip.hidden = true;
      for (const mark of figure.querySelectorAll(".cross, .here")) mark.remove();
    };
    const show = (svg) => {
      hide();
      const [ax, bx, ay, by] = JSON.parse(svg.dataset.scale);
      const [logX, logY] = [...svg.dataset.log].map((c) => c === "1");
      const px = (x) => ax * (logX ? Math.log10(x) : x) + bx;
      const py = (y) => ay * (logY ? Math.log10(y) : y) + by;
      const place = places[at];
      svg.append(make("line", { class: "cross", x1: px(place), x2: px(place), y1: svg.dataset.top, y2: svg.dataset.floor }));
      tip.replaceChildren();
      const head = document.createElement("div");
      head.textContent = `${xName} ${told(place)}`;
      tip.append(head);
      for (const s of series) {
        if (!s.points.length) continue;
        const near = s.points.reduce((a, b) => (Math.abs(b[0] - place) < Math.abs(a[0] - place) ? b : a));
        const row = document.createElement("div");
        const swatch = document.createElement("span");
        swatch.className = `swatch c${s.colour}`;
        const value = document.createElement("b");
        value.textContent = told(near[1]);
        const elsewhere = near[0] === place ? "" : ` (at ${told(near[0])})`;
        row.append(swatch, `${s.name} `, value, elsewhere);
        tip.append(row);
        svg.append(make("circle", { class: `here c${s.colour}`, cx: px(near[0]), cy: py(near[1]), r: 5 }));
      }
      tip.hidden = false;
      const box = svg.viewBox.baseVal;
      const share = px(place) / box.width;
      const wide = svg.getBoundingClientRect().width;
      tip.style.left = share > 0.55 ? "" : `${share * wide + 12}px`;
      tip.style.right = share > 0.55 ? `${(1 - share) * wide + 12}px` : "";
    };
    for (const svg of figure.querySelectorAll("svg")) {
      const follow = (event) => {
        const seen = svg.getBoundingClientRect();
        const [ax, bx] = JSON.parse(svg.dataset.scale);
        const want = ((event.clientX - seen.left) / seen.width) * svg.viewBox.baseVal.width;
        const log = svg.dataset.log[0] === "1";
        const where = places.map((x) => Math.abs(ax * (log ? Math.log10(x) : x) + bx - want));
        at = where.indexOf(Math.min(...where));
        show(svg);
      };
      svg.addEventListener("pointermove", follow);
      svg.addEventListener("pointerdown", follow);
      svg.addEventListener("pointerleave", hide);
      svg.addEventListener("focus", () => show(svg));
      svg.addEventListener("blur", hide);
      svg.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (event.key === "Escape") hide();
        if (!step) return;
        event.preventDefault();
        at = Math.min(places.length - 1, Math.max(0, at + step));
        show(svg);
      });
    }
  }
})();

(() => {
  const maps = document.querySelector(".maps");
  if (!maps) return;
  const words = JSON.parse(maps.dataset.words);
  const [darkest, gamma] = [Number(maps.dataset.darkest), Number(maps.dataset.gamma)];
  const readout = maps.querySelector(".readout");
  const levels = new Map();
  const read = (image) => { // the weights are the opacity of the pixels
    if (!levels.has(image)) {
      const canvas = document.createElement("canvas");
      canvas.width = image.naturalWidth;
      canvas.height = image.naturalHeight;
      const context = canvas.getContext("2d");
      context.drawImage(image, 0, 0);
      levels.set(image, context.getImageData(0, 0, canvas.width, canvas.height).data);
    }
    return levels.get(image);
  };
  const named = (word) => `“${word.replace("\n", "⏎").replace("\t", "⇥").replace(/^ $/, "␣")}”`;
  const follow = (event) => {
    const image = event.target;
    if (image.tagName !== "IMG") return;
    const seen = image.getBoundingClientRect();
    const size = words.length;
    const key = Math.min(size - 1, Math.max(0, Math.floor(((event.clientX - seen.left) / seen.width) * size)));
    const query = Math.min(size - 1, Math.max(0, Math.floor(((event.clientY - seen.top) / seen.height) * size)));
    const level = read(image)[4 * (query * size + key) + 3] / 255;
    const times = darkest * level ** (1 / gamma);
    const much = level === 0 ? "not at all" : `${times.toFixed(1)}${level === 1 ? " or more" : ""} times the mean`;
    readout.textContent = `layer ${image.dataset.layer}, head ${image.dataset.head}: ${named(words[query])} (${query}) ` +
      `looks at ${named(words[key])} (${key}), ${Math.abs(query - key)} away: ${much}`;
  };
  maps.addEventListener("pointermove", follow);
  maps.addEventListener("pointerdown", follow);
})();
