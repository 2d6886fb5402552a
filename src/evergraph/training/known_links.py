"""Where examples are links: which of a graph's own links messages pass along in a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergraph.data import Graph, link_ends
from evergraph.data.examples import links_to_know, with_other_links, with_training_edges
from evergraph.errors import tell
from evergraph.training.learned_data import tasks_learned_from

if TYPE_CHECKING:
    from evergraph.training.learner import Learner


def with_known_links(learner: Learner, graph: Graph, asked: Tensor) -> Graph:
    """Return the graph with its known links as edges, to predict the links asked for; other graphs as they are.

    All links that are not asked for are known. If every link is asked for, those are that tasks learned from this graph
    trained on; a note says if there are none. A task's graph already has its known links as edges.
    """
    if graph.along_links or (ends := link_ends(graph, asked)) is None:
        return graph
    if torch.unique(asked).numel() < graph.num_examples:
        return with_other_links(graph, ends.T)
    if (trained := _trained_links(learner, graph)) is not None:
        return with_training_edges(graph, trained)
    tell(
        f"{graph.name}: all of its {graph.num_examples:,} links are asked for, so messages pass along edge_index "
        "alone; put known links there, or ask for the others by number (--nodes)"
    )
    return graph


def _trained_links(learner: Learner, graph: Graph) -> Tensor | None:
    """Links that tasks learned from the graph trained on, without pairs that one held out; None if there is no task."""
    tasks = tasks_learned_from(learner, graph)
    if not tasks:
        return None
    edges = [task.link_edges[1] for task in tasks if task.link_edges is not None]
    trained, held_out = torch.cat(edges), torch.cat([part for task in tasks for part in (task.val, task.test)])
    own = graph.num_examples  # pairs drawn as negative examples have higher numbers
    return links_to_know(graph, torch.unique(trained[trained < own]), held_out[held_out < own])
