"""Measure how far a foreign module looks, so that a mini-batch gives exactly the logits of the whole graph."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from evergraph.core.capabilities import Answer, No
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Neighbourhoods
from evergraph.errors import EvergraphError, first_line

FARTHEST = 16  # largest number of hops tried
NODES = 5 * FARTHEST  # nodes of the strip below, whose ends are farther than that from its middle


def measure_hops(module: nn.Module, in_channels: int) -> int:
    """Return the fewest hops of neighbours from which `module(x, edge_index)` computes a node's output exactly.

    A copy of the module runs in float64 on a small graph, once on all of it and then on ever larger
    neighbourhoods of a few nodes, until both agree. A layer looks one hop far, one that normalizes by
    degrees (GCNConv) one more, one with K steps (SGConv, APPNP) K hops. The result is at least the number of
    message-passing layers, since weights that start at zero can hide a layer.
    """
    from torch_geometric.nn import MessagePassing

    x, adjacency = _strip(in_channels)
    seeds = torch.arange(NODES // 2 - 2, NODES // 2 + 2)
    name = type(module).__name__
    fewest = sum(isinstance(part, MessagePassing) for part in module.modules())
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            probe = copy.deepcopy(module).to(device="cpu", dtype=torch.float64).eval()
            whole = probe(x, torch.stack([adjacency.indices, adjacency.row_of_entry()]))[seeds]
            for hops in range(fewest, max(fewest, FARTHEST) + 1):
                batch = Neighbourhoods(x, adjacency, torch.zeros(NODES, dtype=torch.long), hops).batch(seeds)
                if torch.allclose(probe(x[batch.nodes], batch.edge_index)[: seeds.numel()], whole, rtol=1e-9):
                    return hops
    except Exception as error:  # whatever the foreign module raises
        raise EvergraphError(
            f"{name}: could not find out how many hops it looks ({first_line(error)}); "
            "it must take (x, edge_index), or say it yourself: ModuleModel(module, num_hops=2)"
        ) from None
    raise EvergraphError(
        f"{name}: a node's output depends on nodes more than {FARTHEST} hops away (a norm over all nodes?), or on "
        "chance; say yourself how far mini-batches shall reach: ModuleModel(module, num_hops=2)"
    )


def examples_stay_apart(model: nn.Module, batcher: Neighbourhoods) -> Answer:
    """Whether an example's training outputs are independent of the other examples of its batch, found by a trial run.

    A copy of the model runs in training mode on a few examples, alone and among others, without dropout. This detects
    a norm over the nodes of a batch, and randomness other than dropout's.
    """
    probe = copy.deepcopy(model).train()
    examples = torch.arange(min(64, batcher.y.size(0)), device=batcher.y.device)
    few = examples[: max(1, examples.numel() // 4)]
    with torch.no_grad(), torch.random.fork_rng(devices=[]), _NoDropout():
        alone, among = (probe(batcher.batch(chosen))[: few.numel()] for chosen in (few, examples))
    if torch.allclose(alone, among, rtol=1e-3, atol=1e-4 * float(among.abs().max())):
        return True
    return No("its outputs while training depend on the other examples of a batch, or on chance")


class _NoDropout(TorchFunctionMode):
    """Context in which dropout has no effect."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the input of a dropout function unchanged; call any other function."""
        if func in {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout}:
            return args[0] if args else (kwargs or {})["input"]
        return func(*args, **(kwargs or {}))


def measure_width(module: nn.Module | None, in_channels: int) -> int:
    """Return the number of columns of `module(x, edge_index)`, found by running it on a small graph."""
    assert module is not None
    x, adjacency = _strip(in_channels)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            probe = copy.deepcopy(module).to(device="cpu", dtype=torch.float64).eval()
            return int(probe(x, torch.stack([adjacency.indices, adjacency.row_of_entry()])).size(1))
    except Exception as error:  # whatever the foreign module raises
        raise EvergraphError(
            f"{type(module).__name__}: it must take (x, edge_index) and give a row per node ({first_line(error)})"
        ) from None


def _strip(in_channels: int) -> tuple[Tensor, SparseMatrix]:
    """Return random features and a long narrow graph: i is joined to i+1, and to i+2 for every third i."""
    x = torch.randn(NODES, in_channels, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    dense = torch.zeros(NODES, NODES, dtype=torch.float64)
    dense.diagonal(1).fill_(1)
    dense.diagonal(2)[::3] = 1
    csr = (dense + dense.T).to_sparse_csr()
    return x, SparseMatrix(csr.crow_indices(), csr.col_indices(), csr.values(), NODES)
