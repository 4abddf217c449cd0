# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Errors: each names the file or command, what is wrong, and what to do."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any, Union

# What a path may be given as.
PathLike = Union[str, "os.PathLike[str]"]


class BifoldError(Exception):
    """Any error of this package."""


class FileError(BifoldError, ValueError):
    """A file that is not what it should be."""

    def __init__(self, path: PathLike, problem: str) -> None:
        super().__init__(f"{os.fspath(path)}: {problem}")
        self.path = os.fspath(path)
        self.problem = problem


class RunError(BifoldError, RuntimeError):
    """``bifold`` gave no result: wrong usage, a machine that lacks something, a failure or a time limit."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


@contextlib.contextmanager
def reading(path: PathLike) -> Iterator[None]:
    """Where a document is taken apart: a value that has another form than the schema says is the file's error."""
    try:
        yield
    except BifoldError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        raise FileError(path, f"damaged: a value has not the form of its schema ({type(e).__name__}: {e}); write it again") from e


def optional(module: str, extra: str, what: str) -> Any:
    """A module that this package does not require."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        name = module.partition(".")[0]
        raise BifoldError(f"{what} needs {name}, which is not installed: pip install 'bifold[{extra}]'") from e
