"""Calibration and detection of unknown classes by a deployed learner, on real graphs.

`python -m benchmarks.deployed --data-root DATA [STREAM …]` learns each stream with `auto` at its defaults in three
random class orders, and writes `results/deployed/results.jsonl` and `table.md`, which keep what they have of other
streams. After every task but the last, on test
nodes of both test graphs, it measures

- the expected calibration error on the seen classes' test nodes, of raw and of calibrated outputs;
- AUROC of the next task's test nodes, whose classes are not learned yet, against those of seen classes, by the
  learner's score, by energy (−logsumexp of the outputs; Liu et al., NeurIPS 2020) and by the largest probability
  (Hendrycks and Gimpel, ICLR 2017);
- the fraction of the seen classes' test nodes above the threshold for 5 % false alarms, and of the next task's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

import evergraph as eg
from evergraph.evaluation import METRICS, roc_auc
from evergraph.training.evidence import strangeness
from evergraph.training.unknown import familiar_of

STREAMS = ("digits", "coauthor-cs", "amazon-computers", "corafull-knn", "blogcatalog", "actor", "squirrel-filtered",
           "chameleon-filtered")  # fmt: skip
FALSE_ALARMS = 0.05
FIGURES = ("ece_raw", "ece", "auroc", "auroc_energy", "auroc_probability", "false_alarms", "found")


def area(scores: Tensor, unknown: Tensor) -> float:
    """AUROC in percent of a score that is larger for unknown examples."""
    return roc_auc(scores.double().unsqueeze(1), unknown.double().unsqueeze(1), [0])


def measure(learner: eg.Learner, stream: eg.TaskStream, after: int, test_graph: str) -> dict[str, float]:
    """All figures after one task."""
    units, raw, strange, truth, unknown = len(learner.classes_), [], [], [], []
    for index in range(after + 2):
        graph, nodes = stream.tests(after + 1, index, test_graph)
        raw.append(learner.outputs(graph, nodes)[:, :units])
        strange.append(strangeness(learner, graph, nodes))
        truth.append(learner.problem.targets(graph, learner.classes_)[nodes])
        unknown.append(torch.full((nodes.numel(),), index > after))
    familiar = familiar_of(learner.records)
    assert familiar is not None
    outputs, new, labels = torch.cat(raw).double(), torch.cat(unknown), torch.cat(truth)
    score, error = familiar.score(torch.cat(strange)), METRICS["calibration-error"]
    above = score > familiar.threshold(FALSE_ALARMS)
    return {
        "ece_raw": error(outputs[~new], labels[~new], range(units)),
        "ece": error(outputs[~new] / learner.temperature, labels[~new], range(units)),
        "auroc": area(score, new),
        "auroc_energy": area(-outputs.logsumexp(1), new),
        "auroc_probability": area(-outputs.softmax(1).max(1).values, new),
        "false_alarms": 100 * float(above[~new].double().mean()),
        "found": 100 * float(above[new].double().mean()),
    }


def run(source: str, order: int, root: Path, hidden: int | None) -> list[dict[str, object]]:
    """Run one stream in one order; return a row for each test graph and task."""
    stream = eg.stream(source, data_root=root, order=f"random:{order}")
    learner = eg.Learner(eg.RandomFeatures(hidden=hidden), "auto") if hidden else eg.Learner("auto")
    rows: list[dict[str, object]] = []
    for after, task in enumerate(stream):
        learner.learn(task)
        if after + 1 < len(stream):
            for test_graph in ("task", "seen"):
                about = {"stream": source, "order": order, "after": after, "test_graph": test_graph}
                rows.append({**about, **measure(learner, stream, after, test_graph)})
    return rows


def table(rows: list[dict[str, object]]) -> str:
    """Markdown table of the means over orders and tasks."""
    lines = [
        "| stream | test graph | ECE raw | ECE calibrated | AUROC | energy | max probability | false alarms | found |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for key in dict.fromkeys((row["stream"], row["test_graph"]) for row in rows):
        chosen = [row for row in rows if (row["stream"], row["test_graph"]) == key]
        values = [f"{statistics.mean(float(str(row[name])) for row in chosen):.1f}" for name in FIGURES]
        lines.append(f"| {key[0]} | {key[1]} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all streams; write the rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="*", default=STREAMS)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=None, help="random features; the model's own number by default")
    parser.add_argument("--out", type=Path, default=Path("results/deployed"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.jsonl"
    known = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    rows: list[dict[str, object]] = [row for row in known if row["stream"] not in options.streams]
    for source in options.streams:
        for order in range(options.orders):
            begun = time.perf_counter()
            rows += run(source, order, options.data_root, options.hidden)
            print(f"{source}, order {order}: {time.perf_counter() - begun:.0f} s", flush=True)
            rows.sort(key=lambda row: STREAMS.index(str(row["stream"])) if row["stream"] in STREAMS else len(STREAMS))
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            (options.out / "table.md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
