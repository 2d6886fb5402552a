"""Ricci curvature of edges: how much the neighbourhoods of two neighbours overlap."""

from __future__ import annotations

import numpy as np
from scipy import sparse as sp

from evergraph.core.sparse import SparseMatrix

ROWS_AT_ONCE = 512  # of the squared adjacency matrix, which has many more entries


class EdgeCurvature:
    """Ricci curvature of the edges of an undirected graph.

    Args:
        adjacency: adjacency matrix; an edge in either direction counts.
    """

    def __init__(self, adjacency: SparseMatrix) -> None:
        matrix = adjacency.to_scipy()
        both = ((matrix + matrix.T) > 0).astype(np.float64).tocsr()
        both.setdiag(0)
        both.eliminate_zeros()
        both.sort_indices()
        self.matrix: sp.csr_matrix = both
        self._bounds: sp.csr_matrix | None = None

    def neighbours(self, node: int) -> np.ndarray:
        """Return the neighbours of a node."""
        return self.matrix.indices[self.matrix.indptr[node] : self.matrix.indptr[node + 1]]

    def bounds(self) -> sp.csr_matrix:
        """Return the lower bound of Jost and Liu (2014) on Ollivier's curvature of every edge.

        κ ≥ −(1 − 1/d_v − 1/d_u − t/min(d_v, d_u))₊ − (1 − 1/d_v − 1/d_u − t/max(d_v, d_u))₊ + t/max(d_v, d_u), with t
        the number of common neighbours: degrees and triangles suffice. It is exact on trees.
        """
        degree = np.diff(self.matrix.indptr)
        rows = np.repeat(np.arange(degree.size), degree)
        triangles = self.triangles()
        mine, theirs = degree[rows], degree[self.matrix.indices]
        small, large = np.minimum(mine, theirs), np.maximum(mine, theirs)
        rest = 1 - 1 / small - 1 / large
        values = triangles / large
        values -= np.maximum(rest - triangles / small, 0) + np.maximum(rest - triangles / large, 0)
        return sp.csr_matrix((values, self.matrix.indices, self.matrix.indptr), self.matrix.shape)

    def triangles(self) -> np.ndarray:
        """Return the number of common neighbours across each edge, in the order of the matrix's entries."""
        counts = []
        for start in range(0, self.matrix.shape[0], ROWS_AT_ONCE):
            block = self.matrix[start : start + ROWS_AT_ONCE]
            common = block + (block @ self.matrix).multiply(block)  # an entry for every edge, even without triangles
            common.sort_indices()
            counts.append(common.data - 1)
        return np.concatenate(counts)

    def bound(self, node: int, others: np.ndarray) -> np.ndarray:
        """Return the bounds of a node's edges to some of its neighbours; the first call computes all bounds."""
        if self._bounds is None:
            self._bounds = self.bounds()
        start, end = self._bounds.indptr[node : node + 2]
        return self._bounds.data[start + np.searchsorted(self._bounds.indices[start:end], others)]

    def ollivier(self, node: int, other: int) -> float:
        """Return κ = 1 − W₁(m_v, m_u), m_v uniform on v's neighbours; W₁ by linear programming, for small degrees."""
        mine, theirs = self.neighbours(node), self.neighbours(other)
        # at most three steps apart, via the edge itself; fewer if equal, adjacent, or with a common neighbour
        adjacent = self.matrix[mine][:, theirs].toarray() > 0
        shared = (self.matrix[mine] @ self.matrix[theirs].T).toarray() > 0
        same = mine[:, None] == theirs[None, :]
        cost = np.select([same, adjacent, shared], [0.0, 1.0, 2.0], 3.0)
        rows, columns = cost.shape
        leaves = sp.kron(sp.identity(rows), np.ones((1, columns)))
        arrives = sp.kron(np.ones((1, rows)), sp.identity(columns))
        amounts = np.concatenate([np.full(rows, 1 / rows), np.full(columns, 1 / columns)])
        from scipy.optimize import linprog  # slow to import, and needed only here

        solved = linprog(cost.ravel(), A_eq=sp.vstack([leaves, arrives]).tocsr(), b_eq=amounts)
        return float(1 - solved.fun)
