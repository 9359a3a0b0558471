# SPDX-License-Identifier: GPL-2.0-only
"""What idle_poll.sh makes of a machine: its functions run here, on files in place of sysfs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ktap import KSFT_SKIP, SELFTESTS

PASSED, FAILED = 0, 1


def machine(folder: Path, costs_ns: tuple[int, ...], hits: int = 0, isolated: str = "") -> None:
    """Make files like those of a machine; ``costs_ns`` is what a halt costs, CPU by CPU."""
    for cpu, cost_ns in enumerate(costs_ns):
        own = folder / f"cpu{cpu}/idle_poll"
        own.mkdir(parents=True)
        for name, value in {
            "contention_pauses": 0,
            "halt_cost_ns": cost_ns,
            "hits": hits,
        }.items():
            (own / name).write_text(f"{value}\n")
    (folder / "online").write_text(f"0-{len(costs_ns) - 1}\n")
    (folder / "isolated").write_text(f"{isolated}\n")
    (folder / "nohz_full").write_text("(null)\n")
    (folder / "wait_weight").write_text("4\n")


def ran(folder: Path, commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands there after the functions of the script."""
    functions, _, _ = (SELFTESTS / "idle_poll.sh").read_text().partition("\n[ $# -gt 0 ] ||")
    script = f"""
        {functions.replace('$(dirname "$0")', str(SELFTESTS))}
        CPUS={folder} PARAMETERS={folder} PARTITIONS=
        {commands}
    """
    return subprocess.run(["sh", "-c", script], text=True, capture_output=True, check=False)


def check_hits(folder: Path, seconds: str, load: str = ":") -> subprocess.CompletedProcess[str]:
    """Run check_hits() there; a pipe takes ``seconds``, and ``load``, in shell, is what it does."""
    return ran(
        folder,
        f"""
        perf() {{ :; }}
        taskset() {{ echo "$2" >> {folder}/pinned; {load}; echo {seconds}; }}
        sleep() {{ :; }}
        check_hits
        """,
    )


def test_hits_are_enough(tmp_path: Path) -> None:
    machine(tmp_path, (50000, 50000))
    done = check_hits(tmp_path, "0.100", f"echo 501 > {tmp_path}/cpu1/idle_poll/hits")
    assert (done.returncode, done.stdout, done.stderr) == (PASSED, "", "")
    assert (tmp_path / "pinned").read_text() == "0,1\n"


@pytest.mark.parametrize(
    ("costs_ns", "seconds"),
    [
        ((0, 0), "0.100"),
        # A round of 44 us, of which each CPU waits for 22 us at most: the price is 11 us.
        ((2750, 2750), "0.088"),
        # What the programs on other CPUs lose is of no interest.
        ((0, 0, 50000, 50000), "0.100"),
        ((0, 0), "1.009"),
    ],
)
def test_where_polling_does_not_pay_nobody_polls(
    tmp_path: Path, costs_ns: tuple[int, ...], seconds: str
) -> None:
    machine(tmp_path, costs_ns)
    done = check_hits(tmp_path, seconds)
    assert (done.returncode, done.stderr) == (KSFT_SKIP, "")
    assert done.stdout == "polling does not pay on this machine\n"


@pytest.mark.parametrize(
    ("costs_ns", "seconds"),
    [
        ((50000, 50000), "0.503"),
        # To poll pays on one of the two.
        ((0, 50000), "0.503"),
        ((2750, 2750), "0.044"),
    ],
)
def test_where_polling_pays_no_hits_are_a_failure(
    tmp_path: Path, costs_ns: tuple[int, ...], seconds: str
) -> None:
    machine(tmp_path, costs_ns)
    done = check_hits(tmp_path, seconds)
    assert (done.returncode, done.stderr) == (FAILED, "")
    assert f"0 hits in 2000 rounds, which took {seconds} s" in done.stdout


def test_a_host_that_needs_its_cores_is_no_failure(tmp_path: Path) -> None:
    machine(tmp_path, (50000, 50000))
    done = check_hits(tmp_path, "0.503", f"echo 1 > {tmp_path}/cpu0/idle_poll/contention_pauses")
    assert (done.returncode, done.stderr) == (KSFT_SKIP, "")
    assert done.stdout == "the host needs its cores\n"


def test_the_pipe_keeps_away_from_isolated_cpus(tmp_path: Path) -> None:
    machine(tmp_path, (50000, 50000, 50000), isolated="1")
    check_hits(tmp_path, "0.503")
    assert set((tmp_path / "pinned").read_text().split()) == {"0,2"}


def test_one_cpu_alone_has_no_pipe(tmp_path: Path) -> None:
    machine(tmp_path, (50000, 50000), isolated="1")
    done = check_hits(tmp_path, "0.503")
    assert (done.returncode, done.stderr) == (KSFT_SKIP, "")
    assert done.stdout == "all CPUs but one are isolated\n"


def test_no_load_is_a_failure(tmp_path: Path) -> None:
    machine(tmp_path, (50000, 50000))
    done = check_hits(tmp_path, "0.503", "return 1")
    assert (done.returncode, done.stdout) == (FAILED, "no load\n")


@pytest.mark.parametrize("name", ["time_polled_is_idle_time", "asks_the_programs"])
@pytest.mark.parametrize("pays", [False, True])
def test_programs_may_say_during_a_test_that_polling_does_not_pay(
    pays: bool, name: str, tmp_path: Path
) -> None:
    machine(tmp_path, (50000, 50000))
    for cpu in range(2):
        (tmp_path / f"cpu{cpu}/idle_poll/deliberate_halts").write_text("0\n")
    done = ran(
        tmp_path,
        f"""
        on() {{ :; }}
        off() {{ :; }}
        pipe_load() {{ :; }}
        account() {{ echo 0 500 0; }}
        check_hits() {{ # there are some, at first
            {"" if pays else f'[ ! -e {tmp_path}/asked ] || skip "polling does not pay"'}
            : > {tmp_path}/asked
        }}
        {name}
        """,
    )
    assert (done.returncode, done.stderr) == (FAILED if pays else KSFT_SKIP, "")


def at_rest(folder: Path, polled_ns: int, busy_ticks: int) -> subprocess.CompletedProcess[str]:
    """Run does_not_poll_at_rest() there, where so much happens in its 3 s."""
    machine(folder, (50000, 50000))
    for cpu in (0, 1):
        (folder / f"cpu{cpu}/idle_poll/polled_ns").write_text("1000\n")
    return ran(
        folder,
        f"""
        on() {{ :; }}
        sleep() {{ [ $1 != 3 ] || touch {folder}/slept; }}
        statistic() {{ [ ! -e {folder}/slept ] && echo 1000 || echo $((1000 + {polled_ns})); }}
        busy_ticks() {{ [ ! -e {folder}/slept ] && echo 70 || echo $((70 + {busy_ticks})); }}
        does_not_poll_at_rest
        """,
    )


@pytest.mark.parametrize(
    ("polled_ns", "busy_ticks", "status"),
    [
        (59_999_999, 0, PASSED),
        (60_000_000, 30, FAILED),
        (60_000_000, 31, KSFT_SKIP),
        (59_999_999, 600, PASSED),
    ],
)
def test_only_a_machine_at_rest_can_poll_too_much(
    polled_ns: int, busy_ticks: int, status: int, tmp_path: Path
) -> None:
    assert at_rest(tmp_path, polled_ns, busy_ticks).returncode == status


def test_busy_ticks_leave_out_idle_time(tmp_path: Path) -> None:
    user, nice, system, idle, iowait, irq, softirq, steal = (
        int(x) for x in Path("/proc/stat").read_text().split()[1:9]
    )
    done = ran(tmp_path, "busy_ticks")
    busy, idle = sum((user, nice, system, irq, softirq, steal)), idle + iowait
    # Between both readings, all CPUs may have been busy.
    assert busy <= int(done.stdout) < busy + max(idle, 1000)


@pytest.mark.parametrize("test", ["counts_each_period_once", "time_polled_is_idle_time"])
def test_what_cannot_be_counted_fails_no_kernel(test: str, tmp_path: Path) -> None:
    machine(tmp_path, (50000, 50000))
    (tmp_path / "cpu1/idle_poll/halts").write_text("0\n")
    done = ran(
        tmp_path,
        f"""
        on() {{ :; }}; off() {{ :; }}
        perf() {{ return 129; }}
        python3() {{ return 1; }}
        taskset() {{ :; }}
        {test}
        """,
    )
    skips = test == "counts_each_period_once"
    said = "perf cannot count what the scheduler does" if skips else "cannot account"
    assert (done.returncode, done.stdout) == (KSFT_SKIP if skips else FAILED, f"{said}\n")
