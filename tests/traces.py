# SPDX-License-Identifier: GPL-2.0-only
"""Traces, written line by line as the kernel would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recordings import rows_of

from lightsleep.periods.formats import is_recording

SWITCH = (
    "sched_switch: prev_comm={} prev_pid={} prev_prio=120 prev_state=S ==> "
    "next_comm={} next_pid={} next_prio=120"
)


def event(us: int, cpu: int, text: str, task: str = "<idle>-0") -> str:
    return f"{task:>20}     [{cpu:03}] d..1. {10 + us // 1_000_000}.{us % 1_000_000:06}: {text}\n"


def idle(us: int, cpu: int, state: int) -> str:
    return event(us, cpu, f"cpu_idle: state={state} cpu_id={cpu}")


def left(us: int, cpu: int) -> str:
    return idle(us, cpu, 4294967295)


def switched(us: int, cpu: int, comm: str, pid: int) -> str:
    return event(us, cpu, SWITCH.format(f"swapper/{cpu}", 0, comm, pid))


def waking(us: int, cpu: int, pid: int, task: str = "waker-7") -> str:
    return event(us, cpu, f"sched_waking: comm=x pid={pid} prio=120 target_cpu=001", task)


@pytest.fixture
def trace(tmp_path: Path) -> Any:
    """Return a function that reads lines as a trace and returns its rows."""

    def read(*lines: str) -> list[dict[str, Any]]:
        path = tmp_path / "trace.txt"
        path.write_text("# tracer: nop\n#\n" + "".join(lines))
        assert is_recording(path)
        return rows_of(path)[0]

    return read
