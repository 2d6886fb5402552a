"""LaTeX tables for papers (booktabs)."""

from __future__ import annotations

from collections.abc import Sequence

SIGNS = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
SIGNS |= {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "γ": r"$\gamma$",
    "–": "--",
    "−": "$-$",
    "±": r"$\pm$",
    "λ": r"$\lambda$",
}


def escape(text: str) -> str:
    """Escape text for LaTeX, character by character."""
    return "".join(SIGNS.get(sign, sign) for sign in text)


def tabular(columns: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A tabular of header lines and cells that are already LaTeX."""
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *head, r"\midrule"]
    lines += [" & ".join(row) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"
