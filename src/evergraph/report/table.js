// The comparison: one row a run, sorted by any column.
const COLUMNS = [
  { title: "Run", text: (run) => run.label, kind: "name" },
  { title: "AP (%)", text: (run) => plusMinus(run, "ap"), sort: (run) => run.metrics.ap.mean, kind: "bar", best: true },
  { title: "AF (%)", text: (run) => plusMinus(run, "af"), sort: (run) => run.metrics.af.mean, kind: "metric" },
  { title: "Anytime (%)", text: (run) => plusMinus(run, "anytime"), sort: (run) => run.metrics.anytime.mean, kind: "metric" },
  { title: "When learned (%)", text: (run) => plusMinus(run, "learning"), sort: (run) => run.metrics.learning.mean, kind: "metric" },
  { title: "Seconds", text: (run) => show(run.seconds, 1), sort: (run) => run.seconds },
];
// The protocol beside the numbers: one line above the table where all runs share it, a column where they do not.
const PROTOCOL = [
  ["Stream", (run) => run.stream], ["Scenario", (run) => run.protocol.scenario], ["Tasks", (run) => run.protocol.tasks],
  ["Test graph", (run) => run.protocol.test_graph], ["Label scope", (run) => run.protocol.label_scope], ["Loss", (run) => run.protocol.reduction],
  ["Epochs", (run) => run.protocol.epochs], ["Learning rate", (run) => run.protocol.lr], ["Batch", (run) => run.protocol.batch_size],
  ["Model", (run) => [run.model.name, run.model.hidden].filter((part) => part !== undefined).join(" ")], ["Seeds", (run) => run.seeds.join(", ")],
].map(([title, value]) => ({ title, text: (run) => String(value(run) ?? "–"), kind: "text" }));
const isShared = (column) => new Set(RUNS.map(column.text)).size === 1;
COLUMNS.push(...PROTOCOL.filter((column) => !isShared(column)));

function drawTable() {
  const table = find("table"), body = html("tbody");
  const bestOf = (column) => Math.max(...RUNS.map((run) => column.sort(run) ?? -Infinity));
  const rows = RUNS.map((run, number) => {
    const cells = COLUMNS.map((column) => {
      const text = column.text(run);
      if (column.kind === "name") return html("th", { scope: "row" }, html("span", {}, html("span", { class: "swatch", "aria-hidden": "true", style: { "--colour": colourOf(number) } }), html("span", {}, text)));
      const [value, pm] = text.split(" ± ");
      const best = column.best && RUNS.length > 1 && column.sort(run) === bestOf(column);
      const cell = html("td", { class: column.kind === "text" ? "text" : null }, html("span", { class: best ? "best" : null, title: best ? "highest here" : null }, value));
      if (pm) cell.append(html("span", { class: "pm" }, " ± " + pm));
      if (column.kind === "bar") cell.append(html("span", { class: "bar", "aria-hidden": "true" }, html("i", { style: { width: Math.max(0, run.metrics.ap.mean ?? 0) + "%", "--colour": colourOf(number) } })));
      return cell;
    });
    return html("tr", { "data-run": number }, cells);
  });
  const heads = COLUMNS.map((column, index) => html("th", { scope: "col", class: column.kind === "text" ? "text" : null },
    html("button", { type: "button", onclick: () => sort(index) }, column.title)));
  function sort(index) {
    const column = COLUMNS[index], numbers = Boolean(column.sort), was = heads[index].getAttribute("aria-sort");
    const falling = was ? was === "ascending" : numbers;
    const key = column.sort || column.text;
    const order = RUNS.map((run, number) => [key(run), number]).sort(([a, i], [b, j]) => {
      const order = numbers ? (known(a) ? a : -Infinity) - (known(b) ? b : -Infinity) : a.localeCompare(b, undefined, { numeric: true });
      return (falling ? -order : order) || i - j;
    });
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[index].setAttribute("aria-sort", falling ? "descending" : "ascending");
    body.append(...order.map(([, number]) => rows[number]));
  }
  table.append(html("caption", { class: "unseen" }, "Runs, their measures and what sets their protocols apart"), html("thead", {}, html("tr", {}, heads)), body);
  sort(1);
  if (RUNS.length > 1) find("table-note").append(" ★ marks the highest AP.");
  const shared = PROTOCOL.filter(isShared).map((column) => column.title.toLowerCase() + " " + column.text(RUNS[0]));
  find("shared").textContent = (RUNS.length > 1 ? "All runs: " : "Protocol: ") + shared.join(", ") + ".";
  tools("compare", () => {
    const keys = [...new Set(RUNS.flatMap((run) => Object.keys(run.settings)))];
    const metrics = Object.keys(RUNS[0].metrics);
    return [["run", "method", "folder", ...metrics.flatMap((key) => [key + "_mean", key + "_std"]), "seconds", ...keys],
      ...RUNS.map((run) => [run.label, run.method, run.folder, ...metrics.flatMap((key) => [run.metrics[key].mean, run.metrics[key].std]), run.seconds, ...keys.map((key) => run.settings[key])])];
  });
}
