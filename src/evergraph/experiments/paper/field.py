"""The table of protocol `field`: every method on one stream and all test graphs, with what each method keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evergraph.experiments.comparison import markdown, table_rows, write_tables
from evergraph.experiments.method_table import write_method_table
from evergraph.experiments.paper.protocol import Protocol
from evergraph.experiments.report import write_report
from evergraph.experiments.result_file import CHOOSING
from evergraph.persistence.files import write_atomically


def write_field(
    protocol: Protocol,
    results: Mapping[str, dict[str, Any]],
    wanted: Sequence[str] | None,
    problems: Mapping[str, str],
    folder: Path,
) -> dict[str, Any]:
    """Write `table.md` and `table.csv`, `methods.*`, and the sortable page with AP against bytes.

    Args:
        protocol: the protocol that was run.
        results: results by cell key.
        wanted: the requested rows; None for all.
        problems: why a cell has no result, by its key, and why a dataset was not run, by its name.
        folder: where to write.
    """
    rows = protocol.rows(wanted)
    listed = [results[key] for name in rows if (key := protocol.key(name)) in results]
    search = protocol.content["search"]
    note = (
        f"{protocol.content['about'].capitalize()}. Settings chosen by the rule {search['rule']}, {search['trials']} "
        f"trials each; {protocol.seeds} seed{'s' * (protocol.seeds > 1)}."
    )
    failed = ""
    if failures := [line for name in rows if (line := _failure(protocol, name, results, problems))]:
        failed = "\n\nNot measured:\n\n" + "\n".join(f"- {line}" for line in failures)
    place = folder / "table.md"
    if not listed:
        write_atomically(place, f"{note}{failed}\n")
        return {"markdown": str(place), "figures": []}
    tuned: dict[str, set[str]] = {}
    for row in rows.values():
        tuned.setdefault(row["method"], set()).update(protocol.searched_settings(row))
    entries = table_rows(listed, tuned)
    write_tables(entries, folder)
    write_atomically(
        place, f"**{protocol.dataset}, protocol `{protocol.name}`**: {note}{failed}\n\n{markdown(entries)}"
    )
    write_method_table(listed, folder, note, tuned)
    page = write_report([folder], folder / "report.html", figures=False).page
    return {"markdown": str(place), "figures": [], "report": str(page)}


def _failure(
    protocol: Protocol, name: str, results: Mapping[str, dict[str, Any]], problems: Mapping[str, str]
) -> str | None:
    """Why a row was not measured: its own failure, that of its trials, or a missing dataset; None if it was."""
    key, title = protocol.key(name), protocol.content["rows"][name]["title"]
    if key in results:
        return None
    trials = protocol.key(f"{CHOOSING}/{protocol.searched(protocol.content['rows'][name])[0]}@")
    reasons = [problems.get(key), problems.get(protocol.dataset)]
    reasons += [reason for trial, reason in problems.items() if trial.startswith(trials)]
    return f"{title}: {next(filter(None, reasons), 'it was not run')}"
