"""Shared helpers for the tables of documentation pages: formatting, and insertion between marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> str:
    """A Markdown table; the first `names` columns are text, the others numbers."""
    lines = [head, ["---"] * names + ["--:"] * (len(head) - names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(value: Mapping[str, float]) -> str:
    """Format mean and standard deviation."""
    return f"{value['mean']:z.1f} ± {value['std']:.1f}".replace("-", "−")


def with_tables(page: str, tables: str) -> str:
    """Return a page with the tables inserted between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}"
