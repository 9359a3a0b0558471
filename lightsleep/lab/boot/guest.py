# SPDX-License-Identifier: GPL-2.0-only
"""A booted guest, as an experiment or a test sees it.

Every call is bounded. A guest that panics, hangs or talks nonsense is an error at once, which
shows where on the console it began, says where the whole of it was kept, and how to see it happen.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import (
    accel,
    acpi,
    devicetree,
    emulator,
    foreign,
    hosttime,
    snapshot,
    splat,
)
from lightsleep.lab.boot.accel import Accelerator
from lightsleep.lab.boot.agent import Agent, AgentGone, Completed, RequestError
from lightsleep.lab.boot.foreign import ForeignTree
from lightsleep.lab.boot.initramfs import (
    GUEST_MODULES,
    NO_MODPROBE,
    for_modprobe,
    initramfs,
    too_large,
)
from lightsleep.lab.boot.machine import Machine
from lightsleep.lab.boot.unpacked import unpacked
from lightsleep.lab.boot.vm import VM, Hardware, state_of
from lightsleep.lab.host import aside
from lightsleep.lab.kernels.build import FRAGMENTS, any_tree
from lightsleep.lab.kernels.config import ARCHES, ROOTS, Arch, BuiltKernel, Kernel, lookup
from lightsleep.lab.kernels.modules import project_modules
from lightsleep.lab.kernels.roots import BootFiles, KernelTree, guest_root
from lightsleep.sources import kernel_sources

REBOOTS = 2
"""How often a guest is booted anew that QEMU's emulation ended before it did anything."""

STOCK = "6.12"
"""The kernel of Debian that tells whether KVM works, where one that is not Debian's fails."""

CLOCK_ANSWER_S = 20.0
ENDING_S = 1.0
"""How long the end of a QEMU may take that answers no more, or whose guest complains."""
SHELL_S = 7 * 24 * 3600.0
LOGS = Path("out/logs")
"""Where consoles of failed guests are kept, under the current folder."""

OF_KERNEL = re.compile(r"Linux version |^\[ *\d+\.\d{6}\]", re.MULTILINE)
"""What a kernel prints, and no firmware: its first line, or the times of all of them. That line may
be lost where many others came before the console did."""

NAME = 50
"""Characters of a guest's name in that of its log. A file's name has at most 255 bytes."""

SHOWN = 25
SAID = 5
"""Lines of a console that an error message shows, and of what QEMU itself said."""


class GuestFailed(LightsleepError):
    """The guest panicked, hung, or its kernel complained."""


class EmulatorRaced(GuestFailed):
    """The guest died of QEMU's emulation: it says nothing about the kernel, and may be repeated."""

    blamed = ""
    """What ended it, in words."""


def prepare(
    machine: Machine,
    interactive: bool = False,
    quick: bool = False,
    note: Callable[[str], None] = lambda _: None,
    modprobe: bool | None = None,
) -> Hardware:
    """Return what QEMU needs to boot ``machine``, making whatever the cache does not have yet.

    With ``quick``, an emulated kernel that can be started without unpacking itself is (see
    unpacked.py). With ``modprobe``, a guest has the modules of a kernel of one's own; None: unless
    lacks_modprobe() says why not. ``note`` hears what is being done. Raises LightsleepError for
    whatever stands in the way.
    """
    kernel_sources()  # what lacks them is to hear of it before an hour of fetching and building
    arch = lookup("architecture", ARCHES, machine.arch)
    # Nothing is fetched for a machine that cannot be.
    kernel = _named(arch, machine, note)
    lookup("root", ROOTS, machine.root)
    emulator.version(arch)
    if machine.idle_state != "no" and not arch.psci_machine:
        raise LightsleepError(f"--idle-state needs --arch aarch64, not {arch.name}")
    # What does not need each other is fetched, built and tried side by side.
    making_root = aside(guest_root, arch, machine.root)
    newer = aside(emulator.recent, arch) if accel.emulates(machine.accel, arch) else None
    tree = _kernel(arch, kernel, note)
    state = state_of(tree.image) if machine.foreign else None
    choosing = aside(_emulation, machine, arch, tree, newer, note)
    note("modules")
    modules = _modules(arch, tree, machine, note)
    note("root of the guests")
    root = making_root.result()
    note("accelerator and emulator")
    accelerator, arch = choosing.result()
    if machine.cpu:
        arch = replace(arch, cpu_tcg=machine.cpu, cpu_kvm=machine.cpu)
    if modprobe is None:
        modprobe = not lacks_modprobe({"": machine})
    own = isinstance(tree, ForeignTree) and modprobe
    files = initramfs(tree, root, modules, for_modprobe(tree) if own else ())
    tree_of_devices = firmware = None
    if machine.idle_state != "no":
        arch = replace(arch, machine=arch.psci_machine)
    if machine.idle_state == "devicetree":
        tree_of_devices = devicetree.with_idle_state(arch, accelerator, machine)
    elif machine.idle_state == "acpi":
        firmware = acpi.firmware(arch)
        files = acpi.with_idle_state(files, machine.vcpus)
    return Hardware(
        arch=arch,
        accelerator=accelerator,
        image=_image(tree, accelerator) if quick else tree.image,
        initramfs=files,
        root=root.squashfs,
        machine=machine,
        interactive=interactive,
        devicetree=tree_of_devices,
        firmware=firmware,
        state=state,
        release=foreign.release_of(tree) if isinstance(tree, ForeignTree) else None,
    )


def lacks_modprobe(machines: Mapping[str, Machine]) -> str:
    """Say why guests do without the modules of kernels of one's own; empty where they do not.

    All of them, by name, or none: one with its modules has less memory, and loads more.
    """
    for name, machine in machines.items():
        if not machine.foreign:
            continue
        tree = _named(lookup("architecture", ARCHES, machine.arch), machine, lambda _: None)
        assert isinstance(tree, ForeignTree)
        why = (
            too_large(tree)
            if foreign.release_of(tree)
            else f"{tree.modules} is not named as the release of its kernel"
        )
        if why:
            of = f" ({name})" if name else ""
            return f"{NO_MODPROBE}: guests are without the modules of your kernel{of}: {why}"
    return ""


def check_kernels(machines: Mapping[str, Machine]) -> None:
    """Raise LightsleepError for kernels, by arm, that cannot be booted, or not beside each other.

    Nothing is fetched or built.
    """
    found = {
        name: _named(lookup("architecture", ARCHES, machine.arch), machine, lambda _: None)
        for name, machine in machines.items()
    }
    theirs = {name: x for name, x in found.items() if isinstance(x, ForeignTree)}
    foreign.one_source_each(theirs)
    foreign.one_build_each({name: x.foreign for name, x in machines.items()}, theirs)


def _named(
    arch: Arch, machine: Machine, note: Callable[[str], None]
) -> Kernel | BuiltKernel | ForeignTree:
    """Return which kernel a machine has."""
    if machine.foreign:
        note("the kernel you named")
        return foreign.tree(arch, machine.foreign)
    return lookup(f"{arch.name} kernel", arch.bootable, machine.kernel)


def _kernel(
    arch: Arch, kernel: Kernel | BuiltKernel | ForeignTree, note: Callable[[str], None]
) -> KernelTree | ForeignTree:
    """Return a kernel, making what the cache does not have."""
    if isinstance(kernel, ForeignTree):
        return kernel
    note(f"kernel {kernel.name}")
    return any_tree(arch, kernel, note)


def _emulation(
    machine: Machine,
    arch: Arch,
    tree: BootFiles,
    newer: Future[Arch] | None,
    note: Callable[[str], None],
) -> tuple[Accelerator, Arch]:
    """Return what runs guests, and the architecture with the QEMU for that."""

    def stock() -> BootFiles:
        note(f"kernel {STOCK} of Debian, to try KVM with")
        return any_tree(arch, arch.kernels[STOCK])

    is_debians = not machine.foreign and machine.kernel in arch.kernels
    found = accel.choose(machine.accel, arch, tree, None if is_debians else stock)
    if found.name == "kvm":
        return found, arch
    return found, newer.result() if newer else emulator.recent(arch)


def _image(tree: KernelTree | ForeignTree, accelerator: Accelerator) -> Path:
    """Return what QEMU starts soonest. What somebody named is started as it is.

    So it is under KVM, where unpacking takes no time.
    """
    if isinstance(tree, ForeignTree) or accelerator.name == "kvm":
        return tree.image
    return unpacked(tree)


def _modules(
    arch: Arch, tree: KernelTree | ForeignTree, machine: Machine, note: Callable[[str], None]
) -> list[Path]:
    """Return our modules for a kernel. Raises LightsleepError where the machine loads another."""
    if isinstance(tree, ForeignTree):
        found = foreign.modules(arch, tree, needed=machine.modules, note=note)
    else:
        found = project_modules(arch, tree)
    ours = {file.stem: file for file in found}
    for module in machine.modules:
        lookup("module", ours, module.split()[0].replace("-", "_"))
    return found


class Guest:
    """A guest and its agent. Leave through ``close``, or use ``boot`` as a context manager."""

    def __init__(
        self,
        machine: Machine,
        hardware: Hardware,
        name: str = "guest",
        reboots: int = REBOOTS,
        snapshots: Path | None = None,
    ) -> None:
        """Start QEMU with ``hardware``, made for a machine that may differ in its parameters.

        The guest goes on from its snapshot in the folder ``snapshots``, or leaves one there.
        """
        self.machine = machine
        self.name = name
        self._reboots = reboots
        self.spoiled: list[str] = []
        """What ended it before, each time that it was booted anew."""
        self._blamed_for: set[str] = set()
        self._boot_s = machine.boot_timeout
        self._hardware = replace(hardware, machine=machine)
        self._snapshot = snapshot.of(self._hardware, snapshots) if snapshots else None
        self._start()

    def _start(self) -> None:
        self._goes_on = self._snapshot is not None and self._snapshot.exists()
        self.vm = VM(self._hardware, waits=self._goes_on)
        self._agent = Agent(self.vm.agent, self._watch)
        self._complained = False
        self._booted = False
        self._vcpus: list[int] | None = None

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the guest has booted, the machine's own time by default; ``load`` is next."""
        self._boot_s = self.machine.boot_timeout if timeout_s is None else timeout_s
        self._unspoiled(self._wait)

    def load(self) -> None:
        """Load the modules that belong to this machine."""
        self._unspoiled(self._load)

    def _unspoiled(self, step: Callable[[], None]) -> None:
        """Take a step of the start, on a guest booted anew where QEMU's emulation spoils it.

        Both steps patch code that other CPUs run, and until now the guest has done nothing else.
        """
        while True:
            try:
                step()
                return
            except EmulatorRaced as error:
                self._blamed_for.add(error.blamed)
                if len(self.spoiled) >= self._reboots:  # of both steps together
                    if self._reboots and len(self._blamed_for) == 1:
                        error.add_note(
                            f"so it was in each of {self._reboots + 1} boots: it may be the kernel "
                            "after all"
                        )
                    raise
                self.spoiled.append(error.message.splitlines()[0])
            self.vm.close()
            self._snapshot = None
            self._start()

    def _wait(self) -> None:
        with self._watched():
            try:
                if self._goes_on and self._snapshot:
                    self.vm.restore(self._snapshot.memory, self._snapshot.console)
                    self._agent.clock_ns(self._boot_s)
                else:
                    self._check_release(self._agent.hello(self._boot_s))
            except TimeoutError:
                raise AgentGone(
                    f"not booted within {self._boot_s:g} s (--boot-timeout gives it longer)"
                ) from None
        if not (self._hardware.interactive or OF_KERNEL.search(self.vm.console())):
            arch = self._hardware.arch
            raise self.failure(
                f"nothing of its kernel is on its console {arch.console}, where its warnings would "
                "be: set CONFIG_PRINTK, build in the driver of this console, as in "
                f"{FRAGMENTS}/{arch.name}.config, and let no option turn the console off"
            )
        if self._snapshot and not self._goes_on and not splat.find(self.vm.console()):
            # It only saves time: where the disk is full, say, each guest boots.
            with contextlib.suppress(LightsleepError, OSError):
                self.vm.save(self._snapshot.memory, self._snapshot.console)
        if self.machine.pin:
            hosttime.pin(self.vm.vcpu_threads())
        self._booted = True

    def _check_release(self, release: str) -> None:
        """Raise LightsleepError where the guest's kernel is not the one of its modules."""
        hardware = self._hardware
        if hardware.release not in (None, release):
            raise LightsleepError(
                f"{hardware.image} is kernel {release}, but the folder of its modules is named "
                f"{hardware.release}: finish the build of its tree, or give the modules that "
                f"belong to it, in a folder {release}"
            )

    def _load(self) -> None:
        if not self._booted:
            self._wait()
        for module in self.machine.modules:
            self.insmod(module)

    def run(
        self,
        argv: Sequence[str],
        timeout_s: float = 60,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Completed:
        """Run a command in the guest and return what became of it.

        Raises LightsleepError where it takes over ``timeout_s`` or, with ``check``, fails.
        """
        with self._watched():
            done = self._agent.run(argv, timeout_s, stdin, env)
        if check and done.rc != 0:
            raise LightsleepError(
                f"{self.name}: {shlex.join(argv)}: exit status {done.rc}: "
                f"{done.stderr.strip()[-2000:] or done.stdout.strip()[-2000:] or '(no output)'}"
            )
        return done

    def read_text(self, path: str, timeout_s: float = 20) -> str:
        """Return the content of a file in the guest. Raises LightsleepError as open() would."""
        with self._watched():
            return self._agent.read(path, timeout_s)

    def write_text(self, path: str, text: str, timeout_s: float = 20) -> None:
        """Write a file in the guest. Raises LightsleepError as write() would."""
        with self._watched():
            self._agent.write(path, text, timeout_s)

    def clock_ns(self) -> int:
        """Return the guest's monotonic clock."""
        with self._watched():
            return self._agent.clock_ns(CLOCK_ANSWER_S)

    def insmod(self, module: str) -> None:
        """Load one of our modules: its name, and parameters behind it."""
        name, *parameters = module.split()
        done = self.run(
            ["insmod", f"{GUEST_MODULES}/{name.replace('-', '_')}.ko", *parameters], check=False
        )
        if done.rc != 0:
            there = self.run(["ls", GUEST_MODULES], check=False).stdout.replace(".ko", "").split()
            last = self.run(["dmesg"], check=False).stdout.splitlines()[-3:]
            raise LightsleepError(
                f"{self.name}: cannot load {module!r}: {done.stderr.strip()}\n"
                f"modules there: {', '.join(there) or 'none'}; last kernel messages:\n"
                + "\n".join(last)
            )

    def vcpu_time(self) -> hosttime.ThreadTime:
        """Return what the host's scheduler has given the vCPUs so far, all of them together.

        Take it before and after a span: the difference of ``ran_ns`` is the CPU time that the guest
        used on the host, time in which its idle CPUs polled included.
        """
        if self._vcpus is None:
            self._vcpus = self.vm.vcpu_threads()
        try:
            return hosttime.thread_time(self.vm.process.pid, self._vcpus)
        except (FileNotFoundError, ProcessLookupError):
            raise self.failure("the guest has ended") from None

    def pause(self) -> None:
        """Stop all CPUs; the guest's clocks stand still. Raises GuestFailed where it has ended."""
        with self._commanded():
            self.vm.pause()

    def resume(self) -> None:
        """Let the CPUs run on. Raises GuestFailed where the guest has ended."""
        with self._commanded():
            self.vm.resume()

    @contextlib.contextmanager
    def _commanded(self) -> Iterator[None]:
        """Tell a QEMU that has ended from one that refuses a command."""
        try:
            yield
        except LightsleepError as error:
            if self.vm.ended(ENDING_S) is not None:
                raise self.failure("the guest has ended") from error
            raise LightsleepError(f"{self.name}: {error.message}") from error

    def shell(self) -> None:
        """Give the console to a shell; return when it, or the guest, has ended."""
        tty = f"/dev/{self.vm.hardware.arch.console}"
        command = ["sh", "-c", f"cd; exec bash --norc -i <{tty} >{tty} 2>&1"]
        with contextlib.suppress(AgentGone):
            self._agent.run(command, SHELL_S, env={"PS1": "guest:\\w# ", "TERM": "linux"})

    def check(self) -> None:
        """Raise GuestFailed where the guest has ended or its console holds a splat.

        One that is just being printed may be a panic: what ended a guest is told by all of it.
        """
        found = splat.find(self.vm.console())
        if self.vm.ended(ENDING_S if found else 0) is not None:
            raise self.failure("the guest has ended")
        if found:
            raise self.failure(f"its kernel complained, first on {found[0]}")

    def _watch(self) -> None:
        """Raise GuestFailed where a splat has been on the console before.

        Not the first time: it may not be complete, or be a panic that ends the guest.
        """
        if self._complained:
            self.check()
        self._complained = bool(splat.find(self.vm.console()))

    def failure(self, why: str) -> GuestFailed:
        """Return an error with all a developer needs, keeping the console's log.

        Of a guest whose console is the terminal there is no log.
        """
        if self._hardware.interactive:
            return GuestFailed(f"{self.name}: {why}\nthe console was on the terminal")
        log = self.vm.console()
        # What started it, where the kernel said so, else how far it got.
        lines = log.splitlines()
        said = "".join(f"  QEMU said: {line}\n" for line in self.vm.said().splitlines()[-SAID:])
        start = next((x.line - 1 for x in splat.find(log)), len(lines) - SHOWN)
        shown = "\n".join(f"  | {line}" for line in lines[max(start, 0) :][:SHOWN])
        blamed = self._blamed(log)
        try:
            kept = str(keep(log, self.name))
        except OSError as error:
            kept = f"not kept: {error}"
        why += f"; that was {blamed}, not the kernel" if blamed else ""
        message = (
            f"{self.name}: {why}\n{shown or '  | (nothing on the console)'}\n{said}"
            f"console: {kept}\n"
            f"see it happen: {self.machine.command()}"
        )
        if not blamed:
            return GuestFailed(message)
        raced = EmulatorRaced(message)
        raced.blamed = blamed
        return raced

    def _blamed(self, log: str) -> str:
        """Return what else than its kernel ended the guest; empty where it may be the kernel.

        Only an emulator with a thread for each CPU races with code that is patched. Under any other
        accelerator, a kernel that dies alike patches its code wrongly.
        """
        races = self._hardware.accelerator.name == "tcg"
        if (races and splat.emulator_raced(log)) or splat.emulator_gave_up(self.vm.said(), log):
            return "QEMU's emulation"
        return "its host, which did not run it in time" if splat.emulator_was_late(log) else ""

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except AgentGone as error:
            raise self.failure(error.message) from None
        except RequestError as error:
            raise LightsleepError(f"{self.name}: {error.message}") from None

    def close(self) -> None:
        """End the guest without ceremony: nothing it holds is worth keeping."""
        self.vm.close()


def keep(log: str, name: str) -> Path:
    """Write a console's log to a file of its own and return its path.

    An arm may be called anything: its file has the beginning of its name, and no folder.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    name = name.replace("/", "-")[:NAME]
    for number in itertools.count(1):
        with contextlib.suppress(FileExistsError):
            path = LOGS / f"{name}-{number}.console.log"
            with path.open("x") as file:
                file.write(log)
            return path
    raise AssertionError


@contextlib.contextmanager
def boot(
    machine: Machine,
    name: str = "guest",
    timeout_s: float | None = None,
    snapshots: Path | None = None,
) -> Iterator[Guest]:
    """Boot a guest, check its console for splats at the end, and end it.

    With ``snapshots``, a folder, it goes on where one like it had booted, or is that one.
    """
    guest = Guest(machine, prepare(machine, quick=True), name, snapshots=snapshots)
    try:
        guest.wait(timeout_s)
        guest.load()
        yield guest
        guest.check()
    finally:
        guest.close()
