# SPDX-License-Identifier: GPL-2.0-only
"""How a replay is said: a table, a recommendation, and what to know about both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightsleep.document import headed
from lightsleep.replay.account import OPTIMUM, Account, Gain, Outcome, Replay, gain
from lightsleep.replay.costs import Costs
from lightsleep.replay.governed import Governor
from lightsleep.replay.intervals import FAR_NS
from lightsleep.replay.policies import STOCK, setting_of
from lightsleep.terminal import least_width, whole
from lightsleep.units import counted, digits, seconds, us, value

SCHEMA = "lightsleep.replay"
VERSION = 1
PRICED = (
    *("policy", "waited", "p50 us", "p99 us", "polled", "of idle time"),
    *("polls in vain", "regret"),
)
STAYED = ("too shallow", "too deep", "wakes from halts")
"""Columns that stand in a table of their own on a terminal, which has no room for both."""

TITLES = PRICED + STAYED
WORTH = 0.001
"""A gain below this share of the recording's time is not worth a change."""

UNKNOWN = (
    " But the recording does not show what a halt costs, and the interval does not cover that: "
    "measure it, and replay again with --measured or --halt-cost."
)


def recommendation(replay: Replay, costs: Sequence[tuple[str, Costs]]) -> str:
    """Return which policy to prefer, by how much, and how sure that is.

    ``costs`` has the costs of each recording: where they are not known, a gain is not, either.
    """
    others = [x for name, x in replay.outcomes.items() if name != STOCK and _is_judged(name)]
    if not others:
        return "Nothing to recommend: no policy that polls was replayed."
    gains = {x.name: gain(replay, x.name) for x in others}
    shown = [x for x in others if gains[x.name].low_ns > 0]
    worth = [x for x in shown if gains[x.name].ns >= WORTH * replay.span_ns]
    best = max(worth or shown or others, key=lambda outcome: gains[outcome.name].low_ns)
    saved = gains[best.name]
    if not worth:
        why = (
            f"what a policy is shown to gain is less than {100 * WORTH:g} % of the recording's "
            f"time. The best is {best.name}."
            if shown
            else f"no policy is shown to be better. The nearest is {best.name}."
        )
        return f"Keep what was recorded: {why} {_told(replay, best, saved)}"
    at_most = any(cost.at_most for _, cost in costs)
    setting = setting_of(best.name, replay.weight)
    how = f": sudo lightsleep try -s {setting} -- COMMAND" if setting else ""
    told = _told(replay, best, saved, "at most " if at_most else "")
    return f"Try {best.name}{how}. {told}" + (
        UNKNOWN if at_most or any(cost.doubted for _, cost in costs) else ""
    )


def _told(replay: Replay, of: Outcome, saved: Gain, at_most: str = "") -> str:
    """Say what a policy would have made of the recording: in time, then in the table's regret."""
    stock = replay.outcomes[STOCK]
    return (
        f"In {seconds(replay.span_ns)}, tasks would have waited {_range(of, _waited)} instead of "
        f"{_range(stock, _waited)}, and CPUs would have polled {_range(of, _polled)} instead of "
        f"{_range(stock, _polled)}. Its regret is {at_most}{_signed(saved.ns)} than that of "
        f"{STOCK} (95 % interval {_signed(saved.low_ns)} to {_signed(saved.high_ns)})."
    )


def _is_judged(name: str) -> bool:
    """Return whether a policy is compared with others: not if it knows the future, nor a governor.

    What a governor's states save of power is not counted.
    """
    return name != OPTIMUM and not Governor.named(name)


def notes(replay: Replay, costs: Sequence[tuple[str, Costs]]) -> list[str]:
    """Return what to know about the figures."""
    governors = [x for x in map(Governor.named, replay.outcomes) if x]
    return [
        *([replay.slow] if replay.slow else []),
        *(f"{path}: {note}" for path, cost in costs for note in _of_costs(cost, governors)),
        *_of_interval(replay),
        *_of_governors(governors),
        *_of_loops(replay, chained=any(cost.chained for _, cost in costs)),
    ]


def _of_costs(cost: Costs, governors: Sequence[Governor]) -> list[str]:
    """Return what to know about the costs in one recording."""
    said = [_halt_cost(cost)]
    if cost.mostly_estimated:
        said.append(
            f"{cost.estimated_wakes:,} wakeups from halts were by interrupts of the CPU itself. "
            "No event shows how long the CPU took to wake then. Each counts as what "
            f"{cost.measured_wakes:,} wakeups by other CPUs took, so waiting, and what a policy "
            "saves of it, are mostly estimated"
        )
    said += cost.warnings
    if governors and cost.untimed:
        said.append(
            f"does not say of {cost.untimed:,} of {cost.periods:,} idle periods when the next "
            "timer was due. Governors are told when it came, where a timer ended the period, and "
            f"else {seconds(FAR_NS)}"
        )
    if cost.driver_ns:
        low, high = min(cost.driver_ns.values()), max(cost.driver_ns.values())
        known = us(low) if low == high else f"{us(low)} to {us(high)}"
        said.append(
            f"cpuidle-lightsleep had measured {known} us there. The policy lightsleep decides by "
            "that; what it waits counts as recorded"
        )
    if cost.hides_polls:
        said.append(
            "recorded under cpuidle-lightsleep, whose polls are in no event. Each is taken for a "
            "halt: record again under lightsleep enable lightsleep:off"
        )
    if cost.lacks_driver:
        said.append(
            "recorded without an idle driver. With one, each wakeup from a halt takes a little "
            "longer, and gains are smaller than shown: record again under lightsleep enable "
            "lightsleep:off"
        )
    return said


def _halt_cost(cost: Costs) -> str:
    """Say what a wakeup from a halt costs, and what tells that."""
    text = f"a wakeup from a halt costs {us(cost.halt_ns)} us"
    if cost.measured:
        text += f", and one from each state what {cost.measured} says"
    if cost.supposed_ns is not None:
        text += (
            ", as the module had measured: wakeups that found a CPU polling or awake are too few, "
            "or took longer, and do not tell; --halt-cost sets it. At the other end of each range, "
            "all of a wakeup is the halt's"
        )
    elif cost.at_most:
        text += (
            ", at most: wakeups that found a CPU polling or awake are too few, or took longer, and "
            "do not tell how much of that is the scheduler's; --halt-cost sets it"
        )
    return text


def _of_interval(replay: Replay) -> list[str]:
    """Return what the interval covers, where there are several recordings."""
    machines = replay.machines()
    if len({x.host for x in machines}) > 1:
        return [f"the interval covers how much these {len(machines)} machines differ"]
    if len(machines) > 1:
        return [
            f"the interval covers how much these {len(machines)} recordings differ; it says "
            "nothing of other machines"
        ]
    return []


def _of_governors(governors: Sequence[Governor]) -> list[str]:
    """Return what to know about the figures of governors."""
    said = []
    if governors:
        said.append(
            "governors choose among idle states. How much power each state saves is not counted, "
            "so that shallow states look better than they are"
        )
    if any(governor.promote for governor in governors):
        said.append(
            "+promote leaves every state that lasts too long. A kernel does so only where the "
            "idle driver asks for it, never in a state that stops the CPU's timer, and neither "
            "leaves nor enters one that several CPUs enter together"
        )
    return said


def _of_loops(replay: Replay, chained: bool) -> list[str]:
    """Return what to know about ranges; ``chained`` says that a task is in several loops."""
    if not replay.loop_share:
        return []
    said = [
        f"{value(100 * replay.loop_share, '%')} of the wakeups by tasks are in closed loops: two "
        "tasks that wake each other in turn. Figures are ranges for that reason"
    ]
    if chained:
        said.append(
            "some of these tasks are in closed loops with two or more others. What the wakeups of "
            "their peers' own peers take is in no range, and figures may lie outside of theirs"
        )
    return said


def show(console: Console, replay: Replay, costs: Sequence[tuple[str, Costs]]) -> None:
    """Print the table, the recommendation and the notes."""
    cells = rows(replay)
    priced = len(PRICED)
    console.print(_table(console, PRICED, [x[:priced] for x in cells]), crop=False)
    console.print()
    stayed = [(x[0], *x[priced:]) for x in cells]
    console.print(_table(console, ("policy", *STAYED), stayed), crop=False)
    console.print(f"\n{explained(replay)}")
    console.print(Text(recommendation(replay, costs), "bold"))
    for note in notes(replay, costs):
        console.print(Text.assemble(("note: ", "bold cyan"), note))


def _table(console: Console, titles: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """Return a table; where it is wider than the terminal, ranges go on in a second line."""
    table = whole(_filled(titles, cells))
    if least_width(console, table) <= console.width:
        return table
    table = whole(_filled(titles, [[x.replace(" to ", " to\n") for x in row] for row in cells]))
    for column in table.columns:
        column.width = column.min_width  # Rich folds the widest column only
    return table


def _filled(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title, justify="left" if title == "policy" else "right")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table


def rows(replay: Replay) -> list[tuple[str, ...]]:
    """Return the figures of each policy, in the order of TITLES."""
    optimum = replay.outcomes[OPTIMUM]
    return [_cells(replay, outcome, optimum) for outcome in replay.outcomes.values()]


def explained(replay: Replay) -> str:
    """Return what the figures are of."""
    times = f"{replay.weight} times " if replay.weight > 1 else ""
    return (
        f"In {seconds(replay.span_ns)} of recording with {seconds(replay.idle_ns)} of idle time "
        f"and {counted(replay.wakes, 'wakeup')}. polls in vain: those that no wakeup ended; "
        f"regret: time polled plus {times}the time waited, above the optimum. "
        "too shallow, too deep: time in states for which the kernel would count below, above."
    )


def front(replay: Replay) -> set[str]:
    """Return the policies than which none polls or waits less, and does no more of the other.

    The optimum and governors of the kernel are left out, as in the recommendation.
    """
    points = {
        name: (x.recorded.polled_ns, x.recorded.waits.total_ns)
        for name, x in replay.outcomes.items()
        if _is_judged(name)
    }
    return {
        name
        for name, mine in points.items()
        if not any(
            other != mine and other[0] <= mine[0] and other[1] <= mine[1]
            for other in points.values()
        )
    }


def _cells(replay: Replay, outcome: Outcome, optimum: Outcome) -> tuple[str, ...]:
    def share(account: Account) -> float:
        return 100 * account.polled_ns / max(1, replay.idle_ns)

    low, high = sorted((share(outcome.earliest), share(outcome.recorded)))
    told = [digits(x, "%") for x in (low, high)]
    shares = f"{' to '.join(dict.fromkeys(told))} %"
    regrets = sorted(
        max(0, mine.paid_ns - best.paid_ns)
        for mine, best in (
            (outcome.earliest, optimum.earliest),
            (outcome.recorded, optimum.recorded),
        )
    )
    return (
        outcome.name,
        _range(outcome, _waited),
        us(outcome.recorded.wait_ns(0.5)),
        us(outcome.recorded.wait_ns(0.99)),
        _range(outcome, _polled),
        shares,
        f"{outcome.recorded.tally['in_vain']:,}",
        _between(*regrets),
        _range(outcome, _too_shallow),
        _range(outcome, _too_deep),
        f"{outcome.recorded.tally['halts']:,}",
    )


def _waited(account: Account) -> float:
    return account.waits.total_ns


def _polled(account: Account) -> float:
    return account.polled_ns


def _too_shallow(account: Account) -> float:
    return account.tally["too_shallow_ns"]


def _too_deep(account: Account) -> float:
    return account.tally["too_deep_ns"]


def _range(outcome: Outcome, figure: Any) -> str:
    return _between(*sorted((figure(outcome.earliest), figure(outcome.recorded))))


def _between(low: float, high: float) -> str:
    ends = seconds(low), seconds(high)
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _signed(time_ns: float) -> str:
    return f"{seconds(abs(time_ns))} {'lower' if time_ns >= 0 else 'higher'}"


def document(replay: Replay, costs: Sequence[tuple[str, Costs]]) -> dict[str, Any]:
    """Return the JSON document of all figures, as replay.schema.json describes it."""
    optimum = replay.outcomes[OPTIMUM]
    rest = {
        "span_ns": replay.span_ns,
        "idle_ns": replay.idle_ns,
        "wakes": replay.wakes,
        "wait_weight": replay.weight,
        "closed_loop_share": replay.loop_share,
        "recordings": [
            {
                "file": path,
                "halt_cost_ns": cost.halt_ns,
                "reference_ns": cost.reference_ns,
                "measured": cost.measured or None,
                "driver_cost_ns": {str(cpu): ns for cpu, ns in sorted(cost.driver_ns.items())},
                "driver_polls": cost.hides_polls,
                "measured_wakes": cost.measured_wakes,
                "estimated_wakes": cost.estimated_wakes,
                "warnings": list(cost.warnings),
            }
            for path, cost in costs
        ],
        "policies": [
            {
                "policy": name,
                "as_recorded": outcome.recorded.to_json(),
                "peers_for_free": outcome.earliest.to_json(),
                "on_pareto_front": name in front(replay),
                "regret_ns": outcome.recorded.paid_ns - optimum.recorded.paid_ns,
                "gain_ns": vars(gain(replay, name)),
            }
            for name, outcome in replay.outcomes.items()
        ],
        "recommendation": recommendation(replay, costs),
        "notes": notes(replay, costs),
    }
    return headed(SCHEMA, VERSION, rest)
