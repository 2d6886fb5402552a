"""What the tests share: one thread a process, small graphs, the folder of real graphs."""

from pathlib import Path

import pytest
import torch

import evergraph as eg
from evergraph.data.made import sbm

torch.set_num_threads(1)  # the suite runs one process a core

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real graphs, where it is there."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no folder of real graphs at {REAL_DATA}")
    return REAL_DATA


@pytest.fixture
def small_graph() -> eg.Graph:
    """60 nodes, 6 classes, 8 features."""
    return sbm(nodes=60, classes=6, degree=4, features=8, signal=3.0, seed=1)


@pytest.fixture
def small_stream(small_graph: eg.Graph) -> eg.TaskStream:
    """Three tasks of two classes."""
    return eg.TaskStream(small_graph, 2)
