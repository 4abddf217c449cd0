# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Where the tests find data: tests/data was written by `bifold compare --generate fork-storm:40`, see README.md."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def data() -> Path:
    return DATA


@pytest.fixture
def repository() -> Path:
    """The repository, of which an unpacked source distribution has nothing."""
    if not (ROOT / "docs/reference/formats.md").is_file():
        pytest.skip("outside of the repository")
    return ROOT


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """The command `bifold`: BIFOLD, the release build, or the one in PATH."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for path in (os.environ.get("BIFOLD"), target / "release/bifold", target / "debug/bifold", shutil.which("bifold")):
        if path and Path(path).is_file():
            return Path(path)
    pytest.skip("no command bifold: make build, or BIFOLD=FILE")
