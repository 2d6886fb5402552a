"""The error and the warning that users see: a single line that names the value and the fix."""

import re
import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from traceback import walk_tb
from types import FrameType

OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|can't allocate|unable to allocate|bad_alloc", re.IGNORECASE
)

ARRAY_LIBRARIES = ("torch", "numpy", "scipy", "torch_geometric")


class EvergraphError(ValueError):
    """Invalid input. The message is one line; the command line prints it and exits with status 2."""

    def __init__(self, message: object = "") -> None:
        super().__init__("\\n".join(str(message).splitlines()))  # a quoted name may contain line breaks


class DivergedError(EvergraphError):
    """The loss or the parameters of a model are no longer finite."""


class NumbersError(EvergraphError):
    """Targets are numbers to predict where classes are expected."""


class EvergraphWarning(UserWarning):
    """Says how an ambiguous input was interpreted. One line; the command line prints it on stderr.

    Args:
        message: the whole line.
        about: the file or graph that it is about, if others like it give the same message.
        said: the line without that name.
    """

    def __init__(self, message: str, about: str = "", said: str = "") -> None:
        super().__init__(message)
        self.about, self.said = about, said


class Repeats:
    """Messages that were shown for one file and are the same for others, such as the months of a graph."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._noted = False

    def instead(self, about: str, said: str) -> str | None:
        """What to show of a message about a file: None for all of it, and nothing where another file had the same.

        Numbers may differ. The first time it is a line that says so.
        """
        first = self._first.setdefault(re.sub(r"\d+", "#", said.replace(",", "")), about)
        if first == about:
            return None
        noted, self._noted = self._noted, True
        return "" if noted else f"{about}: notes that are the same as for {first} are not repeated, nor for other files"


REPEATS = Repeats()


def tell(message: str, about: str = "") -> None:
    """Warn in one line about how an input was handled; shown once for each line of the user's code.

    A message `about` a file, whose name comes first then, is not repeated for other files, unless all warnings are to
    be shown.
    """
    warning = EvergraphWarning(f"{about}: {message}" if about else message, about, message)
    if about and not _all_are_shown(str(warning)) and (instead := REPEATS.instead(about, message)) is not None:
        if not instead:
            return
        warning = EvergraphWarning(instead)
    warnings.warn(warning, stacklevel=_users_level())


def _all_are_shown(message: str) -> bool:
    """Whether the filters of warnings let every one of ours through, or turn them into errors."""
    for action, pattern, category, *_ in warnings.filters:
        if issubclass(EvergraphWarning, category) and (pattern is None or pattern.match(message)):
            return action in ("always", "all", "error", "ignore")
    return False


def _users_level() -> int:
    """The `stacklevel` for `tell` of the innermost frame that is neither ours nor an array library's."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _owner(frame) in ("evergraph", *ARRAY_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return level


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 node`, `2 nodes`, `2 classes`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def unknown(kind: str, name: object, choices: Iterable[str]) -> EvergraphError:
    """Return the error for an unknown name, which lists the valid choices."""
    names = list(map(in_a_list, choices))
    close = get_close_matches(name, names, n=1, cutoff=0.75) if isinstance(name, str) else []
    meant = f"; did you mean {close[0]}?" if close else ""
    return EvergraphError(f"unknown {kind} {shown(name)}; choose one of: {', '.join(names)}{meant}")


def no_such_class(graph: str, level: str, name: object, choices: Iterable[object]) -> EvergraphError:
    """Return the error for a class that no example of the graph has."""
    listed = ", ".join(map(in_a_list, choices)) or "none"
    return EvergraphError(f"{graph} has no labelled {level} of class {shown(str(name))}; its classes are: {listed}")


def in_a_list(name: object) -> str:
    """Return a name as it stands between commas: in double quotes if it has a comma itself, as in a CSV file."""
    text = str(name)
    return '"' + text.replace('"', '""') + '"' if "," in text else text


def one_of(kind: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`; otherwise raise the error of `unknown`."""
    choices = tuple(choices)
    if value not in choices:
        raise unknown(kind, value, choices)
    return value


def shown(value: object, length: int = 60) -> str:
    """Return `repr(value)` on one line, truncated to `length` characters; never raises."""
    try:
        text = repr(value)
    except Exception:  # an integer with thousands of digits, or an object whose repr is broken
        return f"<{type(value).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 3]}..."


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error reports that memory ran out, in the wording of Python, NumPy or torch."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and bool(OUT_OF_MEMORY.search(str(error)))
    )


def first_line(error: BaseException) -> str:
    """The first line of another library's error, truncated so that it can be quoted in one of ours."""
    return (str(error) or type(error).__name__).splitlines()[0][:120]


def lacks(owner: object, method: str) -> EvergraphError:
    """Return the error for a class that does not define a method which its contract asks for."""
    return EvergraphError(f"{type(owner).__name__} does not define {method}, which is needed here")


def is_ours(error: BaseException) -> bool:
    """Whether an error arose in this package, or in an array library that it called, and not in a plug-in's code."""
    owners = [owner for frame, _ in walk_tb(error.__traceback__) if (owner := _owner(frame)) not in ARRAY_LIBRARIES]
    return not owners or owners[-1] == "evergraph"


def _owner(frame: FrameType) -> str:
    """The package that a frame's code belongs to."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
