"""The documentation: every Python block runs, every command parses, every public name is explained, the site builds.

Blocks of a page run in order, in one namespace and one folder that holds the files of docs/files alone, with few epochs
and narrow random features by default. Shell blocks after `<!-- run -->` run too. `<!-- no-run: reason -->` before a
block that needs a dataset makes it run only where the folder of real graphs is there.
"""

import inspect
import logging
import re
import shlex
import shutil
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from matplotlib.figure import Figure
from typer.main import get_command

import evergraph as eg
from evergraph import cli
from evergraph.experiments import report
from evergraph.methods.base import Step
from evergraph.models import MixedFeatures, RandomFeatures
from evergraph.training import Training
from evergraph.training.learning import make_context
from evergraph.training.settings import LABEL_SCOPES

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*given in one direction and are read in both"),
    pytest.mark.filterwarnings("ignore:.*was learned already"),
    pytest.mark.filterwarnings("ignore:.*no effect; .* learns in one pass"),
]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PROSE = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
FENCE = re.compile(
    r"^(?P<mark>[ \t]*<!--[^\n]*-->[ \t]*\n+)?"
    r"(?P<indent>[ \t]*)```(?P<kind>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)
SHELL = {"sh", "bash", "shell", "console"}
FEW_EPOCHS = 2
SHORT = [(Training, "epochs", FEW_EPOCHS), (RandomFeatures, "hidden", 80), (MixedFeatures, "hidden", 80)]
SHORT += [(kind, "networks", 3) for kind in (eg.CaT, eg.PUMA, eg.DeLoMe)]


@dataclass
class Block:
    """A fenced block: its language, its text, its line, and the comment before it."""

    kind: str
    text: str
    line: int
    mark: str


def blocks_of(text: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        indent = match["indent"]
        body = "".join(line.removeprefix(indent) for line in match["text"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("text")) + 1
        found.append(Block(match["kind"], body, line, (match["mark"] or "").strip()))
    return found


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def commands_of(block: Block) -> list[list[str]]:
    """The `evergraph` commands of a shell block, as words."""
    lines = block.text.replace("\\\n", " ").splitlines()
    wanted = [line.strip().removeprefix("$ ") for line in lines]
    return [shlex.split(line, comments=True)[1:] for line in wanted if re.match(r"evergraph\s", line + " ")]


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.fixture
def empty_place(tmp_path, monkeypatch, registries, without_pictures):
    """A folder of its own with the files that pages offer, and short training of small models by default."""
    monkeypatch.chdir(tmp_path)
    for file in (DOCS / "files").iterdir():
        shutil.copy(file, tmp_path)
    for kind, setting, value in SHORT:
        place = list(inspect.signature(kind).parameters).index(setting)
        defaults = kind.__init__.__defaults__
        monkeypatch.setattr(kind.__init__, "__defaults__", (*defaults[:place], value, *defaults[place + 1 :]))
    for kind in eg.METHODS.values():
        if "epochs" in kind().training:
            monkeypatch.setattr(kind, "training", {**kind.training, "epochs": FEW_EPOCHS})
    monkeypatch.setattr(report, "FIGURES", {"plane": lambda runs: Figure((1, 1))})  # figures have tests of their own
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_block_runs(page, empty_place, monkeypatch, evergraph, request):
    namespace = {"__name__": "__main__"}
    for block in blocks_of(read(page)):
        where = f"{page.relative_to(ROOT)}, line {block.line}"
        if block.kind in {"python", "py"}:
            if "no-run" in block.mark:
                assert re.fullmatch(r"<!-- no-run: .{5,} -->", block.mark), f"{where}: say why it is not run"
                monkeypatch.setenv("EVERGRAPH_DATA", str(request.getfixturevalue("real_data")))
            exec(compile("\n" * (block.line - 1) + block.text, where, "exec"), namespace)
        elif block.kind in SHELL and block.mark == "<!-- run -->":
            for words in commands_of(block):
                status, _, said = evergraph(*words)
                assert status == 0, f"evergraph {shlex.join(words)}: {said}"


@pytest.mark.parametrize("scope", LABEL_SCOPES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_memory_of_the_page_on_methods_counts_as_it_says_in_every_training(scope, reduction, registries):
    """Over all classes that compete, each kept node once an epoch against once for each of the task's own."""
    blocks = [block.text for block in blocks_of(read(DOCS / "own-method.md")) if block.kind == "python"]
    namespace = {"__name__": "page"}
    exec(next(text for text in blocks if "class Inertia" in text), namespace)  # with what the page imports
    exec(next(text for text in blocks if "class SmallMemory" in text).partition("\nkept = ")[0], namespace)
    stream = eg.stream("sbm:nodes=90,classes=6,features=5,signal=1", classes_per_task=2)
    method = namespace["SmallMemory"](per_task=4, strength=2.0)
    settings = {"label_scope": scope, "reduction": reduction, "batch_size": 5, "epochs": 1, "patience": 1}
    learner = eg.Learner(eg.GCN(hidden=4), method, **settings, device="cpu", dtype=torch.float64, num_classes=6)
    for task in list(stream)[:2]:
        learner.learn(task)
    learner.classes_ = [*learner.classes_, *stream[2].class_names]
    context = make_context(learner, stream[2], stream[2])
    method.prepare(context)
    total = 0.0
    for batch in context.batches():
        logits = learner.model(batch)
        (replay,) = method.replay(Step(context, batch, logits, context.problem.loss(logits, batch.y).sum()))
        term = (replay.weights * replay.problem.loss(learner.model(replay.batch), replay.batch.y)).sum()
        total += float(term.detach()) * (batch.num_seeds if reduction == "mean" else 1)
    rows = learner.model(replay.batch).detach()
    want = 2.0 * sum(-float(row.log_softmax(0)[unit]) for row, unit in zip(rows, replay.batch.y))
    assert len(rows) == 8
    assert total == pytest.approx(want, rel=1e-9)


@pytest.fixture(scope="module")
def commands():
    """The commands as typer parses them."""
    return get_command(cli.make_app()).commands


ALL_COMMANDS = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)[:60]}")
    for page in PROSE
    for block in blocks_of(read(page))
    if block.kind in SHELL
    for words in commands_of(block)
]


def parse(commands, words):
    words, _ = cli._plugins(list(words))  # an option of every command, taken before any is looked at
    assert words[0] in commands, f"there is no command {words[0]}"
    if "--help" not in words:
        commands[words[0]].make_context(words[0], list(words[1:]))  # an unknown option or a missing argument raises


@pytest.mark.parametrize("words", ALL_COMMANDS)
def test_every_command_parses(words, commands):
    parse(commands, words)


def test_a_wrong_command_would_not_parse(commands):
    with pytest.raises(Exception, match="--no-such-option"):
        parse(commands, ["run", "digits", "--no-such-option", "1"])


def test_the_command_page_knows_every_command(commands):
    page = read(DOCS / "cli.md")
    assert [name for name in commands if f"`evergraph {name}" not in page] == []


def test_the_blocks_are_found():
    """The quickstart has Python and shell blocks, and one shell block that runs."""
    found = blocks_of(read(DOCS / "quickstart.md"))
    assert [block.kind for block in found].count("python") >= 2
    assert [block.mark for block in found].count("<!-- run -->") == 1
    assert sum(len(commands_of(block)) for block in found) >= 5


# what the pages must say


def test_the_readme_is_short():
    text = re.sub(r"```.*?```", "", read(ROOT / "README.md"), flags=re.DOTALL)  # code is not prose
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)  # nor are tables
    text = re.sub(r"\]\([^)]*\)", "]", text)  # nor addresses
    assert len(re.findall(r"[\w’'.`-]*\w[\w’'.`-]*", text)) <= 600


METHOD_PAGES = {path: read(path) for path in sorted((DOCS / "methods").glob("*.md"))}


@pytest.mark.parametrize("name", [name for name, kind in eg.METHODS.items() if kind.__module__.startswith("evergraph")])
def test_every_method_has_a_section_that_names_its_settings(name):
    sections = [
        section
        for text in METHOD_PAGES.values()
        for section in re.split(r"^(?=#{1,2} )", text, flags=re.MULTILINE)
        if re.match(rf"#+ {re.escape(name)}\n", section)
    ]
    assert len(sections) == 1, f"docs/methods has {len(sections)} sections called {name}"
    assert f"`{name}`" in METHOD_PAGES[DOCS / "methods" / "index.md"]
    assert [key for key in eg.make_method(name).hyperparameters() if f"`{key}`" not in sections[0]] == []


TUTORIALS = [*sorted(DOCS.glob("own-*.md")), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]


@pytest.mark.parametrize("page", TUTORIALS, ids=names(TUTORIALS))
def test_tutorials_import_the_public_names_alone(page):
    code = "\n".join(block.text for block in blocks_of(read(page)) if block.kind == "python")
    ours = re.findall(r"^\s*((?:from|import) evergraph.*)$", code, re.MULTILINE)
    assert set(ours) <= {"import evergraph as eg"}


MODULES = {name for name in eg.__all__ if isinstance(getattr(eg, name), ModuleType)}
REFERENCE = {path: read(path) for path in sorted((DOCS / "reference").glob("*.md"))}


@pytest.mark.parametrize("name", eg.__all__)
def test_every_public_name_is_in_the_reference_with_an_example(name):
    """After the directive for the name, and before the next one, there is a block that uses the name."""
    found = [
        entry
        for text in REFERENCE.values()
        for entry in re.split(r"^(?=::: )", text, flags=re.MULTILINE)
        if re.match(rf"::: evergraph(\.\w+)*\.{name}\n", entry)
    ]
    assert found, f"no page of docs/reference has «::: evergraph.{name}»"
    examples = [block.text for entry in found for block in blocks_of(entry) if block.kind == "python"]
    assert any(re.search(rf"\beg\.{name}\b", text) for text in examples), f"the entry of {name} has no example"
    assert f"`{name}`" in REFERENCE[DOCS / "reference" / "index.md"]


def test_pages_speak_of_the_project_alone():
    """No path of a machine, no address of a package index."""
    for page in PROSE:
        found = re.findall(r"(?<![\w.~])/(?:work|home|root|tmp|opt|Users)/\S*|pypi\S*", read(page), re.IGNORECASE)
        assert found == [], f"{page.relative_to(ROOT)}: {found}"


def test_the_pictures_are_there_and_small():
    for page in PROSE:
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", read(page)):
            picture = page.parent / target
            assert picture.is_file(), f"{page.relative_to(ROOT)}: {target}"
            assert picture.stat().st_size < 60_000, target


def test_links_between_files_lead_somewhere():
    """Of the pages that are no part of the site, which checks its own."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", read(page)):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def headings(text, toc):
    """The anchors of a page: its headings as mkdocs makes them, and the names that it documents."""
    text = re.sub(r"^([ \t]*)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    documented = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    return {toc.slugify(title.replace("`", ""), "-") for title in titles} | set(documented)


def test_links_between_pages_and_documented_names_lead_somewhere():
    """As `test_the_site_builds_without_a_warning` finds by building all of it."""
    toc = pytest.importorskip("markdown.extensions.toc", reason="mkdocs is not installed: pip install '.[docs]'")
    for page in DOCS.rglob("*.md"):
        text = read(page)
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", prose):
            if "://" in target or target.startswith("mailto:"):
                continue
            other = (page.parent / target).resolve() if target else page
            assert other.is_file(), f"{page.name}: {target}"
            if anchor:
                assert anchor in headings(read(other), toc), f"{page.name}: {target}#{anchor}"
        for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE):
            module, _, name = path.rpartition(".")
            assert hasattr(import_module(module), name), f"{page.name}: {path}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path, caplog, monkeypatch):
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install '.[docs]'")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install '.[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    # a copy, so that a page written while the site is built cannot disturb it
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    config = load_config(str(tmp_path / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True)
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        build(config)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("mkdocs")] == []
    pages = {path.relative_to(tmp_path / "docs").with_suffix(".html") for path in (tmp_path / "docs").rglob("*.md")}
    built = {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")}
    assert pages <= built
    index = read(tmp_path / "site" / "index.html")
    for page in pages:
        assert f'href="{page.as_posix()}"' in index or page.name == "index.html", f"{page} is not in the navigation"
    for name in set(eg.__all__) - {"__version__"} - MODULES:  # each has a heading to link to
        anchor = re.compile(rf'id="evergraph(\.\w+)*\.{name}"')
        assert any(anchor.search(read(path)) for path in (tmp_path / "site" / "reference").glob("*.html")), name
    signatures = re.sub(r"<[^>]+>", "", read(tmp_path / "site" / "reference" / "methods.html"))
    assert "_=state(" not in signatures  # learned state is no argument of a constructor


def test_code_on_the_front_pages_fits_its_box():
    """Lines short enough not to be clipped where the site and PyPI show them."""
    for page, most in ((DOCS / "index.md", 64), (ROOT / "README.md", 110)):
        lines = [line for block in blocks_of(read(page)) for line in block.text.splitlines()]
        assert [line for line in lines if len(line) > most] == []


def test_the_front_page_shows_what_its_example_prints(tmp_path, monkeypatch, capsys):
    """Up to the dots with which its lines end."""
    monkeypatch.chdir(tmp_path)
    for file in (DOCS / "files").iterdir():
        shutil.copy(file, tmp_path)
    blocks = blocks_of(read(DOCS / "index.md"))
    place = next(number for number, block in enumerate(blocks) if block.kind == "text")
    with warnings.catch_warnings():
        warnings.simplefilter("error", eg.EvergraphWarning)  # the first thing that people run needs no note
        exec(compile(blocks[place - 1].text, "index.md", "exec"), {"__name__": "page"})
    shown, printed = blocks[place].text.splitlines(), capsys.readouterr().out.splitlines()
    assert len(shown) == len(printed) == 5
    for line, whole in zip(shown, printed):
        assert whole.startswith(line.removesuffix("…")), f"index.md shows {line!r}, the example prints {whole!r}"


def test_formulas_are_typeset():
    """No formula is left as plain text, and every one in a math fence becomes MathML."""
    latex2mathml = pytest.importorskip("latex2mathml.converter")
    formulas = [
        line
        for page in PAGES
        for block in blocks_of(read(page))
        if block.kind == "math"
        for line in block.text.splitlines()
    ]
    assert len(formulas) >= 25
    for formula in formulas:
        made = latex2mathml.convert(formula, display="block")
        assert made.startswith("<math")
        assert "\\" not in re.sub(r"<[^>]*>", "", made), formula  # no command is left unread
    plain = [block.text for page in PAGES for block in blocks_of(read(page)) if block.kind == "text"]
    assert not [text for text in plain if "Σ" in text or "θ" in text]


def test_the_pages_answer_which_method_how_long_and_how_much_memory():
    page = read(DOCS / "which-method.md")
    for head in ("# Which method?", "## How long?", "## How much memory?"):
        assert head in page
    assert all(f"`{name}`" in page for name in ("auto", "stand-in-curvature", "ewc", "lwf", "joint", "finetune"))
