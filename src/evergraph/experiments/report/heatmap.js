// Accuracy matrices as heatmaps. Cividis: brightness alone conveys the value.
const CIVIDIS = [
  [0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56],
];
function shade(value, { scale: [least, most] }) {
  const share = Math.min(Math.max((value - least) / (most - least), 0), 1);
  const at = share * (CIVIDIS.length - 1), low = Math.min(Math.floor(at), CIVIDIS.length - 2);
  return CIVIDIS[low].map((part, i) => Math.round(part + (CIVIDIS[low + 1][i] - part) * (at - low)));
}
// Change since a task was learned: blue is better, orange is worse, white is no change.
function lean(change, run) {
  const worse = run.metric.higher_is_better === false ? change > 0 : change < 0;
  const end = worse ? [194, 84, 0] : [0, 114, 178], share = Math.min(Math.abs(change) / spanOf(run), 1);
  return [255, 255, 255].map((part, i) => Math.round(part + (end[i] - part) * share));
}
const bright = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b > 140;
const rgb = (colour) => `rgb(${colour.join(",")})`;
const spanOf = ({ scale: [least, most] }) => most - least;
const cellDigits = (run) => (spanOf(run) >= 20 ? 0 : digitsOf(run));
// What a heatmap can show; colours, and the ends of their scale, are those of a run's metric.
const VIEWS = {
  value: {
    title: METRIC.quantity, titleOf: (run) => run.metric.quantity, of: (matrices) => matrices.values, colour: shade,
    scale: () => CIVIDIS, ends: (run) => run.scale.map((end) => show(end, cellDigits(run)) + unitOf(run)),
  },
  change: {
    title: "change since learned", titleOf: () => "change since learned", of: (matrices) => matrices.changes,
    colour: lean, signed: true, scale: (run) => [-spanOf(run), 0, spanOf(run)].map((change) => lean(change, run)),
    ends: (run) => ["−", "+"].map((sign) => sign + show(spanOf(run), cellDigits(run))),
  },
};
// A run's matrices: those of one seed, or their mean over seeds if requested or if the run lacks the seed.
function matricesOf(run, seed = "mean") {
  const s = run.seeds.map(String).indexOf(seed);
  const names = taskNames(run, seed);
  if (s >= 0) return { values: run.matrices[s], changes: run.changes[s], spread: null, names };
  const spread = run.seeds.length > 1 ? run.spread_matrix : null;
  return { values: run.mean_matrix, changes: run.mean_change, spread, names };
}

function cellText(run, { values, changes, spread, names }, t, i) {
  const digits = digitsOf(run), where = `After task ${t + 1}, ${taskName(names, i)}`;
  if (!known(values[t][i])) return where + ": not measured";
  const over = spread ? " ± " + show(spread[t][i], digits) : "";
  let text = `${where}\n${show(values[t][i], digits)}${over}${unitOf(run)}`;
  if (i < t && known(changes[t][i])) text += `, ${show(changes[t][i], digits, true)} since it was learned`;
  if (i === t) text += ", just learned";
  return text;
}
function drawHeatmap(figure, run, seed, view, width) {
  const matrices = matricesOf(run, seed), shown = view.of(matrices), size = shown.length;
  const left = 34, top = 6, bottom = 34, cell = Math.min((width - left - 2) / size, 64);
  const across = Math.ceil(Math.max(left + cell * size + 2, 140)), height = Math.ceil(top + cell * size + bottom);
  const picture = svg("svg", {
    class: "map", viewBox: `0 0 ${across} ${height}`, width: across, height, role: "group",
    "aria-label": `${view.titleOf(run)} of ${run.label}; arrow keys move between cells`,
    "data-label": `${run.label}: ${view.titleOf(run)}`,
  });
  const every = Math.ceil(size / Math.floor(Math.max(cell * size, 60) / 22));
  const readout = figure.querySelector(".readout"), cells = [], values = [];
  for (let t = 0; t < size; t++) {
    const middle = cell * (t + 0.5);
    if (t % every === 0) {
      const row = { x: left - 6, y: top + middle, "text-anchor": "end", "dominant-baseline": "central" };
      const column = { x: left + middle, y: top + cell * size + 15, "text-anchor": "middle" };
      picture.append(...[row, column].map((place) => svg("text", place, String(t + 1))));
    }
    for (let i = 0; i < size; i++) {
      if (!known(matrices.values[t][i])) continue;
      const value = shown[t][i], colour = known(value) ? view.colour(value, run) : [128, 128, 128];
      const box = svg("rect", {
        class: "cell", x: left + cell * i + 0.5, y: top + cell * t + 0.5, width: cell - 1, height: cell - 1, rx: 2,
        fill: rgb(colour), role: "img", "data-row": t, "data-column": i,
      });
      const text = cellText(run, matrices, t, i);
      answers(box, text, (on) => {
        box.classList.toggle("on", on);
        if (on) readout.textContent = text.replace("\n", ": ");
      });
      cells.push(box);
      picture.append(box);
      if (cell < 22) continue;
      const style = { fill: bright(colour) ? "#000" : "#fff", "font-size": Math.min(13, cell * 0.42) + "px" };
      const at = { x: left + cell * (i + 0.5), y: top + middle };
      values.push(svg("text", { class: "value", ...at, style }, show(value, cellDigits(run), view.signed)));
    }
  }
  const at = (t, i) => cells.findIndex((box) => box.dataset.row === String(t) && box.dataset.column === String(i));
  roving(cells, (index, key) => {
    const t = Number(cells[index].dataset.row), i = Number(cells[index].dataset.column);
    const next = {
      ArrowRight: [t, i + 1], ArrowLeft: [t, i - 1], ArrowDown: [t + 1, i], ArrowUp: [t - 1, i],
      Home: [t, 0], End: [t, t],
    }[key];
    const found = next ? at(...next) : -1;
    return found < 0 ? undefined : found;
  });
  const middle = top + (cell * size) / 2, below = { x: left + (cell * size) / 2, y: height - 4 };
  picture.append(...values,
    svg("text", { ...below, "text-anchor": "middle" }, run.metric.quantity + " on task"),
    svg("text", { x: 9, y: middle, "text-anchor": "middle", transform: `rotate(-90 9 ${middle})` }, "after task"));
  figure.querySelector("svg.map")?.remove();
  figure.querySelector(".caption").after(picture);
}
function numbersOf(run) {
  const matrix = run.mean_matrix, head = html("th", { scope: "col", class: "text" }, "task");
  const heads = matrix.map((_, i) => html("th", { scope: "col" }, String(i + 1)));
  const rows = matrix.map((row, t) => html("tr", {}, html("th", { scope: "row" }, "after " + (t + 1)),
    row.map((value) => html("td", {}, show(value, digitsOf(run))))));
  const table = html("table", {}, html("thead", {}, html("tr", {}, head, heads)), html("tbody", {}, rows));
  const name = `Matrix of ${run.label}: ${run.metric.title}`;
  return html("details", { class: "numbers" }, html("summary", {}, "Numbers"),
    html("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": name }, table));
}
function drawHeatmaps() {
  const state = { seed: "mean", view: "value" }, box = find("heatmap-panels");
  const figures = RUNS.map((run, number) => {
    const numbers = [AP, AF].map((name) => `${TITLES[name]} ${show(run.metrics[name].mean, digitsOf(run))}`).join("  ");
    const figure = html("figure", { "data-run": number },
      html("div", { class: "caption" }, html("span", {}, swatch(number), run.label), html("small", {}, numbers)),
      html("p", { class: "readout" }, "Point at a cell."), numbersOf(run));
    box.append(figure);
    return figure;
  });
  const widths = new Map();
  const redraw = (figure) =>
    drawHeatmap(figure, RUNS[figure.dataset.run], state.seed, VIEWS[state.view], widths.get(figure));
  const ofEachMetric = [...new Map(RUNS.map((run) => [run.metric.name, run])).values()];
  const scale = () => {
    const view = VIEWS[state.view];
    find("scale").replaceChildren(...ofEachMetric.flatMap((run) => {
      const [low, high] = view.ends(run), background = `linear-gradient(90deg, ${view.scale(run).map(rgb).join(", ")})`;
      const bar = html("i", { "aria-hidden": "true", style: { background } });
      return [...(ofEachMetric.length > 1 ? [html("span", {}, run.metric.quantity + ":")] : []), low, bar, high];
    }));
  };
  const seeds = [...new Set(RUNS.flatMap((run) => run.seeds.map(String)))];
  const choose = (key, label, options) => {
    const onchange = (event) => { state[key] = event.target.value; scale(); figures.forEach(redraw); };
    const choices = options.map(([value, text]) => html("option", { value }, text));
    return html("label", {}, label + " ", html("select", { onchange }, choices));
  };
  const controls = find("heatmap-controls");
  controls.append(choose("view", "Show", Object.entries(VIEWS).map(([key, view]) => [key, view.title])));
  const single = seeds.map((seed) => [seed, "seed " + seed]);
  if (seeds.length > 1) controls.append(choose("seed", "Seeds", [["mean", "mean over seeds"], ...single]));
  scale();
  figures.forEach((figure) => responsive(figure, (width) => { widths.set(figure, width); redraw(figure); }));
  tools("heatmaps", () => {
    const rows = RUNS.flatMap((run) => run.matrices.flatMap((matrix, s) => matrix.flatMap((row, t) => row
      .map((value, i) => [run.label, run.seeds[s], t + 1, i + 1, run.seed_tasks[s][i], value, run.changes[s][t][i]])
      .filter((entry) => known(entry[5])))));
    return [["run", "seed", "after_task", "task", "classes", METRIC.name, "change_since_learned"], ...rows];
  }, () => figures.map((figure) => figure.querySelector("svg.map")));
}
