# SPDX-License-Identifier: GPL-2.0-only
"""How many times as much an arm has as another, over several metrics of one kind together.

    python scripts/rounds_ratio.py RESULT ARM AGAINST METRIC...

RESULT is what ``lightsleep lab compare --json`` wrote. Within each round the ratios of all METRICs
are averaged (geometric mean); printed are the geometric mean of the rounds, and its 95 %
confidence interval (Student's t, of the logarithms). Rounds are paired, and metrics pooled, so this
shows differences that ``lab compare``, which judges each metric alone by its medians, does not. It
assumes that the logarithms are about normal, which that does not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats


def ratio(
    arm: Sequence[Sequence[float]], against: Sequence[Sequence[float]]
) -> tuple[float, float, float]:
    """Return the ratio and the ends of its interval; both are samples by metric and round, > 0."""
    logs = (np.log(np.asarray(arm)) - np.log(np.asarray(against))).mean(axis=0)
    mean, error = float(logs.mean()), float(stats.sem(logs))
    reach = float(stats.t.ppf(0.975, len(logs) - 1)) * error
    return float(np.exp(mean)), float(np.exp(mean - reach)), float(np.exp(mean + reach))


def main(result: str, arm: str, against: str, *metrics: str) -> None:
    """Print the ratio."""
    try:
        found = json.loads(Path(result).read_text())["metrics"]
        samples = [[found[name]["samples"][x] for name in metrics] for x in (arm, against)]
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read {result}: {error}")
    except (KeyError, TypeError) as error:
        sys.exit(f"{result}: no such arm or metric in it: {error}")
    middle, low, high = ratio(*samples)
    print(f"{arm} against {against}: {middle:.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
