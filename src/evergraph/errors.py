"""The one error that reaches people, and the one warning: a single line that names the value and the fix."""

import re
import warnings
from collections.abc import Iterable

OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|can't allocate|unable to allocate|bad_alloc", re.IGNORECASE
)


class EvergraphError(ValueError):
    """Bad input. The message is one line; the command line prints it and exits with status 2."""

    def __init__(self, message: object = "") -> None:
        super().__init__("\\n".join(str(message).splitlines()))  # a name may hold line breaks


class DivergedError(EvergraphError):
    """A model whose loss or parameters are no longer finite numbers."""


class EvergraphWarning(UserWarning):
    """How an input was read that could be read in two ways. One line; the command line prints it on stderr."""


def tell(message: str) -> None:
    """Say in one line what was done with an input; from one place in a program, once."""
    warnings.warn(message, EvergraphWarning, stacklevel=3)


def unknown(kind: str, name: object, choices: Iterable[str]) -> EvergraphError:
    """The error for a name that is not on the list: says what the list is."""
    return EvergraphError(f"unknown {kind} {shown(name)}; choose one of: {', '.join(choices)}")


def no_such_class(graph: str, level: str, name: object, choices: Iterable[object]) -> EvergraphError:
    """The error for a class that no example of a graph has."""
    listed = ", ".join(map(str, choices)) or "none"
    return EvergraphError(f"{graph} has no labelled {level} of class {shown(str(name))}; its classes are: {listed}")


def one_of(kind: str, value: str, choices: Iterable[str]) -> str:
    """`value` if it is one of `choices`, else the error above."""
    choices = tuple(choices)
    if value not in choices:
        raise unknown(kind, value, choices)
    return value


def shown(value: object, length: int = 60) -> str:
    """A value as Python writes it, cut where it is long; never an error itself."""
    try:
        text = repr(value)
    except Exception:  # a whole number of thousands of digits; an object whose repr is broken
        return f"<{type(value).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 3]}..."


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, as Python, NumPy and torch each put it."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and bool(OUT_OF_MEMORY.search(str(error)))
    )


def first_line(error: Exception) -> str:
    """The first line of another library's error, short enough to quote in one of ours."""
    return (str(error) or type(error).__name__).splitlines()[0][:120]
