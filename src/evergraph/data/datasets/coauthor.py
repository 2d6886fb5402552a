"""Coauthor graphs: authors, joined by papers written together."""

from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.datasets.official import GNN_BENCHMARK, OfficialGraph

COAUTHOR_CS = OfficialGraph(
    name="coauthor-cs",
    path="CS/raw/ms_academic_cs.npz",
    counts=(18333, 6805, 15),
    url=f"{GNN_BENCHMARK}/ms_academic_cs.npz",
    sha256="933c745734e78908c7eb77172a673fee0503f30e26e5a99b36814d88534c42e3",
    fingerprint="ba32ada7ee52517649fb67d71e22f54a05bfb118840d6ecca36e4ba141fb47db",
)
DATASETS.register(
    Dataset(
        "coauthor-cs",
        COAUTHOR_CS.load,
        classes_per_task=3,
        about="Coauthor-CS: authors, joined by papers written together; fields of study",
    )
)

COAUTHOR_PHYSICS = OfficialGraph(
    name="coauthor-physics",
    path="Physics/raw/ms_academic_phy.npz",
    counts=(34493, 8415, 5),
    url=f"{GNN_BENCHMARK}/ms_academic_phy.npz",
    sha256="e4d68468eba5fb8f6b280ffd406bd53e6e4295ba1dd2967d6fe99b978e4b3375",
)
DATASETS.register(
    Dataset(
        "coauthor-physics",
        COAUTHOR_PHYSICS.load,
        classes_per_task=2,
        about="Coauthor-Physics: authors, joined by papers written together; fields of study",
    )
)
