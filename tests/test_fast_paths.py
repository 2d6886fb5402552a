"""Every shortcut against the plain way, in float64 where arithmetic is compared, and on whole runs."""

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.setting import make_context, remember
from scipy import sparse as sp
from torch import Tensor

import evergraph as eg
from cases import slow
from evergraph.core.capabilities import No
from evergraph.core.frequent_columns import in_halves
from evergraph.core.params import Displacement, copy_params
from evergraph.core.pulled import gradients, is_one, pull_back, pulled_along
from evergraph.core.row_pieces import RowPieces, row_kernel
from evergraph.core.shortcuts import FAST_PATHS, fast, fast_paths, full_precision, rounded_products, tensor_cores
from evergraph.core.sparse import SparseMatrix
from evergraph.curvature import fisher_diagonal, forward, label_factors, sum_of_powers
from evergraph.data.batching import Batch
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import Graph, make_graph
from evergraph.data.streams import TaskStream
from evergraph.data.tasks import Task
from evergraph.errors import EvergraphError
from evergraph.methods import make_method
from evergraph.methods.base import Context, Method
from evergraph.methods.online_curvature import gradient_rows
from evergraph.models.base import GraphModel, stays_sparse
from evergraph.models.fixed_products import fixed_product
from evergraph.models.gcn import GCN, gcn_operator, propagation_pays
from evergraph.problems.classification import Classification
from evergraph.training.adam import WideAdam, wide_adam_suits
from evergraph.training.executors import AheadExecutor, CapturedExecutor, PlainExecutor, WholeBatchExecutor
from evergraph.training.executors.captured import cut_rows, padded_batch, rounded_up
from evergraph.training.executors.cuda_graphs import can_capture, cuda_graph_of
from evergraph.training.optimizers import make_optimizer
from evergraph.training.step import train_step

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def sparse_graph(seed: int = 0, nodes: int = 80) -> Graph:
    """A small graph with sparse features."""
    made = sbm(nodes=nodes, classes=4, degree=5, features=1, seed=seed)
    x = sp.random(nodes, 30, 0.15, format="csr", rng=seed, dtype="float64")
    return make_graph(x, made.edge_index, made.y)


def dense_graph(seed: int = 0, nodes: int = 80) -> Graph:
    return sbm(nodes=nodes, classes=4, degree=5, features=6, signal=2.0, seed=seed)


GRAPHS: dict[str, Callable[[], Graph]] = {"sparse": sparse_graph, "dense": dense_graph}


def context_of(graph: Graph, past: int = 0, device: str = "cpu", **settings: object) -> Context:
    """A task in float64."""
    torch.manual_seed(0)
    model = GCN(**{"hidden": 7, **settings})  # type: ignore[arg-type]
    model.setup(graph.num_features, 4)
    return make_context(model.double(), Task.of(graph), past, device)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).detach().norm() / expected.detach().norm())


# the switch


def test_paths_can_be_switched_one_by_one() -> None:
    assert all(fast(name) for name in FAST_PATHS)
    with fast_paths("bags"):
        assert [name for name in FAST_PATHS if fast(name)] == ["bags"]
        with fast_paths():
            assert not any(fast(name) for name in FAST_PATHS)
    assert all(fast(name) for name in FAST_PATHS)


def test_the_environment_switches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergraph.core.shortcuts._on", None)
    monkeypatch.setenv("EVERGRAPH_FAST", "anchors,capture")
    assert [name for name in FAST_PATHS if fast(name)] == ["anchors", "capture"]
    monkeypatch.setattr("evergraph.core.shortcuts._on", None)
    monkeypatch.setenv("EVERGRAPH_FAST", "none")
    assert not fast("bags")
    monkeypatch.setattr("evergraph.core.shortcuts._on", None)
    monkeypatch.setenv("EVERGRAPH_FAST", "turbo")
    with pytest.raises(EvergraphError, match=r"EVERGRAPH_FAST 'turbo'; choose one of: all, none, bags"):
        fast("bags")


# the first layer at the anchors


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("propagate", [True, False])
@pytest.mark.parametrize("num_layers", [2, 3])
def test_tangent_from_the_anchors_is_the_product_with_the_displacement(
    kind: str, propagate: bool, num_layers: int
) -> None:
    context = context_of(GRAPHS[kind](), propagate_inputs=propagate, num_layers=num_layers)
    total = {name: torch.randn_like(value) for name, value in context.params.items()}
    direction = Displacement(context.params, 3, total)
    written_out = {name: 3 * value.detach() - total[name] for name, value in context.params.items()}
    for seeds in (torch.arange(5), torch.tensor([70, 3])):
        batch = context.batcher.batch(seeds)
        (logits, (tangent,)) = forward(context.model, batch, [direction])
        with fast_paths():
            (plain_logits, (plain_tangent,)) = forward(context.model, batch, [written_out])
        assert relative(tangent, plain_tangent) < 1e-13
        assert relative(logits, plain_logits) < 1e-14
        found = torch.autograd.grad(logits.sum(), list(context.params.values()))
        expected = torch.autograd.grad(plain_logits.sum(), list(context.params.values()))
        assert all(relative(a, b) < 1e-13 for a, b in zip(found, expected))


def test_changed_anchors_are_noticed() -> None:
    context = context_of(dense_graph())
    total = {name: torch.randn_like(value) for name, value in context.params.items()}
    batch = context.batcher.batch(torch.arange(4))
    before = forward(context.model, batch, [Displacement(context.params, 1, total)])[1][0]
    total["weights.0"].mul_(2)  # in place: the same tensor with other values
    after = forward(context.model, batch, [Displacement(context.params, 1, total)])[1][0]
    assert not torch.allclose(before, after)
    with fast_paths():
        plain = forward(context.model, batch, [Displacement(context.params, 1, total)])[1][0]
    assert relative(after, plain) < 1e-13


@pytest.mark.parametrize("propagate", [True, False])
def test_sampled_neighbours_keep_the_tangent_right(propagate: bool) -> None:
    context = context_of(dense_graph(), propagate_inputs=propagate)
    cut = context.batcher
    cut.fan_out = (2, 2)
    batch = cut.batch(torch.arange(20), torch.Generator().manual_seed(0))
    total = {name: torch.randn_like(value) for name, value in context.params.items()}
    direction = Displacement(context.params, 2, total)
    found = forward(context.model, batch, [direction])[1][0]
    with fast_paths():
        assert relative(found, forward(context.model, batch, [dict(direction)])[1][0]) < 1e-13


def test_a_product_too_large_to_keep_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergraph.models.fixed_products.LARGEST", 10)
    context = context_of(dense_graph())
    total = {name: torch.randn_like(value) for name, value in context.params.items()}
    assert fixed_product(context.batcher, total["weights.0"], propagate=False) is None
    batch = context.batcher.batch(torch.arange(4))
    direction = Displacement(context.params, 2, total)
    found = forward(context.model, batch, [direction])[1][0]
    with fast_paths():
        assert relative(found, forward(context.model, batch, [dict(direction)])[1][0]) < 1e-13


# Fisher diagonals from the layer equations


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("propagate", [True, False])
@pytest.mark.parametrize("labels", ["exact", "empirical", "pred"])
def test_structured_diagonal_is_the_sum_over_nodes(kind: str, propagate: bool, labels: str) -> None:
    context = context_of(GRAPHS[kind](), propagate_inputs=propagate)
    measure = partial(fisher_diagonal, context.model, context.batches, context.problem, labels)
    found = measure()
    with fast_paths():
        plain = measure()
    assert found.keys() == plain.keys()
    assert all(relative(found[name], plain[name]) < 1e-12 for name in plain)


def test_a_diagonal_after_more_training_is_that_of_the_new_parameters() -> None:
    context = context_of(sparse_graph())
    optimizer = make_optimizer(context.model, eg.Training(lr=0.1))
    measure = partial(fisher_diagonal, context.model, context.batches, context.problem)
    before = measure()
    train_step(context, Method(), next(context.batches(16)), optimizer)
    found = measure()
    with fast_paths():
        plain = measure()
    assert all(relative(found[name], plain[name]) < 1e-12 for name in plain)
    assert relative(found["weights.0"], before["weights.0"]) > 0.01


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("memory", [1, 10_000])
def test_structured_absolute_gradients_in_any_grouping(kind: str, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergraph.models.gcn_powers.SPARSE_BYTES", memory)
    monkeypatch.setattr("evergraph.models.gcn_powers.DENSE_BYTES", memory)
    context = context_of(GRAPHS[kind]())

    def cotangents(batch: Batch, logits: Tensor) -> Tensor:
        return label_factors(context.problem, logits, "exact")

    found = sum_of_powers(context.model, context.batches, cotangents, power=1)
    with fast_paths():
        plain = sum_of_powers(context.model, context.batches, cotangents, power=1)
    assert all(relative(found[name], plain[name]) < 1e-12 for name in plain)


# padded batches, as CUDA graphs want them


@pytest.mark.parametrize("past", [0, 3])
def test_a_padded_batch_gives_the_batch_s_logits_tangents_and_gradients(past: int) -> None:
    context = context_of(dense_graph(), past)
    method = remember(make_method("curvature" if past else "finetune"), context, past)
    seeds = torch.tensor([5, 0, 33, 79, 12])
    rows = int(context.batcher.operator.counts()[seeds].sum())
    plain = context.batcher.batch(seeds)
    for capacity in (rows, rounded_up(rows), 200):
        padded = padded_batch(context.batcher, seeds, capacity)
        assert torch.equal(padded.y, plain.y)
        (a, tangents_a), (b, tangents_b) = (
            forward(context.model, batch, method.directions(context)) for batch in (padded, plain)
        )
        assert relative(a, b) < 1e-13
        assert all(relative(u, v) < 1e-13 for u, v in zip(tangents_a, tangents_b))
        params = list(context.params.values())
        cotangent = torch.randn_like(a)
        grads = (torch.autograd.grad(logits, params, cotangent) for logits in (a, b))
        assert all(relative(u, v) < 1e-13 for u, v in zip(*grads))


def test_triton_s_padded_batch_is_the_one_cut_by_torch() -> None:
    """In Triton's interpreter, which needs no GPU; where Triton is not installed there is nothing to test."""
    pytest.importorskip("triton")
    assert interpreted("from evergraph.training.executors.cut_kernel import launch", "cut_error") == 0


def cut_error(launch: Callable[..., tuple[Tensor, Tensor]], device: str) -> float:
    """The largest difference between the kernel's padded batches and torch's."""
    batcher = context_of(dense_graph(), device=device).batcher
    operator, worst = batcher.operator, 0.0
    for seeds in ([5, 0, 33, 79, 12], [7], list(range(80))):
        nodes = torch.tensor(seeds, device=device)
        rows = int(operator.counts()[nodes].sum())
        for capacity in (rows, rounded_up(rows), 600):
            found = launch(nodes, (operator.indptr, operator.indices, operator.values), capacity, batcher.x)
            expected = cut_rows(operator, nodes, capacity)
            sources = (found[0] - expected[0])[:rows].abs().max()  # padding may read any node, with weight 0
            features = (found[2] - batcher.x[found[0]]).abs().max()
            worst = max(worst, float(sources), float((found[1] - expected[1]).abs().max()), float(features))
    return worst


def test_rounding_up_is_never_short_and_never_half_as_much_again() -> None:
    sizes = {rounded_up(rows) for rows in range(1, 5000)}
    assert all(rows <= rounded_up(rows) for rows in range(1, 5000))
    assert all(rounded_up(rows) <= 1.5 * rows for rows in range(64, 5000))
    assert sorted(sizes) == [64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144]


def trained(stream: TaskStream, name: str, batch_size: int) -> tuple[dict[str, Tensor], list[float]]:
    """Parameters and losses of a method in float64, from the same start."""
    learner = eg.Learner(GCN(hidden=7), make_method(name), epochs=3, batch_size=batch_size, device="cpu")
    torch.manual_seed(0)
    learner.model.setup(stream.num_features, 4)
    learner.model.double()
    losses = [row["loss"] for task in stream for row in learner.learn(task)]
    return copy_params(learner.model), losses


@pytest.mark.parametrize("name", ["finetune", "curvature", "online-ewc", "ewc+ema"])
@pytest.mark.parametrize("largest", [2**24, 0])
def test_padded_training_is_the_plain_training(name: str, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks with the padded steps in the loop (uncaptured: no GPU is needed) and with the plain ones."""
    monkeypatch.setattr("evergraph.training.executors.captured.LARGEST_OPERATOR", largest)
    stream = TaskStream(dense_graph(), 2)

    plain, plain_losses = trained(stream, name, 16)
    monkeypatch.setattr(CapturedExecutor, "suits", classmethod(lambda kind, context, method: True))
    found, found_losses = trained(stream, name, 16)
    assert found_losses == pytest.approx(plain_losses, rel=1e-9)
    assert all(relative(found[key], plain[key]) < 1e-8 for key in plain)


def test_what_cannot_be_padded_says_why() -> None:
    method = Method()
    assert can_capture(context_of(dense_graph()), method, "padded") is True
    for context, reason in (
        (context_of(dense_graph(), dropout=0.5), "dropout is by node"),
        (context_of(dense_graph(), num_layers=3), "more than one hop"),
        (context_of(sparse_graph(), propagate_inputs=True), "sparse inputs"),
        (context_of(dense_graph(), propagate_inputs=False), "more than one hop"),
    ):
        answer = can_capture(context, method, "padded")
        assert isinstance(answer, No)
        assert reason in answer.reason
        assert can_capture(context, method, "rows")


def test_on_a_cpu_there_is_nothing_to_capture() -> None:
    context = context_of(dense_graph())
    assert CapturedExecutor.suits(context, Method()) == No("on a CPU")
    assert WholeBatchExecutor.suits(context, Method()) == No("on a CPU")
    context.batch_size = None
    assert CapturedExecutor.suits(context, Method()) is False  # a full batch needs no padding


@pytest.mark.parametrize("name", ["finetune", "curvature", "online-ewc", "si", "lwf", "stand-in-curvature"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_training_on_one_batch_that_is_cut_once_is_the_plain_training(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks, full batch, uncaptured: only the order of the examples differs."""
    stream = TaskStream(GRAPHS[kind](), 2)

    plain, plain_losses = trained(stream, name, 0)
    monkeypatch.setattr(WholeBatchExecutor, "suits", classmethod(lambda kind, context, method: True))
    found, found_losses = trained(stream, name, 0)
    assert found_losses == pytest.approx(plain_losses, rel=1e-9)
    assert all(relative(found[key], plain[key]) < 1e-7 for key in plain)


# sparse inputs that stay sparse


def uneven_matrix(dtype: torch.dtype = torch.float64, device: str = "cpu") -> SparseMatrix:
    """Rows of all lengths: none, a few, and all columns."""
    made = sp.random(40, 300, 0.3, format="lil", rng=0)
    made[3], made[7] = 0.0, 1.0
    return SparseMatrix.from_scipy(sp.csr_matrix(made), dtype).to(device)


@pytest.mark.parametrize("longest", [1, 7, 64, 500])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_by_pieces_of_rows_is_the_product(longest: int, transposed: bool) -> None:
    matrix = uneven_matrix().t() if transposed else uneven_matrix()
    dense = torch.randn(matrix.num_columns, 5, dtype=torch.float64)
    pieces = RowPieces.of(matrix.indptr, matrix.indices, longest)
    assert int((pieces.ends - pieces.starts).max()) <= longest
    assert relative(pieces.multiply(matrix.values, dense), matrix.dense() @ dense) < 1e-14


def test_a_matrix_made_ready_for_many_products_differentiates_as_before() -> None:
    matrix, ready = uneven_matrix(), uneven_matrix().for_many_products()
    ready.t().for_many_products()
    dense = torch.randn(300, 3, dtype=torch.float64, requires_grad=True)
    directions = torch.randn(2, 300, 3, dtype=torch.float64)
    cotangent = torch.randn(40, 3, dtype=torch.float64)
    found, expected = (
        (
            torch.autograd.grad(either @ dense, dense, cotangent)[0],
            torch.func.jvp(lambda w, of=either: of @ w, (dense.detach(),), (directions[0],))[1],
            torch.vmap(lambda w, of=either: of @ w)(directions),
        )
        for either in (ready, matrix)
    )
    assert all(relative(a, b) < 1e-14 for a, b in zip(found, expected))
    with fast_paths():
        assert uneven_matrix().for_many_products()._pieces is None


def counts_of_words() -> SparseMatrix:
    """Small whole numbers in rows of all lengths."""
    matrix = uneven_matrix()
    return matrix.with_values((4 * matrix.values).ceil())


@pytest.mark.parametrize("networks", [1, 3])
def test_a_product_with_frequent_columns_apart_is_the_product(networks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To 16 bits, as is that of the transpose, whose rows they are; and of what is needed, whatever else there is."""
    monkeypatch.setattr("evergraph.core.frequent_columns.SHARE", 0.4)
    monkeypatch.setattr("evergraph.core.frequent_columns.FEWEST", 8)
    matrix = counts_of_words().with_frequent_columns()
    for factor in (matrix, matrix.t()):
        apart = factor._frequent
        assert apart is not None
        assert 0 < apart.where.numel() < 300
        assert apart.values.numel() == matrix.nnz - int(matrix.t().counts()[apart.where].sum())
        dense = torch.randn(factor.num_columns, 4 * networks, dtype=torch.float64)
        assert relative(apart.multiply(dense), factor.dense() @ dense) < 2**-17
        exact = torch.randint(-(2**15), 2**15, dense.shape).double()  # of 16 bits: nothing is lost
        assert relative(apart.multiply(exact), factor.dense() @ exact) < 1e-14
        assert not apart.suits(dense)  # on a CPU
    rows = (torch.rand(40, networks) < 0.5).to(torch.int8)
    needed = matrix.as_needed(rows, None)
    weight = torch.randint(-99, 99, (300, networks, 4)).double()
    back = torch.randint(-99, 99, (40, networks, 4)).double() * rows.unsqueeze(2)
    assert needed._frequent is not None
    assert needed.t()._frequent is not None
    found = needed._frequent.multiply(weight.flatten(1), (rows, None)).unflatten(1, (networks, 4))
    expected = (matrix.dense() @ weight.flatten(1)).unflatten(1, (networks, 4))
    torch.testing.assert_close(found[rows != 0], expected[rows != 0])
    found = needed.t()._frequent.multiply(back.flatten(1), (None, rows))
    torch.testing.assert_close(found, matrix.dense().T @ back.flatten(1))


def test_columns_are_apart_where_many_are_frequent_and_exact() -> None:
    rare = SparseMatrix.from_scipy(sp.random(400, 300, 0.002, random_state=0, format="csr"))
    assert rare.with_frequent_columns()._frequent is None
    assert uneven_matrix().with_frequent_columns()._frequent is None  # no numbers of 8 bits
    assert counts_of_words().with_frequent_columns()._frequent is not None
    with fast_paths("sparse"):
        assert counts_of_words().with_frequent_columns()._frequent is None


def halves_error(_: object, device: str) -> float:
    """The largest difference between a matrix and the sum of its halves, over the 2⁻¹⁷ that they may leave of it."""
    from evergraph.core.row_kernel import halve

    dense, errors = torch.randn(9, 1100, device=device), []
    for rows in (None, torch.tensor([7, 0, 3], device=device)):
        found, wanted = halve(dense, rows).float(), dense if rows is None else dense[rows]
        errors += [((found[: len(wanted)] + found[len(wanted) :] - wanted) / wanted).abs().max() * 2**17]
        if device != "cpu":
            assert torch.equal(found.cpu(), in_halves(dense.cpu(), None if rows is None else rows.cpu()).float())
    return float(max(errors))


def test_triton_s_product_by_pieces_is_the_product() -> None:
    """In Triton's interpreter, which needs no GPU; where Triton is not installed there is nothing to test."""
    pytest.importorskip("triton")
    assert interpreted("from evergraph.core.row_kernel import launch", "error_of") < 1e-13
    assert interpreted("from evergraph.core.row_kernel import launch", "needed_error") < 1e-13
    assert interpreted("launch = None", "halves_error") <= 4  # there bfloat16 numbers are cut off, not rounded


def interpreted(imports: str, function: str) -> float:
    """What a function of this file says of a kernel, in Triton's interpreter."""
    script = f"{imports}; from test_fast_paths import {function}; print({function}(launch, 'cpu'))"
    folder = str(Path(__file__).parent)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def error_of(launch: Callable[..., object], device: str) -> float:
    """The largest relative error of the kernel's product, in float64, over matrices and numbers of columns."""
    errors = []
    for matrix in (uneven_matrix(device=device), uneven_matrix(device=device).t()):
        for columns in (1, 15, 100, 300):
            dense = torch.randn(matrix.num_columns, columns, dtype=torch.float64, device=device)
            pieces = RowPieces.of(matrix.indptr, matrix.indices, 16)
            out = dense.new_empty(pieces.places, columns)
            launch(out, dense, (pieces.starts, pieces.ends, pieces.targets), (pieces.indices, matrix.values))
            launch(out, out, (pieces.long_starts, pieces.long_ends, pieces.long_rows), None)
            errors.append(relative(out[: matrix.num_rows], matrix.dense() @ dense))
    return max(errors)


def needed_error(launch: Callable[..., object], device: str) -> float:
    """The largest relative error of products that leave out what two networks do not need, whatever else is there."""
    from evergraph.core.row_kernel import mark_columns

    errors, matrix = [], uneven_matrix(device=device)
    flipped, networks, unit = matrix.t(), 2, 256
    chosen = torch.tensor([[0, 1, 5], [1, 2, 2]], device=device)
    rows, columns = (torch.zeros(size, networks, dtype=torch.int8, device=device) for size in matrix.shape)
    for network in range(networks):
        rows[chosen[network], network] = 1
    expected = (matrix.dense().ne(0).double().T @ rows.double() > 0).to(torch.int8)
    for given, listed in ((chosen, True), (rows, False)):
        mark_columns(columns.zero_(), given, matrix.indptr, matrix.indices, listed=listed)
        errors.append(float((columns != expected).sum()))
    cases = ((matrix, rows, None), (flipped, columns, rows), (flipped, None, rows))
    for factor, row_flags, entry_flags in cases:
        dense = torch.randn(factor.num_columns, networks, unit, dtype=torch.float64, device=device)
        wanted = factor.dense() @ (dense if entry_flags is None else dense * (entry_flags != 0).unsqueeze(2)).flatten(1)
        if row_flags is not None:
            wanted = (wanted.unflatten(1, (networks, unit)) * (row_flags != 0).unsqueeze(2)).flatten(1)
        pieces = RowPieces.of(factor.indptr, factor.indices, 16)
        out = dense.new_full((pieces.places, networks * unit), torch.nan)
        entries = pieces.indices, factor.values
        places = pieces.starts, pieces.ends, pieces.targets
        launch(out, dense.flatten(1), places, entries, pieces.rows, (row_flags, entry_flags))
        long = pieces.long_starts, pieces.long_ends, pieces.long_rows
        launch(out, out, long, None, pieces.long_rows, (row_flags, None))
        errors.append(relative(out[: factor.num_rows], wanted))
    return max(errors)


@pytest.mark.parametrize("networks", [1, 3])
def test_needed_rows_are_the_neighbours_of_what_is_chosen_and_theirs(networks: int) -> None:
    """And products at them are those of the whole pass, forwards and backwards."""
    task = TaskStream(sparse_graph(), 2)[0]
    batch = eg.NodeClassification([0, 1]).batcher(GCN(), task.graph).batch(task.train).for_many_steps()
    needed, generator = batch.needs_of(networks), torch.Generator().manual_seed(0)
    for _ in range(2):  # what was needed before is not any more
        chosen = torch.randint(batch.num_seeds, (networks, 3), generator=generator)
        needed.mark(chosen)
        last, first = batch.layer(1).dense(), batch.layer(0).dense()
        for network in range(networks):
            near = (last[chosen[network]] != 0).any(0)
            far = (first[near] != 0).any(0)
            assert torch.equal(needed._flags[0][:, network] != 0, near)
            assert torch.equal(needed._flags[1][:, network] != 0, far)
            assert not far.all()
        weight = torch.randn(batch.x.size(1), networks, 4, generator=generator, requires_grad=True)
        found, whole = (
            (layer @ (x @ weight)) for layer, x in ((needed.layers[0], needed.x), (batch.layer(0), batch.x))
        )
        flags = (needed._flags[0] != 0).unsqueeze(2)
        torch.testing.assert_close(found, whole * flags)
        back = torch.randn(found.shape, generator=generator) * flags
        torch.testing.assert_close(*(torch.autograd.grad(made, weight, back) for made in (found, whole)))


def test_triton_s_adam_is_torch_s() -> None:
    """In Triton's interpreter, as above."""
    pytest.importorskip("triton")
    assert interpreted("launch = None", "adam_error") < 2e-6


def adam_error(_: object, device: str) -> float:
    """The largest relative difference after five steps, with and without weight decay, from `torch.optim.Adam`."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(50, 60), (7,), (1,)]  # one kernel for the first two, one for the last
    drawn = [torch.randn(6, *shape, generator=generator).to(device) for shape in shapes]
    errors = []
    for decay, strength in ((0.0, 0.0), (0.1, 0.0), (0.1, 3.0)):
        mine, plain = ([torch.nn.Parameter(values[0].clone()) for values in drawn] for _ in range(2))
        anchors = [(values[1].clone(), values[2].square()) for values in drawn]
        rate = torch.tensor(0.01, device=device)
        optimizers = WideAdam(mine, rate, decay), torch.optim.Adam(plain, 0.01, weight_decay=decay)
        for number in range(1, 6):
            for values, one, other in zip(drawn, mine, plain):
                other.grad = values[number].clone()
                one.grad = other.grad.t().contiguous().t() if one.dim() == 2 else other.grad.clone()  # another layout
            if strength:
                pulls = {one: (*anchored, strength) for one, anchored in zip(mine, anchors)}
                assert optimizers[0].pulled_by(pulls)
                for other, (anchor, importance) in zip(plain, anchors):
                    other.grad += strength * importance * (other.detach() - anchor)
            for optimizer in optimizers:
                optimizer.step()
        for place, (values, one, other) in enumerate(zip(drawn, mine, plain)):
            kept = [optimizer.state_dict()["state"][place] for optimizer in optimizers]
            errors += [relative(kept[0][key], kept[1][key]) for key in ("step", "exp_avg", "exp_avg_sq")]
            errors.append(relative(one.detach() - values[0], other.detach() - values[0]))
    return max(errors)


@pytest.mark.parametrize("scale", [None, 3.0])
def test_a_pull_that_begins_with_one_is_the_one_that_multiplies_by_it(scale: float | None) -> None:
    """Alone and for three at once; a pull along a value that is scaled is scaled as well."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    pull = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)

    def value_of(z: Tensor, along: Tensor) -> Tensor:
        return pulled_along(z.square().sum(), z, along)

    expected = (2 * outputs + pull) * (scale or 1)
    for number in range(3):
        alone = outputs[number].clone().requires_grad_()
        value = value_of(alone, pull[number])
        pull_back(value if scale is None else scale * value)
        torch.testing.assert_close(alone.grad, expected[number], rtol=1e-12, atol=0)
    together = outputs.clone().requires_grad_()
    values = torch.vmap(value_of)(together, pull)
    pull_back((values if scale is None else scale * values).sum())
    torch.testing.assert_close(together.grad, expected, rtol=1e-12, atol=0)
    assert not any(is_one(torch.ones(shape, dtype=torch.float64)) for shape in ((), (3,)))


def test_gradients_for_a_cotangent_are_torch_s_own() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, unused = (torch.randn(3, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    outputs = torch.randn(5, 3, generator=generator, dtype=torch.float64) @ weight
    cotangent = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    found = gradients(outputs, [weight, unused], cotangent)
    expected = torch.autograd.grad(outputs, [weight, unused], cotangent, allow_unused=True)
    assert found[1] is expected[1] is None
    assert torch.equal(found[0], expected[0])  # type: ignore[arg-type]


def test_training_and_watching_steps_loads_neither_symbolic_shapes_nor_torch_s_compiler() -> None:
    """With the former torch loads sympy, which takes as long as all the rest; the latter takes a second or two."""
    script = """
import sys, torch, evergraph as eg
from evergraph.training.executors.watch import Watch
stream = eg.stream("sbm:nodes=60,classes=4,features=6")
for method in (eg.EWC(fisher="squared-batch"), eg.MAS(), eg.OnlineCurvature()):
    eg.Learner(eg.GCN(hidden=4), method, epochs=1, batch_size=8, device="cpu").fit(stream)
with Watch(torch.device("cpu")):
    torch.vmap(torch.sum)(torch.ones(2, 2))
print([name for name in ("sympy", "torch._dynamo") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_one_of_a_pass_is_nobody_else_s() -> None:
    """A parameter whose gradient is that one may change it in place, and a value may have any shape of one number."""
    offset, other = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.ones(3))
    pull_back(offset.squeeze())
    assert offset.grad is not None
    offset.grad.mul_(0.1)
    for value in (other.sum(), other.sum().reshape(1)):
        other.grad = None
        pull_back(value)
        assert torch.equal(other.grad, torch.ones(3))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="scalar"):
        pull_back(2 * other)


def test_triton_s_layer_and_softmax_are_those_written_out() -> None:
    """In Triton's interpreter, as above."""
    pytest.importorskip("triton")
    assert interpreted("launch = None", "layer_error") < 1e-5
    assert interpreted("launch = None", "softmax_error") < 1e-5
    assert interpreted("launch = None", "fused_error") < 1e-5
    assert interpreted("launch = None", "queue_error") < 1e-12
    assert interpreted("launch = None", "chosen_error") < 1e-12


def chosen_error(_: object, device: str) -> float:
    """The largest relative error of chosen rows: of one network and of three, with and without a tangent, and back."""
    from evergraph.core.chosen_rows import _ChosenRows

    generator, errors = torch.Generator().manual_seed(0), []
    networks, rows, units, count = 3, 30, 7, 12
    wide = torch.randn(2, rows, networks, 2 * units, generator=generator, dtype=torch.float64).to(device)
    chosen = torch.randint(rows, (networks, count), generator=generator).to(device)  # some of them twice
    weights = torch.randn(networks, count, units, generator=generator, dtype=torch.float64).to(device)

    def of_table(table: Tensor, other: Tensor, index: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        found, beside = _ChosenRows.apply(table[:, units:], other[:, units:], index)
        alone = _ChosenRows.apply(table[:, units:], None, index)[0]
        return ((found + alone).square() * weight).sum(), beside

    def plain(table: Tensor, other: Tensor, index: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return ((2 * table[index, units:]).square() * weight).sum(), other[index, units:]

    for function in (of_table, plain):
        table = wide[0].clone().requires_grad_()
        value, beside = torch.vmap(function, (1, 1, 0, 0))(table, wide[1], chosen, weights)
        (gradient,) = torch.autograd.grad(value.sum(), table, create_graph=True)
        (again,) = torch.autograd.grad(gradient.square().sum(), table)
        single = wide[0][:, 0].clone().requires_grad_()
        one = function(single, wide[1][:, 0], chosen[0], weights[0])
        found = [value, beside, gradient, again, *one, *torch.autograd.grad(one[0], single)]
        errors.append([each.detach() for each in found])
    return max(map(relative, *errors))


def layer_error(_: object, device: str) -> float:
    """The largest relative error of the layer's kernels against float64, forwards and backwards."""
    from evergraph.core.layer_kernel import against, apart, backwards, forwards

    generator, errors = torch.Generator().manual_seed(0), []
    for rows, networks, inputs, units in ((70, 1, 48, 5), (33, 3, 64, 17), (1, 2, 16, 1)):
        shapes = (rows, networks, inputs), (inputs + 1, networks, units), (rows, networks, units)
        drawn = [torch.randn(shape, generator=generator).to(device) for shape in (*shapes[:2], *shapes)]
        hidden, weight, moved, tangent, cotangent = (drawn[i].double().requires_grad_(i < 2) for i in range(5))
        ones = torch.ones(rows, networks, 1, dtype=torch.float64, device=device)
        active = torch.cat([hidden.relu(), ones], 2)
        moves = torch.cat([moved * (hidden > 0), 0 * ones], 2)
        made = torch.einsum("rmk,kmc->rmc", active, weight)
        change = torch.einsum("rmk,kmc->rmc", moves, weight) + torch.einsum("rmk,kmc->rmc", active, tangent)
        found = forwards(*drawn[:2], (drawn[2], -drawn[3]), "tf32x3")
        errors += [relative(found[:, 0], made.detach()), relative(found[:, 1], change.detach())]
        errors.append(relative(forwards(*drawn[:2], None, "tf32x3")[:, 0], made.detach()))
        expected = torch.autograd.grad(made, (hidden, weight), cotangent)
        errors += map(relative, backwards(drawn[4], drawn[0], drawn[1], "tf32x3"), expected)
        for chosen in (None, torch.arange(rows, device=device).flip(0)):
            known = moved if chosen is None else moved[chosen]
            both = apart(drawn[0], drawn[2], chosen, 3)
            errors += map(relative, both, ((known - hidden.detach()) / 3, -hidden.detach()))
        for number in range(1, 4):
            weights, totals = [drawn[0], drawn[1], drawn[4]][:number], [drawn[2], drawn[3], drawn[4]][:number]
            wanted = [total.double() - 3 * weight.double() for weight, total in zip(weights, totals)]
            errors += map(relative, against(weights, totals, 3), wanted)
    return max(errors)


def fused_error(_: object, device: str) -> float:
    """The largest relative error of the fused operations: alone, side by side, and differentiated once and twice."""
    from evergraph.core.activated_layer import activated_layer
    from evergraph.core.fused_softmax import cross_entropy, divergence, fisher_product

    generator = torch.Generator().manual_seed(0)
    networks, rows, seeds, inputs, units = 3, 20, 8, 32, 5
    shapes = (rows, inputs), (inputs + 1, units), (rows, inputs), (inputs + 1, units), (seeds, rows)
    *matrices, operator = (torch.randn(networks, *shape, generator=generator).to(device) for shape in shapes)
    operator = SparseMatrix.from_scipy(sp.csr_array(operator[0].cpu().numpy() * (operator[0].cpu().numpy() > 0)))
    operator = operator.to(device).to(torch.float32)
    targets = torch.arange(seeds, device=device).expand(networks, -1) % 4
    mask = torch.tensor([0, 0, 0, 0, -torch.inf], device=device)

    def fused(hidden: Tensor, weight: Tensor, moved: Tensor, tangent: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        outputs, change = activated_layer(hidden, weight, operator, moved, -tangent)
        alone, _ = activated_layer(hidden, weight, operator)
        value = cross_entropy(outputs, y, mask).sum() + alone.square().sum()
        value = value + 2 * divergence(outputs, change, mask, 3.0).sum()
        return pulled_along(value, outputs, fisher_product(outputs.detach(), change, mask)), change

    def plain(hidden: Tensor, weight: Tensor, moved: Tensor, tangent: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ones = torch.ones(rows, 1, dtype=hidden.dtype, device=device)
        active, moves = torch.cat([hidden.relu(), ones], 1), torch.cat([moved * (hidden > 0), 0 * ones], 1)
        dense = operator.dense().to(hidden.dtype)
        outputs, change = dense @ (active @ weight), (dense @ (moves @ weight + active @ tangent)).detach()
        p = (outputs + mask).softmax(1).detach()
        pull = p * change - p * (p * change).sum(1, keepdim=True)
        value = torch.nn.functional.cross_entropy(outputs + mask, y, reduction="sum") + outputs.square().sum()
        old, new = change[:, :4] / 3, outputs[:, :4] / 3
        value = value + 2 * (old.softmax(1) * (old.log_softmax(1) - new.log_softmax(1))).sum()
        return value + (outputs * pull).sum() - (outputs.detach() * pull).sum(), change

    errors = []
    for number in range(networks):
        found, expected = [], []
        for results, function, dtype in ((found, fused, torch.float32), (expected, plain, torch.float64)):
            values = [matrix[number].to(dtype).requires_grad_(place < 2) for place, matrix in enumerate(matrices)]
            value, change = function(*values, targets[number])
            gradients = torch.autograd.grad(value, values[:2], retain_graph=True)
            slow = torch.autograd.grad(value, values[:2], create_graph=True)
            again = torch.autograd.grad(sum(each.square().sum() for each in slow), values[:2])
            results += [value, change, *gradients, *slow, *again]
        errors += map(relative, found, expected)
    stacked = [torch.stack(list(matrix), 1).requires_grad_(place < 2) for place, matrix in enumerate(matrices)]
    values, changes = torch.vmap(fused, (1, 1, 1, 1, 0))(*stacked, targets)
    gradients = torch.autograd.grad(values.sum(), stacked[:2])
    for number in range(networks):
        own = [matrix[number].double().requires_grad_(place < 2) for place, matrix in enumerate(matrices)]
        value, change = plain(*own, targets[number])
        alone = torch.autograd.grad(value, own[:2])
        errors += [relative(values[number], value), relative(changes[number], change)]
        errors += (relative(each.select(1, number), other) for each, other in zip(gradients, alone))
    return max(errors)


def queue_error(_: object, device: str) -> float:
    """The largest relative error of a queue's pull by kernels, of one network and of three, against gradients kept."""
    generator, errors = torch.Generator().manual_seed(0), []
    networks, rows, inputs, units, capacity, count = 3, 30, 24, 5, 3, 2
    pattern = sp.random(rows, rows, 0.6, format="csr", rng=0) + sp.eye(rows, format="csr")
    operator = SparseMatrix.from_scipy(sp.csr_array(pattern)).to(torch.float64).to(device)
    room = int(operator.counts().max())
    names = torch.randperm(rows, generator=generator).to(device)  # what the tables know nodes by
    row_of = torch.empty_like(names)
    row_of[names] = torch.arange(rows, device=device)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)

    tables = [
        drawn(capacity, networks, room, inputs) * 0, torch.zeros(capacity, networks, room, dtype=torch.long),
        torch.zeros(capacity, networks, 1, dtype=torch.int32), drawn(capacity, networks, inputs + 1, units) * 0,
    ]  # fmt: skip
    tables = [table.to(device) for table in tables]
    alone = [table[:, 0].clone() for table in tables]
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(networks)]
    for number in range(5):
        hidden, moved = drawn(rows, networks, inputs), drawn(rows, networks, inputs)
        weight, total, score = (drawn(*shape) for shape in (*[(inputs + 1, networks, units)] * 2, (networks, 1, units)))
        place = torch.full((networks, 1), number % capacity, device=device)
        seed = torch.randint(rows, (networks, 1), generator=generator).to(device)
        scale = drawn(networks, 1)
        fixed = (count, operator, names, row_of)
        given = (place, seed, score, scale, hidden, moved, weight, total, *tables)
        found = torch.vmap(lambda *one, fixed=fixed: gradient_rows._PushAndPull.apply(*one, *fixed),
                           (0, 0, 0, 0, *[1] * 8), (1, 1))(*given)  # fmt: skip
        first = [value[0] for value in given[:4]] + [value[:, 0] for value in given[4:8]]
        single = gradient_rows._PushAndPull.apply(*first, *alone, *fixed)
        for network in range(networks):
            h, w = (value[:, network].clone().requires_grad_() for value in (hidden, weight))
            outputs = operator.dense() @ (torch.cat([h.relu(), torch.ones_like(h[:, :1])], 1) @ w)
            pushed = torch.autograd.grad(outputs[seed[network, 0]] @ score[network, 0], (h, w))
            kept[network] = [*kept[network], pushed][-capacity:]
            displacement = moved[:, network], count * weight[:, network] - total[:, network]
            expected = [torch.zeros_like(value) for value in pushed]
            for gradient in kept[network]:
                inner = sum((g * d).sum() for g, d in zip(gradient, displacement)) * scale[network]
                expected = [value + inner * g for value, g in zip(expected, gradient)]
            errors += (relative(value[:, network], wanted) for value, wanted in zip(found, expected))
            if network == 0:
                errors += map(relative, single, expected)
    return max(errors)


def softmax_error(_: object, device: str) -> float:
    """The largest relative error of cross entropies, divergences and Fisher products, with and without a scope."""
    from evergraph.core.softmax_kernel import cross_entropy, divergence, fisher_product, sampled_score

    generator, errors = torch.Generator().manual_seed(0), []
    for rows, units, scope in ((9, 5, None), (6, 40, [1, 7, 38]), (1, 2, [0, 1])):
        outputs, tangents = torch.randn(2, rows, units, generator=generator).to(device)
        mask = None if scope is None else torch.full((units,), -torch.inf).index_fill(0, torch.tensor(scope), 0)
        mask = None if mask is None else mask.to(device)
        problem = Classification(scope)
        targets = torch.tensor(scope or range(units), device=device)[torch.arange(rows) % len(scope or range(units))]
        plain = outputs.double().requires_grad_()
        losses = problem.loss(plain, targets)
        (gradient,) = torch.autograd.grad(losses.sum(), plain)
        errors += map(relative, cross_entropy(outputs, targets, mask), (losses.detach(), gradient))
        for temperature in (1.0, 2.5):
            apart = problem.divergence(plain, 9 * tangents.double(), temperature)
            expected = apart.detach(), torch.autograd.grad(apart.sum(), plain)[0]
            errors += map(relative, divergence(outputs, 9 * tangents, mask, temperature), expected)
        expected = problem.fisher_product(plain.detach(), tangents.double())
        errors.append(relative(fisher_product(outputs, tangents, mask), expected))
        apart = torch.cat([tangents, outputs, tangents], 1)[:, units:]  # rows with gaps between them
        errors.append(relative(fisher_product(apart[:, :units], apart[:, units:], mask, 2.5), 2.5 * expected))
        errors += map(relative, cross_entropy(apart[:, :units], targets, mask), (losses.detach(), gradient))
        p = torch.softmax(outputs.double() if mask is None else outputs.double() + mask, 1)
        for row, drawn in enumerate((0.0, 0.3, 0.999, 1.0)[:rows]):
            threshold = torch.full((rows, 1), drawn, device=device)
            unit = min(int((p[row, scope or slice(None)].cumsum(0) < drawn).sum()), len(scope or range(units)) - 1)
            hit = torch.tensor((scope or range(units))[unit], device=device)
            expected = torch.nn.functional.one_hot(hit, units) - p[row]
            errors.append(relative(sampled_score(outputs, threshold, mask)[row], expected))
        wrong = cross_entropy(outputs, torch.full_like(targets, units), mask)[0]
        errors.append(0.0 if wrong.isnan().all() else 1.0)
    return max(errors)


def test_very_sparse_inputs_of_models_that_multiply_them_stay_sparse() -> None:
    def random(nodes: int, words: int, share: float) -> SparseMatrix:
        return SparseMatrix.from_scipy(sp.random(nodes, words, share, format="csr", rng=0))

    words = random(700, 6000, 0.01)
    assert stays_sparse(GCN(), words)
    assert stays_sparse(eg.GAT(), words)
    assert not stays_sparse(eg.GraphSAGE(), words)  # reads neighbours' means, which are not sparse
    assert not stays_sparse(GCN(), random(700, 6000, 0.05))
    assert not stays_sparse(GCN(), random(70, 600, 0.01))  # small enough for anything
    with fast_paths("capture"):
        assert not stays_sparse(GCN(), words)


@pytest.mark.parametrize("name", ["finetune", "curvature", "ewc", "si", "twp", "reservoir"])
@pytest.mark.parametrize("batch_size", [0, 16])
def test_steps_on_sparse_inputs_read_from_one_pass_are_the_plain_steps(
    name: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks as a GPU takes them, uncaptured, with long rows in several pieces."""
    stream = TaskStream(sparse_graph(), 2)
    plain, plain_losses = trained(stream, name, batch_size)
    monkeypatch.setattr("evergraph.core.row_pieces.LONGEST", 4)
    monkeypatch.setattr("evergraph.core.needed_rows.WORTH", -1)
    monkeypatch.setattr(WholeBatchExecutor, "suits", classmethod(lambda kind, context, method: True))
    found, found_losses = trained(stream, name, batch_size)
    assert found_losses == pytest.approx(plain_losses, rel=1e-9)
    assert all(relative(found[key], plain[key]) < 1e-7 for key in plain)


@pytest.mark.parametrize("batch_size", [0, 16])
@pytest.mark.parametrize("propagate", [False, True])
@pytest.mark.parametrize("settings", [{}, {"queue_size": 3}, {"queue_size": 3, "queue_rule": "algorithm"}])
def test_a_queue_of_rows_of_the_first_layer_is_that_of_gradients_written_out(
    batch_size: int, propagate: bool, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks as a GPU takes them, uncaptured."""
    monkeypatch.setattr(WholeBatchExecutor, "suits", classmethod(lambda kind, context, method: True))
    monkeypatch.setattr("evergraph.methods.online_curvature.queue.factors_pay", lambda context: False)
    stream, kinds, apart = TaskStream(sparse_graph(), 2), [], []
    product_of_its_own, name = gradient_rows.first_layer_product, "first_layer_product"
    monkeypatch.setattr(gradient_rows, name, lambda *given: apart.append(1) or product_of_its_own(*given))

    def learned(*names: str) -> tuple[dict[str, Tensor], list[float]]:
        with fast_paths(*names):
            method = make_method("queue-curvature", {"strength": 3.0, **settings})
            model = GCN(hidden=7, propagate_inputs=propagate)
            learner = eg.Learner(model, method, epochs=4, batch_size=batch_size, device="cpu", dtype=torch.float64)

            def look(progress: object, planned: int) -> None:
                kinds.append("nodes" in method.queue_)  # type: ignore[attr-defined]

            losses = [row["loss"] for task in stream for row in learner.learn(task, on_epoch=look)]
        return copy_params(learner.model), losses

    found, found_losses = learned("sparse", "structure")
    assert any(kinds)
    assert not apart  # every pass carries the tangent
    kinds.clear()
    plain, plain_losses = learned("sparse")
    assert not any(kinds)
    assert found_losses == pytest.approx(plain_losses, rel=1e-9)
    assert all(relative(found[key], plain[key]) < 1e-7 for key in plain)


# batches cut ahead of time


@pytest.mark.parametrize("name", ["finetune", "curvature", "lwf", "reservoir"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_batches_cut_ahead_are_the_plain_ones(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks in mini-batches that another thread cuts: the same numbers, bit for bit."""
    stream = TaskStream(GRAPHS[kind](), 2)
    monkeypatch.setattr(AheadExecutor, "suits", classmethod(lambda kind, context, method: False))
    plain, plain_losses = trained(stream, name, 16)
    monkeypatch.setattr(AheadExecutor, "suits", classmethod(lambda kind, context, method: True))
    found, found_losses = trained(stream, name, 16)
    assert found_losses == plain_losses
    assert all(torch.equal(found[key], plain[key]) for key in plain)


def test_batches_are_cut_ahead_where_a_core_is_free_and_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of(dense_graph())
    context.batch_size = 16
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    assert AheadExecutor.suits(context, Method())
    executor = AheadExecutor(context, lambda batch: batch.y.sum())
    batch = next(executor.batches(context.train))
    assert batch.source is context.batcher
    assert all(batch.layer(number)._transpose is not None for number in range(batch.num_hops))
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    assert not AheadExecutor.suits(context, Method())
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    context.batcher.fan_out = (2, 2)
    assert not AheadExecutor.suits(context, Method())


# whole runs


@pytest.mark.parametrize("name", ["curvature", "ewc", "mas"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_a_seed_s_results_do_not_depend_on_the_shortcuts(name: str, kind: str) -> None:
    stream = TaskStream(GRAPHS[kind](), 2)

    def trained(*names: str) -> tuple[dict[str, Tensor], list[float]]:
        with fast_paths(*names):
            learner = eg.Learner(GCN(hidden=8), make_method(name), epochs=3, batch_size=16, device="cpu")
            learner.fit(stream)
            return copy_params(learner.model), learner.evaluate(stream).accuracies

    (found, accuracies), (plain, plain_accuracies) = trained(*FAST_PATHS), trained()
    assert accuracies == plain_accuracies
    assert all(relative(found[key], plain[key]) < 2e-5 for key in plain)


@pytest.mark.parametrize(
    ("name", "settings", "model"),
    [
        ("queue-curvature", {"queue_size": 5, "strength": 1.0}, GCN(hidden=7, propagate_inputs=False)),
        ("queue-curvature", {"queue_size": 5, "strength": 1.0}, GCN(hidden=7, num_layers=3)),
        ("queue-curvature+ewc", {}, GCN(hidden=7)),
        ("batch-curvature+queue-curvature", {}, GCN(hidden=7)),
        ("gpm", {}, GCN(hidden=7, propagate_inputs=False)),
        ("gpm", {"head": "tasks"}, GCN(hidden=7, propagate_inputs=True)),
        ("gpm+ewc", {}, GCN(hidden=7)),
        ("ncl", {"rank": 4}, GCN(hidden=7, propagate_inputs=False)),
        ("er-gnn+gpm", {}, GCN(hidden=7)),
        ("hpn", {"threshold": 0.3}, eg.PrototypeNetwork(dim=3, capacity=30)),
        ("hpn", {"threshold": 0.3, "extractors": "first-task"}, eg.PrototypeNetwork(dim=3, capacity=30)),
    ],
)
@pytest.mark.parametrize("batch_size", [slow(0), 9])
def test_structure_changes_nothing_in_float64(
    name: str, settings: dict[str, object], model: GraphModel, batch_size: int
) -> None:
    stream = TaskStream(sparse_graph(), 2)

    def trained(*names: str) -> dict[str, Tensor]:
        with fast_paths(*names):
            method = make_method(name, settings)
            learner = eg.Learner(
                copy.deepcopy(model), method, epochs=3, batch_size=batch_size, dtype=torch.float64, device="cpu"
            )
            return copy_params(learner.fit(stream).model)

    found, plain = trained("structure"), trained()
    assert all(relative(found[key], plain[key]) < 1e-10 for key in plain if plain[key].norm())


class Twice(GCN):
    """A model whose first weight reaches the outputs in another way too."""

    def logits(self, batch: Batch) -> Tensor:
        return super().logits(batch) + self.weights[0].sum()


@pytest.mark.parametrize("name", ["gpm", "queue-curvature"])
def test_a_model_of_one_s_own_is_differentiated_as_a_whole(name: str) -> None:
    stream = TaskStream(sparse_graph(), 2)

    def trained(*names: str) -> dict[str, Tensor]:
        with fast_paths(*names):
            learner = eg.Learner(Twice(hidden=7), name, epochs=2, batch_size=9, dtype=torch.float64, device="cpu")
            return copy_params(learner.fit(stream).model)

    found, plain = trained("structure"), trained()
    assert all(relative(found[key], plain[key]) < 1e-10 for key in plain)


def test_a_step_s_own_products_serve_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_asked_for(*_: object) -> None:
        raise AssertionError("the queue's nodes were read in a batch of their own")

    monkeypatch.setattr("evergraph.methods.online_curvature.queue.pull", not_asked_for)
    stream, method = TaskStream(sparse_graph(), 2), make_method("queue-curvature", {"queue_size": 5})
    eg.Learner(GCN(hidden=7), method, epochs=2, batch_size=9, device="cpu").fit(stream)
    context = context_of(sparse_graph(), past=1)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    context.batch_size = 9
    assert AheadExecutor.suits(context, Method())
    assert not AheadExecutor.suits(context, method)  # the step before decides what its batch shall hold


def test_a_batch_may_hold_further_examples() -> None:
    context = context_of(sparse_graph())
    method = eg.Compose(Reads([3, 5, 5]), Method(), Reads([60, 1]))
    context.method, seeds = method, torch.tensor([5, 2, 7])
    executor = PlainExecutor(context, lambda batch: batch.y)
    batch = executor.cut(seeds)
    assert batch.nodes[: batch.num_seeds].tolist() == [5, 2, 7, 1, 3, 60]
    assert batch.num_examples == 3
    assert torch.equal(batch.y, context.batcher.y[seeds])
    assert relative(context.model(batch), context.model(context.batcher.batch(seeds))) < 1e-14
    context.method = Method()
    assert executor.cut(seeds).chosen is None


class Reads(Method):
    """A method that reads some nodes at every step."""

    name = "reads"

    def __init__(self, nodes: list[int]) -> None:
        self.nodes = torch.tensor(nodes)

    def further_examples(self, context: Context) -> Tensor:
        return self.nodes


def test_propagating_inputs_is_decided_by_what_a_batch_reads() -> None:
    wide = sparse_graph()  # few words per node: neighbours' words add up
    assert isinstance(wide.x, SparseMatrix)
    assert not propagation_pays(wide.x.to(torch.float32), gcn_operator(wide).to(torch.float32), 2, batch_size=4)
    x = SparseMatrix.from_scipy(sp.csr_matrix(torch.ones(500, 2).numpy()))  # all words everywhere: nothing adds up
    graph = sbm(nodes=500, classes=2, degree=6, features=1)
    assert propagation_pays(x, gcn_operator(graph).to(torch.float32), 2, batch_size=4)


# on a GPU


CAPTURED: list[tuple[str, dict[str, object]]] = [
    ("finetune", {}),
    ("curvature", {}),
    ("curvature", {"nodes": "means", "anchors": "latest"}),
    ("curvature", {"nodes": "prototypes", "prototypes": 3}),
    ("ewc", {}),
    ("online-ewc", {}),
    ("mas", {}),
    ("si", {}),
    ("lwf", {}),
    ("twp", {}),
    ("kfac", {"strength": 1.0}),  # a stiffer one amplifies the last bits
    ("ema+ewc", {}),
]
ALSO_CAPTURED: list[tuple[str, dict[str, object]]] = [
    ("interpolated-curvature", {}),
    ("batch-curvature", {"over_tasks": "square-of-sum"}),
    ("reservoir", {}),
    ("a-gem", {}),
    ("er-gnn", {}),
    ("delome", {"networks": 2}),
    ("gpm", {}),
    ("ncl", {"rank": 4}),
    ("logit-adjustment", {}),
    ("pi-gnn", {"rectify_epochs": 3, "per_class": 2}),
    ("ssm+curvature", {"nodes": "memory"}),
    ("kfac", {"strength": 1.0, "rank": 3}),
]
DRAWN: list[tuple[str, dict[str, object]]] = [
    ("curvature", {"estimator": "queue"}),
    ("curvature", {"estimator": "sampled"}),
    ("ewc++", {}),
    ("reservoir", {"replay_size": 4}),
]
MODELS = {"gcn": GCN, "sage": eg.GraphSAGE, "gat": lambda hidden: eg.GAT(hidden=hidden + 1, heads=2)}


def trained_on_a_gpu(
    stream: TaskStream, name: str, settings: dict[str, object], model: str, batch_size: int, *names: str
) -> tuple[dict[str, Tensor], list[float], list[str]]:
    with fast_paths(*names):
        method = make_method(name, settings)
        learner = eg.Learner(MODELS[model](hidden=7), method, epochs=6, batch_size=batch_size, device="cuda")
        torch.manual_seed(0)
        learner.model.setup(stream.num_features, 4)
        learner.model.double().cuda()
        losses = [row["loss"] for task in stream for row in learner.learn(task)]
    return copy_params(learner.model), losses, [entry["steps"] for entry in learner.history]


FORMS = [("gcn", 16, "sparse"), ("gcn", 0, "dense")]
OTHER_MODELS = [("sage", 0, "dense"), ("sage", 16, "dense"), ("gat", 0, "dense"), ("gat", 16, "dense")]
WITH_OTHER_MODELS = [CAPTURED[0], CAPTURED[1], CAPTURED[3], ("lwf", {}), ("ema+ewc", {})]


@gpu
@pytest.mark.parametrize(
    ("name", "settings", "model", "batch_size", "kind"),
    [
        *((*method, *form) for method in (*CAPTURED, *ALSO_CAPTURED) for form in FORMS),
        *((*method, *form) for method in WITH_OTHER_MODELS for form in OTHER_MODELS),
    ],
)
def test_captured_training_is_the_eager_training(
    name: str, settings: dict[str, object], model: str, batch_size: int, kind: str
) -> None:
    stream = TaskStream(GRAPHS[kind](), 2)
    found, found_losses, ways = trained_on_a_gpu(stream, name, settings, model, batch_size, *FAST_PATHS)
    assert ways == ["captured", "captured"]
    plain, plain_losses, _ = trained_on_a_gpu(stream, name, settings, model, batch_size, "anchors")
    if model == "gat":  # its sums by atomics differ from run to run, and Adam makes steps of gradients that should be 0
        assert found_losses == pytest.approx(plain_losses, rel=1e-3)
        return
    assert found_losses == pytest.approx(plain_losses, rel=1e-8)
    assert all(relative(found[key], plain[key]) < 1e-7 for key in plain)


@gpu
@pytest.mark.parametrize(
    ("name", "settings", "batch_size"),
    [*((*method, 16) for method in [*CAPTURED, ALSO_CAPTURED[2]]), *((*method, 0) for method in CAPTURED[:2])],
)
def test_captured_training_on_a_gpu_with_sparse_inputs_is_that_with_dense_ones(
    name: str, settings: dict[str, object], batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergraph.models.base.SPARSE_ON_GPU", (1.0, 0, 2**40))
    stream = TaskStream(sparse_graph(), 2)
    found, found_losses, ways = trained_on_a_gpu(stream, name, settings, "gcn", batch_size, *FAST_PATHS)
    assert ways == ["captured", "captured"]
    plain, plain_losses, _ = trained_on_a_gpu(stream, name, settings, "gcn", batch_size, "anchors")
    assert found_losses == pytest.approx(plain_losses, rel=1e-8)
    assert all(relative(found[key], plain[key]) < 1e-7 for key in plain)


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_by_pieces_on_a_gpu_are_the_products(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's kernel, by torch's, and captured."""
    assert row_kernel() is not None, "Triton's kernels do not work here"
    assert error_of(row_kernel(), "cuda") < 1e-13
    assert needed_error(row_kernel(), "cuda") < 1e-13
    matrix = uneven_matrix(dtype, "cuda").for_many_products()
    dense = torch.randn(300, 257, dtype=dtype, device="cuda")
    expected, tolerance = matrix.dense().double() @ dense.double(), 1e-6 if dtype == torch.float32 else 1e-14
    assert relative(matrix.multiply(dense), expected) < tolerance
    replay = cuda_graph_of(lambda: matrix.multiply(dense))
    dense.mul_(2)
    assert relative(replay(), 2 * expected) < tolerance
    monkeypatch.setattr("evergraph.core.row_pieces.row_kernel", lambda: None)
    assert relative(matrix.multiply(dense), 2 * expected) < tolerance


@gpu
def test_frequent_columns_on_a_gpu_are_multiplied_by_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """To 16 bits, forwards and backwards, captured as well; in full precision all columns are as before."""
    monkeypatch.setattr("evergraph.core.frequent_columns.SMALLEST", 40 * 768)
    assert halves_error(None, "cuda") <= 1
    matrix = counts_of_words().to("cuda").to(torch.float32).with_frequent_columns()
    assert matrix._frequent is not None
    for factor in (matrix, matrix.t()):
        dense = torch.randn(factor.num_columns, 768, device="cuda")
        expected = factor.dense().double() @ dense.double()
        assert relative(factor.multiply(dense), expected) < 1e-6
        with tensor_cores(dense.device):
            assert 5e-7 < relative(factor.multiply(dense), expected) < 1e-5
            replay = cuda_graph_of(lambda factor=factor, dense=dense: factor.multiply(dense))
            dense.mul_(2)
            assert relative(replay(), 2 * expected) < 1e-5


@gpu
def test_adam_s_kernel_on_a_gpu_is_torch_s() -> None:
    assert adam_error(None, "cuda") < 2e-6
    large = [torch.nn.Parameter(torch.zeros(512, 256, device="cuda"))]
    assert wide_adam_suits(large)
    with fast_paths():
        assert not wide_adam_suits(large)
    assert not wide_adam_suits([large[0].double()])


@gpu
def test_fused_kernels_on_a_gpu_are_what_is_written_out() -> None:
    assert layer_error(None, "cuda") < 1e-5
    assert softmax_error(None, "cuda") < 1e-5
    assert fused_error(None, "cuda") < 1e-5
    assert queue_error(None, "cuda") < 1e-12
    assert chosen_error(None, "cuda") < 1e-12


@gpu
@pytest.mark.parametrize("name", ["finetune", "curvature", "queue-curvature", "twp", "lwf"])
@pytest.mark.parametrize("batch_size", [0, 16])
@pytest.mark.parametrize("make", [dense_graph, sparse_graph])
def test_training_with_fused_kernels_on_a_gpu_is_that_without(
    name: str, batch_size: int, make: Callable[[], Graph]
) -> None:
    losses = {}
    for way in ("without", "with"):
        with fast_paths(*(path for path in FAST_PATHS if path != "tf32" and (path != "fused" or way == "with"))):
            learner = eg.Learner(GCN(hidden=64), name, epochs=6, batch_size=batch_size, device="cuda")
            losses[way] = [row["loss"] for task in TaskStream(make(), 2) for row in learner.learn(task)]
    tolerance = 1e-2 if name == "queue-curvature" else 1e-4  # which draws by what it computes
    assert losses["with"] == pytest.approx(losses["without"], rel=tolerance)


@gpu
def test_padded_batches_cut_on_a_gpu_are_those_cut_by_torch() -> None:
    from evergraph.training.executors.cut_kernel import launch

    assert cut_error(launch, "cuda") == 0


@gpu
def test_products_on_tensor_cores_are_the_plain_ones_to_three_digits() -> None:
    losses = {}
    for name in ("capture", "tf32"):
        with fast_paths("capture", name):
            learner = eg.Learner(GCN(hidden=64), "curvature", epochs=6, batch_size=0, device="cuda")
            losses[name] = [row["loss"] for task in TaskStream(dense_graph(), 2) for row in learner.learn(task)]
    assert losses["tf32"] == pytest.approx(losses["capture"], rel=1e-2)
    assert losses["tf32"] != losses["capture"]
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_methods_do_to_gradients_is_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU; the setting is looked at here without one."""
    seen = []

    class Looks(Method):
        name = "looks"

        def penalty(self, step: object) -> None:
            seen.append(("penalty", torch.get_float32_matmul_precision()))

        def edit_grads(self, step: object) -> None:
            seen.append(("edit_grads", torch.get_float32_matmul_precision()))

    context = context_of(dense_graph())
    optimizer = torch.optim.SGD(context.model.parameters(), lr=0.1)
    monkeypatch.setattr("evergraph.training.step.full_precision", lambda device: full_precision(torch.device("cuda")))
    with tensor_cores(torch.device("cuda")):
        train_step(context, Looks(), next(context.batches()), optimizer)
    assert seen == [("penalty", "high"), ("edit_grads", "highest")]
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_precision_of_products_set_in_torch_s_newer_way_is_put_back() -> None:
    """torch refuses to read its older setting then."""
    products = torch.backends.cuda.matmul
    products.fp32_precision = "tf32"
    try:
        with full_precision(torch.device("cuda")):
            assert not rounded_products()
            assert torch.get_float32_matmul_precision() == "highest"
            with tensor_cores(torch.device("cuda")):
                assert rounded_products()
            assert not rounded_products()
        assert products.fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")


@gpu
@pytest.mark.parametrize("kind", ["plain", "batch norm", "waits", "hidden wait"])
@pytest.mark.parametrize("batch_size", [0, 16])
def test_modules_from_elsewhere_are_captured_or_say_why(
    kind: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are the eager ones either way; after a capture that failed everything works, random numbers too."""
    from test_captured_steps import foreign

    if kind == "hidden wait":  # nobody watches, so that the capture itself fails
        monkeypatch.setattr("evergraph.training.executors.cuda_graphs.Watch", lambda device: nullcontext(Seen()))
    outcomes = []
    for names in (FAST_PATHS, ("anchors",)):
        with fast_paths(*names):
            torch.manual_seed(0)
            module = foreign("waits" if kind == "hidden wait" else kind)()
            learner = eg.Learner(module, "lwf", epochs=6, batch_size=batch_size, device="cuda", dtype=torch.float64)
            losses = [row["loss"] for task in TaskStream(dense_graph(), 2) for row in learner.learn(task)]
            outcomes.append((losses, learner.history[-1]["steps"]))
    (found, way), (plain, _) = outcomes
    assert found == pytest.approx(plain, rel=1e-5)
    reasons = {"plain": "captured", "waits": "eager: it reads a value", "hidden wait": "eager: its capture failed ("}
    rows = "eager: its batches are not padded; its outputs while training" if batch_size else "captured"
    assert way.startswith(reasons.get(kind, rows))
    assert torch.rand(3, device="cuda").isfinite().all()


class Seen:
    """A watch that sees nothing."""

    reason = ""


@gpu
@pytest.mark.parametrize(("name", "settings"), DRAWN)
@pytest.mark.parametrize("batch_size", [16, 0])
@pytest.mark.parametrize("kind", GRAPHS)
def test_captured_training_with_drawn_labels_learns_alike_on_a_gpu(
    name: str, settings: dict[str, object], batch_size: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its random numbers may be others than the eager run's, so only its first task, which draws nothing, is equal."""
    monkeypatch.setattr("evergraph.models.base.SPARSE_ON_GPU", (1.0, 0, 2**40))
    stream = TaskStream(GRAPHS[kind](), 2)
    found, found_losses, ways = trained_on_a_gpu(stream, name, settings, "gcn", batch_size, *FAST_PATHS)
    assert ways == ["captured", "captured"]
    _, plain_losses, _ = trained_on_a_gpu(stream, name, settings, "gcn", batch_size, "anchors")
    assert found_losses[:6] == pytest.approx(plain_losses[:6], rel=1e-8)
    assert found_losses == pytest.approx(plain_losses, rel=0.5)
    assert all(torch.isfinite(value).all() for value in found.values())


@gpu
def test_a_queue_in_a_captured_step_is_filled_row_by_row() -> None:
    stream = TaskStream(dense_graph(), 2)
    learner = eg.Learner(GCN(hidden=7), make_method("queue-curvature", {"queue_size": 64}), epochs=9, batch_size=0)
    learner.learn(stream[0])
    rows: list[int] = []

    def look(progress: object, planned: int) -> None:
        rows.append(int((learner.method.queue_["weights.0"].flatten(1).norm(dim=1) > 0).sum()))

    learner.learn(stream[1], on_epoch=look)
    assert rows == list(range(1, 10))


@gpu
def test_steps_are_replayed_on_a_gpu() -> None:
    context = context_of(dense_graph(), device="cuda")
    method = Method()
    optimizer = make_optimizer(context.model, eg.Training())
    context.batch_size = 16
    assert CapturedExecutor.suits(context, method)
    executor = CapturedExecutor(context, partial(train_step, context, method, optimizer=optimizer))
    assert executor.captures
    for _ in range(3):
        for piece in executor.batches(context.train):
            executor.step(piece)
    assert executor.how() == "captured"
    assert all(recorded.captured for recorded in executor.recorded.values())
