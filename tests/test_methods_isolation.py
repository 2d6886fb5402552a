"""Methods that give tasks parts of their own, against their definitions on small graphs."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import evergraph as eg
from brute_force import seeded, tiny_graph
from evergraph.core.features import as_dense, with_ones
from evergraph.data.batching import Neighbourhoods
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import Graph
from evergraph.methods.base import Step
from evergraph.methods.isolation.hpn import establish, likeness
from evergraph.methods.isolation.pi_gnn import unstable_nodes
from evergraph.methods.isolation.tpp import contrast, profile, smoothed_products
from evergraph.methods.memory import joined
from evergraph.models import neighbourhoods
from evergraph.models.gcn import gcn_operator
from evergraph.training.learning import make_context

GRAPH = sbm(nodes=48, classes=6, degree=4, features=5, signal=3.0, seed=1)
STREAM = eg.TaskStream(GRAPH, 2)
SETTINGS = {"epochs": 3, "lr": 0.05, "batch_size": 7, "device": "cpu"}


def dense(graph: Graph) -> tuple[Tensor, Tensor]:
    """Adjacency and features as ordinary matrices."""
    return graph.adjacency.dense().double(), graph.x.double()


def smoothing(graph: Graph, steps: int) -> Tensor:
    """D^(−½) Ã^s X, written out."""
    adjacency, x = dense(graph)
    looped = adjacency + torch.eye(len(x)).double()
    degree = looped.sum(1)
    normal = looped / (degree.sqrt().unsqueeze(1) * degree.sqrt())
    return torch.linalg.matrix_power(normal, steps) @ x / degree.sqrt().unsqueeze(1)


# tpp


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_profile_is_the_mean_of_smoothed_features(steps: int, weighted: bool) -> None:
    graph, nodes = tiny_graph(), torch.tensor([1, 4, 7])
    if weighted:
        weights = torch.linspace(0.3, 4.0, graph.adjacency.nnz)
        graph = graph.altered(adjacency=graph.adjacency.with_values(weights))
    want = smoothing(graph, steps)
    assert torch.allclose(profile(graph, nodes, steps), want[nodes].mean(0), atol=1e-12)
    profiles = torch.randn(3, graph.num_features, dtype=torch.float64)
    assert torch.allclose(smoothed_products(graph, profiles, steps), want @ profiles.T, atol=1e-12)


def test_the_contrastive_loss_is_graces() -> None:
    one, two = (F.normalize(torch.randn(5, 3, generator=seeded(seed), dtype=torch.float64)) for seed in (1, 2))
    got = contrast(one, two, 0.5)
    for i in range(5):
        halves = []
        for a, b in ((one, two), (two, one)):
            positive = math.exp(float(a[i] @ b[i]) / 0.5)
            strangers = [math.exp(float(a[i] @ b[k]) / 0.5) for k in range(5) if k != i]
            strangers += [math.exp(float(a[i] @ a[k]) / 0.5) for k in range(5) if k != i]
            halves.append(-math.log(positive / (positive + sum(strangers))))
        assert float(got[i]) == pytest.approx(sum(halves) / 2, abs=1e-12)


@pytest.mark.parametrize("task", [0, 1])
def test_a_prompt_is_added_to_the_features(task: int) -> None:
    """The model without prompts reads the graph whose features have the prompt in them."""
    graph = tiny_graph()
    model = eg.PromptedGCN(hidden=3, prompts=2, num_tasks=2)
    model.setup(graph.num_features, 4)
    model.double()
    x, nodes = graph.x.double(), torch.arange(graph.num_nodes)
    prompted = x
    if task:
        ones = torch.ones(len(x), 1).double()
        prompted = x + (torch.cat([x, ones], 1) @ model.scores[0]).softmax(1) @ model.vectors[0]
    other = Graph(prompted.detach(), graph.adjacency, graph.y, graph.class_names)
    got, want = (neighbourhoods(model, one).batch(nodes) for one in (graph, other))
    assert torch.allclose(model.embed(got, task), model.embed(want, 0), atol=1e-12)


def test_tpp_pretrains_once_and_then_moves_the_new_tasks_prompt_and_head_alone() -> None:
    learner = eg.Learner("prompted-gcn", eg.TPP(pretrain_epochs=2), **SETTINGS)
    phases: list[dict[str, Tensor]] = []
    log = learner.learn(STREAM[0], lambda progress, epochs: phases.append(eg.copy_params(learner.model)))
    assert len(log) == 5  # two of pretraining

    def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
        return {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}

    assert moved(phases[0], phases[1]) == {"weights", "projector"}
    assert moved(phases[1], phases[-1]) == {"heads"}
    before = eg.copy_params(learner.model)
    first = learner.logits(STREAM[0].graph, STREAM[0].test)
    assert len(learner.learn(STREAM[1])) == 3
    after = eg.copy_params(learner.model)
    assert moved(before, {name: after[name] for name in before}) == set()
    assert {name for name in after if name not in before} == {"heads.1", "vectors.0", "scores.0"}
    # what is answered where the first task is inferred is what was answered then
    again = learner.logits(STREAM[0].graph, STREAM[0].test)
    same = learner.method.infer(STREAM[0].graph, STREAM[0].test) == 0
    assert same.any()
    assert torch.equal(again[same][:, :2], first[same][:, :2])


@pytest.mark.parametrize(
    ("method", "before"), [(eg.TPP(pretrain_epochs=6), [6, 0]), (eg.PIGNN(rectify_epochs=6), [0, 6])]
)
def test_early_stopping_begins_where_the_task_itself_is_trained(method: eg.Method, before: list[int]) -> None:
    learner = eg.Learner(method=method, **{**SETTINGS, "epochs": 8, "patience": 2})
    for task, phase in zip(STREAM, before):
        log = learner.learn(task)
        assert ["validation_loss" in row for row in log] == [False] * phase + [True] * (len(log) - phase)
        assert len(log) >= phase + 2


def test_hpn_is_stopped_early_once_it_has_prototypes() -> None:
    learner = eg.Learner(method=eg.HPN(embedding_share=0.5), **{**SETTINGS, "epochs": 12, "patience": 1})
    log = learner.learn(STREAM[0])
    assert [row["epoch"] for row in log if "validation_loss" not in row] == [1, 2, 3, 4, 5, 6]
    found = [len(known) for known in learner.method.matched_]
    assert found == [int(learner.model.established[0])] * len(found)
    assert found[0] > 0


def test_a_mean_over_epochs_leaves_pretraining_out() -> None:
    learner = eg.Learner(method=eg.TPP(pretrain_epochs=4), **{**SETTINGS, "average_last": 1.0}, dtype=torch.float64)
    seen: list[dict[str, Tensor]] = []
    learner.learn(STREAM[0], lambda progress, epochs: seen.append(eg.copy_params(learner.model)))
    for name, value in learner.model.named_parameters():
        assert torch.allclose(value, sum(one[name] for one in seen[4:]) / 3, rtol=0, atol=1e-12), name


@pytest.mark.parametrize("name", ["hpn", "hpn+logit-adjustment"])
def test_hpn_takes_plain_descent(name: str) -> None:
    learner = eg.Learner(method=name, **{**SETTINGS, "optimizer": "sgd", "lr": 0.001})
    for task in STREAM:
        seen: list[dict[str, Tensor]] = []
        learner.learn(task, lambda progress, epochs, seen=seen: seen.append(eg.copy_params(learner.model)))
        still = {name for name, value in seen[0].items() if torch.equal(value, seen[-1][name])}
        assert still == {"own", "around"}  # the extractors
        assert all(value.isfinite().all() for value in seen[-1].values())


def test_pi_gnn_corrects_and_rehearses_old_classes_whatever_the_label_scope() -> None:
    """Rectification alone is the same in both scopes; a rehearsed node's loss is that over all classes seen."""
    learners = [
        eg.Learner(eg.GCN(hidden=8), eg.PIGNN(per_class=3), label_scope=scope, **SETTINGS, dtype=torch.float64)
        for scope in ("seen", "current")
    ]
    for learner in learners:
        learner.learn(STREAM[0])
        learner.training = dataclasses.replace(learner.training, epochs=0)
        learner.learn(STREAM[1])
    for one, other in zip(*(learner.model.parameters() for learner in learners)):
        assert torch.equal(one, other)
    narrow = learners[1]
    context = make_context(narrow, STREAM[1], STREAM[1])
    narrow.method.prepare(context)
    context.epoch = narrow.method.rectify_epochs
    batch = next(context.batches())
    logits = narrow.model(batch)
    (replay,) = narrow.method.replay(Step(context, batch, logits, context.problem.loss(logits, batch.y).sum()))
    seen = narrow.model(replay.batch)[:, :4].detach()
    want = [-float(row.log_softmax(0)[unit]) for row, unit in zip(seen, replay.batch.y)]
    assert context.problem.scope.tolist() == [2, 3]
    got = replay.problem.loss(narrow.model(replay.batch), replay.batch.y)
    assert torch.allclose(got, torch.tensor(want, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("inference", ["node", "graph"])
def test_only_the_published_inference_looks_at_other_nodes_asked_for(inference: str) -> None:
    learner = eg.Learner(None, eg.TPP(inference=inference, pretrain_epochs=0), **SETTINGS).fit(STREAM)
    assert learner.method.access.transductive == (inference == "graph")
    graph = STREAM.seen(2).graph
    nodes = STREAM.seen(2).test
    together = learner.method.infer(graph, nodes)
    alone = torch.cat([learner.method.infer(graph, node.reshape(1)) for node in nodes])
    assert (together.unique().numel() == 1) == (inference == "graph")
    assert torch.equal(together, alone) == (inference == "node")
    profiles = torch.stack(learner.method.profiles_).double()
    for node, found in zip(nodes.tolist(), alone.tolist()):
        row = smoothing(graph, 3)[node]
        if inference == "graph":
            want = (profiles - row).norm(dim=1).argmin()
        else:
            want = F.cosine_similarity(profiles, row.unsqueeze(0)).argmax()
        assert found == int(want)


def test_tpp_and_hpn_say_which_model_they_need() -> None:
    for name, model in (("tpp", "prompted-gcn"), ("hpn", "prototype-network"), ("pi-gnn", "gcn")):
        with pytest.raises(eg.EvergraphError, match=f"^{name} .*--model {model}"):
            eg.Learner("sage", name, **SETTINGS).learn(STREAM[0])


# pi-gnn


@pytest.mark.parametrize("layers", [2, 3])
def test_wider_layers_leave_the_outputs_as_they_were(layers: int) -> None:
    graph, nodes = tiny_graph(), torch.arange(12)
    model = eg.GCN(hidden=3, num_layers=layers)
    model.setup(graph.num_features, 4)
    model.double()
    for weight in model.weights:
        torch.nn.init.normal_(weight)  # biases too
    before = model(neighbourhoods(model, graph).batch(nodes))
    assert eg.capable(model, "widen")(2) == 3
    assert torch.allclose(model(neighbourhoods(model, graph).batch(nodes)), before, atol=1e-12)
    assert [tuple(weight.shape) for weight in model.weights] == [(5, 5), *[(6, 5)] * (layers - 2), (6, 4)]
    with pytest.raises(eg.EvergraphError, match="one layer"):
        eg.GCN(num_layers=1).widen(2)


@pytest.mark.parametrize("layers", [2, 3])
def test_isolation_moves_new_parameters_alone_and_rectification_old_ones(layers: int) -> None:
    learner = eg.Learner(eg.GCN(hidden=4, num_layers=layers), eg.PIGNN(expansion=2, rectify_epochs=1), **SETTINGS)
    learner.learn(STREAM[0])
    before = eg.copy_params(learner.model)
    phases: list[dict[str, Tensor]] = []
    learner.learn(STREAM[1], lambda progress, epochs: phases.append(eg.copy_params(learner.model)))
    assert len(phases) == 4
    assert learner.model.hidden == 6
    rectified, isolated = phases[0], phases[-1]
    for number in range(layers):
        name, last = f"weights.{number}", number == layers - 1
        old_columns = slice(2) if last else slice(4)  # units of the first task's classes; of the first task's layers
        rows = torch.tensor([*range(5), 5] if not number else [0, 1, 2, 3, 6])  # the last is the bias
        old = before[name][:, old_columns]
        assert not torch.equal(rectified[name][rows][:, old_columns], old)
        assert torch.equal(isolated[name][rows][:, old_columns], rectified[name][rows][:, old_columns])
        assert not torch.equal(isolated[name][:, 4 if not last else 2 :], rectified[name][:, 4 if not last else 2 :])
        if number and not last:
            assert not isolated[name][4:6, :4].any()  # old units do not read new ones
        if last:
            assert not rectified[name][4:6].any()  # nor did outputs read them before they were trained
            assert isolated[name][4:6].all(0).any()


def test_kept_nodes_whose_neighbours_changed_are_found_and_rectified_against() -> None:
    stream = eg.TaskStream(GRAPH, 2, edges_between_tasks=True)
    learner = eg.Learner(eg.GCN(hidden=4), eg.PIGNN(expansion=2, per_class=5, rectify_epochs=1), **SETTINGS)
    learner.learn(stream[0])
    kept, nodes, _ = joined(learner.method.pieces(), learner.model)
    seeds, moved = unstable_nodes(kept, nodes, stream[1].graph)
    found = dict(zip(seeds.tolist(), moved.tolist()))
    for seed in nodes.tolist():
        place = int((stream[1].graph.x == as_dense(kept.x)[seed]).all(1).nonzero())
        changed = int(kept.adjacency.counts()[seed]) != int(stream[1].graph.adjacency.counts()[place])
        assert found.get(seed) == (place if changed else None)
    assert found
    assert unstable_nodes(kept, nodes, STREAM[1].graph)[0].numel() == 0  # a graph of new nodes alone
    assert unstable_nodes(kept, nodes, stream[1].graph, whole=False)[0].tolist() == nodes.tolist()
    learner.learn(stream[1])
    assert all(torch.isfinite(value).all() for value in learner.model.parameters())


@pytest.mark.parametrize("batch_size", [0, 4])
def test_unstable_nodes_are_replayed_in_their_new_neighbourhoods_alone(batch_size: int) -> None:
    """Every kept node counts the same, once; the memory as a whole as much as the step's own nodes."""
    stream = eg.TaskStream(GRAPH, 2, edges_between_tasks=True)
    method = eg.PIGNN(expansion=2, per_class=5, rectify_epochs=0, memory_weight=3.0)
    learner = eg.Learner(eg.GCN(hidden=4), method, **{**SETTINGS, "batch_size": batch_size})
    learner.learn(stream[0])
    replay, seen = eg.PIGNN.replay, list[list[eg.Replay]]()

    def watched(self: eg.PIGNN, step: eg.Step) -> list[eg.Replay]:
        seen.append(replay(self, step))
        context, replays = step.context, seen[-1]
        batcher, stable, _ = context.cache["parts"]
        moved, units = context.cache["moved"]
        assert stable.numel()
        assert moved.numel()
        weights = torch.cat([each.weights for each in replays])
        total = 3.0 * (step.batch.num_examples if context.reduction == "sum" else 1)
        assert float(weights.sum()) == pytest.approx(total)
        if batch_size:
            assert weights.numel() <= batch_size + 1
        else:
            assert weights.unique().numel() == 1
            assert weights.numel() == stable.numel() + moved.numel()
            old, new = (step.model(each.batch) for each in replays)
            assert torch.allclose(old, step.model(batcher.batch(stable)))
            assert torch.allclose(new, step.model(context.batcher.exact().batch(moved)))
            assert replays[1].batch.y.tolist() == units.tolist()
        weight = self.replayed_weight(context)
        assert weight is not None
        assert float(weight.sum()) == pytest.approx(3.0 * context.num_train)
        return replays

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eg.PIGNN, "replay", watched)
        learner.learn(stream[1])
    assert len(seen[0]) == 2


@pytest.mark.parametrize("name", ["pi-gnn", "fgn"])
def test_a_kept_node_is_answered_as_in_its_graph_and_the_memory_keeps_to_its_size(name: str) -> None:
    method = eg.make_method(name, {"memory": "2KB", "neighbours": "2"} if name == "pi-gnn" else {"memory": "3KB"})
    learner = eg.Learner(None, method, dtype=torch.float64, **SETTINGS)
    for task in STREAM:
        learner.learn(task)
        assert 0 < learner.method.kept_bytes() <= (2000 if name == "pi-gnn" else 3000)
    if name == "fgn":  # which looks one hop far, and at no degrees
        kept, nodes, targets = joined(learner.method.pieces(), learner.model)
        tasks = {int(row): task for task in STREAM for row in task.graph.y[task.train].unique()}
        assert nodes.numel() > 3
        for node in nodes.tolist():
            graph = tasks[int(targets[node])].graph
            place = (graph.x == as_dense(kept.x)[node]).all(1).nonzero()[0]
            there, here = learner.logits(graph, place), learner.logits(kept, torch.tensor([node]))
            assert torch.allclose(there, here, atol=1e-12)


# hpn


def test_prototypes_cover_all_embeddings_and_stay_apart() -> None:
    model = eg.PrototypeNetwork(dim=3, capacity=50)
    model.setup(5, 4)
    for seed in (1, 2):
        rows = F.normalize(torch.randn(40, 3, generator=seeded(seed)), dim=1)
        before, count = model.prototypes[0].detach().clone(), int(model.established[0])
        with torch.no_grad():
            establish(model, 0, rows, 0.2)
        assert torch.equal(model.prototypes[0][:count], before[:count])
        known = model.known(0).detach()
        assert count < known.size(0) < 40
        assert float((rows @ known.T).max(1).values.min()) >= 0.8
        alike = known @ known.T - 2 * torch.eye(len(known))
        assert float(alike.max()) < 0.8


def test_a_node_is_what_its_atoms_match() -> None:
    learner = eg.Learner(
        eg.PrototypeNetwork(dim=3, node_extractors=2, structure_extractors=1), eg.HPN(threshold=0.3), **SETTINGS
    ).fit(STREAM)
    model, graph = learner.model, STREAM[1].graph
    adjacency, x = graph.adjacency.dense(), graph.x
    mean = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    rows = torch.cat([x @ model.own, mean @ x @ model.around, mean @ mean @ x @ model.around], dim=1)
    atoms = F.normalize(rows.view(-1, 4, 3), dim=-1)
    nodes = STREAM[1].test
    got, known = learner.logits(graph, nodes), model.known(0)
    for position, node in enumerate(nodes.tolist()):
        for unit in range(6):
            score = 0.0
            for atom in range(4):
                own = [p for p in range(len(known)) if learner.method.matched_[atom][p, unit]]
                score += max(float(atoms[node, atom] @ known[p]) for p in own)
            assert float(got[position, unit]) == pytest.approx(score, abs=1e-5)


def test_hpn_learns_the_same_where_every_pass_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> eg.Learner:
        method = eg.HPN(threshold=0.3, extractors="first-task")
        return eg.Learner(eg.PrototypeNetwork(dim=3, capacity=60), method, **SETTINGS).fit(STREAM)

    found = trained()
    monkeypatch.setattr(eg.HPN, "reads_layers", False)
    plain = trained()
    assert found.model.established.tolist() == plain.model.established.tolist()
    for value, want in zip(found.model.parameters(), plain.model.parameters()):
        assert torch.allclose(value, want, atol=1e-5)


@pytest.mark.parametrize("extractors", ["random", "first-task"])
def test_hpn_keeps_extractors_and_old_prototypes(extractors: str) -> None:
    method = eg.HPN(threshold=0.3, extractors=extractors)
    learner = eg.Learner(eg.PrototypeNetwork(dim=3, capacity=60), method, **SETTINGS)
    untrained = eg.Learner(eg.PrototypeNetwork(dim=3, capacity=60), "hpn", **{**SETTINGS, "epochs": 0})
    untrained.learn(STREAM[0])
    drawn = eg.copy_params(untrained.model)
    learner.learn(STREAM[0])
    for name in ("own", "around"):
        assert torch.equal(eg.copy_params(learner.model)[name], drawn[name]) == (extractors == "random")
    counts, before = learner.model.established.tolist(), eg.copy_params(learner.model)
    learner.learn(STREAM[1])
    after = eg.copy_params(learner.model)
    assert torch.equal(after["own"], before["own"])
    assert torch.equal(after["around"], before["around"])
    assert not torch.equal(after["head"], before["head"])
    for level, count in enumerate(counts):
        name = f"prototypes.{level}"
        assert count
        assert torch.equal(after[name][:count], before[name][:count])
    marks = sum(part.numel() for part in learner.method.matched_)
    levels = 8 * len(learner.method.before_)  # how many prototypes each level had before
    assert learner.method.kept_bytes() == marks + levels + int(learner.model.established.sum()) * 3 * 4


def test_likeness_is_the_mean_squared_cosine_of_columns_of_different_extractors() -> None:
    weight = torch.randn(5, 6, generator=seeded(), dtype=torch.float64)  # two extractors of three columns
    pairs = [float(F.cosine_similarity(weight[:, i], weight[:, j], dim=0)) ** 2 for i in range(3) for j in range(3, 6)]
    assert float(likeness(weight, 2)) == pytest.approx(sum(pairs) / len(pairs))
    assert float(likeness(weight, 1)) == 0


# fgn


def feature_graph_output(model: eg.FeatureGraphNetwork, x: Tensor, around: list[Tensor]) -> Tensor:
    """One node's outputs, written out; the first layer has one channel."""

    def adjacency(own: Tensor, others: list[Tensor]) -> Tensor:
        total = sum(
            (torch.outer(own, y) + torch.outer(y, own) for y in others), torch.zeros(len(own), len(own)).double()
        )
        root = total.sign() * total.abs().clamp(min=1e-8).sqrt()
        return root / (root.abs().sum(0, keepdim=True) + 1e-7)

    def activated(row: Tensor) -> Tensor:
        centred = row - row.mean()
        centred = centred / (centred.square().mean() + 1e-5).sqrt()
        return centred / (1 + centred.abs())

    tie = adjacency(x, around)
    width = model.hidden // model.channels
    first, rest = (
        [activated(tie @ y @ model.first).view(model.channels, width) for y in group] for group in ([x], around)
    )
    channels = [adjacency(first[0][c], [y[c] for y in rest]) @ first[0][c] for c in range(model.channels)]
    hidden = activated(torch.cat(channels) @ model.second)
    return torch.cat([hidden, torch.ones(1).double()]) @ model.head


@pytest.mark.parametrize("vertices", [64, 3], ids=["all features", "mapped first"])
def test_a_feature_graph_network_is_its_definition_node_by_node(vertices: int) -> None:
    graph = tiny_graph()
    model = eg.FeatureGraphNetwork(hidden=6, channels=2, out_hidden=3, vertices=vertices)
    model.setup(graph.num_features, 4)
    model.double()
    got = model(neighbourhoods(model, graph).batch(torch.arange(12)))
    x = graph.x.double() if model.stem is None else graph.x.double() @ model.stem
    for node in range(12):
        near = [node, *graph.adjacency.rows(torch.tensor([node])).indices.tolist()]
        assert torch.allclose(got[node], feature_graph_output(model, x[node], [x[y] for y in near]), atol=1e-10)


def test_fgn_on_its_first_task_is_fine_tuning_and_rehearses_later() -> None:
    small = {"hidden": 4, "channels": 2, "out_hidden": 3}
    one, two = (
        eg.Learner(eg.FeatureGraphNetwork(**small), name, **SETTINGS, label_scope="seen")
        for name in ("fgn", "finetune")
    )
    for number, alike in enumerate((True, False)):
        for learner in (one, two):
            learner.learn(STREAM[number])
        equal = all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters()))
        assert equal == alike
    with pytest.raises(eg.EvergraphError, match="hidden=5 cannot be divided"):
        eg.FeatureGraphNetwork(hidden=5, channels=2)


# what the contract gained


class OwnLoss(eg.Method):
    """Minimizes the squared outputs instead."""

    def loss(self, step: eg.Step) -> Tensor:
        return step.logits.square().sum()


def test_a_method_may_minimize_something_else_but_only_one_may() -> None:
    learner = eg.Learner(eg.GCN(hidden=4), OwnLoss(), **{**SETTINGS, "epochs": 60}).fit(STREAM)
    assert float(learner.logits(STREAM[2].graph).abs().max()) < 0.1
    with pytest.raises(eg.EvergraphError, match="each bring a loss of their own"):
        eg.Learner(eg.GCN(hidden=4), eg.Compose(OwnLoss(), OwnLoss()), **SETTINGS).learn(STREAM[0])


@pytest.mark.parametrize("name", ["tpp", "pi-gnn", "hpn", "fgn"])
@pytest.mark.parametrize("problem", ["graph-classification", "link-prediction", "node-regression"])
def test_they_work_on_nodes_with_classes(name: str, problem: str) -> None:
    with pytest.raises(eg.EvergraphError, match=f"{name} works on nodes with classes, and {problem} has "):
        eg.Learner(method=name, problem=problem)


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: eg.TPP(inference="task"), "TPP: inference='task' must be one of: node, graph"),
        (lambda: eg.TPP(drop_edges=1.0), "TPP: drop_edges=1.0 must be a finite number of at least 0 and below 1"),
        (lambda: eg.TPP(temperature=0.0), "TPP: temperature=0.0 must be a finite number above 0"),
        (lambda: eg.PIGNN(expansion=0), "PIGNN: expansion=0 must be a whole number of at least 1"),
        (lambda: eg.HPN(threshold=0.0), "HPN: threshold=0.0 must be a finite number above 0 and below 2"),
        (
            lambda: eg.HPN(embedding_share=1.0),
            "HPN: embedding_share=1.0 must be a finite number of at least 0 and below 1",
        ),
        (lambda: eg.FGN(per_class=0), "FGN: per_class=0 must be a whole number of at least 1"),
        (lambda: eg.FGN(strength=-1.0), "FGN: strength=-1.0 must be a finite number of at least 0"),
        (lambda: eg.Compose(eg.EWC(), eg.TPP()), "tpp cannot be composed with ewc: "),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make_one: object, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message) as refused:
        make_one()  # type: ignore[operator]
    assert "\n" not in str(refused.value)


def test_a_perturbed_batch_has_fewer_edges_in_every_layer() -> None:
    """Layers that were read of the batch itself do not stand in for its own."""
    graph = sbm(nodes=60, classes=2, degree=8, features=3, seed=0)
    operator = gcn_operator(graph)
    batch = Neighbourhoods(with_ones(graph.x.double()), operator, graph.y, 2).batch(torch.arange(10))
    before = [batch.layer(number).dense() for number in range(2)]
    thinned = eg.TPP(drop_edges=0.5).perturbed(batch, torch.Generator().manual_seed(0))
    for number, dense in enumerate(before):
        kept = thinned.layer(number).dense()
        dropped = (dense != 0) & (kept == 0)
        assert 0.3 < float(dropped.sum() / (dense != 0).sum()) < 0.6
        assert torch.equal(kept[kept != 0], dense[kept != 0])
