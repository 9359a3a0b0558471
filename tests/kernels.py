# SPDX-License-Identifier: GPL-2.0-only
"""The kernels that a selftest runs in: one in make check, the others in make check-more."""

import pytest

from lightsleep.lab.config import KERNELS

FIRST = "6.12"
MARKS = {name: [] if name == FIRST else [pytest.mark.more] for name in KERNELS}

EACH_KERNEL = [pytest.param(name, marks=marks) for name, marks in MARKS.items()]
ON_X86_64 = [pytest.param("x86_64", name, marks=marks) for name, marks in MARKS.items()]
