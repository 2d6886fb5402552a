"""CONTRIBUTING.md: its code runs, its paths exist, its commands are there."""

import re
from pathlib import Path

import pytest

from evergraph.data.official import OFFICIAL
from evergraph.data.stream import PRESETS
from evergraph.methods import METHODS
from evergraph.models import MODELS

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def tables():
    """The tables that the page adds to, put back afterwards."""
    kept = [(table, dict(table)) for table in (METHODS, MODELS, OFFICIAL, PRESETS)]
    yield
    for table, content in kept:
        table.clear()
        table.update(content)


def test_the_code_runs(tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks, one after another, as one would paste them; their own asserts do the checking."""
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) >= 5
    names: dict[str, object] = {"__name__": "contributing"}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"CONTRIBUTING.md, block {number + 1}", "exec"), names)
    assert {"anchor", "sgc", "iris"} <= METHODS.keys() | MODELS.keys() | PRESETS.keys()


def test_the_paths_exist() -> None:
    paths = re.findall(r"`((?:src|tests)/[^`]*)`", TEXT)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_commands_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
