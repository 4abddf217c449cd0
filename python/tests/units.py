# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes bifold/_units.py of docs/reference/formats.md and stat.md: python3 tests/units.py > bifold/_units.py"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _fields(kind: str, below: str = "") -> dict[str, str]:
    """Fields of a kind with their meanings, from the tables that are made from the types."""
    text = (ROOT / "docs/reference/formats.md").read_text(encoding="utf-8")
    _, _, part = text.partition(f"\n### {kind}\n")
    part, _, _ = part.partition("\n#")
    rows = re.findall(r"^\| `([^`]*)` \| (.*) \|$", part, re.MULTILINE)
    return {name.removeprefix(below): doc for name, doc in rows if name.startswith(below) and name != below[:-1]}


def columns() -> dict[str, tuple[str, str, bool]]:
    """Unit, meaning and whether the values are text, of each column."""
    found: dict[str, tuple[str, str, bool]] = {}
    parts = [("place", "costs[]."), ("sample", ""), ("figures", ""), ("interval", ""), ("total", "")]
    for kind, below in parts:
        for name, about in _fields(kind, below).items():
            text = name in ("config", "type")
            doc, _, unit = about.partition(" Unit: ")
            # A whole number without a unit in its description is a count.
            found[name] = (unit.rstrip(".") or ("" if text else "1"), doc, text)
    for line in (ROOT / "docs/reference/stat.md").read_text(encoding="utf-8").splitlines():
        cells = re.fullmatch(r"\| `(\w+)` \| (.*?) \| (.*) \|", line)
        if cells:
            name, unit, doc = cells.groups()
            known = found.get(name, ("", "", False))
            # `pid` and `vcpu` are numbers that have no unit.
            found[name] = (unit or known[0], known[1] or doc, not unit and name not in ("pid", "vcpu"))
    found["type"] = ("", "Kind of the row.", True)
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
        '"""Columns of Bifold\'s rows. Made by tests/units.py of the book; a test compares."""\n\n'
        f"# Units, where a column has one.\nUNITS: dict[str, str] = {{\n{units}}}\n"
        f"\n# Meanings.\nDOCS: dict[str, str] = {{\n{docs}}}\n"
        f"\n# Columns whose values are text.\nNAMES: frozenset[str] = frozenset([\n{names}])\n"
    )


if __name__ == "__main__":
    print(module(), end="")
