# SPDX-License-Identifier: GPL-2.0-only
"""The options of the command line that say what a guest is; commands get them as a ``Machine``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.accel import Wanted
from lightsleep.lab.boot.machine import BOOT_S, Devices, ForeignKernel, Machine
from lightsleep.lab.kernels.config import ARCHES, lookup
from lightsleep.options import Duration, NamedPath

FOREIGN = ("image", "modules", "tree")


def available(context: click.Context, _: click.Parameter, kernel: str) -> str:
    """Refuse a kernel that the architecture does not have."""
    arch = ARCHES[context.params["arch"]]
    try:
        return lookup(f"{arch.name} kernel", arch.bootable, kernel).name
    except LightsleepError as error:
        raise click.BadParameter(error.message) from error


arch_option = click.option(
    "--arch",
    type=click.Choice(list(ARCHES)),
    is_eager=True,
    default="x86_64",
    show_default=True,
    help="Architecture of the guests.",
)

_DEVICE_HELP = {
    "device": "Device to add, in the syntax of QEMU's -device; repeatable.",
    "drive": "Storage for a device, in the syntax of QEMU's -drive without if=; repeatable. "
    "scratch=64M instead of file= is a temporary file of this size.",
    "object": "Object that a device uses, in the syntax of QEMU's -object; repeatable.",
    "netdev": "Peer of a network device, in the syntax of QEMU's -netdev; repeatable.",
}

_OPTIONS = (
    arch_option,
    click.option(
        "--kernel",
        type=click.Choice(sorted({name for arch in ARCHES.values() for name in arch.bootable})),
        default="6.12",
        show_default=True,
        callback=available,
        help="Kernel of the guests; `lightsleep lab list` describes each.",
    ),
    click.option(
        "--kernel-tree",
        "tree",
        type=NamedPath(exists=True, file_okay=False, path_type=Path),
        help="Boot a kernel of your own: a tree in which it was built.",
    ),
    click.option(
        "--image",
        type=NamedPath(exists=True, dir_okay=False, path_type=Path),
        help="Boot a kernel of your own: its image. Needs --modules.",
    ),
    click.option(
        "--modules",
        type=NamedPath(exists=True, file_okay=False, path_type=Path),
        help="The modules of --image: its /lib/modules/RELEASE.",
    ),
    click.option(
        "--accel",
        type=click.Choice(get_args(Wanted)),
        default="auto",
        show_default=True,
        help="auto: KVM if a short boot proves that it works, else emulation (TCG); tcg-single: "
        "emulation in one thread; tcg-icount: with a clock that counts instructions. An experiment "
        "may have another default.",
    ),
    click.option("--append", default="", help="Kernel parameters to add."),
    *(
        click.option(f"--{name}", name, multiple=True, metavar=name.upper(), help=text)
        for name, text in _DEVICE_HELP.items()
    ),
    click.option("--cpu", default="", help="CPU model of guests, in the syntax of QEMU's -cpu."),
    click.option(
        "--boot-timeout",
        default=Duration.spelled(BOOT_S),
        show_default=True,
        metavar="TIME",
        type=Duration(),
        help="How long a guest may take to boot, e.g. 10m.",
    ),
    click.option(
        "--pin", is_flag=True, help="Keep each virtual CPU on one CPU of the host, in turn."
    ),
)


def machine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a guest to ``command``, which gets them as ``machine``."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        foreign = _foreign(**{name: given.pop(name) for name in FOREIGN})
        devices = Devices(**{name: given.pop(name) for name in _DEVICE_HELP})
        own = {
            x: given.pop(x)
            for x in ("arch", "kernel", "accel", "append", "cpu", "pin", "boot_timeout")
        }
        command(machine=Machine(**own, foreign=foreign, devices=devices), **given)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def kernel_named() -> bool:
    """Return whether the command line names a kernel of any kind."""
    source = click.get_current_context().get_parameter_source
    return any(source(name) not in (ParameterSource.DEFAULT, None) for name in ("kernel", *FOREIGN))


def accel_named() -> bool:
    """Return whether the command line names an accelerator; auto is one."""
    source = click.get_current_context().get_parameter_source("accel")
    return source not in (ParameterSource.DEFAULT, None)


TOLD_ELSEWHERE = ("rounds", "boots", "seed", "output")
"""Options of a comparison that its result tells anyway, or that do not change it."""


def arguments_given(name: str) -> list[str]:
    """Return how the command line named the experiment, and with which options, in words.

    A file is named without its folder: where it was on this machine helps nobody else.
    """
    context = click.get_current_context()
    words = [f"./{Path(name).name}" if name.endswith(".py") else name]
    for parameter in context.command.params:
        if (
            not isinstance(parameter, click.Option)
            or parameter.name is None
            or parameter.name in TOLD_ELSEWHERE
            or context.get_parameter_source(parameter.name) is not ParameterSource.COMMANDLINE
        ):
            continue
        given = context.params[parameter.name]
        is_time = isinstance(parameter.type, Duration)
        for value in given if parameter.multiple else [given]:
            told = Duration.spelled(value) if is_time else str(value)
            words += [parameter.opts[0]] if parameter.is_flag else [parameter.opts[0], told]
    return words


def _foreign(image: Path | None, modules: Path | None, tree: Path | None) -> ForeignKernel | None:
    """Return the kernel that these name. Raises UsageError for options that exclude each other."""
    if not (image or modules or tree):
        return None
    source = click.get_current_context().get_parameter_source("kernel")
    named = {
        "--kernel": source is not ParameterSource.DEFAULT,
        "--kernel-tree": tree is not None,
        "--image": image is not None,
    }
    if sum(named.values()) > 1:
        given = " and ".join(name for name, there in named.items() if there)
        raise click.UsageError(f"{given} exclude each other: name one kernel")
    if tree and modules:
        raise click.UsageError("--modules belongs to --image: a tree has its own")
    if modules and not image:
        raise click.UsageError("--modules needs --image: the kernel whose modules these are")
    return ForeignKernel(tree, image, modules)
