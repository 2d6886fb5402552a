"""Published graphs that PyTorch Geometric's own dataset classes download and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from evergraph.data.attributes import Attribute
from evergraph.data.conversion import from_objects
from evergraph.data.datasets.base import DATASETS, Dataset, find_data_root
from evergraph.data.datasets.known_hashes import PLANETOID_HASHES
from evergraph.data.download import LISTING, Published, check_listed, downloaded_files, keep, record
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError, first_line, tell

PARTS = ("train", "val", "test")
PLANETOID = "https://github.com/kimiyoung/planetoid/raw/master/data"


@dataclass(frozen=True)
class PygGraph:
    """A graph, or several graphs, of one of PyG's dataset classes.

    Missing files are downloaded: if `files` names the raw files, by this class, which compares each with its hash if
    known; else by PyG, without a check. Either way the hashes of the raw files go to SHA256SUMS, and a file that has
    changed since is refused: trust on first use. PyG writes a `processed` folder beside the raw files, so the data
    root must be writable.

    Args:
        name: name in messages.
        kind: the class in `torch_geometric.datasets`.
        path: its raw folder under the data root.
        root: the class's `root` under the data root; empty for the data root itself.
        settings: further arguments of the class.
        in_parts: the class has one object for each of `split="train"`, `"val"` and `"test"`.
        prepare: converts each loaded object to one that `from_objects` reads.
        finish: converts the graph to the one that is used.
        files: the raw files by name, if their addresses are known.
    """

    name: str
    kind: str
    path: str
    root: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    in_parts: bool = False
    prepare: Callable[[Any], Any] | None = None
    finish: Callable[[Graph], Graph] | None = None
    files: Mapping[str, Published] = field(default_factory=dict)

    @property
    def checked_by(self) -> str:
        """What a download is compared with: the `hash` of each file, or the `first download`."""
        known = self.files and all(file.sha256 for file in self.files.values())
        return "hash" if known else "first download"

    def load(self, data_root: str | Path | None = None) -> Graph:
        """Load the graph from the data root or, if it is not there, from where it is published."""
        base = find_data_root(data_root)
        raw = base / self.path
        present = raw.exists() and any(raw.iterdir())
        if present:
            check_listed(base, raw)
        elif self.files:
            with downloaded_files(self.files, base) as loaded:
                keep(loaded, base, raw)
        graph = self._read(base)
        if not present and not self.files:
            tell(
                f"{self.name}: PyG fetched it without a known hash to compare with; its hashes are in {base / LISTING}"
            )
            record(base, raw)
        return graph

    def _read(self, base: Path) -> Graph:
        """Read the graph with PyG, which downloads it if necessary."""
        from torch_geometric import datasets

        root, kind = str(base / self.root), getattr(datasets, self.kind)
        try:
            if self.in_parts:
                loaded = [list(kind(root, split=part, **self.settings)) for part in PARTS]
            else:
                loaded = [[kind(root, **self.settings)[0]]]
        except Exception as error:  # PyG's loaders and downloads raise errors of any type
            raise EvergraphError(
                f"{self.name}: PyG's {self.kind} could not fetch or read it under {base} ({first_line(error)}); "
                f"set --data-root or EVERGRAPH_DATA to a folder that can be written and has {self.path}"
            ) from None
        objects = [one if self.prepare is None else self.prepare(one) for part in loaded for one in part]
        graph = from_objects(objects if self.in_parts else objects[0], undirected=True, name=self.name)
        if self.in_parts:
            parts = torch.repeat_interleave(torch.arange(3), torch.tensor([len(part) for part in loaded]))
            graph = graph.altered(splits=parts.unsqueeze(1))
        return graph if self.finish is None else self.finish(graph)


def _one_hot_atoms(molecule: Any) -> Any:
    """Encode ZINC's 28 numbered kinds of atoms as one-hot features."""
    molecule.x = torch.nn.functional.one_hot(molecule.x.reshape(-1).long(), 28).float()
    molecule.y = molecule.y.reshape(1, 1)
    return molecule


def _with_places(image: Any) -> Any:
    """Append the positions of superpixels to their colours."""
    image.x = torch.cat([image.x, image.pos], dim=1)
    return image


def _with_sizes(graph: Graph) -> Graph:
    assert graph.members is not None
    return graph.altered(attributes={"atoms": Attribute(graph.members.counts())})


for name, title, per_task, about in (
    ("cora", "Cora", 2, "Cora: papers, joined by citations; topics"),
    ("citeseer", "CiteSeer", 2, "CiteSeer: papers, joined by citations; topics"),
    ("pubmed", "PubMed", 1, "PubMed: papers on diabetes, joined by citations; its kinds"),
):
    _files = {
        f"ind.{name}.{part}": Published(
            f"{PLANETOID}/ind.{name}.{part}", PLANETOID_HASHES.get(f"ind.{name}.{part}", "")
        )
        for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    }
    _planetoid = PygGraph(name, "Planetoid", f"{title}/raw", settings={"name": title}, files=_files)
    DATASETS.register(
        Dataset(name, _planetoid.load, classes_per_task=per_task, about=about, stream={"split": "random"})
    )
WIKICS = PygGraph(
    "wikics", "WikiCS", "WikiCS/raw", root="WikiCS", settings={"is_undirected": True},
    files={"data.json": Published("https://github.com/pmernyei/wiki-cs-dataset/raw/master/dataset/data.json")},
)  # fmt: skip
DATASETS.register(
    Dataset(
        "wikics", WIKICS.load, about="WikiCS: articles on computer science, joined by links", stream={"split": "random"}
    )
)
ZINC = PygGraph(
    "zinc", "ZINC", "ZINC/raw", root="ZINC", settings={"subset": True}, in_parts=True, prepare=_one_hot_atoms,
    finish=_with_sizes,
)  # fmt: skip
DATASETS.register(
    Dataset(
        "zinc",
        ZINC.load,
        about="ZINC, 12,000 molecules: constrained solubility. Larger molecules in later tasks",
        problem="graph-regression",
        scenario="domain",
        stream={"by": "atoms", "bins": 4},
    )
)
for name, title, about in (
    ("mnist-superpixels", "MNIST", "MNIST as graphs of superpixels (Dwivedi et al.); digits"),
    ("cifar10-superpixels", "CIFAR10", "CIFAR10 as graphs of superpixels (Dwivedi et al.); things"),
):
    _pixels = PygGraph(
        name, "GNNBenchmarkDataset", f"{title}/raw", settings={"name": title}, in_parts=True, prepare=_with_places
    )
    DATASETS.register(Dataset(name, _pixels.load, about=about, problem="graph-classification"))
