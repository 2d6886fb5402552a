"""Twitch (Rozemberczki et al., MUSAE): streamers of seven countries in one feature space."""

from functools import partial

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.collections import read_countries
from evergraph.data.datasets.official import OfficialGraph

COUNTRIES = ("DE", "ENGB", "ES", "FR", "PTBR", "RU", "ZHTW")

TWITCH = OfficialGraph(
    name="twitch",
    path="Twitch/raw",
    counts=(36890, 3170, 2),
    url="https://snap.stanford.edu/data/twitch.zip",
    read=partial(read_countries, countries=COUNTRIES),
)
DATASETS.register(
    Dataset(
        "twitch",
        TWITCH.load,
        about="Twitch: streamers of seven countries, friendships; whether they use mature language. A country a task",
        scenario="domain",
        stream={"by": "domain"},
    )
)
