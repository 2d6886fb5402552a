"""Ricci curvature of edges: how much the neighbourhoods of two neighbours overlap."""

from __future__ import annotations

import numpy as np
from scipy import sparse as sp
from scipy.optimize import linprog

from evergraph.core.sparse import SparseMatrix


class EdgeCurvature:
    """Ricci curvature of the edges of an undirected graph.

    Args:
        adjacency: of the graph; an edge in either direction counts.
    """

    def __init__(self, adjacency: SparseMatrix) -> None:
        matrix = adjacency.to_scipy()
        both = ((matrix + matrix.T) > 0).astype(np.float64).tocsr()
        both.setdiag(0)
        both.eliminate_zeros()
        self.matrix: sp.csr_matrix = both

    def neighbours(self, node: int) -> np.ndarray:
        """The neighbours of a node."""
        return self.matrix.indices[self.matrix.indptr[node] : self.matrix.indptr[node + 1]]

    def bound(self, node: int, other: int) -> float:
        """The lower bound of Jost and Liu (2014) on Ollivier's curvature, from degrees and triangles alone.

        κ ≥ −(1 − 1/d_v − 1/d_u − t/min(d_v, d_u))₊ − (1 − 1/d_v − 1/d_u − t/max(d_v, d_u))₊ + t/max(d_v, d_u), with t
        the number of common neighbours. It is exact on trees.
        """
        mine, theirs = self.neighbours(node), self.neighbours(other)
        small, large = sorted((mine.size, theirs.size))
        triangles = np.intersect1d(mine, theirs, assume_unique=True).size
        rest = 1 - 1 / small - 1 / large
        return float(-max(rest - triangles / small, 0) - max(rest - triangles / large, 0) + triangles / large)

    def ollivier(self, node: int, other: int) -> float:
        """κ = 1 − W₁(m_v, m_u), m_v uniform on the neighbours of v; W₁ by linear programming. For small degrees."""
        mine, theirs = self.neighbours(node), self.neighbours(other)
        # at most three steps apart, through the edge itself: fewer where they are the same, adjacent, or share one
        adjacent = self.matrix[mine][:, theirs].toarray() > 0
        shared = (self.matrix[mine] @ self.matrix[theirs].T).toarray() > 0
        same = mine[:, None] == theirs[None, :]
        cost = np.select([same, adjacent, shared], [0.0, 1.0, 2.0], 3.0)
        rows, columns = cost.shape
        leaves = sp.kron(sp.identity(rows), np.ones((1, columns)))
        arrives = sp.kron(np.ones((1, rows)), sp.identity(columns))
        amounts = np.concatenate([np.full(rows, 1 / rows), np.full(columns, 1 / columns)])
        solved = linprog(cost.ravel(), A_eq=sp.vstack([leaves, arrives]).tocsr(), b_eq=amounts)
        return float(1 - solved.fun)
