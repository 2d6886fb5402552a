"""Products with the full Fisher matrix against the matrix written out, and against curvlinops."""

import pytest
import torch
from curvlinops import EFLinearOperator, GGNLinearOperator
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call

import evergraph as eg
from brute_force import CLASSES, Setting, brute_fisher, cases, close, flat, make, own_cases, seeded
from evergraph.core.params import Displacement
from evergraph.curvature import (
    LABELS,
    apply_output_fisher,
    dense_fisher,
    double_reverse_product,
    fisher_product,
    forward,
    forward_product,
    jacobian,
    label_factors,
    pick_labels,
    quadratic_form,
    regularizer,
)
from evergraph.data.batching import Batch
from evergraph.problems import NodeClassification

every_kind = pytest.mark.parametrize("labels", LABELS)
scopes = pytest.mark.parametrize("classes", [(0, 1, 2, 3), (1, 3)], ids=["all", "two"])


@cases
@every_kind
@scopes
def test_products_with_the_matrix_written_out(case: str, labels: str, classes: tuple[int, ...]) -> None:
    setting = make(case, classes)
    logits = setting.function(setting.params)
    picked = pick_labels(setting.problem, logits, "sample", generator=seeded()) if labels == "sample" else None
    fisher, d = brute_fisher(setting, labels, picked), setting.direction()
    more = {"problem": setting.problem, "labels": labels, "targets": setting.batch.y}
    close(flat(fisher_product(setting.function, setting.params, d, **more, generator=seeded())), fisher @ flat(d))
    form = quadratic_form(setting.function, setting.params, d, **more, generator=seeded())
    close(form, flat(d) @ fisher @ flat(d))
    close(dense_fisher(setting.function, setting.params, **more, generator=seeded()), fisher)


@cases
def test_forward_mode_equals_double_reverse_and_the_jacobian(case: str) -> None:
    setting, d = make(case), make(case).direction()
    logits, tangent = forward_product(setting.function, setting.params, d)
    same, reverse = double_reverse_product(setting.function, setting.params, d)
    assert torch.equal(logits, same)
    close(reverse, tangent)
    close(jacobian(setting.function, setting.params) @ flat(d), tangent)


@pytest.mark.parametrize("case", ["gcn", "gcn-unpropagated", "gcn-3-layers"])
@pytest.mark.parametrize("kind", ["any", "displacement"])
def test_the_joint_pass_of_gcn_equals_forward_mode(case: str, kind: str) -> None:
    setting = make(case)
    d = setting.direction()
    if kind == "displacement":  # D = 3θ − Σ anchors, which the model may compute in its own way
        d = Displacement(dict(setting.model.named_parameters()), 3, setting.direction(8))
    params = dict(setting.model.named_parameters())
    logits, (tangent,) = forward(setting.model, setting.batch, [d])
    want, moved = forward_product(lambda given: functional_call(setting.model, given, (setting.batch,)), params, d)
    close(logits, want)
    close(tangent, moved)
    # the logits carry the graph of the parameters, the tangent none
    assert not tangent.requires_grad
    weights = torch.randn(logits.shape, dtype=logits.dtype, generator=seeded())
    got = torch.autograd.grad((logits * weights).sum(), list(params.values()))
    ref = torch.autograd.grad((want * weights).sum(), list(params.values()))
    close(torch.cat([g.flatten() for g in got]), torch.cat([g.flatten() for g in ref]))


class NoForwardMode(torch.autograd.Function):
    """x², with a backward and no forward mode."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        return x * x

    @staticmethod
    def backward(ctx: object, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return 2 * x * cotangent


def test_an_operator_without_forward_mode_falls_back_to_double_reverse() -> None:
    params = {"a": torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)}
    d = {"a": torch.tensor([[0.3, 0.1], [-1.0, 2.0]], dtype=torch.float64)}
    with pytest.raises((RuntimeError, NotImplementedError), match="jvp"), forward_ad.dual_level():
        NoForwardMode.apply(forward_ad.make_dual(params["a"], d["a"]))
    logits, tangent = forward_product(lambda given: NoForwardMode.apply(given["a"]), params, d)
    close(logits, params["a"] ** 2)
    close(tangent, 2 * params["a"] * d["a"])


def test_an_error_of_the_model_itself_is_not_taken_for_a_missing_forward_mode() -> None:
    def broken(params: dict[str, Tensor]) -> Tensor:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        forward_product(broken, {"a": torch.ones(1)}, {"a": torch.ones(1)})


def test_a_function_without_parameters_has_no_tangent() -> None:
    params, d = {"a": torch.ones(2)}, {"a": torch.ones(2)}
    for product in (forward_product, double_reverse_product):
        _, tangent = product(lambda given: torch.ones(3, 2), params, d)
        assert torch.equal(tangent, torch.zeros(3, 2))


@every_kind
@scopes
def test_output_fisher_is_the_sum_of_its_factors(labels: str, classes: tuple[int, ...]) -> None:
    problem = NodeClassification(classes)
    z = torch.randn(6, CLASSES, dtype=torch.float64, generator=seeded())
    u = torch.randn(6, CLASSES, dtype=torch.float64, generator=seeded())
    targets = torch.tensor(classes).repeat(6)[[0, 1, 2, 3, 1, 0]]
    factors = label_factors(problem, z, labels, targets, seeded())
    want = torch.einsum("vkc,vkd,vd->vc", factors, factors, u)
    close(apply_output_fisher(problem, z, u, labels, targets, seeded()), want)


def test_labels_are_picked_by_their_rule() -> None:
    problem = NodeClassification()
    z = torch.tensor([[0.0, 1.0, -1.0]], dtype=torch.float64)
    assert pick_labels(problem, z, "pred").tolist() == [1]
    assert pick_labels(problem, z, "empirical", torch.tensor([2])).tolist() == [2]
    drawn = pick_labels(problem, z.expand(20000, 3), "sample", generator=seeded())
    share = torch.bincount(drawn, minlength=3) / 20000
    p = z.softmax(1)[0]
    assert ((share - p).abs() < 4 * (p * (1 - p) / 20000).sqrt()).all()
    with pytest.raises(eg.EvergraphError, match="true labels"):
        pick_labels(problem, z, "empirical")
    with pytest.raises(eg.EvergraphError, match="choose one of"):
        pick_labels(problem, z, "exact")


class Scoped(torch.nn.Module):
    """A graph model as curvlinops wants it: from a dictionary to logits."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.model, self.scope = setting.model, setting.scope

    def forward(self, data: dict[str, Batch]) -> Tensor:
        return self.model(data["batch"])[:, self.scope]


@own_cases
@pytest.mark.parametrize("labels", ["exact", "empirical"])
@pytest.mark.filterwarnings("ignore")
def test_products_against_curvlinops(case: str, labels: str) -> None:
    setting = make(case)
    kind = GGNLinearOperator if labels == "exact" else EFLinearOperator  # the GGN of cross entropy is the Fisher
    module, loss = Scoped(setting), torch.nn.CrossEntropyLoss(reduction="sum")
    data = [({"batch": batch}, batch.y) for batch in setting.batches(5)]
    reference = kind(module, loss, list(module.parameters()), data, batch_size_fn=lambda x: x["batch"].num_seeds)
    d = setting.direction()
    got = fisher_product(setting.function, setting.params, d, setting.problem, labels, setting.batch.y)
    close(flat(got), reference @ flat(d))


@pytest.mark.parametrize("case", ["gcn", "sage", "gat", "pyg"])
@pytest.mark.parametrize("point", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_the_framework_is_the_sum_of_quadratic_forms(case: str, point: float, structure: str) -> None:
    setting = make(case, (0, 2))
    theta, anchors = setting.params, [setting.direction(1), setting.direction(2)]
    value, gradient = torch.zeros((), dtype=torch.float64), torch.zeros_like(flat(theta))
    for anchor in anchors:
        gap = {name: theta[name] - anchor[name] for name in theta}
        setting.model.load_state_dict({name: anchor[name] + point * gap[name] for name in theta})
        fisher = brute_fisher(setting, "exact")
        if structure == "diagonal":
            fisher = fisher.diagonal().diag()
        value += flat(gap) @ fisher @ flat(gap) / 2
        gradient += fisher @ flat(gap)
    got, pull = regularizer(setting.function, theta, anchors, setting.problem, point=point, structure=structure)
    close(got, value)
    close(flat(pull), gradient)
