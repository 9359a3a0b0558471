# SPDX-License-Identifier: GPL-2.0-only
"""Whether a policy does what a replay says that it would do.

A client sends datagrams, and sleeps for a time of its own before each, whether the server answers
or not (an *open loop*). Client and server have a CPU each. The client's idle periods are its
sleeps, whatever the policy; the server's change by as much as wakeups take. All times are per
datagram, of which the client sends as many under each policy. (A client that sends at times set
beforehand, and catches up where it is late, would not serve: the sooner it wakes, the longer is
its next idle period, and the fewer datagrams come at once.)

The arm *predicted* is a stock guest. It is recorded, and `lightsleep replay` says how long tasks
would have waited, and CPUs would have polled, under each policy. The arm *measured* has the driver
and runs the same load under each policy, recorded likewise. A wakeup from halt takes longer where
there is a driver and a governor, which a guest without them cannot tell. So the arm *predicted-off*
is recorded with the driver in mode off: what differs from that, the replay did not foresee. The
driver measures the cost of a halt when it is loaded, each time a bit otherwise. As haltpoll takes
its place in every round of *measured*, it is loaded anew in every round of *predicted-off*, too.

What tasks are said to wait is what was recorded, less what the replay says that the policy saves;
see loads/recorded.py. What is different in a closed loop is in prediction_loop.py.
"""

from __future__ import annotations

from pathlib import Path

from lightsleep.compare.result import Claim
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.loads.recorded import (
    MODULE,
    POLICIES,
    Per,
    from_others,
    recorded,
    replayed,
    scratch,
)
from lightsleep.lab.run.experiment import Arm, Experiment

CLIENT, SERVER, READY = "/run/client.py", "/run/server.py", "/run/ready"
PORT = 9
SERVE = f"""\
import socket
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.bind(("127.0.0.1", {PORT}))
open("{READY}", "w").close()
while True:
    line.recv(64)
"""
MEAN_GAP_S = 0.0005
"""Of the gaps between datagrams, which are distributed exponentially: some are shorter than any
poll, some longer."""

SEND = f"""\
import random, socket, sys, time
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.connect(("127.0.0.1", {PORT}))
gaps = random.Random(int(sys.argv[2]))
for _ in range(int(sys.argv[1])):
    time.sleep(gaps.expovariate(1 / {MEAN_GAP_S}))
    line.send(b"x")
"""
VCPUS = 2
CLIENT_CPU, SERVER_CPU = 0, 1
RECORDED, LEARNED = 4000, 6000
"""Datagrams that are recorded, and from which the driver learns before (see halt_cost.py)."""

PER = Per("per datagram", RECORDED)
METRICS = PER.metrics()


def start(guest: Guest) -> None:
    """Start the server, and put the client where the guest finds it."""
    guest.run(["busybox", "ip", "link", "set", "lo", "up"])
    guest.write_text(SERVER, SERVE)
    guest.write_text(CLIENT, SEND)
    serve = f"taskset -c {SERVER_CPU} python3 {SERVER} > /dev/null 2>&1 &"
    guest.run(["sh", "-c", f"{serve} until [ -e {READY} ]; do sleep 0.1; done"])


def load(datagrams: int, seed: int) -> str:
    """Return the command that sends the server so many datagrams."""
    return f"taskset -c {CLIENT_CPU} python3 {CLIENT} {datagrams} {seed}"


def predicted(guest: Guest, folder: Path) -> dict[str, float]:
    """Record a guest whose CPUs halt at once; return what the replay says of each policy."""
    for module in guest.machine.modules:
        guest.run(["rmmod", module.split()[0]])
        guest.insmod(module)
    there = from_others(recorded(guest, folder, load(RECORDED, 1)))
    outcomes = {name: each["as_recorded"] for name, each in replayed(there.table).items()}
    found: dict[str, float] = {}
    for policy in POLICIES:
        would = outcomes[policy]
        saved_ns = outcomes["stock"]["waited_ns"] - would["waited_ns"]
        found |= PER.figures(policy, there.waited_ns - saved_ns, would["polled_ns"])
    return found


def measure(guest: Guest) -> dict[str, float]:
    """Predict, or measure, what the guest's arm is named for."""
    with scratch() as folder:
        if MODULE in guest.machine.modules:
            return PER.measured(guest, folder, load(RECORDED, 1), load(LEARNED, 2))
        return predicted(guest, folder)


NEAR = 0.85, 1.15
"""Within 15 %."""

EXPERIMENT = Experiment(
    title="What a replay predicts, and what then happens",
    hypothesis=(
        "For a load that nothing holds up, lightsleep replay predicts within 15 % how long tasks "
        "wait for CPUs under a policy, and how long CPUs poll."
    ),
    arms=(
        Arm("predicted", "baseline", "a recording of the kernel as it is, replayed"),
        Arm(
            "measured",
            "treatment",
            "the same kernel and load with cpuidle-lightsleep in the modes that were predicted",
            modules=(MODULE,),
        ),
        Arm(
            "predicted-off",
            "treatment",
            "a recording of the kernel with cpuidle-lightsleep in mode off, replayed",
            modules=(f"{MODULE} mode=off",),
        ),
        Arm("predicted-again", "control", "a second guest booted exactly as predicted"),
    ),
    metrics=tuple(metric for policy in POLICIES for metric in METRICS[policy]),
    measure=measure,
    start=start,
    warmup=0,
    claims=tuple(
        Claim("measured", reference, (metric.name,), at_least=NEAR[0], at_most=NEAR[1])
        for reference in ("predicted", "predicted-off")
        for policy in POLICIES
        for metric in METRICS[policy]
    ),
    vcpus=VCPUS,
    least_vcpus=VCPUS,
    rounds=12,  # each records and runs every policy
    boots=4,
    pin=True,
)
