"""Selection of settings without old data: search spaces, proposals, trials that resume, and the rules that choose."""

from evergraph.experiments.selection.highest_score import HighestScore
from evergraph.experiments.selection.rule import SELECTION_RULES, Selection, SelectionRule, Trial
from evergraph.experiments.selection.rule_comparison import compare_rules
from evergraph.experiments.selection.space import Choices, Range, Space
from evergraph.experiments.selection.tuning import make_rule, make_rules, tune

# importing the rules registers them, in this order
# isort: off
from evergraph.experiments.selection.pseudo_stream import PseudoStream
from evergraph.experiments.selection.first_tasks import FirstTasks
from evergraph.experiments.selection.stability_decay import StabilityDecay
from evergraph.experiments.selection.current_task import CurrentTask
# isort: on

__all__ = [
    "SELECTION_RULES",
    "Choices",
    "CurrentTask",
    "FirstTasks",
    "HighestScore",
    "PseudoStream",
    "Range",
    "Selection",
    "SelectionRule",
    "Space",
    "StabilityDecay",
    "Trial",
    "compare_rules",
    "make_rule",
    "make_rules",
    "tune",
]
