# SPDX-License-Identifier: GPL-2.0-only
"""Single files of kernels, compiled with and without patches of the series, and compared."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.lab.kernels.build import Make, recipe_of
from lightsleep.lab.kernels.config import Arch, BuiltKernel
from lightsleep.lab.kernels.series import Patch, Topic, apply, read_series

PART_OF = {"kernel/sched/idle.c": "kernel/sched/build_policy.c"}
"""Files of a kernel that are compiled as part of another one, and not alone."""

Code = dict[str, str]
"""Function -> its disassembly, without addresses."""


def build_prefixes(arch: Arch, kernel: BuiltKernel, topic: Topic) -> int:
    """Compile what ``topic`` changes, after each of its patches, and return how many there are.

    Not whole kernels: the files that a patch so far changed or brought, as ``kernel`` configures
    them. Raises LightsleepError that names the patch with which one does not compile.
    """
    recipe = replace(recipe_of(arch, kernel), patches=topic.patches)

    def build(scratch: Path) -> None:
        make = recipe.prepare(scratch)
        recipe.configure(make, needed=())
        objects = _possible(make, objects_of(recipe.patches))
        for patch in recipe.patches:
            apply(patch, make.source)
            objects += [_object(x) for x in patch.new if x.endswith(".c")]
            try:
                # Options of other topics are lost here, as their patches are.
                recipe.configure(make, needed=patch.options)
                make.parallel(*objects)
            except LightsleepError as error:
                raise LightsleepError(f"after {patch.path.name}: {error.message}") from None
        shutil.rmtree(make.source)
        shutil.rmtree(make.tree)

    name = f"prefixes-{arch.name}-{kernel.name}-{topic.name}-{recipe.key()}"
    cache.entry(name, build, needs_mb=3500)
    return len(recipe.patches)


def code_without_options(
    arch: Arch, plain: BuiltKernel, scratch: Path
) -> dict[str, tuple[Code, Code]]:
    """Return the code of ``plain``, and what it is after our series with all its options off.

    By object, of those that the series changes. Builds in ``scratch``.
    """
    recipe = recipe_of(arch, plain)
    patches = read_series(plain.version)
    make = recipe.prepare(scratch)
    recipe.configure(make)
    objects = _possible(make, objects_of(patches))
    before = [_code(make, x) for x in objects]
    for patch in patches:
        apply(patch, make.source)
    recipe.configure(make)
    make.parallel(*objects)
    return {name: (old, _code(make, name)) for name, old in zip(objects, before, strict=True)}


def objects_of(patches: Sequence[Patch]) -> list[str]:
    """Return the objects with the kernel's own files that ``patches`` change."""
    changed = [x for patch in patches for x in patch.hooked if x.endswith(".c")]
    return [_object(x) for x in dict.fromkeys(changed)]


def _object(file: str) -> str:
    return PART_OF.get(file, file).removesuffix(".c") + ".o"


def _possible(make: Make, names: Sequence[str]) -> list[str]:
    """Compile those of ``names`` that this architecture can, and return them."""
    make("prepare")
    with contextlib.suppress(LightsleepError):
        make.parallel("--keep-going", *names)
    return [name for name in names if (make.source / name).exists()]


def _code(make: Make, name: str) -> Code:
    """Return the code of an object that is there."""
    text = host.run(
        host.contained(
            [
                *(f"{make.arch.triplet}-objdump", "--disassemble", "--reloc"),
                *("--no-addresses", "--no-show-raw-insn", f"/mnt/{name}"),
            ],
            *("--bind", str(make.tree), "/", "--bind", str(make.source), "/mnt"),
        ),
        f"disassembling {name}",
    )
    functions = re.split(r"^<(\S+)>:$", text, flags=re.MULTILINE)
    return dict(zip(functions[1::2], functions[2::2], strict=True))
