# SPDX-License-Identifier: GPL-2.0-only
"""Which kernels make check boots and builds for, and which only make check-more does.

A selftest runs in one of them in make check. On x86_64, all but the one with PREEMPT_RT, which is
large, and the release candidate, which not every mirror has, still boot there and take the modules.
On arm64, that one does. POWER has no more than two.
"""

import pytest

from lightsleep.lab.kernels.config import KERNELS

FIRST = "6.12"
RT, RC = "6.12-rt", "rc"
MARKS = {name: [] if name == FIRST else [pytest.mark.more] for name in KERNELS}

EACH_KERNEL = [pytest.param(name, marks=marks) for name, marks in MARKS.items()]
WITHOUT_RT = [x for x in EACH_KERNEL if x.values != (RT,)]
ON_X86_64 = [pytest.param("x86_64", name, marks=marks) for name, marks in MARKS.items()]


def seldom(arch: str, kernel: str) -> object:
    """Return parameters of a test that make check runs for most kernels."""
    rare = kernel in (RT, RC) or (arch == "aarch64" and kernel != FIRST)
    return pytest.param(arch, kernel, marks=[pytest.mark.more] if rare else [])
