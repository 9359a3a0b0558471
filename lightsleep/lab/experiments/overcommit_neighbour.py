# SPDX-License-Identifier: GPL-2.0-only
"""What polling costs where another guest keeps the host busy.

Two vCPUs run beside a guest whose two vCPUs never idle: on a host of two cores each vCPU gets half
a core. A vCPU that polls spends this half on waiting, and takes from its neighbour what a vCPU that
halts would leave to it. See ``overcommit.py`` for the loads, and for what a guest can know of its
host.
"""

from lightsleep.compare.result import Claim
from lightsleep.lab.experiments.overcommit import ARMS, CLAIMS, METRICS, measure, start
from lightsleep.lab.run.experiment import NEIGHBOUR_CPU, Experiment

EXPERIMENT = Experiment(
    title="Virtual CPUs beside a busy guest, saturated and waiting",
    hypothesis=(
        "Beside a guest that keeps the host busy, lightsleep makes neither saturated programs "
        "(redis_50, messaging), nor requests (redis_1), nor wakeups under a QoS request for 0 us "
        "more than 5 % slower than stock, and leaves the busy guest its CPU time, within 5 points. "
        "A limit of 1000 us makes the programs and these wakeups more than 5 % slower."
    ),
    arms=ARMS,
    metrics=(*METRICS, NEIGHBOUR_CPU),
    measure=measure,
    claims=(*CLAIMS, Claim("lightsleep", "stock", (NEIGHBOUR_CPU.name,), at_least=-5)),
    start=start,
    root="programs",
    overcommitted=True,
    neighbour=("sh", "-c", "for _ in $(seq $(nproc)); do (while :; do :; done) & done"),
)
