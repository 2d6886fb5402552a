// The page as a whole: notices, protocols, theme; then everything is drawn.
function drawNotices() {
  const box = find("notices"), words = (key) => key.split(".").pop().replaceAll("_", " ");
  if (DATA.unlike.length) {
    const list = DATA.unlike.map((key) => `${words(key)} (${[...new Set(RUNS.map((run) => run.settings[key] ?? "none"))].join(" / ")})`);
    box.append(html("p", { class: "notice" }, "These runs do not share one protocol; their numbers differ for more reasons than the method: " + list.join("; ") + "."));
  }
  if (DATA.unfinished.length) box.append(html("p", { class: "notice" }, "Not finished, and so not shown: " + DATA.unfinished.join(", ") + "."));
  const count = RUNS.length === 1 ? "1 run" : RUNS.length + " runs", tasks = [...new Set(RUNS.map((run) => run.matrices[0].length))];
  find("about").textContent = `${count}, ${tasks.join(" or ")} ${tasks.length === 1 && tasks[0] === 1 ? "task" : "tasks"}; made ${DATA.made}`;
  find("footer").textContent = `Evergraph ${DATA.version}. This page holds all its data and needs no network.`;
}

function drawProtocols() {
  const box = find("protocol-cards");
  RUNS.forEach((run, number) => {
    const list = html("dl");
    const row = (name, value, key) => list.append(html("dt", {}, name), html("dd", { class: key && DATA.differ.includes(key) ? "differs" : null }, value));
    const group = (title) => list.append(html("dt", { class: "group" }, title));
    const entries = (prefix) => Object.entries(run.settings).filter(([key]) => key.startsWith(prefix + ".")).forEach(([key, value]) => row(key.slice(prefix.length + 1).replaceAll("_", " "), value, key));
    group("Protocol");
    entries("protocol");
    row("seeds", run.settings.seeds, "seeds");
    group("Model");
    entries("model");
    if (Object.keys(run.hyperparameters).length) { group("Method"); entries("hyperparameters"); }
    group("Where and when");
    row("folder", run.folder);
    row("device", run.device ?? "–");
    row("seconds", show(run.seconds, 1));
    row("versions", Object.entries(run.versions).map(([name, version]) => name + " " + version).join(", ") || "–");
    box.append(html("article", { class: "card" }, html("h3", {}, html("span", { class: "swatch", "aria-hidden": "true", style: { "--colour": colourOf(number) } }), run.label),
      html("p", { class: "result" }, `AP ${plusMinus(run, "ap", 2)} %, AF ${plusMinus(run, "af", 2)} %`),
      html("p", { class: "quiet" }, `${run.protocol.scenario ?? ""} ${run.stream}; tests on ${run.protocol.test_graph === "seen" ? "one graph of all classes seen" : "each task's own graph"}; softmax over ${run.protocol.label_scope === "current" ? "the task's own classes" : run.protocol.label_scope === "seen" ? "the classes seen" : "all classes"}; ${run.protocol.reduction ?? ""} loss`),
      html("details", {}, html("summary", {}, "All settings"), list)));
  });
  tools("protocols", () => {
    const keys = [...new Set(RUNS.flatMap((run) => Object.keys(run.settings)))];
    return [["setting", ...RUNS.map((run) => run.label)], ...keys.map((key) => [key, ...RUNS.map((run) => run.settings[key] ?? "")])];
  });
}

function setTheme() {
  const button = find("theme"), root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", "Switch to " + (dark() ? "light" : "dark") + " colours"); button.setAttribute("aria-pressed", String(dark())); };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();
}

setTheme();
drawNotices();
drawTable();
drawHeatmaps();
drawAnytime();
drawTasks();
drawPlane();
drawLearning();
drawProtocols();
document.documentElement.dataset.ready = "yes";
