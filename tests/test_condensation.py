"""Condensation against its definitions, CaT, PUMA, DeLoMe and logit adjustment against theirs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import evergraph as eg
from brute_force import close, flat, make, step_gradient
from evergraph.core.features import as_dense
from evergraph.core.sparse import SparseMatrix
from evergraph.data.datasets.sbm import sbm
from evergraph.methods.class_shares import SMALLEST_SHARE, class_shares
from evergraph.methods.condensation.puma import unlabelled
from evergraph.methods.memory.condensation import (
    DistributionMatching,
    GradientMatching,
    Matching,
    class_gradients,
    condense,
)
from evergraph.methods.propagation import propagated

FEATURES, WIDTH = 6, 7
MATCHINGS = {"distributions": DistributionMatching, "gradients": GradientMatching}
every_matching = pytest.mark.parametrize("kind", MATCHINGS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def real_nodes() -> tuple[Tensor, Tensor]:
    """Twenty nodes of three output units; some features are zero."""
    x = torch.randn(20, FEATURES, generator=seeded(), dtype=torch.float64)
    x[torch.rand(x.shape, generator=seeded(1)) < 0.3] = 0
    units = torch.tensor([1, 3, 4]).repeat(7)[:20]
    return x + 0.5 * units.unsqueeze(1), units


def synthetic_nodes() -> tuple[Tensor, Tensor]:
    return torch.randn(5, FEATURES, generator=seeded(2), dtype=torch.float64), torch.tensor([1, 3, 4, 1, 3])


def matching(kind: str, sparse: bool = False) -> Matching:
    x, units = real_nodes()
    made = MATCHINGS[kind](x, units, synthetic_nodes()[1], WIDTH)
    if sparse:  # put in afterwards: so few columns are stored densely by choice
        made.real = SparseMatrix.from_dense(x)
    return made


def naive_distribution_loss(x: Tensor, units: Tensor, weight: Tensor) -> Tensor:
    real, real_units = real_nodes()
    total = torch.zeros((), dtype=torch.float64)
    for unit in (1, 3, 4):
        means = []
        for rows, targets in ((real, real_units), (x, units)):
            embeddings = [torch.relu(row @ weight) for row, target in zip(rows, targets) if target == unit]
            means.append(sum(e / e.norm() for e in embeddings) / len(embeddings))
        total = total + (real_units == unit).double().mean() * ((means[0] - means[1]) ** 2).sum()
    return total


def naive_gradient_loss(x: Tensor, units: Tensor, first: Tensor, second: Tensor) -> Tensor:
    real, real_units = real_nodes()
    params = [first.clone().requires_grad_(), second.clone().requires_grad_()]
    total = torch.zeros((), dtype=torch.float64)
    for position, unit in enumerate((1, 3, 4)):
        grads = []
        for rows, targets in ((real, real_units), (x, units)):
            logits = torch.relu(rows[targets == unit] @ params[0]) @ params[1]
            loss = F.cross_entropy(logits, torch.full((logits.size(0),), position))
            grads.append(torch.autograd.grad(loss, params, create_graph=True))
        total = total + sum(((ours - theirs) ** 2).sum() for ours, theirs in zip(*grads))
    return total


@every_matching
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_the_matching_loss_and_its_gradient_equal_the_naive_ones(kind: str, sparse: bool) -> None:
    made, (x, units) = matching(kind, sparse), synthetic_nodes()
    loss_of = made.draw(seeded(3))
    again = seeded(3)
    if kind == "distributions":
        weights = [made.weight(FEATURES, WIDTH, again)]
        naive = lambda x: naive_distribution_loss(x, units, *weights)  # noqa: E731
    else:
        weights = [made.weight(FEATURES, WIDTH, again), made.weight(WIDTH, 3, again)]
        naive = lambda x: naive_gradient_loss(x, units, *weights)  # noqa: E731
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    close(loss_of(ours).reshape(1), naive(theirs).reshape(1))
    close(torch.autograd.grad(loss_of(ours), ours)[0], torch.autograd.grad(naive(theirs), theirs)[0])


@every_matching
def test_condensation_lowers_the_matching_loss_under_networks_it_has_not_met(kind: str) -> None:
    made, (x, _) = matching(kind), synthetic_nodes()
    moved, losses = condense(x, made, networks=100, updates=4, lr=0.05, generator=seeded(4))
    fresh = [made.draw(seeded(seed)) for seed in range(1000, 1020)]
    before, after = (sum(float(loss(nodes)) for loss in fresh) for nodes in (x, moved))
    assert after < before / 3
    assert len(losses) == 100
    assert sum(losses[-10:]) < sum(losses[:10])


@every_matching
def test_the_real_nodes_themselves_match_perfectly(kind: str) -> None:
    x, units = real_nodes()
    loss_of = MATCHINGS[kind](x, units, units, WIDTH).draw(seeded())
    assert float(loss_of(x)) < 1e-20
    assert float(loss_of(x + 0.1)) > 1e-6


def test_condensation_is_the_same_every_time_and_leaves_its_start_alone() -> None:
    made, (x, _) = matching("distributions"), synthetic_nodes()
    before = x.clone()
    runs = [condense(x, made, networks=3, updates=2, lr=0.1, generator=seeded()) for _ in range(2)]
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(x, before)
    none, losses = condense(x, made, networks=0, updates=1, lr=0.1, generator=seeded())
    assert torch.equal(none, x)
    assert losses == []


# the memory of synthetic nodes

GRAPH = sbm(nodes=120, classes=6, degree=4, features=5, signal=3.0, seed=1)
STREAM = eg.TaskStream(GRAPH, 2)
CONDENSING = {"cat": eg.CaT, "puma": eg.PUMA, "delome": eg.DeLoMe}
SHORT = {"puma": {"pseudo_label_epochs": 5, "updates": 3}}  # little work, where what comes of it is not looked at
every_condensing = pytest.mark.parametrize("name", CONDENSING)


def learner(method: eg.Method, **more: object) -> eg.Learner:
    plain = {"batch_size": 0, "label_scope": "seen", "weight_decay": 0.0, "reduction": "sum", "device": "cpu"}
    settings = {"epochs": 2, "lr": 0.02, **plain, **more}
    return eg.Learner(eg.GCN(hidden=8), method, **settings)


@every_condensing
def test_a_memory_in_bytes_is_never_exceeded_and_is_balanced(name: str) -> None:
    of = learner(CONDENSING[name](memory="300", networks=2, **SHORT.get(name, {})))
    node = 5 * 4 + 4  # five features and a target
    for task in STREAM:
        of.learn(task)
        assert of.method.kept_bytes() <= 300
        counts = torch.bincount(torch.cat([piece.units for piece in of.method.pieces()]))
        assert int(counts.sum()) * node == of.method.kept_bytes()
        assert int(counts.max()) - int(counts.min()) <= 1
    assert counts.tolist() == [2] * 6


@every_condensing
def test_a_share_of_the_nodes_is_divided_by_class_sizes(name: str) -> None:
    of = learner(CONDENSING[name](memory="20%", networks=1, **SHORT.get(name, {})))
    met = 0
    for task in STREAM:
        of.learn(task)
        met += task.graph.num_nodes
        assert sum(piece.num_nodes for piece in of.method.pieces()) <= round(0.2 * met)
    units = of.method.pieces()[0].units
    sizes = torch.bincount(STREAM[0].graph.y[STREAM[0].train])
    room = round(0.2 * STREAM[0].graph.num_nodes)
    assert torch.bincount(units).tolist() == [room * int(size) // int(sizes.sum()) for size in sizes]


def test_a_class_has_no_more_synthetic_nodes_than_real_ones() -> None:
    of = learner(eg.CaT(per_class=1000, networks=0))
    of.learn(STREAM[0])
    assert of.method.pieces()[0].num_nodes == STREAM[0].train.numel()


@pytest.mark.parametrize("start", ["propagated", "features"])
def test_synthetic_nodes_begin_at_training_nodes(start: str) -> None:
    of = learner(eg.CaT(per_class=3, networks=0, start=start))
    task = STREAM[0]
    of.learn(task)
    (piece,) = of.method.pieces()
    rows = propagated(task.graph, task.train, 2 if start == "propagated" else 0, torch.float32)
    distances = torch.cdist(as_dense(piece.x), as_dense(rows))
    assert float(distances.min(1).values.max()) < 1e-5
    names = [task.graph.class_names[position] for position in task.graph.y[task.train[distances.argmin(1)]]]
    assert [of.classes_[unit] for unit in piece.units] == names


@every_condensing
def test_a_class_that_keeps_all_its_nodes_keeps_them_as_they_are(name: str) -> None:
    task = STREAM[0]
    x, y = as_dense(propagated(task.graph, task.train, 2, torch.float32)), task.graph.y[task.train]
    sizes = torch.bincount(y)
    small, large = sizes.argsort()[-2:].tolist()
    assert sizes[small] < sizes[large]
    without_pseudo_labels = {"pseudo_label_epochs": 0} if name == "puma" else {}
    of = learner(CONDENSING[name](per_class=int(sizes[small]), networks=2, **without_pseudo_labels))
    of.learn(task)
    (piece,) = of.method.pieces()
    moved = torch.cdist(as_dense(piece.x), x, compute_mode="donot_use_mm_for_euclid_dist").min(1).values > 1e-5
    classes = torch.tensor([task.graph.class_names.index(of.classes_[unit]) for unit in piece.units])
    assert not moved[classes == small].any()
    assert moved[classes == large].all()


@pytest.mark.parametrize("kind", [eg.CaT, eg.PUMA])
def test_cat_and_puma_train_on_the_memory_alone(kind: type[eg.CaT]) -> None:
    trained: list[eg.Task] = []

    class Watched(kind):
        def prepare(self, context: eg.Context) -> None:
            trained.append(context.task)

    of = learner(Watched(per_class=2, networks=1))
    of.learn(STREAM[0])
    after_first = eg.copy_params(of.model)
    of.learn(STREAM[1])
    assert [task.train.numel() for task in trained] == [4, 8]
    assert all(task.graph.num_nodes == task.train.numel() and not task.graph.num_edges for task in trained)
    assert of.classes_ == [trained[1].graph.class_names[position] for position in trained[1].class_positions]
    kept = torch.cat([as_dense(piece.x) for piece in of.method.pieces()])
    assert torch.equal(as_dense(trained[1].graph.x), kept)

    again = learner(kind(per_class=2, networks=1), epochs=0)
    for task in (STREAM[0], STREAM[1]):
        start = eg.copy_params(again.model) if again.num_tasks else after_first
        again.learn(task)
    moved = any(not torch.equal(value, start[name]) for name, value in again.model.named_parameters())
    assert moved == (kind is eg.PUMA)  # with no epochs, parameters change only where they are drawn anew


@every_condensing
@pytest.mark.parametrize("scope", ["current", "all"])
def test_old_classes_compete_whatever_the_label_scope(name: str, scope: str) -> None:
    """Those of the memory are in the softmax, or their loss would have no value."""
    of = learner(CONDENSING[name](per_class=2, networks=1, **SHORT.get(name, {})), label_scope=scope)
    assert all(row["loss"] > 0 for task in STREAM for row in of.learn(task))


# pseudo-labels


def test_pseudo_labels_are_given_to_no_training_and_no_test_node_and_read_no_label() -> None:
    task = STREAM[0]
    given: list[Tensor] = []

    class Watched(eg.PUMA):
        def pseudo_labelled(self, context, teacher, nodes):
            nodes, labels = super().pseudo_labelled(context, teacher, nodes)
            given.append(nodes)
            return nodes, labels

    of = learner(Watched(per_class=2, networks=2, confidence=0.0))
    of.learn(task)
    assert set(given[0].tolist()) == set(task.val.tolist())
    # labels of nodes that are not for training change nothing
    y = task.graph.y.clone()
    hidden = torch.cat([task.val, task.test])
    y[hidden] = y[hidden].flip(0)
    graph = task.graph.altered(y=y)
    blind = learner(eg.PUMA(per_class=2, networks=2, confidence=0.0))
    blind.learn(dataclasses.replace(task, graph=graph, so_far=None))
    assert torch.equal(blind.method.pieces()[0].x, of.method.pieces()[0].x)
    # and pseudo-labels do something
    without = learner(eg.PUMA(per_class=2, networks=2, pseudo_label_epochs=0))
    without.learn(task)
    assert not torch.equal(without.method.pieces()[0].x, of.method.pieces()[0].x)


def test_confident_pseudo_labels_are_right() -> None:
    context = make("gcn").context()
    context.task.test = context.task.train[:2]
    context.task.train = context.task.train[2:6]
    assert set(unlabelled(context).tolist()) == set(range(12)) - set(range(6))
    found: list[tuple[Tensor, Tensor]] = []

    class Watched(eg.PUMA):
        def pseudo_labelled(self, context, teacher, nodes):
            found.append(super().pseudo_labelled(context, teacher, nodes))
            return found[-1]

    easy = eg.TaskStream(sbm(nodes=200, classes=4, degree=6, features=16, signal=6.0, seed=0), 2)
    of = learner(Watched(per_class=4, confidence=0.7, networks=5))
    for task in easy:
        of.learn(task)
        nodes, labels = found[-1]
        truth = of.problem.targets(task.graph, of.classes_)[nodes]
        assert nodes.numel() > task.val.numel() / 3
        assert float((labels == truth).double().mean()) > 0.9


# killed in the middle


class KilledError(BaseException):
    """Stands for a process that ends in the middle of a condensation."""


@every_condensing
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_killed_in_mid_condensation_a_learner_resumes_to_the_same_bits(
    name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what was on the disk when the process ended: the state between tasks, or between epochs."""

    def fresh() -> eg.Learner:
        return learner(CONDENSING[name](per_class=2, networks=5, **SHORT.get(name, {})), dtype=dtype)

    whole, broken = fresh(), fresh()
    for of in (whole, broken):
        of.learn(STREAM[0])
    broken.save(tmp_path / "saved")
    whole.learn(STREAM[1])
    kind, calls = CONDENSING[name].matching, []
    draw = kind.draw

    def dying(self: Matching, generator: torch.Generator):
        calls.append(self)
        if len(calls) == 3:
            raise KilledError
        return draw(self, generator)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "draw", dying)
        with pytest.raises(KilledError):
            broken.learn(STREAM[1], lambda progress, epochs: broken.save(tmp_path / "saved"))
    assert len(calls) == 3
    for again in (eg.Learner.load(tmp_path / "saved", device="cpu"), broken):  # another process, or the same one
        assert again.in_mid_task == (name == "delome" and again is not broken)  # it condenses after its epochs
        again.learn(STREAM[1])
        for (key, value), other in zip(whole.model.named_parameters(), again.model.parameters()):
            assert torch.equal(value, other), key
        for left, right in zip(whole.method.pieces(), again.method.pieces()):
            assert torch.equal(as_dense(left.x), as_dense(right.x))
        assert torch.equal(whole.generator.get_state(), again.generator.get_state())
        assert torch.equal(whole.random_state, again.random_state)


# logit adjustment


def test_the_loss_reads_outputs_adjusted_by_the_classes_shares() -> None:
    setting = make("gcn", classes=(0, 1, 2))
    context = setting.context()
    context.task.train = setting.nodes[:7]
    got = flat(step_gradient(eg.LogitAdjustment(strength=1.5), context))
    counts = torch.bincount(setting.batcher.y[context.task.train], minlength=4).double()
    assert counts[:3].unique().numel() > 1
    batch = setting.batcher.batch(context.task.train)
    logits = setting.model(batch)
    loss = torch.zeros((), dtype=torch.float64)
    for row, unit in zip(logits, batch.y):
        adjusted = row[:3] + 1.5 * (counts[:3] / counts.sum()).log()
        loss = loss - (adjusted[unit] - adjusted.logsumexp(0))
    want = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(setting.model.parameters()))])
    close(got, want)


@pytest.mark.parametrize("weighting", ["examples", "classes", "nodes", "sets"])
def test_replayed_examples_count_in_the_shares_with_their_weights(weighting: str) -> None:
    shares: list[Tensor] = []
    weights: list[Tensor] = []

    class Watched(eg.LogitAdjustment):
        def prepare(self, context: eg.Context) -> None:
            shares.append(class_shares(context))

        def end_task(self, context: eg.Context) -> None:
            weights.append(torch.bincount(context.batcher.y[context.train], minlength=6).float())

    replay = eg.Reservoir(per_class=3, weighting=weighting, strength=2.0)
    of = learner(eg.Compose(replay, Watched()))
    of.learn(STREAM[0])
    (piece,) = replay.pieces()
    of.learn(STREAM[1])
    total = weights[1].clone()
    own, sizes = weights[1].sum(), torch.bincount(piece.units).float()
    for unit in piece.units.tolist():
        total[unit] += (
            2.0
            * {
                "examples": 1.0,
                "sets": float(own / piece.num_examples),
                "classes": float(own / (2 * sizes[unit])),
                "nodes": float(weights[0][unit] / sizes[unit]),
            }[weighting]
        )
    assert torch.allclose(shares[1], total / total.sum())


def test_without_strength_it_is_fine_tuning_bit_for_bit() -> None:
    plain, off, weak = (learner(m).fit(STREAM) for m in (eg.Finetune(), eg.LogitAdjustment(0.0), eg.DeLoMe(strength=0)))
    for value, *others in zip(*(of.model.parameters() for of in (plain, off, weak))):
        assert all(torch.equal(value, other) for other in others)


def test_alone_it_trains_like_the_label_scope_current() -> None:
    """A class without examples is as good as outside the softmax; with classes of one size nothing else changes."""
    setting = make("gcn")
    context = setting.context()
    context.task.train = setting.nodes[setting.batcher.y >= 2]
    adjusted = flat(step_gradient(eg.LogitAdjustment(), context))
    context.problem = context.problem.within([2, 3])
    close(adjusted, flat(step_gradient(eg.Finetune(), context)), tolerance=1e3 * SMALLEST_SHARE)


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: eg.CaT(networks=-1), "CaT: networks=-1 must be a whole number of at least 0"),
        (lambda: eg.CaT(updates=0), "CaT: updates=0 must be a whole number of at least 1"),
        (lambda: eg.DeLoMe(condensation_lr=0.0), "DeLoMe: condensation_lr=0.0 must be a finite number above 0"),
        (lambda: eg.DeLoMe(debiasing=-1.0), "DeLoMe: debiasing=-1.0 must be a finite number of at least 0"),
        (lambda: eg.PUMA(confidence=2.0), "PUMA: confidence=2.0 must be a finite number of at least 0 and at most 1"),
        (lambda: eg.PUMA(pseudo_label_epochs=-1), "PUMA: pseudo_label_epochs=-1 must be a whole number of at least 0"),
        (lambda: eg.CaT(start="noise"), "CaT: start='noise' must be one of: propagated, features"),
        (
            lambda: eg.LogitAdjustment(strength=-1.0),
            "LogitAdjustment: strength=-1.0 must be a finite number of at least 0",
        ),
    ],
)
def test_bad_settings_are_refused(make_it, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        make_it()


# what they are for


@every_condensing
def test_with_a_small_memory_old_classes_are_kept(name: str) -> None:
    stream = eg.TaskStream(sbm(nodes=240, classes=6, degree=5, features=16, signal=4.0, seed=2), 2)
    settings = {"epochs": 40, "lr": 0.01}
    kept = learner(CONDENSING[name](per_class=2), **settings).fit(stream).evaluate(stream).ap
    assert kept > learner(eg.Finetune(), **settings).fit(stream).evaluate(stream).ap + 30


@pytest.mark.slow
@every_condensing
def test_on_coauthor_cs_one_per_cent_of_the_nodes_is_nearly_joint_training(name: str, real_data: Path) -> None:
    """Joint training reaches 97.7; the aim is 3 points below it."""
    stream = eg.stream("coauthor-cs", data_root=real_data)
    of = eg.Learner(eg.GCN(), CONDENSING[name](memory="1%"), device="cpu").fit(stream)
    assert of.evaluate(stream).ap > 94.7


def test_gradient_matching_writes_the_gradient_of_a_two_layer_network() -> None:
    """The same as torch's own layers give, class by class."""
    x, units = real_nodes()
    made = GradientMatching(x, units, units, WIDTH)
    generator = seeded(5)
    first, second = made.weight(FEATURES, WIDTH, generator), made.weight(WIDTH, 3, generator)
    network = nn.Sequential(nn.Linear(FEATURES, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, 3, bias=False)).double()
    network[0].weight.data, network[2].weight.data = first.T.clone(), second.T.clone()
    got = class_gradients(x, units, made.classes, first, second)
    for position, unit in enumerate((1, 3, 4)):
        network.zero_grad()
        logits = network(x[units == unit])
        F.cross_entropy(logits, torch.full((logits.size(0),), position)).backward()
        close(got[position], network[0].weight.grad.T)
        close(got[3 + position], network[2].weight.grad.T)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_synthetic_nodes_move_in_units_of_each_features_deviation(sparse: bool) -> None:
    made, (x, _) = matching("distributions", sparse), synthetic_nodes()
    scale = real_nodes()[0].std(0, unbiased=False)
    close(made.scale(), scale)
    moved, _ = condense(x, made, networks=1, updates=1, lr=0.1, generator=seeded())
    steps = (moved - x).abs() / scale
    assert torch.allclose(steps[steps > 1e-9], torch.full_like(steps[steps > 1e-9], 0.1), rtol=1e-3)  # Adam's first
    assert int((steps > 1e-9).sum()) > steps.numel() / 2


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_deviations_of_features_far_from_zero(sparse: bool) -> None:
    """A year, a year that half of the nodes have, and a constant."""
    x, units = 2000 + torch.randn(200, 3, generator=seeded()), torch.zeros(200, dtype=torch.long)
    x[::2, 1], x[:, 2] = 0, 0.1
    if sparse:
        x = F.pad(x, (0, 37))
    made = DistributionMatching(SparseMatrix.from_dense(x) if sparse else x, units, units[:1], WIDTH)
    assert isinstance(made.real, SparseMatrix) == sparse
    close(made.scale(), x.double().std(0, correction=0).float(), 1e-6)
