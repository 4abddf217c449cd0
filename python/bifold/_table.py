# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A table: columns with units and meanings, without any library. Frames are made of a table where the caller asks for one.

A count that is not known is ``None``: missing in a frame, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import BifoldError, optional

if TYPE_CHECKING:
    import pandas
    import polars

# Keys of a field's metadata in Parquet and Arrow files.
UNIT, DOC = b"unit", b"doc"
# Largest value of an unsigned 64-bit count that a signed one holds.
_MOST_SIGNED = (1 << 63) - 1


class Table:
    """Rows of equal columns.

    ``units`` has the unit of each column that has one (``"1"`` for counts and shares), ``docs`` its meaning where known.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any]],
        units: Mapping[str, str] | None = None,
        docs: Mapping[str, str] | None = None,
        *,
        arrow: Any = None,
    ) -> None:
        self._arrow = arrow
        self._columns: dict[str, list[Any]] | None = None
        if arrow is None:
            self._columns = {name: list(values) for name, values in columns.items()}
            lengths = {name: len(values) for name, values in self._columns.items()}
            if len(set(lengths.values())) > 1:
                raise BifoldError(f"columns of one table have different lengths: {lengths}")
        names = set(self.columns)
        self.units = {name: unit for name, unit in (units or {}).items() if name in names}
        self.docs = {name: doc for name, doc in (docs or {}).items() if name in names}

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]], units: Mapping[str, str] | None = None, docs: Mapping[str, str] | None = None) -> Table:
        """Makes a table of rows. What a row does not have is missing."""
        all_rows = list(rows)
        names = list(dict.fromkeys(name for row in all_rows for name in row))
        return cls({name: [row.get(name) for row in all_rows] for name in names}, units, docs)

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        if self._arrow is not None:
            return [str(name) for name in self._arrow.column_names]
        return list(self._columns or {})

    def __len__(self) -> int:
        if self._arrow is not None:
            return int(self._arrow.num_rows)
        return len(next(iter((self._columns or {}).values()), []))

    def __getitem__(self, name: str) -> list[Any]:
        """The values of a column; ``None`` where a value is not known."""
        if name not in self.columns:
            raise KeyError(f"{name}: the table has {', '.join(self.columns)}")
        if self._arrow is not None:
            values: list[Any] = self._arrow.column(name).to_pylist()
            return values
        return list((self._columns or {})[name])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows."""
        columns = {name: self[name] for name in self.columns}
        for i in range(len(self)):
            yield {name: values[i] for name, values in columns.items()}

    def __repr__(self) -> str:
        return f"<bifold.Table of {len(self)} rows: {', '.join(self.columns)}>"

    def where(self, **equal: Any) -> Table:
        """The rows that have these values: ``table.where(config="nested-4k")``."""
        for name in equal:
            self[name]
        rows = [row for row in self if all(row[name] == value for name, value in equal.items())]
        return Table({name: [row[name] for row in rows] for name in self.columns}, self.units, self.docs)

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas frame. ``frame.attrs["units"]`` and ``frame.attrs["docs"]`` have units and meanings."""
        pandas = optional("pandas", "pandas", "a pandas frame")
        if self._arrow is not None:
            frame = self._arrow.to_pandas(types_mapper=_nullable(pandas).get)
        else:
            frame = pandas.DataFrame({name: pandas.Series(self[name], dtype=_pandas_type(self[name])) for name in self.columns})
        frame.attrs["units"] = dict(self.units)
        frame.attrs["docs"] = dict(self.docs)
        return frame

    def to_polars(self) -> polars.DataFrame:
        """A polars frame, which cannot hold units: those stay in ``table.units``."""
        polars = optional("polars", "polars", "a polars frame")
        if self._arrow is not None:
            return polars.from_arrow(self._arrow)
        columns = {}
        for name in self.columns:
            values = self[name]
            large = any(isinstance(v, int) and v > _MOST_SIGNED for v in values)
            columns[name] = polars.Series(name, values, dtype=polars.UInt64 if large else None, strict=False)
        return polars.DataFrame(columns)

    def to_arrow(self) -> Any:
        """An Arrow table. A field's metadata has its unit under ``unit`` and its meaning under ``doc``."""
        arrow = optional("pyarrow", "arrow", "an Arrow table")
        made = self._arrow if self._arrow is not None else arrow.table({name: self[name] for name in self.columns})
        fields = []
        for field in made.schema:
            about = {UNIT: self.units.get(field.name), DOC: self.docs.get(field.name)}
            fields.append(field.with_metadata({key: text.encode() for key, text in about.items() if text is not None}))
        return made.cast(arrow.schema(fields, metadata=made.schema.metadata))


def of_arrow(made: Any) -> Table:
    """The table of an Arrow table, with the units of its fields' metadata."""

    def about(key: bytes) -> dict[str, str]:
        has = {field.name: (field.metadata or {}).get(key) for field in made.schema}
        return {name: text.decode("utf-8", "replace") for name, text in has.items() if text is not None}

    return Table({}, about(UNIT), about(DOC), arrow=made)


def _kinds(values: Sequence[Any]) -> set[type]:
    return {type(v) for v in values if v is not None}


def _pandas_type(values: Sequence[Any]) -> str:
    """The type that keeps counts whole where some are missing, which a column of floats would not."""
    kinds = _kinds(values)
    if kinds == {bool}:
        return "boolean" if None in values else "bool"
    if kinds == {int}:
        large = max(v for v in values if v is not None) > _MOST_SIGNED
        return ("UInt64" if large else "Int64") if None in values else ("uint64" if large else "int64")
    if kinds and kinds <= {int, float}:
        return "float64"
    return "object"


def _nullable(pandas: Any) -> dict[Any, Any]:
    arrow = optional("pyarrow", "arrow", "a frame of Parquet or Arrow")
    return {arrow.int64(): pandas.Int64Dtype(), arrow.uint64(): pandas.UInt64Dtype()}
