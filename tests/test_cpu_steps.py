"""What a step on a CPU saves besides kernels for single products: layers, pulls and hooks in one pass, memory kept."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

import evergraph as eg
from evergraph.core import allocator
from evergraph.core.allocator import keep_freed_memory
from evergraph.core.capabilities import capability, capable
from evergraph.core.compiled import Pull, kernels
from evergraph.core.propagated_layer import propagated_layer, propagated_layer_suits
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Neighbourhoods
from evergraph.data.datasets.sbm import sbm
from evergraph.methods import make_method
from evergraph.methods.base import Context, Method, Step
from evergraph.models.gcn import gcn_operator
from evergraph.training.compiled_adam import CompiledAdam
from evergraph.training.learner import Learner
from evergraph.training.learning import make_context

needs_compiler = pytest.mark.skipif(kernels(torch.float64, torch.int64) is None, reason="needs a C compiler")
STREAM = eg.TaskStream(sbm(nodes=96, classes=6, degree=4, features=5, seed=0), 2)


def layer(width: int = 9, units: int = 3) -> tuple[SparseMatrix, Tensor, Tensor, Tensor, Tensor]:
    """P, H, W, Ḣ and Ẇ in float64."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*sizes, dtype=torch.float64, generator=generator)

    operator = SparseMatrix.from_dense(drawn(4, 7) * (drawn(4, 7) > 0))
    tangents = drawn(7, width), drawn(width + 1, units)
    return operator, drawn(7, width).requires_grad_(), drawn(width + 1, units).requires_grad_(), *tangents


def written_out(operator: SparseMatrix, hidden: Tensor, weight: Tensor) -> Tensor:
    return operator.dense() @ F.pad(F.relu(hidden), (0, 1), value=1.0) @ weight


@needs_compiler
def test_a_layer_that_gathers_first_is_the_one_written_out() -> None:
    operator, hidden, weight, moved, along = layer()
    assert propagated_layer_suits(hidden, operator)
    expected, change = torch.func.jvp(
        lambda h, w: written_out(operator, h, w), (hidden.detach(), weight.detach()), (moved, along)
    )
    found, found_change = propagated_layer(hidden, weight, operator, moved, along)
    assert found_change is not None
    assert torch.allclose(found_change, change, atol=1e-13)
    assert torch.allclose(found, expected, atol=1e-13)
    alone, none = propagated_layer(hidden, weight, operator)
    assert none is None
    assert torch.equal(alone, found)
    cotangent = torch.randn_like(found)
    got = torch.autograd.grad(found, (hidden, weight), cotangent)
    want = torch.autograd.grad(written_out(operator, hidden, weight), (hidden, weight), cotangent)
    assert all(torch.allclose(a, b, atol=1e-13) for a, b in zip(got, want))


@needs_compiler
def test_what_is_no_number_stays_none() -> None:
    """A model that diverged is told by its loss, which an activation that took such a unit for none would hide."""
    operator, hidden, weight, _, _ = layer()
    with torch.no_grad():
        hidden[2, 3] = float("nan")
    found = propagated_layer(hidden, weight, operator)[0]
    assert torch.equal(found.isnan(), (operator.dense()[:, 2] != 0).unsqueeze(1).expand_as(found))


@needs_compiler
def test_the_gradient_of_a_layer_s_gradient_and_many_cotangents_at_once() -> None:
    operator, hidden, weight, _, _ = layer()

    def twice(made: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        grads = torch.autograd.grad(made().square().sum(), (hidden, weight), create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in grads), (hidden, weight))

    def at_once(made: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        out = made()
        units = torch.eye(out.numel(), dtype=out.dtype).view(-1, *out.shape)
        return torch.autograd.grad(out, (hidden, weight), units, is_grads_batched=True)

    for way in (twice, at_once):
        found = way(lambda: propagated_layer(hidden, weight, operator)[0])
        expected = way(lambda: written_out(operator, hidden, weight))
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(found, expected))


def test_a_layer_under_a_transform_of_torch_s_is_left_to_torch() -> None:
    operator, hidden, _, _, _ = layer()
    answers: list[bool] = []

    def asked(rows: Tensor) -> Tensor:
        answers.append(propagated_layer_suits(rows, operator))
        return rows.sum()

    torch.func.grad(asked)(hidden.detach())
    with forward_ad.dual_level():
        asked(forward_ad.make_dual(hidden.detach(), torch.ones_like(hidden)))
    assert answers == [False, False]
    assert not propagated_layer_suits(hidden.detach().T, operator)


@needs_compiler
def test_a_seed_named_twice_is_there_twice() -> None:
    graph = STREAM[0].graph
    cut = Neighbourhoods(SparseMatrix.from_dense(torch.eye(graph.num_nodes)), gcn_operator(graph), graph.y, 2)
    batch = cut.batch(torch.tensor([3, 5, 3]))
    dense = batch.dense_x
    assert torch.equal(dense[0], dense[2])
    assert torch.equal(dense, torch.eye(graph.num_nodes)[batch.nodes])


def steps_with(method: Method, *, in_one_pass: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The parameters after a few steps on the second task, in float64, with pulls added by Adam's own pass or not."""
    learner = Learner(eg.GCN(hidden=4), method, epochs=2, lr=0.01, dtype=torch.float64, device="cpu")
    learner.learn(STREAM[0])
    pulled = CompiledAdam.pulled_by
    taken: list[bool] = []

    @capability(rests_on=("step",))
    def noted(self: CompiledAdam, pulls: dict[Tensor, Pull]) -> bool:
        taken.append(in_one_pass and pulled(self, pulls) and bool(pulls))
        return taken[-1] or not pulls

    with monkeypatch.context() as patched:
        patched.setattr(CompiledAdam, "pulled_by", noted)
        learner.learn(STREAM[1])
    assert taken
    assert all(taken) == in_one_pass
    return eg.copy_params(learner.model)


@needs_compiler
@pytest.mark.parametrize("name", ["ewc", "mas", "twp"])
def test_a_pull_in_adam_s_pass_is_the_pull_on_the_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = (
        steps_with(make_method(name, {"strength": 50.0}), in_one_pass=way, monkeypatch=monkeypatch)
        for way in (True, False)
    )
    assert all(torch.allclose(found[key], expected[key], atol=1e-12) for key in expected)


def test_whoever_reads_or_changes_gradients_gets_them_with_the_pull() -> None:
    class Reads(eg.EWC):
        def after_step(self, step: Step) -> None:
            """Something with the gradients."""

    class Looks(eg.EWC):
        def observe(self, step: Step) -> None:
            """Something with the gradients of the step before."""

    assert capable(eg.EWC(), "pulls") is not None
    for method in (Reads(), Looks(), make_method("si"), make_method("ema+ewc")):
        assert capable(method, "pulls") is None


def test_parts_of_a_composition_are_asked_for_the_hooks_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Observes(Method):
        def observe(self, step: Step) -> None:
            asked.append("class")

    plain, observes = Method(), Observes()
    plain.observe = lambda step: asked.append("object")  # type: ignore[method-assign]
    learner = Learner(eg.GCN(hidden=4), eg.Compose(Method(), plain, observes), epochs=1, device="cpu")
    learner.learn(STREAM[0])
    assert asked == ["object", "class"] * (len(asked) // 2)
    assert asked


@pytest.mark.parametrize("task", [1, 2])
def test_readings_of_lwf_that_distil_the_same_are_one_training(task: int) -> None:
    found = []
    for reading in ("seen", "per-task"):
        learner = Learner(eg.GCN(hidden=4), eg.LwF(distillation=reading), epochs=1, device="cpu", label_scope="seen")
        for number in range(task):
            learner.learn(STREAM[number])
        learner.classes_ = [*learner.classes_, *STREAM[task].class_names]
        claim = capable(learner.method, "steps_depend_on")
        assert claim is not None
        context: Context = make_context(learner, STREAM[task], STREAM[task])
        found.append(claim(context)[3])  # which units are distilled together
    assert (len(found[0]) == len(found[1])) == (task == 1)
    assert torch.equal(found[0][0], found[1][-1])


def test_whoever_set_up_the_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "131072")
            assert not keep_freed_memory.__wrapped__()
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory.__wrapped__()
