// Accuracy matrices as heatmaps. Cividis: its brightness alone tells the value.
const CIVIDIS = [[0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115], [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56]];
function shade(share) {
  const at = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1), low = Math.min(Math.floor(at), CIVIDIS.length - 2);
  return CIVIDIS[low].map((part, i) => Math.round(part + (CIVIDIS[low + 1][i] - part) * (at - low)));
}
// Change since a task was learned: blue is better, orange is worse, white is no change.
function lean(change) {
  const end = change < 0 ? [194, 84, 0] : [0, 114, 178], share = Math.min(Math.abs(change) / 100, 1);
  return [255, 255, 255].map((part, i) => Math.round(part + (end[i] - part) * share));
}
const bright = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b > 140;
const rgb = (colour) => `rgb(${colour.join(",")})`;
const VIEWS = {
  accuracy: { title: "accuracy", value: (matrix, t, i) => matrix[t][i], colour: (value) => shade(value / 100), low: "0 %", high: "100 %", scale: [...CIVIDIS] },
  change: { title: "change since learned", value: (matrix, t, i) => (i > t ? null : matrix[t][i] - matrix[i][i]), colour: lean, low: "−100", high: "+100", scale: [lean(-100), lean(0), lean(100)] },
};
function meanMatrix(run) {
  return run.matrices[0].map((row, t) => row.map((_, i) => {
    const values = run.matrices.map((matrix) => matrix[t][i]);
    return values.every(known) ? mean(values) : null;
  }));
}
const matrixOf = (run, seed) => (seed === "mean" || !run.seeds.map(String).includes(seed) ? meanMatrix(run) : run.matrices[run.seeds.map(String).indexOf(seed)]);

function cellText(run, matrix, seed, t, i) {
  const value = matrix[t][i];
  if (!known(value)) return `After task ${t + 1}, ${taskName(run, i)}: not measured`;
  const over = seed === "mean" && run.seeds.length > 1 ? " ± " + show(spread(run.matrices.map((one) => one[t][i]))) : "";
  let text = `After task ${t + 1}, ${taskName(run, i)}\n${show(value)}${over} %`;
  if (i < t) text += `, ${show(value - matrix[i][i], 1, true)} since it was learned`;
  if (i === t) text += ", just learned";
  return text;
}
function drawHeatmap(figure, run, seed, view, width) {
  const matrix = matrixOf(run, seed), size = matrix.length;
  const left = 34, top = 6, bottom = 34, cell = Math.min((width - left - 2) / size, 64);
  const across = Math.max(left + cell * size + 2, 140), height = top + cell * size + bottom;
  const picture = svg("svg", { viewBox: `0 0 ${Math.ceil(across)} ${Math.ceil(height)}`, width: Math.ceil(across), height: Math.ceil(height), role: "group", "aria-label": `${view.title} of ${run.label}; arrow keys move between cells`, "data-label": `${run.label}: ${view.title}` });
  const every = Math.ceil(size / Math.floor(Math.max(cell * size, 60) / 22));
  const readout = figure.querySelector(".readout"), cells = [], values = [];
  for (let t = 0; t < size; t++) {
    if (t % every === 0) {
      picture.append(svg("text", { x: left - 6, y: top + cell * (t + 0.5), "text-anchor": "end", "dominant-baseline": "central" }, String(t + 1)),
        svg("text", { x: left + cell * (t + 0.5), y: top + cell * size + 15, "text-anchor": "middle" }, String(t + 1)));
    }
    for (let i = 0; i < size; i++) {
      if (!known(matrix[t][i])) continue;
      const value = view.value(matrix, t, i), colour = known(value) ? view.colour(value) : [128, 128, 128];
      const box = svg("rect", { class: "cell", x: left + cell * i + 0.5, y: top + cell * t + 0.5, width: cell - 1, height: cell - 1, rx: 2, fill: rgb(colour), role: "img", "data-row": t, "data-column": i });
      const text = cellText(run, matrix, seed, t, i);
      answers(box, text, (on) => { box.classList.toggle("on", on); if (on) readout.textContent = text.replace("\n", ": "); });
      cells.push(box);
      picture.append(box);
      if (cell >= 22) values.push(svg("text", { class: "value", x: left + cell * (i + 0.5), y: top + cell * (t + 0.5), style: { fill: bright(colour) ? "#000" : "#fff", "font-size": Math.min(13, cell * 0.42) + "px" } }, show(value, 0, view === VIEWS.change)));
    }
  }
  const at = (t, i) => cells.findIndex((box) => box.dataset.row === String(t) && box.dataset.column === String(i));
  roving(cells, (index, key) => {
    const t = Number(cells[index].dataset.row), i = Number(cells[index].dataset.column);
    const next = { ArrowRight: [t, i + 1], ArrowLeft: [t, i - 1], ArrowDown: [t + 1, i], ArrowUp: [t - 1, i], Home: [t, 0], End: [t, t] }[key];
    const found = next ? at(...next) : -1;
    return found < 0 ? undefined : found;
  });
  picture.append(...values,
    svg("text", { x: left + (cell * size) / 2, y: height - 4, "text-anchor": "middle" }, "accuracy on task"),
    svg("text", { x: 9, y: top + (cell * size) / 2, "text-anchor": "middle", transform: `rotate(-90 9 ${top + (cell * size) / 2})` }, "after task"));
  figure.querySelector("svg.map")?.remove();
  picture.classList.add("map");
  figure.querySelector(".caption").after(picture);
}
function numbersOf(run, matrix) {
  const heads = matrix.map((_, i) => html("th", { scope: "col" }, String(i + 1)));
  const rows = matrix.map((row, t) => html("tr", {}, html("th", { scope: "row" }, "after " + (t + 1)), row.map((value) => html("td", {}, show(value)))));
  return html("details", { class: "numbers" }, html("summary", {}, "Numbers"),
    html("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Accuracy matrix of " + run.label }, html("table", {}, html("thead", {}, html("tr", {}, html("th", { scope: "col", class: "text" }, "task"), heads)), html("tbody", {}, rows))));
}
function drawHeatmaps() {
  const state = { seed: "mean", view: "accuracy" }, box = find("heatmap-panels");
  const figures = RUNS.map((run, number) => {
    const figure = html("figure", { "data-run": number },
      html("div", { class: "caption" }, html("span", {}, html("span", { class: "swatch", "aria-hidden": "true", style: { "--colour": colourOf(number) } }), run.label), html("small", {}, `AP ${show(run.metrics.ap.mean)}  AF ${show(run.metrics.af.mean)}`)),
      html("p", { class: "readout" }, "Point at a cell."), numbersOf(run, meanMatrix(run)));
    box.append(figure);
    return figure;
  });
  const widths = new Map();
  const redraw = (figure) => drawHeatmap(figure, RUNS[figure.dataset.run], state.seed, VIEWS[state.view], widths.get(figure));
  const scale = () => {
    const view = VIEWS[state.view];
    find("scale").replaceChildren(view.low, html("i", { "aria-hidden": "true", style: { background: `linear-gradient(90deg, ${view.scale.map(rgb).join(", ")})` } }), view.high);
  };
  const seeds = [...new Set(RUNS.flatMap((run) => run.seeds.map(String)))];
  const choose = (key, label, options) => html("label", {}, label + " ", html("select", { onchange: (event) => { state[key] = event.target.value; scale(); figures.forEach(redraw); } }, options.map(([value, text]) => html("option", { value }, text))));
  const controls = find("heatmap-controls");
  controls.append(choose("view", "Show", Object.entries(VIEWS).map(([key, view]) => [key, view.title])));
  if (seeds.length > 1) controls.append(choose("seed", "Seeds", [["mean", "mean over seeds"], ...seeds.map((seed) => [seed, "seed " + seed])]));
  scale();
  figures.forEach((figure) => responsive(figure, (width) => { widths.set(figure, width); redraw(figure); }));
  tools("heatmaps", () => [["run", "seed", "after_task", "task", "classes", "accuracy"],
    ...RUNS.flatMap((run) => run.matrices.flatMap((matrix, s) => matrix.flatMap((row, t) => row.map((value, i) => [run.label, run.seeds[s], t + 1, i + 1, run.tasks[i], value]).filter((entry) => known(entry[5])))))],
    () => figures.map((figure) => figure.querySelector("svg.map")));
}
