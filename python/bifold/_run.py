# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs ``bifold compare``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from ._errors import PathLike, RunError
from ._read import RESULT, RUNS
from ._result import Result, Runs

# Seconds that bifold has to end its guest after SIGINT, before it is killed.
_TO_END = 20
# Bytes of stderr that an error quotes.
_QUOTED = 2000


def compare(
    command: Sequence[PathLike] | None = None,
    *,
    recording: PathLike | None = None,
    generate: str | None = None,
    options: Sequence[str] = (),
    bifold: PathLike = "bifold",
    timeout: float | None = None,
    cwd: PathLike | None = None,
    env: Mapping[str, str] | None = None,
) -> Result | Runs:
    """Runs ``bifold compare`` and returns its result; with ``--runs`` among the options, those of all runs.

    One of ``command`` (a list of words, never a shell's line), ``recording`` (a file) and ``generate`` (such as ``"gups"``) says
    what is compared. ``options`` are options of ``bifold compare``, such as ``["--where", "--memory", "4G"]``. If the command fails
    in the guest, there still is a result: ``result.status`` is its exit status. :class:`RunError` says why there is none.

    >>> result = bifold.compare(["gcc", "-O2", "-c", "hello.c"])  # doctest: +SKIP
    >>> result.totals().to_pandas()[["config", "seconds"]]  # doctest: +SKIP
    """
    if isinstance(command, (str, bytes)):
        raise TypeError('command: a list of words, such as ["gcc", "-c", "hello.c"]')
    if sum(given is not None for given in (command, recording, generate)) != 1:
        raise TypeError("give one of command, recording and generate")
    words = [os.fspath(bifold), "compare", "--quiet", "--format", "json", *options]
    if command is not None:
        words += ["--", *(os.fspath(word) for word in command)]
    elif recording is not None:
        words += [os.fspath(recording)]
    else:
        words += ["--generate", str(generate)]
    status, out, err = _run(words, timeout, cwd, env)
    return _result(status, out, err, words)


def _run(words: list[str], timeout: float | None, cwd: PathLike | None, env: Mapping[str, str] | None) -> tuple[int, bytes, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, env=env)
        except OSError as e:
            raise RunError(None, f"{words[0]} cannot be run ({e.strerror}): install Bifold, or name the command by bifold=...") from e
        try:
            status = child.wait(timeout)
        except BaseException as e:
            _end(child)
            if isinstance(e, subprocess.TimeoutExpired):
                raise RunError(None, f"{' '.join(words)}: no result after {timeout:g} s, so the run was ended; give a longer timeout") from e
            raise
        out.seek(0)
        err.seek(max(os.fstat(err.fileno()).st_size - _QUOTED, 0))
        return status, out.read(), err.read().decode("utf-8", "replace").strip()


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends bifold, which ends its guest at SIGINT."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(_TO_END)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _result(status: int, out: bytes, err: str, words: list[str]) -> Result | Runs:
    about = " ".join(words)
    try:
        document: Any = json.loads(out) if out.strip() else None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise RunError(status, f"{about}: no result, exit status {status}: {err or 'nothing on stderr'}")
    if document.get("schema") in RUNS:
        return Runs(document, about, status)
    if document.get("schema") in RESULT:
        return Result(document, about, status)
    raise RunError(status, f"{about}: schema {document.get('schema')!r}, which this package does not read: use versions that agree")
