# SPDX-License-Identifier: GPL-2.0-only
"""Makes what tests with guests need, before they need it. What the cache has is not made again.

make check runs this beside its first tests, which need none of it, and ends it with them. What an
end interrupts is lost, and a test makes it. The same goes for errors: a test says what they mean.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import debian_roots
import prometheus
import pytest
from checkers import CHECK_TOOLS, style_tools

from lightsleep.lab.boot.guest import prepare
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.kernels.config import ARCHES, KERNELS
from lightsleep.lab.kernels.roots import kernel_tree
from lightsleep.lab.kernels.source import kernel_source

X86_64 = ARCHES["x86_64"]
SERIES = X86_64.built["7.3-series"]

STEPS: tuple[Callable[[], object], ...] = (
    partial(prepare, Machine(accel="tcg"), quick=True),
    kernel_source,
    partial(kernel_tree, X86_64, KERNELS["6.12"], CHECK_TOOLS),
    partial(prepare, Machine(arch="aarch64", accel="tcg"), quick=True),
    partial(kernel_source, SERIES.version, SERIES.suite, SERIES.target),
    partial(debian_roots.cached, "bookworm", debian_roots.PACKAGES["bookworm"]),
    partial(prepare, Machine(kernel="6.1", accel="tcg"), quick=True),
    partial(prepare, Machine(kernel="backports", accel="tcg"), quick=True),
    style_tools,
    prometheus.programs,
)
"""About in the order in which make check needs them."""


def main() -> None:
    print("==> prefetch: what tests with guests need, where the cache lacks it", flush=True)
    left = len(STEPS)
    for step in STEPS:
        with contextlib.suppress(Exception, pytest.skip.Exception):
            step()
            left -= 1
    if left:
        print(f"==> prefetch: {left} of {len(STEPS)} failed, and are left to the tests")


if __name__ == "__main__":
    main()
