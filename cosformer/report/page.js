"use strict";
// The page stands without this file: here are the choice of colours, what lies under the pointer, tables that sort.

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
    const { x: xName, y: yName, exact, scatter, series } = JSON.parse(figure.dataset.chart);
    const tip = figure.querySelector(".tip");
    const places = [...new Set(series.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
    const off = new Set();
    let at = places.length - 1;
    for (const button of figure.querySelectorAll(".legend button")) {
      button.addEventListener("click", () => {
        const which = Number(button.dataset.series);
        if (!off.delete(which)) off.add(which);
        button.setAttribute("aria-pressed", String(!off.has(which)));
        for (const part of figure.querySelectorAll(`g[data-series="${which}"]`)) part.classList.toggle("off", off.has(which));
      });
    }
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
      for (const [which, s] of series.entries()) {
        if (!s.points.length || off.has(which)) continue;
        if ((exact || scatter) && !s.points.some((p) => p[0] === place)) continue;
        const near = s.points.reduce((a, b) => (Math.abs(b[0] - place) < Math.abs(a[0] - place) ? b : a));
        const row = document.createElement("div");
        const swatch = document.createElement("span");
        swatch.className = `swatch c${s.colour}`;
        const value = document.createElement("b");
        value.textContent = told(near[1]);
        const elsewhere = near[0] === place ? "" : ` (at ${told(near[0])})`;
        row.append(swatch, `${s.name} `, value, elsewhere, scatter ? ` ${yName}` : "");
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

for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.querySelectorAll("thead th")];
  const body = table.tBodies[0];
  for (const [column, head] of heads.entries()) {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const words = head.dataset.words === "1";
      const key = (row) => {
        const cell = row.cells[column];
        if (words) return cell.textContent;
        return "value" in cell.dataset ? Number(cell.dataset.value) : null;
      };
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null || y === null) return (x === null) - (y === null); // without a number: last, either way
        const less = words ? x.localeCompare(y) : (x > y) - (x < y);
        return up ? less : -less;
      };
      body.append(...[...body.rows].sort(order));
    });
  }
}

for (const maps of document.querySelectorAll(".maps")) {
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
    const where = image.dataset.name ?? `layer ${image.dataset.layer}, head ${image.dataset.head}`;
    readout.textContent = `${where}: ${named(words[query])} (${query}) ` +
      `looks at ${named(words[key])} (${key}), ${Math.abs(query - key)} away: ${much}`;
  };
  maps.addEventListener("pointermove", follow);
  maps.addEventListener("pointerdown", follow);
}
