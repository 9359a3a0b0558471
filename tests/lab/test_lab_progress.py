# SPDX-License-Identifier: GPL-2.0-only
"""The time that a comparison still takes."""

from __future__ import annotations

from lightsleep.lab.run.progress import Progress


def test_time_left_is_what_steps_took_so_far_and_the_rest_to_come() -> None:
    said: list[float | None] = []
    progress = Progress(lambda _, left_s: said.append(left_s), 4, 25.0)
    assert progress.left_s() is None
    progress.taken_s = [1.0, 3.0]
    assert progress.left_s() == 4 * 2.0 + 25.0
    with progress.rest("", 4.0):
        pass
    assert progress.left_s() == 4 * 2.0 + 21.0
    assert said == [33.0]
    progress.boots, progress.booted_s = 2, [10.0]
    assert progress.left_s() == 4 * 2.0 + 21.0 + 2 * 10.0
