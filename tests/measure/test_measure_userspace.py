# SPDX-License-Identifier: GPL-2.0-only
"""Samples taken in user space: really taken, on this machine; how long they took is not asked."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import eventually

from lightsleep import cpulist
from lightsleep.errors import LightsleepError
from lightsleep.measure import userspace
from lightsleep.measure.kernel_backend import CpuGone
from lightsleep.measure.model import NOT_IDLE, Batch, Sample, Source
from lightsleep.measure.summary import summarise
from lightsleep.measure.userspace import UserspaceBackend, judge

ONLINE = cpulist.parse(Path("/sys/devices/system/cpu/online").read_text())
CPUSETS = Path("/sys/fs/cgroup/cpuset")

two_cpus = pytest.mark.skipif(len(ONLINE) < 2, reason="an ipi needs two CPUs")


@pytest.fixture(scope="module")
def backend() -> Iterator[UserspaceBackend]:
    with userspace.attached() as attached:
        yield attached


def batch(
    source: Source = "timer",
    requested: str = "any",
    samples: int = 20,
    distance_ns: tuple[int, int] = (100_000, 200_000),
    dest: int = ONLINE[-1],
    src: int | None = None,
) -> Batch:
    if src is None:
        src = dest if source == "timer" else ONLINE[0]
    return Batch(source, src, dest, requested, samples, *distance_ns, min_residency_ns=0)


def family(pid: int) -> set[int]:
    """Return the processes of the session of ``pid`` that run."""
    members = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            stat = (process / "stat").read_text()
        except OSError:
            continue
        state, _, _, session = stat.rsplit(")", 1)[1].split()[:4]
        if int(session) == pid and state != "Z":
            members.add(int(process.name))
    return members


# The samples.


@pytest.mark.parametrize("requested", ["any", "busy"])
@pytest.mark.parametrize("source", ["timer", pytest.param("ipi", marks=two_cpus)])
def test_samples(backend: UserspaceBackend, source: Source, requested: str) -> None:
    asked = batch(source, requested)
    before = time.monotonic_ns()
    samples = backend.run(asked)
    after = time.monotonic_ns()
    assert len(samples) == 20
    stamps = [stamp for x in samples for stamp in (x.launch_ns, x.wake_ns)]
    # Each launch follows the wake before it, and nothing wakes before its launch.
    assert [before, *stamps, after] == sorted([before, *stamps, after])
    for sample in samples:
        assert (sample.source, sample.src, sample.dest) == (source, asked.src, asked.dest)
        assert sample.requested == requested
        assert sample.latency_ns == sample.wake_ns - sample.launch_ns
        assert sample.residency_ns is None
        assert sample.path == ("timer" if source == "timer" else None)
        assert sample.verdict != "wrong-cpu"


@pytest.mark.parametrize("source", ["timer", pytest.param("ipi", marks=two_cpus)])
def test_launch_distances_are_random_and_kept(backend: UserspaceBackend, source: Source) -> None:
    samples = backend.run(batch(source, samples=50, distance_ns=(1_000_000, 2_000_000)))
    distances = [late.launch_ns - early.wake_ns for early, late in itertools.pairwise(samples)]
    assert min(distances) >= 1_000_000
    assert max(distances) - min(distances) > 100_000


def test_a_busy_cpu_does_not_idle(backend: UserspaceBackend) -> None:
    """Unlike an idle one, as the kernel counts: the spinning process does spin."""
    samples = backend.run(batch(requested="busy", samples=100))
    assert {(x.entered, x.verdict) for x in samples} == {(NOT_IDLE, "ok")}


def test_each_cpu_can_be_woken(backend: UserspaceBackend) -> None:
    for cpu in ONLINE:
        assert {x.verdict for x in backend.run(batch(dest=cpu))} & {"ok", "not-idle"}


def test_the_largest_batch(backend: UserspaceBackend) -> None:
    assert len(backend.run(batch(samples=10_000, distance_ns=(1000, 1000)))) == 10_000


# Which state was entered.


@pytest.mark.parametrize(
    ("requested", "entries", "answer"),
    [
        ("1", {0: 0, 1: 100, 2: 0}, (1, "ok")),
        ("1", {0: 5, 1: 95, 2: 0}, (1, "ok")),
        ("1", {0: 20, 1: 80, 2: 0}, (0, "wrong-state")),
        ("1", {0: 1, 1: 0, 2: 99}, (2, "wrong-state")),
        ("1", {0: 0, 1: 89, 2: 0}, (NOT_IDLE, "not-idle")),
        ("1", {0: 0, 1: 0, 2: 0}, (NOT_IDLE, "not-idle")),
        ("1", {}, (None, "ok")),
        ("any", {0: 60, 1: 50}, (0, "ok")),
        ("any", {0: 0, 1: 10}, (NOT_IDLE, "not-idle")),
        ("any", {}, (None, "ok")),
        ("busy", {0: 0, 1: 9}, (NOT_IDLE, "ok")),
        ("busy", {0: 0, 1: 100}, (NOT_IDLE, "busy-was-idle")),
        ("busy", {}, (NOT_IDLE, "ok")),
    ],
)
def test_judge(requested: str, entries: dict[int, int], answer: tuple[int | None, str]) -> None:
    assert judge(requested, entries, 100) == answer


def test_a_tenth_of_a_batch_of_any_size_may_differ() -> None:
    for tenth in range(1, 1001):
        most, samples = 9 * tenth, 10 * tenth
        assert judge("busy", {0: tenth}, samples) == (NOT_IDLE, "ok")
        assert judge("busy", {0: tenth + 1}, samples) == (NOT_IDLE, "busy-was-idle")
        assert judge("1", {0: 0, 1: most}, samples) == (1, "ok")
        assert judge("1", {0: tenth, 1: most}, samples) == (1, "ok")
        assert judge("1", {0: tenth + 1, 1: most - 1}, samples) == (0, "wrong-state")


def test_states_are_counted(backend: UserspaceBackend) -> None:
    """A state that the kernel says is entered is found, and no sample of another counts."""
    folder = Path(f"/sys/devices/system/cpu/cpu{ONLINE[-1]}/cpuidle")
    states = {int(path.name[5:]) for path in folder.glob("state*")}
    if not states:
        pytest.skip("no cpuidle driver")
    samples = backend.run(batch(samples=50))
    assert {x.entered for x in samples} <= states | {NOT_IDLE}
    for state in states:
        for sample in backend.run(batch(requested=str(state), samples=50)):
            assert sample.valid == (sample.entered == state)
    with pytest.raises(LightsleepError, match="no idle state 99"):
        backend.run(batch(requested="99"))


def test_without_a_cpuidle_driver_nothing_tells_the_state(tmp_path: Path) -> None:
    cpus = tmp_path / "sys/devices/system/cpu"
    cpus.mkdir(parents=True)
    (cpus / "online").write_text("0-4095\n")
    with userspace.attached(tmp_path) as attached:
        assert {(x.entered, x.verdict) for x in attached.run(batch(requested="1"))} == {
            (None, "ok")
        }


# What cannot be measured.


def test_sources(backend: UserspaceBackend) -> None:
    usable = [source for source, reason in backend.sources().items() if reason is None]
    assert usable == ["timer", "ipi"]
    with pytest.raises(LightsleepError, match="needs the kernel module"):
        backend.run(batch("store"))


def test_a_cpu_that_is_not_online(backend: UserspaceBackend) -> None:
    with pytest.raises(CpuGone, match="CPU 9999 is not online"):
        backend.run(batch(dest=9999))
    with pytest.raises(CpuGone, match="CPU 9999 is not online"):
        backend.run(batch("ipi", src=9999))


@pytest.fixture
def one_cpu_set() -> Iterator[Path]:
    """A cpuset of the first CPU only."""
    folder = CPUSETS / f"lightsleep-test-{os.getpid()}"
    if len(ONLINE) < 2 or not os.access(CPUSETS / "cpuset.cpus", os.W_OK):
        pytest.skip("needs two CPUs and a writable cpuset hierarchy")
    folder.mkdir()
    (folder / "cpuset.cpus").write_text(str(ONLINE[0]))
    (folder / "cpuset.mems").write_text("0")
    yield folder
    eventually(lambda: not (folder / "tasks").read_text())
    folder.rmdir()


def test_a_cpu_that_is_not_permitted(one_cpu_set: Path) -> None:
    with userspace.attached() as attached:
        (one_cpu_set / "tasks").write_text(str(attached._process.pid))
        with pytest.raises(LightsleepError, match="does not let this process use"):
            attached.run(batch())
        assert len(attached.run(batch(dest=ONLINE[0]))) == 20


def test_an_affinity_mask_is_no_obstacle() -> None:
    """``taskset`` keeps this tool off the CPUs to be measured; that is a good idea."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {ONLINE[0]})
    try:
        with userspace.attached() as attached:
            assert len(attached.run(batch())) == 20
        assert os.sched_getaffinity(0) == {ONLINE[0]}
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_batch_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(userspace, "PATIENCE_S", 0.0)
    with userspace.attached() as attached:
        os.kill(attached._process.pid, signal.SIGSTOP)
        with pytest.raises(LightsleepError, match="did not end"):
            attached.run(batch())


def test_a_killed_sleeper() -> None:
    with userspace.attached() as attached:
        attached._process.kill()
        attached._process.wait()
        with pytest.raises(LightsleepError, match="ended"):
            attached.run(batch())


# Nothing is left behind.


def test_helpers_end_with_the_batch(backend: UserspaceBackend) -> None:
    backend.run(batch("timer", "busy"))
    assert family(backend._process.pid) == {backend._process.pid}


def test_the_sleeper_ends_with_the_context() -> None:
    with userspace.attached() as attached:
        attached.run(batch())
    assert not family(attached._process.pid)


@contextlib.contextmanager
def measurement() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process in the midst of a long batch, and its sleeper."""
    script = f"""
from lightsleep.measure import userspace
from lightsleep.measure.model import Batch
with userspace.attached() as attached:
    print(attached._process.pid, flush=True)
    attached.run(Batch("ipi", {ONLINE[0]}, {ONLINE[1]}, "busy", 50, 10**9, 10**9, 0))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@two_cpus
def test_who_takes_part_in_a_batch() -> None:
    """The sleeper, the one that wakes it, and the one that spins: each bound, in its priority."""
    src, dest = ONLINE[:2]

    def parts(sleeper: int) -> list[tuple[list[int], bool]]:
        return sorted(
            ([*os.sched_getaffinity(pid)], os.sched_getscheduler(pid) == os.SCHED_IDLE)
            for pid in family(sleeper)
        )

    with measurement() as (_, sleeper):
        expected = sorted([([src], False), ([dest], False), ([dest], True)])
        eventually(lambda: parts(sleeper) == expected)
        (spinner,) = (x for x in family(sleeper) if os.sched_getscheduler(x) == os.SCHED_IDLE)
        eventually(lambda: cpu_ticks(spinner) > 10)


def cpu_ticks(pid: int) -> int:
    """Return the time that a process spent in user space."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


@two_cpus
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_outlives_the_measurement(number: signal.Signals) -> None:
    with measurement() as (process, sleeper):
        eventually(lambda: len(family(sleeper)) == 3)
        process.send_signal(number)
        process.wait(60)
        eventually(lambda: not family(sleeper))


# What is said of it.


def sample(latency_ns: int, requested: str = "busy") -> Sample:
    return Sample(
        "timer", 1, 1, requested, NOT_IDLE, "timer", None, 0, latency_ns, latency_ns, "ok"
    )


def test_notes_give_the_noise_of_the_baseline(backend: UserspaceBackend) -> None:
    samples = [sample(latency_ns=1000 * us) for us in range(1, 102)]
    samples += [sample(latency_ns=10**9, requested="1")] * 100
    (noise,) = [note for note in backend.notes(samples) if note.startswith("timer")]
    assert "add 51.0 us (median of 101" in noise
    assert "between 11.0 and 91.0 us" in noise


def test_notes_have_the_percentiles_of_the_table(backend: UserspaceBackend) -> None:
    samples = [sample(latency_ns=1000 * us) for us in range(1, 11)]
    (noise,) = [note for note in backend.notes(samples) if note.startswith("timer")]
    figures = summarise([x.latency_ns for x in samples])
    assert figures
    assert (figures.p50_ns, figures.p90_ns) == (5000, 9000)
    assert "add 5.0 us" in noise
    assert "between 1.0 and 9.0 us" in noise


def test_notes_without_a_baseline(backend: UserspaceBackend) -> None:
    assert not any("median" in note for note in backend.notes([sample(1000, requested="1")] * 100))


def test_notes_tell_of_missing_priority() -> None:
    """Without the right to real-time priority the samples are taken, and the notes say so."""
    script = f"""
import ctypes
from lightsleep.measure import userspace
from lightsleep.measure.model import Batch
PR_CAPBSET_DROP, CAP_SYS_NICE = 24, 23
assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_NICE) == 0
with userspace.attached() as attached:
    cpu = {ONLINE[-1]}
    assert len(attached.run(Batch("timer", cpu, cpu, "busy", 20, 100000, 200000, 0))) == 20
    print(*attached.notes([]), sep="\\n")
"""
    if os.geteuid():
        pytest.skip("needs root, to give up a part of it")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "without real-time priority" in done.stdout, done.stderr
