"""Cases of parametrized tests."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: object, when: bool = True) -> Any:
    """A case that repeats a rule or takes long: `make test-all` runs it and the default suite does not."""
    return pytest.param(*values, marks=[pytest.mark.slow] if when else [])
