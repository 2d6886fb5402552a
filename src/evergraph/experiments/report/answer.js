// The first screen: one answer per stream and test graph, and one table if there are several.
const perRun = (run) => (known(run.seconds) ? run.seconds / run.seeds.length : null);
function showSeconds(seconds) {
  if (!known(seconds)) return null;
  return seconds < 90 ? show(seconds, seconds < 10 ? 1 : 0) + " s" : show(seconds / 60, 0) + " min";
}
function answerCard(found) {
  const pooled = (number) => ({ ...RUNS[number], ...found.pooled[number] });  // over class orders
  const run = pooled(found.best), facts = html("dl", { class: "facts" });
  const fact = (name, value) => {
    if (value) facts.append(html("div", {}, html("dt", {}, name), html("dd", {}, value)));
  };
  fact(TITLES[AP], plusMinus(run, AP) + unitOf(run));
  fact("forgets", known(run.metrics[AF]?.mean) ? `${TITLES[AF]} ${plusMinus(run, AF)}` : null);
  fact("costs", showSeconds(perRun(run)) && showSeconds(perRun(run)) + " a run");
  fact("keeps", known(run.kept_bytes) ? showBytes(run.kept_bytes) : null);
  const called = (number) =>
    (DATA.answers.length > 1 || found.alone.includes(number) ? RUNS[number].method : RUNS[number].label);
  const names = found.tied.map(called);
  const noise = found.rivals < 2 ? "" : !found.told ? "Too few seeds to tell noise from difference: run at least three. "
    : names.length ? `Within noise of it: ${names.join(", ")}. ` : "No other method is within noise of it. ";
  const top = found.ceiling === null ? "" : `Ceiling, trained on all old data: ${called(found.ceiling)}, ` +
    `${plusMinus(pooled(found.ceiling), AP)}${unitOf(run)}.`;
  const where = DATA.answers.length > 1 ? `${found.stream}, test graph ${found.test_graph}` : null;
  return html("article", { class: "card answer", style: paint(run.style) },
    where && html("p", { class: "quiet" }, where),
    html("p", { class: "lead" }, found.rivals > 1 ? "Best without old data: " : "The method: ",
      swatch(found.best), html("strong", {}, called(found.best))),
    facts, html("p", { class: "quiet" }, noise + top));
}
function drawAnswers() {
  const box = find("answers");
  DATA.answers.forEach((found) => box.append(answerCard(found)));
  find("answer").hidden = !DATA.answers.length;
  const { columns, rows, title, note } = DATA.methods;
  if (note) { find("streams-table").append(html("p", { class: "quiet" }, note)); return; }
  if (columns.length < 2) { find("streams-table").hidden = true; return; }
  const head = html("tr", {}, html("th", { scope: "col", class: "text" }, "Method"),
    columns.map((column) => html("th", { scope: "col" }, column)));
  const body = rows.map(({ method, style, role, cells }) => html("tr", {},
    html("th", { scope: "row" }, html("span", {},
      html("span", { class: "swatch", "aria-hidden": "true", style: paint(style) }), html("span", {}, method),
      role && html("small", { class: "role" }, role))),
    cells.map((cell, i) => html("td", { "data-title": columns[i] }, cell === null ? "–"
      : html("span", { class: cell.best ? "best" : null },
        show(cell.mean, DIGITS) + (cell.runs > 1 ? " ± " + show(cell.std, DIGITS) : "") +
        (cell.tied && !cell.best ? " †" : ""))))));
  const tied = rows.some(({ cells }) => cells.some((cell) => cell?.tied && !cell.best));
  find("streams-table").append(html("div", { class: "scroll" }, html("table", { class: "stacked" },
    html("caption", { class: "unseen" }, "Methods and streams"), html("thead", {}, head), html("tbody", {}, body))),
    html("p", { class: "quiet" },
      `${title}. ★ best of the column without old data${tied ? "; † within noise of it" : ""}.`));
}
