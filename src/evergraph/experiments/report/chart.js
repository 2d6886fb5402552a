// A frame with two axes; everything is drawn in CSS pixels, so text keeps its size on every screen.
function niceTicks(low, high, wanted) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(wanted, 1), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) {
    ticks.push(Number(tick.toFixed(10)));
  }
  return ticks;
}
const taskTicks = (tasks, width) => {
  const every = Math.ceil(tasks / Math.max(2, Math.floor(width / 34)));
  return Array.from({ length: tasks }, (_, task) => task + 1).filter((task) => (task - 1) % every === 0);
};
const plain = (tick) => (Math.abs(tick) >= 10000 ? (tick / 1000) + "k" : String(tick).replace("-", "−"));

function chart({ width, height, label, x, y, right = 14 }) {
  const left = 46, top = 8, bottom = 42;
  const inner = { width: width - left - right, height: height - top - bottom };
  const turnX = x.log ? Math.log10 : (value) => value, spanX = turnX(x.high) - turnX(x.low) || 1;
  const along = (value) => left + ((turnX(value) - turnX(x.low)) / spanX) * inner.width;
  const turn = y.log ? Math.log10 : (value) => value;
  const span = turn(y.high) - turn(y.low) || 1;
  const up = (value) => top + inner.height - ((turn(value) - turn(y.low)) / span) * inner.height;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label });
  const ticksY = y.log ? logTicks(y.low, y.high) : niceTicks(y.low, y.high, inner.height / 40);
  for (const tick of ticksY) {
    picture.append(svg("line", { class: "gridline", x1: left, x2: left + inner.width, y1: up(tick), y2: up(tick) }),
      svg("text", { x: left - 7, y: up(tick), "text-anchor": "end", "dominant-baseline": "central" }, plain(tick)));
  }
  for (const tick of x.ticks || niceTicks(x.low, x.high, inner.width / 70)) {
    const text = (x.text || plain)(tick);
    picture.append(svg("text", { x: along(tick), y: height - bottom + 17, "text-anchor": "middle" }, text));
  }
  const floor = top + inner.height, middle = top + inner.height / 2;
  picture.append(svg("line", { class: "axis", x1: left, x2: left + inner.width, y1: floor, y2: floor }),
    svg("text", { x: left + inner.width / 2, y: height - 6, "text-anchor": "middle" }, x.label),
    svg("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, y.label));
  return { picture, along, up, left, top, inner };
}
function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of Math.log10(high / low) > 3 ? [1] : [1, 2, 5]) {
      const tick = Number((factor * 10 ** power).toPrecision(6));
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks;
}
function path(points) {
  // a missing value breaks the line
  let text = "", pen = "M";
  for (const [px, py] of points) {
    if (!known(px) || !known(py)) { pen = "M"; continue; }
    text += pen + px.toFixed(1) + "," + py.toFixed(1);
    pen = "L";
  }
  return text;
}
function target(x, y, text, extra) {
  // the circle around a point that responds to pointer and focus
  return answers(svg("circle", { class: "hit", "data-hit": "", cx: x, cy: y, r: 11, role: "img" }), text, extra);
}
