"""Generated graphs that change over time: nodes whose classes drift, and links that keep arriving."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from evergraph.core.settings import Bounds, Fraction, NonNegative, PositiveInt, Seed, checked
from evergraph.data.datasets.base import DATASETS, Dataset
from evergraph.data.examples import make_links
from evergraph.data.graph import Graph, make_graph
from evergraph.errors import EvergraphError


@checked
def drift(
    nodes: PositiveInt = 1500,
    classes: Annotated[int, Bounds(at_least=2)] = 4,
    degree: NonNegative = 8.0,
    homophily: Fraction = 0.8,
    features: Annotated[int, Bounds(at_least=2)] = 16,
    turn: float = 2.0,
    targets: Literal["classes", "labels", "numbers"] = "classes",
    seed: Seed = 0,
) -> Graph:
    """Generate a block model whose nodes arrive over time, while the class means rotate.

    Node i has the attribute `time` = i / nodes. Its features are its class mean plus half-unit Gaussian noise; the
    means, points on a circle in a random plane, rotate by `turn` radians from beginning to end, so that what was
    learned early is wrong later. Edges join nodes of about the same time, mostly of the same class.

    Args:
        nodes: number of nodes.
        classes: number of classes.
        degree: mean number of neighbours.
        homophily: share of edges whose ends have the same class.
        features: number of features.
        turn: how far the means rotate, in radians.
        targets: `classes`; `labels` (two labels: whether the class number is odd, and whether it is in the upper half);
            `numbers` (one: the sine of an angle given by the class number, with a little noise).
        seed: the same seed gives the same graph.
    """
    if not (nodes >= 10 * classes and degree < nodes):
        raise EvergraphError(
            f"drift: nodes={nodes}, classes={classes}, degree={degree:g} is impossible; it takes nodes ≥ 10 × classes "
            "and degree < nodes"
        )
    random = np.random.default_rng(seed)
    time = np.arange(nodes) / nodes
    kind = random.integers(0, classes, nodes)
    kind[:classes] = np.arange(classes)
    plane = np.linalg.qr(random.standard_normal((features, 2)))[0].T
    angle = 2 * np.pi * kind / classes + turn * time
    x = 2 * np.stack([np.cos(angle), np.sin(angle)], 1) @ plane + 0.5 * random.standard_normal((nodes, features))
    count = int(nodes * degree / 2)
    source = random.integers(0, nodes, count)
    target = np.clip(source + random.integers(-nodes // 10, nodes // 10 + 1, count), 0, nodes - 1)
    alike = kind[source] == kind[target]
    keep = random.random(count) < np.where(alike, homophily, (1 - homophily) / (classes - 1))
    shared: dict[str, Any] = {"undirected": True, "attributes": {"time": time}, "name": "drift"}
    edges = np.stack([source[keep], target[keep]])
    if targets == "labels":
        labels = np.stack([kind % 2, kind >= classes / 2], 1).astype(np.float32)
        return make_graph(x, edges, labels, columns=True, class_names=["odd", "upper"], **shared)
    if targets == "numbers":
        number = np.sin(2 * np.pi * kind / classes + 0.5) + 0.1 * random.standard_normal(nodes)
        return make_graph(x, edges, number[:, None], columns=True, class_names=["height"], **shared)
    return make_graph(x, edges, kind, **shared)


@checked
def growing_links(
    nodes: PositiveInt = 1000,
    waves: PositiveInt = 5,
    groups: Annotated[int, Bounds(at_least=2)] = 20,
    links: PositiveInt = 4000,
    features: PositiveInt = 16,
    seed: Seed = 0,
) -> Graph:
    """Generate existing links between nodes that arrive in waves; every wave brings its own communities.

    A link joins two nodes of one wave, with probability 0.9 of the same community. A node's features are the mean of
    its community, drawn anew for every wave, plus half-unit Gaussian noise. Links have the attribute `time`.

    Args:
        nodes: number of nodes.
        waves: number of waves in which nodes arrive.
        groups: number of communities in a wave.
        links: number of links.
        features: number of features.
        seed: the same seed gives the same links.
    """
    size = nodes // (waves * groups)
    if size < 3 or links < 20 * waves:
        raise EvergraphError(
            f"growing-links: nodes={nodes}, waves={waves}, groups={groups}, links={links} is impossible; it takes "
            "3 nodes and more in each group of a wave, and 20 links in a wave"
        )
    random = np.random.default_rng(seed)
    group = np.arange(waves * groups * size) % groups
    wave = np.repeat(np.arange(waves), groups * size)
    means = random.standard_normal((waves, groups, features))
    x = means[wave, group] + 0.5 * random.standard_normal((wave.size, features))
    time = np.arange(links) / links
    start = (time * waves).astype(np.int64) * groups * size
    inside = random.integers(0, groups * size, links)
    alike = random.integers(0, size, links) * groups + inside % groups  # another node of the same community
    other = np.where(random.random(links) < 0.9, alike, random.integers(0, groups * size, links))
    keep = inside != other
    pairs = np.stack([start + inside, start + other])[:, keep]
    return make_links(x, pairs, negatives=True, attributes={"time": time[keep]}, name="growing-links")


@checked
def growing_ratings(
    nodes: PositiveInt = 400,
    groups: Annotated[int, Bounds(at_least=3)] = 20,
    links: Annotated[int, Bounds(at_least=50)] = 4000,
    features: PositiveInt = 32,
    seed: Seed = 0,
) -> Graph:
    """Generate links of three classes that keep arriving, while the meaning of the classes shifts.

    Nodes have hidden groups and noisy group means as features. A link's class says how far the target's group is from
    the source's, counted from a zero that moves by one group in each fifth of the time.

    Args:
        nodes: number of nodes.
        groups: number of hidden groups.
        links: number of links.
        features: number of features.
        seed: the same seed gives the same links.
    """
    if nodes < 10 * groups:
        raise EvergraphError(
            f"growing-ratings: nodes={nodes}, groups={groups} is impossible; it takes nodes ≥ 10 × groups"
        )
    random = np.random.default_rng(seed)
    group = np.arange(nodes) % groups
    x = random.standard_normal((groups, features))[group] + 0.3 * random.standard_normal((nodes, features))
    time = np.arange(links) / links
    source, step = random.integers(0, nodes, links), (5 * time).astype(np.int64)
    wanted = np.where(random.random(links) < 0.8, group[source] + step, random.integers(0, groups, links)) % groups
    target = random.integers(0, nodes // groups, links) * groups + wanted
    keep = source != target
    distance = (group[target] - group[source] + step) % groups
    names = ["near", "middle", "far"]
    return make_links(
        x,
        np.stack([source, target])[:, keep],
        (3 * distance // groups)[keep],
        class_names=names,
        attributes={"time": time[keep]},
        name="growing-ratings",
    )


IN_TIME = {"scenario": "time", "stream": {"by": "time", "bins": 5}}
for name, targets, problem, about in (
    ("drift", "classes", "node-classification", "generated: nodes that arrive over time, class means that turn"),
    ("drift-labels", "labels", "node-labelling", "generated: the same with two labels of each node"),
    ("drift-numbers", "numbers", "node-regression", "generated: the same with a number of each node"),
):
    DATASETS.register(
        Dataset(
            name,
            lambda data_root, targets=targets, **settings: drift(targets=targets, **settings),
            about=f"{about}; {name}:nodes=1500,turn=2",
            problem=problem,
            settings_like=drift,
            **IN_TIME,  # type: ignore[arg-type]
        )
    )
for name, made, problem, about in (
    ("growing-links", growing_links, "link-prediction", "generated: links between nodes that arrive in waves"),
    (
        "growing-ratings",
        growing_ratings,
        "link-classification",
        "generated: links of three classes that keep arriving",
    ),
):
    DATASETS.register(
        Dataset(
            name,
            lambda data_root, made=made, **settings: made(**settings),
            about=f"{about}; {name}:links=4000,features=16",
            problem=problem,
            settings_like=made,
            **IN_TIME,  # type: ignore[arg-type]
        )
    )
