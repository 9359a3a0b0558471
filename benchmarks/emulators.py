# SPDX-License-Identifier: GPL-2.0-only
"""How many guests the host's QEMU spoils, and how many the lab's own, on the same kernel.

Emulating several CPUs at a time, QEMU may run code that the kernel of the guest is just patching.
So each guest boots, loads the driver, and then patches code that both of its CPUs run: it attaches
and removes probes while a pipe runs, and registers and removes a poll source, which switches a
static key, while a CPU waits in the loop that the key is in. Boots take turns in random order, two
at a time. A guest that is spoiled is not booted anew, unlike everywhere else in the lab.

MEANINGS has the outcomes. Each but the first is told with what the guest was doing.

``emulators-ARCH.json`` beside this file are kept results; ``--kept`` writes the page of all.
"""

from __future__ import annotations

import json
import random
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from lightsleep.errors import LightsleepError
from lightsleep.files import write_text
from lightsleep.lab.boot import emulator, splat
from lightsleep.lab.boot.guest import Guest, GuestFailed, prepare
from lightsleep.lab.boot.initramfs import GUEST_MODULES
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.boot.vm import Hardware
from lightsleep.lab.kernels.config import ARCHES, lookup
from lightsleep.markdown import table

HERE = Path(__file__).parent
AT_ONCE = 2
BOOT_S = 180.0
PATCH_S = 120.0
DRIVER = "cpuidle_lightsleep mode=fixed poll_limit_us=10000"
STEPS = {
    "probes": """\
cd /sys/kernel/tracing
perf bench -f simple sched pipe -l 1000000 >/dev/null 2>&1 &
for turn in $(seq 5); do
    echo 'p:patched/read vfs_read' > kprobe_events
    echo 'p:patched/wake try_to_wake_up' >> kprobe_events
    for switch in 1 0; do
        echo $switch > events/patched/enable
        echo $switch > events/sched/enable
    done
    echo > kprobe_events
done
kill $!
""",
    "a static key": f"""\
for turn in $(seq 20); do
    insmod {GUEST_MODULES}/test_poll_source.ko period_us=100
    rmmod test_poll_source
done
""",
}
"""What is patched -> by which script."""

MEANINGS = {
    "clean": "nothing happened",
    "raced": "the guest died of a breakpoint that was out again, which is QEMU's doing",
    "late": "the host did not serve a timer in time",
    "assertion": "QEMU gave up",
    "splat": "the kernel complained otherwise",
    "hung": "the guest went away, or did not answer",
    "failed": "a command failed, or did not end in time",
}
"""Outcomes, and what each means."""


def outcome(machine: Machine, hardware: Hardware) -> str:
    """Boot one guest, have it patch its code, and return what became of it."""
    guest = Guest(machine, hardware, "emulators", reboots=0)
    doing = "boot"
    try:
        guest.wait(BOOT_S)
        guest.load()
        for step, script in STEPS.items():
            doing = step
            guest.run(["sh", "-ec", script], timeout_s=PATCH_S)
            guest.check()
        return "clean"
    except GuestFailed:
        log, said = guest.vm.console(), guest.vm.said()
        if splat.emulator_raced(log):
            what = "raced"
        elif splat.emulator_was_late(log):
            what = "late"
        elif splat.emulator_gave_up(said, log):
            what = "assertion"
        else:
            what = "splat" if splat.find(log) else "hung"
        return f"{what}: {doing}"
    except LightsleepError:
        return f"failed: {doing}"
    finally:
        guest.close()


def timed(name: str, machine: Machine, hardware: Hardware) -> tuple[str, str, float]:
    """Return the emulator of a boot, its outcome, and how many seconds it took."""
    begin = time.monotonic()
    return name, outcome(machine, hardware), time.monotonic() - begin


def section(result: dict[str, Any]) -> list[str]:
    """Return the parts of the page that tell one result."""
    outcomes = result["outcomes"]
    kinds = sorted({kind for counted in outcomes.values() for kind in counted})
    rows = [
        (kind, *(str(counted.get(kind, 0)) for counted in outcomes.values()))
        for kind in sorted(kinds, key=lambda kind: kind != "clean")
    ]
    asked = f"--cpu {shlex.quote(result['asked_cpu'])} " if result.get("asked_cpu") else ""
    return [
        f"## {result['arch']}",
        f"Kernel {result['kernel']}, CPU `{result['cpu']}`, {result['boots']} boots of each QEMU.",
        table(("outcome", *result["versions"].values()), rows),
        f"    python benchmarks/emulators.py --arch {result['arch']} {asked}"
        f"--boots {result['boots']} --seed {result['seed']}",
    ]


def page_of(results: Sequence[dict[str, Any]]) -> str:
    """Return results, each of one architecture, as a page of Markdown."""
    parts = [
        "<!-- SPDX-License-Identifier: GPL-2.0-only -->",
        "<!-- Written by benchmarks/emulators.py --kept; do not edit. -->",
        "# Guests that QEMU's emulation spoils",
        "Guests of the host's QEMU and of the lab's boot two at a time, in random order. Each "
        "patches code that its CPUs run: probes come and go while a pipe runs, and a static key is "
        "switched while a CPU waits in the loop that has it.",
        "\n".join(f"- {kind}: {meaning}" for kind, meaning in MEANINGS.items())
        + "\n- after the colon: what the guest was doing",
        *(part for result in results for part in section(result)),
    ]
    return "\n\n".join(parts) + "\n"


@click.command()
@click.option(
    "--kept",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PAGE",
    help="Boot nothing: write the page of the kept results.",
)
@click.option("--arch", type=click.Choice(sorted(ARCHES)), default="x86_64", show_default=True)
@click.option("--cpu", default="", help="What to emulate, as QEMU's -cpu has it.")
@click.option("--boots", type=click.IntRange(1), default=200, show_default=True, help="Of each.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the order.")
@click.option("--json", "path", type=click.Path(path_type=Path, dir_okay=False))
def main(kept: Path | None, arch: str, cpu: str, boots: int, seed: int, path: Path | None) -> None:
    """Boot guests of the host's QEMU and of the lab's, and count what becomes of them."""
    if kept:
        results = [json.loads(path.read_text()) for path in sorted(HERE.glob("emulators-*.json"))]
        write_text(kept, page_of(results))
        return
    host = lookup("architecture", ARCHES, arch)
    machine = Machine(arch=arch, accel="tcg", cpu=cpu, modules=(DRIVER,))
    newer = prepare(machine, note=click.echo)
    versions = {"host": emulator.version(host), "lab": emulator.version(newer.arch)}
    if versions["host"] == versions["lab"]:
        raise click.UsageError(f"there is nothing to compare: the host has {versions['host']}")
    older = replace(newer, arch=replace(newer.arch, qemu=host.qemu))
    order = [("host", older), ("lab", newer)] * boots
    random.Random(seed).shuffle(order)
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in versions}
    seconds: dict[str, list[float]] = {name: [] for name in versions}
    with ProcessPoolExecutor(AT_ONCE) as pool:
        turns = [pool.submit(timed, name, machine, hardware) for name, hardware in order]
        for number, turn in enumerate(as_completed(turns), 1):
            name, ended, took_s = turn.result()
            outcomes[name][ended] += 1
            seconds[name].append(took_s)
            if ended != "clean" or number % 20 == 0:
                click.echo(f"{number} of {len(turns)}: {name}: {ended}, {took_s:.1f} s")
    for name, counted in outcomes.items():
        shown = ", ".join(f"{count} {what}" for what, count in counted.most_common())
        click.echo(f"{versions[name]}: {shown}; {sum(seconds[name]) / boots:.1f} s a boot")
    if path:
        result = {
            "arch": arch,
            "cpu": newer.accelerator.cpu(newer.arch),
            **({"asked_cpu": cpu} if cpu else {}),
            "kernel": machine.kernel,
            "boots": boots,
            "seed": seed,
            "versions": versions,
            "outcomes": {name: dict(counted) for name, counted in outcomes.items()},
        }
        write_text(path, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
