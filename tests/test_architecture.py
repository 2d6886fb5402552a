"""The house: imports point one way, and nobody asks for a type where a capability is meant."""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import evergraph as eg
from evergraph.core.capabilities import capability, capable

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "evergraph"
LINTER = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the package in a copy of the repository."""
    command = [*LINTER, "--no-cache", "--config", str(folder / "pyproject.toml")]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder / "src")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "src" / "evergraph", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_import_contract_holds(copied: Path) -> None:
    done = lint_imports(copied)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_forbidden_imports_break_it(copied: Path) -> None:
    """Each is named, whatever the others."""
    forbidden = [
        ("core/params.py", "import evergraph.training.loop", "evergraph.core.params -> evergraph.training.loop"),
        ("data/graph.py", "from evergraph.models.gcn import GCN", "evergraph.data.graph -> evergraph.models.gcn"),
        ("curvature/forward.py", "from evergraph.models import GCN", "evergraph.curvature.forward -> evergraph.models"),
        ("methods/si.py", "from evergraph.methods.mas import MAS", "evergraph.methods.si -> evergraph.methods.mas"),
    ]
    for module, line, _ in forbidden:
        path = copied / "src" / "evergraph" / module
        path.write_text(f"{path.read_text()}\n{line}\n")
    done = lint_imports(copied)
    assert done.returncode != 0
    for contract in ("Folders depend downwards only", "Curvature is pure maths", "Methods do not know one another"):
        assert re.search(rf"{contract}.* BROKEN", done.stdout), done.stdout
    for *_, broken in forbidden:
        assert broken in done.stdout, done.stdout


def test_a_new_folder_must_be_given_its_place(copied: Path) -> None:
    (copied / "src" / "evergraph" / "attic").mkdir()
    (copied / "src" / "evergraph" / "attic" / "__init__.py").write_text("")
    assert lint_imports(copied).returncode != 0


# capabilities instead of types

NO_TYPE_CHECKS = ("training", "experiments", "data", "cli")


@functools.cache
def class_names(*folders: str) -> set[str]:
    """The classes that are defined in some folders of the package."""
    trees = [ast.parse(path.read_text()) for folder in folders for path in (PACKAGE / folder).rglob("*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))


def names_in(node: ast.AST) -> set[str]:
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return found | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


@pytest.mark.parametrize("folder", NO_TYPE_CHECKS)
def test_no_type_checks_on_methods_or_models(folder: str) -> None:
    forbidden = class_names("methods", "models") | {"Module"}
    for path in (PACKAGE / folder).rglob("*.py"):
        tree = ast.parse(path.read_text())
        for call in calls(tree):
            if call.func.id in {"isinstance", "issubclass"}:
                assert not names_in(call.args[1]) & forbidden, f"{path}:{call.lineno}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.Eq)):
                sides = [node.left, *node.comparators]
                asked = [side for side in sides if isinstance(side, ast.Call) and names_in(side.func) == {"type"}]
                assert not asked, f"{path}:{node.lineno}"


@pytest.mark.parametrize("folder", ["training", "curvature", "evaluation"])
def test_loop_curvature_and_evaluation_know_no_softmax(folder: str) -> None:
    for path in (PACKAGE / folder).rglob("*.py"):
        words = names_in(ast.parse(path.read_text()))
        assert not words & {"cross_entropy", "softmax", "log_softmax", "nll_loss", "one_hot", "multinomial"}, path


class Base:
    def work(self) -> int:
        return 1

    def helper(self) -> int:
        return 1

    @capability(rests_on=("work",))
    def fast_work(self) -> int:
        return 1


class Renamed(Base):
    def helper(self) -> int:
        return 2


class Overriding(Base):
    def work(self) -> int:
        return 2


class Redeclaring(Overriding):
    @capability(rests_on=("work",))
    def fast_work(self) -> int:
        return 2


class Undeclared(Base):
    def fast_work(self) -> int:
        return 3


def test_a_capability_holds_until_what_it_rests_on_is_overridden() -> None:
    assert capable(Base(), "fast_work")() == 1
    assert capable(Renamed(), "fast_work")() == 1
    assert capable(Overriding(), "fast_work") is None
    assert capable(Redeclaring(), "fast_work")() == 2
    assert capable(Undeclared(), "fast_work") is None
    assert capable(Base(), "no_such_thing") is None
    replaced = Base()
    replaced.work = lambda: 5
    assert capable(replaced, "fast_work") is None


def test_a_hook_on_a_module_takes_its_capabilities_away() -> None:
    model = eg.GCN(hidden=4)
    model.setup(3, 2)
    assert capable(model, "joint_forward") is not None
    handle = model.register_forward_hook(lambda module, inputs, output: 2 * output)
    assert capable(model, "joint_forward") is None
    handle.remove()
    assert capable(model, "joint_forward") is not None


@pytest.mark.parametrize("name", ["joint_forward", "example_powers", "features", "attention", "steps_can_be_captured"])
def test_models_declare_what_they_can(name: str) -> None:
    assert capable(eg.GCN(), name) is not None
    assert (capable(eg.GraphSAGE(), name) is not None) == (name in {"features", "steps_can_be_captured"})
    assert (capable(eg.GAT(), name) is not None) == (name in {"attention", "steps_can_be_captured"})
