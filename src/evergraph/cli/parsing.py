"""Parsing of option values: lists of names and numbers, and settings."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence

from evergraph.data import ClassName
from evergraph.errors import EvergraphError
from evergraph.experiments.comparison import check_names


def class_names(texts: list[str] | None, option: str = "--classes") -> list[str] | None:
    """Parse the values of an option that may be repeated, each of them comma-separated names; None if there is none.

    A name that contains a comma is in double quotes, as in a CSV file.
    """
    if not texts:
        return None
    parts = (part for text in texts for part in next(csv.reader([text], skipinitialspace=True), []))
    names = [name.strip() for name in parts if name.strip()]
    if not names:
        raise EvergraphError(f"{option} is empty; give names with commas, e.g. {option} 3,5")
    return names


def listed(names: Iterable[ClassName], most: int = 8) -> str:
    """Names as messages show them, at most the first `most`."""
    shown = [repr(name) if isinstance(name, str) else str(name) for name in names]
    rest = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + rest


def parse_settings(items: list[str] | None, option: str = "--set") -> dict[str, str]:
    """Parse `KEY=VALUE` items into a dictionary."""
    settings: dict[str, str] = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise EvergraphError(f"{option} {item!r} is not KEY=VALUE, e.g. {option} strength=0.1")
        if key in settings:
            raise EvergraphError(f"{option} {key} is given twice ({settings[key]!r} and {value!r}); leave one out")
        settings[key] = value
    return settings


def parse_fan_out(text: str | None) -> tuple[int, ...] | None:
    """Parse comma-separated numbers such as `10,25`."""
    if text is None:
        return None
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise EvergraphError(f"--fan-out {text!r} is not a list of numbers; e.g. 10,25") from None


def separate(items: Sequence[str]) -> list[str]:
    """Names given one by one or comma-separated."""
    return [name.strip() for item in items for name in item.split(",") if name.strip()]


def names_of(kind: str, items: Sequence[str]) -> list[str]:
    """Names given one by one or comma-separated, without duplicates; raises if there is none."""
    return check_names(kind, separate(items))


def parse_order(text: str) -> str | list[str]:
    """Parse the name of an order, or comma-separated class names."""
    return text.split(",") if "," in text else text
