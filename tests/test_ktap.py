# SPDX-License-Identifier: GPL-2.0-only
"""What is read from a selftest's output: a test that went missing must not look like success."""

import pytest
from ktap import parse

WHOLE = "KTAP version 1\n1..3\nok 1 one\n# why\n# not\nnot ok 2 two\nok 3 three # SKIP\n"


def test_results_and_the_output_of_a_failure() -> None:
    result = parse(WHOLE)
    assert result.passed == ["one"]
    assert result.skipped == ["three"]
    assert result.failed == {"two": "# why\n# not"}


@pytest.mark.parametrize("cut", [0, 10, 20, 30, 54])
def test_a_plan_not_carried_out_is_an_error(cut: int) -> None:
    with pytest.raises(ValueError, match="planned"):
        parse(WHOLE[:cut])
