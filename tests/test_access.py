"""What methods declare is what they do: whoever keeps something says so, and whoever looks at other test nodes too."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import evergraph as eg
from evergraph.core.features import as_dense
from evergraph.core.sparse import SparseMatrix
from evergraph.data.tasks import union
from evergraph.experiments.method_table import keeps_old_data
from evergraph.experiments.told import other_test_nodes
from evergraph.methods import METHODS, Compose
from evergraph.methods.base import Context, Method, View
from evergraph.methods.state import count_bytes
from evergraph.models.base import GraphModel
from test_conformance import GRAPH, STREAM, SUITE, every_name, learned, learner
from test_problems import make_data

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*no effect; .* learns in one pass"),
    pytest.mark.filterwarnings("ignore:.*join the ends of validation and test links"),
]

NODE_STREAM = eg.TaskStream(GRAPH, 2, test_graph="node")


# what is kept


def hidden_bytes(method: Method) -> int:
    """Everything that an object holds, whatever its attributes are called."""
    parts = method.methods if isinstance(method, Compose) else [method]
    held = [value for part in parts for value in vars(part).values()]
    return sum(count_bytes(value) for value in held if not isinstance(value, (int, float, str)))


def model_bytes(of: eg.Learner) -> int:
    return count_bytes(dict(of.model.state_dict()))


def check_kept(of: eg.Learner) -> None:
    """The rule: something is kept (in the method's state, or by a model that grows) if and only if it is declared."""
    at_first = model_bytes(learned(of, 1))
    for task in list(STREAM)[1:]:
        of.learn(task)
    grown = model_bytes(of) - at_first
    kept = of.method.kept_bytes() + grown
    declared = of.method.access.keeps
    assert declared or not kept, f"{of.method.title} keeps {kept} bytes and declares nothing"
    assert declared or not hidden_bytes(of.method), f"{of.method.title} hides {hidden_bytes(of.method)} bytes"
    assert kept or not declared, f"{of.method.title} declares {declared} and no byte is counted"


@every_name
def test_what_is_kept_is_declared_and_counted(name: str) -> None:
    check_kept(learner(SUITE[name](), epochs=1, dtype=torch.float64))


@dataclass(repr=False)
class Hoarder(Method):
    """Keeps training nodes and says nothing."""

    name = "hoarder"
    rows_: list[Tensor] = eg.state(list)

    def end_task(self, context: Context) -> None:
        self.rows_ = [*self.rows_, as_dense(context.task.graph.x)[:2]]


class InNumbers(Hoarder):
    """Keeps them as plain numbers, which are no tensors."""

    def end_task(self, context: Context) -> None:
        self.rows_ = [*self.rows_, *as_dense(context.task.graph.x)[0].tolist()]


class UnderAnotherName(Method):
    """Keeps them where no state is looked for."""

    def end_task(self, context: Context) -> None:
        self.memory = [as_dense(context.task.graph.x)[:2]]


class InTheModel(Method):
    """Lets the model grow at every task."""

    def adapt_model(self, model: GraphModel, task: eg.Task) -> None:
        model.register_parameter(f"prompt_{task.index}", nn.Parameter(torch.zeros(3)))


@pytest.mark.parametrize("kind", [Hoarder, InNumbers, UnderAnotherName, InTheModel])
def test_who_keeps_something_and_does_not_say_so_is_found(kind: type[Method]) -> None:
    with pytest.raises(AssertionError, match=r"declares nothing|hides"):
        check_kept(learner(kind(), epochs=1))


def test_who_says_so_passes() -> None:
    class Honest(Hoarder):
        access = eg.Access(keeps=("real nodes",))

    of = learner(Honest(), epochs=1)
    check_kept(of)
    assert of.method.kept_bytes() == 3 * 2 * GRAPH.num_features * 4


def test_bytes_are_those_of_tensors_numbers_and_texts() -> None:
    assert count_bytes({"a": torch.zeros(3), "b": [1, 2.0, True], "c": "né", "d": None}) == 12 + 24 + 3


def test_a_kind_of_thing_that_is_not_on_the_list_is_refused() -> None:
    with pytest.raises(eg.EvergraphError, match="unknown kind of thing kept 'nodes'; choose one of: parameters, "):
        eg.Access(keeps=("nodes",))


def test_a_composition_keeps_and_is_told_what_its_parts_are() -> None:
    class Told(Method):
        access = eg.Access(keeps=("real nodes",), task_identity=True)

    composed = Compose(Told(), eg.EWC(), eg.Joint(), eg.Analytic())
    assert composed.access.as_dict() == {
        "keeps": ["parameters", "statistics", "real nodes", "graphs"],
        "old_labels": True,
        "task_identity": True,
        "transductive": True,
        "all_data": True,
    }
    assert Compose(eg.Finetune(), eg.Finetune()).access == eg.Access()
    assert Compose(eg.EWC(), eg.Finetune()).access == eg.EWC.access


# what predictions depend on


def beside(graph: eg.Graph, other: eg.Graph) -> eg.Graph:
    """A graph with another one beside it, no edge between them."""
    both = union([eg.Task(0, [0], one, one.y[:0], one.y[:0], one.y[:0], one.num_classes) for one in (graph, other)])
    return both.graph


def noise(graph: eg.Graph, seed: int) -> eg.Graph:
    """The graph with other features and other edges."""
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(graph.num_nodes, generator=random)
    x = 3 * torch.randn(as_dense(graph.x).shape, generator=random)
    adjacency = graph.adjacency
    moved = SparseMatrix(adjacency.indptr, order[adjacency.indices], adjacency.values, adjacency.num_columns)
    return eg.Graph(x, moved, graph.y, graph.class_names)


def check_predictions(of: eg.Learner) -> None:
    """The rule: outputs change with what the model does not read (strangers, who else is asked) only if declared."""
    seen = STREAM.seen(1)
    alone = torch.cat([of.logits(seen.graph, [node]) for node in seen.test.tolist()])
    others = [of.logits(seen.graph, seen.test), *(
        of.logits(beside(seen.graph, noise(seen.graph, seed)), seen.test) for seed in range(2)
    )]  # fmt: skip
    same = all(torch.allclose(alone, other, rtol=1e-6, atol=1e-8) for other in others)
    assert same or of.method.access.transductive, f"{of.method.title} looks at other test nodes and does not say so"


def check_joining(of: eg.Learner) -> None:
    """The rule on the test graph `node`: outputs change with no other joining node, nor with who else is asked."""
    seen = NODE_STREAM.seen(1, alone=True)
    graph, nodes = seen.graph, seen.test
    together = of.logits(graph, nodes)
    for number, node in enumerate(nodes.tolist()):
        others = graph.joining.clone()
        others[node] = False
        x = as_dense(graph.x).clone()
        x[others] = 5 * torch.randn(int(others.sum()), x.size(1), generator=torch.Generator().manual_seed(number))
        rows = torch.where(others[graph.adjacency.row_of_entry()])[0]
        source = torch.nonzero(~graph.joining).reshape(-1)
        indices = graph.adjacency.indices.clone()
        indices[rows] = source[torch.arange(rows.numel()) % source.numel()]
        moved = SparseMatrix(graph.adjacency.indptr, indices, graph.adjacency.values, graph.num_nodes)
        changed = eg.Graph(x, moved, graph.y, graph.class_names, joining=graph.joining)
        for asked in ([node], nodes.tolist()):
            outputs = of.logits(changed, asked)[asked.index(node)]
            assert torch.allclose(outputs, together[number], rtol=1e-6, atol=1e-8), f"{of.method.title}, node {node}"


@every_name
def test_predictions_depend_on_what_is_declared(name: str) -> None:
    of = learned(learner(SUITE[name](), epochs=1, dtype=torch.float64), 2)
    check_predictions(of)
    check_joining(of)


class Centred(Method):
    """Compares with everything else that is asked."""

    def predict(self, view: View) -> Tensor:
        outputs = view.outputs()
        return outputs - outputs.mean(0)


class OfTheGraph(Method):
    """Compares with the graph as a whole."""

    def predict(self, view: View) -> Tensor:
        return view.outputs() + as_dense(view.graph.x).mean()


@pytest.mark.parametrize("kind", [Centred, OfTheGraph])
def test_who_looks_at_other_test_nodes_and_does_not_say_so_is_found(kind: type[Method]) -> None:
    of = learned(learner(kind(), epochs=1, dtype=torch.float64), 2)
    with pytest.raises(AssertionError, match="looks at other test nodes"):
        check_predictions(of)
    with pytest.raises(AssertionError, match="node"):
        check_joining(of)


def test_the_closed_form_does_look_at_the_whole_graph() -> None:
    """Its declaration is not idle."""
    method = eg.Analytic()
    of = learned(learner(method, epochs=1, dtype=torch.float64), 2)
    method.doubt_, method.access = -1.0, eg.Access(keeps=("statistics",))
    with pytest.raises(AssertionError, match="looks at other test nodes"):
        check_predictions(of)
    check_joining(of)


def told(name: str, level: str) -> eg.Access:
    return METHODS[name]().access_at(level)


def test_what_is_kept_is_called_after_the_examples() -> None:
    assert [told("reservoir", level).keeps for level in ("node", "graph", "link")] == [
        ("real nodes",), ("real graphs",), ("real links",),
    ]  # fmt: skip
    assert told("ewc", "graph") == eg.EWC.access
    both = Compose(METHODS["reservoir"](), eg.EWC())
    assert both.access_at("link").keeps == ("parameters", "real links")
    assert keeps_old_data({"access": both.access_at("link").as_dict()})


@pytest.mark.parametrize("name", ["analytic", "reservoir", "curvature"])
@pytest.mark.parametrize("level", ["graph", "link"])
def test_graphs_and_links_are_predicted_each_by_itself(name: str, level: str) -> None:
    """Nothing changes with who else is asked, nor with other graphs in the file; so nothing else is declared."""
    data = make_data(f"{level}-classification", 40)
    model = eg.RandomFeatures(hidden=60) if name == "analytic" else eg.GCN(hidden=4)
    of = eg.Learner(model, name, epochs=1, dtype=torch.float64, device="cpu")
    of.fit(stream := eg.TaskStream(data, 1))
    seen, asked = stream.seen(2), stream.seen(2).test[:5]
    alone = torch.cat([of.logits(seen.graph, [one]) for one in asked.tolist()])
    assert torch.allclose(alone, of.logits(seen.graph, seen.test)[:5], rtol=1e-8)
    if level == "graph":
        nodes = seen.graph.members.rows(asked).indices
        x = 5 * torch.randn_like(as_dense(seen.graph.x))
        x[nodes] = as_dense(seen.graph.x)[nodes]
        assert torch.allclose(alone, of.logits(seen.graph.altered(x=x), asked), rtol=1e-6)
    assert other_test_nodes(told(name, level), "task", level) == "none"


def test_the_list_names_every_method_with_its_access() -> None:
    assert METHODS["joint"]().access.all_data
    assert [name for name, kind in METHODS.items() if kind().access.all_data] == ["joint"]
