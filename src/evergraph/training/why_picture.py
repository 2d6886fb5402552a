"""Pictures of explanations: bars for the nodes and features that contribute to a prediction."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from evergraph.errors import EvergraphError
from evergraph.persistence.files import write_atomically

if TYPE_CHECKING:
    from evergraph.training.why import Explanation

FOR, AGAINST = "#0072b2", "#d55e00"  # Okabe and Ito's blue and vermilion
FORMATS = {".png", ".pdf", ".svg"}


def draw(explanation: Explanation, path: str | Path, most: int) -> None:
    """Draw the `most` largest amounts of an explanation into a file."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise EvergraphError(f"{path}: cannot tell the format; end the name in {', '.join(sorted(FORMATS))}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.4 + 0.32 * most), layout="constrained")
    axes = figure.subplots(1, 2)
    for place, title, amounts in zip(axes, ("nodes", "features"), (explanation.neighbours, explanation.features)):
        shown = amounts[:most]
        rest = sum(amount for _, amount in amounts[most:])
        rows = [*shown, *([(f"{len(amounts) - most} others", rest)] if len(amounts) > most else [])][::-1]
        values = [amount for _, amount in rows]
        place.barh(range(len(rows)), values, color=[FOR if value > 0 else AGAINST for value in values])
        place.set_yticks(range(len(rows)), [str(name).replace("$", r"\$")[:24] for name, _ in rows])
        place.axvline(0, color="black", linewidth=0.8)
        place.set_title(title)
        place.set_xlabel(f"adds to the {explanation.quantity}")
    total = f"{explanation.quantity}{explanation.compared} {explanation.logit:.3g}"
    title = f"{explanation.headline}\n{total} = constant {explanation.constant:+.2g} and the bars of either side"
    figure.suptitle(title.replace("$", r"\$"), fontsize=11)
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=120)
    write_atomically(path, content.getvalue())
