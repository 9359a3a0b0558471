# SPDX-License-Identifier: GPL-2.0-only
"""CPU lists: every set of CPUs survives a round trip, and bad text names its bad part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightsleep import cpulist
from lightsleep.errors import LightsleepError


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", []),
        ("\n", []),
        ("0", [0]),
        ("0-3,8\n", [0, 1, 2, 3, 8]),
        ("8,0-2,1", [0, 1, 2, 8]),
        (" 1 , 3 ", [1, 3]),
        ("0-15:2/4", [0, 1, 4, 5, 8, 9, 12, 13]),
        ("2-7:1/3", [2, 5]),
    ],
)
def test_parse(text: str, cpus: list[int]) -> None:
    assert cpulist.parse(text) == cpus


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0,x", "'x' is not a CPU"),
        ("-1", "'-1' is not a CPU"),
        ("1-", "'1-' is not a CPU"),
        ("0,,2", "'' is not a CPU"),
        ("3-1", "'3-1' runs backwards"),
        ("0-99999999", "no kernel has a CPU 99999999"),
        ("0-99999999999999999999", "is not a CPU"),
        ("0-7:3/2", "must satisfy 1 <= used <= group"),
        ("0-7:0/0", "must satisfy 1 <= used <= group"),
        ("٣", "is not a CPU"),
    ],
)
def test_bad_text_is_named(text: str, complaint: str) -> None:
    with pytest.raises(LightsleepError, match="CPU list") as caught:
        cpulist.parse(text)
    assert complaint in caught.value.message


@given(st.sets(st.integers(0, 300)))
def test_format_then_parse_gives_the_same_cpus(cpus: set[int]) -> None:
    assert cpulist.parse(cpulist.format(cpus)) == sorted(cpus)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_format_is_the_shortest_form(cpus: set[int]) -> None:
    runs = sum(cpu - 1 not in cpus for cpu in cpus)
    assert cpulist.format(cpus).count(",") == runs - 1


@given(st.text())
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        cpus = cpulist.parse(text)
    except LightsleepError:
        return
    assert cpus == sorted(set(cpus))
