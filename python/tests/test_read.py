# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Files are read with their units, and what is no such file is refused with a reason."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from units import module

import bifold

READERS: dict[str, Callable[[Path], Any]] = {
    "fork.json": bifold.read_result,
    "fork-baseline.json": bifold.read_result,
    "fork-trace.json": bifold.read_trace,
    "fork.timeline": bifold.read_timeline,
    "fork.csv": bifold.read_table,
    "fork.jsonl": bifold.read_table,
}


def test_a_result_has_its_totals_with_units(data: Path) -> None:
    result = bifold.read_result(data / "fork.json")
    assert result.configs == ["native", "nested-4k", "shadow-4k"]
    assert result.name == "fork-storm:40"
    totals = result.totals()
    assert totals.units["walk_cycles"] == "cycles"
    assert totals.units["overhead_percent"] == "%"
    assert totals.docs["instructions"] == "Guest instructions executed."
    of_document = [c["figures"]["overhead_percent"] for c in result.document["outcome"]["configs"]]
    assert totals["overhead_percent"] == of_document


def test_intervals_sum_to_the_totals_in_every_format(data: Path) -> None:
    result = bifold.read_result(data / "fork.json")
    counters = [c["name"] for c in result.document["counters"]]
    tables = [result.intervals(), bifold.read_table(data / "fork.csv"), bifold.read_table(data / "fork.jsonl")]
    for config in result.configs:
        total = next(iter(result.totals().where(config=config)))
        for table in tables:
            rows = table.where(config=config)
            assert {name: sum(rows[name]) for name in counters} == {name: total[name] for name in counters}
            assert table.units["walk_cycles"] == "cycles"


def test_a_timeline_agrees_with_the_result_of_the_same_run(data: Path) -> None:
    result, timeline = bifold.read_result(data / "fork.json"), bifold.read_timeline(data / "fork.timeline")
    assert timeline.configs == ["shadow-4k", "nested-4k"]
    for config in timeline.configs:
        mine = next(iter(timeline.totals().where(config=config)))
        theirs = next(iter(result.totals().where(config=config)))
        for figure in ("overhead_percent", "seconds"):
            assert mine[figure] == pytest.approx(theirs[figure], rel=1e-12)
        rows = timeline.intervals().where(config=config)
        assert sum(rows["walk_cycles"]) == mine["walk_cycles"] == theirs["walk_cycles"]


def test_costs_by_place_have_a_row_for_each_configuration(data: Path) -> None:
    document = json.loads((data / "fork.json").read_text())
    costs = [{"tlb_misses": n, "walk_cycles": 30 * n, "exits": 0, "vmm_cycles": 0, "walk_hidden_cycles": 0, "data_wait_cycles": -1} for n in (1, 2)]
    place = {"process": "cc1", "binary": "cc1", "function": "parse", "mapping": "heap", "costs": costs}
    document["where"] = {"configs": ["native", "nested-4k"], "rows": [place], "cause_rows": [{**place, "mapping": "system call"}]}
    result = bifold.Result(document)
    assert result.where().where(config="nested-4k")["walk_cycles"] == [60]
    assert result.where("cause")["mapping"] == ["system call"] * 2
    assert {name: result.where().units[name] for name in costs[0]} == dict.fromkeys(costs[0], "cycles") | {"tlb_misses": "1", "exits": "1"}
    with pytest.raises(bifold.FileError, match="run bifold compare --where"):
        bifold.read_result(data / "fork.json").where()
    with pytest.raises(ValueError, match="'code' or 'cause'"):
        result.where("both")


def test_a_result_of_the_first_version_has_times_and_compares_with_a_new_one(data: Path) -> None:
    old, new = bifold.read_result(data / "fork-1.json"), bifold.read_result(data / "fork.json")
    assert old.document["schema"] == "bifold.compare/1" and new.document["schema"] == "bifold.compare/2"
    change = old.change_to(new)
    assert change["config"] == new.configs and change["instructions_percent"] == [0, 0, 0]
    for row in change:
        assert (row["percent"] < 0) == (row["other_seconds"] < row["seconds"])


@pytest.mark.parametrize("shorter", [0.9, 0.8, 0.5, 0.3])
def test_a_program_that_a_setting_shortens_takes_less_time_where_its_overhead_rises(data: Path, shorter: float) -> None:
    long = bifold.read_result(data / "fork.json")
    document = json.loads((data / "fork.json").read_text())
    for config in document["outcome"]["configs"]:
        config["total"]["instructions"] = round(config["total"]["instructions"] * shorter)
        del config["figures"]
    short = bifold.Result(document)
    for row, before in zip(long.change_to(short), long.totals()):
        assert row["percent"] < 0 and row["instructions_percent"] == pytest.approx(100 * (shorter - 1), abs=0.01)
        assert before["seconds"] == pytest.approx(row["seconds"])


def test_a_baseline_is_a_result_without_intervals(data: Path) -> None:
    baseline = bifold.read_result(data / "fork-baseline.json")
    assert baseline.totals()["walks"] == bifold.read_result(data / "fork.json").totals()["walks"]
    assert len(baseline.intervals()) == 0


def test_a_trace_has_the_overhead_of_the_intervals(data: Path) -> None:
    trace = bifold.read_trace(data / "fork-trace.json")
    assert set(trace["config"]) == {"native", "nested-4k", "shadow-4k"}
    assert trace.units["seconds"] == "s"
    timeline = bifold.read_timeline(data / "fork.timeline").intervals().where(config="shadow-4k")
    parts = trace.where(config="shadow-4k", track="overhead, %")
    for at, percent in zip(timeline["seconds"], timeline["overhead_percent"]):
        # The trace has microseconds of the ideal run, and starts of intervals that are no round numbers.
        near = min(set(parts["seconds"]), key=lambda seconds: abs(seconds - at))
        assert sum(v for s, v in zip(parts["seconds"], parts["value"]) if s == near) == pytest.approx(percent, rel=1e-6)


def test_columns_of_text_stay_text(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("config,input_hash,walks,load,mode\nnative,0123456789012345,7,0.5,\nnested-4k,12e4,,,nested\n")
    table = bifold.read_table(file)
    assert table["input_hash"] == ["0123456789012345", "12e4"]
    assert table["walks"] == [7, None]
    assert table["load"] == [0.5, None]
    assert table["mode"] == [None, "nested"]
    frame = table.to_pandas()
    assert str(frame["walks"].dtype) == "Int64" and frame["walks"].isna().tolist() == [False, True]


def test_units_are_those_of_the_schemas_and_of_the_book(repository: Path) -> None:
    made = (repository / "python/bifold/_units.py").read_text(encoding="utf-8")
    assert made == module(), "python3 tests/units.py > bifold/_units.py"


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_cut_off_or_damaged_is_refused_by_name_or_read(data: Path, tmp_path: Path, name: str) -> None:
    whole = (data / name).read_bytes()
    file = tmp_path / name
    chance = random.Random(name)
    for _ in range(60):
        content = bytearray(whole[: chance.randrange(len(whole))])
        if content and chance.random() < 0.5:
            content[chance.randrange(len(content))] = chance.randrange(256)
        file.write_bytes(content)
        try:
            READERS[name](file)
        except bifold.FileError as e:
            assert str(file) in str(e)


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a document: its container and its key."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in nodes(value[key])]


def use(found: Any) -> None:
    for made in (found,) if isinstance(found, bifold.Table) else (found.totals(), found.intervals()):
        assert len(list(made)) == len(made)


@pytest.mark.parametrize("name", ["fork.json", "fork-trace.json", "timeline"])
def test_a_document_with_a_value_of_another_form_is_refused_by_name_or_read(data: Path, tmp_path: Path, name: str) -> None:
    whole = (data / name).read_text() if name != "timeline" else json.dumps(bifold.read_timeline(data / "fork.timeline").document)
    reader = READERS.get(name, bifold.read_timeline)
    file, chance = tmp_path / name, random.Random(name)
    refused = 0
    for _ in range(150):
        document = json.loads(whole)
        container, key = chance.choice(nodes(document))
        if chance.random() < 0.2:
            del container[key]
        else:
            container[key] = chance.choice([None, True, -1, 1 << 70, 0.5, "x", [], [None], {}, {"x": [1]}])
        file.write_text(json.dumps(document))
        try:
            use(reader(file))
        except bifold.FileError as e:
            assert str(file) in str(e)
            refused += 1
    assert refused > 0


@pytest.mark.parametrize("name", READERS)
def test_a_reader_refuses_the_files_of_the_others(data: Path, name: str) -> None:
    document = {"fork.json", "fork-baseline.json", "fork-trace.json", "fork.timeline"}
    for other in document - {name}:
        if READERS[name] is READERS[other] or READERS[name] is bifold.read_table:
            continue
        with pytest.raises(bifold.FileError, match="write|writes"):
            READERS[name](data / other)


def test_what_is_no_file_of_bifold_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    with pytest.raises(bifold.FileError, match="x.json: cannot be read: No such file"):
        bifold.read_result(file)
    for content, why in [
        (b"", "empty"),
        (b"{}", "schema bifold.compare/2; bifold compare --format json writes one"),
        (b'{"schema": "bifold.compare/3"}', "use a package of that Bifold's version"),
        (b'{"schema": "bifold.compare/2"}', "`outcome` is missing"),
        (b"[1, 2", "no JSON"),
        (b"\xff\xfe", "no UTF-8"),
        (b"[" * 200_000, "nested too deep|no JSON"),
    ]:
        file.write_bytes(content)
        with pytest.raises(bifold.FileError, match=why):
            bifold.read_result(file)
    file.write_text(json.dumps({"schema": "bifold.timeline/1", "about": {}, "pairs": []}))
    with pytest.raises(bifold.FileError, match="about.frequency_hz"):
        bifold.read_timeline(file)
    file.write_text("a,b\n1,2\n3\n")
    with pytest.raises(bifold.FileError, match="line 3 has 1 values for 2 columns"):
        bifold.read_table(file)


def test_a_file_that_expands_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr("bifold._read.MOST_BYTES", 1 << 22)
    file = tmp_path / "bomb.timeline"
    with arrow.CompressedOutputStream(arrow.OSFile(str(file), "wb"), "zstd") as out:
        for _ in range(64):
            out.write(b"[" + b" " * (1 << 20))
    assert file.stat().st_size < 1 << 20
    with pytest.raises(bifold.FileError, match="longer than 4 MiB"):
        bifold.read_timeline(file)


def test_a_timeline_names_the_state_of_its_vm_and_one_without_had_just_started(data: Path) -> None:
    document = bifold.read_timeline(data / "fork.timeline").document
    for about, state in [({"vm": "restored"}, "restored"), ({}, "started")]:
        of = {key: value for key, value in document["about"].items() if key != "vm"} | about
        assert bifold.Timeline({**document, "about": of}).vm == state
