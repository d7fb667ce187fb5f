"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const colours = data.colours;
const height = 240;
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const epochSteps = [...Array(9).keys()].flatMap(power => [1, 2, 5].map(digit => digit * 10 ** power));
const redraws = [];

// Returns a number as text. Large numbers, such as a diverging loss, have an exponent to fit beside an axis.
function format(value) {
  if (value == null) return "–";
  const rounded = Number(value.toPrecision(5));
  return Math.abs(rounded) >= 1e6 ? rounded.toExponential() : rounded.toString();
}

// In the joined table of several curves, undefined marks points of other curves, and null marks gaps.

// Returns the index of the point of a curve that is nearest to the mouse. Curves have points at different epochs.
function nearest(plot, series, index) {
  const values = plot.data[series];
  if (series === 0 || values[index] !== undefined) return index;
  let left = index, right = index;
  while (left >= 0 && values[left] === undefined) left--;
  while (right < values.length && values[right] === undefined) right++;
  if (left < 0) return right < values.length ? right : index;
  if (right >= values.length) return left;
  const x = plot.data[0], at = plot.posToVal(plot.cursor.left, "x");
  return at - x[left] <= x[right] - at ? left : right;
}

// Returns the text of the legend: the value at the mouse position, or the last value.
function legend(plot, value, series, index) {
  return format(index == null ? plot.data[series].findLast(known => known != null) : value);
}

// Returns the indices of single points between two gaps, which are not visible as a line.
function alone(values) {
  const known = [...values.keys()].filter(index => values[index] !== undefined);
  const empty = place => values[known[place]] == null;
  return known.filter((index, place) => !empty(place) && empty(place - 1) && empty(place + 1));
}

// Returns a function that computes the range of the y axis. The range ends at chart.top if a visible value is lower,
// and begins at 0 if chart.from_zero is set.
function valueRange(chart) {
  return (plot, low, high) => {
    if (high == null) return [null, null];
    if (chart.from_zero) low = 0;
    return uPlot.rangeNum(low, chart.top != null && low < chart.top ? Math.min(high, chart.top) : high, 0.1, true);
  };
}

function draw(place, chart, log) {
  const kept = curve => curve.y.map(value => value !== null && value <= 0 ? undefined : value);
  const useLog = log && chart.curves.some(curve => curve.y.some(value => value > 0));
  const line = () => css("--line"), axis = {stroke: () => css("--ink"), grid: {stroke: line, width: 1}, ticks: {stroke: line}};
  const tables = chart.curves.map(curve => [curve.x, useLog ? kept(curve) : curve.y]);
  return new uPlot({
    width: Math.max(200, place.clientWidth),
    height,
    cursor: {sync: {key: "run", setSeries: false}, dataIdx: nearest},
    scales: {x: {time: false}, y: useLog ? {distr: 3} : {range: valueRange(chart)}},
    axes: [{...axis, incrs: epochSteps}, {
      ...axis,
      size: 64,
      values: (plot, ticks) => ticks.map(tick => tick == null ? "" : format(tick)),
    }],
    series: [
      {label: "epoch", value: legend},
      ...chart.curves.map(curve => ({
        label: curve.label,
        stroke: colours[curve.label] ?? colours.train,
        width: 1.5,
        points: {show: curve.dots, fill: colours[curve.label] ?? colours.train, filter: (plot, series, all) => all ? null : alone(plot.data[series])},
        value: legend,
      })),
    ],
  }, uPlot.join(tables, tables.map(() => [0, 2])), place);  // 2: gaps extend to the points of other curves
}

for (const chart of data.charts) {
  const box = document.createElement("div"), head = document.createElement("header");
  const label = document.createElement("label"), log = document.createElement("input");
  const place = document.createElement("div");
  box.className = "chart";
  box.dataset.title = chart.title;
  head.append(chart.title, label);
  log.type = "checkbox";
  label.append(log, " log scale");
  box.append(head, place);
  if (chart.note) {
    const note = document.createElement("div");
    note.className = "faint";
    note.textContent = `${chart.note} The log scale shows all values.`;
    head.after(note);
  }
  document.getElementById("charts").append(box);
  let plot = draw(place, chart, false);
  redraws.push(() => plot.redraw());
  log.addEventListener("change", () => {
    const {min, max} = plot.scales.x;
    plot.destroy();
    plot = draw(place, chart, log.checked);
    plot.setScale("x", {min, max});
  });
  new ResizeObserver(() => plot.setSize({width: Math.max(200, place.clientWidth), height})).observe(place);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach(redraw => redraw()));

// Adds class names beside the rows and above the columns of the matrix.
function nameMatrix(canvas, names, side) {
  const named = document.createElement("div");
  named.className = "named";
  named.style.setProperty("--side", `${side}px`);
  canvas.replaceWith(named);
  for (const place of ["columns", "rows"]) {
    const list = document.createElement("div");
    list.className = place;
    for (const name of names) {
      const span = document.createElement("span");
      span.textContent = span.title = name;
      list.append(span);
    }
    named.append(list);
  }
  named.append(canvas);
}

// Draws the matrix. The shade of a cell is its share of the true class, so rare and frequent classes are equally visible.
function drawMatrix(canvas, {names, cells}) {
  const size = names.length, side = Math.max(1, Math.min(32, Math.floor(480 / size)));
  const totals = new Array(size).fill(0), counts = new Map();
  for (const [label, predicted, count] of cells) {
    totals[label] += count;
    counts.set(label * size + predicted, count);
  }
  const sharp = window.devicePixelRatio || 1;
  canvas.width = canvas.height = size * side * sharp;
  canvas.style.width = `${size * side + 2}px`;  // including its border
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  Object.assign(context, {font: "11px system-ui, sans-serif", textAlign: "center", textBaseline: "middle"});
  for (const [label, predicted, count] of cells) {
    const share = 0.1 + 0.9 * Math.sqrt(count / totals[label]);
    context.fillStyle = label === predicted ? `rgba(33, 102, 172, ${share})` : `rgba(214, 96, 77, ${share})`;
    context.fillRect(predicted * side, label * side, side, side);
    if (side < 24) continue;  // too small for numbers
    context.fillStyle = share > 0.6 ? "#fff" : css("--ink");
    context.fillText(count, (predicted + 0.5) * side, (label + 0.5) * side, side);
  }
  if (side >= 16) nameMatrix(canvas, names, side);
  canvas.addEventListener("mousemove", event => {
    const place = offset => Math.min(size - 1, Math.max(0, Math.floor(offset * size / canvas.clientWidth)));
    const label = place(event.offsetY), predicted = place(event.offsetX);
    const count = counts.get(label * size + predicted) ?? 0;
    document.getElementById("cell").textContent =
      `${names[label]}, predicted as ${names[predicted]}: ${count} of ${totals[label]}`;
  });
}

if (data.confusion) drawMatrix(document.getElementById("matrix"), data.confusion);
