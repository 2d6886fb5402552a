"""Tells the API reference that fields made by `state(…)` are learned, and no arguments of a constructor."""

from typing import Any

import griffe


class StateFields(griffe.Extension):
    """Takes such fields out of the signatures of dataclasses."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """A field that is no instance attribute is left out of the signature."""
        if isinstance(attr.value, griffe.ExprCall) and str(attr.value.function) == "state":
            attr.labels.discard("instance-attribute")
