# SPDX-License-Identifier: GPL-2.0-only
"""What a recording costs the workload that it records.

A task works and sleeps in turn, and each sleep is an idle period. The clock counts instructions, 4
ns each, of all CPUs together: what the kernel, trace-cmd and the keeper do for the recording shows
in the time of the task, unless it is done while the task sleeps. Then it takes time that passes
anyway, as it would on a machine with an idle CPU. So a figure is what the task notices. More than
that may have been executed. A CPU with 2,000 million instructions per second goes
through 200,000 of them 10,000 times per second, and through 20,000 of them 100,000 times. These are
the periods that the two metrics have: 800 us and 80 us of the guest's time.

The arm *least* is the limit of any recording made with trace-cmd: the three events without which
nobody can say how long a task waited for an idle CPU. What *trace-cmd* costs beyond it tells who
sent the IPI, which timer or device it was, and what the governor knew. *bpf* records all that, too.

Caches cost nothing here. A recording that evicts what a program needs costs more than this shows. A
string instruction counts as often as it repeats. CPUs that have a fast one for bytes move 16 bytes
or more at a time by it: the guests are told to do without, so that they move 8 at a time.
"""

from __future__ import annotations

import json

from lightsleep.compare.result import Claim
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

LOOP = """\
import sys, time
from itertools import repeat

def us_per_turn(count, work, pause_s, clock, sleep):
    for turns in (count // 10, count):
        begin = clock()
        for _ in range(turns):
            for _ in repeat(None, work):
                pass
            sleep(pause_s)
    return (clock() - begin) / count * 1e6

count, work = map(int, sys.argv[1:3])
print(us_per_turn(count, work, float(sys.argv[3]), time.perf_counter, time.sleep))
"""
"""While the clock runs, this looks up no name in a dictionary, and makes no number: how many
instructions that takes differs from process to process."""

FILE = "/run/record-cost.py"
TRACE = "/run/record-cost.dat"
RECORD = ("python3", "-m", "lightsleep", "record")
LEAST = (
    *("trace-cmd", "record", "-q", "--no-filter", "-o", TRACE),
    *("-B", "least", "-C", "mono", "-b", "4096"),
    *("-e", "power:cpu_idle", "-e", "sched:sched_waking"),
    *("-e", "sched:sched_switch", "-f", "prev_pid==0||next_pid==0"),
)
"""Clock, buffers and filter as in record/tracing.py, which the lab is below and cannot import."""

ARMS = {
    "off": (),  # so is an arm that has another name, such as that of --patched-tree
    "least": LEAST,
    "trace-cmd": (*RECORD, "--recorder", "trace-cmd", "-o", TRACE, "--"),
    "bpf": (*RECORD, "--recorder", "bpf", "-o", TRACE, "--"),
    "histogram": (*RECORD, "--histogram", "-o", "/run/record-cost.json", "--"),
}
LOSSLESS = ("trace-cmd", "bpf")
"""Arms that have to keep every event in the default buffer. Where one does not, the run fails."""

SLOW = Metric(
    "period_10k_us",
    "us",
    "lower",
    "Period of 200,000 instructions",
    "Work and sleep of one turn, 800 us together without a recording: 10,000 idle periods per "
    "second of a CPU with 2,000 million instructions per second",
)
FAST = Metric(
    "period_100k_us",
    "us",
    "lower",
    "Period of 20,000 instructions",
    "The same with 80 us: 100,000 idle periods per second",
)
LOADS = {SLOW.name: ("2000", "1340", "0.0003"), FAST.name: ("12000", "16", "0.00005")}


def start(guest: Guest) -> None:
    """Put the program where the guest finds it."""
    guest.write_text(FILE, LOOP)


def measure(guest: Guest) -> dict[str, float]:
    """Run both loads once, under the recording of the guest's arm.

    Raises LightsleepError where that lost events.
    """
    found = {}
    for name, words in LOADS.items():
        command = [*ARMS.get(guest.name, ()), "chrt", "-f", "10", "python3", FILE, *words]
        found[name] = float(guest.run(command, timeout_s=300).stdout)
        if guest.name in LOSSLESS:
            lost = json.loads(guest.read_text(f"{TRACE}.json"))["recorded"]["lost_events"]
            if lost:
                raise LightsleepError(f"{guest.name}, {name}: events were lost, by CPU: {lost}")
    return found


COPY_WORDS = "clearcpuid=erms,fsrm"

EXPERIMENT = Experiment(
    title="What lightsleep record costs",
    hypothesis=(
        "A recording by BPF programs costs at most 2 % at 10,000 idle periods per second and CPU, "
        "and at most 10 % at 100,000. One by trace-cmd costs at most 5 % more than the least that "
        "trace-cmd can record. A histogram costs at most 0.5 % and 3 %."
    ),
    arms=(
        Arm("off", "baseline", "nothing is recorded", COPY_WORDS),
        Arm(
            "least",
            "treatment",
            "trace-cmd with the three events that no recording can do without",
            COPY_WORDS,
        ),
        Arm("trace-cmd", "treatment", "lightsleep record by trace-cmd, all events", COPY_WORDS),
        Arm("bpf", "treatment", "lightsleep record by BPF programs, all events", COPY_WORDS),
        Arm("histogram", "treatment", "lightsleep record --histogram", COPY_WORDS),
        Arm("off-again", "control", "a second guest booted exactly as off", COPY_WORDS),
    ),
    metrics=(SLOW, FAST),
    measure=measure,
    start=start,
    claims=(
        Claim("bpf", "off", (SLOW.name,), at_most=1.02),
        Claim("bpf", "off", (FAST.name,), at_most=1.10),
        Claim("trace-cmd", "least", (SLOW.name,), at_most=1.05),
        Claim("trace-cmd", "least", (FAST.name,), at_most=1.05),
        Claim("histogram", "off", (SLOW.name,), at_most=1.005),
        Claim("histogram", "off", (FAST.name,), at_most=1.03),
    ),
    rounds=9,  # a clock that counts instructions scatters little
    boots=3,
    accel="tcg-icount",
)
