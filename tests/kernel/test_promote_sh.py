# SPDX-License-Identifier: GPL-2.0-only
"""What promote.sh makes of a machine: its functions run here, on files that stand in for sysfs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ktap import KSFT_SKIP, SELFTESTS

PASSED, FAILED = 0, 1
ERRS = "add 20 state0/below"
PROMOTES = "add 20 state0/promoted"
"""What a load does to counters of CPU 1, in shell."""


def machine(
    folder: Path,
    isolated: str = "",
    full: str = "(null)",
    limit_us: int | None = 2000,
    own_limit: str | None = "0",
) -> None:
    """Make files like those of a POWER9 with stop0_lite, stop0 and stop1.

    ``limit_us`` is the limit of all CPUs and ``own_limit`` that of CPU 1, as the kernel writes it;
    None: the file is missing.
    """
    for index, latency in enumerate((1, 2, 5)):
        state = folder / f"cpu1/cpuidle/state{index}"
        state.mkdir(parents=True)
        for name, value in {"below": 0, "disable": 0, "latency": latency, "usage": 0}.items():
            (state / name).write_text(f"{value}\n")
    (folder / "cpu1/cpuidle/state0/promoted").write_text("0\n")
    for name, text in {"isolated": isolated, "nohz_full": full}.items():
        (folder / name).write_text(f"{text}\n")
    if limit_us is not None:
        (folder / "latency").write_bytes(limit_us.to_bytes(4, "little"))
    if own_limit is not None:
        (folder / "cpu1/power").mkdir()
        (folder / "cpu1/power/pm_qos_resume_latency_us").write_text(f"{own_limit}\n")


def ran(
    folder: Path, test: str, load: str, driver: str = "powernv"
) -> subprocess.CompletedProcess[str]:
    """Run a test of the script there; ``load``, in shell, is what its load does.

    ``driver`` is the one that was bound before. If it is "none", the states are made up.
    """
    functions, _, _ = (SELFTESTS / "promote.sh").read_text().partition("\nDRIVER=")
    assert f"\n{test}() {{" in functions
    script = f"""
        {functions.replace('$(dirname "$0")', str(SELFTESTS))}
        CPUS={folder} CPU={folder}/cpu1/cpuidle PARAMETER={folder}/promote DRIVER={driver}
        LATENCY_REQUESTS={folder}/latency PARTITIONS=
        add() {{ echo $(($(cat "$CPU/$2") + $1)) > "$CPU/$2"; }}
        pattern() {{ {load}; }}
        has_module() {{ :; }}
        load_states() {{ :; }}
        KMSG={folder}/log
        dmesg() {{ cat {folder}/log; }}
        sleep() {{ command sleep 0.01; }}
        {test}
    """
    (folder / "promote").write_text("Y\n")
    (folder / "log").write_text("what was before\n")
    return subprocess.run(["sh", "-c", script], text=True, capture_output=True, check=False)


@pytest.mark.parametrize(
    ("load", "status"), [(ERRS, FAILED), (PROMOTES, PASSED), (f"{ERRS}; {PROMOTES}", PASSED)]
)
def test_sleeps_that_are_too_shallow_are_promoted(tmp_path: Path, load: str, status: int) -> None:
    machine(tmp_path)
    done = ran(tmp_path, "leaves_states_of_the_driver", load)
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.parametrize("test", ["leaves_states_of_the_driver", "does_nothing_when_off"])
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"isolated": "1"}, "isolated"),
        ({"full": "0-3,8"}, "isolated"),
        ({"limit_us": 1}, "latency of 1 us"),
        ({"own_limit": "1"}, "latency of 1 us"),
        ({"own_limit": "n/a"}, "latency of 0 us"),
        ({"own_limit": "1", "limit_us": 2}, "latency of 1 us"),
        ({"own_limit": "2", "limit_us": 1}, "latency of 1 us"),
        ({"own_limit": "1", "limit_us": None}, "latency of 1 us"),
    ],
)
def test_what_no_kernel_promotes_is_no_failure(
    tmp_path: Path, settings: dict[str, Any], why: str, test: str
) -> None:
    machine(tmp_path, **settings)
    done = ran(tmp_path, test, ERRS)
    assert (done.returncode, done.stderr) == (KSFT_SKIP, "")
    assert why in done.stdout


@pytest.mark.parametrize(
    "settings",
    [
        {"isolated": "2-3"},
        {"full": "2"},
        {"limit_us": 2},
        {"limit_us": None},
        {"own_limit": "2"},
        {"own_limit": None},
    ],
)
def test_what_concerns_other_cpus_or_states_is_no_excuse(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    machine(tmp_path, **settings)
    assert ran(tmp_path, "leaves_states_of_the_driver", ERRS).returncode == FAILED


@pytest.mark.parametrize("settings", [{"limit_us": 2}, {"own_limit": "4"}])
def test_made_up_states_are_needed_all(tmp_path: Path, settings: dict[str, Any]) -> None:
    machine(tmp_path, **settings)
    done = ran(tmp_path, "need_made_up_states", ":", "none")
    assert (done.returncode, done.stderr) == (KSFT_SKIP, "")
    assert "requests a latency" in done.stdout


SURVIVES = ("hotplug", "another_governor", "switching_all_the_time")
TURNS = f"[ $1 -gt 20 ] || {PROMOTES}; : > ${{2:-/dev/null}}"
"""A load that does what it is asked for. Only what looks at its outcome is promoted."""


def driven(folder: Path) -> None:
    """Add what else a machine has that changes CPUs, governors and settings."""
    machine(folder)
    (folder / "cpuidle").mkdir()
    (folder / "cpuidle/current_governor").write_text("menu\n")
    (folder / "cpuidle/available_governors").write_text("menu teo\n")
    (folder / "cpu1/online").write_text("1\n")


@pytest.mark.parametrize("test", SURVIVES)
@pytest.mark.parametrize(
    ("load", "why"),
    [
        (TURNS, ""),
        (f"[ $1 -le 20 ] || fail no load; {TURNS}", "the load failed"),
        (TURNS.replace("add", ": "), "no promotions any more"),
        (f"{TURNS}; echo 'WARNING: bad' >> $CPUS/log", "the kernel complains"),
        (f"{TURNS}; echo later > $CPUS/log", "the log has lost its mark"),
    ],
    ids=["works", "no-load", "no-promotion", "complaint", "lost-mark"],
)
def test_what_survives_works_and_promotes(tmp_path: Path, test: str, load: str, why: str) -> None:
    driven(tmp_path)
    # need_promotion() wants to see promotions first.
    first = f"if [ ! -e {tmp_path}/seen ]; then : > {tmp_path}/seen; {PROMOTES}; else {load}; fi"
    done = ran(tmp_path, f"survives_{test}", first)
    assert (done.returncode, done.stderr) == (FAILED if why else PASSED, "")
    assert why in done.stdout
    if not why:
        disabled = [x.read_text() for x in sorted(tmp_path.glob("cpu1/cpuidle/*/disable"))]
        assert disabled == ["0\n"] * 3


@pytest.mark.parametrize("test", SURVIVES)
def test_where_the_log_takes_no_mark_nobody_can_tell(tmp_path: Path, test: str) -> None:
    """As with printk.devkmsg=off."""
    driven(tmp_path)
    done = ran(tmp_path, f"survives_{test}", f"{PROMOTES}; KMSG=/dev/null")
    assert (done.returncode, done.stderr) == (KSFT_SKIP, "")
    assert "the log takes no mark" in done.stdout


def test_a_cpu_that_cannot_go_offline_is_no_failure(tmp_path: Path) -> None:
    driven(tmp_path)
    (tmp_path / "cpu1/online").unlink()
    done = ran(tmp_path, "survives_hotplug", TURNS)
    assert (done.returncode, done.stderr) == (KSFT_SKIP, "")
    assert "CPU 1 cannot go offline" in done.stdout
