# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`bifold.compare` runs the command, and an error says why there is no result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import bifold
from bifold import Result


def script(path: Path, body: str) -> Path:
    """A program in bifold's place."""
    path.write_text(f"#!{sys.executable}\nimport sys, time, os\n{body}\n")
    path.chmod(0o755)
    return path


def test_the_command_gives_the_kept_result(command: Path, data: Path) -> None:
    options = ["--configs", "native,nested-4k,shadow-4k", "--interval", "0.001", "--profile", "i5-7600"]
    result = bifold.compare(generate="fork-storm:40", options=options, bifold=command)
    assert isinstance(result, Result) and result.status == 0
    kept = bifold.read_result(data / "fork.json")
    assert result.totals().units == kept.totals().units
    for name in ("instructions", "tlb_misses_4k", "walks", "exits_hidden_fault"):
        assert result.totals()[name] == kept.totals()[name], "write tests/data again (README.md)"


def test_usage_errors_are_errors_with_the_text_of_the_command(command: Path) -> None:
    with pytest.raises(bifold.RunError, match="unknown generator `nothing`") as e:
        bifold.compare(generate="nothing", bifold=command)
    assert e.value.status == 2


def test_the_command_line_is_as_given(tmp_path: Path, data: Path) -> None:
    seen = tmp_path / "seen"
    fake = script(tmp_path / "fake", f"open({str(seen)!r}, 'w').write(repr(sys.argv[1:])); print(open({str(data / 'fork.json')!r}).read()); sys.exit(3)")
    result = bifold.compare(["gcc", "-c", "a b.c"], options=["--where"], bifold=fake)
    assert isinstance(result, Result) and result.status == 3 and result.configs[0] == "native"
    assert seen.read_text() == repr(["compare", "--quiet", "--format", "json", "--where", "--", "gcc", "-c", "a b.c"])


def test_what_gives_no_result_is_an_error(tmp_path: Path) -> None:
    fake = script(tmp_path / "fake", "sys.stderr.write('bifold: no disk'); sys.exit(125)")
    with pytest.raises(bifold.RunError, match="exit status 125: bifold: no disk"):
        bifold.compare(["true"], bifold=fake)
    half = script(tmp_path / "half", "print('{\"schema\":')")
    with pytest.raises(bifold.RunError, match="no result, exit status 0"):
        bifold.compare(["true"], bifold=half)
    with pytest.raises(bifold.RunError, match="install Bifold"):
        bifold.compare(["true"], bifold=tmp_path / "absent")
    with pytest.raises(TypeError, match="list of words"):
        bifold.compare("gcc -c x.c", bifold=fake)
    with pytest.raises(TypeError, match="one of"):
        bifold.compare(bifold=fake)


def test_a_run_beyond_its_time_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "ended"
    body = f"""
import signal
def end(*_):
    open({str(note)!r}, "w").write("by SIGINT")
    sys.exit(130)
signal.signal(signal.SIGINT, end)
time.sleep(60)
"""
    fake = script(tmp_path / "fake", body)
    # A busy machine may not have started the program after the first of them.
    for seconds in (1, 5, 30):
        with pytest.raises(bifold.RunError, match=f"no result after {seconds} s"):
            bifold.compare(["true"], bifold=fake, timeout=seconds)
        if note.exists():
            break
    assert note.read_text() == "by SIGINT"
