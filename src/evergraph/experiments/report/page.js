// The page as a whole: notices, protocols, theme; then everything is drawn.
function drawNotices() {
  const box = find("notices"), notice = (text) => box.append(html("p", { class: "notice" }, text));
  if (DATA.unlike.length) {
    const name = (key) => (key === "model.name" ? "model" : (key.startsWith("model.") ? "model " : "") + words(key));
    const values = (key) => [...new Set(RUNS.map((run) => run.settings[key] ?? "–"))].join(" / ");
    const list = DATA.unlike.map((key) => html("li", {}, `${name(key)}: ${values(key)}`));
    find("unlike").append(html("summary", {}, "These runs differ in more than the method"), html("ul", {}, list));
  }
  find("unlike").hidden = !DATA.unlike.length;
  const left = DATA.unfinished.length;
  if (left) notice(`${left === 1 ? "One run is" : left + " runs are"} not finished and therefore not shown.`);
  const count = RUNS.length === 1 ? "1 run" : RUNS.length + " runs";
  const tasks = [...new Set(RUNS.map((run) => run.matrices[0].length))];
  const noun = tasks.length === 1 && tasks[0] === 1 ? "task" : "tasks";
  find("about").textContent = `${count}, ${tasks.join(" or ")} ${noun}; written ${DATA.made}`;
  find("footer").textContent = `Evergraph ${DATA.version}. This page holds all its data and needs no network.`;
  document.querySelectorAll("[data-metric]").forEach((node) => {
    node.textContent = node.dataset.metric === "capital" ? capital(METRIC.quantity) : METRIC.quantity;
  });
}

const SCOPES = { current: "the task's own classes", seen: "the classes seen so far", all: "all classes" };
function protocolText({ protocol, stream, tested_on, access, kept_bytes, leak }) {
  const parts = [[protocol.scenario, stream].filter(Boolean).join(" "), `tests on ${tested_on}`];
  if (protocol.label_scope) parts.push(`softmax over ${SCOPES[protocol.label_scope] ?? protocol.label_scope}`);
  if (leak) parts.push(`leak score ${show(leak.mean)} (chance ${show(leak.chance)})`);
  if (protocol.reduction) parts.push(protocol.reduction + " loss");
  if (access.keeps) parts.push(`keeps ${access.keeps}` + (kept_bytes ? ` (${showBytes(kept_bytes)})` : ""));
  return parts.join("; ");
}
function drawProtocols() {
  const box = find("protocol-cards");
  RUNS.forEach((run, number) => {
    const list = html("dl");
    const row = (name, value, key) => {
      const differs = key && DATA.differ.includes(key);
      list.append(html("dt", {}, name), html("dd", { class: differs ? "differs" : null }, value));
    };
    const group = (title) => list.append(html("dt", { class: "group" }, title));
    const entries = (prefix) => Object.entries(run.settings).filter(([key]) => key.startsWith(prefix + "."))
      .forEach(([key, value]) => row(key.slice(prefix.length + 1).replaceAll("_", " "), value, key));
    group("Protocol");
    entries("protocol");
    row("seeds", run.settings.seeds, "seeds");
    group("Model");
    entries("model");
    if (Object.keys(run.hyperparameters).length) { group("Method"); entries("hyperparameters"); }
    if (Object.keys(run.access).length || known(run.kept_bytes)) {
      group("What it keeps and is told");
      Object.entries(run.access).forEach(([key, value]) => row(words(key), value));
      if (run.test_nodes_read) row("other test nodes", run.test_nodes_read);
      if (known(run.kept_bytes)) row("bytes kept", `${run.kept_bytes.toLocaleString("en")} after the last task`);
      if (run.kept_after.length) row("after each task", run.kept_after.map(showBytes).join(", "));
    }
    group("Where and when");
    row("folder", run.folder);
    row("device", run.device ?? "–");
    row("seconds", show(run.seconds, 1));
    row("versions", Object.entries(run.versions).map(([name, version]) => name + " " + version).join(", ") || "–");
    box.append(html("article", { class: "card" }, html("h3", {}, swatch(number), run.label),
      html("p", { class: "result" }, headline(run, digitsOf(run) + 1)),
      html("p", { class: "quiet" }, protocolText(run)),
      html("details", {}, html("summary", {}, "All settings"), list)));
  });
  tools("protocols", () => {
    const keys = [...new Set(RUNS.flatMap((run) => Object.keys(run.settings)))];
    return [["setting", ...RUNS.map((run) => run.label)],
      ...keys.map((key) => [key, ...RUNS.map((run) => run.settings[key] ?? "")]),
      ...ACCESS.map((key) => ["access." + key, ...RUNS.map((run) => run.access[key] ?? "")]),
      ["kept_bytes", ...RUNS.map((run) => run.kept_bytes)]];
  });
}

function setTheme() {
  const button = find("theme"), root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
    button.setAttribute("aria-pressed", String(dark()));
  };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  system.addEventListener("change", label);
  label();
}

setTheme();
drawNotices();
drawAnswers();
drawTable();
drawCost();
drawHeatmaps();
drawAnytime();
drawTasks();
drawPlane();
drawLearning();
drawProtocols();
document.documentElement.dataset.ready = "yes";
