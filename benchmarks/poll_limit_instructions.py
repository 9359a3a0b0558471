# SPDX-License-Identifier: GPL-2.0-only
"""How many instructions poll_limit_update() takes: each call counted by valgrind, at -O2."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click
import numpy as np
from policy.binding import PERIOD, TRACE, Ns, compile_policy
from policy.patterns import trace

from lightsleep.errors import LightsleepError
from lightsleep.markdown import table

CALLS = 400
US, MS = 1_000, 1_000_000

# Name -> (halt cost, idle periods). The last is the worst there is: every bucket is looked at for
# a limit and, as all waits are too long for a trial, again for a trial, and memory halves as well.
TRACES: Mapping[str, tuple[int, Ns]] = {
    "mostly idle: 4 ms": (50 * US, trace("mostly idle: 4 ms", CALLS)),
    "periodic 20 us": (50 * US, trace("periodic 20 us", CALLS)),
    "mixture 15 us, 50 % 2 ms": (50 * US, trace("mixture 15 us, 50 % 2 ms", CALLS)),
    "worst: C = 5 ms, periods of 50 ms": (5 * MS, np.full(CALLS, 50 * MS)),
}


def count(program: Path, halt_cost_ns: int, idle_ns: Ns) -> Ns:
    """Return the instructions of each call of poll_limit_update(). Raises LightsleepError."""
    periods = np.zeros(len(idle_ns), PERIOD)
    periods["halt_cost_ns"] = halt_cost_ns
    periods["ceiling_ns"] = 2 * halt_cost_ns
    periods["idle_ns"] = idle_ns
    with tempfile.TemporaryDirectory(prefix="lightsleep-") as folder:
        valgrind = [
            "valgrind",
            "--tool=callgrind",
            "--toggle-collect=poll_limit_update",
            "--dump-after=poll_limit_update",
            f"--callgrind-out-file={folder}/out",
        ]
        try:
            subprocess.run(
                [*valgrind, program], input=periods.tobytes(), capture_output=True, check=True
            )
        except FileNotFoundError as error:
            raise LightsleepError("valgrind is missing: install it") from error
        except subprocess.CalledProcessError as error:
            raise LightsleepError(f"valgrind failed:\n{error.stderr.decode()}") from error
        dumps = [(Path(folder) / f"out.{call}").read_text() for call in range(1, CALLS + 1)]
    totals = [line for dump in dumps for line in dump.splitlines() if line.startswith("totals:")]
    return np.array([int(line.split()[1]) for line in totals])


@click.command()
def main() -> None:
    """Print median and most instructions per call of poll_limit_update()."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="lightsleep-") as folder:
        program = Path(folder) / "trace"
        compile_policy(TRACE, program, ["-O2"])
        for name, (halt_cost_ns, idle_ns) in TRACES.items():
            counts = count(program, halt_cost_ns, idle_ns)
            rows.append((name, f"{np.median(counts):.0f}", str(int(np.max(counts)))))
    click.echo(table(("instructions per update", "median", "most"), rows))


if __name__ == "__main__":
    main()
