"""Figures and defaults in the pages: recomputed from the accuracy matrices in results/, and compared with the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import evergraph as eg
from evergraph import cli

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
STREAMS = ("coauthor-cs", "amazon-computers", "corafull-knn")
BEST = {
    "Fine-tuning": "finetune", "EMA alone (no regularizer)": "ema", "EWC empirical": "ewc-empirical",
    "EWC sample": "ewc-sample", "EWC pred": "ewc-pred", "EWC empirical with EMA": "ewc-ema",
    "Online EWC γ=1": "online-ewc-1", "Online EWC γ=0.95": "online-ewc-095", "EWC++": "ewc-plus-plus", "SI": "si",
    "MAS": "mas", "LwF": "lwf", "TWP": "twp", "K-FAC": "kfac", "Ours, F over the batch": "ours-batch-without-ema",
    "Ours, F over the batch, with EMA": "ours-batch", "Ours, F at 32 prototypes a class": "ours-without-ema",
    "Ours, F at 32 prototypes a class, with EMA": "ours", "Closed form (`analytic`)": "analytic",
    "Closed form, validation labels too": "analytic-all-labels", "Joint GCN, tuned": "joint",
    "Joint GCN with layer norm, tuned": "joint-layer-norm", "Joint GraphSAGE, tuned": "joint-sage",
    "Joint GraphSAGE with layer norm, tuned": "joint-sage-layer-norm",
    "Joint GCN, tuned, validation labels too": "joint-all-labels",
    "Joint GraphSAGE, tuned, validation labels too": "joint-sage-all-labels",
}  # fmt: skip


def lines_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / path).read_text(encoding="utf-8").splitlines()]


def page(path: str, begin: str = "", end: str = "") -> str:
    text = (ROOT / path).read_text(encoding="utf-8").replace("−", "-")
    return text[text.index(begin) : text.index(end, text.index(begin) + 1) if end else None]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of a page's table rows, without bold."""
    for line in text.splitlines():
        if line.startswith("|") and not set(line) <= set("|-: "):
            yield [cell.strip().strip("*") for cell in line.strip("|").split("|")]


def ap_and_af(matrices: Iterable[list[list[float]]]) -> tuple[np.ndarray, np.ndarray]:
    arrays = [np.array(matrix, dtype=float) for matrix in matrices]
    ap = [array[-1].mean() for array in arrays]
    af = [(array[-1, :-1] - array.diagonal()[:-1]).mean() for array in arrays]
    return np.array(ap), np.array(af)


def measured(result: dict[str, Any], graph: str) -> list[list[list[float]]]:
    if result["protocol"]["test_graph"] == graph:
        return list(result["matrices"])
    return list(result["also_tested"][graph]["matrices"])


def spread(values: np.ndarray, digits: int = 1) -> str:
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}".replace("-0.0 ", "0.0 ")


@pytest.mark.parametrize("where", ["README.md", "docs/analytic.md"])
def test_the_closed_forms_table(where: str) -> None:
    runs, of_auto = lines_of("closed-form/results.jsonl"), lines_of("seven-graphs/runs.jsonl")
    found, columns = 0, 6 if where == "README.md" else 5
    for cells in rows(page(where, "| stream | test graph |", "\n\n")):
        if len(cells) != columns or (name := cells[0].partition(" ")[0]) not in STREAMS:
            continue
        if columns == 6:
            auto = np.array([run[cells[1]] for run in of_auto if run["graph"] == name])
            assert (auto.size, cells[5]) == (9, spread(auto)), cells
        for column, method in ((2, "joint"), (3, "analytic")):
            of = [run["result"] for run in runs if (run["spec"]["source"], run["spec"]["method"]) == (name, method)]
            if method == "joint":  # trained on the graph that it is tested on
                of = [result for result in of if result["protocol"]["test_graph"] == cells[1]]
            ap, af = ap_and_af(matrix for result in of for matrix in measured(result, cells[1]))
            assert (len(ap), cells[column]) == (9, spread(ap)), cells
        assert cells[4] == spread(af)
        found += 1
    assert found == 6


def test_protocol_best() -> None:
    results = {
        name: {run["key"]: run["result"] for run in lines_of(f"paper/best/{name}/results.jsonl")} for name in STREAMS
    }
    table = {
        cells[0]: cells[1:7] for cells in rows(page("docs/results.md", "## Protocol `best`", "### Joint training"))
    }
    for title, key in BEST.items():
        want = []
        for name, runs in results.items():
            of = [runs[f"best/{name}/{order}{key}"] for order in ("", "orders/random-1/")]
            for graph in ("task", "seen"):
                if "joint" in key and graph == "seen":  # trained on the graph that it is tested on
                    of = [runs[f"best/{name}/{order}{key}-seen"] for order in ("", "orders/random-1/")]
                want.append(spread(ap_and_af(matrix for result in of for matrix in measured(result, graph))[0]))
        assert table[title] == want, title


def test_protocol_paper() -> None:
    runs = {run["key"]: run["result"] for run in lines_of("paper/paper/coauthor-cs/results.jsonl")}
    names = {"EMA alone (no regularizer)": "ema", "Joint training": "joint", "Fine-tuning": "finetune"}
    names |= {"Ours (queue)": "ours", "Ours (sampled)": "ours-sampled", "Ours (exact)": "ours-exact"}
    names |= {f"{title} without EMA": f"{key}-without-ema" for title, key in names.items() if "Ours" in title}
    names |= {"MAS": "mas", "LwF": "lwf", "TWP": "twp", "EWC pred": "ewc-pred", "Online EWC γ=1": "online-ewc-1"}
    table = {cells[0]: cells for cells in rows(page("docs/results.md", "## Protocol `paper`", "The distance is"))}
    for title, key in names.items():
        ap, af = ap_and_af(runs[f"paper/coauthor-cs/{key}"]["matrices"])
        assert table[title][2] == f"{spread(ap, 2)} / {spread(af, 2)}", title
        if (printed := table[title][1]) != "–":
            gaps = np.array([ap.mean(), af.mean()]) - [float(number) for number in printed.split("/")]
            assert float(table[title][3]) == pytest.approx(np.abs(gaps).mean(), abs=0.06), title


def test_every_method_at_equal_bytes() -> None:
    for name in STREAMS:
        runs = {run["key"].split("/")[-1]: run["result"] for run in lines_of(f"paper/field/{name}/results.jsonl")}
        found = 0
        for cells in rows(page("docs/results-field.md", f"**{name}**", "" if name == STREAMS[2] else "\n\n**")):
            key = cells[0].replace(", ", "-").replace("ssm+curvature", "ssm-curvature")
            if key not in runs or key == "joint":
                continue
            ap, af = ap_and_af(runs[key]["matrices"])
            others = [spread(ap_and_af(measured(runs[key], graph))[0]) for graph in ("seen", "node")]
            kept = max(seed[-1] for seed in runs[key]["kept_bytes"])
            assert cells[1:5] == [f"{spread(ap)} / {spread(af)}", *others, f"{kept:,}"], (name, key)
            found += 1
        assert found > 40


def test_seven_graphs() -> None:
    runs = lines_of("seven-graphs/runs.jsonl")
    table = {
        cells[0].lower(): cells for cells in rows(page("docs/methods/analytic.md", "### Measured", "- **Protocol."))
    }
    for name in {run["graph"] for run in runs}:
        of = [run for run in runs if run["graph"] == name]
        ap = [spread(np.array([run[graph] for run in of])) for graph in ("task", "seen")]
        kept = max(run["kept_bytes"] for run in of) / 1e6
        assert (len(of), table[name][2], table[name][3]) == (9, " / ".join(ap), f"{kept:.0f}"), name


DEFAULTS = {"on": True, "off": False, "true": True, "false": False, "empty": "", "–": ""}


def tables_of_settings() -> Iterator[Any]:
    for path in sorted((ROOT / "docs/methods").glob("*.md")):
        for section in re.split(r"^(?=#{1,2} )", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            head = re.match(r"#+ (\S+)\n", section)
            if head and head[1] in eg.METHODS:
                yield pytest.param(head[1], section, id=head[1])


@pytest.mark.parametrize(("name", "section"), [*tables_of_settings()])
def test_documented_defaults_are_those_of_the_code(name: str, section: str) -> None:
    settings = eg.make_method(name).hyperparameters()
    for cells in rows(section):
        names = re.findall(r"`(\w+)`", cells[0])
        if len(cells) != 3 or not names or cells[1].startswith("as ") or not cells[1]:
            continue
        said = [part.strip().strip("`") for part in re.split(r", (?!\d+`)", cells[1].split(";")[0])]
        if len(said) == len(names):
            for key, text in zip(names, said):
                value, want = settings[key], DEFAULTS.get(text.lower(), text)
                if isinstance(value, tuple):
                    value = ",".join(map(str, value))
                same = float(want) == value if re.fullmatch(r"[\d.e-]+", str(want)) else want == value
                assert same, f"{name}: {key} is {value!r}, the page says {text}"


OTHERS = {  # of other programs, of benchmarks, and gone since 0.1
    "--nnodes", "--rdzv-endpoint", "--logdir", "--balanced-acc", "--table", "--held-out", "--share", "--busy", "--grow",
}  # fmt: skip


def test_options_named_in_prose_exist() -> None:
    known = {"--plugin", "--version", "--help", *OTHERS}  # the first three belong to every command
    for command in get_command(cli.make_app()).commands.values():  # type: ignore[attr-defined]
        known |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))):
        prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for code in re.findall(r"`([^`]+)`", prose):
            if "python -m" not in code:
                named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code))
                assert named <= known, f"{path.relative_to(ROOT)}: {sorted(named - known)}"
