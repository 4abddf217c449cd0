# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes bifold/_units.py of the schemas and of docs/reference/stat.md: python3 tests/units.py > bifold/_units.py"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def _json(name: str) -> Any:
    return json.loads((ROOT / "crates/report/schema" / name).read_text(encoding="utf-8"))["$defs"]


def columns() -> dict[str, tuple[str, str, bool]]:
    """Unit, meaning and whether the values are text, of each column."""
    found: dict[str, tuple[str, str, bool]] = {}
    compare, rows = _json("compare-2.json"), _json("compare-rows-2.json")
    for of in (compare["place_costs"]["items"], compare["sample"], compare["figures"], rows["interval"], rows["total"]):
        for name, about in of["properties"].items():
            doc, _, unit = about.get("description", "").partition(" Unit: ")
            # A whole number without a unit in its description is a count.
            unit = unit or ("1" if about.get("type") == "integer" else "")
            text = about.get("type") == "string" or "const" in about or "enum" in about
            found[name] = (unit.rstrip("."), doc, text)
    for line in (ROOT / "docs/reference/stat.md").read_text(encoding="utf-8").splitlines():
        cells = re.fullmatch(r"\| `(\w+)` \| (.*?) \| (.*) \|", line)
        if cells:
            name, unit, doc = cells.groups()
            known = found.get(name, ("", "", False))
            # `pid` and `vcpu` are numbers that have no unit.
            found[name] = (unit or known[0], known[1] or doc, not unit and name not in ("pid", "vcpu"))
    for name in ("config_hash", "input_hash"):
        found[name] = ("", "Hash, in hexadecimal digits.", True)
    return found


def module() -> str:
    known = sorted(columns().items())
    units = "".join(f"    {json.dumps(name)}: {json.dumps(unit)},\n" for name, (unit, _, _) in known if unit)
    docs = "".join(f"    {json.dumps(name)}: {json.dumps(doc)},\n" for name, (_, doc, _) in known if doc)
    names = "".join(f"    {json.dumps(name)},\n" for name, (_, _, text) in known if text)
    return (
        "# SPDX-License-Identifier: Apache-2.0 OR MIT\n"
        '"""Columns of Bifold\'s rows. Made by tests/units.py of the schemas and of the book; a test compares."""\n\n'
        f"# Units, where a column has one.\nUNITS: dict[str, str] = {{\n{units}}}\n"
        f"\n# Meanings.\nDOCS: dict[str, str] = {{\n{docs}}}\n"
        f"\n# Columns whose values are text.\nNAMES: frozenset[str] = frozenset([\n{names}])\n"
    )


if __name__ == "__main__":
    print(module(), end="")
