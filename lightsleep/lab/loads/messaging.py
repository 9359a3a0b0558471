# SPDX-License-Identifier: GPL-2.0-only
"""A workload that keeps all CPUs busy: it shows what polling costs those who do not wait.

Its tasks are threads: processes took most of the time to be made and to end.
"""

from lightsleep.lab.run.experiment import Metric

MESSAGING = ("perf", "bench", "-f", "simple", "sched", "messaging", "-t", "-g", "2", "-l", "40")
MESSAGING_STEPS = "perf tells it in steps of 1 ms"
SCHED_MESSAGING_S = Metric(
    "sched_messaging_s",
    "s",
    "lower",
    "Messaging",
    f"Groups of senders and receivers that keep all CPUs busy; {MESSAGING_STEPS}: "
    f"{' '.join(MESSAGING)}",
)
