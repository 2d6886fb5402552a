"""Graphs whose neighbours are often unlike: BlogCatalog, Actor, and the filtered Wikipedia graphs."""

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.collections import read_masked_npz
from evergraph.data.datasets.official import OfficialGraph

HETEROPHILOUS = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"

for name, path, counts, per_task, url, about in (
    (
        "blogcatalog",
        "BlogCatalog/raw/blogcatalog.npz",
        (5196, 8189, 6),
        2,
        "https://github.com/EdisonLeeeee/GraphData/raw/master/datasets/blogcatalog.npz",
        "BlogCatalog: bloggers who follow each other, keywords; interest groups",
    ),
    (
        "actor",
        "Actor/raw/actor.npz",
        (7600, 932, 5),
        2,
        f"{HETEROPHILOUS}/actor.npz",
        "Actor: actors named on the same pages, keywords; kinds of actors",
    ),
    (
        "squirrel-filtered",
        "SquirrelFiltered/raw/squirrel_filtered.npz",
        (2223, 2089, 5),
        2,
        f"{HETEROPHILOUS}/squirrel_filtered.npz",
        "Squirrel without duplicates (Platonov et al.): Wikipedia pages by traffic",
    ),
    (
        "chameleon-filtered",
        "ChameleonFiltered/raw/chameleon_filtered.npz",
        (890, 2325, 5),
        2,
        f"{HETEROPHILOUS}/chameleon_filtered.npz",
        "Chameleon without duplicates (Platonov et al.): Wikipedia pages by traffic",
    ),
):
    _graph = OfficialGraph(name=name, path=path, counts=counts, url=url, read=read_masked_npz)
    DATASETS.register(Dataset(name, _graph.load, classes_per_task=per_task, about=about, stream={"split": "random"}))
