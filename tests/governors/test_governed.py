# SPDX-License-Identifier: GPL-2.0-only
"""What a governor is told of recorded periods, and what becomes of its choices.

The governors here are no kernel's: each always chooses the same state.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from replays import HALT, NO_COSTS, POLL, US, judged, needs_compiler, period

from lightsleep.governors import build
from lightsleep.periods.build import Row
from lightsleep.periods.source import as_batch
from lightsleep.replay.account import Outcome, replay
from lightsleep.replay.costs import Costs
from lightsleep.replay.governed import Advertised, Governor
from lightsleep.replay.policies import parse

CONSTANT = """\
static int asked;
static int enable_{name}(struct cpuidle_driver *drv, struct cpuidle_device *dev) {{ return 0; }}
static void reflect_{name}(struct cpuidle_device *dev, int index) {{ }}
static int select_{name}(struct cpuidle_driver *drv, struct cpuidle_device *dev, bool *stop_tick)
{{
\t*stop_tick = {stops};
\treturn {state};
}}
static struct cpuidle_governor governor_{name} = {{
\t.name = "{name}", .enable = enable_{name}, .select = select_{name}, .reflect = reflect_{name},
}};
static int init_{name}(void) {{ return cpuidle_register_governor(&governor_{name}); }}
postcore_initcall(init_{name});
"""

pytestmark = needs_compiler


@pytest.fixture
def constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have menu halt, teo poll, and ladder halt and stop the tick when it is asked first."""
    chosen = {"menu": (HALT, "false"), "teo": (POLL, "false"), "ladder": (HALT, "!asked++")}
    for name, (state, stops) in chosen.items():
        text = CONSTANT.format(name=name, state=state, stops=stops)
        (tmp_path / f"{name}.c").write_text(text)
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "governor_sources", lambda _: tmp_path)


@pytest.mark.usefixtures("constant")
def test_a_tick_comes_once_however_long_an_exit_lasts() -> None:
    """Those that were due meanwhile do not keep the CPU from its next sleep."""
    governor = Governor.named("menu@6.12")
    assert governor
    cpu = governor.cpu(Advertised((0, 10_000_000), (0, 20_000_000), (True, False)))
    totals = cpu.ffi.new("struct totals *")
    period_of = cpu.ffi.new("struct period[]", [(1_000_000_000, 0, 2_000_000_000, 0, 0, 0)])
    cpu.lib.machine_run(period_of, cpu.ffi.new("struct choice[]", 1), 1, totals)
    # Each stay lasts up to a tick, of 4 ms, and then 10 ms more: 12 ms from one tick to the next.
    assert totals.halts == pytest.approx(1000 / 12, abs=2)


def governed(rows: list[Row], costs: Costs, name: str) -> Outcome:
    return replay(judged(), costs, [as_batch("host", rows)], parse(f"stock,{name}")).outcomes[name]


COSTS = Costs(None, {(0, HALT): 40_000.0}, 40_000, NO_COSTS.loops, halts={0: HALT})
SUPPOSED = Costs(
    None, {(0, HALT): 40_000.0}, 40_000, NO_COSTS.loops, halts={0: HALT}, supposed_ns=60_000.0
)


@pytest.mark.usefixtures("constant")
def test_who_halts_as_it_was_recorded_waits_as_long_at_both_ends() -> None:
    rows = [period(1000 * n, 300, wait_us=100) for n in range(50)]
    for costs, ends_us in ((COSTS, (100, 100)), (SUPPOSED, (40, 100))):
        outcome = governed(rows, costs, "menu@9.9")
        assert [x.waits.total_ns // US for x in outcome.ends()] == [50 * x for x in ends_us]


def timed(row: Row, timer_us: int) -> Row:
    return (*row[:4], timer_us * US, *row[5:])


@pytest.mark.usefixtures("constant")
@pytest.mark.parametrize(
    ("row", "idle_us"),
    [
        # The timer was due at 90 us. Leaving the state took 10 us, where 40 are usual.
        (timed(period(0, 100, wait_us=5, cause="timer"), 90), 90),
        (timed(period(0, 100, wait_us=5, cause="timer"), 50), 60),
        # Nobody knows when this one was due: 40 us before the end.
        (period(0, 100, wait_us=5, cause="timer"), 60),
        # A task of another CPU came before the timer, and its wakeup took less than usual.
        (timed(period(0, 100, wait_us=10), 900), 60),
    ],
)
def test_no_timer_wakes_a_simulated_cpu_before_it_is_due(row: Row, idle_us: int) -> None:
    rows = [row, period(1000, 300, wait_us=40)]
    polled_us = governed(rows, COSTS, "teo@9.9").recorded.polled_ns / US
    # A poll of 20 us is followed by a turn of 1 us through the idle loop.
    expected_us = sum(x - (x // 21 + 0.3) for x in (idle_us, 260))
    assert polled_us == pytest.approx(expected_us, abs=2)


@pytest.mark.usefixtures("constant")
@pytest.mark.parametrize(("wait_us", "most", "least"), [(None, 2, 2), (40, 99, 10)])
def test_a_stopped_tick_stays_stopped_until_a_task_runs(
    wait_us: int | None, most: int, least: int
) -> None:
    rows = [period(0, 500, wait_us=wait_us, cause="device"), period(510, 50_000, wait_us=40)]
    assert least <= governed(rows, COSTS, "ladder@9.9").recorded.tally["halts"] <= most


@pytest.mark.usefixtures("constant")
@pytest.mark.parametrize(("wait_us", "shallow_us"), [(None, 20), (40, 0)])
def test_an_interrupt_without_a_task_ends_no_poll(wait_us: int | None, shallow_us: int) -> None:
    """A poll of 20 us, its limit, is too shallow. One of 12 us and one of 15 us are not."""
    rows = [period(0, 52, wait_us=wait_us, cause="ipi"), period(54, 55, wait_us=40)]
    account = governed(rows, COSTS, "teo@9.9").recorded
    assert account.tally["too_shallow_ns"] == shallow_us * US
    assert account.waits.total_ns == 0


@pytest.mark.usefixtures("constant")
@pytest.mark.parametrize(("cause", "polled"), [("tick", True), ("device", False)])
def test_a_governor_is_told_of_the_recorded_tick(cause: str, polled: bool, tmp_path: Path) -> None:
    """This one halts, and polls once it was told of a tick."""
    text = CONSTANT.format(name="menu", state=f"asked ? {POLL} : {HALT}", stops="false")
    learns = "int index) { asked = asked || tick_nohz_idle_got_tick(); }"
    (tmp_path / "menu.c").write_text(text.replace("int index) { }", learns))
    rows = [period(0, 500, wait_us=None, cause=cause), period(510, 100, wait_us=40)]
    assert (governed(rows, COSTS, "menu@9.9").recorded.polled_ns > 0) == polled
