# SPDX-License-Identifier: GPL-2.0-only
"""What Prometheus makes of the metrics, the example alerts and the dashboard."""

import contextlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import prometheus
import pytest
from click.testing import CliRunner
from paths import ROOT
from prometheus_client.parser import text_string_to_metric_families
from scan_trees import plant, unfold

from lightsleep.cli import main
from lightsleep.watch import openmetrics
from lightsleep.watch.model import CpuCount, Snapshot, States
from lightsleep.watch.reading import Reader

pytest_plugins = "watched"

CONTRIB = ROOT / "contrib"
RULES = CONTRIB / "prometheus/lightsleep.rules.yml"
DASHBOARD = CONTRIB / "grafana/lightsleep.json"


@pytest.fixture
def metrics(tmp_path: Path) -> bytes:
    """All metrics there are."""
    root = unfold("lightsleep-guest", tmp_path)
    cpu = "sys/devices/system/cpu/cpu{0-3}"
    plant(root, f"{cpu}/lightsleep/contended: 1\n{cpu}/lightsleep/contention_pauses: 12")
    for stat in root.glob("sys/devices/system/cpu/cpu*/lightsleep/stat"):
        stat.write_text(f"{stat.read_text().strip()} 21000000000 15900\n")
    plant(root, "sys/module/cpuidle_lightsleep/parameters/wait_weight: 20")
    plant(root, "sys/module/cpuidle_lightsleep/parameters/host_is_short: 1")
    rows = ("           CPU0 CPU1 CPU2 CPU3", "RES:  3  4 5 6  Rescheduling")
    plant(root, "\n".join(f"proc/interrupts: {row}" for row in rows))
    with contextlib.closing(Reader(root, None, contention=True)) as reader:
        return openmetrics.text(reader.read())


def test_counters_are_in_base_units(metrics: bytes) -> None:
    families = {x.name: x for x in text_string_to_metric_families(metrics.decode())}
    values = {
        name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for name, family in families.items()
    }
    assert values["lightsleep_info"] == {("lightsleep", "menu", "adaptive"): 1}
    assert values["lightsleep_wait_weight"] == {(): 20}
    assert values["lightsleep_host_is_short"] == {(): 1}
    assert values["lightsleep_idle_state_seconds"]["3", "HALT"] == 600
    assert values["lightsleep_idle_state_entries"]["0", "POLL"] == 100_000
    assert values["lightsleep_polled_in_vain_seconds"]["1",] == 1
    assert values["lightsleep_poll_limit_seconds"]["0",] == pytest.approx(50e-6)
    assert values["lightsleep_halt_cost_seconds"]["0",] == pytest.approx(52e-6)
    assert values["lightsleep_interrupts"]["2", "ipi"] == 5
    assert values["lightsleep_contended"]["1",] == 1
    assert values["lightsleep_contention_pauses"]["1",] == 12
    assert values["lightsleep_paused_seconds"]["1",] == pytest.approx(21)


def test_a_restart_is_no_spike_of_interrupts(tmp_path: Path) -> None:
    """The kernel's counts have 32 bits. Prometheus takes a fall for a counter that began at 0."""
    root = plant(unfold("lightsleep-guest", tmp_path), "proc/interrupts: CPU0")

    def exported(count: int) -> dict[str, float]:
        rows = ("CPU0 CPU1 CPU2 CPU3", f"LOC: 9 {count} 9 9 Local timer interrupts")
        plant(root, "\n".join(f"proc/interrupts: {row}" for row in rows))
        text = openmetrics.text(openmetrics.since(first, reader.read())).decode()
        pairs = re.findall('interrupts_total{cpu="(.)",kind="timer"} (.*)', text)
        return {cpu: float(value) for cpu, value in pairs}

    first: openmetrics.First = {}
    with contextlib.closing(Reader(root, None)) as reader:
        found = [exported(count)["1"] for count in (4_000_000_000, (1 << 32) - 6, 700_000_000)]
        assert found == [0, 294_967_290, 994_967_296]
        plant(root, "sys/devices/system/cpu/online: 0-2")
        assert exported(700_000_001) == {"0": 0, "1": 994_967_297, "2": 0}
    with contextlib.closing(Reader(root, None)) as reader:  # as of a CPU that was offline
        assert exported(700_000_002)["1"] == 0
        assert exported(700_000_009)["1"] == 7
    first = {}
    with contextlib.closing(Reader(root, None)) as reader:
        assert exported(700_000_015)["1"] == 0


@pytest.mark.parametrize(("count", "exported"), [("1", "7"), ("2", "0")])
def test_what_is_written_once_has_the_kernels_counts(
    count: str, exported: str, four_cpus: Path, tmp_path: Path
) -> None:
    """As by a timer that starts a process for each write: all of them would say 0."""
    file = tmp_path / "x.prom"
    words = ["watch", "-i", "0.1", "-n", count, "--openmetrics", str(file)]
    assert CliRunner().invoke(main, words).exit_code == 0
    assert f'interrupts_total{{cpu="3",kind="device"}} {exported}\n' in file.read_text()


def test_contention_ends_while_a_cpu_sleeps(tmp_path: Path) -> None:
    root = unfold("lightsleep-guest", tmp_path)
    folder = "sys/devices/system/cpu/cpu{0-3}/lightsleep"
    plant(root, f"{folder}/contended: 1\n{folder}/contention_pauses: 2")
    with contextlib.closing(Reader(root, None, contention=True)) as reader:
        for contended in (1, 0):
            plant(root, f"{folder}/contended: {contended}")
            own = reader.read().cpus[0].own
            assert own
            assert (own.contended, own.contention_pauses) == (contended, 2)
    with contextlib.closing(Reader(root, None)) as reader:
        own = reader.read().cpus[0].own
        assert own
        assert own.contention_pauses is None


def test_a_weight_that_is_changed_shows_in_the_next_round(tmp_path: Path) -> None:
    root = unfold("lightsleep-guest", tmp_path)
    weight = "sys/module/cpuidle_lightsleep/parameters/wait_weight"
    plant(root, f"{weight}: 4")
    with contextlib.closing(Reader(root, None)) as reader:
        assert reader.read().wait_weight == 4
        plant(root, f"{weight}: 20")
        assert reader.read().wait_weight == 20


def test_states_of_one_name_are_two_series(tmp_path: Path) -> None:
    """The kernel cuts names to 15 characters."""
    root = unfold("lightsleep-guest", tmp_path)
    for state in (0, 1):
        plant(root, f"sys/devices/system/cpu/cpu{{0-3}}/cpuidle/state{state}/name: cluster-sleep-0")
    with contextlib.closing(Reader(root, None)) as reader:
        found = openmetrics.text(reader.read()).decode()
    samples = [x for x in found.splitlines() if not x.startswith("#")]
    assert len({x.rpartition(" ")[0] for x in samples}) == len(samples)
    assert 'state_seconds_total{cpu="3",state="cluster-sleep-0#1"} 600' in found


def test_labels_are_escaped() -> None:
    cpu = CpuCount(('C1 "x\\y"\n',), States((1,), (2,)), None, None, None, None)
    found = openmetrics.text(Snapshot(1.0, None, None, None, {0: cpu})).decode()
    (entries,) = [x for x in text_string_to_metric_families(found) if "entries" in x.name]
    assert [x.labels["state"] for x in entries.samples] == ['C1 "x\\y"\n']


@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=lambda file: file.name)
def test_alerts_and_dashboard_name_metrics_that_there_are(file: Path, metrics: bytes) -> None:
    there = set(re.findall(r"(?m)^(lightsleep_\w+)", metrics.decode()))
    named = set(re.findall(r"\b(lightsleep_\w+)", file.read_text()))
    assert named
    assert named <= there


def test_the_page_explains_every_alert() -> None:
    page = (ROOT / "docs/watch.md").read_text()
    explained = re.findall(r"(?m)^\| `(Lightsleep\w+)` \| for (\d+) minutes, ", page)
    alerts = re.findall(r"(?s)- alert: (\w+)\n.*?\n +for: (\d+)m\n", RULES.read_text())
    assert explained == alerts != []


def test_the_dashboard_is_one() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(target["expr"] for panel in panels for target in panel["targets"])


def test_each_rate_of_the_dashboard_spans_several_writes() -> None:
    """Grafana's own interval follows from Prometheus', but watch may write once a minute only."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    texts = [target["expr"] for panel in panels for target in panel["targets"]]
    spans = [span for text in texts for span in re.findall(r"\[(.*?)\]", text)]
    assert len(spans) == sum(text.count("rate(") for text in texts) > 5
    assert set(spans) == {"5m"}


@pytest.mark.build
def test_promtool_accepts_the_metrics_and_the_alerts_fire(metrics: bytes) -> None:
    tool = prometheus.programs() / "promtool"
    checked = subprocess.run([tool, "check", "metrics"], input=metrics, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    for words in (["check", "rules", RULES.name], ["test", "rules", "lightsleep.rules.test.yml"]):
        done = subprocess.run([tool, *words], cwd=RULES.parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def expressions(instance: str) -> list[str]:
    """Return the queries of the dashboard, as Grafana asks them."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    texts = [target["expr"] for panel in panels for target in panel["targets"]]
    return [text.replace("$instance", instance) for text in texts]


@pytest.mark.build
def test_prometheus_runs_the_alerts_and_answers_the_dashboard(
    metrics: bytes, tmp_path: Path
) -> None:
    alerts = re.findall(r"(?m)^ +- alert: (\w+)$", RULES.read_text())
    with (
        prometheus.page(metrics) as target,
        prometheus.server(tmp_path, RULES, target) as ask,
    ):

        def rules() -> list[dict[str, Any]]:
            return [rule for group in ask("rules")["groups"] for rule in group["rules"]]

        def looked_twice() -> bool:
            found = ask("query", query="count_over_time(lightsleep_info[1m])")["result"]
            return bool(found) and float(found[0]["value"][1]) >= 2

        prometheus.eventually(looked_twice)
        prometheus.eventually(lambda: all(rule["health"] != "unknown" for rule in rules()))
        assert [(rule["name"], rule["health"]) for rule in rules()] == [(x, "ok") for x in alerts]
        for expression in expressions(target):
            assert ask("query", query=expression)["result"], expression
