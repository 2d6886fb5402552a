"""What docstrings promise, where methods, memory, links and thresholds meet: against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import evergraph as eg
from evergraph.data.datasets.sbm import sbm
from evergraph.methods.base import Context
from evergraph.methods.class_shares import class_shares
from evergraph.methods.condensation import puma
from evergraph.methods.memory.subgraphs import with_neighbours
from evergraph.training.unknown import Familiar, counted

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*join the ends of validation and test links"),
    pytest.mark.filterwarnings("ignore:.*too few pairs of nodes have no link"),
]


def graph(**settings: object) -> eg.Graph:
    return sbm(**{"nodes": 240, "classes": 4, "degree": 5, "features": 8, "signal": 2.0, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_what_pi_gnn_replays_counts_in_the_shares_of_classes(reduction: str) -> None:
    """Old classes would have the share 0, and their logits would be pushed up by 27."""
    found = list[Tensor]()

    class Watched(eg.LogitAdjustment):
        name = "watched"

        def observe(self, step: eg.Step) -> None:
            if step.context.index and not found:
                found.append(class_shares(step.context))
                memory = pi_gnn.replayed(step.context)
                assert memory is not None
                own = step.context.batcher.y[step.context.train]
                weight = torch.bincount(own, minlength=4).double()
                for units in (memory.units, step.context.cache["moved"][1]):
                    weight += torch.bincount(units, minlength=4) * (own.numel() * 0.5 / max(units.numel(), 1))
                found.append(weight / weight.sum())

    pi_gnn = eg.PIGNN(memory_weight=0.5)
    stream = eg.TaskStream(graph(), 2)
    learner = eg.Learner(
        eg.GCN(hidden=8), eg.Compose(pi_gnn, Watched()), epochs=20, lr=0.01, reduction=reduction, device="cpu"
    )
    learner.fit(stream)
    assert torch.allclose(found[0].double(), found[1])
    assert float(found[0].min()) > 0.01
    assert min(learner.evaluate(stream).matrix[-1]) > 40


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("size", [0, 10])
def test_a_share_of_the_nodes_counts_each_node_once(size: int, between: bool) -> None:
    method = eg.make_method("reservoir", {"memory": "10%"})
    learner = eg.Learner(eg.GCN(hidden=8), method, epochs=1, device="cpu")
    for task in eg.TaskStream(graph(), 2, edges_between_tasks=between):
        for piece in task.pieces(size) if size else [task]:
            learner.learn(piece)
    assert method.nodes_met_ == 240  # type: ignore[attr-defined]


def link_graph() -> tuple[eg.Graph, Tensor]:
    random = torch.Generator().manual_seed(0)
    known = torch.randint(30, (2, 150), generator=random)
    known = known[:, known[0] != known[1]]
    links = torch.randint(30, (2, 40), generator=random)
    links = links[:, links[0] != links[1]].repeat(1, 3)  # every pair three times
    years = torch.arange(links.size(1)) % 2
    x = torch.randn(30, 4, generator=random)
    return eg.make_links(x, links, edge_index=known, negatives=True, attributes={"year": years}), known


def test_a_pair_joined_by_a_known_edge_is_no_pair_without_a_link() -> None:
    made, known = link_graph()
    task = eg.Task.of(made)
    assert task.graph.members is not None
    pairs = task.graph.members.indices.view(-1, 2)
    drawn = pairs[task.graph.y[:, 0] == 0].tolist()
    joined = {frozenset(pair) for pair in known.T.tolist()}
    assert drawn
    assert not [pair for pair in drawn if frozenset(pair) in joined]


@pytest.mark.parametrize("streamed", [False, True])
def test_no_message_passes_along_a_pair_that_is_to_be_predicted(streamed: bool) -> None:
    made, known = link_graph()
    task = eg.stream(made, by="year")[1] if streamed else eg.Task.of(made)
    assert task.graph.members is not None
    pairs = task.graph.members.indices.view(-1, 2)
    held_out = {frozenset(pairs[link].tolist()) for link in torch.cat([task.val, task.test]).tolist()}
    given = {frozenset(pair) for pair in known.T.tolist()}
    edges = {frozenset(pair) for pair in task.graph.edge_index.T.tolist()}
    assert edges - given  # training links
    assert given & held_out
    assert not edges & held_out


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("false_alarms", [0.05, 0.1, 0.2])
def test_no_more_known_examples_are_flagged_than_asked_for(columns: int, false_alarms: float) -> None:
    """Scores of the very examples that the table was counted from, in few cells and anywhere in them."""
    random = torch.Generator().manual_seed(3)
    low, high = (-25.0, 5.0) if columns == 1 else (-2.0, 1.0)
    values = low + (high - low) * (0.5 + 0.02 * torch.randn(400, columns, generator=random, dtype=torch.float64))
    if columns == 2:
        values[:, 1] = torch.randn(400, generator=random, dtype=torch.float64) / 4
    table = counted(values)
    familiar = Familiar.of([table], 0.25)
    assert familiar is not None
    flagged = float((familiar.score(values) > familiar.threshold(false_alarms)).double().mean())
    assert flagged <= false_alarms


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_every_example_has_its_number_of_neighbours_whoever_reached_it_first(order: list[int]) -> None:
    edges = torch.tensor([[0, 1, 1, 1, 1, 1, 1], [1, 0, 2, 3, 4, 5, 6]])
    both = torch.cat([edges, edges.flip(0)], dim=1)
    star = eg.make_graph(torch.eye(7), both, torch.zeros(7, dtype=torch.long))
    asked = list[int]()

    def pick(node: int, neighbours: Tensor, number: int) -> Tensor:
        asked.append(node)
        return neighbours.flip(0)[:number]

    nodes = torch.tensor(order)
    piece = with_neighbours(star, nodes, torch.zeros(2, dtype=torch.long), (3, 1), pick, torch.float32)
    assert sorted(asked) == sorted(set(asked))
    assert piece.seeds is not None
    assert piece.edge_index is not None
    place = dict(zip(order, piece.seeds.tolist()))
    around = piece.edge_index[0][piece.edge_index[1] == place[1]]
    assert around.unique().numel() >= 3


def test_puma_labels_no_test_node_of_an_earlier_task(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = eg.TaskStream(graph(), 2, edges_between_tasks=True)
    seen = list[tuple[Context, Tensor]]()

    def watched(context: Context) -> Tensor:
        seen.append((context, plain(context)))
        return seen[-1][1]

    plain = puma.unlabelled
    monkeypatch.setattr(puma, "unlabelled", watched)
    eg.Learner(eg.GCN(hidden=8), eg.make_method("puma", {"per_class": "2"}), epochs=1, device="cpu").fit(stream)
    assert len(seen) >= 2
    context, nodes = seen[-1]
    assert set(nodes.tolist()) == set(context.task.val.tolist())


@pytest.mark.parametrize("method", ["analytic", "auto"])
@pytest.mark.parametrize("by_class", [False, True])
def test_batches_give_the_head_of_learning_everything_at_once(method: str, by_class: bool) -> None:
    """As docs/new-data.md says: always for `analytic`; for `auto` if no class comes after the first batch."""
    whole = eg.Task.of(graph(), hold_out=False)
    of = whole.graph.y[whole.train] >= 2 if by_class else torch.arange(whole.train.numel()) % 2 == 1
    none = whole.train[:0]
    batches = []
    for nodes in (whole.train[~of], whole.train[of]):
        classes = torch.unique(whole.graph.y[nodes]).tolist()
        batches.append(eg.Task(0, classes, whole.graph, nodes, none, none, whole.num_classes))
    heads = []
    for tasks in ([whole], batches):
        chosen = eg.registry.methods[method](balance=0.0)
        learner = eg.Learner(eg.RandomFeatures(hidden=60), chosen, dtype=torch.float64).fit(tasks)
        assert learner.classes_ == [0, 1, 2, 3]
        heads.append(learner.model.head.detach())
    assert torch.allclose(*heads, atol=1e-10) == (method == "analytic" or not by_class)
