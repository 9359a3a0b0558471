# SPDX-License-Identifier: GPL-2.0-only
"""The compiled replay and that in Python give the same, and what does without a compiler."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import PIPE
from replays import (
    judged,
    needs_compiler,
    run,
)

from lightsleep.errors import LightsleepError
from lightsleep.periods.lost import bucket
from lightsleep.replay import engine as engine_module
from lightsleep.replay.engine import CompiledEngine, Engine, PythonEngine
from lightsleep.replay.policies import parse
from lightsleep.replay.stays import Limits
from lightsleep.replay.tally import Intervals, Tally

some_intervals = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 400_000), st.integers(0, 10**10)),
        st.integers(0, 10**6),
        st.booleans(),
    ),
    min_size=1,
    max_size=300,
)


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(some_intervals, st.integers(1, 100), st.integers(0, 200_000), st.integers(0, 30_000))
def test_compiled_and_python_give_the_same_to_the_last_digit(
    drawn: list[tuple[int, int, bool]], weight: int, halt_ns: int, turn_ns: int
) -> None:
    idle_ns, costs_ns, woken = (np.array(x) for x in zip(*drawn, strict=True))
    block = np.arange(len(drawn)) * 20 // len(drawn)
    cost_ns = np.where(woken, costs_ns, 0)
    intervals = Intervals(
        idle_ns=idle_ns,
        cost_ns=cost_ns,
        bucket=bucket(cost_ns).astype(np.uint16),
        woken=woken,
        block=block.astype(np.uint8),
        state=(costs_ns % 3).astype(np.uint8),
        exit_ns=costs_ns % 5000 - 100,
        resumes=costs_ns % 2 == 0,
        nobody=~woken,
        tick=~woken,
        limits=Limits.of(judged(), 0),
        turn_ns=turn_ns,
        supposed_ns=0,
        **dict.fromkeys(("entered_ns", "typical_ns", "timer_ns", "arrival_ns"), idle_ns),
    )
    engines: tuple[Engine, ...] = (CompiledEngine(), PythonEngine())
    for name, make in parse("lightsleep,haltpoll,fixed:100us").items():
        assert callable(make)
        tallies = (Tally(), Tally())
        for engine, tally in zip(engines, tallies, strict=True):
            runner = engine.runner(make(halt_ns, weight))
            for part in (slice(None, 100), slice(100, None)):
                columns = {
                    x.name: getattr(intervals, x.name)[part]
                    for x in dataclasses.fields(intervals)
                    if x.name not in ("limits", "turn_ns", "supposed_ns")
                }
                runner.run(dataclasses.replace(intervals, **columns), weight, tally)
        assert (tallies[0].data == tallies[1].data).all(), name
        assert tallies[0]["intervals"] == len(drawn)
    polled_ns, halted = np.minimum(idle_ns, 7000), idle_ns > 7000
    for name in ("optimum", "given"):
        tallies = (Tally(), Tally())
        for engine, tally in zip(engines, tallies, strict=True):
            if name == "optimum":
                engine.optimum(intervals, weight, tally)
            else:
                engine.given(intervals, polled_ns, halted, weight, tally)
        assert (tallies[0].data == tallies[1].data).all(), name


def forget() -> None:
    """Have the next replay look for the compiled engine anew."""
    for cached in (engine_module.engine, engine_module._library):
        cached.cache_clear()


@pytest.fixture
def looked_for_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache folder; whatever engine was found there is forgotten at the end."""
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    yield tmp_path
    forget()


@pytest.mark.usefixtures("looked_for_anew")
def test_without_a_compiler_it_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    forget()
    found, why = engine_module.engine()
    assert isinstance(found, PythonEngine)
    assert why
    assert "no C compiler named no-such-compiler" in why
    done = run(PIPE, "--policies", "lightsleep")
    assert done.exit_code == 0
    assert "no C compiler named no-such-compiler" in " ".join(done.stdout.split())


@needs_compiler
@pytest.mark.parametrize("damage", [b"no library", b""])
@pytest.mark.usefixtures("looked_for_anew")
def test_a_damaged_library_is_a_note_and_the_replay_goes_on(damage: bytes) -> None:
    path = engine_module.library_file()
    path.unlink()  # a library that this process has loaded must not change
    path.write_bytes(damage)
    forget()
    found, why = engine_module.engine()
    assert isinstance(found, PythonEngine)
    assert why
    assert f"remove the folder {path.parent}" in why


@needs_compiler
@pytest.mark.parametrize("words", ["env cc", "cc -Werror -Wall -Wextra -Wpedantic", " ", "env  cc"])
def test_a_compiler_of_several_words(
    words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", words)
    assert engine_module.library_file().stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [("'cc", "No closing quotation"), ("/", "no C compiler named /"), ("false", "cannot compile")],
)
def test_what_is_no_compiler(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", words)
    with pytest.raises(LightsleepError, match=said):
        engine_module.library_file()
