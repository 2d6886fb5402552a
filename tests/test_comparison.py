"""Several test graphs and settings in one comparison: one training run for all that it can serve."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evergraph as eg
from evergraph.experiments import told
from evergraph.experiments.comparison import (
    cell_key,
    markdown,
    settings_apart,
    settings_by_method,
    stream_titles,
    table_rows,
    training_groups,
    variations,
)
from evergraph.experiments.method_table import method_table
from evergraph.experiments.result_file import each_test_graph, stored_keys
from evergraph.experiments.run_folder import default_folder
from evergraph.methods import METHODS, make_method
from graph_files import npz_parts

SMALL = "sbm:nodes=120,classes=6,degree=4,features=8,signal=3"
QUICK = ["--epochs", "2", "--hidden", "16", "--device", "cpu"]
GRAPHS = ["task", "seen", "node"]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, evergraph: Call, tmp_path: Path, without_pictures: None) -> Call:
    """The command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return evergraph


def printed(answer: tuple[int, str, str]) -> Any:
    status, out, err = answer
    assert status == 0, err
    return json.loads(out)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The method of every task that is learned."""
    learn, seen = eg.Learner.learn, []

    def counted(self: eg.Learner, *given: Any, **more: Any) -> Any:
        seen.append(self.method.title)
        return learn(self, *given, **more)

    monkeypatch.setattr(eg.Learner, "learn", counted)
    return seen


def test_one_training_run_serves_all_test_graphs_and_gives_the_numbers_of_several(
    call: Call, trainings: list[str], tmp_path: Path
) -> None:
    words = ["compare", SMALL, "--methods", "ewc,auto,joint", "--seeds", 1, "--json", *QUICK]
    together = printed(call(*words, "--test-graph", "task,seen", "--test-graph", "node", "--out", "here"))
    # 3 tasks; joint training joins the tasks as its test graph does, so it is trained once more
    assert {name: trainings.count(name) for name in set(trainings)} == {"ewc": 3, "auto": 3, "joint": 6}
    cells = sorted(path.parent.name for path in (tmp_path / "here").rglob("result.json"))
    assert cells == ["auto", "ewc", "joint", "joint"]
    found = {(r["method"], r["protocol"]["test_graph"]): r for r in together["results"]}
    assert set(found) == {(method, graph) for method in ("ewc", "auto", "joint") for graph in GRAPHS}
    for graph in ("seen", "node"):
        for one in printed(call(*words, "--test-graph", graph, "--out", graph))["results"]:
            same = found[one["method"], graph]
            for key in ("matrices", "ap", "af", "leak", "test_nodes_read", "access", "kept_bytes", "model_bytes"):
                assert same[key] == one[key], (graph, one["method"], key)
    assert [(row["test_graph"], row["method"]) for row in together["table"]] == [
        (graph, method) for graph in GRAPHS for method in ("ewc", "auto", "joint")
    ]
    assert found["auto", "seen"]["matrices"] != found["auto", "node"]["matrices"]
    again = printed(call(*words, "--test-graph", "task,seen,node", "--out", "here", "--resume"))
    assert [one["matrices"] for one in again["results"]] == [one["matrices"] for one in together["results"]]


def test_a_run_takes_several_test_graphs_and_says_what_they_give_away(call: Call) -> None:
    words = [
        "run",
        SMALL,
        "--method",
        "auto",
        "--seeds",
        2,
        "--hidden",
        16,
        "--test-graph",
        "task",
        "--test-graph",
        "node",
    ]
    result = printed(call(*words, "--json"))
    assert result["protocol"]["test_graph"] == "task"
    assert list(result["also_tested"]) == ["node"]
    for seed in range(2):
        stream = eg.stream(SMALL, seed=seed)
        assert result["leak"]["values"][seed] == pytest.approx(eg.leak_score(stream, "task"))
        assert result["also_tested"]["node"]["leak"]["values"][seed] == pytest.approx(eg.leak_score(stream, "node"))
    assert result["leak"]["chance"] == pytest.approx(100 / 3)
    assert (result["test_nodes_read"], result["also_tested"]["node"]["test_nodes_read"]) == ("all", "none")
    assert result["access"] == METHODS["auto"]().access.as_dict()
    assert [len(kept) for kept in result["kept_bytes"]] == [3, 3]
    status, out, _ = call(*words)
    assert status == 0
    text = " ".join(out.split())
    assert "test graph task; leak score" in text
    assert "test graph node; leak score" in text
    assert "(chance 33.3)" in text
    assert "statistics; all test" in text


def test_with_the_task_known_nothing_leaks(call: Call) -> None:
    result = printed(call("run", SMALL, "--method", "finetune", "--task-incremental", "--json", *QUICK))
    assert result["leak"] is None


def test_joint_training_refuses_a_run_on_test_graphs_that_it_would_train_for_differently(call: Call) -> None:
    status, _, err = call("run", SMALL, "--method", "joint", "--test-graph", "task,seen", *QUICK)
    assert status == 2
    assert "joint trains on the graph that tests run on, and one run cannot serve test graphs task and seen" in err
    assert err.count("\n") == 1
    assert training_groups("joint", {}, GRAPHS) == [["task"], ["seen", "node"]]
    assert training_groups("ema+ewc", {}, GRAPHS) == [GRAPHS]
    status, _, err = call("run", SMALL, "--test-graph", "task,nodes", *QUICK)
    assert status == 2
    assert "unknown test graph 'nodes'; choose one of: task, seen, node" in err


def test_a_setting_at_several_values_is_several_rows_of_the_methods_that_have_it(call: Call, tmp_path: Path) -> None:
    words = ["compare", SMALL, "--methods", "finetune,stand-in-curvature", "--vary", "prototypes=0,3", "--seeds", 1]
    found = printed(call(*words, "--test-graph", "task,node", "--out", "here", "--json", *QUICK))
    lines = [json.loads(line) for line in (tmp_path / "here/results.jsonl").read_text().splitlines()]
    keys = ["finetune", "stand-in-curvature@prototypes=0", "stand-in-curvature@prototypes=3"]
    assert [line["key"] for line in lines] == keys
    rows = [row for row in found["table"] if row["test_graph"] == "node"]
    assert [row["settings"] for row in rows] == [{}, {"prototypes": 0}, {"prototypes": 3}]
    assert rows[0]["kept_bytes"] == 0 < rows[1]["kept_bytes"] < rows[2]["kept_bytes"]
    table = (tmp_path / "here/table.md").read_text()
    assert "stand-in-curvature (prototypes=3)" in table
    assert "| leak |" in table
    status, _, err = call(*words[:4], "--vary", "memory=1,2", *QUICK)
    assert (status, "unknown setting of finetune, stand-in-curvature 'memory'" in err) == (2, True)


@pytest.mark.parametrize("turn", [1, -1])
def test_the_most_specific_key_sets_a_setting(turn: int) -> None:
    """Whatever the order of the keys, in a method of its own and in a composed one."""
    settings = {"strength": "5", "ewc.strength": "100", "ema+mas.strength": "7", "mas.strength": "8"}
    methods = ["ewc", "ewc+ema", "si", "ema+mas", "ewc+mas"]
    shares = settings_by_method(methods, dict(list(settings.items())[::turn]))
    assert shares["ewc"] == {"strength": "100"}
    assert shares["ewc+ema"] == {"ewc.strength": "100"}
    assert shares["si"] == {"strength": "5"}
    assert shares["ema+mas"] == {"strength": "7"}
    made = [make_method(name, share) for name, share in shares.items()]
    strengths = [[part.strength for part in method.parts() if part.name != "ema"] for method in made]
    assert strengths == [[100], [100], [5], [7], [100, 8]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--set", "ewc.strength=100", "--vary", "strength=1,10"],
            "--vary strength: ewc.strength=100 fixes it for ewc; ",
        ),
        (
            ["--set", "strength=100", "--vary", "strength=1,10"],
            "--vary strength: strength=100 fixes it; leave one",
        ),
        (
            ["--set", "ema+ewc.lr=1", "--vary", "ema+ewc.lr=2,3"],
            "--vary ema+ewc.lr: ema+ewc.lr=1 fixes it; leave",
        ),
        (["--vary", "strength=100,1,100"], "--vary strength: 100 is given twice; leave one out"),
        (["--vary", "strength=100,1e2"], "--vary: ewc@strength=100 and ewc@strength=1e2 are the same run"),
        (["--vary", "ewc.epochs=1,01"], "--vary: ewc@epochs=1 and ewc@epochs=01 are the same run"),
    ],
)
def test_what_is_varied_differs_and_is_not_fixed(call: Call, tmp_path: Path, words: list[str], message: str) -> None:
    status, _, error = call("compare", SMALL, "--methods", "ewc,ema+ewc", *words, *QUICK, "--out", "here")
    assert (status, error.count("\n")) == (2, 1)
    assert message in error
    assert not (tmp_path / "here").exists()


def test_a_setting_of_all_methods_may_be_varied_for_one(call: Call) -> None:
    words = ["compare", SMALL, "--methods", "ewc,mas", "--set", "strength=5", "--vary", "ewc.strength=1,2"]
    found = printed(call(*words, "--seeds", 1, *QUICK, "--json"))
    strengths = [(one["method"], one["hyperparameters"]["strength"]) for one in found["results"]]
    assert strengths == [("ewc", 1), ("ewc", 2), ("mas", 5)]


def test_a_table_is_named_after_its_nodes(tmp_path: Path) -> None:
    table, other = "/data/people.csv:edges=/data/follows.csv", "sbm:nodes=60,homophily=0.9"
    assert stream_titles([table, other, "/data/a.npz"]) == {table: "people", other: other, "/data/a.npz": "a"}
    same = [table, f"{table},label=role", "/data/a:b.npz"]
    assert stream_titles(same) == {table: table, same[1]: same[1], "/data/a:b.npz": "a:b"}
    assert default_folder(table, "ewc").name.startswith("people-ewc-")
    axes = {"stream": [table, other], "order": ["labelled"], "method": ["ewc"]}
    keys = [cell_key(axes, {"stream": source, "order": "labelled", "method": "ewc"}) for source in axes["stream"]]
    assert keys == ["people/ewc", "sbm-nodes=60,homophily=0.9/ewc"]
    spec = eg.RunSpec(source=table, method="ewc")
    stored = {"follows.csv/ewc": {"spec": spec.as_dict()}}  # as earlier versions named it
    assert list(stored_keys({keys[0]: spec}, stored, tmp_path)) == ["follows.csv/ewc"]


def test_a_key_is_a_path_that_file_systems_accept(call: Call, tmp_path: Path) -> None:
    words = [f"class {number} with a rather long name" for number in range(12)]
    orders = [",".join(words), ",".join(reversed(words)), ",".join([*words[:10], words[11], words[10]])]
    parts = {"stream": ["digits"], "order": orders, "method": ["ewc"]}
    keys = [cell_key(parts, {"stream": "digits", "order": order, "method": "ewc"}) for order in orders]
    assert len(set(keys)) == 3
    assert all(len(name.encode()) < 255 for key in keys for name in key.split("/"))


def test_names_that_are_one_as_folders_are_two_cells(call: Call, tmp_path: Path) -> None:
    files = ["a/b/x.npz", "a-b/x.npz"]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True)
        graph = eg.stream(SMALL).graph
        np.savez(tmp_path / file, **npz_parts(graph, graph.x.numpy()))
    found = printed(call("compare", *files, "--methods", "finetune", "--seeds", "1", *QUICK, "--json", "--out", "two"))
    assert [one["stream"] for one in found["results"]] == files


def test_variations_are_all_ways_to_choose() -> None:
    assert variations({}) == [{}]
    assert variations({"a": ["1", "2"], "b": ["3"]}) == [{"a": "1", "b": "3"}, {"a": "2", "b": "3"}]


def test_a_part_of_a_composed_method_is_named_by_its_own_settings() -> None:
    def one(memory: str, strength: float) -> dict[str, Any]:
        parts = {"0.ssm": {"memory": memory, "strength": strength}, "1.ewc": {"strength": 2.0}}
        return {"stream": "a", "method": "ssm+ewc", "hyperparameters": parts, "protocol": {}}

    results = [one("1KB", 1.0), one("2KB", 3.0)]
    assert settings_apart(results, {"ssm+ewc": {"ssm.strength"}}) == [{"ssm.memory": "1KB"}, {"ssm.memory": "2KB"}]


def test_what_is_varied_sets_rows_apart_and_what_was_tuned_does_not() -> None:
    def one(method: str, strength: float, lr: float, stream: str = "a") -> dict[str, Any]:
        also = {"node": {"matrices": [[[50.0]]]}}
        protocol = {"test_graph": "task", "order": "labelled", "lr": lr}
        return {"stream": stream, "method": method, "hyperparameters": {"strength": strength}, "model": {"hidden": 4},
                "protocol": protocol, "seeds": [0], "matrices": [[[60.0]]], "also_tested": also}  # fmt: skip

    results = [one("ewc", 1, 0.1), one("ewc", 5, 0.2), one("mas", 3, 0.3), one("mas", 7, 0.1, stream="b")]
    assert settings_apart(results) == [{"strength": 1, "lr": 0.1}, {"strength": 5, "lr": 0.2}, {}, {}]
    tuned = {"ewc": {"lr"}, "mas": {"strength", "lr"}}
    assert settings_apart(results, tuned) == [{"strength": 1}, {"strength": 5}, {}, {}]
    table = method_table(results, tuned=tuned)
    assert table.columns == ["a, task", "a, node", "b, task", "b, node"]
    assert list(table.rows) == ["ewc (strength=1)", "ewc (strength=5)", "mas"]
    assert [entry and entry.values for entry in table.rows["mas"]] == [[60.0], [50.0], [60.0], [50.0]]
    assert table.rows["ewc (strength=1)"][2] is None


def test_a_model_that_grows_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def adapt(self: eg.Method, model: eg.GraphModel, task: eg.Task) -> None:
        if not hasattr(model, f"prompt_{task.index}"):
            model.register_parameter(f"prompt_{task.index}", torch.nn.Parameter(torch.zeros(5)))

    monkeypatch.setattr(eg.Finetune, "adapt_model", adapt)
    training = eg.Training(epochs=1)
    spec = eg.RunSpec(SMALL, method="finetune", model_settings={"hidden": 4}, training=training, device="cpu")
    result = eg.run(spec, tmp_path / "run")
    assert result["kept_bytes"] == [[0, 20, 40]]
    assert [b - a for a, b in zip(result["model_bytes"][0], result["model_bytes"][0][1:])] == [20, 20]


def test_each_test_graph_of_a_result_has_its_own_numbers_alone() -> None:
    result = {
        "protocol": {"test_graph": "task", "lr": 1},
        "ap": 1,
        "leak": {"mean": 100},
        "test_nodes_read": "all",
        "also_tested": {"node": {"ap": 2, "test_nodes_read": "none"}},
    }
    one, two = each_test_graph(result)
    assert (one["ap"], one["leak"], one["protocol"]["test_graph"]) == (1, {"mean": 100}, "task")
    assert (two["ap"], two.get("leak"), two["protocol"]) == (2, None, {"test_graph": "node", "lr": 1})
    assert one["also_tested"] == two["also_tested"] == {}


def test_words_for_what_is_kept_and_used() -> None:
    assert told.other_test_nodes(eg.Access(transductive=True), "task") == "all"
    assert told.other_test_nodes(eg.Access(transductive=True), "node") == "none"
    assert told.other_test_nodes(eg.Access(), "seen") == "neighbours"
    everything = {"keeps": ["graphs"], "old_labels": True, "task_identity": True, "all_data": True}
    row = {"access": everything, "test_nodes_read": "all"}
    assert told.uses(row) == "old labels, task identity, all data, all test nodes"
    assert (told.keeps(row), told.keeps({}), told.uses({})) == ("graphs", "nothing", "–")
    assert [told.show_bytes(n) for n in (None, 0, 999, 1000, 2_500_000)] == ["–", "0 B", "999 B", "1.0 kB", "2.5 MB"]
    assert told.bytes_kept({"kept_bytes": [[1, 5], [1, 7]]}) == 7


def test_results_of_earlier_versions_have_rows_too() -> None:
    metrics = {key: {"mean": 1.0, "std": 0.0, "values": [1.0]} for key in ("ap", "af")}
    old = {"stream": "s", "method": "ewc", "protocol": {"test_graph": "task"}, "metrics": metrics, "seeds": [0]}
    (row,) = table_rows([{**old, "seconds": 1.0, "kept_bytes": [[3]], "access": {"keeps": ["parameters"]}}])
    assert (row["leak"], row["kept_bytes"], row["settings"]) == (None, 3, {})
    assert "| s | task | – | ewc | 1.00 | 1.00 | 1 |" in markdown([row])


def test_the_leak_command(call: Call) -> None:
    rows = printed(call("leak", SMALL, "--seeds", 2, "--json"))
    assert [row["test_graph"] for row in rows] == GRAPHS
    for row in rows:
        scores = [eg.leak_score(eg.stream(SMALL, seed=seed), row["test_graph"]) for seed in range(2)]
        assert row["leak"]["values"] == pytest.approx(scores)
    status, out, _ = call("leak", SMALL, "--seeds", 1)
    assert (status, "leak score (%)" in out) == (0, True)
    status, _, err = call("leak", "nowhere")
    assert (status, "unknown stream 'nowhere'" in err) == (2, True)


def test_the_list_of_methods_says_family_reference_and_access(call: Call) -> None:
    for row in printed(call("methods", "--json")):
        assert row["family"]
        assert row["reference"]
        assert row["access"] == METHODS[row["name"]]().access.as_dict()
        assert set(row["access"]) == {"keeps", "old_labels", "task_identity", "transductive", "all_data"}
