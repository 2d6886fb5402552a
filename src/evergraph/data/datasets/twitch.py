"""Twitch (Rozemberczki et al., MUSAE): streamers in seven countries with a shared feature space."""

from functools import partial

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.collections import read_countries
from evergraph.data.datasets.known_hashes import TWITCH_HASHES
from evergraph.data.datasets.official import OfficialGraph
from evergraph.data.download import Published

MUSAE = "https://github.com/EdisonLeeeee/GraphData/raw/master/datasets/musae"
COUNTRIES = ("DE", "ENGB", "ES", "FR", "PTBR", "RU", "ZHTW")

TWITCH = OfficialGraph(
    name="twitch",
    path="Twitch/raw",
    counts=(36890, 3170, 2),
    fingerprint="e2e449ec688c9f72e9248bc292beed8fe839222ce9981d29ce2a2cff35c9aa1c",
    read=partial(read_countries, countries=COUNTRIES),
    files={
        name: Published(f"{MUSAE}/{name.split('_')[1]}/{name.split('_')[2]}", sha256)
        for name, sha256 in TWITCH_HASHES.items()
    },
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
