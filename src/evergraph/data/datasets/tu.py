"""Graphs of the TU collection (Morris et al., 2020)."""

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.collections import read_tu
from evergraph.data.datasets.official import OfficialGraph

TU = "https://www.chrsmrrs.com/graphkerneldatasets"

for name, folder, counts, fingerprint, per_task, about in (
    (
        "letter-med",
        "Letter-med",
        (2250, 2, 15),
        "66e8c9388d171f2fc336b020f8de6d67cdcfff561a8b62361e7f0034b1fce44f",
        3,
        "Letter-med: line drawings of 15 capital letters, distorted",
    ),
    (
        "enzymes",
        "ENZYMES",
        (600, 21, 6),
        "b2d45d306c14d30d2415da8855a26fbd58a0d3dcf4566a98e48c52348ef58c85",
        2,
        "ENZYMES: proteins as graphs of their structure; classes of enzymes",
    ),
):
    _graphs = OfficialGraph(
        name=name,
        path=f"{folder}/raw",
        counts=counts,
        url=f"{TU}/{folder}.zip",
        fingerprint=fingerprint,
        read=read_tu,
    )
    DATASETS.register(
        Dataset(name, _graphs.load, classes_per_task=per_task, about=about, problem="graph-classification")
    )
