// The metric over time, the stability-plasticity plane, learning curves.
const everyTask = Math.max(...RUNS.map((run) => run.matrices[0].length));
const titled = (run, number) =>
  html("figure", {}, html("div", { class: "caption" }, html("span", {}, swatch(number), run.label)));
// A vertical line through a chart.
const upright = ({ top, inner }, kind, x) =>
  svg("line", { class: kind, x1: x, x2: x, y1: top, y2: top + inner.height });
// Draws into a figure for the available width; `after` is put below the picture.
function redrawn(figure, draw, ...after) {
  let picture = null;
  responsive(figure, (width) => {
    const next = draw(width);
    if (picture) picture.replaceWith(next); else figure.append(next, ...after);
    picture = next;
  });
}

function drawAnytime() {
  const figure = find("anytime"), title = `${TITLES[AP]} after each task`;
  figure.append(html("div", { class: "caption" }, html("span", {}, title)));
  redrawn(figure, (width) => {
    const frame = chart({
      width, height: Math.min(380, Math.max(260, width * 0.5)), label: title + ", one line per run",
      x: { low: 1, high: Math.max(everyTask, 2), ticks: taskTicks(everyTask, width), label: "after task" },
      y: { low: LOW, high: HIGH, label: `${TITLES[AP]}: ${METRIC.title}` },
    });
    const hits = [];
    RUNS.forEach((run, number) => {
      const line = run.anytime, style = paint(styleOf(number)), complete = line.every((point) => known(point.mean));
      const points = line.map(({ mean }, t) => [frame.along(t + 1), known(mean) ? frame.up(mean) : null]);
      if (RUNS.length <= 4 && run.seeds.length > 1 && complete) {
        const edge = (sign) => line.map(({ mean, std }, t) => [frame.along(t + 1), frame.up(mean + sign * std)]);
        const outline = path([...edge(1), ...edge(-1).reverse()]) + "z";
        frame.picture.append(svg("path", { class: "band", "data-run": number, d: outline, style }));
      }
      frame.picture.append(svg("path", { class: "line", "data-run": number, d: path(points), style }));
      points.forEach(([x, y], t) => {
        if (!known(y)) return;
        const sign = mark(styleOf(number), x, y, 4), value = withSpread(run, line[t].mean, line[t].std);
        sign.dataset.run = number;
        frame.picture.append(sign);
        hits.push(target(x, y, `${run.label}, after task ${t + 1}\n${TITLES[AP]} ${value}${unitOf(run)}`));
      });
    });
    frame.picture.append(...hits);
    roving(hits, alongLine);
    frame.picture.dataset.label = title;
    return frame.picture;
  }, legend(figure));
}

function drawTasks() {
  const box = find("task-panels");
  RUNS.forEach((run, number) => {
    const matrices = matricesOf(run), matrix = matrices.values, size = matrix.length, figure = titled(run, number);
    box.append(figure);
    redrawn(figure, (width) => {
      const frame = chart({
        width, height: 230, right: 26, label: `${capital(METRIC.quantity)} on each task over time, ${run.label}`,
        x: { low: 1, high: Math.max(size, 2), ticks: taskTicks(size, width), label: "after task" },
        y: { low: LOW, high: HIGH, label: METRIC.title },
      });
      const hits = [];
      let ends = [];
      for (let i = 0; i < size; i++) {
        const points = matrix.slice(i).map((row, step) =>
          [frame.along(i + step + 1), known(row[i]) ? frame.up(row[i]) : null]);
        const kind = "line" + (i >= 8 ? " dashed" : "");
        frame.picture.append(svg("path", { class: kind, d: path(points), style: paint(i) }));
        points.forEach(([x, y], step) => {
          if (!known(y)) return;
          frame.picture.append(mark(i, x, y, 3.2));
          hits.push(target(x, y, cellText(run, matrices, i + step, i)));
        });
        const [x, y] = points[points.length - 1];
        if (known(y)) ends.push({ x, y, i });
      }
      const every = Math.ceil(ends.length / Math.floor(frame.inner.height / 13)); // as many numbers as fit
      ends = ends.filter((end) => end.i % every === 0).sort((a, b) => a.y - b.y);
      ends.forEach((end, k) => { end.at = k ? Math.max(end.y, ends[k - 1].at + 12) : end.y; });
      const over = ends.length ? Math.max(0, ends[ends.length - 1].at - (frame.top + frame.inner.height + 4)) : 0;
      ends.forEach(({ x, at, i }) => frame.picture.append(
        svg("text", { class: "strong", x: x + 10, y: at - over, "dominant-baseline": "central" }, String(i + 1))));
      frame.picture.append(...hits);
      roving(hits, alongLine);
      frame.picture.dataset.label = `${run.label}: ${METRIC.quantity} on each task`;
      return frame.picture;
    });
  });
  tools("over-time", () => {
    const tasks = Array.from({ length: everyTask }, (_, i) => "task_" + (i + 1));
    const rows = RUNS.flatMap((run) => run.matrices.flatMap((matrix, s) =>
      run.seed_anytime[s].map((value, t) => [run.label, run.seeds[s], t + 1, value, ...matrix[t]])));
    return [["run", "seed", "after_task", "ap_so_far", ...tasks], ...rows];
  }, () => [find("anytime").querySelector(":scope > svg"), ...box.querySelectorAll("figure > svg")]);
}

// Possible places of a label beside its point: distance down, and side; the first free one is taken.
const PLACES = [0, -16, 16, -32, 32, -48, 48].flatMap((dy) => [[dy + 4, 1], [dy + 4, -1]]);

function drawPlane() {
  const figure = find("plane-figure"), least = (HIGH - LOW) / 50;
  const values = (name) => RUNS.map((run) => run.metrics[name])
    .flatMap(({ mean, std, values }) => [mean - std, mean + std, ...values]).filter(known);
  const ends = (all) => {
    if (!all.length) return [LOW, HIGH];
    const low = Math.min(...all), high = Math.max(...all), pad = Math.max((high - low) * 0.08, least);
    return [low - pad, high + pad];
  };
  const [xLow, xHigh] = ends([0, ...values(AF)]), [yLow, yHigh] = ends(values(AP));
  const falls = METRIC.higher_is_better === false;
  const stability = `${withUnit(TITLES[AF])}: 0 forgets nothing; further left, more is forgotten`;
  const short = `${withUnit(TITLES[AF])}: forgets less →`;
  const plasticity = `${withUnit(TITLES[AP])}: knows more ${falls ? "↓" : "↑"}`;
  redrawn(figure, (width) => {
    const frame = chart({
      width, height: Math.min(440, Math.max(300, width * 0.6)),
      label: `${TITLES[AF]} against ${TITLES[AP]}, one point per run`,
      x: { low: xLow, high: xHigh, label: width < 480 ? short : stability },
      y: { low: yLow, high: METRIC.unit === "%" ? Math.min(yHigh, 104) : yHigh, label: plasticity },
    });
    frame.picture.append(upright(frame, "zero", frame.along(0)));
    const hits = [], labels = [];
    RUNS.forEach((run, number) => {
      const { [AP]: ap, [AF]: af } = run.metrics, common = { "data-run": number, style: paint(styleOf(number)) };
      if (!known(ap.mean) || !known(af.mean)) return;
      const x = frame.along(af.mean), y = frame.up(ap.mean);
      if (run.seeds.length > 1) {
        const [left, right] = [af.mean - af.std, af.mean + af.std].map(frame.along);
        const [bottom, top] = [ap.mean - ap.std, ap.mean + ap.std].map(frame.up);
        const seeds = ap.values.map((value, s) => [frame.along(af.values[s]), frame.up(value)]);
        frame.picture.append(
          ...seeds.map(([cx, cy]) => svg("circle", { class: "seed", cx, cy, r: 2.6, ...common })),
          svg("line", { class: "whisker", x1: left, x2: right, y1: y, y2: y, ...common }),
          svg("line", { class: "whisker", x1: x, x2: x, y1: bottom, y2: top, ...common }));
      }
      const sign = mark(styleOf(number), x, y, 6);
      sign.dataset.run = number;
      frame.picture.append(sign);
      hits.push(target(x, y, `${run.label}\n${headline(run)}`));
      labels.push({ x, y, number });
    });
    if (width >= 560 && RUNS.length <= 24) {
      const taken = labels.map(({ x, y }) => ({ left: x - 8, right: x + 8, top: y - 8, bottom: y + 8 }));
      labels.sort((a, b) => a.y - b.y).forEach(({ x, y, number }) => {
        const text = RUNS[number].label, wide = 6.9 * text.length, end = frame.left + frame.inner.width + 12;
        for (const [dy, side] of PLACES) {
          const left = side > 0 ? x + 12 : x - 12 - wide, at = y + dy;
          const box = { left, right: left + wide, top: at - 9, bottom: at + 5 };
          const outside = box.left < frame.left || box.right > end || box.top < 0;
          if (outside || box.bottom > frame.top + frame.inner.height) continue;
          const beside = (o) => o.right <= box.left || box.right <= o.left;
          if (!taken.every((o) => beside(o) || o.bottom <= box.top || box.bottom <= o.top)) continue;
          taken.push(box);
          frame.picture.append(svg("text", { class: "strong label", "data-run": number, x: left, y: at }, text));
          return;
        } // without room, the legend and the tip name the run
      });
    }
    frame.picture.append(...hits);
    roving(hits, alongLine);
    frame.picture.dataset.label = "Stability and plasticity";
    return frame.picture;
  }, legend(figure));
  tools("plane", () => [["run", "seed", AF, AP], ...RUNS.flatMap((run) =>
    run.seeds.map((seed, s) => [run.label, seed, run.metrics[AF].values[s], run.metrics[AP].values[s]]))],
    () => [figure.querySelector(":scope > svg")]);
}

function drawLearning() {
  const box = find("learning-panels");
  const shown = RUNS.map((run, number) => [run, number]).filter(([run]) => run.curves.length);
  if (!shown.length) {
    box.append(html("p", { class: "quiet" },
      "There is no per-epoch log (seed-N/log.csv) beside these results, or they were computed without epochs."));
    return;
  }
  shown.forEach(([run, number]) => {
    const figure = titled(run, number);
    box.append(figure);
    const kinds = ["loss", "validation_loss"].filter((kind) => run.curves.some((curve) => curve[kind]));
    const values = run.curves.flatMap((curve) => kinds.flatMap((kind) => curve[kind] || [])).filter(known);
    const last = Math.max(...run.curves.map((curve) => curve.step[curve.step.length - 1]));
    const low = Math.min(...values), high = Math.max(...values), log = low > 0 && high / low > 30;
    const floor = log ? low : Math.min(0, low), ceiling = log ? high : high + (high - floor) * 0.04;
    redrawn(figure, (width) => {
      const frame = chart({
        width, height: 220, label: "Training loss of " + run.label,
        x: { low: 1, high: Math.max(last, 2), label: "epoch, over all tasks" },
        y: { low: floor, high: ceiling, log, label: log ? "loss (log scale)" : "loss" },
      });
      const hits = [], first = run.curves[0];
      first.task.forEach((task, k) => {
        if (k && task === first.task[k - 1]) return;
        const x = frame.along(first.step[k]), until = first.task.lastIndexOf(task);
        if (k) frame.picture.append(upright(frame, "task", x));
        const losses = `loss ${show(first.loss[k], 3)} at first, ${show(first.loss[until], 3)} in the end`;
        const at = [frame.along(first.step[until]), frame.up(first.loss[until] ?? high)];
        const name = taskName(taskNames(run, String(first.seed)), task);
        hits.push(target(...at, `${run.label}, ${name}\n${losses} (seed ${first.seed})`));
      });
      run.curves.forEach((curve, s) => kinds.filter((kind) => curve[kind]).forEach((kind) => {
        const points = curve.step.flatMap((step, k) => {
          const point = [frame.along(step), known(curve[kind][k]) ? frame.up(curve[kind][k]) : null];
          const begins = k && curve.task[k] !== curve.task[k - 1];
          return begins ? [[null, null], point] : [point]; // each task has its own line
        });
        const dashes = kind === "loss" ? "" : " dashed";
        frame.picture.append(svg("path", { class: "line thin" + dashes, style: paint(s), d: path(points) }));
      }));
      frame.picture.append(...hits);
      roving(hits, alongLine);
      frame.picture.dataset.label = run.label + ": training loss";
      return frame.picture;
    });
  });
  tools("learning", () => [["run", "seed", "task", "epoch_over_all_tasks", "loss", "validation_loss"],
    ...shown.flatMap(([run]) => run.curves.flatMap((curve) => curve.step.map((step, k) =>
      [run.label, curve.seed, curve.task[k] + 1, step, curve.loss[k], curve.validation_loss?.[k]])))],
    () => [...box.querySelectorAll("figure > svg")]);
}
