"""Fine-tuning: the lower reference of every comparison."""

from dataclasses import dataclass

from evergraph.methods.base import METHODS, Method


@METHODS.register
@dataclass(repr=False)
class Finetune(Method):
    """Train on each task as it arrives, and do nothing against forgetting."""

    name = "finetune"
    family = "baseline"
    reference = "plain training on each task in turn"
    step_settings = ()
