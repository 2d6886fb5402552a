"""Datasets, one file each, listed in the order of the imports below."""

# ruff: noqa: F401, I001  # importing them registers them
from evergraph.data.datasets import digits, coauthor, amazon, corafull, arxiv, ogb, pyg, heterophilous
from evergraph.data.datasets import twitch, tu, bitcoin, digit_graphs, drift, sbm
from evergraph.data.datasets.base import DATASETS, Dataset

__all__ = ["DATASETS", "Dataset"]
