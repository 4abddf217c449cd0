# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Readers of files. Each checks what the file is before it uses it, and reads a bounded number of bytes."""

from __future__ import annotations

import csv
import io
import json
import os
from typing import Any

from ._errors import BifoldError, FileError, PathLike, optional, reading
from ._result import Result, Runs
from ._table import Table, of_arrow
from ._timeline import Timeline
from ._units import DOCS, NAMES, UNITS

# Most bytes of a document, decompressed or not: the limit of `bifold` itself for timelines.
MOST_BYTES = 1 << 30
_CHUNK = 1 << 20
# Schemas that are read, the newest first.
RESULT = ("bifold.compare/2", "bifold.compare/1")
RUNS = ("bifold.runs/2", "bifold.runs/1")
_ZSTD = b"\x28\xb5\x2f\xfd"
_PARQUET, _ARROW = b"PAR1", b"ARROW1"


def read_result(path: PathLike) -> Result:
    """Reads what ``bifold compare --format json`` or ``--save-baseline`` wrote, also in version 1 of the schema."""
    return Result(_document(path, RESULT, "bifold compare --format json"), os.fspath(path))


def read_runs(path: PathLike) -> Runs:
    """Reads what ``bifold compare --runs N --format json`` wrote."""
    return Runs(_document(path, RUNS, "bifold compare --runs N --format json"), os.fspath(path))


def read_timeline(path: PathLike) -> Timeline:
    """Reads what ``bifold compare --timeline`` wrote: the cost of a program in each mode, interval by interval."""
    return Timeline(read_document(path, "bifold.timeline/1", "bifold compare --timeline FILE"), os.fspath(path))


def read_trace(path: PathLike) -> Table:
    """Reads what ``bifold compare --trace`` wrote. A row is a value at a time, for a configuration, a track and a series."""
    document = _json(path, _bytes(path))
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise FileError(path, "no trace (no traceEvents); bifold compare --trace FILE writes one")
    names: dict[Any, str] = {}
    rows: list[dict[str, Any]] = []
    for number, event in enumerate(events):
        if not isinstance(event, dict) or not isinstance(event.get("args", {}), dict):
            raise FileError(path, f"traceEvents[{number}] is no event")
        args = event.get("args", {})
        if event.get("ph") == "M" and event.get("name") == "process_name":
            with reading(path):
                names[event["pid"]] = str(args["name"]).partition(":")[0]
        elif event.get("ph") == "C":
            at = event.get("ts")
            if not isinstance(at, (int, float)):
                raise FileError(path, f"traceEvents[{number}].ts is no number")
            with reading(path):
                base = {"seconds": at / 1e6, "config": names[event["pid"]], "track": event["name"]}
            rows += [{**base, "series": series, "value": value} for series, value in args.items()]
    return Table.of_rows(rows, {"seconds": "s"}, {"seconds": "Time of the ideal run."})


def read_table(path: PathLike) -> Table:
    """Reads rows: CSV or JSON lines of ``compare``, ``stat`` and others, or a Parquet or Arrow file.

    Units come from the fields' metadata (key ``unit``), or else from what this package knows of Bifold's columns.
    """
    start = _start(path)
    if not start:
        raise FileError(path, "the file is empty; a run that was stopped before its first row leaves no data")
    if start.startswith(_PARQUET) or start.startswith(_ARROW):
        return _arrow(path, start)
    text = _text(path, _bytes(path))
    if start.lstrip().startswith(b"{"):
        return _lines(path, text)
    return _csv(path, text)


def read_document(path: PathLike, schema: str, written_by: str = "") -> dict[str, Any]:
    """Reads a JSON document of Bifold, compressed by zstd or not, and checks its schema, such as ``bifold.diff/1``."""
    return _document(path, (schema,), written_by)


def _document(path: PathLike, schemas: tuple[str, ...], written_by: str) -> dict[str, Any]:
    """A document of one of these schemas, the newest first."""
    document, schema = _json(path, _bytes(path)), schemas[0]
    found = document.get("schema") if isinstance(document, dict) else None
    if found in schemas:
        return dict(document)
    hint = f"; {written_by} writes one" if written_by else ""
    if not isinstance(found, str) or not found.startswith("bifold."):
        raise FileError(path, f"no document of Bifold with schema {schema}{hint}")
    if found.partition("/")[0] == schema.partition("/")[0]:
        raise FileError(path, f"schema {found}, and this package reads {schema}: use a package of that Bifold's version, or write the file again")
    raise FileError(path, f"schema {found} in place of {schema}{hint}")


def _start(path: PathLike) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(64)
    except OSError as e:
        raise FileError(path, f"cannot be read: {e.strerror or e}") from e


def _bounded(path: PathLike, file: Any) -> bytes:
    """All bytes of a stream, which may be a decompressor: no more than the limit is ever held."""
    parts, size = [], 0
    while part := file.read(_CHUNK):
        size += len(part)
        if size > MOST_BYTES:
            raise FileError(path, f"longer than {MOST_BYTES >> 20} MiB, which no document of Bifold is")
        parts.append(part)
    return b"".join(parts)


def _bytes(path: PathLike) -> bytes:
    if _start(path).startswith(_ZSTD):
        return _decompressed(path)
    try:
        with open(path, "rb") as file:
            return _bounded(path, file)
    except OSError as e:
        raise FileError(path, f"cannot be read: {e.strerror or e}") from e


def _decompressed(path: PathLike) -> bytes:
    """The content of a file that zstd compressed, by whichever library is there: Python's own from 3.14 on, zstandard or pyarrow."""
    try:
        with _zstd(path) as file:
            return _bounded(path, file)
    except (OSError, EOFError, ValueError) as e:
        raise (e if isinstance(e, FileError) else FileError(path, f"damaged or cut off (zstd: {e}); write it again")) from e
    except Exception as e:  # Each library has errors of its own.
        if isinstance(e, BifoldError) or "zstd" not in type(e).__name__.lower() + type(e).__module__.lower():
            raise
        raise FileError(path, f"damaged or cut off (zstd: {e}); write it again") from e


def _zstd(path: PathLike) -> Any:
    try:
        from compression import zstd

        return zstd.open(path, "rb")
    except ImportError:
        pass
    try:
        import zstandard

        return zstandard.open(path, "rb")
    except ImportError:
        arrow = optional("pyarrow", "arrow", f"{os.fspath(path)}, compressed by zstd,")
        return arrow.CompressedInputStream(arrow.OSFile(os.fspath(path), "rb"), "zstd")


def _text(path: PathLike, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as e:
        raise FileError(path, f"no text (byte {e.start} is no UTF-8), and neither Parquet nor Arrow") from e


def _json(path: PathLike, content: bytes) -> Any:
    if not content:
        raise FileError(path, "the file is empty; was the run that wrote it stopped?")
    try:
        return json.loads(_text(path, content))
    except json.JSONDecodeError as e:
        raise FileError(path, f"no JSON (line {e.lineno}, column {e.colno}: {e.msg}); was the run that wrote it stopped?") from e
    except RecursionError as e:
        raise FileError(path, "nested too deep for a document of Bifold") from e


def _lines(path: PathLike, text: str) -> Table:
    """JSON lines. Rows of `compare` have a type; the rows of intervals are the table, and the others are left out."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as e:
            raise FileError(path, f"line {number} is no JSON ({e.msg}); was the run that wrote it stopped?") from e
        if not isinstance(row, dict):
            raise FileError(path, f"line {number} is no object")
        rows.append(row)
    if any(row.get("type") == "interval" for row in rows):
        rows = [row for row in rows if row.get("type") == "interval"]
    return Table.of_rows(rows, UNITS, DOCS)


def _csv(path: PathLike, text: str) -> Table:
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        head = next(rows)
        if len(set(head)) != len(head) or len(head) < 2:
            raise FileError(path, "no table of Bifold: the first line names no columns, or one twice")
        cells: dict[str, list[str]] = {name: [] for name in head}
        for row in rows:
            if len(row) != len(head):
                raise FileError(path, f"line {rows.line_num} has {len(row)} values for {len(head)} columns; was the run that wrote it stopped?")
            for name, cell in zip(head, row):
                cells[name].append(cell)
    except csv.Error as e:
        raise FileError(path, f"line {rows.line_num}: {e}") from e
    return Table({name: _values(name, column) for name, column in cells.items()}, UNITS, DOCS)


def _values(name: str, cells: list[str]) -> list[Any]:
    """Values of a column's text. Columns that hold names stay text: a hash may look like a number."""
    known = [cell for cell in cells if cell != ""]
    if name in NAMES:
        return [cell or None for cell in cells]
    if known and all(cell in ("true", "false") for cell in known):
        return [cell == "true" if cell else None for cell in cells]
    for kind in (int, float):
        try:
            return [kind(cell) if cell else None for cell in cells]
        except ValueError:
            continue
    return [cell or None for cell in cells]


def _arrow(path: PathLike, start: bytes) -> Table:
    arrow = optional("pyarrow", "arrow", f"{os.fspath(path)}, a Parquet or Arrow file,")
    try:
        if start.startswith(_PARQUET):
            made = optional("pyarrow.parquet", "arrow", "a Parquet file").read_table(os.fspath(path))
        else:
            with arrow.memory_map(os.fspath(path)) as file:
                made = arrow.ipc.open_file(file).read_all()
    except (OSError, ValueError) as e:  # pyarrow's errors are one or the other.
        raise FileError(path, f"damaged or cut off ({e}); write it again") from e
    table = of_arrow(made)
    # Columns without metadata, as `stat` wrote them before.
    table.units = {name: UNITS[name] for name in table.columns if name in UNITS} | table.units
    table.docs = {name: DOCS[name] for name in table.columns if name in DOCS} | table.docs
    return table
