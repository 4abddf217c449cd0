# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Timelines: what one program cost in each paging mode, interval by interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._errors import FileError, reading
from ._table import Table
from ._units import DOCS, UNITS


def extra_cycles(sample: Mapping[str, int]) -> int:
    """Cycles beyond the ideal run's: of exits, of walks, and of data that walks and the host's placement keep out of the caches.

    As ``Sample::extra_cycles`` of Bifold's crate ``model``; what the core hides does not count.
    """

    def exposed(all_cycles: str, hidden: str) -> int:
        return max(sample.get(all_cycles, 0) - sample.get(hidden, 0), 0)

    data = exposed("data_stall_cycles", "data_hidden_cycles") - exposed("ideal_stall_cycles", "ideal_hidden_cycles")
    return sample.get("vmm_cycles", 0) + max(exposed("walk_cycles", "walk_hidden_cycles") + data, 0)


def ideal_cycles(sample: Mapping[str, int], base_cpi: float) -> float:
    """Cycles of the ideal run: of the instructions, of the guest's loads of CR3, and of the waits for data that the core does not hide."""
    waits = max(sample.get("ideal_stall_cycles", 0) - sample.get("ideal_hidden_cycles", 0), 0)
    return sample.get("instructions", 0) * base_cpi + sample.get("cr3_load_cycles", 0) + waits


class Timeline:
    """A timeline of ``bifold compare --timeline``."""

    def __init__(self, document: dict[str, Any], path: str = "<timeline>") -> None:
        self.document = document
        self.path = path
        about = document.get("about")
        if not isinstance(about, dict) or not isinstance(document.get("pairs"), list):
            raise FileError(path, "damaged: a timeline has `about` and `pairs`")
        for key in ("frequency_hz", "base_cpi", "interval_cycles"):
            if not isinstance(about.get(key), (int, float)) or about[key] <= 0:
                raise FileError(path, f"damaged: `about.{key}` is no positive number")
        #: Program, guest, profile and version that the timeline is of.
        self.about: dict[str, Any] = about
        #: State of the VM at the start, such as ``long-lived``. Older files have none: their VMs had just started.
        self.vm: str = str(about.get("vm", "started"))

    def __repr__(self) -> str:
        return f"<bifold.Timeline of {self.about.get('program', self.path)}: {', '.join(self.configs)}>"

    @property
    def configs(self) -> list[str]:
        """Names of the configurations, such as ``nested-4k``."""
        return [name for name, _, _, _ in self._runs()]

    def _runs(self) -> list[tuple[str, str, str, dict[str, list[int]]]]:
        runs = []
        with reading(self.path):
            for number, pair in enumerate(self.document["pairs"]):
                page = str(pair["host_page"])
                for mode, run in pair.items():
                    if mode == "host_page":
                        continue
                    values, length = run["counters"]["values"], run["counters"]["intervals"]
                    if any(len(column) != length for column in values.values()):
                        raise FileError(self.path, f"damaged: `pairs[{number}].{mode}.counters` has columns of different lengths")
                    if any(type(n) is not int or n < 0 for column in values.values() for n in column):
                        raise FileError(self.path, f"damaged: `pairs[{number}].{mode}.counters` has a value that is no count")
                    # A timeline may hold no counter that differs from 0; a run of more intervals than columns confirm is damage.
                    rows = length if values else 0
                    runs.append((f"{mode}-{page.lower()}", mode, page, {"": [0] * rows, **values}))
        return runs

    def intervals(self) -> Table:
        """A row per configuration and interval: all counters, and ``overhead_percent`` of the interval.

        A counter that was 0 all the time is not in a timeline; its column is absent.
        """
        cpi, step = float(self.about["base_cpi"]), self.about["interval_cycles"] / self.about["frequency_hz"]
        names = list(dict.fromkeys(name for *_, values in self._runs() for name in values if name))
        rows = []
        for config, mode, page, values in self._runs():
            for i in range(len(values[""])):
                sample = {name: values[name][i] if name in values else 0 for name in names}
                ideal = ideal_cycles(sample, cpi)
                percent = 100 * extra_cycles(sample) / ideal if ideal else None
                base = {"interval": i, "seconds": i * step, "config": config, "mode": mode, "host_page": page}
                rows.append({**base, **sample, "overhead_percent": percent})
        return Table.of_rows(rows, UNITS | {"interval": "1", "seconds": "s"}, DOCS)

    def totals(self) -> Table:
        """A row per configuration: sums over the intervals, ``seconds``, the predicted time, and ``overhead_percent``."""
        cpi, hertz, rows = float(self.about["base_cpi"]), float(self.about["frequency_hz"]), []
        for config, mode, page, values in self._runs():
            total = {name: sum(column) for name, column in values.items() if name}
            extra, ideal = extra_cycles(total), ideal_cycles(total, cpi)
            figures = {"seconds": (ideal + extra) / hertz, "overhead_percent": 100 * extra / ideal} if ideal else {}
            rows.append({"config": config, "mode": mode, "host_page": page, **total, **figures})
        return Table.of_rows(rows, UNITS, DOCS)
