# SPDX-License-Identifier: GPL-2.0-only
"""Interrupts as /proc/interrupts counts them."""

from __future__ import annotations

from lightsleep.lab.loads.interrupts import BETWEEN_CPUS, total

X86_INTERRUPTS = """\
            CPU0       CPU1
  24:         10         20  PCI-MSI 4096-edge      virtio0-config
 LOC:       3824       4226   Local timer interrupts
 RES:         16         30   Rescheduling interrupts
 CAL:       2806       2645   Function call interrupts
 TLB:          1          2   TLB shootdowns
 ERR:          0
"""


ARM64_INTERRUPTS = """\
           CPU0       CPU1
 11:       1410       1501     GICv3  27 Level     arch_timer
IPI0:       316        330       Rescheduling interrupts
IPI1:      1806       1645       Function call interrupts
IPI5:         1          2       IRQ work interrupts
Err:          0
"""


def test_interrupts_are_summed_over_cpus_and_rows() -> None:
    assert total(X86_INTERRUPTS, *BETWEEN_CPUS) == 16 + 30 + 2806 + 2645
    assert total(ARM64_INTERRUPTS, *BETWEEN_CPUS) == 316 + 330 + 1806 + 1645
    assert total(X86_INTERRUPTS, "virtio0-config") == 30
    assert total(ARM64_INTERRUPTS, "arch_timer") == 1410 + 1501
