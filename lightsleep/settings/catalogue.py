# SPDX-License-Identifier: GPL-2.0-only
"""Idle settings by name: what each would change on this machine, or why it cannot be set here.

A setting is one part or several joined by ``+``, each NAME[:VALUE...]. plan() turns the text into a
list of changes by looking at a scan, and at the signature of a module file where one is given. It
changes nothing. A part that would
have no effect here is refused like one that cannot be set: a comparison would show "no difference"
and not say why.

- A cpuidle driver must idle the CPUs for anything to obey a latency limit, a governor or a disabled
  state. So these parts need one.
- A latency limit has an effect where it is below the exit latency of an idle state, and where the
  governor obeys it: haltpoll obeys only 0, and so does ladder where only one state halts. The parts
  beside it may change both, so only a limit that stands alone is refused for this reason.
- Only one driver can be bound. lightsleep and haltpoll are modules, so each takes the other's
  place; a driver of the hardware's own states cannot be unbound.
- The driver comes first, wherever it stands in the text: the other parts may need it.
- What is set so already is no change. ``as-is`` changes nothing.
- ``no-deeper-than`` says of all states whether they may be used. So it also gives back those that
  an earlier ``lightsleep enable`` has disabled, and that it allows.
"""

import glob
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lightsleep import units
from lightsleep.errors import LightsleepError, WrongUsage
from lightsleep.matches import matches
from lightsleep.scan import facts
from lightsleep.scan.collect import CPU_DIR, collect
from lightsleep.scan.loading import FOLDERS, MODULE, built_in_sources, of_file
from lightsleep.scan.model import Scan
from lightsleep.scan.obstacles import RULES, obstacles
from lightsleep.settings import journalled, restorer
from lightsleep.sources import DKMS_INSTALL

HALTPOLL = "cpuidle_haltpoll"
GUEST_HALT_POLL = "sys/module/haltpoll/parameters/guest_halt_poll_ns"
KVM_HALT_POLL = "sys/module/kvm/parameters/halt_poll_ns"
GOVERNOR = f"{CPU_DIR}/cpuidle/current_governor"
MODES = ("adaptive", "fixed", "off")
MAX_LIMIT_US = 10_000
MAX_WEIGHT = 100
NO_LIMIT_US = 2_000_000_000
"""PM_QOS_CPU_LATENCY_DEFAULT_VALUE of the kernel."""
PARAMETERS = f"sys/module/{MODULE}/parameters"
DEFAULTS = {"mode": "adaptive", "poll_limit_us": "0", "wait_weight": "4"}
"""What a setting says of the module where it does not say it."""
KEPT = ("mode", "poll_limit_us", "wait_weight", "peek_budget_ns", "hold_us")
"""Parameters of the module that can be set, and so are set again where it is loaded again."""

DRIVERS = ("lightsleep", "haltpoll")
"""The parts of a setting that bind a driver."""

ONLY_LIGHTSLEEP = "only lightsleep lasts across boots: leave out --persist (and --later)"

EXAMPLES = (
    "as-is",
    "lightsleep",
    "lightsleep:fixed:100us",
    "haltpoll",
    "haltpoll:200us",
    "qos:10us",
    "no-deeper-than:C1",
    "governor:teo",
    "kvm-halt-poll:0",
    "sysfs:PATH=VALUE",
)
LASTING = tuple(x for x in EXAMPLES if x.partition(":")[0] not in ("as-is", "qos"))
"""What enable can keep: as-is changes nothing, and the kernel drops qos with its process."""


class CannotSet(LightsleepError):
    """A setting cannot be set on this machine, or would have no effect."""


@dataclass(frozen=True)
class Knob:
    """Set a file, named from the root of the file system, without the leading slash."""

    path: str
    value: str


@dataclass(frozen=True)
class Load:
    """Load a module by this command; that also ``sets`` a knob."""

    module: str
    argv: tuple[str, ...]
    sets: Knob | None = None


@dataclass(frozen=True)
class Unload:
    """Unload a module, which this command would load again; that also ``sets`` a knob."""

    module: str
    reload: tuple[str, ...]
    sets: Knob | None = None


@dataclass(frozen=True)
class Hold:
    """Hold a system-wide limit of the wakeup latency."""

    latency_us: int


Change = Knob | Load | Unload | Hold


@dataclass(frozen=True)
class Context:
    """What a part is planned in: the scan, the parts before it, and a module not yet installed.

    ``passed`` are the rules whose obstacles do not count. Unless ``now``, a boot makes the changes.
    """

    scan: Scan
    root: Path
    text: str
    module_file: Path | None
    passed: Collection[str]
    before: list[Change]
    now: bool

    def refuse(self, why: str) -> CannotSet:
        """Return the error that names the setting and says why it cannot be set."""
        return CannotSet(f"{self.text} cannot be set here: {why}")

    def wrong(self, why: str) -> WrongUsage:
        """Return the error for a setting that means nothing anywhere."""
        return _wrong(self.text, why)

    def need_driver(self, what: str) -> None:
        """Raise CannotSet where no cpuidle driver idles the CPUs."""
        loads = any(isinstance(change, Load) for change in self.before)
        if not self.scan.cpuidle.driver and not loads:
            raise self.refuse(f"no cpuidle driver is bound, so nothing obeys {what}")

    def need_writable(self, file: str) -> None:
        """Raise CannotSet where a file is there and cannot be set, or not set back."""
        try:
            mode = (self.root / file).stat().st_mode
        except OSError:
            return  # to be made by a module, or set when it is told why not
        if not mode & 0o200:
            raise self.refuse(f"/{file} is read-only")
        if not mode & 0o400:
            raise self.refuse(f"/{file} cannot be read, so it could not be set back")
        try:
            restorer.read_knob(self.root, str(self.root / file))
        except OSError as error:
            cpu = restorer.offline(self.root, str(self.root / file))
            why = error.strerror
            if cpu:
                why = (
                    f"CPU {cpu} is offline; bring it online, or name the files of the others one "
                    "by one, each with sysfs:, joined by +"
                )
            raise self.refuse(f"/{file} cannot be read: {why}") from error


def plan(
    text: str,
    scan: Scan,
    root: Path,
    module_file: Path | None = None,
    examples: Sequence[str] = EXAMPLES,
    passed: Collection[str] = (),
    now: bool = True,
) -> list[Change]:
    """Return what ``text`` would change, in order.

    ``module_file`` is a module to load in place of the installed one, ``examples`` what to name
    where there is no such setting, ``passed`` the rules of obstacles() that do not count. Unless
    the changes are made ``now``, nothing has to be set back later. Raises WrongUsage where the text
    is no setting, CannotSet where it cannot be set on this machine.
    """
    changes: list[Change] = []
    names = []
    for part in driver_first(text.split("+")):
        name, _, value = part.partition(":")
        if name not in PARTS:
            raise WrongUsage(f"no setting is called {part!r}; there are: {', '.join(examples)}")
        names.append(name)
        context = Context(scan, root, text, module_file, passed, changes, now)
        changes += PARTS[name](value, context)
    if "as-is" in names and len(names) > 1:
        raise WrongUsage(f"setting {text!r}: as-is means no change, so it stands alone")
    repeated = [name for name in set(names) - {"sysfs"} if names.count(name) > 1]
    if repeated or set(DRIVERS) <= set(names):
        raise WrongUsage(f"setting {text!r}: its parts exclude each other")
    return changes


def driver_first(parts: Iterable[str]) -> list[str]:
    """Return the parts of a setting in the order in which they are made."""
    return sorted(parts, key=lambda part: part.partition(":")[0] not in DRIVERS)


def plan_elsewhere(text: str) -> list[Change]:
    """Return what a boot has to do for ``text`` on a machine that cannot be looked at now.

    Raises WrongUsage where no boot can bring that.
    """
    name, _, value = text.partition(":")
    if name != "lightsleep" or "+" in text:
        raise WrongUsage(ONLY_LIGHTSLEEP)
    return [Load(MODULE, ("modprobe", MODULE, *_words(lightsleep_parameters(value, text))))]


def split(text: str) -> list[str]:
    """Return the settings of a list. A comma in the value of a file does not end it."""
    names = "|".join(map(re.escape, PARTS))
    ends = rf",(?=\s*(?:{names})\s*(?:[:+,]|$))" if "sysfs:" in text else ","
    return re.split(ends, text)


def check_module(module_file: Path | None, settings: Sequence[str]) -> None:
    """Raise WrongUsage where none of the settings would load ``module_file``, or none could."""
    if not module_file:
        return
    parts = [part.partition(":")[0] for text in settings for part in text.split("+")]
    if "lightsleep" not in parts:
        named = ",".join(settings)
        raise WrongUsage(
            f"--module loads lightsleep, which is no part of {named}: leave out --module"
        )
    # By its name, the restorer tells what a command loads.
    if not restorer.loads(["insmod", str(module_file.absolute())], MODULE):
        raise WrongUsage(
            f"--module: {module_file} has to be called {MODULE}.ko, or {MODULE}.ko.xz where it is "
            "packed so: rename it"
        )


def duration_ns(text: str, context: Context) -> int:
    """Return a time such as 200us in ns; 0 needs no unit. Raises WrongUsage."""
    if text == "0":
        return 0
    if (time_ns := units.parse_ns(text)) is None:
        raise context.wrong(f"{text!r} is not a time of 1ns or more, such as 200us")
    return time_ns


def module_beside_sources(root: Path) -> Path | None:
    """Return the module that was built in the sources, unless one is installed or loaded."""
    scan, _ = collect(root)
    if scan.loading.installed or scan.loading.loaded:
        return None
    return built_in_sources(scan.kernel.release)


def _as_is(value: str, context: Context) -> list[Change]:
    if value:
        raise context.wrong("as-is takes no value")
    return []


def lightsleep_parameters(value: str, text: str) -> dict[str, str]:
    """Return the module's parameters for the values of ``lightsleep:...``, a part of ``text``.

    Raises WrongUsage.
    """
    parameters: dict[str, str] = {}
    for word in value.split(":") if value else []:
        name, equals, number = word.partition("=")
        if word in MODES and "mode" not in parameters:
            parameters["mode"] = word
        elif equals and name == "weight" and "wait_weight" not in parameters:
            if not re.fullmatch(r"[1-9]\d{0,2}", number) or int(number) > MAX_WEIGHT:
                raise _wrong(text, f"the weight of waiting is a number from 1 to {MAX_WEIGHT}")
            parameters["wait_weight"] = number
        elif "poll_limit_us" not in parameters and (limit_ns := units.parse_ns(word)) is not None:
            if limit_ns % 1000 or not 1 <= limit_ns // 1000 <= MAX_LIMIT_US:
                raise _wrong(text, f"the poll limit is 1us to {MAX_LIMIT_US}us, in whole us")
            parameters["poll_limit_us"] = str(limit_ns // 1000)
        else:
            raise _wrong(
                text,
                f"{word!r} is no mode ({', '.join(MODES)}), no poll limit such as 200us, and no "
                "weight=N, or one of them was named before",
            )
    return parameters


def _wrong(text: str, why: str) -> WrongUsage:
    return WrongUsage(f"setting {text!r}: {why}")


def _words(parameters: dict[str, str]) -> Iterator[str]:
    return (f"{name}={value}" for name, value in parameters.items())


def _lightsleep(value: str, context: Context) -> list[Change]:
    scan, named = context.scan, lightsleep_parameters(value, context.text)
    # All of them: other values may be left from before, or be in a file of modprobe.d.
    parameters = DEFAULTS | named
    if scan.lightsleep and scan.cpuidle.driver == "lightsleep":
        if context.module_file:
            why = (
                "is built into this kernel: leave out --module"
                if scan.loading.built_in
                else "is loaded already; run lightsleep disable first"
            )
            raise CannotSet(f"cannot load {context.module_file}: {MODULE} {why}")
        if not facts.lightsleep_idles(scan):
            _check_obstacles(scan, context, RULES.keys() - {"idle-option"})
        folder = context.root / PARAMETERS
        there = [name for name in parameters if name in named or (folder / name).exists()]
        return [Knob(f"{PARAMETERS}/{name}", parameters[name]) for name in there]
    makes_room = _unload_other(context, HALTPOLL, "haltpoll")
    # Which key signed the module is a guess: the kernel knows.
    passed = {"not-root", "not-enrolled"}
    passed |= {"other-driver"} if makes_room else set()
    file = context.module_file
    if file:
        scan = replace(scan, loading=of_file(scan.loading, file))
    _check_obstacles(scan, context, passed)
    how = ("insmod", str(file.absolute())) if file else ("modprobe", MODULE)
    return [*makes_room, Load(MODULE, (*how, *_words(parameters)))]


def _check_obstacles(scan: Scan, context: Context, passed: Collection[str]) -> None:
    """Refuse the setting where there are obstacles of rules that are not ``passed``."""
    passed = {*passed, *context.passed}
    if in_the_way := [x for x in obstacles(scan) if x.id not in passed]:
        why = "".join(f"\n{x.what}\n    {x.fix}" for x in in_the_way)
        raise CannotSet(f"{context.text} cannot be set here:{why}")


def _haltpoll(value: str, context: Context) -> list[Change]:
    scan = context.scan
    limit = [Knob(GUEST_HALT_POLL, str(duration_ns(value, context)))] if value else []
    if "haltpoll" not in scan.cpuidle.available_governors:
        raise context.refuse("this kernel has no governor haltpoll")
    for knob in limit:
        context.need_writable(knob.path)
    governor = Knob(GOVERNOR, "haltpoll")
    if scan.cpuidle.driver == "haltpoll":
        return [governor, *limit]
    makes_room = _unload_other(context, MODULE, "lightsleep")
    if scan.cpuidle.driver and not makes_room:
        raise context.refuse(
            f"the cpuidle driver {scan.cpuidle.driver} is bound and cannot be unloaded"
        )
    if not _haltpoll_is_installed(context):
        raise context.refuse(f"kernel {scan.kernel.release} has no module cpuidle-haltpoll")
    # The host's hint, which force=1 replaces, is a matter of cost to the host, not of function.
    # The kernel chooses the driver's own governor when it comes.
    load = Load(HALTPOLL, ("modprobe", HALTPOLL, "force=1"), governor)
    return [*makes_room, load, governor, *limit]


def _haltpoll_is_installed(context: Context) -> bool:
    """Return whether the running kernel has the file of the module cpuidle-haltpoll."""
    modules = context.root / "lib/modules" / (context.scan.kernel.release or "unknown")
    return any(x for name in FOLDERS for x in (modules / name).glob("cpuidle-haltpoll.ko*"))


def _unload_other(context: Context, module: str, driver: str) -> list[Change]:
    """Return how to unbind ``driver``, if it is bound and a module that can be loaded again.

    A boot that does not load it has nothing to load again.
    """
    scan = context.scan
    if scan.cpuidle.driver != driver or module not in scan.loading.unloadable:
        return []
    disabled = {x.name: None for cpu in scan.cpus for x in cpu.states if x.disabled}
    if disabled and context.now:
        raise context.refuse(
            f"the driver {driver} has to go meanwhile, and would come back with all its states "
            f"enabled, but {', '.join(disabled)} is disabled: enable it first"
        )
    reload = ["modprobe", module]
    sets: Knob | None = None
    then: list[Change] = []
    if module == HALTPOLL and context.now and not _haltpoll_is_installed(context):
        release = scan.kernel.release
        raise context.refuse(
            "the driver haltpoll has to go meanwhile, and could not be loaded again: kernel "
            f"{release} has no file of the module cpuidle-haltpoll. If an upgrade removed "
            f"/lib/modules/{release}, boot the installed kernel first"
        )
    if module == HALTPOLL and scan.haltpoll and scan.haltpoll.force is not None:
        reload.append(f"force={int(scan.haltpoll.force)}")
    if module == HALTPOLL and scan.cpuidle.governor and scan.cpuidle.governor != "haltpoll":
        # The kernel chooses this driver's own governor when it comes, and another when it goes.
        sets, then = Knob(GOVERNOR, "haltpoll"), [Knob(GOVERNOR, scan.cpuidle.governor)]
    if module == MODULE and (holders := scan.loading.holders):
        raise context.refuse(
            f"{', '.join(holders)} uses {MODULE}, which has to go: unload that first "
            f"(rmmod {' '.join(holders)})"
        )
    if module == MODULE and scan.lightsleep:
        if not scan.loading.installed:
            raise context.refuse(
                f"{MODULE} was loaded from a file, so it could not be loaded again afterwards; "
                f"install it (the package lightsleep-dkms, or {DKMS_INSTALL})"
            )
        files = {name: context.root / PARAMETERS / name for name in KEPT}
        reload += [f"{name}={x.read_text().strip()}" for name, x in files.items() if x.exists()]
    return [Unload(module, tuple(reload), sets), *then]


def _qos(value: str, context: Context) -> list[Change]:
    limit_ns = duration_ns(value, context)
    if limit_ns % 1000:
        raise context.wrong("a latency limit is a whole number of us")
    if limit_ns // 1000 >= NO_LIMIT_US:
        raise context.wrong(f"to the kernel, {NO_LIMIT_US // 1000}ms and more is no limit")
    context.need_driver("a latency limit")
    if not (context.root / "dev/cpu_dma_latency").exists():
        raise context.refuse("there is no /dev/cpu_dma_latency")
    limit_us, held_us = limit_ns // 1000, context.scan.latency_limit_us
    if held_us is not None and held_us <= limit_us:
        raise context.refuse(f"somebody holds a limit of {held_us} us already, which is no weaker")
    if "+" not in context.text and (why := _obeyed_by_none(limit_us, context.scan)):
        raise context.refuse(why)
    return [Hold(limit_us)]


def _obeyed_by_none(limit_us: int, scan: Scan) -> str | None:
    """Return why a latency limit would change nothing here, None where it could."""
    latencies_us = [state.latency_us for cpu in scan.cpus for state in facts.deeper(cpu)]
    if limit_us == 0 or not latencies_us or None in latencies_us:
        return None
    longest_us = max(x for x in latencies_us if x is not None)
    if longest_us <= limit_us:
        return f"no idle state has an exit latency of more than {longest_us} us"
    if scan.cpuidle.driver == facts.LIGHTSLEEP_DRIVER:  # which itself obeys it
        return None
    if facts.governor_is_haltpoll(scan):
        return "the governor haltpoll obeys no latency limit but 0"
    # Whether snooze, in place of POLL, is a polling state to it depends on the kernel.
    one_halts = all([state.name for state in cpu.states[:-1]] == ["POLL"] for cpu in scan.cpus)
    if scan.cpuidle.governor == "ladder" and one_halts:
        return "the governor ladder always uses the one state that halts, unless the limit is 0"
    return None


def _no_deeper_than(value: str, context: Context) -> list[Change]:
    scan = context.scan
    if not scan.cpuidle.driver:
        raise context.refuse("no cpuidle driver is bound, so there are no idle states")
    if scan.cpuidle.governor == "haltpoll":
        raise context.refuse("the governor haltpoll ignores disabled states")
    indexes, found = _indexes(value, context), _found_by_enable(context.root)
    deeper: list[Change] = []
    given_back: list[Change] = []
    for cpu in scan.cpus:
        for state in cpu.states:
            path = f"{CPU_DIR}/cpu{cpu.number}/cpuidle/state{state.index}/disable"
            if state.index > indexes[cpu.number]:
                deeper.append(Knob(path, "1"))
            elif (before := found.get(str(context.root / path))) is not None:
                given_back.append(Knob(path, before))
    if not deeper:
        raise context.refuse(f"no idle state is deeper than {value}")
    return deeper + given_back


def _indexes(name: str, context: Context) -> dict[int, int]:
    """Return which state of each CPU has this name. Raises CannotSet where a CPU has none."""
    cpus = context.scan.cpus
    indexes = {
        cpu.number: state.index
        for cpu in cpus
        for state in reversed(cpu.states)
        if state.name.lower() == name.lower()
    }
    if lacking := [cpu for cpu in cpus if cpu.number not in indexes]:
        names = [[state.name for state in cpu.states] for cpu in cpus]
        common = [x for x in names[0] if all(x in each for each in names)]
        raise context.refuse(
            f"{facts.on(lacking)} has no idle state {name!r}; states of all CPUs: "
            f"{', '.join(common) or 'none'}"
        )
    return indexes


def _found_by_enable(root: Path) -> dict[str, str | None]:
    """Return what lightsleep enable found in the knobs that it keeps, by their full names."""
    kept = journalled.kept(root)
    undos = kept.undos.items() if kept else ()
    return {name: undo.old for (kind, name), undo in undos if kind == "knob"}


def _governor(value: str, context: Context) -> list[Change]:
    context.need_driver("a governor")
    available = context.scan.cpuidle.available_governors
    if value not in available:
        raise context.refuse(f"this kernel has the governors {', '.join(available)}")
    return [Knob(GOVERNOR, value)]


def _kvm_halt_poll(value: str, context: Context) -> list[Change]:
    limit_ns = duration_ns(value, context)
    if not context.scan.kvm:
        raise context.refuse("this machine is no KVM host: the module kvm is not loaded")
    context.need_writable(KVM_HALT_POLL)
    return [Knob(KVM_HALT_POLL, str(limit_ns))]


def _sysfs(value: str, context: Context) -> list[Change]:
    path, equals, content = value.partition("=")
    if not equals or not path.startswith("/sys/") or not content.strip():
        raise context.wrong("it is written sysfs:/sys/PATH=VALUE")
    files = _files(path, context)
    if not files:
        raise context.refuse(f"there is no file {path}")
    for file in files:
        context.need_writable(file)
    return [Knob(file, content) for file in files]


def _files(path: str, context: Context) -> list[str]:
    """Return the files of a path in which each * stands for part of a name, by number.

    Several CPUs may have the same file, such as that of their frequency policy.
    """
    names = path.strip("/").split("/")
    if ".." in names or any("**" in name for name in names):
        return []
    pattern = "/".join("*".join(map(glob.escape, name.split("*"))) for name in names)
    found = [file for file in matches(context.root, pattern) if file.is_file()]
    paths = sorted((str(file.relative_to(context.root)) for file in found), key=_by_number)
    return list({(context.root / file).resolve(): file for file in reversed(paths)}.values())[::-1]


def _by_number(path: str) -> list[tuple[str, int]]:
    """Sort cpu10 behind cpu9."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", path)]


PARTS: dict[str, Callable[[str, Context], list[Change]]] = {
    "as-is": _as_is,
    "lightsleep": _lightsleep,
    "haltpoll": _haltpoll,
    "qos": _qos,
    "no-deeper-than": _no_deeper_than,
    "governor": _governor,
    "kvm-halt-poll": _kvm_halt_poll,
    "sysfs": _sysfs,
}
