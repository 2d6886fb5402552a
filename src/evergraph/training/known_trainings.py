"""Training jobs that are the same in several runs, carried out once.

All methods of a table learn the first task from the same parameters, on the same examples, in the same order, and none
of them has anything to protect yet: for each seed that is one job, which every run would repeat to the last bit. A
trial whose settings are chosen is repeated as a whole. So everything that a job depends on is hashed
(`Method.steps_depend_on`), and its result is kept in a folder that the runs of a table share. Processes that start at
the same time start with the same first task: one of them trains, the others wait for it.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.row_pieces import row_kernel
from evergraph.core.shortcuts import FAST_PATHS, fast
from evergraph.core.sparse import SparseMatrix
from evergraph.core.workers import workers
from evergraph.errors import EvergraphError
from evergraph.methods.state import count_bytes
from evergraph.persistence.checkpoint import INDEX, load_tree, save_tree
from evergraph.persistence.files import make_folder, only_writer
from evergraph.training.member import Member
from evergraph.training.side_by_side import clock, count_as_spent, device_numbers, kin

LARGEST = 2**30  # bytes to keep in a folder, approximately
LOOK_EVERY, LONGEST_WAIT = 0.02, 3600.0  # seconds between two looks at another process's work, and in total

_folder: ContextVar[Path | None] = ContextVar("known trainings", default=None)
_held: dict[Path, Hashable | None] = {}  # jobs of this process that others wait for, and their groups


@contextmanager
def known_trainings(folder: Path | None) -> Iterator[None]:
    """Within this context, results of jobs are looked up in a folder and kept there; None keeps none."""
    before = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(before)


def place_of(member: Member) -> Path | None:
    """Where to keep the result of a job that is about to begin; None if it is not kept."""
    context, settings, folder = member.context, member.settings, _folder.get()
    claim = capable(member.method, "steps_depend_on")
    if folder is None or claim is None or workers().size > 1:
        return None
    if member.progress.epoch or member.progress.optimizer is not None or settings.keep_optimizer or settings.patience:
        return None
    if settings.fan_out or context.task.graph.on_disk or context.task.graph.rows is not None:
        return None
    if not _ours(member):
        return None
    besides = claim(context)
    return None if besides is None else folder / _mark(member, besides)


def _ours(member: Member) -> bool:
    """Whether all code that a job runs belongs to this package: what other code depends on is unknown."""
    context = member.context
    kinds = [*map(type, member.method.parts()), type(context.problem), type(context.batcher)]
    modules = list(context.model.modules())
    kinds += [type(module) for module in modules if not type(module).__module__.startswith("torch.nn.")]
    hooks = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    return not hooks and all(kind.__module__.startswith("evergraph.") for kind in kinds)


@functools.cache
def _sources() -> str:
    """Hash of the package's code: with different code, a job is a different one."""
    mark, root = hashlib.sha256(), Path(__file__).parent.parent
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.c")]):
        mark.update(path.read_bytes())
    return mark.hexdigest()


@contextmanager
def awaited(member: Member) -> Iterator[None]:
    """Within this context, other processes wait for a first task; if another is training it already, wait for that one.

    A process that waits does nothing else, so it may hold nothing that others wait for except first tasks of the same
    run: these are taken in the order of their seeds by all processes, so there is no deadlock. A process that dies
    releases its locks.
    """
    place = member.place
    held_for_others = any(whose is None or whose != kin() for whose in _held.values())
    if (
        place is None
        or member.context.index
        or place in _held
        or held_for_others
        or (place / INDEX).exists()
        or not _has_room(place, member)  # then there would be no result to wait for
    ):
        yield
        return
    with suppress(EvergraphError):
        make_folder(place.parent)
    lock, began = place.with_suffix(".lock"), clock()
    if member.context.device.type == "cuda":
        row_kernel()  # tested and compiled by all processes at the same time
    with _taken(place, lock):
        count_as_spent(began - clock())  # takes the wait out; `recalled` counts the job's own time
        yield


@contextmanager
def _taken(place: Path, lock: Path) -> Iterator[None]:
    """Wait until a lock is free, or the result that it guards exists; go on without one where locks do not work."""
    try:
        import fcntl

        file = open(lock, "w")  # noqa: SIM115  # held open as long as the lock
    except (ImportError, OSError):
        yield
        return
    began = time.monotonic()
    with file:
        while not (place / INDEX).exists() and time.monotonic() - began < LONGEST_WAIT:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOOK_EVERY)
            except OSError:  # a file system without locks
                break
        _held[place] = kin()
        try:
            yield
        finally:
            del _held[place]


def recalled(member: Member) -> bool:
    """Load the result of a job that was carried out before, model and random state; returns whether there is one."""
    place = member.place
    if place is None or not (place / INDEX).exists():
        return False
    try:
        known = load_tree(place)
    except EvergraphError:
        return False  # another process removed it, or it is damaged: train again
    member.context.model.load_state_dict(known["model"])
    member.progress.log, member.progress.epoch = known["log"], known["epoch"]
    member.progress.steps = "the same training was carried out in another run"
    torch.set_rng_state(known["numbers"])
    if (own := device_numbers(member.context.device)) is not None:
        own.set_state(known["device_numbers"])
    count_as_spent(known["seconds"])
    return True


def keep(member: Member, seconds: float) -> None:
    """Keep the result of a job, and how long it took, for other runs; a folder that cannot be written to is ignored."""
    model, progress, place = member.context.model, member.progress, member.place
    if place is None or not _has_room(place, member):
        return
    known = {"model": dict(model.state_dict()), "log": progress.log, "epoch": progress.epoch, "seconds": seconds}
    if (own := member.device_numbers or device_numbers(member.context.device)) is not None:
        known["device_numbers"] = own.get_state()
    known["numbers"] = torch.get_rng_state() if member.numbers is None else member.numbers.get_state()
    with suppress(EvergraphError):
        make_folder(place)
        with only_writer(place):
            save_tree(place, known)


def _has_room(place: Path, member: Member) -> bool:
    """Whether the folder has room for one more result."""
    others = sum(path.is_dir() for path in place.parent.iterdir()) if place.parent.is_dir() else 0
    return (others + 1) * count_bytes(dict(member.context.model.state_dict())) <= LARGEST


def _mark(member: Member, besides: list[Any]) -> str:
    """Hash of everything that a job depends on; `besides` is what its method adds."""
    context, batcher = member.context, member.context.batcher
    mark = hashlib.sha256()
    words = [
        _sources(), torch.__version__, torch.get_num_threads(), [name for name in FAST_PATHS if fast(name)],
        list(map(type, context.model.modules())), context.model.hyperparameters(), type(context.problem),
        context.reduction, context.batch_size, member.settings, member.epochs, batcher.num_hops, type(batcher),
        str(context.device),
    ]  # fmt: skip
    words.append([(name, value.requires_grad) for name, value in context.model.named_parameters()])
    mark.update(repr(words).encode())
    scope = [] if context.problem.scope is None else [context.problem.scope]
    parts = [batcher.x, batcher.operator, batcher.y, context.train, *([batcher.members] if batcher.members else [])]
    for name, value in context.model.state_dict().items():
        mark.update(name.encode())
        parts.append(value)
    own = device_numbers(context.device)
    numbers = [torch.get_rng_state(), context.generator.get_state(), *([] if own is None else [own.get_state()])]
    _add(mark, [*parts, *scope, *numbers, besides])
    return mark.hexdigest()[:32]


def _add(mark: hashlib._Hash, value: Any) -> None:
    """Add a tree of values, tensors and matrices to a hash."""
    if isinstance(value, SparseMatrix):
        value = list(value.parts())
    if isinstance(value, dict):
        value = [[key, item] for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        mark.update(f"{len(value)} in a list".encode())
        for item in value:
            _add(mark, item)
        return
    if not isinstance(value, Tensor):
        mark.update(f"{value!r};".encode())  # with an end: 1.0 before 12.5 is not 1.01 before 2.5
        return
    mark.update(repr((tuple(value.shape), value.dtype)).encode())
    mark.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
