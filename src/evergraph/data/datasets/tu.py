"""Graphs of the TU collection (Morris et al., 2020)."""

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.collections import read_tu
from evergraph.data.datasets.official import OfficialGraph

TU = "https://www.chrsmrrs.com/graphkerneldatasets"

for name, folder, counts, per_task, about in (
    ("letter-med", "Letter-med", (10518, 2, 15), 3, "Letter-med: line drawings of 15 capital letters, distorted"),
    ("enzymes", "ENZYMES", (19580, 21, 6), 2, "ENZYMES: proteins as graphs of their structure; classes of enzymes"),
):
    _graphs = OfficialGraph(name=name, path=f"{folder}/raw", counts=counts, url=f"{TU}/{folder}.zip", read=read_tu)
    DATASETS.register(
        Dataset(name, _graphs.load, classes_per_task=per_task, about=about, problem="graph-classification")
    )
