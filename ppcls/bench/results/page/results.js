"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const width = 560, height = 300, left = 60, right = 12, top_ = 10, bottom = 42;

function element(name, attributes, parent, text) {
  const child = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  if (text !== undefined) child.textContent = text;
  parent.append(child);
  return child;
}

// Round numbers from 0 up to at least the highest value.
function ticks(highest) {
  if (!(highest > 0)) return [0, 1];
  const rough = highest / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(each => each * power).find(each => each >= rough);
  const found = [];
  for (let n = 0; (n - 1) * step < highest; n++) found.push(n * step);
  return found;
}

const format = value => value >= 1000 ? value.toLocaleString("en") : Number(value.toPrecision(4)).toString();

function scaleX(chart) {
  const inner = width - left - right;
  if (chart.categories.length) return x => left + (x + 0.5) * inner / chart.categories.length;
  const all = chart.series.flatMap(series => series.points.map(point => point.x));
  const low = Math.min(...all), span = Math.max(...all) - low || 1;
  return x => left + 16 + (x - low) / span * (inner - 32);
}

// Returns the marks of the y axis, and a function from a value to its share of the height.
function scaleY(chart, seen) {
  if (!chart.log) {
    const marks = ticks(Math.max(0, ...seen.flatMap(series => series.points.map(point => point.high))));
    return [marks, value => value / marks[marks.length - 1]];
  }
  const all = chart.series.flatMap(series => series.points);
  const first = Math.floor(Math.log10(Math.min(...all.map(point => point.low))));
  const last = Math.ceil(Math.log10(Math.max(...all.map(point => point.high))));
  const marks = Array.from({length: last - first + 1}, (_, place) => 10 ** (first + place));
  return [marks, value => (Math.log10(value) - first) / (last - first)];
}

function draw(svg, chart, hidden, say) {
  svg.replaceChildren();
  const [marks, share] = scaleY(chart, chart.series.filter((_, place) => !hidden.has(place)));
  const floor = height - bottom - 12 * Math.max(0, ...chart.categories.map(lines => lines.length - 1));
  const x = scaleX(chart), y = value => floor - Math.max(0, share(value)) * (floor - top_);
  for (const mark of marks) {
    element("line", {x1: left, x2: width - right, y1: y(mark), y2: y(mark), class: "grid"}, svg);
    element("text", {x: left - 6, y: y(mark) + 4, "text-anchor": "end", class: "axis"}, svg, format(mark));
  }
  const places = new Map(chart.series.flatMap(series => series.points.map(point => [point.x, point.label])));
  for (const [at, label] of places) {
    (chart.categories[at] ?? [label]).forEach((line, place) =>
      element("text", {x: x(at), y: floor + 16 + 12 * place, "text-anchor": "middle", class: "axis"}, svg, line));
  }
  element("text", {x: (left + width) / 2, y: height - 6, "text-anchor": "middle", class: "axis"}, svg, chart.x);
  const room = (width - left - right) / Math.max(1, chart.categories.length) * 0.8 / chart.series.length;
  chart.series.forEach((series, place) => {
    if (hidden.has(place)) return;
    const stroke = series.colour;
    const bars = chart.categories.length > 0;
    const at = point => bars ? x(point.x) + (place - (chart.series.length - 1) / 2) * room : x(point.x);
    if (!bars) {
      const line = series.points.map(point => `${at(point)},${y(point.median)}`).join(" ");
      element("polyline", {points: line, fill: "none", stroke, "stroke-width": 1.5}, svg);
    }
    for (const point of series.points) {
      const text = [series.name, `${chart.x} ${point.label}: ${point.text}`].filter(Boolean).join(", ");
      const mark = bars
        ? element("rect", {x: at(point) - room / 2, y: y(point.median), width: room,
                           height: Math.max(1, floor - y(point.median)), fill: stroke}, svg)
        : element("circle", {cx: at(point), cy: y(point.median), r: 4.5, fill: stroke}, svg);
      const ink = bars ? "#1f2430" : stroke;
      element("line", {x1: at(point), x2: at(point), y1: y(point.low), y2: y(point.high), stroke: ink,
                       "pointer-events": "none"}, svg);
      element("title", {}, mark, text);
      mark.addEventListener("mouseenter", () => say(text));
    }
  });
}

for (const chart of data.charts) {
  const box = document.createElement("div"), head = document.createElement("header");
  const names = document.createElement("div"), value = document.createElement("div");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const hidden = new Set(), say = text => { value.textContent = text; };
  box.className = "chart";
  box.dataset.title = chart.title;
  head.textContent = chart.title;
  names.className = "names";
  value.className = "value";
  value.textContent = chart.y;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  box.append(head, svg, value, names);
  document.getElementById("charts").append(box);
  if (chart.series.length > 1) chart.series.forEach((series, place) => {
    const button = document.createElement("button"), patch = document.createElement("i");
    patch.style.background = series.colour;
    button.append(patch, series.name);
    button.addEventListener("click", () => {
      button.classList.toggle("hidden");
      hidden.has(place) ? hidden.delete(place) : hidden.add(place);
      draw(svg, chart, hidden, say);
    });
    names.append(button);
  });
  draw(svg, chart, hidden, say);
}

function sortBy(table, column, down) {
  const body = table.tBodies[0];
  const key = row => {
    const cell = row.cells[column], value = cell.dataset.value ?? cell.textContent;
    return value === "" ? null : isNaN(value) ? value : Number(value);
  };
  const rows = [...body.rows].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === null || b === null) return (a === null) - (b === null);  // missing values come last
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    return down ? -order : order;
  });
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.results")) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    heading.addEventListener("click", () => {
      const down = heading.dataset.sorted !== "down";
      for (const each of table.tHead.rows[0].cells) delete each.dataset.sorted;
      heading.dataset.sorted = down ? "down" : "up";
      sortBy(table, column, down);
    });
  });
}
