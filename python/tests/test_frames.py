# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Frames of pandas, polars and Arrow hold the same values, and units survive a file."""

from __future__ import annotations

from pathlib import Path

import pytest

import bifold
from bifold import Table


def test_frames_hold_the_table(data: Path) -> None:
    table = bifold.read_result(data / "fork.json").totals()
    pandas = pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.attrs["units"]["walk_cycles"] == "cycles"
    assert list(frame["walk_cycles"]) == table["walk_cycles"]
    assert frame["walk_cycles"].dtype == "int64"


def test_polars_frames_hold_the_table(data: Path) -> None:
    polars = pytest.importorskip("polars")
    table = bifold.read_result(data / "fork.json").totals()
    frame = table.to_polars()
    assert frame.columns == table.columns
    assert frame["walk_cycles"].to_list() == table["walk_cycles"]
    large = Table({"n": [1, None, (1 << 64) - 1]}).to_polars()
    assert large["n"].dtype == polars.UInt64 and large["n"].to_list() == [1, None, (1 << 64) - 1]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_units_survive_parquet_and_arrow(data: Path, tmp_path: Path, kind: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = bifold.read_timeline(data / "fork.timeline").intervals()
    file = tmp_path / f"x.{kind}"
    if kind == "parquet":
        parquet.write_table(table.to_arrow(), file)
    else:
        with arrow.OSFile(str(file), "wb") as sink, arrow.ipc.new_file(sink, table.to_arrow().schema) as writer:
            writer.write_table(table.to_arrow())
    again = bifold.read_table(file)
    assert again.units == table.units and again.columns == table.columns and len(again) == len(table)
    assert all(again[name] == table[name] for name in table.columns)
    assert again.where(config="nested-4k")["walks"] == table.where(config="nested-4k")["walks"]
    whole = file.read_bytes()
    for length in (8, 12, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(bifold.FileError, match="damaged or cut off"):
            bifold.read_table(file)


def test_parquet_without_metadata_gets_the_units_of_known_columns(tmp_path: Path) -> None:
    """As `bifold stat --format parquet` writes: unsigned counts, and what the host cannot tell is null."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("pandas")
    made = arrow.table({"time": [1.5, 2.5], "vm": ["7-3", "7-3"], "cycles": arrow.array([None, 1 << 63], arrow.uint64())})
    parquet.write_table(made, tmp_path / "stat.parquet")
    table = bifold.read_table(tmp_path / "stat.parquet")
    assert table.units == {"time": "s", "cycles": "cycles"}
    frame = table.to_pandas()
    assert frame["cycles"].isna().tolist() == [True, False] and int(frame["cycles"][1]) == 1 << 63
    assert frame.attrs["units"] == table.units


def test_a_table_refuses_what_it_does_not_have() -> None:
    table = Table.of_rows([{"a": 1}, {"b": 2}])
    assert list(table) == [{"a": 1, "b": None}, {"a": None, "b": 2}]
    with pytest.raises(KeyError, match="c: the table has a, b"):
        table["c"]
    with pytest.raises(KeyError):
        table.where(c=1)
    with pytest.raises(bifold.BifoldError, match="different lengths"):
        Table({"a": [1], "b": [1, 2]})


def test_plots_draw_what_the_table_has(data: Path) -> None:
    pytest.importorskip("matplotlib").use("agg")
    from bifold import plot

    result = bifold.read_result(data / "fork.json")
    axes = plot.overheads(result)
    shown = [0.0] * 3
    for bars in axes.containers:
        for i, bar in enumerate(bars):
            shown[i] += bar.get_height()
    totals = result.totals()
    expected = [sum(totals[part][i] for part in ("walk_percent", "vmm_percent", "data_percent", "frames_percent")) for i in range(3)]
    assert shown == pytest.approx(expected) and expected == pytest.approx(totals["overhead_percent"])
    times = [bar.get_height() for bar in plot.times(result).patches]
    assert times == pytest.approx(totals["seconds"])
    lines = plot.over_time(bifold.read_timeline(data / "fork.timeline")).get_lines()
    assert [line.get_label() for line in lines] == ["shadow-4k", "nested-4k"]
    with pytest.raises(bifold.BifoldError, match="over_time needs"):
        plot.over_time(result.totals())
