// What all parts share: elements, numbers as text, the tip, downloads. Text only enters the page as text nodes.
// The scripts print and draw the numbers in DATA; their meaning is defined only in Python.
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const SVG = "http://www.w3.org/2000/svg";
const find = (id) => document.getElementById(id);

function make(space, name, attributes, children) {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.entries(value).forEach(([name, text]) => node.style.setProperty(name, text));
    else if ((value ?? false) !== false) node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const html = (name, attributes, ...children) => make(null, name, attributes, children);
const svg = (name, attributes, ...children) => make(SVG, name, attributes, children);

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
function show(value, digits = 1, sign = false) {
  if (!known(value)) return "–";
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : (value < 0 ? "−" : sign ? "+" : "") + text;
}
// As many decimals as numbers of this size need.
function digitsFor(values) {
  const largest = Math.max(0, ...values.filter(known).map(Math.abs));
  return largest >= 10 || largest === 0 ? 1 : largest >= 0.1 ? 2 : 4;
}
function showBytes(bytes) {
  if (!known(bytes)) return "–";
  const power = bytes < 1000 ? 0 : Math.min(Math.floor(Math.log10(bytes) / 3), 4);
  return (power ? (bytes / 1000 ** power).toFixed(1) : String(bytes)) + " " + ["B", "kB", "MB", "GB", "TB"][power];
}

// The metric in the matrices, the scale of figures with several runs, and how its values are printed. A run's own
// scale is that of all runs with its metric.
const METRIC = DATA.metric, [LOW, HIGH] = DATA.scale, DIGITS = digitsFor(DATA.scale);
const digitsOf = (run) => digitsFor(run.scale);
const AP = "ap", AF = "af"; // the summaries that have their own figures
const TITLES = Object.fromEntries(DATA.summaries.map((summary) => [summary.name, summary.title]));
const unitOf = (run) => (run.metric.unit ? " " + run.metric.unit : "");
const withUnit = (title) => (METRIC.unit ? `${title} (${METRIC.unit})` : title);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const withSpread = (run, value, spread, digits = digitsOf(run)) =>
  show(value, digits) + (run.seeds.length > 1 && known(value) ? " ± " + show(spread, digits) : "");
const plusMinus = (run, name, digits = digitsOf(run)) =>
  withSpread(run, run.metrics[name]?.mean, run.metrics[name]?.std, digits);
const headline = (run, digits) =>
  [AP, AF].map((name) => `${TITLES[name]} ${plusMinus(run, name, digits)}${unitOf(run)}`).join(", ");
// A task's number and its classes: those of one seed, or those that all seeds share.
const taskNames = (run, seed = "mean") => run.seed_tasks[run.seeds.map(String).indexOf(seed)] ?? run.tasks;
const taskName = (names, task) => "task " + (task + 1) + (names[task] ? " (" + names[task] + ")" : "");

// Each method has its own colour and marker (a style), the same in every figure and every report.
const MARKERS = [
  (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
  (r) => `M${-r},${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (r) => `M0,${-1.35 * r}L${1.35 * r},0L0,${1.35 * r}L${-1.35 * r},0z`,
  (r) => `M0,${-1.25 * r}L${1.2 * r},${r}H${-1.2 * r}z`,
  (r) => `M0,${1.25 * r}L${1.2 * r},${-r}H${-1.2 * r}z`,
  (r) => `M${-r / 2.4},${-1.2 * r}h${r / 1.2}v${r * 0.78}h${r * 0.78}v${r / 1.2}h${-r * 0.78}v${r * 0.78}` +
    `h${-r / 1.2}v${-r * 0.78}h${-r * 0.78}v${-r / 1.2}h${r * 0.78}z`,
];
const colourOf = (number) => "var(--run-" + (number % 8) + ")";
const markerOf = (number) => MARKERS[(number + 3 * Math.floor(number / 8)) % MARKERS.length];
const paint = (number) => ({ "--colour": colourOf(number) });
const mark = (number, x, y, r = 4.5) =>
  svg("path", { class: "mark", d: markerOf(number)(r), transform: `translate(${x} ${y})`, style: paint(number) });
const styleOf = (number) => RUNS[number].style;
const swatch = (number) => html("span", { class: "swatch", "aria-hidden": "true", style: paint(styleOf(number)) });
// A legend whose entries highlight their run: while the pointer is on one, or from one click to the next.
function legend(figure) {
  let chosen = null;
  const highlight = (number) => figure.querySelectorAll(":scope > svg [data-run]").forEach((node) =>
    node.classList.toggle("dim", number !== null && node.dataset.run !== String(number)));
  const choose = (number) => {
    chosen = chosen === number ? null : number;
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === chosen)));
    highlight(chosen);
  };
  const buttons = RUNS.map((run, number) => html("button", {
    type: "button", "aria-pressed": "false", onclick: () => choose(number),
    onpointerenter: () => highlight(number), onpointerleave: () => highlight(chosen),
    onfocus: () => highlight(number), onblur: () => highlight(chosen),
  }, svg("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" },
    mark(styleOf(number), 0, 0, 5)),
  run.label));
  return html("ul", { class: "legend", "aria-label": "Runs" }, buttons.map((button) => html("li", {}, button)));
}

// The tip follows the pointer or the focus, and screen readers read it out.
const tip = find("tip");
let tipTarget = null;
function showTip(text, target) {
  tip.textContent = text;
  tip.hidden = false;
  tipTarget = target;
  placeTip();
}
function placeTip() {
  const target = tipTarget, box = target.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const most = document.documentElement.clientWidth - own.width - 8;
  const left = Math.min(Math.max(8, box.left + box.width / 2 - own.width / 2), most);
  const above = box.top - own.height - 10;
  tip.style.left = left + "px";
  tip.style.top = (above > 8 ? above : box.bottom + 10) + "px";
}
const hideTip = () => { tip.hidden = true; };
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
// scrolling hides the pointer's tip; the focused element keeps its own, since the arrow keys may scroll
const onScroll = () => (!tip.hidden && tipTarget === document.activeElement ? placeTip() : hideTip());
document.addEventListener("scroll", onScroll, { passive: true, capture: true });
function answers(node, text, extra = () => {}) {
  const on = () => { showTip(text, node); extra(true); };
  const off = () => { hideTip(); extra(false); };
  node.addEventListener("pointerenter", on);
  node.addEventListener("pointerleave", off);
  node.addEventListener("focus", on);
  node.addEventListener("blur", off);
  node.addEventListener("click", on);
  node.setAttribute("aria-label", text.replaceAll("\n", ", "));
  return node;
}

// One tab stop per group; the arrow keys move within it. `step` maps an index and a key to the next index.
function roving(nodes, step) {
  nodes.forEach((node, index) => {
    node.setAttribute("tabindex", index === 0 ? "0" : "-1");
    node.addEventListener("keydown", (event) => {
      const next = step(index, event.key);
      if (next === undefined || !nodes[next]) return;
      event.preventDefault();
      node.setAttribute("tabindex", "-1");
      nodes[next].setAttribute("tabindex", "0");
      nodes[next].focus();
    });
  });
}
const alongLine = (index, key) =>
  ({ ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1 })[key];

// Downloads.
function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type: type + ";charset=utf-8" }));
  const link = html("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
function csv(rows) {
  const quote = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  return rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
}
const STYLED = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "font-weight",
  "text-anchor", "dominant-baseline",
];
function svgText(node) {
  // a self-contained picture: the light theme's colours written into every element, on white
  const root = document.documentElement, theme = root.dataset.theme;
  root.dataset.theme = "light";
  const copy = node.cloneNode(true);
  const from = [node, ...node.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, index) => {
    const style = getComputedStyle(element), target = to[index];
    for (const name of STYLED) target.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "style", "tabindex", "role"]) target.removeAttribute(name);
  });
  if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
  copy.querySelectorAll("[data-hit]").forEach((element) => element.remove());
  const [, , width, height] = node.getAttribute("viewBox").split(" ");
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.prepend(svg("rect", { width: "100%", height: "100%", fill: "#ffffff" }));
  return '<?xml version="1.0" encoding="UTF-8"?>\n' + new XMLSerializer().serializeToString(copy) + "\n";
}
function panelsText(nodes) {
  // several pictures of one section, stacked
  const style = { x: 8, "font-size": 13, "font-family": "sans-serif", "font-weight": 600 };
  let height = 0, width = 0;
  const parts = nodes.map((node) => {
    const [, , w, h] = node.getAttribute("viewBox").split(" ").map(Number), label = node.dataset.label;
    const inner = svgText(node).split("\n").slice(1).join("\n").replace("<svg ", `<svg x="0" y="${height + 24}" `);
    const title = label ? new XMLSerializer().serializeToString(svg("text", { ...style, y: height + 16 }, label)) : "";
    height += h + 32;
    width = Math.max(width, w);
    return title + inner;
  });
  return '<?xml version="1.0" encoding="UTF-8"?>\n' +
    `<svg xmlns="${SVG}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
    `<rect width="100%" height="100%" fill="#ffffff"/>${parts.join("")}</svg>\n`;
}
function tools(section, rows, pictures) {
  const box = document.querySelector(`[data-tools="${section}"]`);
  const title = document.querySelector(`#${section} h2`).textContent;
  const button = (kind, type, text) => box.append(html("button", {
    type: "button", "data-save": kind, "aria-label": `Download ${title} as ${kind.toUpperCase()}`,
    onclick: () => download(`evergraph-${section}.${kind}`, text(), type),
  }, "↓ " + kind.toUpperCase()));
  button("csv", "text/csv", () => csv(rows()));
  if (pictures) button("svg", "image/svg+xml", () => panelsText(pictures()));
}

// Draw for the available width, and again whenever it changes.
function responsive(box, drawing) {
  let last = 0;
  const redraw = () => {
    const style = getComputedStyle(box);
    const width = Math.floor(box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
    if (width > 0 && Math.abs(width - last) > 1) { last = width; drawing(width); }
  };
  redraw();
  new ResizeObserver(redraw).observe(box);
}
