"""What users of a deployed learner ask for: calibrated probabilities, unknown classes, reasons, a model card."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import evergraph as eg
from evergraph.cli.learner import card_lines
from evergraph.core.symmetric import unpack
from evergraph.data.datasets.sbm import sbm
from evergraph.evaluation import METRICS
from evergraph.experiments.told import show_bytes
from evergraph.problems import problem_of
from evergraph.training.calibration import GRID, PRIOR, best_temperature, losses_at_temperatures
from evergraph.training.description import describe
from evergraph.training.evidence import AFTER, BEFORE, strangeness
from evergraph.training.unknown import BINS, MIXTURES, Familiar, confidence, counted, familiar_of, separations

pytestmark = pytest.mark.filterwarnings("ignore:.*no effect; .* learns in one pass")


@pytest.fixture(scope="module")
def stream() -> eg.TaskStream:
    return eg.TaskStream(sbm(nodes=400, classes=6, degree=4, features=8, signal=1.2, seed=3), 2)


@pytest.fixture(scope="module")
def learner(stream: eg.TaskStream) -> eg.Learner:
    """Knows the first four of six classes."""
    return eg.Learner(eg.RandomFeatures(hidden=60), "auto", dtype=torch.float64).fit([stream[0], stream[1]])


# calibration


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> list[float]:
    return losses_at_temperatures(eg.NodeClassification(), outputs, targets)


def test_the_temperature_is_the_one_that_labels_were_drawn_with() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(20000, 5, generator=generator, dtype=torch.float64) * 3
    drawn = torch.multinomial((z / 2.5).softmax(1), 1, generator=generator).reshape(-1)
    halves = [losses(z[part], drawn[part]) for part in (slice(0, 9000), slice(9000, None))]
    assert best_temperature(halves) == pytest.approx(2.5, rel=0.03)
    assert best_temperature([losses(z, drawn)]) == pytest.approx(best_temperature(halves), rel=1e-9)
    naive = min(GRID, key=lambda t: float(F.cross_entropy(z / t, drawn, reduction="sum")) + PRIOR * math.log2(t) ** 2)
    assert abs(math.log2(best_temperature(halves) / naive)) <= 0.25
    assert best_temperature([]) == 1.0
    sure = losses_at_temperatures(
        eg.NodeClassification(), z[:20], z[:20].argmax(1)
    )  # all right: the prior alone bounds T
    assert min(GRID) == min(GRID, key=lambda t: sure[GRID.index(t)]) < best_temperature([sure]) < 1


def test_expected_calibration_error_is_its_definition() -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (300,), generator=generator)
    found, total = METRICS["calibration-error"](z, y, range(4)), 0.0
    best = z.softmax(1).max(1)
    for low in range(15):
        rows = [i for i in range(300) if low <= float(best.values[i]) * 15 < low + 1]
        if rows:
            hits = sum(int(best.indices[i] == y[i]) for i in rows) / len(rows)
            total += len(rows) / 300 * abs(hits - sum(float(best.values[i]) for i in rows) / len(rows))
    assert found == pytest.approx(100 * total)


def test_probabilities_are_calibrated_and_labels_are_not_touched(learner: eg.Learner, stream: eg.TaskStream) -> None:
    graph = stream[1].graph
    raw, calibrated = (learner.predict(graph, calibrated=choice) for choice in (False, True))
    assert raw.labels == calibrated.labels
    assert learner.temperature != 1
    z = learner.logits(graph)[:, :4]
    assert torch.allclose(calibrated.table, (z / learner.temperature).softmax(1))
    assert torch.allclose(raw.table, z.softmax(1))
    assert torch.equal(learner.predict_proba(graph), calibrated.table)
    assert torch.equal(learner.predict_proba(graph, calibrated=False), raw.table)
    assert calibrated.classes == learner.classes_
    two = learner.predict(graph, classes=learner.classes_[:2])
    assert torch.allclose(two.table.sum(1), torch.ones(graph.num_nodes, dtype=torch.float64))


def test_validation_nodes_are_read_by_heads_that_have_not_learned_from_them(stream: eg.TaskStream) -> None:
    """The counts are those of a learner that never learns from validation nodes."""
    ours, blind = (
        eg.Learner(eg.RandomFeatures(hidden=60), eg.Auto(learn_validation=choice), dtype=torch.float64)
        for choice in (True, False)
    )
    for one in (ours, blind):
        one.learn(stream[0])
    assert ours.records[0]["calibration"] == pytest.approx(blind.records[0]["calibration"])
    assert ours.records[0]["familiar"] == blind.records[0]["familiar"]
    assert not torch.equal(ours.model.head, blind.model.head)


@pytest.mark.parametrize("name", ["analytic", "auto"])
def test_a_composition_leaves_the_evidence_that_its_closed_form_leaves(stream: eg.TaskStream, name: str) -> None:
    alone, composed = (eg.Learner("random-features", eg.make_method(title)) for title in (name, f"finetune+{name}"))
    for one in (alone, composed):
        one.fit([stream[0], stream[1]])
    for ours, theirs in zip(composed.records, alone.records):
        assert {key: ours.get(key) for key in BEFORE + AFTER} == {key: theirs.get(key) for key in BEFORE + AFTER}
    assert composed.temperature == alone.temperature
    flagged = [one.predict(stream[2].graph, unknown=0.1).unknown for one in (alone, composed)]
    assert torch.equal(*flagged)


def test_calibration_helps_a_network_that_is_too_sure() -> None:
    task = eg.Task.of(sbm(nodes=200, classes=2, degree=2, features=16, signal=0.3, seed=3))
    learner = eg.Learner(eg.GCN(hidden=16), "finetune", epochs=60, lr=0.05, weight_decay=0, batch_size=0)
    learner.learn(task)
    assert learner.temperature > 2
    z, y = learner.logits(task.graph, task.test), task.graph.y[task.test]
    raw, error = METRICS["calibration-error"](z, y, range(2)), learner.evaluate([task], metric="calibration-error")
    assert error.ap < raw - 10


# unknown classes


def test_a_score_is_the_share_of_known_examples_that_look_less_strange() -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.stack([torch.rand(4000, generator=generator) - 1, torch.rand(4000, generator=generator)], 1).double()
    familiar = Familiar.of([counted(known[:1000]), counted(known[1000:])], 0.25)
    assert familiar is not None
    asked = torch.tensor([[-0.7, 0.1], [-0.2, 0.8]], dtype=torch.float64)
    for values, score in zip(asked, familiar.score(asked).tolist()):
        shares = (known < values).double().mean(0)
        assert score == pytest.approx(0.75 * float(shares[0]) + 0.25 * float(shares[1]), abs=0.02)
    for rate in (0.01, 0.05, 0.2):
        new = torch.stack([torch.rand(4000, generator=generator) - 1, torch.rand(4000, generator=generator)], 1)
        above = float((familiar.score(new.double()) > familiar.threshold(rate)).double().mean())
        assert above == pytest.approx(rate, abs=0.02)
    beyond = Familiar.of([counted(known + 100)], 0.25)  # all outside of the table: none can be told from another
    assert beyond is not None
    assert not (beyond.score(known + 100) > beyond.threshold(0.05)).any()
    assert Familiar.of([counted(known[:10])], 0.5).threshold(0.05) == math.inf  # ten examples cannot promise it
    assert Familiar.of([], 0.5) is None


def test_the_mixture_is_the_one_that_sets_new_classes_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.randn(500, 2, generator=generator).double() * 0.2
    known[:, 0] -= 0.5
    for column, best in ((0, 0.0), (1, 1.0)):
        strangers = torch.randn(300, 2, generator=generator).double() * 0.2
        strangers[:, 0] -= 0.5
        strangers[:, column] += 0.5
        table = [counted(known)]
        found = separations(table, strangers)
        assert MIXTURES[max(range(len(found)), key=found.__getitem__)] == best
        familiar = Familiar.of(table, best)
        naive = (familiar.score(strangers).unsqueeze(1) > familiar.score(known)).double().mean()
        assert max(found) / 300 == pytest.approx(float(naive), abs=0.01)
        assert familiar_of([{"familiar": table[0], "separations": found}]).mixture == best


def test_leverage_and_largest_score_are_their_formulas(learner: eg.Learner, stream: eg.TaskStream) -> None:
    graph, nodes = stream[0].graph, stream[0].test[:5]
    found = strangeness(learner, graph, nodes)
    phi = learner.problem.batcher(learner.model, graph).x[nodes]
    gram = unpack(learner.method.gram_["train"])
    damped = gram + 0.2 * gram.diagonal()[gram.diagonal() > 0].mean() / 4 * torch.eye(len(gram), dtype=torch.float64)
    for row, (score, leverage) in zip(phi, found.tolist()):
        assert 10**leverage == pytest.approx(float(row @ torch.linalg.inv(damped) @ row))
        largest = float((row @ learner.model.head.detach())[:4].max())
        assert -score == pytest.approx((largest - 0.25) / 0.75)
    outputs = torch.tensor([[2.0, 1.0, -1.0]])
    p = float(outputs.softmax(1).max())
    assert float(confidence(outputs)) == pytest.approx(-math.log(p / (1 - p)), abs=1e-5)


def test_new_classes_are_put_aside_and_known_ones_are_not() -> None:
    stream = eg.TaskStream(sbm(nodes=600, classes=6, degree=4, features=8, signal=1.6, seed=5), 2)
    learner = eg.Learner(eg.RandomFeatures(hidden=60), "auto", dtype=torch.float64).fit([stream[0], stream[1]])
    prediction = learner.predict(stream[2].graph, unknown=0.1)
    known = [learner.predict(stream[i].graph, stream[i].test, unknown=0.1) for i in range(2)]
    false_alarms = torch.cat([one.unknown for one in known]).double().mean()
    assert false_alarms <= 0.2  # of 80 nodes
    assert prediction.unknown.double().mean() > 2 * false_alarms
    assert torch.equal(prediction.unknown, prediction.strangeness > familiar_of(learner.records).threshold(0.1))
    assert learner.predict(stream[2].graph).unknown is None
    assert max(cell[0] for cell in learner.records[0]["familiar"]) < BINS
    assert len(learner.records[1]["separations"]) == len(MIXTURES)


@pytest.mark.parametrize(("rate", "message"), [(0, "unknown=0"), (1, "unknown=1"), (-0.1, "unknown=-0.1")])
def test_a_rate_of_false_alarms_is_a_share(learner: eg.Learner, stream: eg.TaskStream, rate, message) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        learner.predict(stream[0].graph, unknown=rate)


def test_without_validation_nodes_nothing_is_settled(stream: eg.TaskStream) -> None:
    learner = eg.Learner(eg.RandomFeatures(hidden=20), "auto")
    learner.learn(eg.Task.of(stream[0].graph, hold_out=False))
    assert learner.temperature == 1
    with pytest.raises(eg.EvergraphError, match="no task had any; learn with some held out"):
        learner.predict(stream[0].graph, unknown=0.05)


def test_validation_nodes_that_are_trained_on_settle_nothing(stream: eg.TaskStream, tmp_path: Path) -> None:
    """Neither in joint training, nor in a composition with it; a memory alone is not trained on them."""
    joint = eg.Joint(learn_validation=True)
    for method in (joint, eg.Compose(eg.EMA(), joint)):
        learner = eg.Learner(eg.GCN(hidden=8), method, epochs=1).fit([stream[0], stream[1]])
        assert learner.temperature == 1
        assert not any(key in record for record in learner.records for key in BEFORE + AFTER)
        with pytest.raises(eg.EvergraphError, match="need validation examples, and joint trains on them too"):
            learner.predict(stream[0].graph, unknown=0.05)
        learner.save(tmp_path)
        assert dict(card_lines(describe(tmp_path)))["probabilities"].startswith("from outputs as they are; no valid")
    for method in (eg.Joint(), eg.GDumb()):
        learner = eg.Learner(eg.GCN(hidden=8), method, epochs=1).fit([stream[0]])
        assert all(learner.records[0].get(key) for key in AFTER)


# why


@pytest.fixture(scope="module")
def unsmoothed(stream: eg.TaskStream) -> Callable[[str], eg.Learner]:
    """A learner of the whole stream with a model; nobody changes it."""

    def fitted(model: str) -> eg.Learner:
        built = eg.make_model(model, hidden=60)
        return eg.Learner(built, eg.Auto(smoothing=0.0), dtype=torch.float64).fit(stream)

    return functools.cache(fitted)


@pytest.mark.parametrize("model", dict.fromkeys(["random-features", eg.Auto.model]))
@pytest.mark.parametrize("where", ["a task's graph", "all tasks'", "sparse features"])
def test_amounts_add_up_to_the_logit(
    stream: eg.TaskStream, unsmoothed: Callable[[str], eg.Learner], where: str, model: str
) -> None:
    whole = unsmoothed(model)
    graph = {"a task's graph": stream[0].graph}.get(where, stream.graph)
    if where == "sparse features":
        graph = graph.altered(x=eg.core.sparse.SparseMatrix.from_dense(graph.x))
    for node in (0, 17, 60):
        label = whole.predict(graph, [node]).labels[0]
        found = whole.why(graph, node)
        logits = whole.logits(graph, [node])[0]
        assert found.label == label
        assert found.logit == pytest.approx(float(logits[whole.classes_.index(label)]), abs=1e-9)
        for amounts in (found.neighbours, found.features, list(found.by_depth.items())):
            assert found.constant + sum(amount for _, amount in amounts) == pytest.approx(found.logit, abs=1e-9)
        other = whole.classes_[0] if label != whole.classes_[0] else whole.classes_[1]
        pair = whole.why(graph, node, label, against=other)
        assert pair.logit == pytest.approx(found.logit - float(logits[whole.classes_.index(other)]), abs=1e-9)
        assert found.probability == pytest.approx(float(whole.predict(graph, [node]).probabilities[0]))


@pytest.mark.parametrize(
    ("name", "premium", "decides", "judged", "said"),
    [
        ("analytic", 0.0, "head", 1, "the head itself, on edges weighed by the vote of all depths"),
        ("analytic", 1.0, "vote", 1, "a vote of all depths, on edges weighed by it"),
        ("auto", 0.0, "other", 2 / 3, "the head that decides on such graphs, partly on edges weighed by the vote"),
    ],
    ids=["the head itself", "the vote", "another head"],
)
def test_what_reads_edges_between_tasks_is_told(
    name: str, premium: float, decides: str, judged: float, said: str
) -> None:
    graph = sbm(nodes=200, classes=6, degree=5, homophily=0.6, features=16, signal=1.0, seed=0)
    stream, method = eg.TaskStream(graph, 2), eg.registry.methods[name](premium=premium, smoothing=0.0)
    learner = eg.Learner(eg.RandomFeatures(hidden=60), method, dtype=torch.float64, device="cpu").fit(stream)
    for test_graph in ("seen", "task"):
        graph, nodes = stream.tests(2, 0, test_graph)
        node = int(nodes[0])
        found, logits = learner.why(graph, node), learner.logits(graph)
        unit = learner.classes_.index(found.label)
        assert found.logit == pytest.approx(float(logits[node, unit]), abs=1e-9)
        method.judge_edges = False
        read_otherwise = not torch.allclose(logits, learner.logits(graph))
        method.judge_edges = True
        assert found.between_tasks == read_otherwise == (test_graph == "seen")
        assert (f"edges between tasks were found: read by {said}" in found.text()) == (test_graph == "seen")
        assert found.decides == (decides if test_graph == "seen" else "head")
        assert found.judged == pytest.approx(judged if test_graph == "seen" else 0)


def test_the_head_that_reads_edges_as_they_are_is_not_said_to_judge_them() -> None:
    """Smoothed over judged edges, the head of `analytic` reads its features over all edges."""
    graph = sbm(nodes=200, classes=6, degree=5, homophily=0.6, features=16, signal=1.0, seed=0)
    stream, method = eg.TaskStream(graph, 2), eg.Analytic(premium=0.0)
    learner = eg.Learner(eg.RandomFeatures(hidden=60), method, dtype=torch.float64, device="cpu").fit(stream)
    graph, nodes = stream.tests(2, 0, "seen")
    found = learner.why(graph, int(nodes[0]))
    assert method.smoothing_share_ > 0
    method.smoothing_share_, method.judge_edges = 0.0, False
    unjudged = float(learner.logits(graph, nodes[:1])[0, learner.classes_.index(found.label)])
    assert found.logit == pytest.approx(unjudged, abs=1e-9)
    assert (found.between_tasks, found.decides, found.judged) == (True, "head", 0)
    assert found.text().splitlines()[-1] == "  edges between tasks were found: read by the head itself"


@pytest.mark.parametrize("kind", ["labels", "numbers"])
@pytest.mark.parametrize("columns", [1, 2])
def test_amounts_add_up_to_labels_and_numbers(kind: str, columns: int, tmp_path: Path) -> None:
    graph = eg.stream(f"drift-{kind}:nodes=80").graph
    graph = graph.altered(y=graph.y[:, :1].repeat(1, columns), class_names=["age", "height"][:columns])
    model = eg.RandomFeatures(hidden=40)
    learner = eg.Learner(model, "analytic", problem=problem_of(graph), dtype=torch.float64, device="cpu")
    learner.learn(graph)
    found = learner.why(graph, 7, "age")
    outputs = learner.logits(graph, [7])[0]
    assert found.logit == pytest.approx(float(outputs[0]), abs=1e-9)
    for amounts in (found.neighbours, found.features, list(found.by_depth.items())):
        assert found.constant + sum(amount for _, amount in amounts) == pytest.approx(found.logit, abs=1e-9)
    assert (found.probability is None) == (kind == "numbers")
    assert str(found).startswith("node 7: 'age' is" if kind == "numbers" else "node 7: 'age' with probability")
    if columns == 2:
        found.draw(tmp_path / "why.svg")
        assert (tmp_path / "why.svg").stat().st_size > 1000
        pair = learner.why(graph, 7, "age", against="height")
        assert pair.logit == pytest.approx(float(outputs[0] - outputs[1]), abs=1e-9)
    if kind == "numbers" and columns == 2:
        with pytest.raises(eg.EvergraphError, match="one number at a time; name one of: age, height"):
            learner.why(graph, 7)
    elif columns == 1:
        assert learner.why(graph, 7).logit == found.logit


def test_amounts_are_those_of_a_naive_sum(learner: eg.Learner, stream: eg.TaskStream) -> None:
    """One block, one step: every neighbour and feature one by one."""
    task = stream[0]
    one = eg.Learner(eg.RandomFeatures(hidden=12, blocks=[(1, 0.5)]), eg.Analytic(smoothing=0.0), dtype=torch.float64)
    one.learn(task)
    graph, node, unit = task.graph, 7, 1
    found = one.why(graph, node, one.classes_[unit])
    adjacency = graph.adjacency.dense().double() + torch.eye(graph.num_nodes)
    degree, x = adjacency.sum(1), graph.x.double()
    x = torch.cat([x, torch.full((graph.num_nodes, 1), one.model.lift)], dim=1)
    hat = x / x.norm(dim=1, keepdim=True)
    step = adjacency / (degree.unsqueeze(1) * degree.unsqueeze(0)).sqrt()
    h = step[node] @ hat @ one.model.projection
    weights = one.model.head[:-1, unit].detach() * (h > 0) / h.norm() * 12**0.5 / one.method.temperature
    for name, amount in found.neighbours:
        own = hat[name, :-1] @ one.model.projection[:-1]  # the constant column is nobody's
        assert amount == pytest.approx(float(step[node, name] * own @ weights))
    for name, amount in found.features:
        place = int(str(name).split()[1])
        assert amount == pytest.approx(float((step[node] @ hat)[place] * one.model.projection[place] @ weights))


def test_parts_of_a_smoothed_probability_add_up_to_it(stream: eg.TaskStream) -> None:
    """To the calibrated one, which is shown; every node's part of it is its part of the uncalibrated one."""
    learner = eg.Learner(eg.RandomFeatures(hidden=60), "auto", dtype=torch.float64).fit([stream[0], stream[1]])
    learner.records[0] = {**learner.records[0], "calibration": [1e3 * abs(t - 0.5) for t in GRID]}
    learner.method.votes_, graph, node = False, stream[1].graph, 5
    learner.method.smoothing_share_ = 0.0
    alone = learner.predict_proba(graph, calibrated=False)
    learner.method.smoothing_share_ = 0.5
    found = learner.why(graph, node)
    unit = learner.classes_.index(found.label)
    calibrated, raw = (float(learner.predict_proba(graph, [node], calibrated=yes)[0, unit]) for yes in (True, False))
    assert abs(calibrated - raw) > 0.01
    assert found.probability == calibrated
    for explained in (found, learner.why(graph, node, learner.classes_[0])):
        assert explained.shares is not None
        assert abs(sum(part for _, part in explained.shares) - explained.probability) < 1e-10
    mean = graph.adjacency.dense().double() + torch.eye(graph.num_nodes)
    mean, weights = mean / mean.sum(1, keepdim=True), torch.eye(graph.num_nodes, dtype=torch.float64)
    for _ in range(5):
        weights = 0.5 * torch.eye(graph.num_nodes) + 0.5 * mean @ weights
    parts = weights[node] * alone[:, unit]
    assert float(parts.sum()) == pytest.approx(raw)
    assert dict(found.shares) == pytest.approx(
        {number: part * calibrated / raw for number, part in enumerate(parts.tolist()) if part}
    )
    assert "its probability is mixed with its neighbours'" in found.text()


def test_reasons_in_words_and_pictures(learner: eg.Learner, stream: eg.TaskStream, tmp_path: Path) -> None:
    found = learner.why(stream[0].graph, 3)
    assert str(found).startswith(f"node 3: {found.label!r} with probability")
    assert len(found.text(most=1).splitlines()) >= 4
    assert " others " in found.text(most=1)
    assert " 1 other " in found.text(most=len(found.features) - 1)
    json.dumps(found.as_dict())
    assert min(map(len, (found.neighbours, found.features, found.shares))) > 1
    few = found.as_dict(most=1)
    assert few == {**found.as_dict(), **{key: getattr(found, key)[:1] for key in ("neighbours", "features", "shares")}}
    for ending, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        found.draw(tmp_path / f"why{ending}")
        assert (tmp_path / f"why{ending}").read_bytes().startswith(start)
    with pytest.raises(eg.EvergraphError, match="cannot tell the format"):
        found.draw(tmp_path / "why.txt")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (([1, 2],), "one node at a time, not 2"),
        ((10**6,), "one asked for is outside"),
        ((0, "cat"), "unknown class 'cat'"),
    ],
)
def test_wrong_questions_are_one_line(learner: eg.Learner, stream: eg.TaskStream, words, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        learner.why(stream[0].graph, *words)


def test_other_methods_do_not_say_why(stream: eg.TaskStream) -> None:
    for model, method in ((eg.GCN(hidden=4), "finetune"), (eg.GCN(hidden=4), "analytic")):
        learner = eg.Learner(model, method, epochs=1)
        learner.learn(stream[0])
        with pytest.raises(eg.EvergraphError, match="does not say what carries"):
            learner.why(stream[0].graph, 0)


# the command line, and the card


def test_a_deployed_learner_from_the_command_line(evergraph, learner: eg.Learner, stream, tmp_path: Path) -> None:
    from torch_geometric.data import Data

    folder, path = tmp_path / "kept", tmp_path / "now.pt"
    learner.save(folder)
    graph = stream[2].graph
    torch.save(Data(x=graph.x, edge_index=graph.edge_index, y=graph.y, class_names=graph.class_names), path)
    status, _, error = evergraph("predict", path, "--checkpoint", folder)
    assert status == 2
    assert "add --unknown 0.05 to flag such nodes" in error
    status, out, _ = evergraph("predict", path, "--checkpoint", folder, "--unknown", "0.1", "--all-classes")
    assert status == 0
    rows, wanted = list(csv.DictReader(io.StringIO(out))), learner.predict(graph, unknown=0.1)
    assert [row["unknown"] == "yes" for row in rows] == wanted.unknown.tolist()
    assert [float(row["strangeness"]) for row in rows] == pytest.approx(wanted.strangeness.tolist(), rel=1e-4)
    named = [[float(row[f"p({name})"]) for name in learner.classes_] for row in rows]
    assert torch.allclose(torch.tensor(named, dtype=torch.float64), wanted.table, atol=1e-4)
    plain = evergraph("predict", path, "--checkpoint", folder, "--ignore-labels", "--uncalibrated", "--nodes", "3")[1]
    assert float(plain.split(",")[-1]) == pytest.approx(
        float(learner.predict(graph, [3], calibrated=False).probabilities), rel=1e-4
    )
    found = json.loads(evergraph("why", path, "--checkpoint", folder, "--node", "3", "--json")[1])
    assert found["logit"] == pytest.approx(learner.why(graph, 3).logit)
    few = json.loads(evergraph("why", path, "--checkpoint", folder, "--node", "3", "--most", "2", "--json")[1])
    assert len(found["features"]) > 2
    assert few == {**found, "features": found["features"][:2]}
    for words, message in (
        (("predict", path, "--unknown", "5"), "--unknown 5: the rate is a share, not a percentage; write 0.05"),
        (("predict", path, "--unknown", "-1"), "unknown=-1.0"),
        (("predict", path, "--ignore-labels", "--nodes", "5000"), "one asked for is outside"),
        (("why", path, "--node", "3,4"), "--node 3,4: name one node"),
        (("why", path, "--node", "3", "--node", "4"), "--node 3,4: name one node"),
        (("why", path, "--node", "zoe"), "have no ids; give their numbers, from 0 to"),
        (("why", path, "--node", "3", "--class", "cat"), "unknown class 'cat'"),
        (("why", path, "--node", "3", "--picture", "why.bmp"), "cannot tell the format"),
    ):
        status, _, error = evergraph(*words, "--checkpoint", folder)
        assert status == 2
        assert message in error
        assert error.count("\n") == 1


def test_the_model_card_says_what_was_learned_and_what_is_kept(evergraph, learner, stream, tmp_path: Path) -> None:
    learner.save(tmp_path / "kept")
    about = json.loads(evergraph("info", tmp_path / "kept", "--json")[1])
    task, first = about["tasks"][0], stream[0]
    assert task["learned"].endswith("Z")
    assert task["examples"] == {"training": len(first.train), "validation": len(first.val), "test": len(first.test)}
    assert sum(task["class_sizes"].values()) == len(first.train)
    card = about["card"]
    assert card["keeps"] == ["statistics"]
    assert card["kept_bytes"]["gram"] == 2 * 61**2 * 8
    assert card["temperature"] == pytest.approx(learner.temperature)
    assert card["unknown_above"] == pytest.approx(familiar_of(learner.records).threshold(0.05))
    text = " ".join(evergraph("info", tmp_path / "kept")[1].split())
    total = f"statistics ({show_bytes(sum(card['kept_bytes'].values()))}: gram {show_bytes(card['kept_bytes']['gram'])}"
    assert total in text
    for part in ("kept of tasks", "probabilities", "unknown classes", "for validation", "% false alarms"):
        assert part in text


def test_a_card_of_few_validation_nodes_is_json(evergraph, small_graph: eg.Graph, tmp_path: Path) -> None:
    """At 5 % false alarms nothing can be put aside by fewer than 19 of them; the card says so, in words and by null."""
    for number in (18, 19):
        task = eg.Task.of(small_graph)
        task.val = torch.cat([task.val, task.test])[:number]
        learner = eg.Learner(eg.RandomFeatures(hidden=20), "auto")
        learner.learn(task)
        learner.save(tmp_path / str(number))
        text = evergraph("info", tmp_path / str(number), "--json")[1]
        card = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))["card"]
        shown = " ".join(evergraph("info", tmp_path / str(number))[1].replace("│", " ").split())
        few = "too few validation examples to flag any, at 5 % false alarms"
        assert (card["unknown_above"] is None) == (number == 18) == (few in shown)
        assert "inf" not in shown.split("unknown classes")[1]
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            learner.predict(small_graph, unknown=0.05)
        assert any(few in str(note.message) for note in notes) == (number == 18)
