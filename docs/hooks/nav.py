"""Puts the pages in order. A page that is not named here is listed all the same, so none can be forgotten."""

from pathlib import Path
from typing import Any

SECTIONS: list[tuple[str, list[str]]] = [
    ("Start", ["index.md", "quickstart.md", "which-method.md", "analytic.md", "concepts.md", "problems.md"]),
    ("Bring your own", ["own-graph.md", "formats.md", "own-model.md", "own-method.md"]),
    (
        "Day to day",
        ["learner.md", "new-data.md", "probabilities.md", "unknown-classes.md", "why.md", "forgetting.md", "model-card.md",
         "runs.md", "clusters.md", "selection.md", "report.md", "loggers.md", "cli.md"],
    ),
    ("The mathematics", ["curvature.md", "scaling.md", "costs.md"]),
    ("Methods", ["methods/*.md"]),
    ("Results", ["results.md", "results*.md", "paper*.md", "performance.md"]),
    ("Architecture", ["architecture.md"]),
    (
        "API reference",
        [
            f"reference/{name}.md"
            for name in ("index", "learner", "data", "methods", "writing-methods", "models", "problems", "*")
        ],
    ),
]


def on_config(config: Any) -> Any:
    """Build the navigation from the pages that exist."""
    folder = Path(config["docs_dir"])
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md") if "hooks" not in path.parts}
    navigation: list[Any] = []
    for title, patterns in SECTIONS:
        pages = []
        for pattern in patterns:
            matching = sorted(
                name for name in left if Path(name).match(pattern) and name.count("/") == pattern.count("/")
            )
            matching.sort(key=lambda name: not name.endswith("index.md"))
            pages += matching
            left -= set(matching)
        if pages:
            navigation.append({title: pages})
    if left:
        navigation.append({"More": sorted(left)})
    config["nav"] = navigation
    return config
