"""CONTRIBUTING.md: its code runs, its paths exist, its commands are there, and it covers every kind of extension."""

import re
from pathlib import Path

import pytest

import evergraph as eg

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
ADDED = {
    "methods": "nearby",
    "models": "sgc",
    "datasets": "iris",
    "problems": "tempered-node-classification",
    "metrics": "top-2",
    "loggers": "printer",
}


def test_the_code_runs(registries: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks, one after another, as one would paste them; their own asserts do the checking."""
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) >= len(ADDED)
    names: dict[str, object] = {"__name__": "contributing"}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"CONTRIBUTING.md, block {number + 1}", "exec"), names)
    for kind, name in ADDED.items():
        assert name in getattr(eg.registry, kind), f"the page adds no {name!r} to registry.{kind}"


def test_every_kind_of_extension_has_a_section() -> None:
    for kind in ADDED:
        assert re.search(rf"^## Add a {kind.removesuffix('s')}", TEXT, re.MULTILINE), kind


def test_the_paths_exist() -> None:
    paths = re.findall(r"`((?:src|tests|docs|benchmarks)/[^`]*)`", TEXT)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_commands_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
