"""The report's first screen: the answer, its costs, the ceiling apart; on a phone too. Pictures of it are taken."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from browser import chromium, look
from evergraph.experiments.report import payload, write_report
from evergraph.experiments.report.answer import style_of
from evergraph.experiments.report.collect import find_runs, read_runs
from evergraph.methods import METHODS
from test_report import no_errors, run_js, write_run

PICTURES = Path(os.environ.get("EVERGRAPH_SCREENSHOTS", ""))


def matrices(now: float, forgot: float, seeds: int = 3) -> list:
    """Three tasks; each seed half a point apart."""
    rows = []
    for seed in range(seeds):
        top = now + forgot + seed / 2
        rows.append([[top, None, None], [top - forgot / 2, top, None], [top - forgot, top - forgot, top]])
    return rows


RUNS = {
    "auto": (95, 1, ["statistics"], 420_000_000), "analytic": (94.9, 1.2, ["statistics"], 410_000_000),
    "stand-in-curvature": (92, 3, ["parameters", "prototypes"], 20_000_000),
    "ewc": (35, 60, ["parameters"], 14_000_000),
    "lwf": (34, 61, ["parameters"], 7_000_000), "finetune": (20, 79, [], 0),
    "er-gnn": (93, 3, ["real nodes"], 9_000_000),
    "joint": (97, 0, ["graphs"], 90_000_000),
}  # fmt: skip


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "compare"
    for stream in ("coauthor-cs", "/data/months/january.npz"):
        for number, (method, (now, forgot, keeps, kept)) in enumerate(RUNS.items()):
            scope = {"protocol": {"label_scope": "seen" if number % 2 else "current"}}
            write_run(
                folder / Path(stream).stem / method, method, matrices(now - 3 * ("/" in stream), forgot), stream=stream,
                access={"keeps": keeps}, kept_bytes=[[kept]] * 3, seconds=30.0 * (number + 1), hyperparameters={},
                **scope,
            )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def data(streams: Path) -> dict:
    return payload(read_runs(find_runs([streams])[0]))


def test_the_answer_is_the_best_method_without_old_data(data: dict) -> None:
    assert [found["stream"] for found in data["answers"]] == ["coauthor-cs", "january"]
    for found in data["answers"]:
        name = [run["method"] for run in data["runs"]]
        assert name[found["best"]] == "auto"
        assert [name[number] for number in found["tied"]] == []  # half a point apart on every seed is no noise
        assert name[found["ceiling"]] == "joint"
        assert found["told"]


def test_methods_within_noise_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "auto", [[[90 + s, None], [90 + s, 90]] for s in (0, 1, 2)], log=False)
    write_run(tmp_path / "b", "ewc", [[[90 + s, None], [90 + s, 90]] for s in (2, 0, 1)], log=False)
    (found,) = payload(read_runs(find_runs([tmp_path])[0]))["answers"]
    assert len(found["tied"]) == 1
    assert found["ceiling"] is None


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_seed_or_two_cannot_tell(tmp_path: Path, seeds: int) -> None:
    """With two, a paired test would call 99 and 13 alike."""
    for method, level in (("auto", 98), ("ewc", 13)):
        write_run(tmp_path / method, method, matrices(level, 1, seeds=seeds), log=False)
    (found,) = payload(read_runs(find_runs([tmp_path])[0]))["answers"]
    assert not found["told"]


def test_no_paths_in_titles(data: dict, streams: Path) -> None:
    assert data["title"] == "coauthor-cs and january"
    assert not any("/" in run["label"] for run in data["runs"])
    assert data["methods"]["columns"] == ["coauthor-cs", "january"]


def test_a_method_keeps_its_colour_in_every_report(tmp_path: Path, data: dict) -> None:
    write_run(tmp_path / "alone", "lwf", matrices(34, 61), log=False)
    (alone,) = read_runs(find_runs([tmp_path / "alone"])[0])
    again = [run["style"] for run in data["runs"] if run["method"] == "lwf"]
    assert {alone["style"] % 8} == {style % 8 for style in again}
    assert len(set(again)) == len(again)  # two runs of a method differ in their markers
    familiar = [
        style_of(name)
        for name in ("auto", "analytic", "curvature", "stand-in-curvature", "ewc", "lwf", "finetune", "joint")
    ]
    assert sorted(style % 8 for style in familiar) == list(range(8))  # eight colours that often meet
    assert all(0 <= style_of(name) < 48 for name in METHODS)


def test_streams_with_an_error_are_one_table_that_says_so_and_unlike_metrics_are_named(tmp_path: Path) -> None:
    """The lower error comes first."""
    error = {"protocol": {"metric": "mae"}, "log": False, "hyperparameters": {}}
    for stream in ("a", "b"):
        for method, level in (("ewc", 0.8), ("auto", 0.4)):
            write_run(tmp_path / stream / method, method, matrices(level, -0.1), stream=stream, **error)
    table = payload(read_runs(find_runs([tmp_path])[0]))["methods"]
    assert table["title"] == "AP: mean absolute error, lower is better"
    assert table["columns"] == ["a", "b"]
    assert [row["method"] for row in table["rows"]] == ["auto", "ewc"]
    assert all(cell["best"] for cell in table["rows"][0]["cells"])
    write_run(tmp_path / "c", "auto", matrices(95, 1), stream="c", log=False)
    table = payload(read_runs(find_runs([tmp_path])[0]))["methods"]
    assert table["columns"] == []
    titles = "mean absolute error, lower is better; accuracy (%)"
    assert table["note"] == f"No table of methods and streams: metrics differ ({titles})."


@pytest.fixture(scope="module")
def page(streams: Path, tmp_path_factory: pytest.TempPathFactory):
    written = write_report([streams], figures=False).page
    with chromium(tmp_path_factory.mktemp("profile"), tmp_path_factory.mktemp("downloads")) as browser:
        look(browser, 1280)
        browser.get(written.as_uri())
        yield browser


def scroll_to(page, element: str) -> None:
    """Bring an element to the top, once the page has settled."""
    time.sleep(0.3)
    run_js(page, f"document.getElementById('{element}').scrollIntoView({{behavior: 'instant'}})")
    time.sleep(0.2)


def picture(browser, name: str, tmp_path: Path) -> None:
    folder = PICTURES if str(PICTURES) != "." else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    assert browser.save_screenshot(str(folder / name))
    assert (folder / name).stat().st_size > 10_000


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_the_first_screen_answers(page, tmp_path: Path, width: int, height: int) -> None:
    look(page, width, height, phone=width < 500)
    run_js(page, "window.scrollTo(0, 0)")
    time.sleep(0.3)
    picture(page, f"report-{width}.png", tmp_path)
    first = page.find_element("css selector", ".answer")
    for text in (
        "Best without old data: ",
        "auto",
        "AP",
        "95.8",
        "forgets",
        "AF −1.0",
        "a run",
        "10 s",
        "420.0 MB",
        "joint",
        "97.5",
    ):
        assert text in first.text, (text, first.text)
    assert first.rect["y"] + first.rect["height"] <= height  # without scrolling
    assert page.find_elements("css selector", ".notice") == []  # no internals in yellow boxes
    heads = run_js(
        page, "return [...document.querySelectorAll('h1, h2, h3, figcaption, .caption')].map((n) => n.textContent)"
    )
    assert not any("/" in head for head in heads)
    assert run_js(page, "return document.documentElement.scrollWidth") <= width
    no_errors(page)


def test_on_a_phone_every_value_of_the_table_is_on_the_screen(page, tmp_path: Path) -> None:
    look(page, 390, 844, phone=True)
    scroll_to(page, "compare")
    picture(page, "report-table-390.png", tmp_path)
    outside = run_js(
        page,
        "return [...document.querySelectorAll('#table tbody th, #table tbody td')]"
        ".map((n) => n.getBoundingClientRect())"
        ".filter((box) => box.left < 0 || box.right > 390).length",
    )
    assert outside == 0
    titles = run_js(page, "return getComputedStyle(document.querySelector('#table td'), '::before').content")
    assert titles == '"AP"'


def test_the_ceiling_is_no_competitor(page) -> None:
    look(page, 1280)
    stars = run_js(
        page,
        "return [...document.querySelectorAll('#table .best')]"
        ".map((n) => n.closest('tr').querySelector('th').textContent)",
    )
    assert stars
    assert all(star.startswith("auto") for star in stars)
    rows = run_js(page, "return [...document.querySelectorAll('#streams-table tbody th')].map((n) => n.textContent)")
    assert "jointceiling" in rows
    assert "er-gnnold data" in rows


def test_labels_neither_collide_nor_are_clipped(page, tmp_path: Path) -> None:
    look(page, 1280)
    scroll_to(page, "plane")
    picture(page, "report-plane-1280.png", tmp_path)
    boxes = run_js(
        page,
        "const frame = document.querySelector('#plane-figure > svg').getBoundingClientRect();"
        "return [...document.querySelectorAll('#plane-figure .label')].map((n) => n.getBoundingClientRect())"
        ".map((b) => [b.left - frame.left, b.right - frame.left, b.top - frame.top, b.bottom - frame.top, "
        "frame.width])",
    )
    assert len(boxes) >= 4
    for number, (left, right, top, bottom, width) in enumerate(boxes):
        assert left >= 0
        assert right <= width + 1
        for other in boxes[:number]:
            apart = right <= other[0] + 1 or other[1] <= left + 1 or bottom <= other[2] + 3 or other[3] <= top + 3
            assert apart, (boxes[number], other)


def test_orders_of_classes_are_not_rivals(tmp_path: Path) -> None:
    """A method that is lucky with one order is not the best one; runs are paired by order and seed."""
    levels = {"auto": (90, 88, 89), "ewc": (95, 70, 72)}
    for method, by_order in levels.items():
        for number, level in enumerate(by_order):
            some = [[[level + seed, None], [level + seed, level]] for seed in (0, 1, 2)]
            write_run(tmp_path / f"{method}-{number}", method, some, protocol={"order": f"random:{number}"}, log=False)
    (found,) = payload(read_runs(find_runs([tmp_path])[0]))["answers"]
    runs = read_runs(find_runs([tmp_path])[0])
    assert runs[found["best"]]["method"] == "auto"
    assert (found["rivals"], len(found["alone"])) == (2, 2)
    pooled = found["pooled"][found["best"]]
    values = [level + seed / 2 for level in levels["auto"] for seed in (0, 1, 2)]
    assert pooled["metrics"]["ap"]["mean"] == pytest.approx(sum(values) / 9)
    assert len(pooled["seeds"]) == 9


def test_growing_errors_are_forgetting_in_the_report_too(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "finetune", [[[0.2, None], [0.5, 0.3]]], protocol={"metric": "mae"}, log=False)
    (run,) = read_runs(find_runs([tmp_path])[0])
    assert run["metrics"]["af"]["mean"] == pytest.approx(-0.3)
