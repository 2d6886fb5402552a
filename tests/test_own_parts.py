"""Methods, models, problems, metrics and so on of one's own: what they get wrong is one line, never a wrong number."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import evergraph as eg

# learned state


@dataclass(repr=False)
class Anchored(eg.Method):
    """Its state has a name without a trailing underscore."""

    name = "anchored"
    anchor: dict[str, torch.Tensor] = eg.state(dict, like="params", new="values")

    def end_task(self, context: eg.Context) -> None:
        self.anchor = eg.copy_params(context.model)


def test_what_is_declared_as_state_is_state_whatever_its_name(small_stream: eg.TaskStream, tmp_path: Any) -> None:
    learner = eg.Learner(eg.GCN(hidden=4), Anchored(), epochs=1)
    learner.learn(small_stream[0])
    learner.save(tmp_path)
    loaded = eg.Learner.load(tmp_path, method=Anchored())
    assert loaded.method.kept_bytes() == learner.method.kept_bytes() > 0
    loaded.grow(9)
    assert {name: value.shape for name, value in loaded.method.anchor.items()} == {
        name: value.shape for name, value in loaded.model.named_parameters()
    }


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"empty": {}}, "state: empty={} must be a function or a class"),
        ({"empty": dict, "like": "param"}, "state: like='param' must be none or one of: params"),
        ({"empty": dict, "new": "value"}, "state: new='value' must be one of: zeros, values"),
    ],
)
def test_state_that_is_declared_wrongly_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message.replace("{}", r"\{\}")):
        eg.state(**declared)
