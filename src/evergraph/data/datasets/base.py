"""Datasets: a name, a function that loads the graph, and the default way to cut it into tasks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evergraph import registry
from evergraph.core.settings import Checked, check_arguments
from evergraph.core.settings_from_text import parse_setting
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError, unknown


def find_data_root(root: str | Path | None) -> Path:
    """Return the data folder: the argument, else `EVERGRAPH_DATA`, else a cache in the home folder."""
    chosen = root or os.environ.get("EVERGRAPH_DATA")
    if chosen and not Path(chosen).is_dir():
        raise EvergraphError(f"data root {chosen} is not a folder; create it or name another")
    return Path(chosen) if chosen else Path.home() / ".cache" / "evergraph"


DATASETS: registry.Registry[Dataset] = registry.datasets


@dataclass(frozen=True)
class Dataset(metaclass=Checked):
    """A named graph.

    Args:
        name: name for `eg.stream` and the command line.
        load: loads the graph from the data root (None for the default one). Further parameters with defaults are
            settings that can follow the name: `sbm:nodes=500,degree=4`.
        classes_per_task: number of classes that arrive together.
        min_class_size: classes with fewer examples are left out.
        about: one-line description.
        problem: registered name of what is learned.
        settings_like: function whose parameters are the settings, if `load` passes them on to it.
        scenario: default scenario.
        stream: further settings of its stream under that scenario: `by`, `bins`.
    """

    name: str
    load: Callable[..., Graph]
    classes_per_task: int = 2
    min_class_size: int = 0
    about: str = ""
    problem: str = "node-classification"
    settings_like: Callable[..., Graph] | None = None
    scenario: str = "class"
    stream: Mapping[str, Any] = field(default_factory=dict)

    def graph(self, data_root: str | Path | None = None, settings: str = "") -> Graph:
        """Load the graph, with settings given as text: `key=value,key=value`."""
        graph = self.load(data_root, **self._parse(settings))
        graph.name = self.name
        return graph

    def at_hand(self, data_root: str | Path | None = None) -> bool:
        """Whether it needs no download: it is generated, or its files are under the data root."""
        path = getattr(getattr(self.load, "__self__", None), "path", None)  # only published graphs have one
        return path is None or (find_data_root(data_root) / path).exists()

    @property
    def downloadable(self) -> bool:
        """Whether it is downloaded if its files are missing. See `OfficialGraph.downloadable`."""
        return bool(getattr(getattr(self.load, "__self__", None), "downloadable", True))

    @property
    def checked_by(self) -> str:
        """What a download is compared with; empty if nothing is downloaded. See `OfficialGraph.checked_by`."""
        return str(getattr(getattr(self.load, "__self__", None), "checked_by", ""))

    def _parse(self, text: str) -> dict[str, Any]:
        source = self.settings_like or self.load
        parameters = list(inspect.signature(source).parameters.values())
        known = [p.name for p in (parameters if self.settings_like else parameters[1:])]
        if text and not known:
            raise EvergraphError(
                f"{self.name} takes no settings, found {text!r}; only generated graphs do: sbm:nodes=5000"
            )
        settings: dict[str, Any] = {}
        for item in filter(None, text.split(",")):
            key, _, value = item.partition("=")
            if key not in known:
                raise unknown(f"{self.name} setting", key, known)
            settings[key] = parse_setting(source, key, value, owner=self.name)
        given = check_arguments(source, self.name, [] if self.settings_like else [None], settings)
        return {key: given.arguments[key] for key in settings}


DATASETS.accept(instances_of=Dataset)
