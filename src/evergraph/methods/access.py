"""What a method keeps of earlier tasks and what it is told: declared by each method, printed beside its results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from evergraph.errors import unknown

KINDS = (
    "parameters",
    "statistics",
    "prototypes",
    "synthetic nodes",
    "real nodes",
    "real graphs",
    "real links",
    "graphs",
)


@dataclass(frozen=True)
class Access:
    """What a method keeps of earlier tasks and what it is told; only methods with equal access compare fairly.

    Args:
        keeps: what is kept of earlier tasks besides the model itself, a subset of `KINDS`. Parameters added to the
            model from task to task count too.
        old_labels: labels of earlier tasks are used again.
        task_identity: the task of a test example has to be known.
        transductive: a prediction may depend on test examples that the model does not read as neighbours: on the
            other requested examples, or on the graph as a whole.
        all_data: earlier tasks are read again in full (`Task.so_far`), on the graph used for testing, so training
            depends on the test graph.
    """

    keeps: tuple[str, ...] = ()
    old_labels: bool = False
    task_identity: bool = False
    transductive: bool = False
    all_data: bool = False

    def __post_init__(self) -> None:
        for kind in self.keeps:
            if kind not in KINDS:
                raise unknown("kind of thing kept", kind, KINDS)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON."""
        return {**asdict(self), "keeps": list(self.keeps)}

    @classmethod
    def union(cls, parts: Iterable[Access]) -> Access:
        """Return what several methods together keep and are told."""
        parts = list(parts)
        kept = {kind for part in parts for kind in part.keeps}
        return cls(
            tuple(kind for kind in KINDS if kind in kept),
            old_labels=any(part.old_labels for part in parts),
            task_identity=any(part.task_identity for part in parts),
            transductive=any(part.transductive for part in parts),
            all_data=any(part.all_data for part in parts),
        )

    def at(self, level: str) -> Access:
        """Return the access at a level: if examples are graphs or links, these are kept in place of nodes."""
        if level == "node":
            return self
        return replace(self, keeps=tuple(f"real {level}s" if kind == "real nodes" else kind for kind in self.keeps))

    def how_to_forget(self, title: str) -> str:
        """Return a one-line answer to a request to forget examples that the parameters were trained on."""
        kept = f", and it keeps {' and '.join(self.keeps)} of earlier tasks" if self.keeps else ""
        return (
            f"{title} cannot take examples back: its parameters were trained on them{kept}; "
            "learn anew without them, or use auto or analytic, which forget exactly"
        )
