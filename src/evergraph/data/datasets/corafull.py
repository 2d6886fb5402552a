"""CoraFull: papers, joined by citations."""

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.official import OfficialGraph

CORAFULL = OfficialGraph(
    name="corafull",
    path="cora/raw/cora.npz",
    counts=(19793, 8710, 70),
    url="https://github.com/abojchevski/graph2gauss/raw/master/data/cora.npz",
    sha256="c8dfb0918b15f669255dc240f1d4671ea368c1aa20a1adfddaea0c6781bf85a5",
)
DATASETS.register(
    Dataset(
        "corafull",
        CORAFULL.load,
        classes_per_task=9,
        min_class_size=151,
        about="CoraFull: papers, joined by citations; topics",
    )
)

CORAFULL_KNN = OfficialGraph(
    name="corafull-knn",
    path="CoraFullKNN/raw/cora_full_knn.npz",
    counts=(19793, 128, 70),
)
DATASETS.register(
    Dataset(
        "corafull-knn",
        CORAFULL_KNN.load,
        classes_per_task=9,
        min_class_size=151,
        about="CoraFull's edges and labels; 128 spectral coordinates of a nearest-neighbour graph of its words",
    )
)
