// What all parts share: elements, numbers as text, the tip, downloads. Text goes in as text nodes only.
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const SVG = "http://www.w3.org/2000/svg";
const find = (id) => document.getElementById(id);

function make(space, name, attributes, children) {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [property, text] of Object.entries(value)) node.style.setProperty(property, text);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
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
const mean = (values) => values.reduce((total, value) => total + value, 0) / values.length;
function spread(values) {
  if (values.length < 2) return 0;
  const centre = mean(values);
  return Math.sqrt(values.reduce((total, value) => total + (value - centre) ** 2, 0) / (values.length - 1));
}
const plusMinus = (run, key, digits = 1) => show(run.metrics[key].mean, digits) + (run.seeds.length > 1 ? " ± " + show(run.metrics[key].std, digits) : "");
const taskName = (run, task) => "task " + (task + 1) + (run.tasks[task] ? " (" + run.tasks[task] + ")" : "");

// Each run has a colour and a marker of its own, the same in every figure.
const MARKERS = [
  (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
  (r) => `M${-r},${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (r) => `M0,${-1.35 * r}L${1.35 * r},0L0,${1.35 * r}L${-1.35 * r},0z`,
  (r) => `M0,${-1.25 * r}L${1.2 * r},${r}H${-1.2 * r}z`,
  (r) => `M0,${1.25 * r}L${1.2 * r},${-r}H${-1.2 * r}z`,
  (r) => `M${-r / 2.4},${-1.2 * r}h${r / 1.2}v${r * 0.78}h${r * 0.78}v${r / 1.2}h${-r * 0.78}v${r * 0.78}h${-r / 1.2}v${-r * 0.78}h${-r * 0.78}v${-r / 1.2}h${r * 0.78}z`,
];
const colourOf = (number) => "var(--run-" + (number % 8) + ")";
const markerOf = (number) => MARKERS[(number + Math.floor(number / 8)) % MARKERS.length];
const mark = (number, x, y, r = 4.5) =>
  svg("path", { class: "mark", d: markerOf(number)(r), transform: `translate(${x} ${y})`, style: { "--colour": colourOf(number) } });
// A legend whose entries bring their run to the fore: for as long as they are pointed at, or until chosen again.
function legend(figure) {
  let chosen = null;
  const fore = (number) => figure.querySelectorAll(":scope > svg [data-run]").forEach((node) => node.classList.toggle("dim", number !== null && node.dataset.run !== String(number)));
  const buttons = RUNS.map((run, number) => html("button", { type: "button", "aria-pressed": "false", onpointerenter: () => fore(number), onpointerleave: () => fore(chosen), onfocus: () => fore(number), onblur: () => fore(chosen),
    onclick: () => { chosen = chosen === number ? null : number; buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === chosen))); fore(chosen); } },
    svg("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" }, mark(number, 0, 0, 5)), run.label));
  return html("ul", { class: "legend", "aria-label": "Runs" }, buttons.map((button) => html("li", {}, button)));
}

// The tip follows the pointer or the focus, and is read out.
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
  const left = Math.min(Math.max(8, box.left + box.width / 2 - own.width / 2), document.documentElement.clientWidth - own.width - 8);
  const above = box.top - own.height - 10;
  tip.style.left = left + "px";
  tip.style.top = (above > 8 ? above : box.bottom + 10) + "px";
}
const hideTip = () => { tip.hidden = true; };
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
// scrolled away from the pointer it goes; what has the focus keeps it (a move by keyboard may scroll)
document.addEventListener("scroll", () => (!tip.hidden && tipTarget === document.activeElement ? placeTip() : hideTip()), { passive: true, capture: true });
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

// One tab stop for a group of things; the arrow keys move inside it. `step` says where each key leads.
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
const alongLine = (index, key) => ({ ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1 })[key];

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
const STYLED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "font-weight", "text-anchor", "dominant-baseline"];
function svgText(node) {
  // a picture of its own: today's colours written into every element, on paper white
  const root = document.documentElement, theme = root.dataset.theme;
  root.dataset.theme = "light";
  const copy = node.cloneNode(true), from = [node, ...node.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
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
  // several pictures of one section, one below the other
  let height = 0, width = 0;
  const parts = nodes.map((node) => {
    const [, , w, h] = node.getAttribute("viewBox").split(" ").map(Number);
    const label = node.dataset.label, inner = svgText(node).split("\n").slice(1).join("\n").replace("<svg ", `<svg x="0" y="${height + 24}" `);
    const title = label ? new XMLSerializer().serializeToString(svg("text", { x: 8, y: height + 16, "font-size": 13, "font-family": "sans-serif", "font-weight": 600 }, label)) : "";
    height += h + 32;
    width = Math.max(width, w);
    return title + inner;
  });
  return `<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="${SVG}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"><rect width="100%" height="100%" fill="#ffffff"/>${parts.join("")}</svg>\n`;
}
function tools(section, rows, pictures) {
  const box = document.querySelector(`[data-tools="${section}"]`);
  const title = document.querySelector(`#${section} h2`).textContent;
  const name = "evergraph-" + section;
  box.append(html("button", { type: "button", "data-save": "csv", "aria-label": "Download " + title + " as CSV", onclick: () => download(name + ".csv", csv(rows()), "text/csv") }, "↓ CSV"));
  if (pictures) box.append(html("button", { type: "button", "data-save": "svg", "aria-label": "Download " + title + " as SVG", onclick: () => download(name + ".svg", panelsText(pictures()), "image/svg+xml") }, "↓ SVG"));
}

// Draw for the width at hand, and again when it changes.
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
