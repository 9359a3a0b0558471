# SPDX-License-Identifier: GPL-2.0-only
"""The JSON document of a scan."""

import dataclasses
from typing import Any

from lightsleep.document import headed
from lightsleep.scan import explain
from lightsleep.scan.model import SCHEMA, VERSION, Scan
from lightsleep.scan.obstacles import obstacles
from lightsleep.scan.rule import Finding


def document(scan: Scan, findings: list[Finding]) -> dict[str, Any]:
    """Return the JSON document of a scan, as scan.schema.json describes it."""
    fields = dataclasses.asdict(scan)
    rest = {
        **fields,
        "cpus": [{"cpu": cpu.pop("number"), **cpu} for cpu in fields["cpus"]],
        "halt": explain.halt(scan),
        "obstacles": [dataclasses.asdict(obstacle) for obstacle in obstacles(scan)],
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    return headed(SCHEMA, VERSION, rest)
