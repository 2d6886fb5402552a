// AP against the bytes kept: one panel per stream and test graph, one colour per method.
const NAMES = [...new Set(RUNS.map((run) => run.method))];
const METHOD_STYLES = NAMES.map((name) => RUNS.find((run) => run.method === name).style);
const groupOf = (run) => [run.stream, run.protocol.test_graph].filter(Boolean).join(", test graph ");
function leakText(run) {
  if (!run.leak) return null;
  return `leak score ${withSpread(run, run.leak.mean, run.leak.std)} (chance ${show(run.leak.chance)})`;
}

function drawCost() {
  const box = find("cost-panels"), counted = RUNS.filter((run) => known(run.kept_bytes) && known(run.metrics[AP].mean));
  if (!counted.length) {
    box.append(html("p", { class: "quiet" }, "These results do not say how many bytes were kept."));
    return;
  }
  const positive = counted.map((run) => run.kept_bytes).filter((bytes) => bytes > 0);
  const least = Math.min(...(positive.length ? positive : [1])), most = Math.max(...positive, least);
  const nothing = 10 ** (Math.floor(Math.log10(least)) - 1); // x position of runs that keep nothing
  const some = counted.some((run) => run.kept_bytes === 0), low = some ? nothing : least / 2, high = most * 2;
  const limitsOf = (runs) => {
    const values = runs.flatMap(({ metrics: { [AP]: { mean, std } } }) => [mean - std, mean + std]);
    const pad = Math.max((Math.max(...values) - Math.min(...values)) * 0.08, Math.max(...runs.map(spanOf)) / 50);
    return [Math.min(...values) - pad, Math.max(...values) + pad];
  };
  const figures = [...new Set(counted.map(groupOf))].map((group) => {
    const runs = counted.filter((run) => groupOf(run) === group), leak = leakText(runs[0]);
    const metrics = new Set(runs.map((run) => run.metric.name)); // panels of one metric share their limits
    const [bottom, top] = limitsOf(counted.filter((run) => metrics.has(run.metric.name)));
    const title = metrics.size === 1 ? runs[0].metric.title : METRIC.title;
    const figure = html("figure", {}, html("div", { class: "caption" }, html("span", {}, group)));
    if (leak) figure.append(html("p", { class: "quiet" }, leak));
    box.append(figure);
    redrawn(figure, (width) => {
      const ticks = logTicks(some ? nothing * 10 : low, high).filter((tick) => Number.isInteger(Math.log10(tick)));
      const every = Math.ceil(ticks.length / Math.max(2, Math.floor(width / 70)));
      const frame = chart({
        width, height: 300, label: `${TITLES[AP]} against bytes kept, ${group}`,
        x: {
          low, high, log: true, label: "kept after the last task (log scale)",
          ticks: [...(some ? [nothing] : []), ...ticks.filter((_, k) => k % every === 0)],
          text: (tick) => (some && tick === nothing ? "0" : showBytes(tick).replace(".0", "")),
        },
        y: { low: bottom, high: top, label: `${TITLES[AP]}: ${title}` },
      });
      const at = (run) => [frame.along(run.kept_bytes || nothing), frame.up(run.metrics[AP].mean)];
      const hits = [];
      NAMES.forEach((name, number) => {
        const own = runs.filter((run) => run.method === name).sort((a, b) => a.kept_bytes - b.kept_bytes);
        const common = { "data-method": name, style: paint(METHOD_STYLES[number]) };
        if (own.length > 1) frame.picture.append(svg("path", { class: "line thin", d: path(own.map(at)), ...common }));
        own.forEach((run) => {
          const [x, y] = at(run), { mean, std } = run.metrics[AP], sign = mark(METHOD_STYLES[number], x, y, 5.5);
          const [y1, y2] = [mean - std, mean + std].map(frame.up);
          const whisker = { class: "whisker", x1: x, x2: x, y1, y2, ...common };
          if (run.seeds.length > 1) frame.picture.append(svg("line", whisker));
          sign.dataset.method = name;
          frame.picture.append(sign);
          const kept = `keeps ${run.access.keeps ?? "–"} (${showBytes(run.kept_bytes)})`;
          hits.push(target(x, y, `${run.label}\n${headline(run)}\n${kept}\n${show(run.seconds, 1)} seconds`));
        });
      });
      frame.picture.append(...hits);
      roving(hits, alongLine);
      frame.picture.dataset.label = `${TITLES[AP]} against bytes kept: ${group}`;
      return frame.picture;
    });
    return figure;
  });
  box.after(methodLegend(figures));
  tools("cost", () => [
    ["run", "method", "stream", "test_graph", "kept_bytes", "ap_mean", "ap_std", "seconds", "leak", ...TASKS],
    ...counted.map((run) => [run.label, run.method, run.stream, run.protocol.test_graph, run.kept_bytes,
      run.metrics[AP].mean, run.metrics[AP].std, run.seconds, run.leak?.mean, ...run.kept_after]),
  ], () => [...box.querySelectorAll("figure > svg")]);
}
const TASKS = Array.from({ length: Math.max(...RUNS.map((run) => run.kept_after.length)) },
  (_, task) => `kept_bytes_after_task_${task + 1}`);

// One legend for all panels; an entry highlights its method while the pointer is on it, or from click to click.
function methodLegend(figures) {
  let chosen = null;
  const highlight = (name) => figures.forEach((figure) => figure.querySelectorAll("[data-method]").forEach((node) =>
    node.classList.toggle("dim", name !== null && node.dataset.method !== name)));
  const buttons = NAMES.map((name, number) => html("button", {
    type: "button", "aria-pressed": "false",
    onclick: () => {
      chosen = chosen === name ? null : name;
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(NAMES[i] === chosen)));
      highlight(chosen);
    },
    onpointerenter: () => highlight(name), onpointerleave: () => highlight(chosen),
    onfocus: () => highlight(name), onblur: () => highlight(chosen),
  }, svg("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" }, mark(METHOD_STYLES[number], 0, 0, 5)),
  name));
  return html("ul", { class: "legend", "aria-label": "Methods" }, buttons.map((button) => html("li", {}, button)));
}
