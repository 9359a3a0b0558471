# SPDX-License-Identifier: GPL-2.0-only
"""host_short.c, the kernel's own file: when does no CPU of a guest heed a latency request?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_library import load

FFI, LIB = load("host_short")
SECOND = 10**9
SHORT_NS = 16 * SECOND
CPUS_MAX = 8192  # of the largest kernels


def short_until_ns(now_ns: int, contended: int, cpus: int, until_ns: int = 0) -> int:
    host = FFI.new("struct host_short *", {"until_ns": until_ns})
    LIB.host_short_judge(host, now_ns, contended, cpus)
    return int(host.until_ns)


@pytest.mark.parametrize(
    ("cpus", "enough"), [(1, 1), (2, 2), (3, 2), (8, 2), (9, 3), (12, 3), (13, 4), (CPUS_MAX, 2048)]
)
def test_a_quarter_of_the_cpus_decides_two_at_least(cpus: int, enough: int) -> None:
    assert short_until_ns(SECOND, enough - 1, cpus) == 0
    assert short_until_ns(SECOND, enough, cpus) == SECOND + SHORT_NS


@given(st.integers(1, CPUS_MAX), st.data())
def test_more_cpus_that_agree_never_decide_less(cpus: int, data: st.DataObject) -> None:
    contended = data.draw(st.integers(0, cpus - 1))
    fewer, more = (short_until_ns(SECOND, x, cpus) for x in (contended, contended + 1))
    assert fewer <= more


def test_it_lasts_for_16_s_and_nothing_makes_it_longer() -> None:
    until_ns = short_until_ns(SECOND, 2, 2)
    assert short_until_ns(until_ns - 1, 2, 2, until_ns) == until_ns
    assert short_until_ns(until_ns, 2, 2, until_ns) == until_ns + SHORT_NS
