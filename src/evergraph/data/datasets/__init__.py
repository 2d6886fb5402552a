"""Datasets, one file each; the order here is the order in which they are listed."""

from evergraph.data.datasets import digits, coauthor, amazon, corafull, arxiv, sbm  # noqa: F401, I001  # registers them
from evergraph.data.datasets.base import DATASETS, Dataset

__all__ = ["DATASETS", "Dataset"]
