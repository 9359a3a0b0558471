# SPDX-License-Identifier: GPL-2.0-only
"""How far a comparison is, and how long it still takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class Progress:
    """What a comparison has done so far, for whoever shows it; times are measured, not guessed."""

    show: Callable[[str, float | None], None]
    """Called with what is being done, and the seconds left where they can be known."""
    steps: int = 0
    rest_s: float = 0
    boots: int = 0
    taken_s: list[float] = field(default_factory=list)
    booted_s: list[float] = field(default_factory=list)

    def left_s(self) -> float | None:
        """Return the seconds left: turns and boots take what they took so far; rest is known."""
        if not self.taken_s:
            return None
        boot_s = sum(self.booted_s) / len(self.booted_s) if self.booted_s else 0
        step_s = sum(self.taken_s) / len(self.taken_s)
        return self.steps * step_s + self.boots * boot_s + self.rest_s

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Account for what is done within only if it ends without an error."""
        left = self.steps, self.rest_s, self.boots
        try:
            yield
        except BaseException:
            self.steps, self.rest_s, self.boots = left
            raise

    @contextlib.contextmanager
    def boot(self) -> Iterator[None]:
        """Account for a boot of all arms."""
        start = time.monotonic()
        yield
        self.booted_s.append(time.monotonic() - start)
        self.boots -= 1

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Account for one arm's turn."""
        self.show(what, self.left_s())
        start = time.monotonic()
        yield
        self.taken_s.append(time.monotonic() - start)
        self.steps -= 1

    @contextlib.contextmanager
    def rest(self, what: str, seconds: float) -> Iterator[None]:
        """Account for a part of the rest."""
        self.show(what, self.left_s())
        yield
        self.rest_s -= seconds
