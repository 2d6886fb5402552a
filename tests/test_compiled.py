"""The kernels in C against torch, scipy and loops, and what happens where they cannot be compiled."""

import gc
import platform
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse as sp
from torch import Tensor

import evergraph as eg
from evergraph.core import compiled
from evergraph.core.compiled import kernels, kernels_over
from evergraph.core.picked_rows import PickedRows
from evergraph.core.shortcuts import FAST_PATHS, fast_paths
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Neighbourhoods
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import make_graph
from evergraph.errors import EvergraphWarning
from evergraph.models import MODELS
from evergraph.models.gcn import gcn_operator
from evergraph.training.compiled_adam import CompiledAdam, compiled_adam_suits
from evergraph.training.optimizers import make_optimizer
from evergraph.training.settings import Training

OTHERS = [path for path in FAST_PATHS if path != "compiled"]
needs_compiler = pytest.mark.skipif(kernels(torch.float64, torch.int32) is None, reason="needs a C compiler")


def matrix(rows: int = 40, columns: int = 60, density: float = 0.15, index: torch.dtype = torch.int32) -> SparseMatrix:
    made = SparseMatrix.from_scipy(sp.random(rows, columns, density, format="csr", rng=0), torch.float64)
    return SparseMatrix(made.indptr.to(index), made.indices.to(index), made.values, made.num_columns)


@needs_compiler
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("width", [1, 7, 8, 35, 130, 257])
def test_a_product_is_the_dense_one_at_any_width(width: int, index: torch.dtype) -> None:
    sparse, dense = matrix(index=index), torch.randn(60, width, dtype=torch.float64)
    assert sparse.kernels_with(dense) is not None
    assert torch.allclose(sparse.multiply(dense), sparse.dense() @ dense, atol=1e-14)


@needs_compiler
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse, dense = matrix().to(torch.float32), torch.randn(60, 33)
    picked = PickedRows(sparse, torch.arange(7, 30))
    alone = sparse.multiply(dense), picked.t().multiply(dense[:23])
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for found, expected in zip((sparse.multiply(dense), picked.t().multiply(dense[:23])), alone):
        assert torch.equal(found, expected)


@needs_compiler
@pytest.mark.parametrize("flags", ["", "-mno-avx512f", "-mno-avx512f -mno-avx"], ids=["native", "avx", "sse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_of_any_width_make_the_same_numbers(
    dtype: torch.dtype, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other processors compile: their vectors are narrower, and they have fewer registers."""
    if platform.machine() != "x86_64":
        pytest.skip("flags of x86")
    monkeypatch.setenv("CC", f"cc {flags}")
    narrow = compiled._compiled.__wrapped__(dtype, torch.int64)
    assert narrow is not None
    sparse, close = matrix(index=torch.int64).to(dtype), 1e-12 if dtype == torch.float64 else 1e-4
    rng = np.random.default_rng(0)
    for width in (1, 8, 40, 257):
        dense = torch.randn(60, width, dtype=dtype)
        assert torch.allclose(narrow.multiply(sparse.parts(), dense, 40), sparse.dense() @ dense, atol=close)
    for size, width in ((1, 1), (9, 3), (130, 8), (130, 15), (70, 31)):
        rows = rng.normal(size=(size, size))
        whole = rows @ rows.T / size + np.eye(size)
        columns = rng.normal(size=(size, width))
        few = compiled.few_columns(columns, sparse.values.numpy().dtype)
        if few is None:
            continue
        product = np.ones_like(few)
        narrow.add_product(product, whole.astype(few.dtype), few)
        assert np.allclose(product[:, :width] - 1, whole @ columns, atol=close)
        part, flipped = rows.astype(few.dtype)[: size // 2 + 1], np.ones_like(few)
        product = np.ones_like(few[: len(part)])
        narrow.add_product(product, part, few, (flipped, few[: len(part)]))
        assert np.allclose(product[:, :width] - 1, part @ columns, atol=close)
        assert np.allclose(flipped[:, :width] - 1, part.T @ columns[: len(part)], atol=close)
        narrow.solve(np.linalg.cholesky(whole).astype(few.dtype), few)
        assert np.allclose(few[:, :width], np.linalg.solve(whole, columns), atol=close)


@needs_compiler
def test_a_transpose_is_scipy_s() -> None:
    sparse = matrix(rows=5)  # most columns have no entry
    found = sparse.t()
    with fast_paths(*OTHERS):
        expected = matrix(rows=5).t()
    for part, other in zip(found.parts(), expected.parts()):
        assert torch.equal(part, other.to(part.dtype))
    assert torch.equal(found.dense(), sparse.dense().T)


@needs_compiler
@pytest.mark.parametrize("few", [False, True], ids=["most rows", "few rows"])
def test_picked_rows_are_the_copied_ones(few: bool) -> None:
    whole = matrix()
    rows = torch.tensor([3, 39]) if few else torch.randperm(40)[:30]
    picked, copied = PickedRows(whole, rows), whole.rows(rows)
    assert (picked.shape, picked.nnz, picked.dtype) == (copied.shape, copied.nnz, copied.dtype)
    weight = torch.randn(60, 9, dtype=torch.float64, requires_grad=True)
    made = picked @ weight
    assert torch.allclose(made, copied.dense() @ weight, atol=1e-14)
    cotangent = torch.randn_like(made)
    (found,) = torch.autograd.grad(made, weight, cotangent)
    assert torch.allclose(found, copied.dense().T @ cotangent, atol=1e-14)
    for part, other in zip(picked.parts(), copied.parts()):  # written out when they are asked for
        assert torch.equal(part, other)
    assert torch.equal(picked.t().dense(), copied.dense().T)


@needs_compiler
def test_picked_rows_in_every_mode_of_autograd() -> None:
    picked = PickedRows(matrix(), torch.arange(5, 35))
    weight = torch.randn(60, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: picked @ w, weight, check_batched_grad=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda w: (picked @ w).square(), weight)
    several = torch.randn(3, 60, 4, dtype=torch.float64)
    assert torch.allclose(torch.vmap(lambda w: picked @ w)(several), picked.dense() @ several)


@needs_compiler
def test_picked_rows_are_freed_with_their_batch() -> None:
    picked = PickedRows(matrix(), torch.arange(30))
    (picked @ torch.randn(60, 4, dtype=torch.float64, requires_grad=True)).sum().backward()
    alive = weakref.ref(picked)
    gc.disable()
    try:
        del picked
        assert alive() is None
    finally:
        gc.enable()


@needs_compiler
@pytest.mark.parametrize("nodes", [60, 3000], ids=["looked through", "sorted"])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_batch_is_the_one_cut_by_torch(hops: int, nodes: int) -> None:
    graph = sbm(nodes=nodes, classes=3, degree=3, features=4, seed=1)
    operator = gcn_operator(graph)
    batcher = Neighbourhoods(graph.x.double(), operator, graph.y, hops)
    for seeds in (torch.tensor([5]), torch.tensor([17, 3, 44])):
        found = batcher.batch(seeds)
        with fast_paths(*OTHERS):
            expected = batcher.batch(seeds)
        assert found.sizes == expected.sizes
        assert torch.equal(found.nodes, expected.nodes)
        assert all(torch.equal(a, b) for a, b in zip(found.operator.parts(), expected.operator.parts()))
        assert torch.equal(found.x, expected.x)


@needs_compiler
def test_what_does_not_fit_is_an_error_and_not_a_crash() -> None:
    graph = sbm(nodes=60, classes=3, degree=3, features=4, seed=1)
    batcher = Neighbourhoods(graph.x.double(), gcn_operator(graph), graph.y, 2)
    for seeds in (torch.tensor([3, -1]), torch.tensor([60])):
        with pytest.raises(IndexError):
            batcher.batch(seeds)
    assert batcher.batch(torch.tensor([4, 4])).nodes[:2].tolist() == [4, 4]
    for sparse in (matrix(), PickedRows(matrix(), torch.arange(30))):
        for dense in (torch.randn(59, 3, dtype=torch.float64), torch.randn(61, 3, dtype=torch.float64)):
            with pytest.raises((RuntimeError, IndexError)):
                sparse.multiply(dense)
        with pytest.raises(RuntimeError):
            sparse.t().multiply(torch.randn(7, 3, dtype=torch.float64))


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_adam_is_torch_s(schedule: str, dtype: torch.dtype) -> None:
    start = [torch.randn(7, 5, dtype=dtype), torch.randn(3, dtype=dtype), torch.randn(2, dtype=dtype)]
    models = [torch.nn.ParameterList(torch.nn.Parameter(value.clone()) for value in start) for _ in range(2)]
    settings = Training(lr=0.05, weight_decay=0.01, schedule=schedule)  # type: ignore[arg-type]
    ours = make_optimizer(models[0], settings)
    with fast_paths(*OTHERS):
        theirs = make_optimizer(models[1], settings)
    assert isinstance(ours, CompiledAdam)
    assert not isinstance(theirs, CompiledAdam)
    for step in range(12):
        for model, optimizer in zip(models, (ours, theirs)):
            torch.manual_seed(step)
            optimizer.zero_grad()
            sum((value * torch.randn_like(value)).sum() for value in list(model)[: 2 if step < 3 else 3]).backward()
            optimizer.step()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for found, expected in zip(*models):
        assert torch.allclose(found, expected, atol=tolerance)
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.allclose(ours.state[found][key], theirs.state[expected][key], rtol=1e-5, atol=tolerance)


def test_adam_of_parameters_that_kernels_cannot_read_is_torch_s() -> None:
    assert not compiled_adam_suits([torch.zeros(3, 2).T])
    assert not compiled_adam_suits([torch.zeros(3), torch.zeros(3, dtype=torch.float64)])
    assert not compiled_adam_suits([torch.zeros(3, dtype=torch.float16)])


@needs_compiler
def test_a_quadratic_s_pull_is_the_one_written_out() -> None:
    grad, value, anchor, importance = torch.randn(4, 37, 5, dtype=torch.float64)
    expected = grad + 0.7 * importance * (value - anchor)
    found = grad.clone()
    pulling = kernels_over(found, value, anchor, importance)
    assert pulling is not None
    pulling.pull(found, value, anchor, importance, 0.7)
    assert torch.allclose(found, expected, atol=1e-14)
    assert kernels_over(found, value.T, anchor, importance) is None
    assert kernels_over(found, value.float(), anchor, importance) is None


def learned(method: str) -> dict[str, Tensor]:
    """The parameters after two tasks on sparse features, in float64."""
    made = sbm(nodes=90, classes=4, degree=5, features=1, seed=0)
    x = sp.random(90, 30, 0.15, format="csr", rng=0, dtype="float64")
    stream = eg.TaskStream(make_graph(x, made.edge_index, made.y), 2)
    learner = eg.Learner(
        eg.GCN(hidden=20), eg.make_method(method), epochs=3, lr=0.01, batch_size=8, dtype=torch.float64
    )
    for task in stream:
        learner.learn(task)
    return eg.copy_params(learner.model)


@needs_compiler
@pytest.mark.parametrize("method", ["finetune", "curvature", "ewc", "lwf", "twp"])
def test_a_training_ends_where_it_ends_without_kernels(method: str) -> None:
    found = learned(method)
    with fast_paths(*OTHERS):
        expected = learned(method)
    assert all(torch.allclose(found[name], expected[name], atol=1e-9) for name in expected)


# without a compiler


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing compiled yet, and an empty cache folder."""
    monkeypatch.setattr(compiled, "_compiled", compiled._compiled.__wrapped__)
    monkeypatch.setattr(compiled, "FLAGS", ("-O0", "-fPIC", "-shared", "-w"))  # compiled in a third of the time
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_without_a_compiler_torch_does_the_work(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    assert kernels(torch.float32, torch.int32) is None
    sparse, dense = matrix().to(torch.float32), torch.randn(60, 3)
    assert torch.allclose(sparse.multiply(dense), sparse.dense() @ dense, atol=1e-5)


def test_a_compiler_that_fails_is_one_line(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.warns(EvergraphWarning, match=r"the C kernels cannot be compiled \(Command .*torch's are used"):
        assert kernels(torch.float32, torch.int32) is None


@needs_compiler
def test_kernels_are_compiled_once(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels(torch.float32, torch.int32) is not None
    (kept,) = (anew / "evergraph").glob("*.so")
    made = kept.stat().st_mtime_ns
    monkeypatch.setattr(compiled.subprocess, "run", lambda *a, **k: pytest.fail("compiled again"))
    assert kernels(torch.float32, torch.int32) is not None
    assert kept.stat().st_mtime_ns == made


@needs_compiler
def test_a_cache_folder_that_cannot_be_written_is_no_obstacle(anew: Path) -> None:
    (anew / "evergraph").write_text("a file in its place")
    assert kernels(torch.float32, torch.int32) is not None
    assert [path.read_text() for path in anew.iterdir()] == ["a file in its place"]


@needs_compiler
@pytest.mark.parametrize("model", ["sage", "gat", "gcn"])
def test_an_example_that_is_named_several_times_counts_as_often(model: str) -> None:
    plain = sbm(nodes=60, classes=4, degree=5, features=12, signal=2.0, seed=0)
    words = SparseMatrix.from_scipy(sp.csr_array(plain.x.numpy() * (plain.x.numpy() > 0.5)))
    task = eg.TaskStream(replace(plain, x=words), 2)[0]
    task = replace(task, train=torch.cat([task.train] * 3))
    found = []
    for ways in (FAST_PATHS, OTHERS):
        with fast_paths(*ways):
            made = MODELS[model](hidden=8)
            learner = eg.Learner(made, "finetune", epochs=3, batch_size=0, device="cpu", dtype=torch.float64)
            learner.learn(task)
            found.append([value.detach() for value in learner.model.parameters()])
    assert all(torch.allclose(one, other, atol=1e-9) for one, other in zip(*found))


@needs_compiler
def test_a_library_that_is_cut_short_is_compiled_anew(anew: Path) -> None:
    assert kernels(torch.float32, torch.int32) is not None
    (library,) = (anew / "evergraph").glob("*.so")
    whole = library.read_bytes()
    library.unlink()  # the process has it mapped
    library.write_bytes(whole[: len(whole) // 2])
    assert not compiled._is_whole(library)
    assert kernels(torch.float32, torch.int32) is not None
    assert compiled._is_whole(library)
