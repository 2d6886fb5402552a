"""One registry for everything that has a name: methods, models, datasets, problems, metrics, selection rules and more.

Adding an entry takes one file with one decorator, in this package or in another. A package announces its modules with
an entry point of the group `evergraph.plugins`; importing the module registers its entries:

    [project.entry-points."evergraph.plugins"]
    mine = "my_package.evergraph"

The choices of the command line, the conformance suite, the report and the documentation all read these registries.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from traceback import walk_tb
from typing import Any, Generic, TypeVar, overload

from evergraph.errors import EvergraphError, first_line, shown, unknown

PLUGINS = "evergraph.plugins"
FILES = "EVERGRAPH_PLUGINS"  # environment variable with the paths of Python files, set by `--plugin`
NAME = re.compile(r"\w[\w.@-]*\+*")  # a plus at the end, as in `ewc++`; elsewhere it composes methods
Entry = TypeVar("Entry")
_registries: list[Registry[Any]] = []


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Entries of one kind by name, in the order of registration.

    Args:
        kind: what an entry is called in messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}
        self._base: type | None = None
        self._of_classes = False
        _registries.append(self)

    def accept(self, *, subclasses_of: type | None = None, instances_of: type | None = None) -> None:
        """Accept only subclasses of a class, or only its instances."""
        self._base, self._of_classes = subclasses_of or instances_of, subclasses_of is not None
        for entry in self._entries.values():
            self._check(entry)

    @overload
    def register(self, entry: Entry) -> Entry: ...
    @overload
    def register(self, *, name: str) -> Callable[[Entry], Entry]: ...

    def register(self, entry: Any = None, *, name: str | None = None) -> Any:
        """Add an entry under its `name`, or under the given name. Usable as a decorator.

        A class that is given a name here has it as its `name` from then on.
        """
        if entry is None:
            if name is None:
                raise EvergraphError(f'register needs a {self.kind}, or its name as in register(name="mine")')
            return lambda decorated: self._add(name, decorated)
        own = getattr(entry, "name", None)
        if name is None and (not own or not isinstance(own, str)):
            raise EvergraphError(f'{shown(entry)} has no name to be registered by; give it one: name = "mine"')
        return self._add(str(own) if name is None else name, entry)

    def _add(self, name: str, entry: Any) -> Any:
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise EvergraphError(f"{shown(name)} is no name for a {self.kind}; use letters, digits and any of - _ . @")
        self._check(entry)
        if self._entries.get(name, entry) is not entry:
            if isinstance(entry, type) and getattr(entry, "name", None) == name and "name" not in vars(entry):
                raise EvergraphError(f'class {entry.__name__} has no name of its own; give it one: name = "mine"')
            raise EvergraphError(f"there is a {self.kind} {name!r} already; give yours another name")
        own = getattr(entry, "__dict__", {}).get("name", name)
        if isinstance(own, str) and own != name:
            raise EvergraphError(f"{_words(entry)} is called {own!r}, not {name!r}; give it one name")
        if isinstance(entry, type) and isinstance(getattr(entry, "name", None), str):
            entry.name = name  # type: ignore[attr-defined]  # not that of a parent class
        self._entries[name] = entry
        return entry

    def _check(self, entry: Any) -> None:
        """Raise if an entry is of another kind."""
        if self._base is None:
            return
        if self._of_classes and not (isinstance(entry, type) and issubclass(entry, self._base)):
            raise EvergraphError(f"{_words(entry)} is no {self.kind}: it must be a subclass of {self._base.__name__}")
        if not self._of_classes and not isinstance(entry, self._base):
            raise EvergraphError(f"{_words(entry)} is no {self.kind}: it must be made by {self._base.__name__}(…)")

    def remove(self, name: str) -> None:
        """Remove an entry, if there is one of that name."""
        self._entries.pop(name, None)

    def __getitem__(self, name: str) -> Entry:
        load_plugins()
        if not isinstance(name, str) or name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the entry of that name, or the default."""
        load_plugins()
        return self._entries.get(name, default)

    def __contains__(self, name: object) -> bool:
        load_plugins()
        return isinstance(name, str) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(self._entries)

    def __len__(self) -> int:
        load_plugins()
        return len(self._entries)

    def name_of(self, entry: Any) -> str | None:
        """Return the name under which an entry is registered, or None."""
        return next((name for name, known in self._entries.items() if known is entry), None)


def _words(entry: Any) -> str:
    return f"class {entry.__name__}" if isinstance(entry, type) else shown(entry)


methods: Registry[Any] = Registry("method")
models: Registry[Any] = Registry("model")
datasets: Registry[Any] = Registry("stream")
problems: Registry[Any] = Registry("problem")
metrics: Registry[Any] = Registry("metric")
summaries: Registry[Any] = Registry("summary")
test_graphs: Registry[Any] = Registry("test graph")
scenarios: Registry[Any] = Registry("scenario")
loggers: Registry[Any] = Registry("logger")
selection_rules: Registry[Any] = Registry("selection rule")

_loaded = False


def load_plugins() -> None:
    """Import the plug-ins of installed packages and of `EVERGRAPH_PLUGINS`, once, on first access to any registry.

    If one cannot be loaded, every access raises, until it can.
    """
    global _loaded
    if _loaded:
        return
    _loaded = True  # plug-ins access registries themselves
    try:
        _load_all()
    except BaseException:
        _loaded = False
        raise


def _load_all() -> None:
    for plugin in metadata.entry_points(group=PLUGINS):
        try:
            plugin.load()
        except EvergraphError:
            raise
        except (Exception, SystemExit) as error:  # a third-party package may raise anything on import
            raise EvergraphError(
                f"plug-in {plugin.name!r} ({plugin.value}) cannot be loaded ({first_line(error)}); "
                "mend or uninstall the package that brings it"
            ) from None
    for number, path in enumerate(plugin_files()):
        _load_file(Path(path), f"evergraph_plugin_{number}")


def plugin_files() -> list[str]:
    """Paths of the Python files given by `--plugin` or `EVERGRAPH_PLUGINS`."""
    return [str(Path(path).resolve()) for path in os.environ.get(FILES, "").split(os.pathsep) if path]


def in_a_plugin(error: BaseException) -> str | None:
    """Where an error arose in a plug-in's code, such as `mine.py, line 3, in penalty`.

    Empty if it arose elsewhere, as after a hook returned something wrong; None if there are no plug-ins.
    """
    files = plugin_files()
    packages = {plugin.module.partition(".")[0] for plugin in metadata.entry_points(group=PLUGINS)}
    if not files and not packages:
        return None
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        if code.co_filename in files or module.partition(".")[0] in packages:
            place = f"{Path(code.co_filename).name}, line {line}, in {code.co_name}"
    return place


def add_plugin_files(paths: Iterable[str]) -> None:
    """Load Python files with custom methods, models and so on; processes started from here load them too."""
    global _loaded
    known = plugin_files()
    files = list(dict.fromkeys([*known, *(str(Path(path).resolve()) for path in paths)]))
    for path in files:
        if os.pathsep in path:
            raise EvergraphError(f"--plugin {path}: {os.pathsep!r} separates paths; rename or move the file")
    os.environ[FILES] = os.pathsep.join(files)
    _loaded = _loaded and set(files) == set(known)
    try:
        load_plugins()
    except EvergraphError:
        os.environ[FILES] = os.pathsep.join(known)
        raise


def _load_file(path: Path, name: str) -> None:
    """Import a file, unless it was already imported under another number."""
    if any(getattr(module, "__file__", None) == str(path) for module in list(sys.modules.values())):
        return
    if not path.is_file() or path.suffix != ".py":
        raise EvergraphError(f"--plugin {path}: no such Python file; name one that registers what it brings")
    spec = importlib.util.spec_from_file_location(name + "_" + path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    before = [(registry, dict(registry._entries)) for registry in _registries]
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may raise anything on import
        del sys.modules[spec.name]
        for registry, entries in before:  # nothing stays of a file that failed half-way
            registry._entries = entries
        if isinstance(error, EvergraphError):
            raise
        raise EvergraphError(
            f"--plugin {path} cannot be loaded ({type(error).__name__}: {first_line(error)})"
        ) from None
