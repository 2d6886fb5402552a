"""Tables as people export them: what would be read as something else than was meant is refused, with the way out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evergraph as eg

ROWS = [(number, number / 2, number % 3, "xy"[number % 2]) for number in range(1, 13)]


def table(path: Path, rows: Any = ROWS, header: str = "id,a,b,label", between: str = ",") -> Path:
    lines = [header, *(between.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(line for line in lines if line) + "\n")
    return path


def told(*words: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        eg.from_tables(*words, **options)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("row", "cell", "message"),
    [
        (2, '"x', r"t\.csv: line 4 opens a quote that is never closed"),
        (11, '"x', r"t\.csv: line 13 opens a quote that is never closed"),
    ],
)
def test_a_quote_that_is_never_closed_swallows_no_rows(tmp_path: Path, row: int, cell: str, message: str) -> None:
    rows = [(*one[:3], cell) if number == row else one for number, one in enumerate(ROWS)]
    with pytest.raises(eg.EvergraphError, match=message):
        eg.from_tables(table(tmp_path / "t.csv", rows))


@pytest.mark.parametrize("column", ["id", "label"])
def test_a_quote_that_is_closed_in_a_later_row_swallows_none(tmp_path: Path, column: str) -> None:
    path = tmp_path / "t.csv"
    text = {"label": 'id,a,label\n1,1,"x\n2,2,y\n3,3,x"\n4,2,y\n', "id": 'id,a,label\n"1,1,x\n2",2,y\n4,2,y\n'}
    path.write_text(text[column])
    with pytest.raises(eg.EvergraphError, match=rf"line 2 has a line break in column '{column}'; look at the quotes"):
        eg.from_tables(path)


def test_a_column_without_any_value_has_no_mean(tmp_path: Path) -> None:
    rows = [(number, a, "", label) for number, a, _, label in ROWS]
    line = r"column 'segment' has no value at all; name it \(label=segment\) if it is for the classes, or leave it out"
    path = table(tmp_path / "t.csv", rows, header="id,a,segment,label")
    for missing in ("refuse", "mean"):
        with pytest.raises(eg.EvergraphError, match=line):
            eg.from_tables(path, missing=missing)
    assert told(path, missing="zero") == [
        "t: 12 of 24 features are missing, in column 'segment' (12); filled in with 0"
    ]
    assert eg.from_tables(table(tmp_path / "u.csv", [(*row[:2], row[3], "") for row in ROWS], "id,a,b,segment"),
                          label="segment").num_features == 1  # fmt: skip


@pytest.mark.parametrize("first", [("1", "0.5", "7", "x"), ("n1", "0.5", "7", "y"), ("1.5", "2.5", "3.5", "4.5")])
def test_a_table_without_a_header_loses_no_node(tmp_path: Path, first: tuple[str, ...]) -> None:
    rows = [first, *((f"n{n}" if first[0] == "n1" else n, a, b, 3 if "4.5" in first else c) for n, a, b, c in ROWS)]
    with pytest.raises(
        eg.EvergraphError, match=r"its first line, .*, looks like a node; write the names of the columns"
    ):
        eg.from_tables(table(tmp_path / "t.csv", rows, header=""))


@pytest.mark.parametrize("header", ["id,2019,2020,label", "name,0,1,role", "id,a,7,label"])
def test_columns_may_be_called_by_numbers(tmp_path: Path, header: str) -> None:
    assert eg.from_tables(table(tmp_path / "t.csv", header=header)).num_nodes == 12
    named = eg.from_tables(table(tmp_path / "u.csv", [row[1:3] for row in ROWS], "19,20"), features=["19", "20"])
    assert named.num_features == 2


@pytest.mark.parametrize("between", ["|", " "])
def test_other_separators_are_named(tmp_path: Path, between: str) -> None:
    path = table(tmp_path / "t.csv", header=between.join(("id", "a", "b", "label")), between=between)
    what = r"\|" if between == "|" else "spaces"
    with pytest.raises(eg.EvergraphError, match=f"its cells are separated by {what}; separate them by commas"):
        eg.from_tables(path)
    with pytest.raises(eg.EvergraphError, match=f"its cells are separated by {what}"):
        eg.from_tables(
            {"id": [1, 2], "a": [1, 2]}, table(tmp_path / "e.csv", [(1, 2)], f"source{between}target", between)
        )


DAYS = [f"2024-01-{day:02d}" for day in range(1, 13)]


@pytest.mark.parametrize("kind", ["text", "datetime", "timedelta", "time", "numpy"])
def test_dates_are_called_dates(kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    days: Any = {
        "text": DAYS,
        "datetime": pandas.to_datetime(pandas.Series([*DAYS[:11], None])),
        "timedelta": pandas.to_timedelta(pandas.Series(range(12)), unit="D"),
        "time": [f"{hour}:30" for hour in range(12)],
        "numpy": np.array(DAYS, dtype="datetime64[D]"),
    }[kind]
    columns = {"id": range(12), "a": np.arange(12.0), "when": days}
    frame = pandas.DataFrame(columns) if kind != "numpy" else {key: list(values) for key, values in columns.items()}
    line = (
        "nodes: columns of dates or times are not features: 'when'; convert them to a number (days since a fixed date"
    )
    assert next(one for one in told(frame) if "when" in one).startswith(line)
    with pytest.raises(eg.EvergraphError, match="column 'when' holds dates or times; convert them to a number"):
        eg.from_tables(frame, features=["a", "when"])


def test_edges_that_write_ids_otherwise_see_how_they_are_written(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", [(f"{row[0]}.0", *row[1:]) for row in ROWS])
    edges = table(tmp_path / "e.csv", [(1, 2)], "source,target")
    with pytest.raises(eg.EvergraphError, match=r"names node '1', which is not in t; .*, whose ids are like '1\.0'"):
        eg.from_tables(path, edges)


def test_numbers_in_a_label_column_are_another_problem_with_its_own_setting(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", [(*row[:3], row[0] + 0.5) for row in ROWS])
    with pytest.raises(eg.EvergraphError, match="numbers=True in from_tables"):
        eg.from_tables(path)
    assert eg.from_tables(path, numbers=True).y.dtype.is_floating_point
