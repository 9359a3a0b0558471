# SPDX-License-Identifier: GPL-2.0-only
"""A machine of QEMU's whose firmware describes an idle state, which none of QEMU's does.

The state is that of many phones: entered by PSCI, some microseconds away. QEMU does no more in it
than in WFI, but the kernel does not know that, and has psci_idle take the CPUs.
"""

from __future__ import annotations

from pathlib import Path

from lightsleep import cache
from lightsleep.lab import host
from lightsleep.lab.boot import emulator
from lightsleep.lab.boot.accel import Accelerator
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.kernels.config import Arch

STATE = """
/ {{
    cpus {{
        idle-states {{
            entry-method = "psci";
            sleep: cpu-sleep {{
                compatible = "arm,idle-state";
                arm,psci-suspend-param = <1>;
                entry-latency-us = <20>;
                exit-latency-us = <40>;
                min-residency-us = <500>;
            }};
        }};
        {cpus}
    }};
}};
"""
CPU = "cpu@{:x} {{ cpu-idle-states = <&sleep>; }};"


def with_idle_state(arch: Arch, accelerator: Accelerator, machine: Machine) -> Path:
    """Return a device tree for ``arch.machine`` with an idle state of all CPUs of a ``machine``.

    The kernel takes their cores and threads from the tree, too.

    Raises LightsleepError where a program is missing or does not do it.
    """
    host.need("dtc")
    cpus = "\n".join(CPU.format(number) for number in range(machine.vcpus))
    state, cpu = STATE.format(cpus=cpus), accelerator.cpu(arch)

    def build(scratch: Path) -> None:
        blob, text = scratch / "machine.dtb", scratch / "machine.dts"
        host.run(
            [
                *(arch.qemu, "-machine", f"{arch.machine},dumpdtb={blob}", "-cpu", cpu),
                *accelerator.options,
                *("-smp", machine.smp, "-m", f"{arch.memory_mib}M"),
                *("-display", "none", "-nodefaults"),
            ],
            "asking QEMU for its device tree",
        )
        dtc = ["dtc", "--quiet"]
        host.run([*dtc, "-O", "dts", "-o", text, blob], "reading a device tree")
        with text.open("a") as file:
            file.write(state)
        host.run([*dtc, "-O", "dtb", "-o", blob, text], "writing a device tree")

    key = cache.digest(
        *(emulator.version(arch), *accelerator.options),
        *(arch.machine, cpu, machine.smp, str(arch.memory_mib), state),
    )
    return cache.entry(f"devicetree-{key}", build, needs_mb=5) / "machine.dtb"
