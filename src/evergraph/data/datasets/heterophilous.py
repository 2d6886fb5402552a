"""Graphs in which neighbours often differ in class: BlogCatalog, Actor, and the filtered Wikipedia graphs."""

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.collections import read_masked_npz
from evergraph.data.datasets.official import OfficialGraph

HETEROPHILOUS = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"

for name, path, counts, url, sha256, fingerprint, about in (
    (
        "blogcatalog",
        "BlogCatalog/raw/blogcatalog.npz",
        (5196, 8189, 6),
        "https://github.com/EdisonLeeeee/GraphData/raw/master/datasets/blogcatalog.npz",
        "115be8c3396ae7db96c60df578c8c24ee46d2547ca62fa538ec9852c338df6c6",
        "9c2adf4203a8e1fa0d08eb66f9d5cf3da1c607365dfef2f89492c1049072df8e",
        "BlogCatalog: bloggers who follow each other, keywords; interest groups",
    ),
    (
        "actor",
        "Actor/raw/actor.npz",
        (7600, 932, 5),
        f"{HETEROPHILOUS}/actor.npz",
        "c350eef06b2c2a9bf8218be2b57cac6d4003d0922eb597a039e9123f75817816",
        "6d24fabd86265826f6c5743fde8dba3872d56388e4568f2be84d7a9c01654102",
        "Actor: actors named on the same pages, keywords; kinds of actors",
    ),
    (
        "squirrel-filtered",
        "SquirrelFiltered/raw/squirrel_filtered.npz",
        (2223, 2089, 5),
        f"{HETEROPHILOUS}/squirrel_filtered.npz",
        "f06370ffb3116c5de8b7a600005400b2293c025e0ce2f6916d8201a825505ac7",
        "2878d06615bd5015b1a042407f95dd189b3613ee56a199fd922f28926b32e7a1",
        "Squirrel without duplicates (Platonov et al.): Wikipedia pages by traffic",
    ),
    (
        "chameleon-filtered",
        "ChameleonFiltered/raw/chameleon_filtered.npz",
        (890, 2325, 5),
        f"{HETEROPHILOUS}/chameleon_filtered.npz",
        "bf46f07e1fb5249280447e5fe3100f3e82fc4b93ad1e13ffcfdec924b6ac0bb5",
        "1fe9a88a7efa9a04bc6ed3e322385da4fb3a6288a943b590f778c8520c7b01b2",
        "Chameleon without duplicates (Platonov et al.): Wikipedia pages by traffic",
    ),
):
    _graph = OfficialGraph(name, path, counts, url, sha256, fingerprint, read=read_masked_npz)
    DATASETS.register(Dataset(name, _graph.load, about=about, stream={"split": "random"}))
