"""Several trainings in one process that take turns: while the device works for one of them, the others give it more.

A GPU that repeats a captured step of one small network is nearly idle. Here each training has a thread and a stream of
its own, and one of them runs at a time: it queues the steps of an epoch, then hands over, and reads what came of them
when its turn comes again. Nothing else is shared: random numbers change hands with the turn, so each training ends in
the numbers that it ends in alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

AT_ONCE = 16  # trainings that take turns with one another at most: each holds its graphs in memory

_mine = threading.local()  # .turn: the turn of the training that runs in this thread


class Stopped(BaseException):
    """Raised in the trainings that are left when all of them are stopped."""


def give_way(*, settled: bool = True) -> None:
    """Hand over to the next training, where there are several: called when an epoch's work is queued.

    Args:
        settled: whether all that is queued touches this training's own memory alone; if not, it is waited for.
    """
    turn: _Turn | None = getattr(_mine, "turn", None)
    if turn is not None:
        turn.pause(settled)


def clock() -> float:
    """Seconds, not counting those in which other trainings had their turn."""
    turn: _Turn | None = getattr(_mine, "turn", None)
    return time.perf_counter() - (turn.waited if turn is not None else 0.0)


def side_by_side(
    trainings: Sequence[Callable[[], Result]], device: torch.device, *, taking_turns: bool | None = None
) -> list[Result | Exception]:
    """What each training returns, or the error that it ended in, in order.

    Args:
        trainings: what to run; each is run in one thread from its beginning to its end.
        device: where they compute.
        taking_turns: whether they take turns or follow one another; by default they take turns on a GPU. A CPU has
            nothing to do while Python waits, so there it would bring nothing.
    """
    if taking_turns is None:
        taking_turns = device.type == "cuda"
    if not taking_turns or len(trainings) < 2:
        return [_outcome(training) for training in trainings]
    return _Table(device, trainings).run()


def together(trainings: Sequence[Callable[[], Result]], device: torch.device) -> list[Result]:
    """What each training returns, side by side where that pays; the first error is raised."""
    if device.type != "cuda":
        return [training() for training in trainings]
    results: list[Result] = []
    for first in range(0, len(trainings), AT_ONCE):
        for outcome in side_by_side(trainings[first : first + AT_ONCE], device):
            if isinstance(outcome, Exception):
                raise outcome
            results.append(outcome)
    return results


def _outcome(training: Callable[[], Result]) -> Result | Exception:
    try:
        return training()
    except Exception as error:
        return error


class _Table:
    """The trainings around a table, and whose turn it is."""

    def __init__(self, device: torch.device, trainings: Sequence[Callable[[], Any]]) -> None:
        self.device = device
        self.turns = [_Turn(self, training) for training in trainings]
        self.stopping = False

    def run(self) -> list[Any]:
        """Let all of them come to their end."""
        with _random_numbers_kept(self.device):
            for turn in self.turns:
                turn.start()
            self.turns[0].ready.set()
            try:
                for turn in self.turns:
                    while turn.is_alive():
                        turn.join(0.2)  # in pieces, so that Ctrl-C is heard
            except BaseException:
                self.stopping = True
                for turn in self.turns:
                    turn.join()
                raise
        return [turn.outcome for turn in self.turns]

    def next_after(self, turn: _Turn) -> _Turn | None:
        """The next training that is not at its end; None where there is none but this one."""
        position = self.turns.index(turn)
        others = [*self.turns[position + 1 :], *self.turns[:position]]
        return next((other for other in others if not other.ended), None)


class _Turn(threading.Thread):
    """One training: its thread, its stream, its random numbers."""

    def __init__(self, table: _Table, training: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.table, self.training = table, training
        self.ready = threading.Event()
        self.waited, self.ended = 0.0, False
        self.outcome: Any = None

    def run(self) -> None:
        """The training from its first turn to its last."""
        _mine.turn = self
        self._wait()
        try:
            if not self.table.stopping:
                with _own_stream(self.table.device):
                    self.outcome = _outcome(self.training)
                    _synchronize(self.table.device)
        except BaseException as error:
            self.outcome = error
        finally:
            self.ended = True
            following = self.table.next_after(self)
            if following is not None:
                following.ready.set()

    def pause(self, settled: bool) -> None:
        """Let the others have their turns."""
        following = self.table.next_after(self)
        if following is not None:
            if not settled:
                _synchronize(self.table.device)
            numbers = _random_state(self.table.device)
            following.ready.set()
            self._wait()
            _take_up(self.table.device, numbers)
        if self.table.stopping:
            raise Stopped

    def _wait(self) -> None:
        began = time.perf_counter()
        self.ready.wait()
        self.ready.clear()
        self.waited += time.perf_counter() - began


# random numbers and streams


def _generator(device: torch.device) -> Any:
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def _random_state(device: torch.device) -> tuple[torch.Tensor, Any]:
    """The host's random numbers as they stand, and the device's: the state itself, which recorded steps hold on to."""
    return torch.get_rng_state(), _generator(device).graphsafe_get_state() if device.type == "cuda" else None


def _take_up(device: torch.device, numbers: tuple[torch.Tensor, Any]) -> None:
    torch.set_rng_state(numbers[0])
    if numbers[1] is not None:
        _generator(device).graphsafe_set_state(numbers[1])


@contextmanager
def _random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Afterwards random numbers are as they were before."""
    before = _random_state(device)
    try:
        yield
    finally:
        _take_up(device, before)


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    """A stream, and a state of the device's random numbers, for the training of this thread."""
    if device.type != "cuda":
        yield
        return
    _generator(device).graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
    with torch.cuda.stream(torch.cuda.Stream(device)):
        yield


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
