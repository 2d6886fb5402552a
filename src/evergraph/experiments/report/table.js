// The comparison: one row per run, sortable by any column.
const METRIC_COLUMNS = DATA.summaries.map(({ name, title, about }) => {
  const value = (run) => run.metrics[name]?.mean;
  const alike = (run) => RUNS.filter((other) => other.metric.name === run.metric.name);
  const digits = (run) => Math.max(digitsOf(run), digitsFor(alike(run).map(value)));
  const main = name === AP; // has a bar, and a star for the best run if all runs share a metric
  const text = (run) => plusMinus(run, name, digits(run));
  return { title, about, text, sort: value, kind: main ? "bar" : "metric", best: main };
});
// What a method keeps, if results say so.
const words = (key) => key.split(".").pop().replaceAll("_", " ");
const accessColumn = (key) => ({ title: capital(words(key)), text: (run) => run.access[key] ?? "–", kind: "text" });
const ACCESS = [...new Set(RUNS.flatMap((run) => Object.keys(run.access)))];
const KEPT = ACCESS.filter((key) => key === "keeps").map(accessColumn);
if (RUNS.some((run) => known(run.kept_bytes))) {
  KEPT.push({
    title: "Bytes kept", text: (run) => showBytes(run.kept_bytes), sort: (run) => run.kept_bytes,
    about: "What the method's own state takes after the last task, in the largest seed.",
    exact: (run) => (known(run.kept_bytes) ? run.kept_bytes.toLocaleString("en") + " bytes" : null),
  });
}
if (RUNS.some((run) => run.test_nodes_read)) {
  KEPT.push({
    title: "Other test nodes", text: (run) => run.test_nodes_read ?? "–", kind: "text",
    about: "Which other test nodes a prediction may depend on: none, the neighbours that the model reads, or all.",
  });
}
if (RUNS.some((run) => run.leak)) {
  KEPT.push({
    title: "Leak", text: (run) => (run.leak ? withSpread(run, run.leak.mean, run.leak.std) : "–"),
    sort: (run) => run.leak?.mean, about: "Percent of tests whose task the nearest mean of features names.",
    exact: (run) => (run.leak ? `chance ${show(run.leak.chance)}` : null),
  });
}
// The protocol beside the numbers: one line above the table for what all runs share, a column for what they do not.
const PROTOCOL = [
  ["Stream", (run) => run.stream], ["Metric", (run) => run.metric.title], ["Scenario", (run) => run.protocol.scenario],
  ["Tasks", (run) => run.protocol.tasks], ["Test graph", (run) => run.protocol.test_graph],
  ["Label scope", (run) => run.protocol.label_scope], ["Loss", (run) => run.protocol.reduction],
  ["Epochs", (run) => run.protocol.epochs], ["Learning rate", (run) => run.protocol.lr],
  ["Batch", (run) => run.protocol.batch_size],
  ["Model", (run) => [run.model.name, run.model.hidden].filter((part) => part !== undefined).join(" ")],
  ["Seeds", (run) => run.seeds.join(", ")],
].map(([title, value]) => ({ title, text: (run) => String(value(run) ?? "–"), kind: "text" }))
  .concat(ACCESS.filter((key) => key !== "keeps").map(accessColumn));
const isShared = (column) => new Set(RUNS.map(column.text)).size === 1;
const COLUMNS = [
  { title: "Run", text: (run) => run.label, kind: "name" }, ...METRIC_COLUMNS, ...KEPT,
  { title: "Seconds", text: (run) => show(run.seconds, 1), sort: (run) => run.seconds },
  ...PROTOCOL.filter((column) => !isShared(column)),
];
const MAIN = COLUMNS.findIndex((column) => column.best);

const TESTED = (run) => `${run.stream} ${run.protocol.test_graph} ${run.protocol.order}`;
function bestRun(column, run) {
  // the best value of a column among the runs without old data on the same stream, test graph and order; none if runs have
  // different metrics
  const rivals = RUNS.filter((other) => !other.role && TESTED(other) === TESTED(run));
  const values = rivals.map(column.sort).filter(known);
  if (RUNS.length < 2 || METRIC.higher_is_better === null || !values.length) return undefined;
  return METRIC.higher_is_better ? Math.max(...values) : Math.min(...values);
}
function tableCell(column, run, number) {
  const text = column.text(run);
  if (column.kind === "name") {
    return html("th", { scope: "row" }, html("span", {}, swatch(number), html("span", {}, text),
      run.role && html("small", { class: "role" }, run.role)));
  }
  const [mean, spread] = column.kind === "text" ? [text] : text.split(" ± ");
  const best = column.best && !run.role && known(column.sort(run)) && column.sort(run) === bestRun(column, run);
  const note = best ? "best here" : column.exact?.(run);
  const cell = html("td", { class: column.kind === "text" ? "text" : null, "data-title": column.title },
    html("span", { class: best ? "best" : null, title: note }, mean));
  if (spread) cell.append(html("span", { class: "pm" }, " ± " + spread));
  if (column.kind === "bar") {
    const [least, most] = run.scale, value = column.sort(run);
    const share = known(value) ? Math.min(Math.max((value - least) / (most - least), 0), 1) : 0;
    const bar = html("i", { style: { width: 100 * share + "%", ...paint(styleOf(number)) } });
    cell.append(html("span", { class: "bar", "aria-hidden": "true" }, bar));
  }
  return cell;
}

// If there are several streams or test graphs, the table can show the runs of only one.
function drawFilters(rows) {
  const filters = [["Stream", (run) => run.stream], ["Test graph", (run) => run.protocol.test_graph ?? "–"]]
    .map(([title, value]) => ({ title, value, names: [...new Set(RUNS.map(value))] }))
    .filter(({ names }) => names.length > 1);
  const choices = filters.map(({ title, names }) => html("select", { "aria-label": title, onchange: () => {
    RUNS.forEach((run, number) => {
      rows[number].hidden = filters.some(({ value }, i) => choices[i].value && choices[i].value !== value(run));
    });
  } }, html("option", { value: "" }, `${title}: all`), names.map((name) => html("option", { value: name }, name))));
  find("table-controls").append(...choices);
}

function drawTable() {
  const body = html("tbody");
  const rows = RUNS.map((run, number) =>
    html("tr", { "data-run": number }, COLUMNS.map((column) => tableCell(column, run, number))));
  const heads = COLUMNS.map(({ title, about, kind }, index) =>
    html("th", { scope: "col", class: kind === "text" ? "text" : null },
      html("button", { type: "button", title: about, onclick: () => sort(index) }, title)));
  function sort(index) {
    const column = COLUMNS[index], numbers = Boolean(column.sort), was = heads[index].getAttribute("aria-sort");
    const highFirst = numbers && !(column.best && METRIC.higher_is_better === false);
    const falling = was ? was === "ascending" : highFirst;
    const key = column.sort || column.text;
    const order = RUNS.map((run, number) => [key(run), number]).sort(([a, i], [b, j]) => {
      const order = numbers ? (known(a) ? a : -Infinity) - (known(b) ? b : -Infinity)
        : a.localeCompare(b, undefined, { numeric: true });
      return (falling ? -order : order) || i - j;
    });
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[index].setAttribute("aria-sort", falling ? "descending" : "ascending");
    body.append(...order.map(([, number]) => rows[number]));
  }
  find("table").append(html("caption", { class: "unseen" }, "Runs, their metrics, and how their protocols differ"),
    html("thead", {}, html("tr", {}, heads)), body);
  sort(MAIN);
  drawFilters(rows);
  if (RUNS.some((run) => bestRun(COLUMNS[MAIN], run) !== undefined)) {
    find("table-note").append(` ★ marks the best ${COLUMNS[MAIN].title} without old data.`);
  }
  const shared = PROTOCOL.filter(isShared).map((column) => column.title.toLowerCase() + " " + column.text(RUNS[0]));
  find("shared").textContent = (RUNS.length > 1 ? "All runs: " : "Protocol: ") + shared.join(", ") + ".";
  const meanings = DATA.summaries.flatMap(({ title, about }) => [html("dt", {}, title), html("dd", {}, about)]);
  find("summaries").append(...meanings);
  find("kept-help").hidden = !KEPT.length;
  find("leak-help").hidden = !RUNS.some((run) => run.leak);
  tools("compare", () => {
    const keys = [...new Set(RUNS.flatMap((run) => Object.keys(run.settings)))];
    const names = DATA.summaries.map((summary) => summary.name);
    const heads = ["run", "method", "folder", "metric", ...names.flatMap((name) => [name + "_mean", name + "_std"])];
    return [[...heads, "seconds", "kept_bytes", ...ACCESS.map((key) => "access." + key), ...keys],
      ...RUNS.map((run) => [
        run.label, run.method, run.folder, run.metric.name,
        ...names.flatMap((name) => [run.metrics[name]?.mean, run.metrics[name]?.std]), run.seconds, run.kept_bytes,
        ...ACCESS.map((key) => run.access[key]), ...keys.map((key) => run.settings[key]),
      ])];
  });
}
