# SPDX-License-Identifier: GPL-2.0-only
"""What load generators print is read right, or refused; recorded from a guest of the lab."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import cast

import pytest
from paths import FIXTURES

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.agent import Completed
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.hosttime import ThreadTime
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.experiments import halt_cost, overcommit
from lightsleep.lab.experiments.programs import EXPERIMENT
from lightsleep.lab.loads.programs import outputs, run
from lightsleep.lab.loads.programs.outputs import Outcome
from lightsleep.lab.loads.programs.servers import (
    MANY,
    MOSQUITTO,
    NGINX,
    ONE,
    PROGRAMS,
    REDIS,
    Program,
)

RECORDED = FIXTURES / "generators"
READ = {
    "redis_1": Outcome(138.48, None, 4015.0, 44319.0),
    "redis_50": Outcome(3106.88, None, 9287.0, 47615.0),
    "nginx_1": Outcome(151.49, 157, 6660.0, 38370.0),
    "nginx_50": Outcome(1790.07, 1895, 20520.0, 76060.0),
    "memcached_1": Outcome(245.0, 3000),
    "memcached_50": Outcome(2157.0, 12000),
    "postgresql_1": Outcome(67.802255, 57),
    "postgresql_50": Outcome(336.024328, 2000),
    "unbound_50": Outcome(6320.079523, 6358, 3743.5, 19199.5),
}
READERS = {
    f"{program.name}_{connections}": load.read
    for program in PROGRAMS
    for connections, load in program.loads.items()
    if load.read
}


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def test_every_generator_has_a_recording_of_each_load() -> None:
    assert READERS.keys() == READ.keys()
    assert {path.stem for path in RECORDED.iterdir()} == READ.keys()


@pytest.mark.parametrize("name", READ)
def test_a_recorded_output_is_read(name: str) -> None:
    assert astuple(READERS[name](recorded(name))) == pytest.approx(astuple(READ[name]))


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("spoil", [lambda _: "", lambda text: text[: len(text) // 3]])
def test_an_output_of_another_form_is_refused(name: str, spoil: Callable[[str], str]) -> None:
    text = spoil(recorded(name))
    with pytest.raises(LightsleepError, match="another form than expected"):
        READERS[name](text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("nginx_1", "Requests/sec", "  Socket errors: connect 0, read 3\nRequests/sec"),
        ("nginx_1", "Requests/sec", "  Non-2xx or 3xx responses: 157\nRequests/sec"),
        ("memcached_1", "get_misses: 0", "get_misses: 7"),
        ("postgresql_1", "failed transactions: 0 ", "failed transactions: 2 "),
        ("unbound_50", "Queries lost:         0 ", "Queries lost:         7 "),
        ("unbound_50", "NOERROR 6358 (100.00%)", "NOERROR 6357 (99.98%), SERVFAIL 1 (0.02%)"),
        ("unbound_50", "NOERROR 6358 (100.00%)", "SERVFAIL 6358 (100.00%)"),
    ],
)
def test_requests_that_fail_are_no_requests(name: str, good: str, bad: str) -> None:
    text = recorded(name)
    assert good in text
    with pytest.raises(LightsleepError, match=r"requests failed|another form"):
        READERS[name](text.replace(good, bad))


def test_one_datagram_in_a_thousand_may_be_lost() -> None:
    text = recorded("unbound_50")
    completed = outputs.dnsperf(text).requests
    assert completed
    for lost in (completed // 1000, completed // 1000 + 1):
        spoilt = text.replace("Queries lost:         0 ", f"Queries lost:         {lost} ")
        if 1000 * lost <= completed:
            assert outputs.dnsperf(spoilt).requests == completed
        else:
            with pytest.raises(LightsleepError, match=f"requests failed(?s:.*)lost: +{lost} "):
                outputs.dnsperf(spoilt)


def test_a_histogram_that_misses_answers_is_refused() -> None:
    lines = recorded("unbound_50").splitlines(keepends=True)
    del lines[-2]
    with pytest.raises(LightsleepError, match="another form"):
        outputs.dnsperf("".join(lines))


@pytest.mark.parametrize(
    ("latency", "us"), [("850.00us", 850), ("1.37ms", 1370), ("1.02s", 1_020_000)]
)
def test_units_of_wrk(latency: str, us: float) -> None:
    text = recorded("nginx_1").replace("6.66ms", latency)
    assert outputs.wrk(text).p50_us == pytest.approx(us)


CYCLIC = "T: 0 (27156) P:80 I:1000 C:    500 Min:      9 Act:   32 Avg:   21 Max:      79\n"


def test_cyclictest() -> None:
    assert outputs.cyclictest_mean_us(CYCLIC, "ERROR: shm_open No such file or directory") == 21
    with pytest.raises(LightsleepError, match="cyclictest: its output"):
        outputs.cyclictest_mean_us("", "FATAL: invalid cpu")
    with pytest.raises(LightsleepError, match="requests failed"):
        outputs.cyclictest_mean_us(CYCLIC, "WARN: stat /dev/cpu_dma_latency failed: No such file")


def test_a_generator_that_prints_nothing_is_timed() -> None:
    load = MOSQUITTO.loads[ONE]
    assert load.requests
    outcome = run.outcome_of(load, Completed(0, "", "", duration_s=2.0))
    assert outcome == Outcome(per_s=load.requests / 2.0, requests=load.requests)


class FakeGuest:
    """Prints what was recorded; its CPU time and interrupts grow with each command."""

    name = "fake"

    def __init__(self, output: str) -> None:
        self.output = output
        self.commands = 0

    def run(self, argv: object, **_: object) -> Completed:
        self.commands += 1
        return Completed(0, self.output, "", 1.0)

    def vcpu_time(self) -> ThreadTime:
        return ThreadTime(ran_ns=self.commands * 6_000_000_000, waited_ns=0)

    def read_text(self, _: str) -> str:
        return f" RES: {self.commands * 4500} 0   Rescheduling interrupts\n"


def loaded(program: Program, connections: int) -> dict[str, float]:
    guest = FakeGuest(recorded(f"{program.name}_{connections}"))
    return run.run_load(cast(Guest, guest), program, connections)


def test_figures_are_per_request() -> None:
    assert REDIS.loads[ONE].requests == 3000
    assert loaded(REDIS, ONE) == {
        "redis_1_per_s": 138.48,
        "redis_1_p50_us": pytest.approx(4015),
        "redis_1_p99_us": pytest.approx(44319),
        "redis_1_cpu_us": pytest.approx(2000),
        "redis_1_ipis": pytest.approx(1.5),
    }
    assert loaded(NGINX, MANY)["nginx_50_cpu_us"] == pytest.approx(6e6 / 1895)


def test_the_driver_is_compared_with_what_each_program_loses() -> None:
    halting = {"pipe": 63.0, "redis": 184.0, "nginx": 180.0}
    polling = {"pipe": 13.0, "redis": 80.0, "nginx": 80.0}
    learned = dict.fromkeys(halt_cost.LOADED, 52.0)
    figures = halt_cost.figures(30.0, learned, halting, polling)
    assert isinstance(halt_cost.EXPERIMENT.metrics, tuple)
    assert figures.keys() == {metric.name for metric in halt_cost.EXPERIMENT.metrics}
    assert figures["pipe_us"] == pytest.approx(50)
    assert figures["off_in_pipe_us"] == pytest.approx(2 - 12.5)
    assert figures["off_in_redis_us"] == pytest.approx(52 - 26)
    faster = halt_cost.figures(30.0, learned, halting | {"redis": 79.0}, polling)
    assert faster["redis_us"] == pytest.approx(-1)
    assert faster["off_in_redis_us"] == pytest.approx(53.25)


def test_the_driver_is_read_in_its_own_mode_which_it_has_again_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Driver(FakeGuest):
        def __init__(self) -> None:
            super().__init__("")
            self.machine = Machine(vcpus=2)
            self.is_now = {"mode": "adaptive", "poll_limit_us": "200"}
            self.ran: list[tuple[str, str, str]] = []

        def read_text(self, path: str) -> str:
            if Path(path).name != "halt_cost_ns":
                return self.is_now[Path(path).name]
            assert self.is_now["mode"] == "adaptive"
            return {"cpu0": "40000", "cpu1": "64000"}.get(Path(path).parts[-3], "30000")

        def write_text(self, path: str, text: str) -> None:
            self.is_now[Path(path).name] = text

    def wakeup_us(guest: Driver, name: str) -> float:
        guest.ran.append((name, guest.is_now["mode"], guest.is_now["poll_limit_us"]))
        return 80.0 if guest.is_now["mode"] == "fixed" else 180.0

    monkeypatch.setattr(halt_cost, "wakeup_us", wakeup_us)
    monkeypatch.setattr(halt_cost, "LEARN_S", 1e-9)
    driver = Driver()
    before = dict(driver.is_now)
    figures = halt_cost.measure(cast(Guest, driver))
    assert figures["machine_us"] == 30
    assert figures["used_in_nginx_us"] == 52
    assert figures["off_in_nginx_us"] == 48 - 25
    modes = [("adaptive", "200"), ("off", "200"), ("fixed", str(halt_cost.LONG_US))]
    assert driver.ran == [(name, *mode) for mode in modes for name in halt_cost.LOADED]
    assert driver.is_now == before


def test_overcommitted_guests_are_seen_from_outside_and_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Waiting(FakeGuest):
        def run(self, argv: object, **_: object) -> Completed:
            self.commands += 1
            cyclic = argv == overcommit.CYCLICTEST
            return Completed(0, CYCLIC if cyclic else "0.75", "", 1.0)

        def vcpu_time(self) -> ThreadTime:
            return ThreadTime(ran_ns=self.commands * 3, waited_ns=self.commands)

        def read_text(self, _: str) -> str:
            return f"cpu  1342 0 3864 3196 30 0 1181 {self.commands * 50} 0 0\ncpu0 1 2\n"

    promised = {metric.name for metric in overcommit.METRICS}
    redis = {name: 1.0 for name in promised if name.startswith("redis")}
    monkeypatch.setattr(overcommit, "run_load", lambda *_: redis)
    figures = overcommit.measure(cast(Guest, Waiting("")))
    assert figures.keys() == promised
    assert (figures["sched_messaging_s"], figures["cyclictest_us"]) == (0.75, 21)
    assert figures["waited_pct"] == pytest.approx(25)
    assert figures["steal_s"] == pytest.approx(1.0)


def test_a_server_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(FakeGuest):
        def run(self, argv: object, **_: object) -> Completed:
            return Completed(1 if argv == REDIS.probe else 0, "", "Connection refused", 0.1)

        def write_text(self, *_: object) -> None:
            pass

    monkeypatch.setattr(run, "READY_S", 0.0)
    with pytest.raises(LightsleepError, match=r"fake: redis does not answer.*refused"):
        run.starter([REDIS])(cast(Guest, Silent("")))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.parametrize("connections", [ONE, MANY])
def test_what_is_measured_is_what_is_promised(program: Program, connections: int) -> None:
    promised = [metric.name for metric in run.metrics_of(program, connections)]
    if program.loads[connections].read:
        assert list(loaded(program, connections)) == promised
    assert isinstance(EXPERIMENT.metrics, tuple)
    assert set(promised) <= {metric.name for metric in EXPERIMENT.metrics}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("redis_1_p50_us", "steps of 8 us"),
        ("redis_50_p99_us", "steps of 8 us"),
        ("nginx_1_p99_us", "steps of 10 us"),
        ("unbound_50_p50_us", "the middle of a bucket"),
    ],
)
def test_a_percentile_says_how_exact_it_is(name: str, said: str) -> None:
    assert isinstance(EXPERIMENT.metrics, tuple)
    (metric,) = (x for x in EXPERIMENT.metrics if x.name == name)
    assert said in metric.description


def test_names_of_metrics_are_unique() -> None:
    assert isinstance(EXPERIMENT.metrics, tuple)
    names = [metric.name for metric in EXPERIMENT.metrics]
    assert len(set(names)) == len(names)
