"""Where examples are links: which of a graph's own links messages pass along in a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergraph.data import Graph, Task, link_ends
from evergraph.data.examples import links_to_know, with_other_links, with_training_edges, without_edges_between
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
    if tasks := tasks_learned_from(learner, graph):
        return _along_trained_links(tasks, graph)
    tell(
        f"{graph.name}: all of its {graph.num_examples:,} links are asked for, and no task was learned from this very "
        "graph, so messages pass along edge_index alone; put known links there, or ask for the others by number "
        "(--nodes), or for a stream's links in the graphs of its tasks"
    )
    return without_edges_between(graph, ends.T)


def _along_trained_links(tasks: Sequence[Task], graph: Graph) -> Graph:
    """Return the graph with the links that tasks learned from it trained on as edges, without pairs that one held out.

    Pairs drawn as negative examples, which have higher numbers than the graph's own links, are left aside.
    """
    edges = [task.link_edges[1] for task in tasks if task.link_edges is not None]
    trained, held_out = torch.cat(edges), torch.cat([part for task in tasks for part in (task.val, task.test)])
    trained, held_out = (torch.unique(links[links < graph.num_examples]) for links in (trained, held_out))
    bare = graph if (ends := link_ends(graph, held_out)) is None else without_edges_between(graph, ends.T)
    return with_training_edges(bare, links_to_know(graph, trained, held_out))
