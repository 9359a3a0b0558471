# SPDX-License-Identifier: GPL-2.0-only
"""Write the page of each result in a folder: docs/results/NAME.md from NAME.json."""

from __future__ import annotations

import sys
from pathlib import Path

from lightsleep.compare.markdown import page
from lightsleep.compare.result import FORMAT, check_claims
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.files import write_text
from lightsleep.lab import experiment


def page_of(path: Path) -> str:
    """Return the page of a result file; one without claims is asked those of its experiment."""
    result = load(path, FORMAT)
    if result.claims:
        return page(result, path.name)
    claims = list(experiment.load(result.experiment).claims)
    try:
        check_claims(claims, result.arms, result.metrics)
    except ValueError:  # the experiment has other arms or metrics by now
        return page(result, path.name)
    result.claims = claims
    return page(result, path.name, declared_later=True)


def main(folder: Path) -> None:
    """Write all pages of a folder."""
    try:
        for path in sorted(folder.glob("*.json")):
            write_text(path.with_suffix(".md"), page_of(path))
    except LightsleepError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
