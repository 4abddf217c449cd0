# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Plots by matplotlib. Each function draws on ``axes``, or on new ones, and returns them."""

from __future__ import annotations

from typing import Any

from ._errors import BifoldError, optional
from ._result import Result
from ._table import Table
from ._timeline import Timeline

# Parts of the overhead, from the bottom of a bar upwards, with their words and colours.
_PARTS = [
    ("walk_percent", "page walks", "#0066cc"),
    ("vmm_percent", "exits and hypervisor", "#dd6600"),
    ("data_percent", "data", "#008800"),
    ("frames_percent", "host frames", "#9900cc"),
]


def _axes(axes: Any) -> Any:
    if axes is not None:
        return axes
    return optional("matplotlib.pyplot", "plot", "a plot").subplots(layout="constrained")[1]


def overheads(result: Result, axes: Any = None) -> Any:
    """Bars: each configuration's overhead in percent of the ideal run, split into its parts."""
    axes, totals = _axes(axes), result.totals()
    names = totals["config"]
    above, below = [0.0] * len(names), [0.0] * len(names)
    for column, words, colour in _PARTS:
        if column not in totals.columns:
            continue
        values = [float(v or 0) for v in totals[column]]
        # A part may be negative, where by chance more data stay in the caches; it hangs below the line then.
        base = [above[i] if v >= 0 else below[i] for i, v in enumerate(values)]
        axes.bar(names, values, bottom=base, label=words, color=colour)
        above = [a + max(v, 0) for a, v in zip(above, values)]
        below = [b + min(v, 0) for b, v in zip(below, values)]
    axes.set_ylabel("overhead, % of the ideal run")
    axes.set_title(result.name)
    axes.legend()
    return axes


def times(result: Result, axes: Any = None) -> Any:
    """Bars: each configuration's predicted time, with its band where the result has one."""
    axes, totals = _axes(axes), result.totals()
    seconds = [float(v) for v in totals["seconds"]]
    band = None
    if {"low_seconds", "high_seconds"} <= set(totals.columns):
        lows, highs = totals["low_seconds"], totals["high_seconds"]
        band = [[s - float(low) for s, low in zip(seconds, lows)], [float(high) - s for s, high in zip(seconds, highs)]]
    axes.bar(totals["config"], seconds, yerr=band, color="#0066cc", capsize=3)
    axes.set_ylabel("predicted time, s")
    axes.set_title(result.name)
    return axes


def over_time(source: Result | Timeline | Table, column: str = "overhead_percent", axes: Any = None) -> Any:
    """Lines: a column over time, a line per configuration (``config``) or VM (``name``)."""
    table = source if isinstance(source, Table) else source.intervals()
    by = next((name for name in ("config", "name", "vm") if name in table.columns), None)
    at = next((name for name in ("seconds", "time") if name in table.columns and (name == "time" or by == "config" and not {"interval", "track"}.isdisjoint(table.columns))), None)
    if by is None or at is None or column not in table.columns:
        raise BifoldError(f"over_time needs columns of time, of config or VM, and {column}; the table has {', '.join(table.columns)}")
    axes, lines = _axes(axes), dict[Any, list[tuple[Any, Any]]]()
    for key, when, value in zip(table[by], table[at], table[column]):
        lines.setdefault(key, []).append((when, float("nan") if value is None else value))
    for key, points in lines.items():
        axes.plot([p[0] for p in points], [p[1] for p in points], label=str(key))
    unit = table.units.get(column, "")
    axes.set_xlabel("time, s")
    axes.set_ylabel(column if unit in ("", "1") else f"{column}, {unit}")
    axes.legend()
    return axes
