"""Shared code of replay methods: pieces of memory, budgets, and the replay itself."""

from evergraph.methods.memory.budget import Budget
from evergraph.methods.memory.memory_method import MemoryMethod, in_turns
from evergraph.methods.memory.piece import Piece, smaller_form
from evergraph.methods.memory.replay_method import ReplayMethod
from evergraph.methods.memory.replayed import Replayed, Weighting, joined, memory_task

__all__ = [
    "Budget",
    "MemoryMethod",
    "Piece",
    "ReplayMethod",
    "Replayed",
    "Weighting",
    "in_turns",
    "joined",
    "memory_task",
    "smaller_form",
]
