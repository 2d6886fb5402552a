"""Learning a task: the checks that it fits the learner, and the order of all calls up to the final test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evergraph.core.capabilities import capable
from evergraph.core.finite import has_nan, is_finite, is_overflow
from evergraph.core.sparse import SparseMatrix
from evergraph.data import Graph, Task
from evergraph.data.arrays import UNEVEN, outweighing_column
from evergraph.data.files import DENSE_ABOVE
from evergraph.data.targets import as_known, nearly_alike
from evergraph.errors import EvergraphError, tell
from evergraph.methods import Context
from evergraph.models.base import GraphModel
from evergraph.problems import LinkPrediction, problem_of
from evergraph.training.card import task_card
from evergraph.training.epoch_end import diverged
from evergraph.training.evidence import after_learning, before_learning
from evergraph.training.inputs import new_names
from evergraph.training.loop import train
from evergraph.training.member import OnEpoch
from evergraph.training.predicting import check_features, tell_of_directions, tested
from evergraph.training.transaction import between_epochs, own_random_numbers, transaction

if TYPE_CHECKING:
    from evergraph.training.learner import Learner

LARGE = 30  # root mean square of targets that is warned about: weights start near 1, and a step moves them by lr
MANY_ROWS = 100_000  # rows to read for comparing the sizes of columns


def learn(learner: Learner, task: Task, on_epoch: OnEpoch | None) -> list[dict[str, float]]:
    """See `Learner.learn`; the task has been checked."""
    kept = small_state(learner)
    evidence = {} if learner.in_mid_task else before_learning(learner, task)
    tell_of_directions(learner, task.graph)
    with transaction(learner, task) as resumed, own_random_numbers(learner):
        _set_up(learner, task)
        if not resumed and (learner.model.out_channels or 0) < len(learner.classes_):
            grow(learner, len(learner.classes_))
        context = make_context(learner, task, task)
        if not resumed:
            learner.method.start_task(context)
        if (data := learner.method.training_data(context)) is not None:
            context = make_context(learner, data, task)
        learner.method.prepare(context)
        if learner.problem.kind == "numbers" and learner.method.epochs(context, learner.training.epochs):
            _tell_of_large_numbers(task)
        assert learner.progress is not None
        progress = learner.progress
        try:
            train(context, learner.method, learner.training, progress, between_epochs(learner, on_epoch))
            learner.model.eval()
            learner.method.end_task(context)
        except (RuntimeError, OverflowError) as error:
            if not is_overflow(error):
                raise
            raise diverged(context, learner.training, progress) from None
        if not is_finite(learner.model.parameters()) or has_nan(learner.method.state_dict()):
            raise diverged(context, learner.training, progress)
        learner.first_accuracies = [*learner.first_accuracies, tested(learner, task)]
        measured = {} if learner.first_accuracies[-1] is None else {task.mark(): learner.first_accuracies[-1]}
        evidence |= after_learning(learner, task, context)
        card = task_card(task)
        learner.records = [*learner.records, {"mark": task.mark(), "tested": measured, **kept, **evidence, **card}]
        learner.method.release(context)
        learner.optimizer_state = progress.optimizer if learner.training.keep_optimizer else None
        learner.progress, learner.task_mark = None, None
        learner.num_tasks += 1
        learner.feature_names = learner.feature_names or task.graph.feature_names
        names = as_known(task.class_names, learner.classes_)
        trained = {"classes": names, "nodes": context.count(task.train), "epochs": progress.epoch}
        trained |= {"steps": progress.steps, "directed": task.graph.directed}
        learner.history.append({**trained, "label_scope": learner.training.label_scope, "lr": learner.training.lr})
    return progress.log


def small_state(learner: Learner) -> dict[str, Any]:
    """The method's state before a task, without its tensors, and which features the model reads.

    Empty if that is not enough to undo the task later.
    """
    claim = capable(learner.method, "forgetting")
    forgetting = claim() if claim is not None else ""
    if isinstance(forgetting, str):
        return {}
    return {"before": forgetting.small_state(), "layout": learner.model.hyperparameters()}


def check_fit(learner: Learner, task: Task) -> None:
    """Raise if the learner cannot learn this task as its next one."""
    if task.train.numel() == 0 and task.graph.rows is None:
        fix = "give it some"
        if task.graph.splits is not None:
            fix = "put some into the split (train_mask, or the column split of a table), or leave the split out"
        raise EvergraphError(f"{task.graph.name}, task {task.index + 1}: no training {task.graph.level}s; {fix}")
    if task.graph.level != learner.problem.level:
        wanted = problem_of(task.graph)
        fix = f"name the problem: Learner(problem={wanted!r}), --problem {wanted}"
        raise EvergraphError(
            f"{task.graph.name} has {task.graph.level}s as examples, and {learner.problem.name} is about "
            f"{learner.problem.level}s; {'a learner has one problem: begin another one' if learner.num_tasks else fix}"
        )
    if task.graph.positives_only and learner.problem.kind != LinkPrediction.kind:
        raise EvergraphError(
            f"{task.graph.name}: all that is known of its links is that they exist, which is {LinkPrediction.name}; "
            f"{learner.problem.name} needs their targets: give edge_label"
        )
    if learner.problem.name == LinkPrediction.name and not task.graph.positives_only:
        raise EvergraphError(
            f"{task.graph.name}: {LinkPrediction.name} draws the pairs without a link itself; give only the links that "
            "exist, without edge_label, or learn the labels as link-classification"
        )
    if (learner.problem.kind == "classes") != task.graph.has_classes:
        learner.problem.targets(task.graph, learner.classes_)  # raises, since its targets are not of the problem's kind
    check_features(learner, task.graph)
    if not learner.in_mid_task:
        fresh = new_names(learner.classes_, task)  # raises if two of them have one name
        _tell_of_truth_values(learner, task)
        if pair := nearly_alike(fresh, learner.classes_):
            tell(
                f"{task.graph.name}: class {pair[0]!r} is new, and the learner knows {pair[1]!r}; if they are one, "
                "write its name in one way"
            )


def _tell_of_truth_values(learner: Learner, task: Task) -> None:
    """Warn if the learner calls classes that are truth values 0 and 1, as earlier versions did."""
    pairs = zip(task.class_names, as_known(task.class_names, learner.classes_))
    if renamed := [f"{name} is its class {known}" for name, known in pairs if str(name) != str(known)]:
        tell(f"{task.graph.name}: the learner calls truth values by numbers: {' and '.join(renamed)}")


def _say_if_uneven(model: GraphModel, graph: Graph) -> None:
    """Warn if a column outweighs the others, as the model reads them; not for word counts, which have heavy tails."""
    x, step, scaling = graph.x, max(1, graph.num_nodes // MANY_ROWS), capable(model, "input_scaling")
    if graph.rows is not None:
        return
    if isinstance(x, SparseMatrix):
        if x.nnz <= DENSE_ABOVE * graph.num_nodes * graph.num_features:
            return
        some = x.rows(torch.arange(0, graph.num_nodes, step)).dense()
    else:
        some = x[::step]
    column = outweighing_column(some if scaling is None else scaling().apply(some))
    if column is not None:
        name = column if graph.feature_names is None else repr(graph.feature_names[column])
        instead = (
            "bring the columns to like scales first, as auto and analytic do by themselves"
            if scaling is None
            else "sparse features are not scaled: give them dense, and auto and analytic scale the columns"
            if isinstance(x, SparseMatrix)
            else "it stays so, since the columns seem to share one unit or were given their scales: "
            f"if it is another, set scales=[[{column}, centre, scale]] of the model"
        )
        tell(
            f"{graph.name}: column {name} is more than {UNEVEN:g} times as large as a typical one and outweighs it; "
            f"{instead}"
        )


def _set_up(learner: Learner, task: Task) -> None:
    """Build the model at the first task; let the method adapt it to later ones."""
    if learner.model.in_channels is None:
        learner.num_classes = max(learner.num_classes or task.num_classes, len(learner.classes_))
        learner.model.setup(task.graph.num_features, learner.num_classes)
    learner.model.to(device=learner.device, dtype=learner.dtype)  # methods measure what the model's numbers take
    if not learner.model.reads_edge_weights and bool((task.graph.adjacency.values != 1).any()):
        tell(f"{task.graph.name}: {type(learner.model).__name__} does not use edge weights; it reads every edge alike")
    learner.method.adapt_model(learner.model, task)
    if not learner.num_tasks:
        _say_if_uneven(learner.model, task.graph)
    learner.model.to(device=learner.device, dtype=learner.dtype)  # with what the method has added
    if any(isinstance(value, nn.UninitializedParameter) for value in learner.model.parameters()):
        learner.model.eval()
        with torch.no_grad():  # a foreign module's lazy layers take their sizes from a first pass
            batcher = learner.problem.batcher(learner.model, task.graph, device=learner.device)
            learner.model(batcher.batch(task.train[:1].to(learner.device)))


def _tell_of_large_numbers(task: Task) -> None:
    """Warn if a network would need very many steps to get near the numbers that it is to predict."""
    for column, values in zip(task.graph.class_names, task.graph.y[task.train].T):
        known = values[~values.isnan()]
        if known.numel() and float(known.square().mean().sqrt()) > LARGE:
            spread = float(known.std(correction=0))
            tell(
                f"{task.graph.name}: {column!r} is about {float(known.mean()):.3g} ± {spread:.2g}, and a network "
                "learns numbers near 1 best; scale them, or use the closed form (analytic), which needs no scale"
            )


def grow(learner: Learner, num_classes: int) -> None:
    """Add units to the output layer, and grow the method's state to match."""
    before = {name: value.detach().clone() for name, value in learner.model.named_parameters()}
    learner.model.grow(num_classes)
    learner.model.to(learner.device)
    after = {name: value.detach().clone() for name, value in learner.model.named_parameters()}
    learner.method.grow(before, after)
    learner.num_classes = num_classes


def make_context(learner: Learner, data: Task, arrived: Task) -> Context:
    """Make the context in which the method sees the data it trains on."""
    names, units = set(as_known(data.class_names, learner.classes_)), range(len(learner.classes_))
    scope = {
        "current": [unit for unit in units if learner.classes_[unit] in names],
        "seen": list(units),
        "all": list(range(learner.model.out_channels or 0)),
    }[learner.training.label_scope]
    earlier = {name for entry in learner.history for name in entry["classes"]}
    old = [unit for unit in units if learner.classes_[unit] in earlier]
    batcher = learner.problem.batcher(
        learner.model,
        data.graph,
        targets=learner.problem.targets(data.graph, learner.classes_),
        fan_out=learner.training.fan_out,
        device=learner.device,
    )
    return Context(
        model=learner.model,
        task=data,
        problem=learner.problem.within(torch.tensor(scope, device=learner.device)),
        index=learner.num_tasks,
        old=torch.tensor(old, dtype=torch.long, device=learner.device),
        batcher=batcher,
        batch_size=learner.training.batch_size or None,
        generator=learner.generator,
        reduction=learner.training.reduction,
        arrived=arrived,
        method=learner.method,
        class_names=list(learner.classes_),
    )
