"""Rules that every method on the list keeps. A new method joins by being registered.

A method that breaks a rule for a good reason is named below, with the reason. Each rule is checked for every method in
the default suite; variants of a method, other models and other pairs that would repeat it are marked slow.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_geometric import nn as pyg

import evergraph as eg
from brute_force import Setting, close, make, pull, step_gradient
from cases import slow
from evergraph.data.datasets.sbm import sbm
from evergraph.methods import METHODS, Compose, make_method
from evergraph.methods.base import Method
from evergraph.training.member import Progress

pytestmark = pytest.mark.filterwarnings("ignore:.*no effect; .* learns in one pass")

CLOSED_FORM = {"analytic": "solves for the head at a task's end", "auto": "likewise"}
OWN_MODEL: dict[str, Callable[[], eg.GraphModel]] = {
    "tpp": lambda: eg.PromptedGCN(hidden=5, prompts=2),
    "hpn": lambda: eg.PrototypeNetwork(dim=3, node_extractors=2, structure_extractors=2, capacity=40),
    "fgn": lambda: eg.FeatureGraphNetwork(hidden=4, channels=2, out_hidden=3, vertices=4),
}
"""Methods that bring a model of their own, in a small size."""
FROM_THE_START = {
    "joint": "draws its parameters anew at every task",
    "gdumb": "likewise, and trains on its memory alone",
    "cat": "trains on its condensed memory alone",
    "puma": "likewise",
    "logit-adjustment": "makes up for rare classes in the first task too",
    "delome": "likewise",
    **CLOSED_FORM,
    **dict.fromkeys((*OWN_MODEL, "tpp, graph", "hpn, head"), "has another model than fine-tuning here"),
}
GCN_ALONE = {"pi-gnn": "adds hidden units, which gcn alone can"}
NO_EFFECT = {"finetune": "is what the others are compared with"}
"""Methods that do not equal fine-tuning on the first task, and those that always do."""

VARIANTS: dict[str, Callable[[], Method]] = {
    "curvature, sampled": lambda: eg.OnlineCurvature(estimator="sampled"),
    "curvature, queue": lambda: eg.OnlineCurvature(estimator="queue", queue_size=3),
    "curvature, between": lambda: eg.OnlineCurvature(point=0.5),
    "curvature, previous": lambda: eg.OnlineCurvature(anchors="previous", ema=0.0),
    "curvature, means": lambda: eg.OnlineCurvature(nodes="means"),
    "curvature, means, sampled": lambda: eg.OnlineCurvature(nodes="means", anchors="stored", estimator="sampled"),
    "curvature, prototypes": lambda: eg.OnlineCurvature(nodes="prototypes", prototypes=2),
    "ewc, sample": lambda: eg.EWC(labels="sample"),
    "ewc, squared batch": lambda: eg.EWC(fisher="squared-batch"),
    "ewc++, sample": lambda: eg.EWCPlusPlus(labels="sample"),
    "mas, squared batch": lambda: eg.MAS(importance="squared-batch", over_tasks="mean"),
    "lwf, per task": lambda: eg.LwF(distillation="per-task"),
    "gpm, task heads": lambda: eg.GPM(head="tasks", samples=5),
    "tpp, graph": lambda: eg.TPP(inference="graph", pretrain_epochs=1),
    "hpn, head": lambda: eg.HPN(prediction="head"),
    "twp, cglb": lambda: eg.TWP(reading="cglb"),
    "twp, cglb, full batch": lambda: eg.TWP(reading="cglb-full-batch"),
    "reservoir, draws": lambda: eg.Reservoir(memory="400", replay_size=3, weighting="nodes"),
    "er-gnn, coverage": lambda: eg.ERGNN(per_class=2, sampler="coverage", weighting="examples"),
    "er-gnn, influence": lambda: eg.ERGNN(per_class=2, sampler="influence"),
    "ssm, bytes": lambda: eg.SSM(memory="1KB", neighbours=(2, 1), sampler="degree"),
    "sem, ollivier": lambda: eg.SEM(memory="50%", curvature="ollivier"),
    "tem, uniform": lambda: eg.TEM(per_class=1, sampler="uniform"),
    "gem, no margin": lambda: eg.GEM(per_class=2, margin=0.0),
    "delome, plain loss": lambda: eg.DeLoMe(memory="200", networks=2, debiasing=0.0, start="features"),
    "a-gem, draws": lambda: eg.AGEM(per_class=3, replay_size=2),
}
SHORT: dict[str, Callable[[], Method]] = {
    "cat": lambda: eg.CaT(per_class=2, networks=3),
    "puma": lambda: eg.PUMA(per_class=2, networks=2, updates=2, pseudo_label_epochs=3, confidence=0.0),
    "delome": lambda: eg.DeLoMe(per_class=2, networks=3),
    "tpp": lambda: eg.TPP(pretrain_epochs=2),
}
"""Methods of the list with little work at the end or the start of a task."""
SUITE: dict[str, Callable[[], Method]] = {**METHODS, **VARIANTS, **SHORT}
MODELS = {"gcn": lambda: eg.GCN(hidden=5), "gat": lambda: eg.GAT(hidden=4, heads=2)}


every_name = pytest.mark.parametrize("name", [slow(name, when=name in VARIANTS) for name in SUITE])
"""Every method; variants of one in `make test-all` alone."""
ON_ANOTHER_MODEL = ("curvature", "stand-in-curvature", "ewc", "kfac", "lwf", "mas", "reservoir", "gem", "gpm")
"""What is also tried on a model whose layers are not linear maps, whatever else is left to `make test-all`."""
every_model = pytest.mark.parametrize(
    ("name", "model"),
    [slow(name, model, when=model != "gcn" and name not in ON_ANOTHER_MODEL) for model in MODELS for name in SUITE],
)
one_model = pytest.mark.parametrize(
    ("name", "model"),
    [slow(name, model, when=model != "gcn" or name in VARIANTS) for model in MODELS for name in SUITE],
)
every_type = pytest.mark.parametrize(
    "dtype", [slow(torch.float32), torch.float64], ids=["float32", "float64"]
)  # what is measured in one is measured in the other; in float64 a tensor of another type is found

GRAPH = sbm(nodes=48, classes=6, degree=4, features=5, signal=3.0, seed=1)
STREAM = eg.TaskStream(GRAPH, 2)


PROTOCOL = {
    "epochs": 2,
    "lr": 0.02,
    "optimizer": "adam",
    "reduction": "sum",
    "batch_size": 7,
    "label_scope": "seen",
    "weight_decay": 5e-4,
    "device": "cpu",
}
"""One for all, whatever settings a method would ask for by itself."""


def learner(method: Method, model: str = "gcn", dtype: torch.dtype = torch.float32, **more: object) -> eg.Learner:
    settings = {**PROTOCOL, **more}
    names = [part.name for part in flattened(method)]
    if model != "gcn" and GCN_ALONE.keys() & set(names):
        pytest.skip(GCN_ALONE[names[0]])
    own = next((OWN_MODEL[name] for name in names if name in OWN_MODEL), MODELS[model])
    closed = any(name in CLOSED_FORM for name in names)
    if closed and {*names} <= {*CLOSED_FORM, "finetune"}:  # settings of epochs would have no effect
        settings = {key: value for key, value in settings.items() if key in ("device", "num_classes")}
    return eg.Learner(eg.RandomFeatures(hidden=12) if closed else own(), method, dtype=dtype, **settings)


def tasks(of: eg.Learner) -> list[eg.Task]:
    return list(STREAM)


def learned(of: eg.Learner, number: int) -> eg.Learner:
    for task in tasks(of)[:number]:
        of.learn(task)
    return of


def flattened(method: Method) -> list[Method]:
    """The method itself, or what it is composed of."""
    return [part for one in method.methods for part in flattened(one)] if isinstance(method, Compose) else [method]


def tensors(state: object) -> list[Tensor]:
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in tensors(value)]
    if isinstance(state, (list, tuple)):
        return [tensor for value in state for tensor in tensors(value)]
    return [state] if isinstance(state, Tensor) else []


def equal(left: object, right: object, where: str) -> None:
    """Two trees of tensors and plain values, equal bit for bit."""
    assert type(left) is type(right), where
    if isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            equal(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), where
        for number, pair in enumerate(zip(left, right)):
            equal(*pair, f"{where}[{number}]")
    elif isinstance(left, Tensor):
        assert left.dtype == right.dtype, where
        assert torch.equal(left, right), where
    else:
        assert left == right, where


def same(a: eg.Learner, b: eg.Learner) -> None:
    """Equal bit for bit: parameters, buffers, the method's state, the classes, and random numbers to come."""
    equal(dict(a.model.state_dict()), dict(b.model.state_dict()), "model")
    equal(a.method.state_dict(), b.method.state_dict(), "method")
    equal(a.generator.get_state(), b.generator.get_state(), "the method's random numbers")
    equal(a.random_state, b.random_state, "the learner's random numbers")
    plain = ("classes_", "num_classes", "num_tasks", "first_accuracies", "history", "in_mid_task", "task_mark")
    for name in plain:
        assert getattr(a, name) == getattr(b, name), name
    assert [a.model.in_channels, a.model.out_channels] == [b.model.in_channels, b.model.out_channels]


def equal_parameters(a: eg.Learner, b: eg.Learner) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.model.parameters(), b.model.parameters()))


@functools.cache
def fine_tuned(model: str, number: int, epochs: int = 2) -> eg.Learner:
    """What every method is compared with; nobody learns with it."""
    return learned(learner(Method(), model, epochs=epochs), number)


@every_model
def test_no_effect_before_the_second_task_one_after_and_always_finite(name: str, model: str) -> None:
    of = learned(learner(SUITE[name](), model), 1)
    if name not in FROM_THE_START:
        assert equal_parameters(of, fine_tuned(model, 1))
        assert of.first_accuracies == fine_tuned(model, 1).first_accuracies
    logs = [of.learn(task) for task in tasks(of)[1:]]
    assert equal_parameters(of, fine_tuned(model, 3)) == (name in NO_EFFECT)
    for tensor in [*of.model.state_dict().values(), *tensors(of.method.state_dict())]:
        assert torch.isfinite(tensor).all()
    assert all(math.isfinite(row["loss"]) for log in logs for row in log)


def turned_off(method: Method) -> dict[str, float]:
    """The settings at which a method does nothing, if it has such."""
    off = {"strength": 0.0, "ema": 0.0} if hasattr(method, "strength") else {"decay": 0.0}
    return {key: value for key, value in off.items() if key in {field.name for field in dataclasses.fields(method)}}


CAN_BE_OFF = [name for name in SUITE if name not in FROM_THE_START and turned_off(SUITE[name]())]


@pytest.mark.parametrize("name", CAN_BE_OFF)
@pytest.mark.parametrize("model", ["gcn", slow("gat")])
def test_strength_zero_is_fine_tuning(name: str, model: str) -> None:
    weak = dataclasses.replace(SUITE[name](), **turned_off(SUITE[name]()))
    assert equal_parameters(learned(learner(weak, model), 2), fine_tuned(model, 2))


@every_name
@every_type
def test_a_saved_learner_goes_on_as_if_nothing_had_happened(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Saved after a task, and in the middle of the next one."""
    whole = learned(learner(SUITE[name](), dtype=dtype), 1)
    whole.save(tmp_path / "between")

    def save(progress: Progress, epochs: int) -> None:
        if progress.epoch == 1:
            whole.save(tmp_path / "middle")

    whole.learn(tasks(whole)[1], save)
    for point in ("between",) if name in CLOSED_FORM else ("between", "middle"):
        again = eg.Learner.load(tmp_path / point, device="cpu")
        assert again.in_mid_task == (point == "middle")
        assert again.method.hyperparameters() == whole.method.hyperparameters()
        again.learn(tasks(again)[1])
        same(whole, again)
    whole.learn(tasks(whole)[2])
    again.learn(tasks(again)[2])
    same(whole, again)
    as_it_came = name in CLOSED_FORM or "real nodes" in whole.method.access.keeps  # sums in float64; nodes as they were
    kept = [*whole.model.parameters(), *([] if as_it_came else tensors(whole.method.state_dict()))]
    assert all(tensor.dtype == dtype for tensor in kept if tensor.is_floating_point())


# composition


@every_name
def test_composed_with_fine_tuning_in_either_order_nothing_changes(name: str) -> None:
    alone = learned(learner(SUITE[name](), epochs=1), 2)
    for composed in (Compose(SUITE[name](), eg.Finetune()), Compose(eg.Finetune(), SUITE[name]())):
        assert equal_parameters(alone, learned(learner(composed, epochs=1), 2))


OTHERS = {name: ["curvature", "ema"] for name in SUITE}
OTHERS |= {
    name: ["curvature", "ema", "ewc", "lwf"]
    for name in (*SHORT, "logit-adjustment", "gpm", "ncl", "pi-gnn", "tpp", "hpn", "fgn")
}
IN_SHORT = [("curvature", True), ("ema", False)]  # one that adds to gradients, one that moves parameters


@pytest.mark.parametrize(
    ("name", "other", "first"),
    [
        slow(name, other, first, when=name in VARIANTS or (other, first) not in IN_SHORT)
        for name in SUITE
        for other in OTHERS[name]
        for first in (True, False)
    ],
)
def test_composed_with_another_method_the_rules_hold(name: str, other: str, first: bool, tmp_path: Path) -> None:
    def composed() -> Compose:
        parts = [SUITE[name](), METHODS[other]()]
        return Compose(*parts if first else reversed(parts))

    if SUITE[name]().alone:
        with pytest.raises(
            eg.EvergraphError, match=f"^{SUITE[name]().name} cannot be composed with {other}: .*stand still"
        ):
            composed()
        return
    of = learned(learner(composed(), epochs=1), 1)
    if name not in FROM_THE_START:
        assert equal_parameters(of, fine_tuned("gcn", 1, epochs=1))
    of.save(tmp_path / "learner")
    of.learn(tasks(of)[1])
    again = eg.Learner.load(tmp_path / "learner", device="cpu")
    again.learn(tasks(again)[1])
    same(of, again)
    assert all(torch.isfinite(value).all() for value in of.model.parameters())


PROJECTING = {name for name in SUITE if "gem" in name}  # what they change depends on the whole gradient
CHANGES_STEPS = {"gpm", "ncl", "pi-gnn"}  # and does not add to gradients
ADDITIVE = [
    name
    for name, kind in SUITE.items()
    if name not in {*FROM_THE_START, *PROJECTING} and kind().name not in {"finetune", "ema", *CHANGES_STEPS, *OWN_MODEL}
]


def after_two_tasks(method: Method, setting: Setting) -> eg.methods.Context:
    """The method after two tasks that ended at random parameters, at the start of a third."""
    context, theta = setting.context(old=(0, 2)), setting.params
    method.start_task(context)
    for seed in (1, 2):
        setting.load(setting.direction(seed))
        step_gradient(method, context)
        if isinstance(method, eg.SI):  # its path integral needs steps that move
            method.path_ = {key: torch.ones_like(value) for key, value in method.path_.items()}
        method.end_task(context)
        method.start_task(context)
    setting.load(theta)
    return context


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("other", ["curvature", slow("lwf")])
def test_composed_pulls_add_up_in_either_order(name: str, other: str) -> None:
    setting = make("gcn")
    one, two = (dataclasses.replace(method, strength=1.0) for method in (SUITE[name](), METHODS[other]()))
    for method in (one, two):  # with one strength, so that neither drowns the other
        context = after_two_tasks(method, setting)
    want = pulled(one, context) + pulled(two, context)
    assert float(pulled(one, context).abs().max()) > 0
    close(pulled(Compose(one, two), context), want)
    close(pulled(Compose(two, one), context), want)


def pulled(method: Method, context: eg.methods.Context) -> Tensor:
    """What a copy of the method adds to the gradient, with the same random numbers every time."""
    context.generator.manual_seed(3)
    return pull(copy.deepcopy(method), context)


# growth of the output layer


@one_model
def test_after_the_output_layer_has_grown_learning_goes_on(name: str, model: str, tmp_path: Path) -> None:
    of = learned(learner(SUITE[name](), model, num_classes=4, epochs=1), 2)
    graph, nodes = STREAM[0].graph, STREAM[0].test
    before = of.logits(graph, nodes)
    of.grow(6)
    assert torch.allclose(of.logits(graph, nodes)[:, :4], before, atol=1e-6)
    of.save(tmp_path / "grown")
    of.learn(tasks(of)[2])
    again = eg.Learner.load(tmp_path / "grown", device="cpu")
    again.learn(tasks(again)[2])
    same(of, again)
    assert all(torch.isfinite(value).all() for value in of.model.parameters())


@pytest.mark.parametrize(
    ("name", "case"),
    [slow(name, case, when=case != "gcn" and name not in ON_ANOTHER_MODEL) for case in MODELS for name in ADDITIVE],
)
def test_growth_keeps_the_pull_on_what_was_there(name: str, case: str) -> None:
    """Right after growth old parameters are pulled as before, and new ones not at all."""
    setting, method = make(case), SUITE[name]()
    if hasattr(method, "sparsity"):
        method.sparsity = 0.0  # the new units' part in the loss's gradient is not the old task's
    context, before = after_two_tasks(method, setting), setting.params
    want = by_name(pulled(method, context), before)
    setting.model.grow(6)
    method.grow(before, setting.params)
    got = by_name(pulled(method, context), setting.params)
    scale = max(float(value.abs().max()) for value in want.values())
    assert scale > 0
    for key, value in want.items():
        old = tuple(slice(size) for size in value.shape)
        assert torch.allclose(got[key][old], value, rtol=1e-9, atol=1e-9 * scale), key
        got[key][old] = 0
        if key.startswith("weights"):  # old outputs do depend on where attention to new units stands
            assert float(got[key].abs().max()) <= 1e-9 * scale, key


def by_name(vector: Tensor, params: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = vector.split([value.numel() for value in params.values()])
    return {key: part.view_as(value).clone() for (key, value), part in zip(params.items(), parts)}


# failure


class BrokenError(Exception):
    """What a method or a hook of the tests raises."""


def break_down(*given: object) -> None:
    raise BrokenError


def learn_and_fail(of: eg.Learner, task: eg.Task) -> None:
    """Learn a task with a method that does all its work at the task's end and then fails."""
    end_task = of.method.end_task

    def failing(context: eg.methods.Context) -> None:
        end_task(context)
        break_down()

    others = torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of.method, "end_task", failing)
        with pytest.raises(BrokenError):
            of.learn(task)
    assert torch.equal(torch.get_rng_state(), others)  # nor are other people's random numbers touched


@every_name
@pytest.mark.parametrize("number", [slow(0), 1])
def test_a_learn_that_fails_at_the_end_of_a_task_leaves_everything_as_it_was(name: str, number: int) -> None:
    broken, unbroken = (learned(learner(SUITE[name]()), number) for _ in range(2))
    learn_and_fail(broken, tasks(broken)[number])
    same(broken, unbroken)
    for of in (broken, unbroken):
        of.learn(tasks(of)[number])
    same(broken, unbroken)


@pytest.mark.parametrize(
    "name", [slow(name, when=name in VARIANTS) for name in SUITE if name not in CLOSED_FORM]
)  # these train no epochs
def test_a_resumed_learn_that_fails_at_the_end_of_a_task_is_still_in_the_middle(name: str) -> None:
    broken, unbroken = (learned(learner(SUITE[name]()), 1) for _ in range(2))
    for of in (broken, unbroken):
        with pytest.raises(BrokenError):
            of.learn(tasks(of)[1], break_down)
        assert of.in_mid_task
    learn_and_fail(broken, tasks(broken)[1])
    same(broken, unbroken)
    equal(vars(broken.progress), vars(unbroken.progress), "progress")
    for of in (broken, unbroken):
        of.learn(tasks(of)[1])
    same(broken, unbroken)


@pytest.mark.parametrize("name", ["finetune", "joint", "stand-in-curvature", "lwf", "ewc"])
def test_a_learn_that_fails_leaves_running_statistics_as_they_were(name: str) -> None:
    torch.manual_seed(0)
    module = pyg.GCN(GRAPH.num_features, 5, 2, GRAPH.num_classes, norm="batch_norm")
    broken, unbroken = (learned(eg.Learner(copy.deepcopy(module), METHODS[name](), **PROTOCOL), 1) for _ in range(2))
    assert list(broken.model.named_buffers())
    learn_and_fail(broken, STREAM[1])
    same(broken, unbroken)
    for of in (broken, unbroken):
        of.learn(STREAM[1])
    same(broken, unbroken)


def test_a_learn_that_fails_leaves_the_callers_own_module_as_it_was() -> None:
    """Whoever keeps a reference to the module must not be left with the failed task's parameters."""
    module = pyg.GCN(GRAPH.num_features, 5, 2, GRAPH.num_classes, norm="batch_norm")
    of = learned(eg.Learner(module, eg.Finetune(), **PROTOCOL), 1)
    before = copy.deepcopy(dict(module.state_dict()))
    learn_and_fail(of, STREAM[1])
    assert of.model.module is module
    equal(dict(module.state_dict()), before, "module")


def replaced_state(method: Method) -> dict[str, object]:
    """What the method declares to replace and never to write into."""
    return {
        f"{number}.{declared.name}": getattr(part, declared.name)
        for number, part in enumerate(flattened(method))
        for declared in (dataclasses.fields(part) if dataclasses.is_dataclass(part) else ())
        if declared.metadata.get("replaced")
    }


REPLACING = [name for name in SUITE if replaced_state(SUITE[name]())]


def test_some_state_is_replaced() -> None:
    assert {"analytic", "auto", "joint"} <= set(REPLACING)


@pytest.mark.parametrize("name", REPLACING)
def test_state_that_is_replaced_is_never_written_into(name: str) -> None:
    """Undoing a failed task relies on it: such state is not copied beforehand."""
    of = learner(SUITE[name]())
    for number, task in enumerate(tasks(of)):
        state = replaced_state(of.method)
        before = [(tensor, tensor._version, tensor.clone()) for tensor in tensors(state)]
        assert bool(before) == (number > 0)
        of.learn(dataclasses.replace(task, so_far=None))  # on its own, so that joint training has to keep it
        for tensor, version, value in before:
            assert tensor._version == version
            assert torch.equal(tensor, value)


# the list itself


@pytest.mark.parametrize("name", METHODS)
def test_the_list_says_what_a_method_is(name: str) -> None:
    kind = METHODS[name]
    assert kind.name == name
    assert kind.family
    assert kind.reference
    assert kind.__doc__
    made = make_method(name, kind().hyperparameters())
    assert made == kind()
    assert repr(made).startswith(kind.__name__ + "(")
    for key in kind().hyperparameters():
        assert f"{key}:" in kind.__doc__ or key in kind.__doc__, f"{name}: the docstring does not explain {key}"


def test_a_registered_method_is_on_the_list_and_names_are_unique() -> None:
    @dataclasses.dataclass(repr=False)
    class Mine(Method):
        """Does nothing."""

        name = "mine"

    try:
        assert eg.register(Mine) is Mine
        assert isinstance(make_method("mine+ema"), Compose)

        class Other(Method):
            name = "mine"

        with pytest.raises(eg.EvergraphError, match="'mine' already"):
            eg.register(Other)
    finally:
        METHODS.remove("mine")


def test_a_state_that_is_not_the_methods_own_is_refused() -> None:
    with pytest.raises(eg.EvergraphError, match="ema: unknown state 'importance_'"):
        eg.EMA().load_state_dict({"previous_": {}, "importance_": {}})
    with pytest.raises(eg.EvergraphError, match="ema: no state 'previous_'"):
        eg.EMA().load_state_dict({})


def test_a_loaded_state_is_a_copy() -> None:
    one, two = eg.SI(), eg.SI()
    one.path_ = {"a": torch.zeros(2)}
    two.load_state_dict(one.state_dict())
    two.path_["a"] += 1
    assert one.path_["a"].tolist() == [0.0, 0.0]


LEARN_ALL = """
import evergraph as eg
from evergraph.data.datasets.sbm import sbm

stream = eg.TaskStream(sbm(nodes=48, classes=6, degree=4, features=5, signal=3.0, seed=1), 2)
for make in (lambda: eg.GCN(hidden=4), lambda: eg.GAT(hidden=4, heads=2), lambda: eg.GraphSAGE(hidden=4)):
    for name, kind in eg.METHODS.items():
        solved = kind.learns_without_epochs
        model = eg.RandomFeatures(hidden=12) if solved else make()
        model = model if kind.model in ("gcn", "random-features") else None
        if name == "twp" and isinstance(model, eg.GraphSAGE) or name == "pi-gnn" and type(model) is not eg.GCN:
            continue
        eg.Learner(model, kind(), **({} if solved else {"epochs": 1}), device="cpu").fit(stream)
"""


@pytest.mark.slow
def test_nothing_warns() -> None:
    """In a process of its own, where warnings are errors from the first import on."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", LEARN_ALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@one_model
def test_learning_leaves_no_graph_of_activations_behind(name: str, model: str) -> None:
    """A graph that something holds on to is memory that grows from task to task, and breaks captures on a GPU."""
    gc.collect()
    gc.freeze()  # whatever is there already is neither looked at nor counted, here and in later tests
    of = learned(learner(SUITE[name](), model, epochs=1), 2)
    gc.collect()
    new = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    assert {id(value) for value in of.model.parameters()} <= {id(tensor) for tensor in new}  # it would be among them
    assert [tensor.shape for tensor in new if tensor.grad_fn is not None] == []
