"""Several training jobs in one process that take turns: while the device works for one, the others queue more work.

A GPU that repeats a captured step of one small network is nearly idle. Here each job has a thread and a stream of its
own, and one of them runs at a time: it queues the steps of an epoch, then hands over, and reads the results when its
turn comes again. Nothing else is shared: the random state is swapped with the turn, so each job reaches the same
numbers as when run alone.
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

AT_ONCE = 16  # jobs that take turns with one another at most: each holds its graphs in memory

_mine = threading.local()  # .turn: the turn of the job that runs in this thread


class NotTogetherError(Exception):
    """Raised by the host of a meeting that cannot do the work together: each guest does it alone."""


class Stopped(BaseException):
    """Raised in the remaining jobs when all of them are stopped."""


def give_way(*, settled: bool = True) -> None:
    """Hand over to the next job, if there are several; called when an epoch's work is queued.

    Args:
        settled: whether all queued work touches only this job's own memory; if not, it is waited for.
    """
    turn: _Turn | None = getattr(_mine, "turn", None)
    if turn is not None:
        turn.pause(settled)


def meet(number: int, sort: Hashable, guest: Any, host: Callable[[list[Any]], list[BaseException | None]]) -> bool:
    """Wait for the other jobs of the group, if there are any, to do the same work together.

    Args:
        number: number of the meeting; jobs that are at this meeting or at a later one are not waited for.
        sort: guests of one sort are hosted together; None matches no other guest and does not wait.
        guest: what a host works on.
        host: called once, by one of the jobs, with the guests of all; returns the error that each ended in.

    Returns:
        Whether the guest was hosted. If not, the caller has to do the work itself.
    """
    turn: _Turn | None = getattr(_mine, "turn", None)
    return turn is not None and turn.meet(number, sort, guest, host)


def kin() -> Hashable | None:
    """Group of the job that runs in this thread; None if it has none."""
    turn: _Turn | None = getattr(_mine, "turn", None)
    return None if turn is None else turn.kin


def clock() -> float:
    """Seconds, without those in which other jobs had their turn, and with those added by `count_as_spent`."""
    turn: _Turn | None = getattr(_mine, "turn", None)
    return time.perf_counter() - (turn.waited if turn is not None else 0.0) + getattr(_mine, "taken_over", 0.0)


def count_as_spent(seconds: float) -> None:
    """Add time that another job has spent on this job's behalf to this thread's clock."""
    _mine.taken_over = getattr(_mine, "taken_over", 0.0) + seconds


def side_by_side(
    trainings: Sequence[Callable[[], Result]],
    device: torch.device,
    *,
    taking_turns: bool | None = None,
    kin: Sequence[Hashable] | None = None,
) -> list[Result | Exception]:
    """Run jobs and return the result of each, or the error that it ended in, in order.

    Args:
        trainings: the jobs; each runs in one thread from beginning to end.
        device: where they compute.
        taking_turns: whether they take turns or run one after another; by default they take turns on a GPU. A CPU has
            nothing to do while Python waits, so there it would gain nothing.
        kin: the group of each job; jobs of one group wait for one another where they can do the same work together
            (`meet`). None if no job waits.
    """
    if taking_turns is None:
        taking_turns = device.type == "cuda"
    if not taking_turns or len(trainings) < 2:
        return [_outcome(training) for training in trainings]
    return _Table(device, trainings, kin or [None] * len(trainings)).run()


def together(trainings: Sequence[Callable[[], Result]], device: torch.device) -> list[Result]:
    """Run jobs as one group, side by side where that pays, and return their results; the first error is raised."""
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
    """The jobs that take turns with one another."""

    def __init__(
        self, device: torch.device, trainings: Sequence[Callable[[], Any]], kin: Sequence[Hashable | None]
    ) -> None:
        self.device = device
        self.turns = [_Turn(self, training, of) for training, of in zip(trainings, kin)]
        self.stopping = False

    def run(self) -> list[Any]:
        """Run all jobs to their end and return their outcomes; what is no error, such as `SystemExit`, stops all."""
        with _random_numbers_kept(self.device):
            for turn in self.turns:
                turn.start()
            self.turns[0].ready.set()
            try:
                for turn in self.turns:
                    while turn.is_alive():
                        turn.join(0.2)  # in short waits, so that Ctrl-C is noticed
            except BaseException:
                self.stopping = True
                for turn in self.turns:
                    turn.join()
                raise
        outcomes = [turn.outcome for turn in self.turns]
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, (Exception, Stopped)):
                raise outcome
        return outcomes

    def next_after(self, turn: _Turn) -> _Turn | None:
        """The next job that can continue; None if there is none besides this one."""
        position = self.turns.index(turn)
        others = [*self.turns[position + 1 :], *self.turns[:position]]
        return next((other for other in others if not other.ended and (self.stopping or not other.waits())), None)

    def kin_of(self, turn: _Turn) -> list[_Turn]:
        """Unfinished jobs of the same group, this one included."""
        return [other for other in self.turns if other.kin == turn.kin and not other.ended]


@dataclass(eq=False)
class _Visit:
    """A job at a meeting."""

    sort: Hashable
    guest: Any
    hosted: bool = False
    done: bool = False
    error: BaseException | None = None


class _Turn(threading.Thread):
    """One job: its thread, its stream, its random numbers."""

    def __init__(self, table: _Table, training: Callable[[], Any], kin: Hashable | None = None) -> None:
        super().__init__(daemon=True)
        self.table, self.training, self.kin = table, partial(contextvars.copy_context().run, training), kin
        self.meeting, self.visit = -1, None  # type: int, _Visit | None
        self.ready = threading.Event()
        self.waited, self.ended = 0.0, False
        self.outcome: Any = None

    def run(self) -> None:
        """Run the job from its first turn to its last."""
        _mine.turn = self
        self._wait()
        try:
            if not self.table.stopping:
                with _own_stream(self.table.device):
                    self.outcome = _outcome(self.training)
                    _synchronize(self.table.device)
        except Exception as error:  # the device's own
            self.outcome = error
        except BaseException as error:
            self.outcome, self.table.stopping = error, True
        finally:
            self.ended = True
            following = self.table.next_after(self)
            if following is not None:
                following.ready.set()

    def pause(self, settled: bool) -> None:
        """Let the other jobs have their turns."""
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
        """Whether the job is at a meeting that others have not reached yet, or that another job is hosting."""
        if self.visit is None or self.visit.done:
            return False
        return self.visit.hosted or any(other.meeting < self.meeting for other in self.table.kin_of(self))

    def meet(
        self, number: int, sort: Hashable, guest: Any, host: Callable[[list[Any]], list[BaseException | None]]
    ) -> bool:
        """See the function `meet`."""
        if self.kin is None:
            return False
        self.meeting = number
        if sort is None:
            return False
        visit = self.visit = _Visit(sort, guest)
        _synchronize(self.table.device)  # its queued work touches the guest
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
    """Generator that shares the device's current random state; None for a CPU, which uses the host's."""
    return _generator(device).graphsafe_get_state() if device.type == "cuda" else None


def _generator(device: torch.device) -> Any:
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def _random_state(device: torch.device) -> tuple[torch.Tensor, Any]:
    """A copy of the host's random state, and the device's state itself, which recorded steps hold a reference to."""
    return torch.get_rng_state(), _generator(device).graphsafe_get_state() if device.type == "cuda" else None


def _take_up(device: torch.device, numbers: tuple[torch.Tensor, Any]) -> None:
    torch.set_rng_state(numbers[0])
    if numbers[1] is not None:
        _generator(device).graphsafe_set_state(numbers[1])


@contextmanager
def _random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Restore the random state on exit."""
    before = _random_state(device)
    try:
        yield
    finally:
        _take_up(device, before)


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    """Within this context, the job of this thread has its own stream and its own random state on the device."""
    if device.type != "cuda":
        yield
        return
    _generator(device).graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
    with torch.cuda.stream(torch.cuda.Stream(device)):
        yield


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
