"""Other graphs of the Open Graph Benchmark (Hu et al., NeurIPS 2020), in its raw layout."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from evergraph.data.attributes import Attribute
from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.collections import mean_over_edges, read_ogb_graphs
from evergraph.data.datasets.official import OfficialGraph, read_csv_gz
from evergraph.data.examples import make_links
from evergraph.data.graph import Graph, make_graph
from evergraph.errors import tell

OGB = "http://snap.stanford.edu/ogb/data"


def read_proteins(folder: Path) -> Graph:
    """Read ogbn-proteins: 112 labels per protein; features are means over a protein's edges; domains are species."""
    edges = read_csv_gz(folder / "edge.csv.gz", np.int64).T
    species = read_csv_gz(folder / "node_species.csv.gz", np.int64).reshape(-1)
    x = mean_over_edges(read_csv_gz(folder / "edge-feat.csv.gz", np.float32), edges, species.size)
    labels = read_csv_gz(folder / "node-label.csv.gz", np.float32)
    return make_graph(x, edges, labels, undirected=True, columns=True, attributes={"domain": species})


def read_collab(folder: Path) -> Graph:
    """Read ogbl-collab: which authors write together, year by year."""
    pairs = read_csv_gz(folder / "edge.csv.gz", np.int64).T
    year = read_csv_gz(folder / "edge_year.csv.gz", np.int64).reshape(-1)
    x = read_csv_gz(folder / "node-feat.csv.gz", np.float32)
    if (folder / "edge_weight.csv.gz").exists():
        tell("ogbl-collab: how many papers a link stands for (edge_weight) is not used")
    return make_links(x, pairs, negatives=True, attributes={"time": year})


def read_molecules(folder: Path) -> Graph:
    """Read ogbg-molhiv: whether a molecule inhibits HIV; domains are intervals of the number of atoms."""
    graphs = read_ogb_graphs(folder, columns=True)
    assert graphs.members is not None
    return graphs.altered(attributes={"atoms": Attribute(graphs.members.counts())})


# counts from OGB's own tables (master.csv of its package, and the cards of its graphs); hashes are unknown
PRODUCTS = OfficialGraph("ogbn-products", "ogbn_products/raw", (2449029, 100, 47), f"{OGB}/nodeproppred/products.zip")
PROTEINS = OfficialGraph(
    "ogbn-proteins", "ogbn_proteins/raw", (132534, 8, 112), f"{OGB}/nodeproppred/proteins.zip", read=read_proteins
)
MOLHIV = OfficialGraph(
    "ogbg-molhiv",
    "ogbg_molhiv/raw",
    (41127, 9, 1),
    f"{OGB}/graphproppred/csv_mol_download/hiv.zip",
    read=read_molecules,
)
PPA = OfficialGraph(
    "ogbg-ppa",
    "ogbg_ppa/raw",
    (158100, 7, 37),
    f"{OGB}/graphproppred/ogbg_ppi_medium.zip",
    read=partial(read_ogb_graphs, columns=False, features_of_edges=True),
)
COLLAB = OfficialGraph(
    "ogbl-collab", "ogbl_collab/raw", (235868, 128, 1), f"{OGB}/linkproppred/collab.zip", read=read_collab
)

DATASETS.register(
    Dataset(
        "ogbn-products",
        PRODUCTS.load,
        classes_per_task=2,
        min_class_size=5,
        about="ogbn-products: products often bought together; product categories",
    )
)
DATASETS.register(
    Dataset(
        "ogbn-proteins",
        PROTEINS.load,
        about="ogbn-proteins: proteins that act together; 112 functions. A species a task",
        problem="node-labelling",
        scenario="domain",
        stream={"by": "domain"},
    )
)
DATASETS.register(
    Dataset(
        "ogbg-molhiv",
        MOLHIV.load,
        about="ogbg-molhiv: molecules; whether they hold HIV back. Larger molecules in later tasks",
        problem="graph-labelling",
        scenario="domain",
        stream={"by": "atoms", "bins": 5},
    )
)
DATASETS.register(
    Dataset(
        "ogbg-ppa",
        PPA.load,
        classes_per_task=5,
        about="ogbg-ppa: neighbourhoods of proteins; groups of species",
        problem="graph-classification",
    )
)
DATASETS.register(
    Dataset(
        "ogbl-collab",
        COLLAB.load,
        about="ogbl-collab: authors who write together; which links exist, in intervals of years",
        problem="link-prediction",
        scenario="time",
        stream={"by": "time", "bins": 5},
    )
)
