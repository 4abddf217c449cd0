# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Results of ``bifold compare``."""

from __future__ import annotations

from typing import Any

from ._errors import FileError, reading
from ._table import Table
from ._timeline import extra_cycles, ideal_cycles
from ._units import DOCS, UNITS

_MODES = {"config": "Configuration: paging mode and size of the host's pages.", "mode": "Paging mode.", "host_page": "Size of the host's pages."}

_CHANGE_UNITS = {"seconds": "s", "other_seconds": "s", "percent": "%", "instructions_percent": "%"}
_CHANGE_DOCS = {
    "config": _MODES["config"],
    "seconds": "Predicted time of this run.",
    "other_seconds": "Predicted time of the other run.",
    "percent": "Change of the predicted time: less than 0 where the other run takes less time.",
    "instructions_percent": "Change of the number of instructions of the ideal run.",
}


def _percent(was: float, other: float) -> float | None:
    return 100 * (other - was) / was if was else None


def _need(document: Any, path: str, *keys: str) -> Any:
    """A member of a document that every result has."""
    at = ""
    for key in keys:
        at = f"{at}.{key}" if at else key
        if not isinstance(document, dict) or key not in document:
            raise FileError(path, f"damaged: the field `{at}` is missing")
        document = document[key]
    return document


class Result:
    """One run: what a program cost in each configuration.

    ``document`` is the whole JSON document; the page "Output formats" of Bifold's book has its fields.
    """

    def __init__(self, document: dict[str, Any], path: str = "<result>", status: int | None = None) -> None:
        self.document = document
        self.path = path
        #: Exit status of ``bifold``, which passes on the command's; ``None`` for a file.
        self.status = status
        _need(document, path, "outcome", "configs")
        counters, figures = _need(document, path, "counters"), _need(document, path, "figures")
        with reading(path):
            defined = [*counters, *figures]
            self._units = {str(d["name"]): str(d["unit"]) for d in defined}
            self._docs = {str(d["name"]): str(d["doc"]) for d in defined} | _MODES
            _ = self.configs, self.name, self.warnings

    def __repr__(self) -> str:
        return f"<bifold.Result of {self.name or self.path}: {', '.join(self.configs)}>"

    @property
    def name(self) -> str:
        """What ran: the command, the generator or the recording."""
        guest, about = self.document.get("guest"), self.document.get("input") or {}
        if guest and guest.get("command"):
            return " ".join(guest["command"])
        return str(about.get("name") or about.get("path") or "")

    @property
    def configs(self) -> list[str]:
        """Names of the configurations."""
        return [str(c["name"]) for c in self.document["outcome"]["configs"]]

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the figures: read them first."""
        return [str(w) for w in self.document.get("warnings", [])]

    @property
    def verdict(self) -> str:
        """The conclusions in sentences."""
        return str(self.document.get("verdict", ""))

    def totals(self) -> Table:
        """A row per configuration: all counters of the run, and the figures derived from them, such as ``seconds``, the predicted time."""
        with reading(self.path):
            outcome = self.document["outcome"]
            cpi, hertz = float(_need(outcome, self.path, "base_cpi")), float(_need(outcome, self.path, "frequency_hz"))
            rows = []
            for c in outcome["configs"]:
                total = _need(c, self.path, "total")
                # Documents of the first version, and baselines, have no time.
                seconds = (ideal_cycles(total, cpi) + extra_cycles(total)) / hertz
                rows.append({**_names(c), **total, "seconds": seconds, **(c.get("figures") or {})})
            return Table.of_rows(rows, UNITS | self._units, DOCS | self._docs)

    def change_to(self, other: Result) -> Table:
        """What ``other`` changes against this run, a row per configuration of both: predicted times, and ``percent``, less than 0 where
        ``other`` takes less time. ``instructions_percent`` is how the ideal runs differ: where it is not 0, compare times and not
        overheads, which are percents of each run's own ideal run.
        """
        theirs = {row["config"]: row for row in other.totals()}
        rows = []
        for row in self.totals():
            to = theirs.get(row["config"])
            if to is None:
                continue
            change = {"config": row["config"], "seconds": row["seconds"], "other_seconds": to["seconds"]}
            change["percent"] = _percent(row["seconds"], to["seconds"])
            change["instructions_percent"] = _percent(row["instructions"], to["instructions"])
            rows.append(change)
        return Table.of_rows(rows, _CHANGE_UNITS, _CHANGE_DOCS)

    def intervals(self) -> Table:
        """A row per configuration and interval: the counters over time. A baseline has none."""
        with reading(self.path):
            outcome = self.document["outcome"]
            starts, hertz = outcome.get("interval_starts") or [], _need(outcome, self.path, "frequency_hz")
            rows = [
                {"interval": number, "seconds": start / hertz, **_names(config), **sample}
                for config in outcome["configs"]
                for number, (start, sample) in enumerate(zip(starts, config.get("intervals") or []))
            ]
        docs = {"interval": "Number of the interval.", "seconds": "Its start, in the ideal run's time."}
        return Table.of_rows(rows, self._units | {"interval": "1", "seconds": "s"}, self._docs | docs)

    def where(self, view: str = "code") -> Table:
        """A row per configuration and place (process, binary, function, mapping), of a run with ``--where``.

        ``view`` is ``code``, by the code that ran, or ``cause``, by the user code that caused the cost.
        """
        if view not in ("code", "cause"):
            raise ValueError(f"view {view!r}: use 'code' or 'cause'")
        where = self.document.get("where")
        if not where:
            raise FileError(self.path, "has no costs by place: run bifold compare --where")
        rows: list[dict[str, Any]] = []
        with reading(self.path):
            for place in where["rows" if view == "code" else "cause_rows"]:
                about = {key: value for key, value in place.items() if key != "costs"}
                rows += [{**about, "config": name, **cost} for name, cost in zip(where["configs"], place["costs"])]
        return Table.of_rows(rows, UNITS | self._units, DOCS | self._docs)


class Runs:
    """Several runs of one command."""

    def __init__(self, document: dict[str, Any], path: str = "<runs>", status: int | None = None) -> None:
        self.document = document
        self.path = path
        self.status = status
        with reading(path):
            self.runs = [Result(run, f"{path} (runs[{i}])") for i, run in enumerate(_need(document, path, "runs"))]

    def __repr__(self) -> str:
        return f"<bifold.Runs of {len(self.runs)} runs>"

    def totals(self) -> Table:
        """The totals of every run, with the run's number from 1 in the column ``run``."""
        tables = [run.totals() for run in self.runs]
        rows = [{"run": number, **row} for number, table in enumerate(tables, 1) for row in table]
        about = tables[0] if tables else Table({})
        return Table.of_rows(rows, about.units | {"run": "1"}, about.docs | {"run": "Number of the run."})


def _names(config: dict[str, Any]) -> dict[str, Any]:
    return {"config": config.get("name"), "mode": config.get("mode"), "host_page": config.get("host_page")}
