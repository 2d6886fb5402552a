"""The memory that replay methods share: what a piece holds, what a budget lets go of, and that it is never exceeded."""

from __future__ import annotations

import pytest
import torch

import evergraph as eg
from brute_force import make
from evergraph.core.features import as_dense
from evergraph.core.sparse import SparseMatrix
from evergraph.errors import EvergraphError
from evergraph.methods.memory import Budget, Piece, Replayed, in_turns, joined, smaller_form
from evergraph.methods.memory.budget import turns
from evergraph.methods.state import count_bytes


def isolated(units: list[int], features: int = 4, seed: int = 0) -> Piece:
    x = torch.randn(len(units), features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Piece(x, torch.tensor(units))


def with_neighbours() -> Piece:
    """Examples 0, 1, 2 at nodes 0, 2, 3. Node 1 came with example 0, node 4 with example 1; node 3 came with 0 too."""
    x = torch.arange(20, dtype=torch.float64).reshape(5, 4)
    edges = torch.tensor([[0, 1, 2, 4, 0, 3, 3, 4], [1, 0, 4, 2, 3, 0, 4, 3]])
    return Piece(x, torch.tensor([0, 1, 0]), torch.tensor([0, 2, 3]), edges, torch.tensor([0, 0, 1, 0, 1]))


def test_a_piece_comes_back_from_its_packed_form_as_it_was() -> None:
    sparse = Piece(SparseMatrix.from_dense(torch.eye(4)), torch.tensor([1, 0, 2, 2]), key=torch.rand(4))
    for piece in (isolated([0, 1, 1]), with_neighbours(), sparse):
        again = Piece.unpack(piece.pack())
        assert torch.equal(as_dense(again.x), as_dense(piece.x))
        assert torch.equal(again.units, piece.units)
        for name in ("seeds", "edge_index", "owner", "key"):
            left, right = getattr(again, name), getattr(piece, name)
            assert (left is None) == (right is None)
            assert left is None or torch.equal(left.double(), right.double())
        assert piece.num_bytes == count_bytes(piece.pack())


def test_a_node_leaves_with_its_owner_unless_it_is_an_example_itself() -> None:
    piece = with_neighbours()
    left = piece.take(torch.tensor([1, 2]))  # without example 0, which had brought the node of example 2
    assert left.num_nodes == 3  # nodes 2, 3, 4
    assert torch.equal(left.x, piece.x[[2, 3, 4]])
    assert left.seeds.tolist() == [0, 1]
    assert left.owner.tolist() == [0, 1, 0]
    assert {tuple(edge) for edge in left.edge_index.T.tolist()} == {(0, 2), (2, 0), (1, 2), (2, 1)}
    assert piece.take(torch.tensor([0])).num_nodes == 3  # nodes 0, 1, 3


def test_classes_take_turns_over_all_pieces() -> None:
    pieces = [isolated([0, 1, 0, 0, 1]), isolated([2, 0, 2])]
    first, second = turns(pieces)
    by_turn = sorted(
        [(int(turn), 0, n) for n, turn in enumerate(first)] + [(int(t), 1, n) for n, t in enumerate(second)]
    )
    units = [int(pieces[piece].units[number]) for _, piece, number in by_turn]
    assert sorted(units[:3]) == [0, 1, 2]  # the first of each class
    assert sorted(units[3:6]) == [0, 1, 2]  # the second of each
    assert units[6:] == [0, 0]
    zeros = [(piece, number) for _, piece, number in by_turn if pieces[piece].units[number] == 0]
    assert zeros == [(0, 0), (1, 1), (0, 2), (0, 3)]  # from each piece in turn


@pytest.mark.parametrize("limit", [60, 150, 333, 1000])
def test_a_budget_in_bytes_keeps_the_longest_beginning_that_fits(limit: int) -> None:
    pieces = [isolated([0, 1] * 4), with_neighbours(), isolated([2] * 5)]
    kept = Budget(num_bytes=limit).fit("test", pieces, 0, 4)
    assert sum(piece.num_bytes for piece in kept) <= limit
    number = sum(piece.num_examples for piece in kept)
    turn_of = turns(pieces)
    one_more = [piece.take(torch.nonzero(turn <= number).reshape(-1)) for piece, turn in zip(pieces, turn_of)]
    more = sum(piece.num_bytes for piece in one_more if piece.num_examples)
    assert more > limit or number == sum(piece.num_examples for piece in pieces)


def test_other_budgets() -> None:
    pieces = [isolated([0, 1] * 4), with_neighbours()]
    kept = Budget(per_class=3).fit("test", pieces, 0, 4)
    assert torch.bincount(torch.cat([piece.units for piece in kept])).tolist() == [3, 3]
    kept = Budget(share=0.1).fit("test", pieces, 50, 4)
    assert sum(piece.num_examples for piece in kept) == 5  # of nodes the examples, whatever they bring with them
    assert sum(piece.num_nodes for piece in kept) > 5
    assert Budget.of("x", "2MB", 0) == Budget(num_bytes=2_000_000)
    assert Budget.of("x", "1.5 KiB", 0) == Budget(num_bytes=1536)
    assert Budget.of("x", 300, 0) == Budget(num_bytes=300)
    assert Budget.of("x", "1%", 20) == Budget(share=0.01)
    assert Budget.of("x", "", 20) == Budget(per_class=20)


@pytest.mark.parametrize("memory", ["much", "2TBs", "0MB", "-3", "200%", 400 * "9"])
def test_a_budget_that_is_none_is_refused_in_one_line(memory: str) -> None:
    with pytest.raises(EvergraphError, match="test: ") as caught:
        Budget.of("test", memory, 1)
    assert "\n" not in str(caught.value)


def test_a_budget_without_room_for_one_example_is_refused() -> None:
    with pytest.raises(EvergraphError, match="cannot hold a single example"):
        Budget(num_bytes=20).fit("test", [isolated([0, 1])], 0, 2)


def test_in_turns() -> None:
    ranked = [torch.tensor([5, 3, 1]), torch.tensor([8]), torch.tensor([7, 6])]
    assert in_turns(ranked).tolist() == [5, 8, 7, 3, 6, 1]


def test_the_smaller_form_of_features() -> None:
    dense, sparse = torch.randn(6, 5), torch.zeros(6, 50).index_put((torch.arange(6), torch.arange(6)), torch.ones(6))
    assert not isinstance(smaller_form(SparseMatrix.from_dense(dense)), SparseMatrix)
    assert isinstance(smaller_form(sparse), SparseMatrix)
    assert torch.equal(as_dense(smaller_form(sparse)), sparse)


def test_the_memory_joins_pieces_side_by_side() -> None:
    """Outputs of the whole are the outputs of the pieces."""
    setting = make("gcn")
    pieces = [isolated([0, 1, 2]), with_neighbours()]
    replayed = Replayed.of(setting.context(), pieces, [4, 4, 3])
    whole = setting.model(replayed.batch)
    alone = []
    for piece in pieces:
        graph, examples, _ = joined([piece], eg.GCN())
        alone.append(setting.model(setting.problem.batcher(setting.model, graph).batch(examples)))
    assert torch.allclose(whole, torch.cat(alone))
    assert replayed.batch.y.tolist() == [0, 1, 2, 0, 1, 0]
    assert replayed.tasks.tolist() == [0, 0, 0, 1, 1, 1]


def test_weights_of_replayed_examples() -> None:
    setting = make("gcn", classes=(0, 1, 2))
    context = setting.context()  # 9 training nodes of 3 classes
    replayed = Replayed.of(context, [isolated([0, 1, 1, 1])], [5, 12])
    assert replayed.weights(context, "examples").tolist() == [1, 1, 1, 1]
    assert replayed.weights(context, "sets").tolist() == [9 / 4] * 4
    assert replayed.weights(context, "classes").tolist() == [3, 1, 1, 1]  # each class counts 3 in all
    assert replayed.weights(context, "nodes").tolist() == [5, 4, 4, 4]  # what each stands for


STREAM = eg.TaskStream(eg.stream("sbm:nodes=200,classes=6,features=8").graph, 2)
REPLAYING = [name for name, kind in eg.METHODS.items() if "per_class" in kind().hyperparameters()]


def made(name: str, settings: dict[str, object]) -> eg.Method:
    """The method, with little work at a task's end where it condenses."""
    known = eg.METHODS[name]().hyperparameters()
    short = {"networks": 2, "updates": 2, "pseudo_label_epochs": 2}
    return eg.make_method(name, {**{key: value for key, value in short.items() if key in known}, **settings})


def after_each_task(method: eg.Method, model: eg.GraphModel | None = None) -> list[eg.Method]:
    learner = eg.Learner(model or eg.GCN(hidden=4), method, epochs=1, device="cpu")
    for task in STREAM:
        learner.learn(task)
        yield method


@pytest.mark.parametrize("name", REPLAYING)
@pytest.mark.parametrize("memory", ["1500", pytest.param("2.5KB", marks=pytest.mark.slow), "10%"])
def test_the_budget_is_never_exceeded(name: str, memory: str) -> None:
    few = {"neighbours": "1,1"} if "neighbours" in eg.METHODS[name]().hyperparameters() else {}  # room for every class
    method = made(name, {"memory": memory, **few})
    counts = []
    for index, _ in enumerate(after_each_task(method)):
        if memory == "10%":
            nodes = sum(task.graph.num_nodes for task in list(STREAM)[: index + 1])
            assert sum(piece.num_examples for piece in method.pieces()) <= round(nodes / 10)
        else:
            assert method.kept_bytes() <= Budget.of(name, memory, 0).num_bytes
        counts.append(torch.bincount(torch.cat([piece.units for piece in method.pieces()])))
    if not method.by_chance and memory != "10%":  # where chance decides; where the budget grows, old classes cannot
        assert int(counts[-1].max()) - int(counts[-1].min()) <= 1
        assert counts[-1].numel() == 6


@pytest.mark.parametrize("name", REPLAYING)
def test_so_many_of_each_class(name: str) -> None:
    method = made(name, {"per_class": 3})
    for number, _ in enumerate(after_each_task(method), start=1):
        units = torch.cat([piece.units for piece in method.pieces()])
        assert units.numel() == 3 * 2 * number
        if not method.by_chance:
            assert torch.bincount(units).tolist() == [3] * 2 * number


def test_old_classes_outside_the_label_scope_compete_with_those_inside() -> None:
    inside, outside = make("gcn", classes=(0, 1)), make("gcn", classes=(2, 3))
    pieces = [isolated([0, 1, 1])]
    context = inside.context()
    assert Replayed.of(context, pieces, [1, 2]).problem is context.problem
    assert Replayed.of(outside.context(), pieces, [1, 2]).problem.scope.tolist() == [0, 1, 2, 3]


def test_a_number_of_bytes_is_a_number_or_its_text() -> None:
    assert (
        eg.make_method("reservoir", {"memory": 300}).budget() == eg.make_method("reservoir", {"memory": "300"}).budget()
    )
    assert eg.Reservoir(memory=300).budget().num_bytes == 300
    with pytest.raises(EvergraphError, match="memory=0 must be text or a whole number of at least 1"):
        eg.Reservoir(memory=0)
