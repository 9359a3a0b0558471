# SPDX-License-Identifier: GPL-2.0-only
"""``lightsleep try``: the command."""

import random
import shlex
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from lightsleep import place, terminal
from lightsleep.compare.analysis import control_failed
from lightsleep.compare.result import LONGEST_ARM, CompareResult, Role, TrialOutcome
from lightsleep.compare.table import print_table
from lightsleep.document import printable, text_of
from lightsleep.enable import change
from lightsleep.ending import ending_together, status_of
from lightsleep.errors import LightsleepError, Skipped, WrongUsage
from lightsleep.files import check_writable, write_json, written
from lightsleep.options import (
    Duration,
    check_program,
    json_option,
    module_option,
    need_root,
    output_option,
    seed_option,
)
from lightsleep.scan import machine
from lightsleep.scan.collect import collect
from lightsleep.scan.facts import LIGHTSLEEP_DRIVER
from lightsleep.scan.loading import MODULE
from lightsleep.scan.model import Scan
from lightsleep.settings import catalogue, journalled, restorer
from lightsleep.trial import metrics, run, switchback, verdict

ROOT = Path("/")
BASELINE = "as-is"
CONTROL = "as-is-again"
ROUNDS = 10

PRIVATE = 0o600
"""Mode of a result: it names the command with all its words. It belongs to who called sudo."""


@dataclass(frozen=True)
class Subject:
    """What is measured: a command that is repeated, or what runs on this machine anyway.

    ``command`` prints the numbers; of a service, it may be empty. ``how`` goes to the protocol.
    """

    command: str
    sample: run.Sample
    rounds: int
    how: dict[str, float] = field(default_factory=dict)
    goes_on: run.GoesOn = lambda _rounds, _elapsed_s: True

    @property
    def name(self) -> str:
        """What the title says."""
        return "what runs on this machine" if self.how else self.command


# What follows COMMAND is its own, with and without --.
@click.command("try", context_settings={"allow_interspersed_args": False})
@click.option(
    "-s",
    "--settings",
    multiple=True,
    metavar="A,B,...",
    help="Settings to compare with as-is; default: lightsleep. May be repeated.",
)
@click.option(
    "-n",
    "--rounds",
    type=click.IntRange(1, run.MOST_ROUNDS),
    metavar="N",
    show_default=str(ROUNDS),
    help="Rounds beside the warm-up, in each of which every setting runs once; 10 are enough for a "
    "verdict.",
)
@click.option(
    "-m",
    "--metric",
    "wanted",
    multiple=True,
    metavar="NAME=REGEX[:rate][:higher|lower]",
    help="A number that COMMAND prints; the first one decides, in place of the wall time. :higher "
    "or :lower must follow, unless NAME ends in _ms, _us, or _ns.",
)
@click.option(
    "--switchback",
    "period_s",
    type=Duration(),
    metavar="TIME",
    help="No COMMAND: each setting holds for this time, say 10s, under what runs anyway.",
)
@click.option(
    "--for",
    "total_s",
    type=Duration(),
    metavar="TIME",
    help="With --switchback, and needed there: how long to go on in all, say 10m.",
)
@click.option(
    "--metric-command",
    default="",
    metavar="CMD",
    help="With --switchback: CMD prints the numbers that --metric names.",
)
@click.option(
    "--control/--no-control",
    default=True,
    help="Also run as-is a second time in each round, which must show no difference.",
)
@seed_option("Repeat the order of an earlier trial.")
@module_option
@click.option(
    "--enable",
    "keep",
    is_flag=True,
    help="Enable the winner until the next boot; exits with 4 without one.",
)
@json_option()
@output_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def try_settings(
    settings: tuple[str, ...],
    rounds: int | None,
    wanted: tuple[str, ...],
    period_s: float | None,
    total_s: float | None,
    metric_command: str,
    control: bool,
    seed: int | None,
    module_file: Path | None,
    keep: bool,
    as_json: bool,
    output: Path | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND under several idle settings, and say which is best.

    Each round runs COMMAND once under every setting, in random order: by default, 33 runs in all,
    as root. Between two runs all settings are as they were found, and so they are afterwards,
    whatever ends this command. The wall time decides. A COMMAND that runs for a fixed time needs
    -m, which names a number that it prints.

    Settings: lightsleep, lightsleep:fixed:100us, lightsleep:weight=20, haltpoll, haltpoll:200us,
    qos:10us, no-deeper-than:STATE, governor:teo, kvm-halt-poll:0, sysfs:PATH=VALUE. A + joins
    several into one. Needs root. COMMAND runs without a shell: for a pipeline, give sh -c '...'.

    With --switchback, a service that runs anyway is measured instead: each setting holds for a
    period, again and again in random order. With :rate, the number is a counter: its rise per
    second counts.
    """
    _check_words(rounds, period_s, total_s, metric_command, command)
    if keep and period_s is not None and not wanted:
        raise click.UsageError(
            "--enable needs --metric-command and --metric: without a number of the service, no "
            "setting wins"
        )
    printed = _printed(wanted)
    if command:
        check_program(command[0])
    names = _names(settings)
    catalogue.check_module(module_file, names)
    need_root("trying changes settings of the machine")
    if output:
        check_writable(output)
    module_file = module_file or catalogue.module_beside_sources(ROOT)
    terminal.tell(journalled.set_back_left(ROOT, "try"))
    arms = _arms(names, module_file)
    if keep:
        for arm in arms:
            change.check_lasts(arm.name, arm.changes)
    least = verdict.rounds_needed(control, settings=len(arms) - 1, printed=len(printed))
    if keep and command and (rounds or ROUNDS) < least:
        raise WrongUsage(
            f"--enable needs --rounds {least} or more here: with fewer, there may be no verdict"
        )
    arms += [run.Arm(CONTROL, [])] if control else []
    seed = random.getrandbits(32) if seed is None else seed
    if period_s is not None and total_s is not None:
        plan = switchback.plan(period_s, total_s, len(arms), metric_command, printed, least)
        what = _service(plan, metric_command)
    else:
        what = _repeated(command, printed, rounds or ROUNDS)
    trial, notes, refused = _run(arms, what, seed)
    if not trial.runs[BASELINE]:
        raise _without_rounds(trial, notes)
    result = _result(arms, trial, printed, what, seed, [*notes, *_ended(trial, what)])
    result.outcome = outcome = _cut_short(verdict.judge(result), trial, what)

    def write() -> None:
        if output:
            write_json(output, result.document(), PRIVATE, place.caller())

    with written(write):
        _show(result, as_json)
    terminal.tell(notes)
    _check_whole(trial, what, refused)
    if control_failed(result):
        raise SystemExit(1)
    if keep:
        _enable(outcome.winner, module_file, as_json)


def _without_rounds(trial: run.Trial, notes: list[str]) -> BaseException:
    """Return what to raise where no round is complete; notes are in it, or else told here."""
    if trial.ended:
        terminal.tell(notes)
        return trial.ended
    return LightsleepError("\n".join([trial.trouble or "nothing was run", *notes]))


def _ended(trial: run.Trial, what: Subject) -> list[str]:
    """Return what ended a trial early, and when; nothing of one that is whole."""
    done = len(trial.runs[BASELINE])
    return [f"ended after {done} of {what.rounds} rounds: {trial.trouble}"] if trial.trouble else []


def _cut_short(outcome: TrialOutcome, trial: run.Trial, what: Subject) -> TrialOutcome:
    """Return an outcome that says where the trial ended, if it ended early.

    The setting that wins may be the very one under which the command failed.
    """
    if not trial.trouble:
        return outcome
    done = f"{len(trial.runs[BASELINE])} of {what.rounds} rounds ({trial.where})"
    said = f"{outcome.sentence} The trial ended after {done}: what happened then is in no figure."
    return replace(outcome, sentence=said)


def _check_whole(trial: run.Trial, what: Subject, refused: list[str]) -> None:
    """End with the fitting status where something ended it early, or is not set back."""
    for ended in _ended(trial, what):
        if trial.ended is None:
            raise LightsleepError(ended)
        click.echo(ended, err=True)
        raise SystemExit(status_of(trial.ended))
    if refused:
        raise LightsleepError("tried, but not set back: " + "; ".join(refused))


def _enable(winner: str | None, module_file: Path | None, as_json: bool) -> None:
    """Enable the setting that won. Raises Skipped where none did."""
    if not winner:
        raise Skipped("no setting won, so nothing is enabled")
    kept = change.enable(winner, ROOT, now=True, persist=False, module_file=module_file)
    for line in [*kept.changed, "undo with: sudo lightsleep disable"]:
        click.echo(line, err=as_json)
    terminal.tell(kept.notes)


def _check_words(
    rounds: int | None,
    period_s: float | None,
    total_s: float | None,
    metric_command: str,
    command: tuple[str, ...],
) -> None:
    """Raise UsageError unless the words mean either a command or a service."""
    if period_s is None and (total_s is not None or metric_command):
        raise click.UsageError("--for and --metric-command belong to --switchback")
    if period_s is not None and rounds is not None:
        raise click.UsageError(
            "--rounds is of a COMMAND: --switchback has as many as fit into --for"
        )
    if period_s is not None and total_s is None:
        raise click.UsageError("--switchback needs --for: how long to go on")
    if (period_s is None) == (not command):
        raise click.UsageError("give either a COMMAND to repeat, or --switchback for a service")


def _printed(wanted: tuple[str, ...]) -> list[metrics.Printed]:
    """Return the numbers to look for in what is printed. Raises UsageError."""
    printed = [metrics.parse_printed(text) for text in wanted]
    if len({x.name for x in printed}) < len(printed):
        raise click.UsageError("two metrics have the same name")
    return printed


def _names(settings: tuple[str, ...]) -> list[str]:
    """Return the settings to compare, as-is first."""
    listed = [name.strip() for text in settings for name in catalogue.split(text)]
    return list(dict.fromkeys([BASELINE, *(listed or ["lightsleep"])]))


def _arms(names: list[str], module_file: Path | None) -> list[run.Arm]:
    """Plan every setting. Raises LightsleepError that names all that cannot be set, and why."""
    scan, _ = collect(ROOT)
    arms, refused = [], []
    for name in names:
        if len(name) > LONGEST_ARM:
            refused.append(
                f"a setting is longer than {LONGEST_ARM} characters: {name[:80]}... (in the path "
                "of sysfs:, a * stands for part of a name, as in policy*/scaling_governor)"
            )
            continue
        after_disable = _after_disable(name, scan)
        try:
            arms.append(run.Arm(name, catalogue.plan(name, scan, ROOT, module_file)))
        except catalogue.CannotSet as error:
            refused.append(after_disable or error.message)
            continue
        if after_disable:
            refused.append(after_disable)
        if name != BASELINE and _is_set(arms[-1]):
            again = f"{name} is in effect already, so it would be as-is again"
            refused.append(again + _instead(name, scan))
    if refused:
        raise LightsleepError("\n".join([*refused, "nothing was changed, and nothing was run"]))
    if len(arms) < 2:
        raise WrongUsage("as-is alone is no comparison: name another setting")
    return arms


def _instead(name: str, scan: Scan) -> str:
    """Return what to do about a setting that is in effect."""
    if not name.startswith("lightsleep"):
        return ""
    if scan.loading.built_in:
        return ": the driver is built into this kernel, so name another mode or limit"
    return ": run lightsleep disable first"


def _after_disable(name: str, scan: Scan) -> str | None:
    """Return the refusal of a setting that would unload our driver, and without it can be set.

    The driver would forget, and between runs everything is to be as it was found. What else keeps
    the driver from being unloaded and loaded again for each run does not matter to disable.
    """
    haltpoll = [part for part in name.split("+") if part.partition(":")[0] == "haltpoll"]
    active = scan.cpuidle.driver == LIGHTSLEEP_DRIVER and MODULE in scan.loading.unloadable
    if not haltpoll or not active:
        return None
    without = replace(scan, cpuidle=replace(scan.cpuidle, driver=None))
    try:
        catalogue.plan(haltpoll[0], without, ROOT)
    except catalogue.CannotSet:
        return None
    return (
        f"{name} cannot be compared with as-is while lightsleep is active: it would unload the "
        "driver, which forgets what it has learned. Run lightsleep disable first (it also ends "
        "--persist), and name lightsleep among the settings"
    )


def _is_set(arm: run.Arm) -> bool:
    """Whether a setting changes nothing, as the machine is."""
    try:
        return all(
            isinstance(x, catalogue.Knob)
            and restorer.KINDS["knob"].same(restorer.read_knob(ROOT, str(ROOT / x.path)), x.value)
            for x in arm.changes
        )
    except OSError:  # setting it will say why
        return False


def _service(plan: switchback.Plan, metric_command: str) -> Subject:
    """Return what runs on this machine anyway, measured in periods."""
    how = {"switchback_s": plan.period_s, "carry_over_s": plan.carry_over_s}
    sample = partial(switchback.period, plan, ROOT)
    return Subject(metric_command, sample, plan.rounds, how, plan.goes_on)


def _repeated(command: tuple[str, ...], printed: list[metrics.Printed], rounds: int) -> Subject:
    """Return a command that is repeated. Raises UsageError where that gives no such number."""
    if any(x.rate for x in printed):
        raise click.UsageError("a rate needs --switchback: a command prints its numbers once")
    sample = partial(run.command, command, printed, {}, ROOT)
    return Subject(shlex.join(command), sample, rounds)


def _run(arms: list[run.Arm], what: Subject, seed: int) -> tuple[run.Trial, list[str], list[str]]:
    """Try the settings; return what came of it, what to tell, and what could not be set back."""
    with (
        ending_together(),
        terminal.progress() as progress,
        journalled.session(ROOT, "try") as session,
    ):
        trial = run.run(
            arms,
            what.rounds,
            what.sample,
            session,
            ROOT,
            random.Random(seed),
            progress,
            what.goes_on,
        )
    notes = [*session.notes]
    done = len(trial.runs[BASELINE])
    if done < what.rounds and not trial.trouble:
        notes.append(
            f"{done} of {what.rounds} rounds were run: the changes of settings and the metric "
            "command took the rest of --for, or more"
        )
    return trial, notes, session.refused


def _result(
    arms: list[run.Arm],
    trial: run.Trial,
    printed: list[metrics.Printed],
    what: Subject,
    seed: int,
    notes: list[str],
) -> CompareResult:
    roles: dict[str, Role] = {arm.name: "treatment" for arm in arms}
    roles[BASELINE] = "baseline"
    if CONTROL in roles:
        roles[CONTROL] = "control"
    return CompareResult(
        experiment="try",
        title=f"Idle settings for {printable(what.name)}"[:200],
        hypothesis="None of the settings changes how fast it is.",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        environment={
            "host": machine.read(ROOT).environment,
            "command": printable(what.command),
            **({"notes": [printable(x) for x in notes]} if notes else {}),
        },
        protocol={
            "runs": len(trial.runs[BASELINE]),
            "warmup": run.WARMUP,
            "seed": seed,
            "order": trial.order,
            **what.how,
        },
        arms=[arm.name for arm in arms],
        roles=roles,
        metrics=metrics.collected(trial.runs, printed),
    )


def _show(result: CompareResult, as_json: bool) -> None:
    if not as_json:
        print_table(result, terminal.output())
        return
    click.echo(text_of(result.document()))
    if result.outcome:
        click.echo(result.outcome.sentence, err=True)
