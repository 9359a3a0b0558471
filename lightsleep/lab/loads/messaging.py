# SPDX-License-Identifier: GPL-2.0-only
"""A workload that keeps all CPUs busy: it shows what polling costs those who do not wait."""

from lightsleep.lab.run.experiment import Metric

MESSAGING = ("perf", "bench", "-f", "simple", "sched", "messaging", "-g", "2", "-l", "15")
SCHED_MESSAGING_S = Metric(
    "sched_messaging_s",
    "s",
    "lower",
    "Messaging",
    f"Groups of senders and receivers that keep all CPUs busy: {' '.join(MESSAGING)}",
)
