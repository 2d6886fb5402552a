"""What launches Triton's kernels: a small C file for each of their signatures, compiled at the first launch.

Triton asks for all optimizations, and waits half a second for each of some twenty files. A launch takes microseconds
either way, and captured steps launch nothing. Imported where Triton is at hand.
"""

from __future__ import annotations

import inspect
from typing import Any

from triton import knobs
from triton.runtime import build


def build_without_optimizations() -> None:
    """From now on launchers are compiled without optimizations; not where somebody else has said how they are."""
    if knobs.build.impl is None and "ccflags" in inspect.signature(build._build).parameters:
        knobs.build.impl = _built


def _built(*source_and_places: Any) -> str:
    """Triton's own way, with one word more for the compiler, which goes by the last."""
    knobs.build.impl = None
    try:
        module: str = build._build(*source_and_places, ccflags=["-O0"])
        return module
    finally:
        knobs.build.impl = _built
