# SPDX-License-Identifier: GPL-2.0-only
"""What polling before the halt is worth to real programs, and what it costs the host.

Servers and their load generators from the distribution, both in one guest, over the loopback
interface or a Unix socket. With one connection each side waits for the other, so that nearly every
request takes two wakeups; with many connections the CPUs are busy, and polling may only cost.

Host CPU time for each request is the price: a vCPU that polls uses a core of its host, one that
halts gives it back. Where a request is served sooner, the host also spends less on it.

cpuidle-haltpoll, which exists for this purpose, has no arm here. It asks the hypervisor's CPUID
leaves for KVM's signature (kvm_para_available()) and refuses to load without it, ``force=1`` or
not; its governor is not even registered then. Under TCG, QEMU presents a signature of its own,
"TCGTCGTCGTCG", and no option changes that: ``kvm=on`` and all other features of these leaves are
KVM's. The arm fixed-100us polls as long as the first proposal for arm64 did, which is haltpoll's
driver with a constant limit.
"""

from lightsleep.lab.experiment import IDLE_RESIDENCY, Arm, Experiment
from lightsleep.lab.guest import Guest
from lightsleep.lab.programs.run import all_metrics, run_all, starter
from lightsleep.lab.programs.servers import PROGRAMS


def measure(guest: Guest) -> dict[str, float]:
    """Load each program once with one connection and once with many."""
    return run_all(guest, PROGRAMS)


EXPERIMENT = Experiment(
    title="Real servers under real load, client and server in one guest",
    hypothesis=(
        "With one connection, every program gains from lightsleep at least 90 % of the requests "
        "per second that idle=poll gains over stock, and no less than a constant limit of 100 us "
        "gains, for less host CPU time a request than idle=poll. With many connections no program "
        "is slower, and the guest at rest sleeps as much as stock. Falsified if any of this does "
        "not hold for any program."
    ),
    arms=(
        Arm("stock", "baseline", "the distribution's kernel as it is: idle CPUs halt at once"),
        Arm(
            "lightsleep",
            "treatment",
            "the same kernel with cpuidle-lightsleep: idle CPUs poll first, then halt",
            modules=("cpuidle_lightsleep",),
        ),
        Arm(
            "fixed-100us",
            "treatment",
            "the same driver with a constant limit: idle CPUs poll up to 100 us, then halt",
            modules=("cpuidle_lightsleep mode=fixed poll_limit_us=100",),
        ),
        Arm(
            "idle=poll",
            "limit",
            "the same kernel booted with idle=poll: idle CPUs never halt",
            append="idle=poll",
            spins=True,
        ),
        Arm("stock-again", "control", "a second guest booted exactly as stock"),
    ),
    metrics=(*all_metrics(PROGRAMS), IDLE_RESIDENCY),
    measure=measure,
    start=starter(PROGRAMS),
    root="programs",
    rest_s=4,
)
