"""Amazon graphs: products, joined when they are often bought together."""

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.official import GNN_BENCHMARK, OfficialGraph

AMAZON_COMPUTERS = OfficialGraph(
    name="amazon-computers",
    path="Computers/raw/amazon_electronics_computers.npz",
    counts=(13752, 767, 10),
    url=f"{GNN_BENCHMARK}/amazon_electronics_computers.npz",
    sha256="736ba1d9fd85eac2da83a5ad25c463f04b0031a6ca01563f90a7099d9e8ffb2c",
    fingerprint="d884cad9ffc1e2e86757ca1c20db60eaa1877e514c0d3cd8685eb9c2308c2ba1",
)
DATASETS.register(
    Dataset(
        "amazon-computers",
        AMAZON_COMPUTERS.load,
        classes_per_task=2,
        about="Amazon-Computers: products often bought together; product categories",
    )
)

AMAZON_PHOTO = OfficialGraph(
    name="amazon-photo",
    path="Photo/raw/amazon_electronics_photo.npz",
    counts=(7650, 745, 8),
    url=f"{GNN_BENCHMARK}/amazon_electronics_photo.npz",
    sha256="bdb1feb8e6ff42ee44024b04479145029c563fd42fc31bff80af20887ba0439a",
)
DATASETS.register(
    Dataset(
        "amazon-photo",
        AMAZON_PHOTO.load,
        classes_per_task=2,
        about="Amazon-Photo: products often bought together; product categories",
    )
)
