"""The documentation: every Python block runs, every command parses, the site builds without a warning.

Blocks of a page run in order, in one namespace and one empty folder, with few epochs by default. Shell
blocks after `<!-- run -->` run too. `<!-- no-run: reason -->` before a block that needs a dataset makes it
run only where the folder of real graphs is there.
"""

import logging
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from evergraph import METHODS, cli, report
from evergraph.training import Training

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<mark>[ \t]*<!--[^\n]*-->[ \t]*\n+)?"
    r"(?P<indent>[ \t]*)```(?P<kind>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)
SHELL = {"sh", "bash", "shell", "console"}
FEW_EPOCHS = 2


@dataclass
class Block:
    """A fenced block: its language, its text, its line, and the comment before it."""

    kind: str
    text: str
    line: int
    mark: str


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent = match["indent"]
        body = "".join(line.removeprefix(indent) for line in match["text"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("text")) + 1
        found.append(Block(match["kind"], body, line, (match["mark"] or "").strip()))
    return found


def commands_of(block: Block) -> list[list[str]]:
    """The `evergraph` commands of a shell block, as words."""
    lines = block.text.replace("\\\n", " ").splitlines()
    wanted = [line.strip().removeprefix("$ ") for line in lines]
    return [shlex.split(line, comments=True)[1:] for line in wanted if re.match(r"evergraph\s", line + " ")]


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.fixture
def empty_place(tmp_path, monkeypatch):
    """A folder of its own, short training by default, and a list of methods that is as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    defaults = Training.__init__.__defaults__
    assert defaults[0] == Training().epochs
    monkeypatch.setattr(Training.__init__, "__defaults__", (FEW_EPOCHS, *defaults[1:]))
    monkeypatch.setattr(report, "FIGURES", {"plane": report.FIGURES["plane"]})  # the others have tests of their own
    before = dict(METHODS)
    yield tmp_path
    METHODS.clear()
    METHODS.update(before)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_block_runs(page, empty_place, monkeypatch, evergraph, request):
    namespace = {"__name__": "__main__"}
    for block in blocks_of(page):
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


ALL_COMMANDS = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)[:60]}")
    for page in PAGES
    for block in blocks_of(page)
    if block.kind in SHELL
    for words in commands_of(block)
]


@pytest.mark.parametrize("words", ALL_COMMANDS)
def test_every_command_parses(words):
    commands = get_command(cli.app).commands
    assert words[0] in commands, f"there is no command {words[0]}"
    if "--help" not in words:
        commands[words[0]].make_context(words[0], list(words[1:]))  # an unknown option or a missing argument raises


def test_a_wrong_command_would_not_parse():
    with pytest.raises(Exception, match="--no-such-option"):
        test_every_command_parses(["run", "digits", "--no-such-option", "1"])


def test_the_command_page_knows_every_command():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    missing = [name for name in get_command(cli.app).commands if f"`evergraph {name}" not in page]
    assert missing == []


def test_the_blocks_are_found():
    """The quickstart has Python and shell blocks, and one shell block that runs."""
    found = blocks_of(ROOT / "docs" / "quickstart.md")
    assert [block.kind for block in found].count("python") >= 2
    assert [block.mark for block in found].count("<!-- run -->") == 1
    assert sum(len(commands_of(block)) for block in found) >= 5


def test_the_site_builds_without_a_warning(tmp_path, caplog, monkeypatch):
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install '.[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    # a copy, so that a page written while the site is built cannot disturb it
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    config = load_config(str(tmp_path / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True)
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        build(config)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("mkdocs")] == []
    pages = {path.relative_to(tmp_path / "docs").with_suffix(".html") for path in (tmp_path / "docs").rglob("*.md")}
    built = {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")}
    assert pages <= built
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for page in pages:
        assert f'href="{page.as_posix()}"' in index or page.name == "index.html", f"{page} is not in the navigation"
