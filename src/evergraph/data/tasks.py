"""A task: what arrives at one step of a stream."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from evergraph.core.edits import Contents
from evergraph.core.features import Features, block_diagonal
from evergraph.core.settings import NonNegativeInt, NotEmpty, PositiveInt, Seed, checked
from evergraph.core.sparse import SparseMatrix
from evergraph.data.arrangement import (
    chosen_positions,
    given_split,
    no_labels,
    split_what_can_be,
    split_within_tasks,
    trained_classes,
)
from evergraph.data.examples import (
    as_existing_links,
    links_to_know,
    with_training_edges,
    without_held_out_edges,
)
from evergraph.data.files import as_graph
from evergraph.data.graph import Graph
from evergraph.data.negatives import with_negatives
from evergraph.data.targets import ClassName, as_known
from evergraph.errors import EvergraphError, tell
from evergraph.persistence.reading import content_hash

Part = Literal["train", "val", "test"]


@dataclass(eq=False)
class Task:
    """One step of a stream: a graph, its classes, and the examples for training, validation and testing.

    Args:
        index: position in the stream, from 0.
        class_positions: the task's classes, as positions in `graph.class_names`.
        graph: the task's graph; `graph.y` holds positions in `graph.class_names`.
        train: examples (nodes, graphs, links) to train on; `val` and `test` likewise.
        num_classes: number of classes of the whole stream, so that the output layer can have its final size.
        so_far: returns all tasks up to this one as a single task, if the stream still has them; None for a task that
            was pickled alone, without its stream. Only for methods that declare access to all data, such as joint
            training.
        origin: for a task of a stream: a name for the stream's numbering, and the numbers of the examples in its whole
            graph.
        joined: whether tasks of the stream contain examples of earlier ones.
        link_edges: where examples are links: the adjacency without them, and the links that are added to it as edges;
            no held-out pair is among either.
        new_nodes: number of the graph's nodes that earlier tasks did not have; None for all.
    """

    index: int
    class_positions: list[int]
    graph: Graph
    train: Tensor
    val: Tensor
    test: Tensor
    num_classes: int
    so_far: Callable[[], Task] | None = field(default=None, repr=False)
    origin: tuple[str, Tensor] | None = field(default=None, repr=False)
    joined: bool = field(default=False, repr=False)
    link_edges: tuple[SparseMatrix, Tensor] | None = field(default=None, repr=False)
    new_nodes: int | None = field(default=None, repr=False)
    _mark: str = field(default="", init=False, repr=False)
    _marked: Contents | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled and deeply copied: the task alone, not its stream, which holds later tasks too.

        Nor the hash, since an edit of the copy could not be told from it.
        """
        return {**self.__dict__, "so_far": None, "_mark": "", "_marked": None}

    def __copy__(self) -> Task:
        return replace(self)  # it has the same stream

    @property
    def class_names(self) -> list[ClassName]:
        """User-given names of the task's classes."""
        return [self.graph.class_names[position] for position in self.class_positions]

    def __repr__(self) -> str:
        sizes = f"train={self.train.numel()}, val={self.val.numel()}, test={self.test.numel()}"
        return f"Task({self.index}, classes={self.class_names}, {self.graph.level}s={self.graph.num_examples}, {sizes})"

    @classmethod
    @checked
    def of(
        cls,
        graph: Graph | Any,
        classes: Annotated[Sequence[ClassName], NotEmpty()] | None = None,
        *,
        hold_out: bool = True,
        seed: Seed = 0,
        index: NonNegativeInt = 0,
        numbers: bool = False,
    ) -> Task:
        """Make a task of the labelled examples of a graph; they may read all its nodes and edges.

        A split that comes with the data (`train_mask`, …) is respected: only its training examples are trained on. A
        class without training examples is not one of the task's classes: its validation examples are dropped, and its
        test examples stay, as examples of an unknown class. Links without any label are taken for existing ones, as by
        `make_links(negatives=True)`.

        Args:
            graph: a `Graph`, a PyG `Data` object, a list of them (`evergraph.data.conversion`) or the path of a file.
            classes: names of the classes to learn; all classes with examples by default.
            hold_out: split 60/20/20 within each class if the data has no split of its own, but train on all
                examples of a class with fewer than five; if False, train on every example and test on none.
            seed: seed of the split.
            index: the task's number, for messages.
            numbers: targets are numbers to predict, even if they are whole and would be read as classes.
        """
        graph = as_existing_links(as_graph(graph, numbers=numbers))
        if graph.splits is not None and (several := graph.splits.size(1)) > 1:
            tell(f"{graph.name} comes with {several} splits; split {seed % several + 1} is used (seed={seed})")
        if not graph.has_classes:
            return cls._of_columns(graph, classes, hold_out, seed, index)
        present = torch.unique(graph.y[graph.y >= 0]).tolist()
        if not present:
            raise no_labels(graph)
        present = chosen_positions(graph, present, classes)
        chosen, part = torch.isin(graph.y, torch.tensor(present)), given_split(graph, seed)
        if part is not None:
            train, val, test = (torch.nonzero(chosen & (part == number)).reshape(-1) for number in range(3))
            present = trained_classes(graph, present, torch.bincount(graph.y[train], minlength=graph.num_classes))
            val = val[torch.isin(graph.y[val], torch.tensor(present, dtype=torch.long))]
        elif hold_out:
            train, val, test = split_what_can_be(graph, present, seed)
        else:
            train = torch.nonzero(chosen).reshape(-1)
            val = test = train[:0]
        if not hold_out:
            val = test = train[:0]
        known, graph = along_training_links(graph, train, torch.cat([val, test]))
        return cls(index, present, graph, train, val, test, graph.num_classes, link_edges=known)

    @classmethod
    def _of_columns(
        cls, graph: Graph, classes: Sequence[ClassName] | None, hold_out: bool, seed: int, index: int
    ) -> Task:
        """Like `of`, where examples have several labels or numbers: all columns are learned."""
        if classes is not None:
            raise EvergraphError(f"{graph.name}: its examples have no classes to choose from; leave classes out")
        part, task_of = given_split(graph, seed), torch.zeros(graph.num_examples, dtype=torch.long)
        if part is None:
            part = split_within_tasks(graph, task_of, seed) if hold_out else task_of.clone()
        part = torch.where(graph.labelled & (hold_out | (part == 0)), part, -1)
        if graph.positives_only:
            graph, _, part = with_negatives(graph, task_of, part, seed)
        train, val, test = (torch.nonzero(part == number).reshape(-1) for number in range(3))
        if not train.numel():
            raise EvergraphError(f"{graph.name}: none of the training {graph.level}s has a target")
        known, graph = along_training_links(graph, train, torch.cat([val, test]))
        columns = list(range(graph.num_classes))
        return cls(index, columns, graph, train, val, test, graph.num_classes, link_edges=known)

    @checked
    def pieces(self, size: PositiveInt) -> Iterator[Task]:
        """Yield the task as small tasks with `size` training examples each, in the order of their numbers.

        Pairs that were drawn as having no link, whose numbers come last, are spread evenly among the links.

        For a single pass without task boundaries: every piece has the task's graph, the classes among its own
        examples, and nothing to validate or test on.

        Args:
            size: number of training examples per piece; the last takes the rest.
        """
        train = spread_evenly(self.train, self.graph.y[self.train, 0]) if self.graph.positives_only else self.train
        for number, chosen in enumerate(train.split(size)):
            classes, new = self.class_positions, 0 if number else self.new_nodes
            if self.graph.has_classes:
                classes = torch.unique(self.graph.y[chosen]).tolist()
            none = chosen[:0]
            piece = replace(self, class_positions=classes, train=chosen, val=none, test=none)
            yield replace(piece, so_far=None, new_nodes=new)

    @property
    def num_new_nodes(self) -> int:
        """Number of the graph's nodes that earlier tasks of the stream did not have."""
        return self.graph.num_nodes if self.new_nodes is None else self.new_nodes

    def without(self, examples: Tensor, *, keep_in_graph: bool = False) -> Task:
        """Return the task without some examples, as if they had never been there.

        Args:
            examples: their numbers in the task's graph.
            keep_in_graph: keep them in the graph, nodes as unlabelled neighbours and links as edges; else the graph is
                the one induced on all other nodes, renumbered in their order, or has the edges of all other links.
        """
        gone = torch.zeros(self.graph.num_examples, dtype=torch.bool)
        gone[examples] = True
        parts = [part[~gone[part]] for part in (self.train, self.val, self.test)]
        origin, edges = self.origin, self.link_edges
        if keep_in_graph or self.graph.level != "node":
            empty = -1 if self.graph.has_classes else torch.nan
            y = self.graph.y.clone()
            y[gone] = empty
            self.graph.notice_edits()
            mark = self.graph.mark and content_hash([self.graph.mark, torch.nonzero(gone).reshape(-1).tolist()])
            graph = self.graph.altered(y=y, mark=mark)
            if edges is not None and not keep_in_graph:
                edges = (edges[0], edges[1][~gone[edges[1]]])
                graph = with_training_edges(graph.altered(adjacency=edges[0]), edges[1])
        else:
            left = torch.nonzero(~gone).reshape(-1)
            position = torch.full((gone.numel(),), -1)
            position[left] = torch.arange(left.numel())
            graph, parts = self.graph.subgraph(left), [position[part] for part in parts]
            origin = None if origin is None else (origin[0], origin[1][left])
        classes, (train, val, test) = self.class_positions, parts
        if graph.has_classes:
            present = set(graph.y[train].tolist())
            lost = [place for place in classes if place not in present]
            classes = [place for place in classes if place in present]
            val = val[~torch.isin(graph.y[val], torch.tensor(lost, dtype=torch.long))]
        changed = replace(self, class_positions=classes, graph=graph, train=train, val=val, test=test)
        return replace(changed, so_far=None, origin=origin, link_edges=edges, new_nodes=None)

    def mark(self) -> str:
        """Return a hash of the task's content, to recognize it and not to mix up an interrupted task with another.

        If the graph's own hash is known (as for a converted graph), features and edges are not read.
        """
        self.graph.notice_edits()  # its hash is then unknown
        x, edges, members = self.graph.x, self.graph.adjacency, self.graph.members
        read = [self.train, self.val, self.test, self.graph.y]
        if not self.graph.mark:
            read += [*(x.parts() if isinstance(x, SparseMatrix) else [x]), *edges.parts()]
        read += [] if members is None else [members.indices]
        if self._mark and (self._marked is None or self._marked.are_those_of(read)):
            return self._mark
        names = [self.class_names, self.graph.num_features, self.graph.num_edges]
        digest = hashlib.sha256(json.dumps([*names, self.graph.mark] if self.graph.mark else names).encode())
        for part in read:
            digest.update(part.cpu().contiguous().numpy().data)
        self._mark, self._marked = digest.hexdigest(), Contents(read)
        return self._mark

    def pack(self) -> dict[str, Any]:
        """Return the task as plain values and tensors, for storage; `unpack` restores it."""
        x = self.graph.x
        features = {"x": x} if not isinstance(x, SparseMatrix) else {"x_sparse": _pack(x)}
        plain = {"index": self.index, "class_positions": self.class_positions, "num_classes": self.num_classes}
        parts = {"train": self.train, "val": self.val, "test": self.test, "y": self.graph.y}
        names = {"class_names": self.graph.class_names, "name": self.graph.name}
        packed = {**plain, **parts, **names, **features, "adjacency": _pack(self.graph.adjacency)}
        if self.graph.members is not None:
            packed |= {"level": self.graph.level, "members": _pack(self.graph.members)}
            packed["positives_only"] = self.graph.positives_only
        return packed

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> Task:
        """Restore a task from what `pack` returned."""
        x = packed["x"] if "x" in packed else _unpack(packed["x_sparse"])
        tensors = {key: packed[key].cpu() for key in ("train", "val", "test", "y")}
        graph = Graph(
            x.to("cpu"), _unpack(packed["adjacency"]), tensors.pop("y"), list(packed["class_names"]), packed["name"]
        )
        if "members" in packed:
            members, positives_only = _unpack(packed["members"]), packed["positives_only"]
            graph = graph.altered(level=packed["level"], members=members, positives_only=positives_only)
        return cls(
            packed["index"], list(packed["class_positions"]), graph, num_classes=packed["num_classes"], **tensors
        )


def along_training_links(
    graph: Graph, train: Tensor, held_out: Tensor
) -> tuple[tuple[SparseMatrix, Tensor] | None, Graph]:
    """Return `Task.link_edges` and the graph with the training links as edges, but none between held-out pairs.

    Where examples are not links: None and the graph as it is.
    """
    if graph.level != "link":
        return None, graph
    graph, links = without_held_out_edges(graph, held_out), links_to_know(graph, train, held_out)
    return (graph.adjacency, links), with_training_edges(graph, links)


def spread_evenly(examples: Tensor, kinds: Tensor) -> Tensor:
    """Return the examples in an order in which those of each kind keep theirs, and come at equal distances."""
    place = torch.empty(examples.numel())
    for kind in torch.unique(kinds):
        mine = kinds == kind
        place[mine] = (torch.arange(int(mine.sum())) + 0.5) / mine.sum()
    return examples[place.argsort(stable=True)]


def _pack(matrix: SparseMatrix) -> dict[str, Any]:
    parts = {"indptr": matrix.indptr, "indices": matrix.indices, "values": matrix.values}
    return {**parts, "num_columns": matrix.num_columns}


def _unpack(packed: dict[str, Any]) -> SparseMatrix:
    return SparseMatrix(**packed).to("cpu")


def union(tasks: Sequence[Task]) -> Task:
    """Merge several tasks into one: their graphs side by side, their classes (or target columns) matched by name."""
    graphs = [task.graph for task in tasks]
    names: list[ClassName] = []
    for graph in graphs:
        names += [name for name in as_known(graph.class_names, names) if name not in names]
    position = {name: number for number, name in enumerate(names)}
    starts = torch.tensor([0, *(graph.num_examples for graph in graphs)]).cumsum(0).tolist()
    last = graphs[-1]
    members = None
    if last.members is not None:
        members = block_diagonal([graph.members for graph in graphs if graph.members is not None])
    graph = Graph(
        stack_features([graph.x for graph in graphs]),
        block_diagonal([graph.adjacency for graph in graphs]),
        torch.cat([_renamed(graph, position) for graph in graphs]),
        names,
        last.name,
    ).altered(level=last.level, members=members, positives_only=last.positives_only)
    train, val, test = (
        torch.cat([getattr(task, part) + start for task, start in zip(tasks, starts)])
        for part in ("train", "val", "test")
    )
    classes = list(dict.fromkeys(position[name] for task in tasks for name in as_known(task.class_names, names)))
    num_classes = max(task.num_classes for task in tasks)
    return Task(tasks[-1].index, classes, graph, train, val, test, num_classes)


def _renamed(graph: Graph, position: dict[ClassName, int]) -> Tensor:
    """Return a graph's targets with its classes or columns moved to other positions."""
    places = [position[name] for name in as_known(graph.class_names, list(position))]
    if graph.has_classes:
        return torch.tensor([*places, -1])[graph.y]  # the last entry is for -1, no label
    wide = graph.y.new_full((graph.num_examples, len(position)), torch.nan)
    wide[:, places] = graph.y
    return wide


def stack_features(features: Sequence[Features]) -> Features:
    """Stack feature matrices vertically; the result is sparse if the first is."""
    first = features[0]
    if not isinstance(first, SparseMatrix):
        return torch.cat([rows.dense() if isinstance(rows, SparseMatrix) else rows for rows in features])
    sparse = [rows if isinstance(rows, SparseMatrix) else SparseMatrix.from_dense(rows) for rows in features]
    return SparseMatrix.stack(sparse, first.num_columns)
