# SPDX-License-Identifier: GPL-2.0-only
"""try on a machine in a folder: commands that tell under which setting they run."""

import json
import os
import pty
import random
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fake_modules
import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from scan_trees import plant, unfold

from lightsleep.cli import main
from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.scan.collect import TICK_S, collect
from lightsleep.settings import catalogue
from lightsleep.trial import metrics, reading, run, switchback

MODULE = "lib/modules/6.12.0/updates/dkms/cpuidle_lightsleep.ko"
CPU = "sys/devices/system/cpu"
DRIVER = f"{CPU}/cpuidle/current_driver"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A guest without a cpuidle driver, where lightsleep and haltpoll are installed."""
    root = plant(unfold("no-cpuidle", tmp_path / "machine"), f"{MODULE}: module")
    plant(root, "lib/modules/6.12.0/kernel/drivers/cpuidle/cpuidle-haltpoll.ko: module")
    plant(root, f"{CPU}/cpuidle/available_governors: ladder menu haltpoll")
    prepare(root, monkeypatch)
    return root


def prepare(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_modules.install(root, monkeypatch)
    monkeypatch.setattr("lightsleep.trial.cli.ROOT", root)
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", root)
    monkeypatch.setattr("lightsleep.trial.cli.need_root", lambda _: None)
    monkeypatch.setattr(switchback, "LEAST_S", 0.1)


def attempt(*words: str) -> Result:
    result = CliRunner().invoke(main, ["try", *words], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def tried(*words: str) -> dict[str, Any]:
    result = attempt("--json", *words)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    jsonschema.validate(document, json.loads(FORMAT.described.read_text()))
    return document


def teller(root: Path) -> list[str]:
    """A command that is ten times faster by its own account where lightsleep is bound."""
    return [
        "sh",
        "-c",
        f"case $(cat {root / DRIVER}) in lightsleep) echo t 1;; *) echo t 10;; esac",
    ]


def test_the_setting_holds_during_the_command_and_never_else(root: Path, tmp_path: Path) -> None:
    before = fake_modules.snapshot(root)
    file = tmp_path / "result.json"
    options = ["-n", "6", "-m", r"t_ms=t (\d+)", "-o", str(file), "-s", "lightsleep,haltpoll"]
    document = tried(*options, "--", *teller(root))
    assert document["arms"] == ["as-is", "lightsleep", "haltpoll", "as-is-again"]
    first = next(iter(document["metrics"]))
    assert first == "t_ms"
    samples = document["metrics"][first]["samples"]
    assert samples["lightsleep"] == [1.0] * 6
    assert samples["as-is"] == samples["haltpoll"] == samples["as-is-again"] == [10.0] * 6
    assert document["metrics"][first]["unit"] == "ms"
    assert len(document["protocol"]["order"]) == 6 + document["protocol"]["warmup"]
    assert fake_modules.snapshot(root) == before
    assert load(file, FORMAT).to_json() == document
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # the command may hold a password


def test_the_last_line_names_the_winner(root: Path) -> None:
    result = attempt("-n", "6", "-m", r"t=t (\d+)", "--", *teller(root))
    assert result.exit_code == 0
    last = " ".join(result.stdout.split("\n\n")[-1].split())
    assert "lightsleep has 10.0 times fewer than as-is" in last
    assert "It costs:" in last


def test_no_winner_where_nothing_differs(root: Path) -> None:
    result = attempt("-n", "6", "-m", r"t=t (\d+)", "--", "echo", "t 5")
    assert "no setting was shown to be better than as-is" in " ".join(result.stdout.split())
    assert "Keep as-is" in result.stdout


def test_too_few_rounds_give_no_verdict(root: Path) -> None:
    result = attempt("-n", "2", "-m", r"t=t (\d+)", "--", *teller(root))
    assert "too few rounds to tell" in result.stdout


def test_the_winner_is_enabled(root: Path) -> None:
    options = ["-n", "6", "--enable", "-s", "lightsleep:fixed:50us", "-m", r"t=t (\d+)"]
    result = attempt(*options, "--", *teller(root))
    assert result.exit_code == 0
    assert "lightsleep disable" in result.output
    parameters = root / "sys/module/cpuidle_lightsleep/parameters"
    assert (parameters / "poll_limit_us").read_text() == "50\n"


def test_a_winner_that_could_not_be_enabled_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(unfold("intel-laptop", tmp_path / "machine"), "dev/cpu_dma_latency: 0")
    prepare(root, monkeypatch)
    seen = tmp_path / "seen"
    result = attempt("--enable", "-s", "governor:teo,qos:10us", "--", "touch", str(seen))
    assert result.exit_code == 2
    assert "qos:10us cannot be enabled" in " ".join(result.output.split())
    assert not seen.exists()


def test_the_file_that_was_tried_is_enabled(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / MODULE).unlink()
    built = plant(tmp_path / "kernel", "cpuidle_lightsleep.ko: vermagic=6.12.0 SMP")
    monkeypatch.setattr("lightsleep.enable.cli.KERNEL", built)
    result = attempt("-n", "6", "--enable", "-m", r"t=t (\d+)", "--", *teller(root))
    assert result.exit_code == 0, result.output
    assert f"insmod {built / 'cpuidle_lightsleep.ko'}" in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["false"], "exit status 1"),
        (["sh", "-c", "kill -9 $$"], "signal SIGKILL"),
        (["/no/such/command"], "No such file"),
        (["echo", "nothing"], "nothing in the output matches"),
        (["echo", "t 1e999"], "is not a number"),
    ],
)
def test_a_command_that_fails(command: list[str], said: str, root: Path) -> None:
    before = fake_modules.snapshot(root)
    result = attempt("-m", r"t=t (\S+)", "--", *command)
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())
    assert "warm-up" in result.output
    assert fake_modules.snapshot(root) == before


def test_what_was_complete_before_a_failure_is_kept(root: Path, tmp_path: Path) -> None:
    count, file = tmp_path / "count", tmp_path / "result.json"
    script = f"echo x >>{count}; [ $(wc -l <{count}) -lt 12 ]"
    result = attempt("-n", "6", "-o", str(file), "--", "sh", "-c", script)
    assert result.exit_code == 1
    assert "ended after 2 of 6 rounds" in " ".join(result.output.split())
    assert load(file, FORMAT).protocol["runs"] == 2


def test_a_change_by_somebody_else_ends_it_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unfold("intel-laptop", tmp_path / "machine")
    prepare(root, monkeypatch)
    governor = root / CPU / "cpuidle/current_governor"
    script = f"[ $(cat {governor}) = teo ] && echo ladder >{governor}; true"
    result = attempt("-s", "governor:teo", "--", "sh", "-c", script)
    assert result.exit_code == 1
    assert "set to ladder by somebody else" in " ".join(result.output.split())
    assert governor.read_text() == "ladder\n"


def test_a_change_to_a_value_of_an_earlier_setting_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unfold("intel-laptop", tmp_path / "machine")
    prepare(root, monkeypatch)
    governor, seen = root / CPU / "cpuidle/current_governor", tmp_path / "seen"
    found = governor.read_text().strip()
    settings = sorted({"teo", "ladder", "menu"} - {found})
    script = f"""
        now=$(cat {governor}); echo $now >>{seen}
        [ $now = {found} ] && [ $(sort -u {seen} | wc -l) = 3 ] && echo {settings[0]} >{governor}
        true
    """
    words = ["-s", ",".join(f"governor:{name}" for name in settings), "--", "sh", "-c", script]
    result = attempt(*words)
    assert result.exit_code == 1
    assert f"set to {settings[0]} by somebody else" in " ".join(result.output.split())
    assert governor.read_text() == f"{settings[0]}\n"


def test_the_command_gets_its_words_as_they_are(root: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))"
    words = ["$(reboot)", "a b", "--json", "-n", "*", ";"]
    attempt("-n", "1", "--no-control", "--", sys.executable, "-c", script, str(seen), *words)
    assert seen.read_text() == repr(words)


@pytest.mark.parametrize(
    ("machine", "setting", "said"),
    [
        ("no-cpuidle", "governor:menu", "no cpuidle driver is bound"),
        ("no-cpuidle", "qos:10us", "nothing obeys a latency limit"),
        ("no-cpuidle", "no-deeper-than:C1", "there are no idle states"),
        ("no-cpuidle", "haltpoll", "no governor haltpoll"),
        ("no-cpuidle", "kvm-halt-poll:0", "no KVM host"),
        ("no-cpuidle", "sysfs:/sys/nowhere=1", "there is no file"),
        ("intel-laptop", "lightsleep", "intel_idle is bound"),
        ("intel-laptop", "haltpoll", "no governor haltpoll"),
        ("intel-laptop", "governor:haltpoll", "ladder, menu, teo"),
        ("intel-laptop", "no-deeper-than:C10", "no idle state is deeper"),
        ("intel-laptop", "no-deeper-than:C3", "there are: POLL, C1, C1E"),
        ("kvm-haltpoll", "no-deeper-than:POLL", "ignores disabled states"),
        ("kvm-haltpoll", "lightsleep", "haltpoll is bound"),
        ("lightsleep-guest", "haltpoll", "no governor haltpoll"),
    ],
)
def test_what_cannot_be_set_says_why_and_runs_nothing(
    machine: str, setting: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unfold(machine, tmp_path / "machine")
    prepare(root, monkeypatch)
    before = fake_modules.snapshot(root)
    seen = tmp_path / "seen"
    result = attempt("-s", setting, "--", "touch", str(seen))
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())
    assert not seen.exists()
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize(
    ("machine", "setting", "changes"),
    [
        ("intel-laptop", "governor:teo", [(f"{CPU}/cpuidle/current_governor", "teo")]),
        ("intel-laptop", "no-deeper-than:c8", [(f"{CPU}/cpu0/cpuidle/state5/disable", "1")]),
        ("intel-laptop", f"sysfs:/{CPU}/smt/active=0", [(f"{CPU}/smt/active", "0")]),
        (
            "lightsleep-guest",
            "lightsleep:fixed:1ms",
            [
                ("sys/module/cpuidle_lightsleep/parameters/mode", "fixed"),
                ("sys/module/cpuidle_lightsleep/parameters/poll_limit_us", "1000"),
            ],
        ),
        (
            "kvm-haltpoll",
            "haltpoll:50us",
            [
                (f"{CPU}/cpuidle/current_governor", "haltpoll"),
                ("sys/module/haltpoll/parameters/guest_halt_poll_ns", "50000"),
            ],
        ),
    ],
)
def test_plans(machine: str, setting: str, changes: list[tuple[str, str]], tmp_path: Path) -> None:
    root = unfold(machine, tmp_path)
    planned = catalogue.plan(setting, collect(root)[0], root)
    knobs = [(x.path, x.value) for x in planned if isinstance(x, catalogue.Knob)]
    assert knobs[: len(changes)] == changes
    assert len(knobs) == (8 if "deeper" in setting else len(changes))


def test_haltpoll_and_lightsleep_take_each_others_place(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    parts = catalogue.plan("lightsleep", collect(root)[0], root)
    assert [type(x).__name__ for x in parts] == ["Unload", "Load"]
    assert parts[0] == catalogue.Unload(
        "cpuidle_haltpoll", ("modprobe", "cpuidle_haltpoll", "force=1")
    )
    before = fake_modules.snapshot(root)
    document = tried("-n", "1", "-m", r"t=t (\d+)", "--", *teller(root))
    samples = document["metrics"]["t"]["samples"]
    assert (samples["as-is"], samples["lightsleep"]) == ([10.0], [1.0])
    assert fake_modules.snapshot(root) == before


@given(st.text(st.sampled_from("lightsepqo:+-0159um/=.,$ "), max_size=30))
def test_no_text_is_a_setting_by_accident(text: str) -> None:
    scan, root = collect(Path("/"))[0], Path("/nonexistent")
    with pytest.raises(LightsleepError):
        catalogue.plan(text, scan, root)


# A service that runs on.

SWITCH = ["--switchback", "100ms", "--for", "2100ms"]


def test_settings_alternate_under_a_service(root: Path, tmp_path: Path) -> None:
    before = fake_modules.snapshot(root)
    command = shlex.join(teller(root))
    document = tried(*SWITCH, "--metric-command", command, "-m", r"t_ms=t (\d+)")
    assert document["arms"] == ["as-is", "lightsleep", "as-is-again"]
    samples = document["metrics"]["t_ms"]["samples"]
    assert samples["lightsleep"] == [1.0] * 6
    assert samples["as-is"] == samples["as-is-again"] == [10.0] * 6
    protocol = document["protocol"]
    assert (protocol["runs"], protocol["switchback_s"], protocol["settle_s"]) == (6, 0.1, 0.025)
    assert "wall_s" not in document["metrics"]
    assert document["title"] == "Idle settings for what runs on this machine"
    assert fake_modules.snapshot(root) == before


def test_the_rate_of_a_counter(root: Path) -> None:
    """It counts 1000 a second with lightsleep, 100 without."""
    program = (
        f"import time; fast = 'lightsleep' in open({str(root / DRIVER)!r}).read();"
        "print('n', time.monotonic() * (1000 if fast else 100))"
    )
    command = shlex.join([sys.executable, "-c", program])
    options = ["--metric-command", command, "-m", r"n=n ([\d.]+):rate:higher", "--no-control"]
    document = tried("--switchback", "200ms", "--for", "2800ms", *options)
    metric = document["metrics"]["n"]
    assert metric["better"] == "higher"
    assert all(500 < x < 2000 for x in metric["samples"]["lightsleep"])
    assert all(50 < x < 200 for x in metric["samples"]["as-is"])


def test_the_winner_of_a_switchback_is_enabled(root: Path) -> None:
    command = shlex.join(teller(root))
    result = attempt(*SWITCH, "--enable", "--metric-command", command, "-m", r"t=t (\d+)")
    assert result.exit_code == 0, result.output
    assert "lightsleep has 10.0 times fewer than as-is" in " ".join(result.stdout.split())
    assert (root / "sys/module/cpuidle_lightsleep").exists()


def test_without_a_number_of_the_service_no_setting_wins(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that slows the service down makes the machine less busy: no reason to take it."""

    def period(*_: object) -> dict[str, float]:
        return {"busy_pct": 10.0 if "lightsleep" in (root / DRIVER).read_text() else 50.0}

    monkeypatch.setattr(switchback, "period", period)
    result = attempt(*SWITCH)
    assert result.exit_code == 0, result.output
    assert "so no setting wins. Name a number" in " ".join(result.stdout.split())


def test_a_metric_command_that_never_ends(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchback, "ASK_S", 0.1)
    before = fake_modules.snapshot(root)
    result = attempt(*SWITCH, "--metric-command", "sleep 1000", "-m", "t=x")
    assert result.exit_code == 1
    assert "the command has not ended after 0.1 s" in " ".join(result.output.split())
    assert fake_modules.snapshot(root) == before


def test_a_counter_that_falls_ends_it(root: Path) -> None:
    before = fake_modules.snapshot(root)
    program = "import time; print('n', 1e9 - time.monotonic())"
    command = shlex.join([sys.executable, "-c", program])
    result = attempt(*SWITCH, "--metric-command", command, "-m", r"n=n ([\d.]+):rate")
    assert result.exit_code == 1
    assert "the counter fell" in " ".join(result.output.split())
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--switchback", "1s"], "needs --for"),
        (["--for", "1m", "--", "true"], "belong to --switchback"),
        (["--metric-command", "x", "--", "true"], "belong to --switchback"),
        ([], "either a COMMAND"),
        ([*SWITCH, "--", "true"], "either a COMMAND"),
        (["--switchback", "10s", "--for", "1m"], "need 210 s for a verdict"),
        (["--switchback", "0s", "--for", "1m"], "no time such as"),
        (["--switchback", "5", "--for", "1m"], "no time such as"),
        ([*SWITCH, "-m", "t=x"], "give both"),
        ([*SWITCH, "--metric-command", "true"], "give both"),
        ([*SWITCH, "--metric-command", "'", "-m", "t=x"], "No closing quotation"),
        (["--switchback", "99ms", "--for", "1h"], "a period is 0.1 s or longer"),
        ([*SWITCH, "-n", "10"], "--rounds is of a COMMAND"),
        ([*SWITCH, "--enable"], "--enable needs --metric-command and --metric"),
        (["-m", "n=x:rate", "--", "true"], "a rate needs --switchback"),
    ],
)
def test_words_that_mean_no_switchback(words: list[str], said: str, root: Path) -> None:
    before = fake_modules.snapshot(root)
    result = attempt(*words)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert fake_modules.snapshot(root) == before


def test_metrics_of_a_period() -> None:
    after = counted(
        time_s=3.0,
        states={
            (0, "POLL"): reading.StateCount(14, 401_000, True),
            (0, "HALT"): reading.StateCount(26, 5000, False),
        },
        ipis=12,
        stolen_s=0.7,
        energy={"intel-rapl:0": reading.Energy(100, 1000)},
        idle_s=13.0,
    )
    assert metrics.of_period(counted(idle_s=10.0), after) == pytest.approx(
        {
            "polled_pct": 10.0,
            "in_POLL_pct": 10.0,
            "in_HALT_pct": 0.0,
            "wakes_per_s": 5.0,
            "ipis_per_s": 3.5,
            "stolen_pct": 5.0,
            "power_W": 100e-6,
            "busy_pct": 25.0,
        }
    )


# Killed.

KILLED = """
import sys
from pathlib import Path
from lightsleep.trial import cli
cli.ROOT = Path(sys.argv[1])
cli.need_root = lambda _: None
cli.switchback.LEAST_S = 0.1
cli.try_settings(["-s", "lightsleep,haltpoll", *sys.argv[2:]])
"""

COMMAND = ["-n", "50", "--", "sleep", "0.02"]
SERVICE = ["--switchback", "100ms", "--for", "1m"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_killed_at_random_moments(root: Path, number: signal.Signals) -> None:
    kill_at_random_moments(root, number, COMMAND, 10 if number == signal.SIGKILL else 2)


@pytest.mark.more
def test_killed_at_a_hundred_random_moments(root: Path) -> None:
    kill_at_random_moments(root, signal.SIGKILL, COMMAND, 100)


def test_a_switchback_killed_at_random_moments(root: Path) -> None:
    kill_at_random_moments(root, signal.SIGKILL, SERVICE, 3)


def wait_until_loaded(root: Path) -> None:
    deadline = time.monotonic() + 60
    while not (root / "sys/module/cpuidle_lightsleep").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_terminal_that_is_lost(root: Path) -> None:
    before = fake_modules.snapshot(root)
    process, terminal = pty.fork()
    if not process:
        words = [sys.executable, "-c", KILLED, str(root), *COMMAND]
        os.execv(sys.executable, words)
    wait_until_loaded(root)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert status != 0
    fake_modules.wait_for_the_guardian(root)
    assert fake_modules.snapshot(root) == before


def test_of_two_at_once_the_second_refuses(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightsleep.settings.loan.LOCK_PATIENCE_S", 0.1)
    words = [sys.executable, "-c", KILLED, str(root), *COMMAND]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as first:
        wait_until_loaded(root)
        second = attempt("-s", f"sysfs:/{CPU}/cpuidle/available_governors=x", "--", "true")
        assert first.poll() is None
        first.terminate()
    assert second.exit_code == 1
    assert f"lightsleep try, process {first.pid}, has borrowed" in " ".join(second.output.split())
    fake_modules.wait_for_the_guardian(root)


def test_what_a_reboot_in_the_middle_leaves(root: Path) -> None:
    """It empties /run and resets sysfs; a journal that outlived it, as in a container, is void."""
    before = fake_modules.snapshot(root)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root), "--", "sleep", "5"],
        stderr=subprocess.DEVNULL,
        process_group=0,
    ) as process:
        wait_until_loaded(root)
        run_dir = root / "run/lightsleep"
        lines = (run_dir / "journal").read_text().splitlines(keepends=True)
        assert "cpuidle_lightsleep" in lines[-1]
        os.killpg(process.pid, signal.SIGKILL)
    fake_modules.wait_for_the_guardian(root)
    header = json.loads(lines[0]) | {"boot_id": "00000000-0000-0000-0000-000000000000"}
    (run_dir / "journal").write_text("".join([f"{json.dumps(header)}\n", *lines[1:]]))
    assert fake_modules.snapshot(root) == before  # as the kernel boots
    # What the new boot loads is its own, though the journal says that try loaded it.
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    booted = fake_modules.snapshot(root)
    assert attempt("-n", "1", "-s", "lightsleep:off", "--", "true").exit_code == 0
    assert fake_modules.snapshot(root) == booted
    assert not (run_dir / "journal").exists()


def kill_at_random_moments(
    root: Path, number: signal.Signals, words: list[str], times: int
) -> None:
    before = fake_modules.snapshot(root)
    rng = random.Random(number)
    for count in range(times):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(root), *words], stderr=subprocess.DEVNULL
        )
        if count % 2:  # at any moment at all, or at any after the first change
            wait_until_loaded(root)
            time.sleep(rng.uniform(0, 0.5))
        else:
            time.sleep(rng.uniform(0.3, 3.0))
        process.send_signal(number)
        assert process.wait(60) != 0
        fake_modules.wait_for_the_guardian(root)
        assert fake_modules.snapshot(root) == before


# Metrics.


def counted(**changes: Any) -> reading.Reading:
    states = {
        (0, "POLL"): reading.StateCount(10, 1000, True),
        (0, "HALT"): reading.StateCount(20, 5000, False),
    }
    fields = {
        "time_s": 1.0,
        "cpus": 2,
        "states": states,
        "ipis": 5,
        "stolen_s": 0.5,
        "energy": {"intel-rapl:0": reading.Energy(900, 1000)},
    }
    return reading.Reading(**(fields | changes))


def test_metrics_of_a_run() -> None:
    after = counted(
        time_s=2.0,
        states={
            (0, "POLL"): reading.StateCount(14, 201_000, True),
            (0, "HALT"): reading.StateCount(26, 1_005_000, False),
        },
        ipis=12,
        stolen_s=0.75,
        energy={"intel-rapl:0": reading.Energy(100, 1000)},
    )
    assert metrics.of_run(counted(), after, 0.9, 0.3) == pytest.approx(
        {
            "wall_s": 0.9,
            "cpu_s": 0.3,
            "polled_pct": 10.0,
            "in_POLL_pct": 10.0,
            "in_HALT_pct": 50.0,
            "wakes": 10,
            "ipis": 7,
            "stolen_s": 0.25,
            "energy_J": 200e-6,  # the counter started again
        }
    )


def test_what_not_every_setting_counts_is_left_out() -> None:
    """as-is has no driver that counts wakes; a share of a state that is not there is 0."""
    with_driver = {"wall_s": 1.0, "wakes": 9.0, "in_HALT_pct": 7.0}
    runs = {"as-is": [{"wall_s": 2.0}], "lightsleep": [with_driver]}
    found = metrics.collected(runs, [])
    assert {name: x.samples for name, x in found.items()} == {
        "wall_s": {"as-is": [2.0], "lightsleep": [1.0]},
        "in_HALT_pct": {"as-is": [0.0], "lightsleep": [7.0]},
    }
    runs["as-is"][0]["wakes"] = 5.0
    assert metrics.collected(runs, [])["wakes"].samples == {"as-is": [5.0], "lightsleep": [9.0]}


def test_without_a_driver_nobody_polls_and_nobody_counts_wakes() -> None:
    found = metrics.of_run(counted(states={}), counted(states={}, time_s=2.0), 1, 1)
    assert found["polled_pct"] == 0
    assert "wakes" not in found


def test_a_reading_of_a_machine(tmp_path: Path) -> None:
    root = unfold("lightsleep-guest", tmp_path)
    plant(root, "proc/stat: cpu  1 2 3 4 5 6 7 800 0 0")
    rows = ("           CPU0       CPU1", "RES:  3  4  Rescheduling", "CAL:  5  6  Function call")
    plant(root, "\n".join(f"proc/interrupts: {row}" for row in rows))
    for name, uj in (("intel-rapl:0", 7), ("intel-rapl:0:0", 5), ("dtpm", 3)):
        plant(root, f"sys/class/powercap/{name}/energy_uj: {uj}")
        plant(root, f"sys/class/powercap/{name}/max_energy_range_uj: 1000")
    found = reading.read(root)
    assert (found.cpus, found.ipis) == (4, 7 + 11)
    assert found.stolen_s == pytest.approx(800 * TICK_S)
    assert found.energy == {"intel-rapl:0": reading.Energy(7, 1000)}
    assert found.states[3, "POLL"] == reading.StateCount(100_000, 300_000_000, True)


@pytest.mark.parametrize(
    ("text", "output", "value", "better"),
    [
        (r"rps=([\d.]+) req/s:higher", "12.5 req/s\n13.5 req/s", 13.5, "higher"),
        (r"t=\d+", "took 7", 7.0, "lower"),
        (r"t=took: (\d+):lower", "took: 7", 7.0, "lower"),
        (r"s=^([\d.]+)$", "# a remark\n0.25\n", 0.25, "lower"),
        (r"n=n ([\d,]+)", "n 1,234", 1234.0, "lower"),
        (r"n=n (\S+)", "n -12,345,678.5", -12345678.5, "lower"),
    ],
)
def test_printed_metrics(text: str, output: str, value: float, better: str) -> None:
    printed = metrics.parse_printed(text)
    assert metrics.find(printed, output) == value
    assert printed.better == better


@pytest.mark.parametrize(
    "number", ["9,9", "10,12", "0,125", "1,2345", "1234,567", "1.234,567", ",5"]
)
def test_a_decimal_comma_is_refused(number: str) -> None:
    printed = metrics.parse_printed(r"n=n (\S+)")
    with pytest.raises(LightsleepError, match="LC_ALL=C"):
        metrics.find(printed, f"n {number}")


@pytest.mark.parametrize("text", ["", "x", "x=", "=x", "wall_s=x", "in_C1_pct=x", "a b=x", "x=("])
def test_what_is_no_metric(text: str, root: Path) -> None:
    result = attempt("-m", text, "--", "true")
    assert result.exit_code == 2
    assert "metric" in result.output


def test_every_round_runs_each_once_and_orders_differ() -> None:
    order = run.schedule(["a", "b", "c"], 20, random.Random(1))
    assert all(sorted(names) == ["a", "b", "c"] for names in order)
    assert len({tuple(names) for names in order}) == 6


def test_needs_neither_numpy_nor_jsonschema() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['numpy', 'scipy', 'jsonschema']))\n"
        "import lightsleep.trial.cli, lightsleep.enable.cli"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
