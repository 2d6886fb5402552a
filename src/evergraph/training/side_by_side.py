"""Several trainings in one process that take turns: while the device works for one of them, the others give it more.

A GPU that repeats a captured step of one small network is nearly idle. Here each training has a thread and a stream of
its own, and one of them runs at a time: it queues the steps of an epoch, then hands over, and reads what came of them
when its turn comes again. Nothing else is shared: random numbers change hands with the turn, so each training ends in
the numbers that it ends in alone.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

AT_ONCE = 16  # trainings that take turns with one another at most: each holds its graphs in memory

_mine = threading.local()  # .turn: the turn of the training that runs in this thread


class NotTogetherError(Exception):
    """Raised by the host of a meeting: each guest is left to itself."""


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


def meet(number: int, sort: Hashable, guest: Any, host: Callable[[list[Any]], list[BaseException | None]]) -> bool:
    """Wait for one's kin, where there are any, to do the like together.

    Args:
        number: of the meeting; kin that are at this one or at a later one are not waited for.
        sort: guests of one sort are hosted together; None is nobody's, and does not wait.
        guest: what a host works on.
        host: called once, by one of them, with the guests of all; returns the error that each ended in.

    Returns:
        Whether the guest was hosted. If not, it is left to do by oneself.
    """
    turn: _Turn | None = getattr(_mine, "turn", None)
    return turn is not None and turn.meet(number, sort, guest, host)


def kin() -> Hashable | None:
    """Whose kin the training of this thread is; None where it is nobody's."""
    turn: _Turn | None = getattr(_mine, "turn", None)
    return None if turn is None else turn.kin


def number_of_kin() -> int:
    """How many trainings that are not at their end are of this thread's kin, itself included."""
    turn: _Turn | None = getattr(_mine, "turn", None)
    return 1 if turn is None or turn.kin is None else len(turn.table.kin_of(turn))


def clock() -> float:
    """Seconds, not counting those in which other trainings had their turn, and counting what was taken over."""
    turn: _Turn | None = getattr(_mine, "turn", None)
    return time.perf_counter() - (turn.waited if turn is not None else 0.0) + getattr(_mine, "taken_over", 0.0)


def count_as_spent(seconds: float) -> None:
    """Let the clock of this thread's training count what another has spent for it."""
    _mine.taken_over = getattr(_mine, "taken_over", 0.0) + seconds


def side_by_side(
    trainings: Sequence[Callable[[], Result]],
    device: torch.device,
    *,
    taking_turns: bool | None = None,
    kin: Sequence[Hashable] | None = None,
) -> list[Result | Exception]:
    """What each training returns, or the error that it ended in, in order.

    Args:
        trainings: what to run; each is run in one thread from its beginning to its end.
        device: where they compute.
        taking_turns: whether they take turns or follow one another; by default they take turns on a GPU. A CPU has
            nothing to do while Python waits, so there it would bring nothing.
        kin: of each training whose kin it is, so that those of one kin wait for one another where they can do the like
            together (`meet`); None where nobody waits.
    """
    if taking_turns is None:
        taking_turns = device.type == "cuda"
    if not taking_turns or len(trainings) < 2:
        return [_outcome(training) for training in trainings]
    return _Table(device, trainings, kin or [None] * len(trainings)).run()


def together(trainings: Sequence[Callable[[], Result]], device: torch.device) -> list[Result]:
    """What each training returns, side by side where that pays, all of them kin; the first error is raised."""
    if device.type != "cuda":
        return [training() for training in trainings]
    results: list[Result] = []
    for first in range(0, len(trainings), AT_ONCE):
        some = trainings[first : first + AT_ONCE]
        for outcome in side_by_side(some, device, kin=["seeds"] * len(some)):
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

    def __init__(
        self, device: torch.device, trainings: Sequence[Callable[[], Any]], kin: Sequence[Hashable | None]
    ) -> None:
        self.device = device
        self.turns = [_Turn(self, training, of) for training, of in zip(trainings, kin)]
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
        """The next training that can go on; None where there is none but this one."""
        position = self.turns.index(turn)
        others = [*self.turns[position + 1 :], *self.turns[:position]]
        return next((other for other in others if not other.ended and (self.stopping or not other.waits())), None)

    def kin_of(self, turn: _Turn) -> list[_Turn]:
        """Trainings of one kin that are not at their end, this one included."""
        return [other for other in self.turns if other.kin == turn.kin and not other.ended]


@dataclass(eq=False)
class _Visit:
    """A training at a meeting."""

    sort: Hashable
    guest: Any
    hosted: bool = False
    done: bool = False
    error: BaseException | None = None


class _Turn(threading.Thread):
    """One training: its thread, its stream, its random numbers."""

    def __init__(self, table: _Table, training: Callable[[], Any], kin: Hashable | None = None) -> None:
        super().__init__(daemon=True)
        self.table, self.training, self.kin = table, partial(contextvars.copy_context().run, training), kin
        self.meeting, self.visit = -1, None  # type: int, _Visit | None
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

    def waits(self) -> bool:
        """Whether it is at a meeting that others have to come to, or that one of them holds."""
        if self.visit is None or self.visit.done:
            return False
        return self.visit.hosted or any(other.meeting < self.meeting for other in self.table.kin_of(self))

    def meet(
        self, number: int, sort: Hashable, guest: Any, host: Callable[[list[Any]], list[BaseException | None]]
    ) -> bool:
        """See the function of that name."""
        if self.kin is None:
            return False
        self.meeting = number
        if sort is None:
            return False
        visit = self.visit = _Visit(sort, guest)
        _synchronize(self.table.device)  # what it has queued touches the guest
        try:
            while not visit.done:
                if self.waits():
                    self.pause(settled=True)
                    continue
                there = [turn for turn in self.table.kin_of(self) if turn.meeting == number]
                visits = [turn.visit for turn in there if turn.visit is not None and turn.visit.sort == sort]
                if len(visits) == 1:
                    return False
                self._host(visits, host)
            if visit.error is not None and not isinstance(visit.error, NotTogetherError):
                raise visit.error
            return visit.error is None
        finally:
            self.visit = None

    def _host(self, visits: list[_Visit], host: Callable[[list[Any]], list[BaseException | None]]) -> None:
        for visit in visits:
            visit.hosted = visit is not self.visit
        errors: list[BaseException | None] = []
        try:
            errors = host([visit.guest for visit in visits])
            _synchronize(self.table.device)
        except BaseException as error:
            errors = [error] * len(visits)
        finally:
            for visit, outcome in zip(visits, errors, strict=True):
                visit.done, visit.error = True, outcome

    def _wait(self) -> None:
        began = time.perf_counter()
        self.ready.wait()
        self.ready.clear()
        self.waited += time.perf_counter() - began


# random numbers and streams


def device_numbers(device: torch.device) -> torch.Generator | None:
    """A generator of the device's random numbers as they are at work now; None for a CPU, which has the host's."""
    return _generator(device).graphsafe_get_state() if device.type == "cuda" else None


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
