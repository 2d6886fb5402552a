"""The report: built from what is on disk, safe, and working in a real browser."""

import csv
import io
import itertools
import json
import re
import shutil
import statistics
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from browser import chromium, look
from evergraph.errors import EvergraphError
from evergraph.evaluation import METRICS, SUMMARIES, Metric, Summary, average_forgetting, average_performance, mean_std
from evergraph.experiments import RunSpec, canvas, plots, report
from evergraph.experiments.report import payload, render, write_report
from evergraph.experiments.report.collect import find_runs, read_runs
from evergraph.experiments.result_file import CELLS, RESULTS, write_results

EVIL = '</script><script>document.title="broken"</script><img src=x onerror=alert(1)>\u2028&"\''
MATRICES = {
    "finetune": [[[90, None, None], [40, 95, None], [10, 30, 85]], [[80, None, None], [50, 85, None], [20, 40, 95]]],
    "curvature": [[[90, None, None], [80, 85, None], [70, 75, 80]], [[92, None, None], [82, 87, None], [72, 77, 82]]],
    "joint": [[[91, None, None], [90, 96, None], [90, 95, 97]], [[93, None, None], [92, 94, None], [92, 93, 95]]],
}
ACCESS = {"keeps": ["statistics", "graphs"], "old_labels": True, "task_identity": False, "transductive": False}


def write_run(folder, method, matrices, *, log=True, **changes):
    """A finished run's folder as `evergraph run` leaves it."""
    folder.mkdir(parents=True)
    seeds = list(range(len(matrices)))
    protocol = {"tasks": len(matrices[0]), "test_graph": "task", "label_scope": "current", "reduction": "sum"}
    protocol |= {"scenario": "class-incremental", "epochs": 4, "lr": 0.001, "batch_size": 128, "fan_out": None}
    result = {
        "stream": "digits",
        "method": method,
        "hyperparameters": {"strength": 0.1},
        "model": {"name": "gcn", "hidden": 64},
        "protocol": protocol | changes.pop("protocol", {}),
        "seeds": seeds,
        "ap": mean_std([average_performance(matrix) for matrix in matrices]),
        "af": mean_std([average_forgetting(matrix) for matrix in matrices]),
        "matrices": matrices,
        "task_classes": [[f"{2 * i}", EVIL if i == 1 else f"{2 * i + 1}"] for i in range(len(matrices[0]))],
        "seconds": 12.5,
        "device": "cpu (1 threads)",
        "versions": {"torch": "2.13.0"},
    } | changes
    (folder / "run.json").write_text("{}")
    (folder / "result.json").write_text(json.dumps(result))
    for seed in seeds if log else ():
        (folder / f"seed-{seed}").mkdir()
        rows = [f"{task},{epoch},{1.5 / epoch + seed / 10},{2 / epoch}" for task in range(3) for epoch in range(1, 5)]
        text = "task,epoch,loss,validation_loss\n" + "\n".join(rows) + "\n"
        (folder / f"seed-{seed}" / "log.csv").write_text(text)
    return folder


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "compare"
    for method, matrices in MATRICES.items():
        write_run(folder / method, method, matrices)
    return folder


def test_the_numbers_are_those_of_the_runs(comparison):
    runs = read_runs(find_runs([comparison])[0])
    assert [run["label"] for run in runs] == ["curvature", "finetune", "joint"]
    for run in runs:
        result = json.loads((comparison / run["method"] / "result.json").read_text())
        assert run["matrices"] == result["matrices"]
        for key in ("ap", "af"):
            assert run["metrics"][key]["mean"] == pytest.approx(result[key]["mean"], rel=1e-5)
            assert run["metrics"][key]["std"] == pytest.approx(result[key]["std"], rel=1e-5)
        assert [curve["seed"] for curve in run["curves"]] == [0, 1]
        assert run["curves"][1]["loss"][:2] == [1.6, 0.85]
        assert run["curves"][0]["task"] == [0] * 4 + [1] * 4 + [2] * 4
    finetune = runs[1]["metrics"]
    assert finetune["ap"]["values"] == pytest.approx([125 / 3, 155 / 3], rel=1e-5)
    assert finetune["learning"]["values"] == pytest.approx([90, 260 / 3], rel=1e-5)


def test_everything_that_the_page_draws_is_computed_in_python(comparison):
    """Against loops: AP after each task, means, spreads and changes since learned, over seeds and for each seed."""
    for run in read_runs(find_runs([comparison])[0]):
        matrices = MATRICES[run["method"]]
        for t in range(3):
            ap = [sum(matrix[t][: t + 1]) / (t + 1) for matrix in matrices]
            assert [curve[t] for curve in run["seed_anytime"]] == pytest.approx(ap, rel=1e-5)
            assert run["anytime"][t]["mean"] == pytest.approx(statistics.mean(ap), rel=1e-5)
            assert run["anytime"][t]["std"] == pytest.approx(statistics.stdev(ap), rel=1e-5)
            for i in range(3):
                if i > t:
                    assert run["mean_matrix"][t][i] is None
                    assert run["mean_change"][t][i] is None
                    continue
                values = [matrix[t][i] for matrix in matrices]
                changes = [matrix[t][i] - matrix[i][i] for matrix in matrices]
                assert run["mean_matrix"][t][i] == pytest.approx(statistics.mean(values), rel=1e-5)
                assert run["spread_matrix"][t][i] == pytest.approx(statistics.stdev(values), rel=1e-5)
                assert [change[t][i] for change in run["changes"]] == changes
                assert run["mean_change"][t][i] == pytest.approx(statistics.mean(changes), rel=1e-5)


def test_runs_of_one_method_are_told_apart(tmp_path):
    for name, changes in {
        "a": {},
        "b": {"hyperparameters": {"strength": 0.5}},
        "c": {"protocol": {"label_scope": "seen"}},
        "d": {},
    }.items():
        write_run(tmp_path / name, "curvature", MATRICES["curvature"], **changes)
    runs = read_runs(find_runs([tmp_path])[0])
    labels = [run["label"] for run in runs]
    assert len(set(labels)) == 4
    assert labels[1] == "curvature (label_scope current, strength 0.5)"
    data = payload(runs)
    assert data["unlike"] == ["protocol.label_scope"]
    assert data["differ"] == ["protocol.label_scope", "hyperparameters.strength"]


def test_other_test_graphs_are_rows_of_their_own(tmp_path):
    other = {"matrices": MATRICES["finetune"], "ap": {}, "af": {}}
    write_run(tmp_path / "run", "ewc", MATRICES["curvature"], also_tested={"seen": other})
    runs = read_runs([tmp_path / "run"])
    assert [run["protocol"]["test_graph"] for run in runs] == ["task", "seen"]
    assert [run["label"] for run in runs] == ["ewc (test_graph task)", "ewc (test_graph seen)"]
    assert runs[1]["metrics"]["ap"]["values"][0] == pytest.approx(125 / 3, rel=1e-5)


def test_streams_tell_runs_apart_without_all_that_follows_from_them(tmp_path):
    for name, tasks in {"digits": 5, "letters": 13}.items():
        protocol = {"stream": name, "tasks": tasks, "classes_per_task": 26 // tasks}
        write_run(tmp_path / name, "ewc", MATRICES["joint"], stream=name, protocol=protocol)
    runs = read_runs(find_runs([tmp_path])[0])
    assert [run["label"] for run in runs] == ["ewc (stream digits)", "ewc (stream letters)"]
    assert payload(runs)["unlike"] == ["stream", "protocol.tasks", "protocol.classes_per_task"]


def test_another_model_is_named_without_the_settings_that_only_one_has(tmp_path):
    write_run(tmp_path / "a", "ewc", MATRICES["joint"])
    write_run(tmp_path / "b", "auto", MATRICES["joint"], model={"name": "random-features", "hidden": 64, "blocks": 3})
    assert payload(read_runs(find_runs([tmp_path])[0]))["unlike"] == ["model.name"]


def results_file(folder, names=("finetune", "joint"), prefix="", **changes):
    """A folder with a results file, as `compare` and `paper` leave it, and the folders of its cells."""
    keys = {f"{prefix}{name}": name for name in names}
    top = folder.parents[prefix.count("/") - 1] if prefix else folder
    for key, name in keys.items():
        write_run(top / CELLS / key, name, MATRICES[name], **changes)
    results = {key: json.loads((top / CELLS / key / "result.json").read_text()) for key in keys}
    folder.mkdir(parents=True, exist_ok=True)
    write_results(folder, {key: RunSpec("digits", method=name) for key, name in keys.items()}, results)
    return top


def test_a_results_file_alone_makes_a_report(tmp_path, evergraph):
    results_file(tmp_path)
    beside = read_runs(find_runs([tmp_path])[0])
    shutil.rmtree(tmp_path / CELLS)
    alone = read_runs(find_runs([tmp_path])[0])
    assert [run["label"] for run in alone] == ["finetune", "joint"]
    assert [len(run["curves"]) for run in beside] == [2, 2]
    assert [len(run["curves"]) for run in alone] == [0, 0]
    assert alone[0]["folder"] == f"{tmp_path / RESULTS}: finetune"
    for with_cells, without in zip(beside, alone):
        assert with_cells["metrics"] == without["metrics"]
        assert with_cells["matrices"] == without["matrices"] == MATRICES[without["method"]]
    status, printed, _ = evergraph("report", tmp_path, "--json")
    assert status == 0
    said = json.loads(printed)
    assert said["report"] == str(tmp_path / "report.html")
    assert {name.split("/")[-1].split(".")[0] for name in said["figures"]} == {"heatmaps", "tasks", "anytime", "plane"}
    data = json.loads(Scripts((tmp_path / "report.html").read_text()).scripts[0])
    assert [run["label"] for run in data["runs"]] == ["finetune", "joint"]


def test_results_files_further_down_and_cells_further_up(tmp_path, monkeypatch):
    folder = tmp_path / "out" / "best" / "cs"
    top = results_file(folder, prefix="best/cs/")
    for path in (folder, top):  # the protocol's own folder, and that of the whole experiment: no run twice
        finished, unfinished = find_runs([path])
        assert (finished, unfinished) == ([folder], [])
        assert [(run["label"], len(run["curves"])) for run in read_runs(finished)] == [("finetune", 2), ("joint", 2)]
    monkeypatch.chdir(folder)
    assert [len(run["curves"]) for run in read_runs(find_runs(["."])[0])] == [2, 2]
    shutil.rmtree(top / CELLS)
    assert [run["label"] for run in read_runs(find_runs([top])[0])] == ["finetune", "joint"]


def test_runs_that_the_results_file_does_not_list(tmp_path):
    results_file(tmp_path)
    write_run(tmp_path / CELLS / "curvature", "curvature", MATRICES["curvature"])
    (tmp_path / CELLS / "mas").mkdir()
    (tmp_path / CELLS / "mas" / "run.json").write_text("{}")
    finished, unfinished = find_runs([tmp_path, tmp_path / CELLS / "joint"])
    assert unfinished == [tmp_path / CELLS / "mas"]
    assert [run["label"] for run in read_runs(finished)] == ["finetune", "joint", "curvature"]


def test_damaged_results_files(tmp_path, evergraph):
    (tmp_path / RESULTS).write_text("")
    assert "holds no run" in bad(evergraph, "report", tmp_path)
    (tmp_path / RESULTS).write_text('{"key": "a", "spec": {}, "result": {"stream": "digits", "method": "ewc"}}\n')
    assert "has no protocol, seeds, matrices" in bad(evergraph, "report", tmp_path)
    (tmp_path / RESULTS).write_text('{"key": ')
    assert "is damaged" in bad(evergraph, "report", tmp_path)


@pytest.fixture
def worst_task():
    """A summary as another package would register it."""
    summary = Summary("worst", "Worst task", "The lowest value after the last task.", lambda matrix: min(matrix[-1]))
    yield SUMMARIES.register(summary)
    SUMMARIES.remove("worst")


def test_a_registered_summary_is_in_the_data(comparison, worst_task):
    data = payload(read_runs(find_runs([comparison])[0]))
    assert [summary["name"] for summary in data["summaries"]] == ["ap", "af", "anytime", "learning", "worst"]
    assert data["summaries"][-1] == {"name": "worst", "title": "Worst task", "about": worst_task.about}
    assert [run["metrics"]["worst"]["values"] for run in data["runs"]] == [[70, 72], [10, 20], [90, 92]]


def test_a_summary_that_only_the_results_know_is_kept(tmp_path):
    recorded = {"ap": {"mean": 0, "std": 0, "values": [0, 0]}, "theirs": {"mean": 3, "std": 1, "values": [2, 4]}}
    write_run(tmp_path / "a", "ewc", MATRICES["joint"], metrics=recorded)
    write_run(tmp_path / "b", "mas", MATRICES["joint"])
    data = payload(read_runs(find_runs([tmp_path])[0]))
    assert [summary["name"] for summary in data["summaries"]][-1] == "theirs"
    assert data["runs"][0]["metrics"]["theirs"] == recorded["theirs"]
    assert data["runs"][0]["metrics"]["ap"]["mean"] == pytest.approx(mean_std([94, 280 / 3])["mean"], rel=1e-5)


def test_what_a_method_keeps_is_in_the_data(tmp_path):
    write_run(tmp_path / "a", "auto", MATRICES["joint"], access=ACCESS, kept_bytes=[[10, 20, 3000], [10, 20, 2000]])
    write_run(tmp_path / "b", "finetune", MATRICES["finetune"], access={**ACCESS, "keeps": [], "old_labels": False})
    write_run(tmp_path / "c", "old", MATRICES["joint"])  # version 0.1 recorded neither
    runs = read_runs(find_runs([tmp_path])[0])
    assert [run["access"].get("keeps") for run in runs] == ["statistics, graphs", "nothing", None]
    assert [run["access"].get("old_labels") for run in runs] == ["yes", "no", None]
    assert [run["kept_bytes"] for run in runs] == [3000, None, None]


@pytest.fixture
def error_metric():
    """A metric in no percent, where lower is better."""
    yield METRICS.register(Metric("error", "squared error", lambda outputs, targets, units: 0.0, False))
    METRICS.remove("error")


def test_the_metric_and_its_scale(tmp_path, error_metric):
    accuracies = read_runs([write_run(tmp_path / "a", "ewc", MATRICES["joint"])])
    data = payload(accuracies)
    assert (data["metric"]["title"], data["scale"]) == ("accuracy (%)", (0, 100))
    balanced = [write_run(tmp_path / "b", "ewc", MATRICES["joint"], protocol={"metric": "balanced-accuracy"})]
    data = payload(read_runs(balanced))
    assert (data["metric"]["quantity"], data["metric"]["unit"]) == ("balanced accuracy", "%")
    small = [[[0.5, None], [1.5, 0.25]]]
    errors = read_runs([write_run(tmp_path / "c", "ewc", small, log=False, protocol={"metric": "error"})])
    data = payload(errors)
    assert (data["metric"]["title"], data["metric"]["unit"], data["scale"]) == ("squared error", "", (0.25, 1.5))
    assert data["metric"]["higher_is_better"] is False
    mixed = payload([*accuracies, *errors])
    assert (mixed["metric"]["title"], mixed["metric"]["higher_is_better"]) == ("metric", None)
    assert "protocol.metric" in mixed["unlike"]
    assert [run["scale"] for run in mixed["runs"]] == [(0, 100), (0.25, 1.5)]


class Scripts(HTMLParser):
    """What a parser makes of a page: its elements, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self._open = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open = tag == "script"
        if self._open:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._open = False

    def handle_data(self, data):
        if self._open:
            self.scripts[-1] += data


def test_no_name_can_become_markup(comparison):
    runs = read_runs(find_runs([comparison])[0])
    for run in runs:
        run["stream"], run["label"] = EVIL, EVIL
    page = Scripts(render(payload(runs)))
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert json.loads(page.scripts[0])["runs"][0]["label"] == EVIL


def test_the_page_asks_the_network_for_nothing(comparison):
    text = render(payload(read_runs(find_runs([comparison])[0])))
    page = Scripts(text)
    for _, attributes in page.elements:
        for key in ("src", "href"):
            assert attributes.get(key, "#").startswith(("#", "data:,"))
    addresses = set(re.findall(r"https?://[^\s\"'`<>)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a place
    policy = next(
        a["content"] for tag, a in page.elements if tag == "meta" and "content-security-policy" in str(a).lower()
    )
    assert policy.startswith("default-src 'none'")


def test_figures_as_png_and_pdf(comparison, tmp_path):
    written = write_report([comparison], tmp_path / "page.html")
    names = {
        f"{name}.{kind}" for name in ("heatmaps", "tasks", "anytime", "plane", "learning") for kind in ("png", "pdf")
    }
    assert {path.name for path in written.figures} == names
    for path in written.figures:
        start = {".png": b"\x89PNG", ".pdf": b"%PDF"}[path.suffix]
        content = path.read_bytes()
        assert content.startswith(start)
        assert len(content) > 5000


def test_single_runs_one_task_and_no_log(tmp_path):
    write_run(tmp_path / "one", "ewc", [[[50.0]]], log=False)
    written = write_report([tmp_path / "one"])
    assert written.page == tmp_path / "one" / "report.html"
    assert {path.stem for path in written.figures} == {"heatmaps", "tasks", "anytime", "plane"}


def bad(evergraph, *words):
    status, printed, said = evergraph(*words)
    assert status == 2
    assert printed == ""
    assert said.count("\n") == 1
    return said


def test_bad_input(comparison, tmp_path, evergraph):
    assert "no folder" in bad(evergraph, "report", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "holds no run" in bad(evergraph, "report", tmp_path / "empty")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text("{}")
    assert "not finished" in bad(evergraph, "report", tmp_path / "half")
    assert "only runs that are not finished" in bad(evergraph, "report", tmp_path)
    (tmp_path / "half" / "result.json").write_text('{"matrices": []')
    assert "damaged" in bad(evergraph, "report", tmp_path / "half")
    assert "end it in .html" in bad(evergraph, "report", comparison, "--out", tmp_path / "page.pdf")
    (tmp_path / "file").write_text("")
    assert "cannot write" in bad(evergraph, "report", comparison, "--out", tmp_path / "file" / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "half"]


def test_unfinished_runs_of_a_comparison_are_named(comparison, tmp_path):
    write_run(tmp_path / "ewc", "ewc", MATRICES["joint"])
    (tmp_path / "mas").mkdir()
    (tmp_path / "mas" / "run.json").write_text("{}")
    written = write_report([tmp_path], figures=False)
    assert written.unfinished == [tmp_path / "mas"]
    assert json.dumps(str(tmp_path / "mas")) in written.page.read_text()
    with pytest.raises(EvergraphError, match="no run named"):
        write_report([])


def test_compare_writes_the_report(tmp_path, monkeypatch, evergraph):
    monkeypatch.setattr(report, "FIGURES", {"plane": report.FIGURES["plane"]})
    words = ["compare", "sbm:nodes=120,classes=4,features=8", "--methods", "finetune,ewc", "--seeds", "2"]
    words += ["--epochs", "1", "--hidden", "8", "--device", "cpu", "--out", str(tmp_path / "c"), "--json"]
    status, printed, _ = evergraph(*words)
    assert status == 0
    said = json.loads(printed)
    assert said["report"] == str(tmp_path / "c" / "report.html")
    data = json.loads(Scripts((tmp_path / "c" / "report.html").read_text()).scripts[0])
    assert [run["label"] for run in data["runs"]] == ["finetune", "ewc"]
    assert data["runs"][0]["metrics"]["ap"]["mean"] == pytest.approx(said["results"][0]["ap"]["mean"], rel=1e-5)
    assert (tmp_path / "c" / "figures" / "plane.pdf").exists()


# in a real browser


@pytest.fixture(scope="module")
def opened(comparison, tmp_path_factory):
    """The page in a browser, with the folder its downloads go to."""
    downloads = tmp_path_factory.mktemp("downloads")
    page = write_report([comparison], figures=False).page
    with chromium(tmp_path_factory.mktemp("profile"), downloads) as browser:
        look(browser, 1280)
        browser.get(page.as_uri())
        yield browser, downloads


def run_js(browser, text, *values):
    return browser.execute_script(text, *values)


def no_errors(browser):
    messages = [entry for entry in browser.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}]
    assert messages == []


def test_it_loads_without_errors_and_without_the_network(opened, comparison):
    browser, _ = opened
    assert run_js(browser, "return document.documentElement.dataset.ready") == "yes"
    assert browser.title == "Evergraph report: digits"
    no_errors(browser)
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"}
    # a new browser shows a page of its own first, made of parts of its own (chrome://)
    assert {a for a in asked if not a.startswith(("data:", "chrome"))} == {(comparison / "report.html").as_uri()}
    counts = run_js(
        browser,
        "return ['#table tbody tr', '#heatmap-panels figure', '#heatmap-panels .cell', '#task-panels svg',"
        "'#plane-figure .mark', '#learning-panels svg', '#protocol-cards article', '.whisker']"
        ".map((name) => document.querySelectorAll(name).length)",
    )
    assert counts == [3, 3, 18, 3, 3 + 3, 3, 3, 6]  # the plane's legend has its marks too


def test_the_heatmap_answers_to_pointer_and_keyboard(opened):
    from selenium.webdriver import ActionChains, Keys

    browser, _ = opened
    figure = browser.find_element("css selector", "#heatmap-panels figure[data-run='1']")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", figure)
    time.sleep(0.1)
    cell = figure.find_element("css selector", ".cell[data-row='2'][data-column='0']")
    tip = browser.find_element("id", "tip")
    assert not tip.is_displayed()
    ActionChains(browser).move_to_element(cell).perform()
    assert tip.is_displayed()
    assert tip.text == "After task 3, task 1 (0, 1)\n15.0 ± 7.1 %, −70.0 since it was learned"
    assert figure.find_element("css selector", ".readout").text == tip.text.replace("\n", ": ")
    ActionChains(browser).move_to_element(browser.find_element("tag name", "h1")).perform()
    assert not tip.is_displayed()
    # the keyboard: one tab stop per heatmap, arrows inside it
    first = figure.find_element("css selector", ".cell[tabindex='0']")
    assert len(figure.find_elements("css selector", ".cell[tabindex='0']")) == 1
    browser.execute_script("arguments[0].focus()", first)
    ActionChains(browser).send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT).perform()
    here = browser.switch_to.active_element
    assert (here.get_attribute("data-row"), here.get_attribute("data-column")) == ("1", "1")
    assert EVIL.split("\u2028")[0] in here.get_attribute("aria-label")  # an evil name is a name
    assert "90.0 ± 7.1 %, just learned" in tip.text
    ActionChains(browser).send_keys(Keys.ARROW_UP).perform()  # nothing above the diagonal
    assert browser.switch_to.active_element == here
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()
    no_errors(browser)


def test_single_seeds_and_the_change_since_learned(opened):
    from selenium.webdriver.support.ui import Select

    browser, _ = opened
    view, seed = (Select(node) for node in browser.find_elements("css selector", "#heatmap-controls select"))
    text = "return [...document.querySelectorAll(\"figure[data-run='1'] .value\")].map((node) => node.textContent)"
    assert run_js(browser, text) == ["85", "45", "90", "15", "35", "90"]
    seed.select_by_value("0")
    assert run_js(browser, text) == ["90", "40", "95", "10", "30", "85"]
    view.select_by_value("change")
    assert run_js(browser, text) == ["0", "−50", "0", "−80", "−65", "0"]
    view.select_by_value("value")
    seed.select_by_value("mean")


def column(browser, number):
    return run_js(
        browser,
        "return [...document.querySelectorAll('#table tbody tr')]"
        ".map((row) => row.children[arguments[0]].innerText.trim())",
        number,
    )


def click(browser, element):
    """A click where the element is, whatever has been scrolled over it."""
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].click()", element)


def test_sorting(opened):
    from selenium.webdriver import Keys

    browser, _ = opened
    heads = browser.find_elements("css selector", "#table thead th")
    assert heads[1].get_attribute("aria-sort") == "descending"  # highest AP first
    assert column(browser, 0) == ["joint", "curvature", "finetune"]
    click(browser, heads[1].find_element("tag name", "button"))
    assert column(browser, 0) == ["finetune", "curvature", "joint"]
    assert heads[1].get_attribute("aria-sort") == "ascending"
    heads[0].find_element("tag name", "button").send_keys(Keys.ENTER)
    assert column(browser, 0) == ["curvature", "finetune", "joint"]
    assert heads[1].get_attribute("aria-sort") is None
    click(browser, heads[2].find_element("tag name", "button"))
    assert [text.split(" ")[0] for text in column(browser, 2)] == ["−1.0", "−15.0", "−62.5"]
    shared = browser.find_element("id", "shared").text
    assert "label scope current" in shared
    assert "test graph task" in shared


def downloaded(folder, name):
    path = folder / name
    for _ in range(100):
        if path.exists() and path.stat().st_size:
            return path.read_text(encoding="utf-8")
        time.sleep(0.05)
    raise AssertionError(f"{name} was not downloaded")


def test_downloads(opened):
    browser, folder = opened
    for button in browser.find_elements("css selector", "[data-save]"):
        browser.execute_script("arguments[0].click()", button)
    rows = list(csv.DictReader(io.StringIO(downloaded(folder, "evergraph-heatmaps.csv"))))
    wanted = [row["accuracy"] for row in rows if (row["run"], row["seed"], row["after_task"]) == ("finetune", "1", "3")]
    assert wanted == ["20", "40", "95"]
    assert {row["classes"] for row in rows if row["task"] == "2"} == {f"2, {EVIL}"}
    table = list(csv.DictReader(io.StringIO(downloaded(folder, "evergraph-compare.csv"))))
    assert {row["run"]: float(row["ap_mean"]) for row in table}["curvature"] == pytest.approx(76)
    assert table[0]["protocol.label_scope"] == "current"
    for name in ("over-time", "plane", "learning", "protocols"):
        assert len(downloaded(folder, f"evergraph-{name}.csv").splitlines()) > 3
    for name in ("heatmaps", "over-time", "plane", "learning"):
        picture = ElementTree.fromstring(downloaded(folder, f"evergraph-{name}.svg"))
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        text = ElementTree.tostring(picture, encoding="unicode")
        assert "var(--" not in text  # colours are written out
        assert len(list(picture.iter("{http://www.w3.org/2000/svg}text"))) > 5
    no_errors(browser)


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    """Opens a page made from the runs in a folder, with its data changed before it is written."""
    folder = tmp_path_factory.mktemp("visits")
    with chromium(folder / "profile", folder / "downloads") as browser:
        look(browser, 1280)

        def open_page(runs, change=lambda data: None):
            data = payload(read_runs(find_runs([runs])[0]))
            change(data)
            (folder / "page.html").write_text(render(data), encoding="utf-8")
            browser.get((folder / "page.html").as_uri())
            assert run_js(browser, "return document.documentElement.dataset.ready") == "yes"
            no_errors(browser)
            return browser

        yield open_page


def labels(browser, selector):
    return run_js(
        browser,
        "return [...document.querySelectorAll(arguments[0])].map((node) => node.getAttribute('aria-label'))",
        selector,
    )


def table(browser):
    """The comparison as a dictionary per run."""
    heads, *rows = run_js(
        browser,
        "return [...document.querySelectorAll('#table tr')]"
        ".map((row) => [...row.children].map((cell) => cell.innerText.trim()))",
    )
    return {row[0]: dict(zip(heads, row)) for row in rows}


def signed(value):
    return f"{value:.1f}".replace("-", "−")


def test_the_numbers_on_the_page_are_pythons(visit, comparison):
    browser = visit(comparison)
    shown = labels(browser, "#anytime .hit")
    rows = table(browser)
    for run in read_runs(find_runs([comparison])[0]):
        name, matrices = run["label"], MATRICES[run["method"]]
        for t in range(3):
            ap = mean_std([average_performance(matrix, t) for matrix in matrices])
            assert f"{name}, after task {t + 1}, AP {ap['mean']:.1f} ± {ap['std']:.1f} %" in shown
        for key, function in {"AP": average_performance, "AF": average_forgetting}.items():
            found = mean_std([function(matrix) for matrix in matrices])
            assert rows[name][key].removeprefix("★ ") == f"{signed(found['mean'])} ± {signed(found['std'])}"
        number = ["curvature", "finetune", "joint"].index(name)
        cells = labels(browser, f"#heatmap-panels figure[data-run='{number}'] .cell")
        values = {(t, i): [matrix[t][i] for matrix in matrices] for t in range(3) for i in range(t + 1)}
        for text, ((t, i), seeds) in zip(cells, values.items(), strict=True):
            found = mean_std(seeds)
            change = found["mean"] - statistics.mean(values[i, i])
            assert f", {found['mean']:.1f} ± {found['std']:.1f} %" in text
            sign = "+" if f"{change:.1f}" not in {"0.0", "-0.0"} and change > 0 else ""
            assert text.endswith("just learned" if i == t else f", {sign}{signed(change)} since it was learned")


def test_the_page_reads_results_and_knows_no_formula(visit, comparison):
    def change(data):
        run = data["runs"][0]
        run["anytime"][1] = {"mean": 12.3, "std": 4.5}
        run["mean_matrix"][2][0], run["spread_matrix"][2][0], run["mean_change"][2][0] = 6.5, 0.25, -1.5
        run["metrics"]["af"] |= {"mean": 77.7, "std": 8.8}

    browser = visit(comparison, change)
    assert "curvature, after task 2, AP 12.3 ± 4.5 %" in labels(browser, "#anytime .hit")
    cell = labels(browser, "#heatmap-panels figure[data-run='0'] .cell[data-row='2'][data-column='0']")
    assert cell == ["After task 3, task 1 (0, 1), 6.5 ± 0.3 %, −1.5 since it was learned"]
    assert table(browser)["curvature"]["AF"] == "77.7 ± 8.8"


def test_a_registered_summary_has_its_column(visit, comparison, worst_task):
    browser = visit(comparison)
    assert {name: row["Worst task"] for name, row in table(browser).items()} == {
        "joint": "91.0 ± 1.4",
        "curvature": "71.0 ± 1.4",
        "finetune": "15.0 ± 7.1",
    }
    run_js(browser, "document.querySelector('details.help').open = true")
    text = browser.find_element("id", "summaries").text
    for summary in SUMMARIES.values():
        assert summary.title in text
        assert summary.about in text
    heads = browser.find_elements("css selector", "#table thead button")
    assert next(head for head in heads if head.text.startswith("Worst task")).get_attribute("title") == worst_task.about


def test_what_a_method_keeps_stands_beside_its_numbers(visit, tmp_path):
    kept = {
        "kept_bytes": [[1, 2, 420_618_456], [1, 2, 420_000_000]],
        "access": {**ACCESS, "keeps": ["statistics", "prototypes"]},
    }
    write_run(tmp_path / "auto", "auto", MATRICES["joint"], **kept)
    nothing = {"keeps": [], "old_labels": False, "task_identity": False, "transductive": False}
    write_run(tmp_path / "finetune", "finetune", MATRICES["finetune"], access=nothing, kept_bytes=[[0, 0, 0]] * 2)
    write_run(tmp_path / "old", "old", MATRICES["curvature"])
    browser = visit(tmp_path)
    rows = table(browser)
    columns = ("Keeps", "Bytes kept", "Old labels", "Task identity")
    assert [rows["auto"][key] for key in columns] == ["statistics, prototypes", "420.6 MB", "yes", "no"]
    assert [rows["finetune"][key] for key in columns] == ["nothing", "0 B", "no", "no"]
    assert [rows["old"][key] for key in columns] == ["–", "–", "–", "–"]
    assert "420,618,456 bytes" in run_js(browser, "return document.querySelector('#table').outerHTML")
    cards = run_js(
        browser, "return [...document.querySelectorAll('#protocol-cards article')].map((c) => c.textContent)"
    )
    assert "keeps statistics, prototypes (420.6 MB)" in cards[0]
    assert "bytes kept420,618,456 after the last task" in cards[0]
    assert "transductiveno" in cards[0]
    assert "; keeps" not in cards[2]
    assert "What it keeps" not in cards[2]
    run_js(browser, "document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    look(browser, 390, phone=True)
    time.sleep(0.2)
    assert run_js(browser, OVERFLOW) == []
    assert run_js(browser, CONTRAST) == []
    look(browser, 1280)


def test_runs_that_say_nothing_of_what_they_keep_have_no_such_columns(visit, comparison):
    heads = next(iter(table(visit(comparison)).values()))
    assert list(heads) == ["Run", "AP", "AF", "Anytime", "When learned", "Seconds"]


def test_another_metric_labels_axes_and_heatmaps(visit, tmp_path, error_metric):
    rows = {"good": [[[0.5, None], [0.75, 0.25]]], "poor": [[[0.5, None], [1.5, 0.25]]]}
    for name, matrices in rows.items():
        write_run(tmp_path / name, name, matrices, log=False, protocol={"metric": "error"})
    browser = visit(tmp_path)
    assert browser.find_element("id", "heatmaps-title").text == "Squared error matrices"
    texts = {selector: browser.find_element("css selector", selector).text for selector in
             ("#anytime svg", "#task-panels svg", "#heatmap-panels svg", "#scale")}  # fmt: skip
    assert "AP: squared error" in texts["#anytime svg"]
    assert "squared error" in texts["#task-panels svg"]
    assert "squared error on task" in texts["#heatmap-panels svg"]
    assert texts["#scale"].split() == ["0.25", "1.50"]
    assert "%" not in "".join(texts.values())
    assert list(table(browser)) == ["good", "poor"]  # the lower error comes first
    assert table(browser)["good"]["AP"] == "0.50"
    assert browser.find_element("css selector", ".best").text.endswith("0.50")


def test_heatmaps_of_each_metric_have_their_own_scale(visit, tmp_path, error_metric):
    write_run(tmp_path / "a", "ewc", MATRICES["joint"], stream="a", log=False)
    errors = {"stream": "b", "protocol": {"metric": "error"}, "log": False}
    write_run(tmp_path / "b", "ewc", [[[0.5, None], [1.5, 0.25]]], **errors)
    browser = visit(tmp_path)
    scale = browser.find_element("id", "scale").text
    assert " ".join(scale.split()) == "accuracy: 0 % 100 % squared error: 0.25 1.50"
    own = "#heatmap-panels figure[data-run='1'] .cell"
    cells = [browser.find_element("css selector", f"{own}[data-row='1'][data-column='{i}']") for i in (0, 1)]
    assert [cell.get_attribute("fill") for cell in cells] == ["rgb(254,232,56)", "rgb(0,34,78)"]  # both ends
    assert labels(browser, f"{own}[data-row='1'][data-column='1']")[0].endswith(", 0.25, just learned")
    assert [row["AP"].split()[0] for row in table(browser).values()][-1] == "0.88"


def two_metrics(folder):
    """A run in percent and one of small errors, with what they keep."""
    kept = {"kept_bytes": [[100, 200]], "log": False}
    write_run(folder / "a", "ewc", [[[90, None], [80, 95]]], stream="a", **kept)
    write_run(folder / "b", "ewc", [[[0.5, None], [0.75, 0.25]]], stream="b", protocol={"metric": "error"}, **kept)


def test_a_panel_of_bytes_has_the_scale_of_its_metric(visit, tmp_path, error_metric):
    two_metrics(tmp_path)
    browser = visit(tmp_path)
    axes = [
        [text.text for text in figure.find_elements("css selector", "svg text")]
        for figure in browser.find_elements("css selector", "#cost-panels figure")
    ]
    assert ["AP: accuracy (%)" in axis for axis in axes] == [True, False]
    assert ["AP: squared error" in axis for axis in axes] == [False, True]
    assert "80" not in axes[1]


def test_figures_have_a_scale_for_each_metric(tmp_path, error_metric):
    two_metrics(tmp_path)
    runs = read_runs(find_runs([tmp_path])[0])
    titles = ["accuracy (%)", "squared error"]
    assert [axis.get_ylabel() for axis in plots.draw_tasks(runs).axes] == titles
    assert [axis.get_ylim()[1] < 2 for axis in plots.draw_tasks(runs).axes] == [False, True]
    assert [axis.get_ylabel() for axis in plots.draw_cost(runs).axes] == [f"AP: {title}" for title in titles]


def test_the_page_names_the_metric_of_methods_and_streams(visit, tmp_path, error_metric):
    for stream in ("a", "b"):
        errors = {"stream": stream, "protocol": {"metric": "error"}, "log": False}
        write_run(tmp_path / stream, "ewc", [[[0.5, None], [0.75, 0.25]]], **errors)
    text = visit(tmp_path).find_element("id", "streams-table").text
    assert "AP: squared error, lower is better. ★ best" in text
    assert "0.50" in text
    write_run(tmp_path / "c", "ewc", MATRICES["joint"], stream="c", log=False)
    text = visit(tmp_path).find_element("id", "streams-table").text
    titles = "squared error, lower is better; accuracy (%)"
    assert text == f"No table of methods and streams: metrics differ ({titles})."


def test_seeds_with_other_classes_in_a_task_have_their_own_labels(visit, tmp_path):
    from selenium.webdriver.support.ui import Select

    orders = [[["a"], ["b"], ["c"]], [["c"], ["a"], ["b"]]]
    changes = {"protocol": {"order": "random"}, "task_classes": [], "seed_task_classes": orders}
    write_run(tmp_path / "run", "ewc", MATRICES["finetune"], **changes)
    browser = visit(tmp_path)
    selector = "#heatmap-panels .cell[data-row='2'][data-column='0']"
    assert labels(browser, selector) == ["After task 3, task 1, 15.0 ± 7.1 %, −70.0 since it was learned"]
    seed = Select(browser.find_elements("css selector", "#heatmap-controls select")[1])
    seed.select_by_value("1")
    assert labels(browser, selector) == ["After task 3, task 1 (c), 20.0 %, −60.0 since it was learned"]
    seed.select_by_value("0")
    assert labels(browser, selector) == ["After task 3, task 1 (a), 10.0 %, −80.0 since it was learned"]


def test_a_random_order_of_an_earlier_version_is_the_first_seeds_alone(tmp_path):
    for order in ("random", "random:1"):
        write_run(tmp_path / order, "ewc", MATRICES["finetune"], task_classes=[["a"], ["b"], ["c"]],
                  protocol={"order": order})  # fmt: skip
    unlike, alike = (read_runs([tmp_path / order])[0] for order in ("random", "random:1"))
    assert (unlike["tasks"], unlike["seed_tasks"]) == ([""] * 3, [["a", "b", "c"], [""] * 3])
    assert (alike["tasks"], alike["seed_tasks"]) == (["a", "b", "c"], [["a", "b", "c"]] * 2)


OVERFLOW = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll('body *')].filter((node) => {
  if (node.closest('.scroll, nav, .skip, .unseen, #tip')) return false;
  const box = node.getBoundingClientRect();
  return box.width && (box.right > wide + 1 || box.left < -1);
}).map((node) => node.outerHTML.slice(0, 80));
"""
CONTRAST = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const linear = (v) => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const ground = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const kinds = 'h1, h2, h3, p, td, th, a, button, summary, small, dt, dd, label, svg text:not(.value)';
return [...document.querySelectorAll(kinds)]
  .filter((node) => node.getBoundingClientRect().width && node.textContent.trim())
  .map((node) => {
    const style = getComputedStyle(node), ink = parse(node.namespaceURI.includes('svg') ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(node))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), node.outerHTML.slice(0, 80)];
  }).filter(([ratio]) => ratio < 4.5);
"""


@pytest.mark.parametrize("width", [1280, 375, 320])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_phones_and_dark_mode(opened, width, dark):
    browser, _ = opened
    look(browser, width, dark=dark, phone=width < 500)
    time.sleep(0.2)
    assert run_js(browser, "return document.documentElement.scrollWidth") <= width
    assert run_js(browser, OVERFLOW) == []
    assert run_js(browser, CONTRAST) == []
    ground = run_js(browser, "return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark
    no_errors(browser)


def test_colours_can_be_switched_by_hand(opened):
    browser, _ = opened
    look(browser, 1280)
    run_js(browser, "window.scrollTo({top: 0, behavior: 'instant'})")
    button = browser.find_element("id", "theme")
    before = run_js(browser, "return getComputedStyle(document.body).backgroundColor")
    button.click()
    assert run_js(browser, "return getComputedStyle(document.body).backgroundColor") != before
    assert button.get_attribute("aria-label") == "Switch to light colours"
    button.click()
    assert run_js(browser, "return getComputedStyle(document.body).backgroundColor") == before


def test_everything_has_a_name(opened):
    browser, _ = opened
    nameless = run_js(
        browser,
        "return [...document.querySelectorAll('button, select, [tabindex], svg[role], figure > svg')]"
        ".filter((node) => !(node.ariaLabel || node.textContent.trim() || node.labels?.length))"
        ".map((node) => node.outerHTML.slice(0, 90))",
    )
    assert nameless == []
    headings = run_js(
        browser, "return [...document.querySelectorAll('h1, h2, h3')].map((node) => Number(node.tagName[1]))"
    )
    assert headings[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))


def measured(stream, test_graph, kept, *, leak=None, read="neighbours"):
    """What sets apart the runs of a table over streams, test graphs and budgets."""
    score = None if leak is None else {"mean": leak, "std": 1.0, "values": [leak - 1, leak + 1], "chance": 20.0}
    kept_bytes = [[kept // 2, kept, kept]] * 2
    access = {**ACCESS, "keeps": ["statistics"]}  # who keeps old data has no star
    changes = {"stream": stream, "kept_bytes": kept_bytes, "access": access, "leak": score, "test_nodes_read": read}
    return {**changes, "protocol": {"test_graph": test_graph}, "hyperparameters": {"memory": kept}}


@pytest.fixture
def table_of_budgets(tmp_path):
    """Two streams, two test graphs, one method at two budgets and one that keeps nothing."""
    for stream, graph in itertools.product(("digits", "sbm"), ("task", "node")):
        for method, kept in (("finetune", 0), ("curvature", 2_000), ("curvature", 3_000_000)):
            changes = measured(stream, graph, kept, leak={"task": 100.0, "node": 70.0}[graph])
            write_run(tmp_path / f"{stream}-{graph}-{method}-{kept}", method, MATRICES[method], **changes)
    return tmp_path


def test_a_table_over_streams_test_graphs_and_budgets_has_a_panel_for_each(visit, table_of_budgets):
    browser = visit(table_of_budgets)
    panels = run_js(browser, "return [...document.querySelectorAll('#cost-panels figure')].map((f) => f.textContent)")
    assert len(panels) == 4
    assert (
        sum("digits, test graph node" in text and "leak score 70.0 ± 1.0 (chance 20.0)" in text for text in panels) == 1
    )
    marks = run_js(browser, "return [...document.querySelectorAll('#cost-panels figure')]"
                            ".map((f) => f.querySelectorAll('.mark').length)")  # fmt: skip
    assert marks == [3] * 4
    # further right is more, by the logarithm: 2,000 stands between nothing and 3,000,000
    places = run_js(browser, "return [...document.querySelector('#cost-panels figure').querySelectorAll('.hit')]"
                             ".map((h) => [h.getAttribute('aria-label'), Number(h.getAttribute('cx'))])")  # fmt: skip
    at = {next(key for key in ("(0 B)", "(2.0 kB)", "(3.0 MB)") if key in text): x for text, x in places}
    assert at["(0 B)"] < at["(2.0 kB)"] < at["(3.0 MB)"]
    assert run_js(browser, "return document.querySelectorAll('#cost-panels path.line').length") == 4
    # the table: bytes, leak and what is read sort and are there; the best of each stream and test graph has a star
    rows = run_js(browser, "return [...document.querySelectorAll('#table tbody tr')].map((r) => r.textContent)")
    assert len(rows) == 12
    assert (
        run_js(browser, "return document.querySelectorAll('#table .best').length") == 8
    )  # two settings are equally good
    heads = {head.text.split()[0]: head for head in browser.find_elements("css selector", "#table thead button")}
    assert {"Keeps", "Bytes", "Seconds", "Leak", "Other"} <= heads.keys()
    browser.execute_script("arguments[0].click()", heads["Bytes"])  # wherever it stands on the page
    first = run_js(browser, "return document.querySelector('#table tbody tr').textContent")
    assert "3.0 MB" in first
    browser.execute_script("arguments[0].click()", heads["Leak"])  # wherever it stands on the page
    assert "100.0 ± 1.0" in run_js(browser, "return document.querySelector('#table tbody tr').textContent")
    # a filter leaves one stream, and one test graph of it
    choose = ("const box = document.querySelectorAll('#table-controls select')[arguments[0]];"
              "box.value = arguments[1]; box.dispatchEvent(new Event('change'));"
              "return [...document.querySelectorAll('#table tbody tr')].filter((r) => !r.hidden).length")  # fmt: skip
    assert browser.execute_script(choose, 0, "digits") == 6
    assert browser.execute_script(choose, 1, "node") == 3
    assert browser.execute_script(choose, 0, "") == 6
    look(browser, 390, phone=True)
    time.sleep(0.2)
    assert run_js(browser, OVERFLOW) == []
    assert run_js(browser, CONTRAST) == []
    look(browser, 1280)


def test_the_picture_of_bytes_is_drawn_too(table_of_budgets):
    runs = read_runs(find_runs([table_of_budgets])[0])
    drawn = plots.draw("cost", runs, table_of_budgets)
    assert [path.name for path in drawn] == ["cost.png", "cost.pdf"]
    figure = plots.draw_cost(runs)
    assert [axis.get_xscale() for axis in figure.axes] == ["log"] * 4
    assert sum("leak score 100.0" in axis.get_title() for axis in figure.axes) == 2


def test_a_picture_that_is_drawn_once_is_the_one_that_matplotlib_saves(comparison, tmp_path):
    from matplotlib.image import imread

    runs = read_runs(find_runs([comparison])[0])
    plots.FIGURES["heatmaps"](runs).savefig(tmp_path / "saved.png", dpi=canvas.DPI)
    canvas.save(plots.FIGURES["heatmaps"](runs), tmp_path / "drawn.png")
    assert (imread(tmp_path / "drawn.png") == imread(tmp_path / "saved.png")).all()


def test_a_figure_with_a_panel_per_run_has_so_many_and_says_so(monkeypatch, comparison):
    monkeypatch.setattr(canvas, "MOST_PANELS", 2)
    runs = read_runs(find_runs([comparison])[0])
    for name in ("heatmaps", "tasks", "learning"):
        figure = plots.FIGURES[name](runs)
        assert "(the first 2 of 3 runs)" in figure.get_suptitle()
