// Accuracy over time, the stability-plasticity plane, learning curves.
const soFar = (matrix) => matrix.map((row, t) => { const met = row.slice(0, t + 1); return met.every(known) ? mean(met) : null; });
const everyTask = Math.max(...RUNS.map((run) => run.matrices[0].length));

function drawAnytime() {
  const figure = find("anytime");
  const lines = RUNS.map((run) => {
    const curves = run.matrices.map(soFar);
    return curves[0].map((_, t) => { const values = curves.map((curve) => curve[t]).filter(known); return [values.length ? mean(values) : null, spread(values)]; });
  });
  figure.append(html("div", { class: "caption" }, html("span", {}, "AP after each task")));
  let picture = null;
  responsive(figure, (width) => {
    const frame = chart({ width, height: Math.min(380, Math.max(260, width * 0.5)), label: "AP after each task, a line a run",
      x: { low: 1, high: Math.max(everyTask, 2), ticks: taskTicks(everyTask, width), label: "after task" }, y: { low: 0, high: 100, label: "AP (%)" } });
    const hits = [];
    lines.forEach((line, number) => {
      const points = line.map(([value], t) => [frame.along(t + 1), known(value) ? frame.up(value) : null]);
      const edge = [...line.map(([value, pm], t) => [frame.along(t + 1), frame.up(value + pm)]), ...line.map(([value, pm], t) => [frame.along(t + 1), frame.up(value - pm)]).reverse()];
      const style = { "--colour": colourOf(number) };
      if (RUNS.length <= 4 && RUNS[number].seeds.length > 1 && line.every(([value]) => known(value))) frame.picture.append(svg("path", { class: "band", "data-run": number, d: path(edge) + "z", style }));
      frame.picture.append(svg("path", { class: "line", "data-run": number, d: path(points), style }));
      points.forEach(([x, y], t) => {
        if (!known(y)) return;
        const sign = mark(number, x, y, 4);
        sign.dataset.run = number;
        frame.picture.append(sign);
        hits.push(target(x, y, `${RUNS[number].label}, after task ${t + 1}\nAP ${show(line[t][0])}${RUNS[number].seeds.length > 1 ? " ± " + show(line[t][1]) : ""} %`));
      });
    });
    frame.picture.append(...hits);
    roving(hits, alongLine);
    frame.picture.dataset.label = "AP after each task";
    if (picture) picture.replaceWith(frame.picture); else figure.append(frame.picture, legend(figure));
    picture = frame.picture;
  });
}

function drawTasks() {
  const box = find("task-panels");
  RUNS.forEach((run, number) => {
    const matrix = meanMatrix(run), size = matrix.length;
    const figure = html("figure", {}, html("div", { class: "caption" }, html("span", {}, html("span", { class: "swatch", "aria-hidden": "true", style: { "--colour": colourOf(number) } }), run.label)));
    box.append(figure);
    let picture = null;
    responsive(figure, (width) => {
      const frame = chart({ width, height: 230, right: 26, label: "Accuracy on each task over time, " + run.label,
        x: { low: 1, high: Math.max(size, 2), ticks: taskTicks(size, width), label: "after task" }, y: { low: 0, high: 100, label: "accuracy (%)" } });
      const hits = [], ends = [];
      for (let i = 0; i < size; i++) {
        const style = { "--colour": colourOf(i) };
        const points = matrix.slice(i).map((row, step) => [frame.along(i + step + 1), known(row[i]) ? frame.up(row[i]) : null]);
        frame.picture.append(svg("path", { class: "line" + (i >= 8 ? " dashed" : ""), d: path(points), style }));
        points.forEach(([x, y], step) => {
          if (!known(y)) return;
          frame.picture.append(mark(i, x, y, 3.2));
          hits.push(target(x, y, cellText(run, matrix, "mean", i + step, i)));
        });
        const [x, y] = points[points.length - 1];
        if (known(y)) ends.push({ x, y, i });
      }
      const every = Math.ceil(ends.length / Math.floor(frame.inner.height / 13)); // as many numbers as there is room for
      ends.splice(0, ends.length, ...ends.filter((end) => end.i % every === 0));
      ends.sort((a, b) => a.y - b.y).forEach((end, k) => { end.at = k ? Math.max(end.y, ends[k - 1].at + 12) : end.y; });
      const over = ends.length ? ends[ends.length - 1].at - (frame.top + frame.inner.height + 4) : 0;
      ends.forEach((end) => frame.picture.append(svg("text", { class: "strong", x: end.x + 10, y: end.at - Math.max(0, over), "dominant-baseline": "central" }, String(end.i + 1))));
      frame.picture.append(...hits);
      roving(hits, alongLine);
      frame.picture.dataset.label = run.label + ": accuracy on each task";
      if (picture) picture.replaceWith(frame.picture); else figure.append(frame.picture);
      picture = frame.picture;
    });
  });
  tools("over-time", () => [["run", "seed", "after_task", "ap_so_far", ...Array.from({ length: everyTask }, (_, i) => "task_" + (i + 1))],
    ...RUNS.flatMap((run) => run.matrices.flatMap((matrix, s) => soFar(matrix).map((value, t) => [run.label, run.seeds[s], t + 1, value, ...matrix[t]])))],
    () => [find("anytime").querySelector(":scope > svg"), ...box.querySelectorAll("figure > svg")]);
}

function drawPlane() {
  const figure = find("plane-figure");
  const values = (key) => RUNS.flatMap((run) => [run.metrics[key].mean - run.metrics[key].std, run.metrics[key].mean + run.metrics[key].std, ...run.metrics[key].values]).filter(known);
  const ends = (all, low, high) => {
    const least = Math.min(low, ...all), most = Math.max(high, ...all), pad = Math.max((most - least) * 0.08, 2);
    return [least - pad, most + pad];
  };
  const [xLow, xHigh] = ends(values("af"), 0, 0), [yLow, yHigh] = ends(values("ap"), 100, 0);
  let picture = null;
  responsive(figure, (width) => {
    const frame = chart({ width, height: Math.min(440, Math.max(300, width * 0.6)), label: "AF against AP, a point a run",
      x: { low: xLow, high: xHigh, label: width < 480 ? "AF (%): forgets less →" : "AF (%): 0 forgets nothing; further left, more is forgotten" }, y: { low: Math.max(yLow, Math.min(0, yLow)), high: Math.min(yHigh, 104), label: "AP (%): knows more ↑" } });
    frame.picture.append(svg("line", { class: "zero", x1: frame.along(0), x2: frame.along(0), y1: frame.top, y2: frame.top + frame.inner.height }));
    const hits = [], labels = [];
    RUNS.forEach((run, number) => {
      const { ap, af } = run.metrics, x = frame.along(af.mean), y = frame.up(ap.mean), style = { "--colour": colourOf(number) };
      if (!known(ap.mean) || !known(af.mean)) return;
      if (run.seeds.length > 1) {
        ap.values.forEach((value, s) => frame.picture.append(svg("circle", { class: "seed", "data-run": number, cx: frame.along(af.values[s]), cy: frame.up(value), r: 2.6, style })));
        frame.picture.append(svg("line", { class: "whisker", "data-run": number, x1: frame.along(af.mean - af.std), x2: frame.along(af.mean + af.std), y1: y, y2: y, style }),
          svg("line", { class: "whisker", "data-run": number, x1: x, x2: x, y1: frame.up(ap.mean - ap.std), y2: frame.up(ap.mean + ap.std), style }));
      }
      const sign = mark(number, x, y, 6);
      sign.dataset.run = number;
      frame.picture.append(sign);
      hits.push(target(x, y, `${run.label}\nAP ${plusMinus(run, "ap")} %, AF ${plusMinus(run, "af")} %`));
      labels.push({ x, y, number });
    });
    if (width >= 560 && RUNS.length <= 14) {
      labels.sort((a, b) => a.y - b.y).forEach((label, k, all) => {
        label.at = label.y;
        for (const other of all.slice(0, k)) if (Math.abs(other.x - label.x) < 150 && Math.abs(label.at - other.at) < 15) label.at = other.at + 15;
        const end = label.x > frame.left + frame.inner.width * 0.7;
        frame.picture.append(svg("text", { class: "strong", "data-run": label.number, x: label.x + (end ? -12 : 12), y: label.at - 9, "text-anchor": end ? "end" : "start" }, RUNS[label.number].label));
      });
    }
    frame.picture.append(...hits);
    roving(hits, alongLine);
    frame.picture.dataset.label = "Stability and plasticity";
    if (picture) picture.replaceWith(frame.picture); else figure.append(frame.picture, legend(figure));
    picture = frame.picture;
  });
  tools("plane", () => [["run", "seed", "af", "ap"], ...RUNS.flatMap((run) => run.seeds.map((seed, s) => [run.label, seed, run.metrics.af.values[s], run.metrics.ap.values[s]]))],
    () => [figure.querySelector(":scope > svg")]);
}

function drawLearning() {
  const box = find("learning-panels"), shown = RUNS.map((run, number) => [run, number]).filter(([run]) => run.curves.length);
  if (!shown.length) {
    box.append(html("p", { class: "quiet" }, "These runs have no per-epoch log (seed-N/log.csv), or were solved without epochs."));
    return;
  }
  shown.forEach(([run, number]) => {
    const figure = html("figure", {}, html("div", { class: "caption" }, html("span", {}, html("span", { class: "swatch", "aria-hidden": "true", style: { "--colour": colourOf(number) } }), run.label)));
    box.append(figure);
    const kinds = ["loss", "validation_loss"].filter((kind) => run.curves.some((curve) => curve[kind]));
    const values = run.curves.flatMap((curve) => kinds.flatMap((kind) => curve[kind] || [])).filter(known);
    const last = Math.max(...run.curves.map((curve) => curve.step[curve.step.length - 1]));
    const low = Math.min(...values), high = Math.max(...values), log = low > 0 && high / low > 30;
    let picture = null;
    responsive(figure, (width) => {
      const frame = chart({ width, height: 220, label: "Training loss of " + run.label, x: { low: 1, high: Math.max(last, 2), label: "epoch, over all tasks" },
        y: { low: log ? low : Math.min(0, low), high: high + (log ? 0 : (high - Math.min(0, low)) * 0.04), log, label: log ? "loss (log scale)" : "loss" } });
      const hits = [], first = run.curves[0];
      first.task.forEach((task, k) => {
        if (k && task === first.task[k - 1]) return;
        const x = frame.along(first.step[k]);
        if (k) frame.picture.append(svg("line", { class: "task", x1: x, x2: x, y1: frame.top, y2: frame.top + frame.inner.height }));
        const until = first.task.lastIndexOf(task), y = frame.up(first.loss[until] ?? high);
        hits.push(target(frame.along(first.step[until]), y, `${run.label}, ${taskName(run, task)}\nloss ${show(first.loss[k], 3)} at first, ${show(first.loss[until], 3)} at last (seed ${first.seed})`));
      });
      run.curves.forEach((curve, s) => kinds.forEach((kind) => {
        if (curve[kind]) frame.picture.append(svg("path", { class: "line thin" + (kind === "loss" ? "" : " dashed"), style: { "--colour": colourOf(s) }, d: path(curve.step.flatMap((step, k) => {
          const point = [frame.along(step), known(curve[kind][k]) ? frame.up(curve[kind][k]) : null];
          return k && curve.task[k] !== curve.task[k - 1] ? [[null, null], point] : [point]; // a new task begins a new line
        })) }));
      }));
      frame.picture.append(...hits);
      roving(hits, alongLine);
      frame.picture.dataset.label = run.label + ": training loss";
      if (picture) picture.replaceWith(frame.picture); else figure.append(frame.picture);
      picture = frame.picture;
    });
  });
  tools("learning", () => [["run", "seed", "task", "epoch_over_all_tasks", "loss", "validation_loss"],
    ...shown.flatMap(([run]) => run.curves.flatMap((curve) => curve.step.map((step, k) => [run.label, curve.seed, curve.task[k] + 1, step, curve.loss[k], curve.validation_loss?.[k]])))],
    () => [...box.querySelectorAll("figure > svg")]);
}
