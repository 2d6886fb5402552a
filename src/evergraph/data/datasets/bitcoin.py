"""Bitcoin-OTC (Kumar et al., ICDM 2016): people who rate how far they trust each other, over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.collections import read_numbers
from evergraph.data.datasets.official import OfficialGraph
from evergraph.data.examples import make_links
from evergraph.data.graph import Graph

FEATURES = 64
RATINGS = (("−10", -10), ("−9 to −1", -1), ("1", 1), ("2", 2), ("3 to 4", 4), ("5 to 10", 10))
"""Classes of ratings, each with its largest rating: 20 ratings would be too many classes, most of them rare."""


def read_ratings(path: Path) -> Graph:
    """Read links from `source, target, rating, time` lines.

    People have no features: each gets 64 random numbers (fixed by position), so that a network can tell people apart
    and recognize common acquaintances.
    """
    rows = read_numbers(path)
    people, ends = np.unique(rows[:, :2].astype(np.int64), return_inverse=True)
    limits = np.array([limit for _, limit in RATINGS])
    x = np.random.default_rng(0).standard_normal((people.size, FEATURES)).astype(np.float32)
    return make_links(
        x,
        ends.reshape(-1, 2).T,
        np.searchsorted(limits, rows[:, 2]),
        class_names=[name for name, _ in RATINGS],
        attributes={"time": rows[:, 3]},
        name="bitcoin-otc",
    )


BITCOIN_OTC = OfficialGraph(
    name="bitcoin-otc",
    path="BitcoinOTC/raw/soc-sign-bitcoinotc.csv",
    counts=(5881, FEATURES, 6),
    url="https://snap.stanford.edu/data/soc-sign-bitcoinotc.csv.gz",
    fingerprint="45779ec22aca037937b2ee5b12b3f29522cc6287a9ab4f750de1f43608202133",
    read=read_ratings,
)
DATASETS.register(
    Dataset(
        "bitcoin-otc",
        BITCOIN_OTC.load,
        about="Bitcoin-OTC: who trusts whom, and when; six classes of ratings. Also --scenario time",
        problem="link-classification",
    )
)
