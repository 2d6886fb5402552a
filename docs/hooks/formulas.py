"""Typesets formulas when the site is built: LaTeX in ```math fences becomes MathML, which browsers draw without a script."""

import re
from typing import Any

from latex2mathml.converter import convert

FENCE = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every fence by its formulas, one a line."""
    return FENCE.sub(lambda found: "\n".join(map(_typeset, found[1].strip().splitlines())), markdown)


def _typeset(formula: str) -> str:
    return f'<div class="formula">{convert(formula.removesuffix(chr(92) * 2).strip(), display="block")}</div>\n'
