# SPDX-License-Identifier: GPL-2.0-only
"""Pictures in pages: the effects that a result shows."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from comparisons import made_up
from pictures import alone, effects

from lightsleep.compare.analysis import analyse


def test_effects_have_a_line_each_where_there_is_a_ratio() -> None:
    result = made_up()
    svg = effects(analyse(result), result.baseline)
    assert svg
    assert "lightsleep" in svg
    assert "idle=poll" not in svg  # the limit is no treatment
    assert "sched pipe" in svg
    assert "idle residency" not in svg  # a percentage
    document = alone(svg, "of x.json")
    assert ElementTree.fromstring(document).tag == "{http://www.w3.org/2000/svg}svg"
    assert "<!-- of x.json -->" in document
    assert set(re.findall(r"var\((--\w+)\)", document)) == {"--ink", "--rule"}
    result.roles["lightsleep"] = "control"
    assert effects(analyse(result), result.baseline) is None


def test_effects_name_each_arm_however_long_and_each_axis_has_labels() -> None:
    result = made_up()
    names = {f"lightsleep-with-a-name-as-long-as-this-{n}": 2.0 + n / 100 for n in range(3)}
    for name, factor in names.items():
        result.arms.append(name)
        result.roles[name] = "treatment"
        for metric in result.metrics.values():
            metric.samples[name] = [factor * x for x in metric.samples["stock"]]
    svg = effects(analyse(result), result.baseline)
    assert svg
    assert svg.count("lightsleep-with-a-name-as-l…") >= len(names)
    result.roles["lightsleep"] = "limit"
    near = effects(analyse(result), result.baseline)
    assert near
    labels = set(re.findall(r">([\d.]+)</text>", near))
    assert len(labels) >= 3, labels
