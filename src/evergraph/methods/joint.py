"""Joint training: the upper end of every comparison."""

from dataclasses import dataclass

from evergraph.methods.base import Context, Method


@dataclass(repr=False)
class Joint(Method):
    """Train anew on all tasks so far, with all their data kept. What continual learning is measured against."""

    name = "joint"
    family = "baseline"
    reference = "training from scratch on all data so far"
    joint = True

    def start_task(self, context: Context) -> None:
        """Forget the parameters: each task is learned together with all before it, from the start."""
        context.model.reset_parameters()
