"""Settings are declared by annotations, and every constructor checks them."""

import copy
import inspect
import math
import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pytest
import torch

import evergraph as eg
from evergraph.core.settings import checked, settings_of
from evergraph.experiments.selection import FirstTasks

if TYPE_CHECKING:
    from nowhere import Missing

REFUSED = {
    "EWC: strength=-1 must be a finite number of at least 0": lambda: eg.EWC(strength=-1),
    "EWC: strength=nan must be": lambda: eg.EWC(strength=math.nan),
    "EWC: strength=inf must be": lambda: eg.EWC(math.inf),
    "EWC: strength=True must be": lambda: eg.EWC(True),
    "EWC: labels='guess' must be one of: empirical, sample, pred, exact": lambda: eg.EWC(labels="guess"),
    "OnlineEWC: decay=2 must be a finite number of at least 0 and at most 1": lambda: eg.OnlineEWC(decay=2),
    "unknown setting of EWC 'strenght'": lambda: eg.EWC(strenght=1),
    "Training: epochs='5' must be a whole number of at least 0": lambda: eg.Training(epochs="5"),
    "Training: lr=inf must be a finite number above 0": lambda: eg.Training(lr=math.inf),
    "Training: epochs=5.0 must be": lambda: eg.Training(epochs=5.0),
    "Training: fan_out=.1, 0. must be None or a list": lambda: eg.Training(fan_out=[1, 0]),
    "and below 2.63": lambda: eg.Training(epochs=10**30),
    "Training: epochs=<int> must be": lambda: eg.Training(epochs=10**6000),
    "GCN: hidden=0 must be a whole number of at least 1": lambda: eg.GCN(hidden=0),
    "GCN: hidden=True must be": lambda: eg.GCN(hidden=True),
    "GAT: heads=0 must be": lambda: eg.GAT(heads=0),
    "GraphSAGE: dropout=1.5 must be a finite number of at least 0 and below 1": lambda: eg.GraphSAGE(dropout=1.5),
    "FirstTasks: tasks=1 must be a whole number of at least 2": lambda: FirstTasks(tasks=1),
    "Learner: seed=-1 must be": lambda: eg.Learner(seed=-1),
    "Learner: num_classes=0 must be": lambda: eg.Learner(num_classes=0),
    "Learner: dtype=torch.float16 must be torch.float32 or torch.float64": lambda: eg.Learner(dtype=torch.float16),
    "Learner: model=5 must be": lambda: eg.Learner(5),
    "sbm: homophily=2.0 must be": lambda: eg.stream("sbm:homophily=2"),
    "sbm: nodes='many' must be a whole number": lambda: eg.stream("sbm:nodes=many"),
    "stream: min_class_size=-1 must be": lambda: eg.stream("sbm", min_class_size=-1),
    "stream: classes_per_task=0 must be": lambda: eg.stream("sbm", classes_per_task=0),
    "RunSpec: seeds=.. must be a list that is not empty, each item a whole number of at least 0 and below "
    "4,294,967,296": lambda: eg.RunSpec("sbm", seeds=[]),
    "EWC: strength=-1.0 must be": lambda: eg.make_method("ewc", {"strength": "-1"}),
    "ewc: strength='x' must be a finite number of at least 0": lambda: eg.make_method("ewc", {"strength": "x"}),
    "Auto: balance=1000000000000.0 must be a finite number of at least 0 and at most 2": lambda: eg.Auto(balance=1e12),
    "gcn: hidden='1e3' must be a whole number": lambda: eg.make_model("gcn", hidden="1e3"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_constructor_names_class_setting_value_and_range(message):
    with pytest.raises(eg.EvergraphError, match=message) as caught:
        REFUSED[message]()
    assert "\n" not in str(caught.value)


NUMBERS = [
    pytest.param(kind, key, id=f"{kind.__name__}.{key}")
    for kinds in (eg.registry.methods, eg.registry.models, eg.registry.selection_rules)
    for kind in kinds.values()
    if kind.__module__.startswith("evergraph")
    for key, default in settings_of(kind).items()
    if isinstance(default, (int, float, str))
]


@pytest.mark.parametrize(("kind", "key"), NUMBERS)
def test_no_setting_takes_what_is_not_finite_or_of_another_type(kind, key):
    """Numbers, choices and truth values of everything registered: no place has to remember a check."""
    for value in (math.nan, math.inf, -math.inf, [], "nonsense", None, 10**400):
        if (key, value) == ("scales", []):  # a list of columns, which may have none
            continue
        with pytest.raises(eg.EvergraphError, match=rf"{key}="):
            kind(**{key: value})


def test_numbers_of_numpy_and_lists_are_taken_as_they_are_declared():
    training = eg.Training(epochs=np.int64(3), lr=np.float32(0.5), fan_out=[2, 3])
    assert (type(training.epochs), type(training.lr), training.fan_out) == (int, float, (2, 3))
    assert eg.EWC(1).hyperparameters() == eg.make_method("ewc", {"strength": "1"}).hyperparameters()


@dataclass(repr=False)
class Foreign(eg.Method):
    """As another package may write it: a default beyond its own declaration, a name that cannot be resolved."""

    name = "foreign"
    limit: float = math.inf
    thing: "Missing" = None
    anything: object = None
    angle: Annotated[float, eg.Bounds(above=-1, at_most=1)] = 0.0
    reading: Literal["a", "b"] = "a"


def test_methods_of_other_packages_keep_working():
    assert Foreign().limit == math.inf
    assert Foreign(limit=math.inf, thing=5, anything="x").thing == 5
    assert Foreign(angle=1).angle == 1
    for settings in ({"angle": -1}, {"reading": "c"}, {"limit": math.nan}):
        with pytest.raises(eg.EvergraphError, match=r"Foreign: .* must be"):
            Foreign(**settings)


class Plain(eg.Method):
    """Neither a dataclass nor declared."""

    def __init__(self, strength=1.0):
        self.strength = strength


def test_arguments_without_annotations_are_not_checked():
    assert Plain("anything").strength == "anything"
    assert Plain().hyperparameters() == {"strength": 1.0}


def test_constructors_show_their_own_signature_and_objects_copy():
    assert list(inspect.signature(eg.EWC).parameters) == ["strength", "labels", "fisher", "reduction"]
    assert list(inspect.signature(eg.Method).parameters) == []
    method = eg.EWC(strength=3)
    assert copy.deepcopy(method).strength == pickle.loads(pickle.dumps(method)).strength == 3.0
    with pytest.raises(eg.EvergraphError, match="lr=0"):
        replace(eg.Training(), lr=0)


def test_functions_are_checked_by_the_same_declarations():
    @checked
    def half(number: eg.Positive) -> float:
        return number / 2

    assert half(3) == 1.5
    with pytest.raises(eg.EvergraphError, match="half: number=0 must be a finite number above 0"):
        half(0)
    with pytest.raises(eg.EvergraphError, match="half: missing"):
        half()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ewc++", ["ewc++"]),
        ("ema+ewc++", ["ema", "ewc++"]),
        ("ewc+++lwf", ["ewc++", "lwf"]),
        ("ewc+ewc+++ema", ["ewc", "ewc++", "ema"]),
    ],
)
def test_names_with_a_plus_can_be_composed(name: str, parts: list[str]) -> None:
    made = eg.make_method(name)
    assert [part.name for part in made.parts()] == parts
    assert made.title == name
    assert eg.make_method(name, {"ewc++.decay": 0.5}).parts()[parts.index("ewc++")].decay == 0.5


@pytest.mark.parametrize(("name", "culprit"), [("ewc+lfw", "lfw"), ("wec+lwf", "wec"), ("ewc++lwf", r"\+lwf")])
def test_an_unknown_part_is_named(name: str, culprit: str) -> None:
    with pytest.raises(eg.EvergraphError, match=f"unknown method '{culprit}'"):
        eg.make_method(name)
