"""Effect of a task's first steps on old classes: `python -m benchmarks.first_steps amazon-computers --data-root DATA`.

The first two tasks of a stream's pseudo-stream are learned with `stand-in-curvature`. At some steps of the second, a
line gives the loss, the percentage of the first task's nodes that are still assigned to one of its classes (judged by
their stand-ins), and how far the parameters have moved.
"""

from __future__ import annotations

import argparse

import torch

from evergraph.data import stream
from evergraph.methods import StandInCurvature
from evergraph.methods.online_curvature.class_means import mean_batch
from evergraph.models import GCN
from evergraph.training.learner import Learner
from evergraph.training.member import Progress

STEPS = (1, 2, 3, 5, 10, 20, 30, 60, 100, 200, 300)


def learn_two_tasks(name: str, method: StandInCurvature, warm_up: float, seed: int, data_root: str | None) -> None:
    """Learn both tasks, and print how much of the first is retained during the second."""
    tasks = stream(name, data_root=data_root, seed=seed, pseudo_stream=True)
    model = GCN(hidden=256)
    torch.manual_seed(seed)
    options = {"label_scope": "seen", "reduction": "mean", "weight_decay": 0.0, "lr": 1e-3, "batch_size": 0}
    learner = Learner(model, method, epochs=STEPS[-1], warm_up=warm_up, device="cpu", seed=seed, **options)
    learner.learn(tasks[0])
    anchor = {key: value.detach().clone() for key, value in model.named_parameters()}
    old_units = method.stand_ins_["units"].unique()

    @torch.no_grad()
    def look(progress: Progress, epochs: int) -> None:
        if progress.epoch not in STEPS:
            return
        batch, counts = mean_batch(learner.problem, model, method.stand_ins_["x"], torch.device("cpu"))
        model.eval()
        kept = torch.isin(model(batch).argmax(1), old_units)
        model.train()
        away = sum(float((value - anchor[key]).square().sum()) for key, value in model.named_parameters()) ** 0.5
        share = 100 * float(counts[kept].sum() / counts.sum())
        loss = progress.log[-1]["loss"]
        print(f"  step {progress.epoch:3d}: loss {loss:.2f}, {share:5.1f} % still old, |D| {away:.2f}", flush=True)

    learner.learn(tasks[1], on_epoch=look)
    print("  accuracies:", [round(value, 1) for value in learner.evaluate(tasks).accuracies], flush=True)


def main() -> None:
    """Print a block of lines for each estimator and warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream")
    parser.add_argument("--strength", type=float, default=0.3)
    parser.add_argument("--estimators", default="exact,integrated")
    parser.add_argument("--warm-ups", default="0,0.1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data-root", help="folder of the datasets")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for estimator in asked.estimators.split(","):
        for warm_up in map(float, asked.warm_ups.split(",")):
            print(f"{estimator}, strength {asked.strength:g}, warm-up {warm_up:g}", flush=True)
            method = StandInCurvature(strength=asked.strength, estimator=estimator, prototypes=64)
            learn_two_tasks(asked.stream, method, warm_up, asked.seed, asked.data_root)


if __name__ == "__main__":
    main()
