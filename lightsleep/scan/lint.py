# SPDX-License-Identifier: GPL-2.0-only
"""Settings that contradict each other, or do not do what their name promises.

A rule is a row of a table in ``rules/``: its name, how grave it is, a pure check that says what it
saw (or None), and two texts that hold wherever it fires. ``why`` states what the kernel does
(checked in the sources of 6.12), never an opinion on what a good setting would be. A setting that
merely costs power is no finding; one that is silently ignored is.

Each rule has two rows in tests/scan/test_scan_lint.py: a machine on which it fires, and near
misses. It has a row in docs/scan.md, with the same ``why``.
"""

from lightsleep.scan.model import Scan
from lightsleep.scan.rule import Finding
from lightsleep.scan.rules import command_line, haltpoll, polling, states

RULES = (*command_line.RULES, *haltpoll.RULES, *states.RULES, *polling.RULES)


def lint(scan: Scan) -> list[Finding]:
    """Return the findings of all rules, warnings first."""
    findings = [
        Finding(rule.id, rule.severity, what, rule.why, rule.fix)
        for rule in RULES
        if (what := rule.check(scan)) is not None
    ]
    return sorted(findings, key=lambda finding: finding.severity != "warning")
