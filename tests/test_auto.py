"""`auto`: blocks of features against their formula, factors against the Gram matrix, sums within a memory budget."""

from __future__ import annotations

import math
import weakref

import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

import evergraph as eg
from evergraph.core import symmetric
from evergraph.core.features import as_dense
from evergraph.core.sparse import SparseMatrix
from evergraph.core.symmetric import pack, unpack
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import Graph
from evergraph.methods.base import Context
from evergraph.methods.closed_form import budgeted, factored
from evergraph.methods.closed_form.block_sets import cheapest_near, head_sets, leader, still_open
from evergraph.methods.closed_form.factor import Factor, weighed
from evergraph.methods.closed_form.factored import FactoredSums, rotated
from evergraph.methods.closed_form.hits import rows_of, validation_hits
from evergraph.methods.closed_form.smoothing import best_share
from evergraph.methods.closed_form.sums import HeadRequest, Sums, solve
from evergraph.methods.memory.budget import Budget
from evergraph.models.base import known_inputs, neighbourhoods
from evergraph.models.feature_blocks import Block, Hashing

BLOCKS = ((0, 0.5, "linear"), (1, "others"), (1, "others", "linear"), (2, "others", "linear"), (2, 0.5, "linear"))


@pytest.fixture
def graph() -> Graph:
    made = sbm(nodes=60, classes=6, degree=3, features=9, signal=3.0, seed=2)
    words = torch.where(as_dense(made.x) > 0.5, as_dense(made.x), torch.zeros(()))
    made.x = SparseMatrix.from_scipy(sp.csr_matrix(words.numpy()))
    return made


def built(graph: Graph, **settings: object) -> eg.RandomFeatures:
    torch.manual_seed(3)
    model = eg.RandomFeatures(hidden=4, blocks=BLOCKS, **settings).double()  # type: ignore[arg-type]
    model.setup(graph.num_features, 6)
    return model.double()


def unit(h: Tensor) -> Tensor:
    return h / h.norm(dim=1, keepdim=True).clamp(min=1e-12)


def written_out(model: eg.RandomFeatures, graph: Graph) -> Tensor:
    """Node after node: the mean over its neighbours, the words hashed one by one."""
    x, adjacency = unit(as_dense(graph.x).double()), graph.adjacency.dense().double()
    place, sign = model.hashing.map()
    parts = []
    for block in BLOCKS:
        h = x @ model.projection if block[-1] != "linear" else x
        for _ in range(int(block[0])):
            if block[1] == "others":
                rows = [h[adjacency[v] > 0].mean(0) if adjacency[v].any() else 0 * h[v] for v in range(len(h))]
                h = torch.stack(rows)
            else:
                looped = adjacency + torch.eye(len(h), dtype=torch.float64)
                scale = looped.sum(1) ** -0.5
                h = scale[:, None] * (looped @ (scale[:, None] * h))
        if block[-1] == "linear":
            hashed = torch.zeros(len(h), model.hashing.width, dtype=torch.float64)
            for word in range(h.size(1)):
                hashed[:, place[word]] += sign[word] * unit(h)[:, word]
            parts.append(hashed * (4 / 2) ** 0.5)
        else:
            parts.append(unit(h).relu() * 4**0.5)
    return torch.cat([*parts, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)


@pytest.mark.parametrize("propagate", [True, False], ids=["whole graph", "batches"])
@pytest.mark.parametrize("linear_width", [0, 4], ids=["exact", "hashed"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_blocks_are_the_formula(graph: Graph, propagate: bool, linear_width: int, sparse: bool) -> None:
    model = built(graph, linear_width=linear_width)
    if not sparse:
        graph.x = as_dense(graph.x)
    nodes = torch.tensor([5, 17, 50, 3])
    found = model.features(neighbourhoods(model, graph, propagate=propagate).batch(nodes))
    assert torch.allclose(found, written_out(model, graph)[nodes], atol=1e-7)


def test_dropped_and_narrowed_blocks_are_those_of_a_model_made_so(graph: Graph) -> None:
    wide, keep = built(graph), [True, False, True, False, True]
    rows = neighbourhoods(wide, graph).x
    fold = wide.narrow(keep, 4)
    narrow = built(graph, linear_width=4, kept=keep)
    assert wide.hyperparameters() == narrow.hyperparameters()
    expected = neighbourhoods(narrow, graph).x
    assert torch.allclose(fold(rows, 1), expected)  # type: ignore[arg-type]
    again = wide.narrow([True] * 3, 2)
    assert torch.allclose(again(expected, 1), neighbourhoods(built(graph, linear_width=2, kept=keep), graph).x)


def test_hashing_is_unbiased_with_the_error_that_it_states() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = unit(torch.randn(2, 64, generator=generator, dtype=torch.float64))
    found = []
    for seed in range(400):
        hashed = Hashing.within(64, 16, seed).apply(torch.stack([x, y]))
        found.append(float(hashed[0] @ hashed[1]))
    error = torch.tensor(found) - float(x @ y)
    stated = (2 / 16) ** 0.5
    assert error.abs().mean() < stated
    assert error.square().mean() ** 0.5 < stated
    assert abs(error.mean()) < 3 * stated / 20  # 3 standard errors of 400


def factor_and_sums() -> tuple[Factor, Sums, Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(12, 30, generator=generator, dtype=torch.float64)
    rows[3] = rows[5]  # a direction less
    y, weights = torch.arange(12) % 3, torch.rand(12, generator=generator, dtype=torch.float64) + 0.1
    weights[3] = weights[5]
    gram, cross = torch.zeros(30, 30, dtype=torch.float64), torch.zeros(30, 3, dtype=torch.float64)
    for row, unit_, weight in zip(rows, y, weights):
        gram += weight * torch.outer(row, row)
        cross[:, unit_] += weight * row
    return weighed(rows, y, weights, 3), Sums(gram, cross), rows


def test_short_directions_survive_beside_a_long_one() -> None:
    """Features have a mean that is far from zero, and a small ridge reads what is beside it, in float32 too."""
    rows = torch.randn(200, 300, generator=torch.Generator().manual_seed(0)) + 30
    turned = rotated(Factor(rows, rows[:, :2]))
    missing = turned.rows.double().T @ turned.rows.double() - rows.double().T @ rows.double()
    shortest_half = torch.linalg.eigvalsh(rows.double() @ rows.double().T)[:100].mean()
    assert torch.linalg.matrix_norm(missing, 2) < shortest_half / 3


def test_a_rotated_factor_has_the_same_sums_and_no_node() -> None:
    factor, sums, rows = factor_and_sums()
    turned = rotated(factor)
    assert turned.rows.size(0) == 11
    assert torch.allclose(unpack(turned.gram()), sums.gram)
    assert torch.allclose(turned.rows.T @ turned.targets, sums.cross)
    product = turned.rows @ turned.rows.T
    assert torch.allclose(product, torch.diag(product.diagonal()), atol=1e-9)
    alike = (unit(turned.rows) @ unit(rows).T).abs()
    assert alike.max() < 0.95


@pytest.mark.parametrize("room", [None, 0])
@pytest.mark.parametrize("blocks", [[0, 1, 2], [1, 2], [1], [0], [0, 2], [2]])
def test_heads_from_factors_are_those_from_the_gram_matrix(blocks: list[int], room: int | None) -> None:
    """Of fewer features than rows, of more, and of both at once; whether or not there is room to keep products."""
    factor, sums, _ = factor_and_sums()
    block_of_row = torch.tensor([0] * 4 + [1] * 22 + [2] * 3 + [-1])
    kept = {
        "train": rotated(Factor(*(part[:7] for part in factor))),
        "val": rotated(Factor(*(part[7:] for part in factor))),
    }
    read = [torch.nonzero(torch.isin(block_of_row, torch.tensor([*some, -1]))).reshape(-1) for some in ([0, 1], blocks)]
    beside, wanted = (HeadRequest([0.3, 2.0], ("train", "val"), rows) for rows in read)
    found = FactoredSums(kept, block_of_row, room)
    found.solve_ahead([wanted, beside], 1e-8)
    heads, seen = found.solve(wanted), found.scores(wanted, 1e-8, "val", 2)
    for head, scores, expected in zip(heads, seen, solve(wanted.ridges, [sums], read[1])):
        assert torch.allclose(head, expected, atol=1e-9)
        assert torch.allclose(scores, kept["val"].rows[-2:] @ expected, atol=1e-9)


def test_heads_on_the_same_blocks_share_a_system_and_a_ridge_is_solved_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ridge that is wanted both roughly and exactly is solved exactly."""
    factor, _, _ = factor_and_sums()
    block_of_row, solved, asked = torch.tensor([0] * 10 + [1] * 19 + [-1]), factored.solved, []
    sums = FactoredSums({"train": rotated(factor)}, block_of_row)
    monkeypatch.setattr(factored, "solved", lambda systems, error: asked.append(systems) or solved(systems, error))
    rows = torch.arange(30)
    roughly, exactly = HeadRequest([2.0, 0.3], ("train",), rows, rough=True), HeadRequest([0.3], ("train",), rows)
    sums.solve_ahead([roughly, exactly], 1e-8)
    assert [(ridge, rough) for _, ridge, rough in asked[0]] == [(2.0, True), (0.3, False)]
    assert asked[0][0][0] is asked[0][1][0]
    sums.solve_ahead([exactly, roughly], 1e-8)
    assert len(asked) == 1  # all of it is known


def learned(graph: Graph, memory: str, tasks: int = 3, hidden: int = 28) -> eg.Learner:
    learner = eg.Learner(eg.MixedFeatures(hidden=hidden), eg.Auto(memory=memory), dtype=torch.float64)
    for task in list(eg.TaskStream(graph, 2))[:tasks]:
        learner.learn(task)
    return learner


def test_both_forms_of_the_sums_give_one_head(graph: Graph) -> None:
    factored = learned(graph, "1GB", tasks=2, hidden=56)
    method = factored.method
    assert isinstance(method, eg.Auto)
    assert set(method.factor_) == {"train", "val"}
    rows = torch.arange(factored.model.output_weight().size(0))
    before = method.solve([0.5], ("train", "val"), rows)[0]
    gram = method.gram("train")
    method.make_dense()
    assert torch.allclose(method.gram_["train"], gram)
    assert torch.allclose(method.solve([0.5], ("train", "val"), rows)[0], before, atol=1e-9)


def test_no_row_of_the_sums_is_a_node(graph: Graph) -> None:
    learner = learned(graph, "1GB", tasks=1)
    task = eg.TaskStream(graph, 2)[0]
    nodes = unit(neighbourhoods(learner.model, task.graph).x)  # type: ignore[arg-type]
    kept = unit(learner.method.factor_["train"])
    assert (kept @ nodes.T).abs().max() < 0.999
    assert not learner.method.fresh_


@pytest.mark.parametrize("memory", ["40KB", "20KB"])
def test_the_sums_stay_within_the_budget(graph: Graph, memory: str) -> None:
    learner = learned(graph, memory)
    method = learner.method
    kept = [*method.factor_.values(), *method.gram_.values()]
    assert sum(part.numel() * part.element_size() for part in kept) <= int(memory[:-2]) * 1000
    assert learner.evaluate(eg.TaskStream(graph, 2)).ap > 30


def test_blocks_that_do_not_fit_are_left_behind_the_last_first() -> None:
    graph = sbm(nodes=300, classes=4, features=20, signal=2.0, seed=0)
    kept = {}
    for memory in ("1GB", "300KB", "100KB"):
        learner = eg.Learner(eg.MixedFeatures(hidden=280), eg.Auto(memory=memory)).fit(
            stream := eg.TaskStream(graph, 2)
        )
        kept[memory] = learner.model.kept
        assert learner.evaluate(stream).ap > 80
        method = learner.method
        sums = [*method.factor_.values(), *method.gram_.values()]
        assert sum(part.numel() * part.element_size() for part in sums) <= Budget.of("auto", memory, 0).num_bytes
    assert all(kept["1GB"])
    assert kept["300KB"] == [True] * 5 + [False] * 5
    assert kept["100KB"] == [True] + [False] * 9


@pytest.mark.parametrize(("memory", "kept"), [("400KB", False), ("1GB", True)])
def test_large_features_do_not_stay_with_the_graph(memory: str, kept: bool) -> None:
    """They are dropped when the task has been learned, tested and calibrated on; small ones serve later tests."""
    stream = eg.TaskStream(sbm(nodes=900, classes=4, features=20, signal=2.0, seed=0), 2)
    learner = eg.Learner(eg.MixedFeatures(hidden=280), eg.Auto(memory=memory), device="cpu").fit(stream)
    held = [known_inputs(learner.model, task.graph, torch.device("cpu")) for task in stream]
    width, dtype = learner.model.output_weight().size(0), learner.model.output_weight().dtype
    assert (width * dtype.itemsize * stream[1].graph.num_nodes > Budget.of("auto", memory, 0).num_bytes / 8) != kept
    assert (held[1] is not None) == kept


def test_a_budget_that_holds_nothing_is_one_line(graph: Graph) -> None:
    with pytest.raises(eg.EvergraphError, match="cannot hold the sums"):
        learned(graph, "1KB", hidden=280)
    with pytest.raises(eg.EvergraphError, match="must be an amount"):
        eg.Auto(memory="1%")


@pytest.mark.parametrize("memory", ["1GB", "30KB"])
def test_resumes_identically(graph: Graph, tmp_path: object, memory: str) -> None:
    unbroken = learned(graph, memory, tasks=1)
    unbroken.save(f"{tmp_path}/learner")
    loaded = eg.Learner.load(f"{tmp_path}/learner")
    task = eg.TaskStream(graph, 2)[1]
    for learner in (unbroken, loaded):
        learner.learn(task)
    assert torch.equal(unbroken.model.output_weight(), loaded.model.output_weight())
    assert unbroken.method.set_hits_ == loaded.method.set_hits_
    assert unbroken.method.elsewhere() == loaded.method.elsewhere()


def test_most_hits_lead_and_the_cheapest_near_them_is_kept() -> None:
    counts = {"a": 60, "b": 95, "c": 93}
    assert leader(counts, ["a", "b", "c"]) == "b"
    cost = {"a": 1, "b": 30, "c": 20}
    assert cheapest_near(counts, ["a", "b", "c"], cost, validated=120) == "c"
    assert cheapest_near({**counts, "c": 90}, ["a", "b", "c"], cost, validated=96) == "b"


def test_sets_near_the_one_with_most_hits_stay_open_unless_they_gain_hardly_anything() -> None:
    counts, names = {"a": 60, "b": 95, "c": 93}, ["a", "b", "c"]
    for kept in names:
        gain = (95 - counts[kept] + (2 * 120 - 95 - counts[kept]) ** 0.5) / 120
        assert still_open(counts, names, kept, 120, hardly=gain - 1e-9) == ["b", "c"]
        assert still_open(counts, names, kept, 120, hardly=gain + 1e-9) == []


def test_sets_are_dropped_only_if_hits_or_the_budget_say_so(graph: Graph) -> None:
    """With the same hits: all that are near the leader where there is room, else the narrowest of them."""
    kept = {}
    for memory in ("1GB", "8KB"):
        method = learned(graph, "1GB", tasks=1).method
        model = learned(graph, "1GB", tasks=1).model
        method.memory, layout = memory, model.feature_layout()
        for_head, for_own = method._sets(model)
        method.set_hits_ = {name: 50 + number for number, name in enumerate({**for_own, **for_head})}
        method.set_hits_["linear"] = 10
        kept[memory] = [set(sets) for sets in method._worth_keeping(layout, for_head, for_own, 100)]
    assert "linear" not in kept["1GB"][0]
    assert kept["1GB"][0] == set(for_head) - {"linear"}
    assert kept["1GB"][1] == set(for_own)
    assert kept["8KB"][0] < kept["1GB"][0]


def test_sets_that_are_equal_come_once() -> None:
    sets = head_sets([Block(1), Block(0)])
    assert sets == {"smooth": [True, False], "smooth and own": [True, True], "apart": [False, True]}


def test_what_own_features_explain_is_the_squared_error_of_all_validation_nodes(graph: Graph) -> None:
    learner = learned(graph, "1GB")
    method, model = learner.method, learner.model
    assert isinstance(method, eg.Auto)
    _, block_of_row = model.feature_blocks()
    rows = rows_of(block_of_row, method._own(model))
    squares, sizes = [0.0] * len(method._ridges), torch.zeros(6, dtype=torch.float64)
    for number, head in enumerate(method.solve(method._ridges, ("train",), rows)):
        for task in eg.TaskStream(graph, 2):
            features = neighbourhoods(model, task.graph).x
            for node in task.val.tolist():
                label = int(task.graph.y[node])
                weight = method.class_sizes_[label] ** -method.balance
                wanted = torch.eye(6, dtype=torch.float64)[label]
                squares[number] += weight * float((features[node] @ head - wanted).square().sum())  # type: ignore[index]
                sizes[label] += weight * (number == 0)
    variance = float((sizes * (1 - sizes / sizes.sum())).sum())
    share, ridge = method._own_alone(model)
    assert share == method.own_explains_ == pytest.approx(1 - min(squares) / variance, abs=1e-9)
    assert ridge == method._ridges[squares.index(min(squares))]


def test_hits_from_the_factors_are_those_of_the_heads(graph: Graph) -> None:
    found = []

    class Asked(eg.Auto):
        def hits(self, context: Context, wanted: HeadRequest) -> tuple[int, list[int]]:
            assert self.fresh_["val"]
            first, *_, last = 2 * validation_hits(context, self.solve(*wanted)).tolist()
            right, wrong = (sum(a and not b for a, b in zip(*pair)) for pair in ((last, first), (first, last)))
            found.append((super().hits(context, wanted), (sum(first), [right, wrong])))
            return found[-1][0]

    learner = eg.Learner(eg.MixedFeatures(hidden=140), Asked(memory="1GB"), dtype=torch.float64, device="cpu")
    learner.fit(eg.TaskStream(graph, 2))
    assert len(found) > 10
    assert all(hits == naive for hits, naive in found)


def test_a_learner_with_square_sums_learns_on(graph: Graph) -> None:
    """Learners saved before sums were packed keep square matrices."""
    stream = eg.TaskStream(graph, 2)
    learners = [eg.Learner(eg.RandomFeatures(hidden=60), eg.Analytic(), device="cpu") for _ in range(2)]
    for learner in learners:
        learner.learn(stream[0])
        learner.method.make_dense()
    older = learners[1].method
    older.gram_ = {part: unpack(gram) for part, gram in older.gram_.items()}
    for learner in learners:
        learner.learn(stream[1])
    assert all(torch.equal(gram, older.gram_[part]) for part, gram in learners[0].method.gram_.items())
    assert torch.equal(*(learner.model.head for learner in learners))


@pytest.mark.parametrize(
    ("explained", "over_vote", "over_mixed", "votes", "decides"),
    [
        (0.3, [14, 4], [30, 5], True, "own"),
        (0.3, [9, 4], [30, 5], True, "vote"),
        (0.2, [9, 4], [30, 5], True, "own"),
        (0.01, [9, 4], [30, 5], True, "smooth"),
        (0.3, [9, 4], [9, 5], True, "vote"),
        (0.3, [4, 4], [30, 5], True, "vote"),
        (0.3, [14, 11], [37, 15], True, "vote"),
        (0.3, [9, 4], [9, 5], False, "smooth"),
        (0.3, [9, 99], [30, 80], True, "vote"),
        (0.3, [9, 99], [30, 81], True, "smooth"),
    ],
    ids=[
        "own is clearly better",
        "own is better but the vote judges well",
        "own is better and the vote does not",
        "own says nothing",
        "within the error",
        "no better than the vote",
        "hardly better",
        "dear vote",
        "own somewhat worse",
        "own much worse",
    ],
)
def test_what_decides_where_edges_join_tasks(
    explained: float, over_vote: list[int], over_mixed: list[int], votes: bool, decides: str
) -> None:
    method = eg.Auto()
    method.own_explains_, method.votes_, method.validated_ = explained, votes, 1000
    method.own_within_ = {"vote": over_vote, "beside": over_vote, "smooth": over_mixed}
    assert method.elsewhere() == decides


def test_hits_within_a_task_are_those_among_its_classes(graph: Graph) -> None:
    learner = learned(graph, "1GB", tasks=2)
    task = eg.TaskStream(graph, 2)[2]
    found = []

    class Asked(eg.Auto):
        def _choose_voting(self, context: Context, head: Tensor) -> None:
            super()._choose_voting(context, head)
            vote = self._vote(context.model, ("train",), head)
            units = torch.nonzero(self._arrived(context)).reshape(-1)
            among = validation_hits(context, [head, vote], units).sum(1).tolist()
            rows = context.batcher.x[context.task.val]  # type: ignore[index]
            for hits, weights in zip(among, (head, vote)):
                best = [max(units.tolist(), key=lambda unit: float(row @ weights[:, unit])) for row in rows]
                found.append((hits, sum(b == int(y) for b, y in zip(best, context.batcher.y[context.task.val]))))

    learner.method.__class__ = Asked
    learner.learn(task)
    assert len(found) == 2
    assert all(hits == naive for hits, naive in found)


def test_the_vote_is_the_head_beside_own_features_where_mixing_hides_them(
    graph: Graph,
) -> None:
    learner = learned(graph, "1GB", tasks=2, hidden=56)
    method, model = learner.method, learner.model
    assert isinstance(method, eg.Auto)
    blocks = method._sets(model)[0]
    rows = rows_of(model.feature_blocks()[1], method._own(model))  # type: ignore[operator]
    head, own = (
        torch.randn_like(model.output_weight()),
        method.solve([method._own_alone(model)[1]], ("train",), rows)[0],
    )
    worth = torch.zeros_like(head)
    worth[-1] = method.temperature * method._log_worth()
    assert worth.any()
    for chosen, explained, within, beside, weights in (
        ("apart", 0.3, [3, 2], True, []),
        ("apart", 0.3, [2, 2], False, [1, 1, 1]),  # mixing hides nothing of what a node says
        ("apart", 0.2, [3, 2], False, [1, 1, 1]),
        ("smooth", 0.3, [3, 2], False, [1, 1, 1]),  # a head that reads no own features
        ("smooth", 0.7, [3, 2], False, [0.8, 0.8, 1.4]),  # own features, the last voice, explain more than half
    ):
        method.chosen_, method.blocks_, method.own_explains_ = chosen, blocks[chosen], explained
        method.own_within_ = {**method.own_within_, "smooth": within}
        voices = [method.solve(*wanted)[0] for wanted in method._voice_requests(model, ("train",))]
        weighted = sum(weight * voice for weight, voice in zip(weights, voices))
        mixed = sum(voices) / len(voices)  # own features do not weigh more at 0.3
        expected = (head + own + mixed if beside else weighted) + 3 * worth
        assert torch.allclose(method._vote(model, ("train",), head), expected)


@pytest.mark.parametrize(
    ("asked", "explains", "nodes", "ridge"),
    [
        pytest.param(0.0, 0.3, 20_000, 0.05, id="own features tell"),
        pytest.param(0.0, 0.3, 1_250, 0.2, id="of a quarter of many nodes"),
        pytest.param(0.0, 0.3, 36, 1.0, id="of few nodes"),
        pytest.param(0.0, 0.1, 20_000, 1.0, id="they do not"),
        pytest.param(5.0, 0.3, 36, 5.0, id="given"),
    ],
)
def test_voices_have_the_smallest_ridge_where_own_features_tell_classes_apart(
    graph: Graph, asked: float, explains: float, nodes: int, ridge: float
) -> None:
    """Against the solution written out, in float64."""
    learner = eg.Learner(eg.MixedFeatures(hidden=56), eg.Auto(ridge=asked), dtype=torch.float64)
    learner.fit(eg.TaskStream(graph, 2))
    method, model = learner.method, learner.model
    assert isinstance(method, eg.Auto)
    method.ridge_places_ = dict.fromkeys(method.set_hits_, len(method._ridges) - 1)  # the head's is the largest
    method.smaller_ = {}
    method.own_explains_, method.class_sizes_ = explains, [nodes]
    gram, cross = unpack(method.gram("train")), method.cross_["train"]
    met = int((cross[-1] > 0).sum())
    block_of_row = model.feature_blocks()[1]  # type: ignore[operator]
    wanted = method._voice_requests(model, ("train",))
    assert len(wanted) == len(method.voices(model)) == 3
    for each, blocks in zip(wanted, method.voices(model)):
        rows = rows_of(block_of_row, blocks)
        own = gram[rows][:, rows]
        squares = own.diagonal()
        unit = squares[squares > 0].mean() / met * torch.eye(rows.numel(), dtype=torch.float64)
        expected = torch.linalg.solve(own + ridge * unit, cross[rows])
        assert torch.allclose(method.solve(*each)[0][rows], expected, atol=1e-7)


def test_own_features_judge_edges_where_neighbours_mislead_the_vote() -> None:
    """With one class in each task, training shows only edges within a class; here 19 in 20 join two classes."""
    stream = eg.TaskStream(sbm(nodes=400, classes=4, degree=10, homophily=0.05, features=32, signal=3.5), 1)
    learner = eg.Learner("auto", device="cpu").fit(stream)
    method, head = learner.method, learner.model.output_weight()
    assert isinstance(method, eg.Auto)
    assert method.elsewhere() == "vote"
    (judge,) = (value for heads in method.elsewhere_.values() for value in heads.values())
    assert judge.shape == head.shape
    judged_first = learner.evaluate(stream, test_graph="seen").ap
    assert not judge[rows_of(learner.model.feature_blocks()[1], method.voices(learner.model)[0])[:-1]].any()  # type: ignore[operator]
    method.elsewhere_ = {}  # as in learners saved before: the vote judges twice
    assert judged_first > learner.evaluate(stream, test_graph="seen").ap + 5
    method.own_explains_ = 0.24  # too little to judge by
    method._write_elsewhere(learner.model)
    assert not method.elsewhere_


def test_few_edges_between_tasks_are_tolerated_where_the_other_way_of_deciding_costs_much() -> None:
    """Own features cost a seventh of the nodes here: with a tenth of the edges between tasks the head still decides."""
    graph = sbm(nodes=1000, classes=4, degree=8, homophily=0.15, features=16, signal=1.0, seed=957)
    stream = eg.TaskStream(graph, 2)
    learner = eg.Learner(eg.MixedFeatures(hidden=448), "auto", device="cpu").fit(stream)
    method = learner.method
    assert isinstance(method, eg.Auto)
    assert method.elsewhere() == "own"
    lost = max(method.set_hits_.values()) - method.set_hits_[method.own_]
    assert method._cost_elsewhere() == pytest.approx(lost / method.validated_)
    assert lost > 0.1 * method.validated_
    seen = stream.tests(1, 0, "seen")[0]
    task = (seen.y >= 2).long()
    sources, targets = seen.edge_index
    between = task[sources] != task[targets]
    number = torch.minimum(sources, targets) * seen.num_nodes + torch.maximum(sources, targets)
    nodes = torch.cat([task.test for task in stream])
    accuracy = {}
    for tenths in (1, 10):
        kept = ~between | (number % 10 < tenths)
        ends = (torch.ones(int(kept.sum())), (targets[kept], sources[kept]))
        some = seen.altered(adjacency=SparseMatrix.from_scipy(sp.csr_matrix(ends, shape=(seen.num_nodes,) * 2)))
        for judges in (True, False):
            method.judge_edges = judges
            hits = learner.logits(some).argmax(1)[nodes] == seen.y[nodes]
            accuracy[tenths, judges] = float(hits.double().mean())
    assert accuracy[1, True] == accuracy[1, False] > accuracy[10, True] > accuracy[10, False]


def test_own_features_are_compared_with_the_vote_that_there_is() -> None:
    method = eg.Auto()
    method.own_, method.chosen_, method.own_explains_, method.votes_ = "own", "apart", 0.3, True
    method.own_within_ = {"vote": [14, 4], "beside": [4, 9], "smooth": [30, 5]}
    assert method.elsewhere() == "vote"
    method.own_explains_ = 0.2
    assert method.elsewhere() == "own"


def test_sums_are_folded_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "PANEL", 3)
    model = eg.MixedFeatures(hidden=14)
    model.setup(16, 2)
    gram = torch.randn(model.output_weight().size(0), model.output_weight().size(0), dtype=torch.float64)
    gram = gram + gram.T
    fold = model.narrow([True, False, *[True] * 8], 4)
    folded = unpack(budgeted.folded_twice(pack(gram), fold))
    assert torch.allclose(folded, fold(fold(gram, 0), 1), atol=1e-12)


@pytest.mark.parametrize("memory", ["2MB", "1GB"])
def test_products_of_factors_stay_within_the_budget(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 260 nodes a product of one block takes an eighth of a megabyte, and there are ten blocks."""
    live, peak = [0], [0]

    def counted(rows: Tensor) -> Tensor:
        found = plain(rows)
        size = found.untyped_storage().nbytes()
        live[0] += size
        peak[0] = max(peak[0], live[0])
        weakref.finalize(found.untyped_storage(), lambda: live.__setitem__(0, live[0] - size))
        return found

    plain = factored.outer_product
    monkeypatch.setattr(factored, "outer_product", counted)
    monkeypatch.setattr(eg.Auto, "too_much", lambda self: False)  # no set is dropped
    graph = sbm(nodes=324, classes=4, degree=6, features=12, signal=3.0, seed=4)
    heads = []
    for room in (memory, "1GB"):
        live[0] = peak[0] = 0
        learner = eg.Learner(eg.MixedFeatures(hidden=1400), eg.Auto(memory=room), device="cpu")
        learner.fit(eg.TaskStream(graph, 4))
        heads.append(learner.model.output_weight().detach())
        if room == memory:
            within = peak[0]
    assert heads[0].shape == heads[1].shape
    assert torch.allclose(*heads, atol=1e-5)
    assert (within <= 2e6) == (memory == "2MB")


def test_the_head_is_a_blend_of_those_near_the_best(graph: Graph) -> None:
    """Scores of each set's head are stretched to probabilities, and weighted by how likely the set is the best."""
    learner = learned(graph, "1GB", tasks=3, hidden=56)
    method, model = learner.method, learner.model
    assert isinstance(method, eg.Auto)
    sets = method._sets(model)[0]
    method.set_hits_ = dict.fromkeys(method.set_hits_, 5) | {"linear": 4, "own": 0}
    method.smaller_, method.validated_ = {}, 6
    method.conclude(model)
    near = [name for name in sets if name != "own"]
    assert list(method.blend_) == near
    odds = [math.exp(-1 / (2 * 3)) if name == "linear" else 1.0 for name in near]  # one hit, with 1 + 2 misses
    block_of_row = model.feature_blocks()[1]  # type: ignore[operator]
    expected = torch.zeros_like(method.cross_["train"])
    stretches = []
    for name, each in zip(near, odds):
        rows = rows_of(block_of_row, sets[name])
        head = method.solve([method._ridges[method.ridge_places_[name]]], ("train",), rows)[0]
        gram, cross = unpack(method.gram("val")), method.cross_["val"]
        mean = head.T @ cross.sum(1) / cross[-1].sum()
        length = (head * (gram @ head)).sum() - cross[-1].sum() * mean.square().sum()
        stretches.append(float(((head * cross).sum() - mean @ cross[-1]) / length))
        expected += min(max(stretches[-1], 0.2), 5.0) * head * each / sum(odds)
    assert len(set(stretches)) > 1
    assert torch.allclose(method._solved(model, ("train",)), expected, atol=1e-7)


def test_where_own_features_say_nothing_two_depths_are_blended(graph: Graph) -> None:
    learner = learned(graph, "1GB", tasks=2, hidden=56)
    method, model = learner.method, learner.model
    assert isinstance(method, eg.Auto)
    method.own_explains_ = 0.0
    block_of_row = model.feature_blocks()[1]  # type: ignore[operator]
    heads = []
    for deepest in (False, True):
        blocks = [block.mixes and (block.depth == 2 or not deepest) for block in model.feature_layout().present]  # type: ignore[operator]
        heads.append(method.solve([method._explained(model, blocks)[1]], ("train",), rows_of(block_of_row, blocks))[0])
    assert torch.allclose(method._ways(model, ("train",), heads[0])["smooth"], (heads[0] + heads[1]) / 2)
    assert not torch.allclose(heads[0], heads[1])


def test_where_own_features_say_something_mixed_scores_have_the_scale_of_the_head(graph: Graph) -> None:
    """One factor stretches both to probabilities, since they share a temperature; the prior is divided by it too."""
    method, model = eg.Auto(ridge=25.0), eg.MixedFeatures(hidden=56)  # a ridge that shrinks scores
    eg.Learner(model, method, dtype=torch.float64).fit(eg.TaskStream(graph, 2))
    method.own_explains_ = 0.3
    head = method._mixed_head(model, ("train",))
    assert 1.1 < method.stretch_ < 4.9
    assert method._stretch(head, torch.arange(head.size(0))) == pytest.approx(method.stretch_)
    raised = method.temperature * method._log_worth() / method.stretch_
    assert raised.abs().max() > 1e-3
    method.prior = "weights"
    assert torch.allclose(head[-1], method._mixed_head(model, ("train",))[-1] + raised, atol=1e-9)


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ([], 0.0),
        ([0] * 6, 0.0),
        ([9, 1, 12, 2, 11, 2], 0.5),
        ([9, 1, 9, 1, 9, 1], 0.25),  # the smallest of equals
        ([4, 2, 5, 3, 6, 4], 0.0),  # two of six: chance
        ([4, 2, 5, 3, 12, 4], 0.75),
    ],
)
def test_the_share_of_smoothing_is_the_one_with_most_hits_beyond_chance(counts: list[int], share: float) -> None:
    assert best_share(counts, 0.75) == pytest.approx(share)
    assert best_share(counts, 0.0) == 0.0
