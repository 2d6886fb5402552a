"""ogbn-arxiv: computer-science papers, joined by citations."""

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.official import OfficialGraph

OGBN_ARXIV = OfficialGraph(
    name="ogbn-arxiv",
    path="ogbn_arxiv/raw",
    counts=(169343, 128, 40),
    url="http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip",
    sha256="49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276",
)
DATASETS.register(
    Dataset(
        "arxiv",
        OGBN_ARXIV.load,
        classes_per_task=6,
        min_class_size=411,
        about="ogbn-arxiv: computer-science papers, joined by citations; subject areas. Also --scenario time --by year",
    )
)
DATASETS.register(
    Dataset(
        "ogbn-arxiv",
        OGBN_ARXIV.load,
        classes_per_task=6,
        min_class_size=411,
        about="ogbn-arxiv: computer-science papers, joined by citations; subject areas. Also --scenario time --by year",
    )
)
