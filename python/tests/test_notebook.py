# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The notebook runs from its first cell to its last, and draws the figure of the results."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_the_notebook_runs_and_draws_its_figures(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    nbformat, client = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(repository / "python"))
    path = repository / "python/notebooks/modes.ipynb"
    kept = nbformat.read(path, as_version=4)
    # Outputs would be figures that no command wrote, and differ between versions of matplotlib.
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in kept.cells)
    ran = client.NotebookClient(kept, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}).execute()
    drawn = [output for cell in ran.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    assert len(drawn) == 3
