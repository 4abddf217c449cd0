# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Reads what Bifold writes, and runs ``bifold compare``.

Every reader returns objects with :class:`Table` members: columns with their units, which become a pandas or polars frame, or an
Arrow table. pandas, polars, pyarrow and matplotlib are optional; a function that needs one says so.
"""

from . import plot
from ._errors import BifoldError, FileError, RunError
from ._read import read_document, read_result, read_runs, read_table, read_timeline, read_trace
from ._result import Result, Runs
from ._run import compare
from ._table import Table
from ._timeline import Timeline

__version__ = "0.2.0"

__all__ = [
    "BifoldError",
    "FileError",
    "Result",
    "RunError",
    "Runs",
    "Table",
    "Timeline",
    "compare",
    "plot",
    "read_document",
    "read_result",
    "read_runs",
    "read_table",
    "read_timeline",
    "read_trace",
]
