# SPDX-License-Identifier: GPL-2.0-only
"""What a boot fixes: how much it scatters, and an interval that knows of it.

A boot fixes where things lie in memory, what the kernel measured as it came up, and what a driver
measured as it was loaded. All rounds of one boot share that, so they are not independent, and more
rounds do not average it out: more boots do. The unit that was drawn anew is the boot.

With b boots of r rounds each, the effect in a round is effect + boot + round, with a standard
deviation of its own for each of the last two (the model of a one-way analysis of variance with
random groups). The means of the boots are independent of each other whatever those two are, so

    mean of the boots' means +- t[b - 1] * standard deviation of those means / sqrt(b)

holds with its confidence, Student's t with b - 1 degrees of freedom. Few boots make it wide: t is
4.3 for three boots, 2.6 for six. That is the price of not knowing what a boot does; to pool the
rounds where boots "do not differ significantly" would raise false alarms, to 8 % for three boots.

A mean follows each of its rounds. Where n rounds show the same effect, but one of them is off by d
the other way, the interval reaches d * (1 + t[b - 1]) / n further towards 0. So one round hides the
difference from d = n * effect / (1 + t[b - 1]) on, and earlier where the others scatter.

How far boots scatter is estimated by the same analysis: (mean square between boots - mean square
within boots) / r is the variance of a boot, and 0 where that is negative. Of boots that scatter
little, one comparison mostly says 0: the mean of many has to be of variances, negative ones, too.

Sources: Snedecor, Cochran: Statistical Methods, on the analysis of variance with random effects;
Barr, Levy, Scheepers, Tily: Random effects structure for confirmatory hypothesis testing, Journal
of Memory and Language 68 (2013), on what happens to those who leave such a term out. Quantiles of t
by Abramowitz, Stegun: Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

LEAST_BOOTS = 3
"""How often each arm is booted at least."""


@dataclass(frozen=True)
class Boots:
    """An effect by boots: its mean, half the width of the interval, and how far boots scatter.

    ``variance`` is that between boots, beyond what rounds explain; with one round each, what rounds
    do is in it. All others are in the unit of the effects.
    """

    mean: float
    reach: float
    variance: float

    @property
    def spread(self) -> float:
        """The standard deviation between boots; 0 where rounds explain all of it."""
        return math.sqrt(max(0.0, self.variance))


def by_boot(effects: Sequence[float], boots: int, confidence: float) -> Boots:
    """Judge effects, one of each round, of which every boot has as many.

    Raises ValueError where there are fewer than two boots, or they have not as many rounds each.
    """
    if boots < 2 or not effects or len(effects) % boots:
        raise ValueError(f"{len(effects)} rounds are not those of {boots} boots")
    rounds = len(effects) // boots
    parts = [effects[at : at + rounds] for at in range(0, len(effects), rounds)]
    means = [statistics.fmean(part) for part in parts]
    between = statistics.variance(means)
    within = statistics.fmean(map(statistics.variance, parts)) if rounds > 1 else 0.0
    return Boots(
        statistics.fmean(means),
        t_quantile(boots - 1, (1 - confidence) / 2) * math.sqrt(between / boots),
        between - within / rounds,
    )


@cache
def t_quantile(degrees: int, tail: float) -> float:
    """Return what Student's t exceeds with probability ``tail`` (0 to 0.5)."""
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        angle = (low + high) / 2
        if 1 - _inside(angle, degrees) > 2 * tail:
            low = angle
        else:
            high = angle
    return math.sqrt(degrees) * math.tan(low)


def _inside(angle: float, degrees: int) -> float:
    """Return the probability that \\|t\\| is less than sqrt(degrees) * tan(angle)."""
    cosine, odd = math.cos(angle), degrees % 2
    # The powers 1, 3, 5 ... of the cosine, or 0, 2, 4 ..., each with its coefficient.
    steps = ((k - 1) / k * cosine**2 for k in range(2 + odd, degrees - 1, 2))
    first = cosine if odd else 1.0
    total = math.sin(angle) * sum(itertools.accumulate(steps, lambda x, y: x * y, initial=first))
    if not odd:
        return total
    return 2 / math.pi * (angle + (total if degrees > 1 else 0.0))
