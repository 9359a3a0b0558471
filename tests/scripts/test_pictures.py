# SPDX-License-Identifier: GPL-2.0-only
"""Pictures in pages: the effects that a result shows."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from comparisons import made_up
from pictures import alone, effects, levels, scatter

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
    assert levels(analyse(result))


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
    assert len(set(re.findall(r">(lightsleep….*?)<", svg))) == len(names)
    result.roles["lightsleep"] = "limit"
    near = effects(analyse(result), result.baseline)
    assert near
    labels = set(re.findall(r">([\d.]+)</text>", near))
    assert len(labels) >= 3, labels


def test_a_result_without_treatments_has_a_picture_of_its_medians() -> None:
    result = made_up()
    assert levels(analyse(result)) is None
    result.roles["lightsleep"] = "limit"
    svg = levels(analyse(result))
    assert svg
    assert {"stock", "control", "sched pipe", "messaging"} <= set(re.findall(r">([^<>]+)<", svg))
    assert "Interrupts between CPUs" not in svg  # in another unit
    result.metrics = {"x": result.metrics["idle_residency_pct"]}
    assert levels(analyse(result)) is None


def test_many_comparisons_of_the_same_have_a_row_each() -> None:
    results = [made_up(n=12, boots=6, seed=seed) for seed in range(5)]
    svgs = [scatter([analyse(x) for x in some], "stock") for some in (results[:1], results)]
    one, five = (svg or "" for svg in svgs)
    assert "sched pipe" in five
    assert "idle residency" not in five
    assert five.count("<path") > one.count("<path")
    result = made_up(metrics=1)
    result.roles["control"] = "treatment"
    assert scatter([analyse(result)], "stock") is None
