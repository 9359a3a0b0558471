# SPDX-License-Identifier: GPL-2.0-only
"""The experiments, one file each.

A file here defines ``EXPERIMENT``, and its name, with hyphens, is the experiment's name. A file
anywhere else is an experiment, too, and is named by its path.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType

from lightsleep.errors import LightsleepError, WrongUsage
from lightsleep.lab.kernels.config import lookup
from lightsleep.lab.run.experiment import Experiment


def names() -> list[str]:
    """Return the names of all experiments."""
    modules = pkgutil.iter_modules(__path__)
    return sorted(module.name.replace("_", "-") for module in modules)


def load(name: str) -> Experiment:
    """Return the experiment ``name``, or that of a file. Raises WrongUsage for what is wrong."""
    if is_file(name):
        return _load_file(Path(name))
    try:
        lookup("experiment", dict.fromkeys(names()), name)
    except LightsleepError as error:
        raise WrongUsage(f"{error.message}; a file is named by its path: ./{name}.py") from None
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return _defined(module, Path(str(module.__file__)))


def is_file(name: str) -> bool:
    """Return whether ``name`` is the path of an experiment."""
    return "/" in name or name.endswith(".py")


def digest(name: str) -> str | None:
    """Return the SHA-256 of an experiment's file; None for one of ours. Raises WrongUsage."""
    if not is_file(name):
        return None
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError as error:
        raise WrongUsage(f"cannot read {name}: {error.strerror or error}") from error


def name_in_results(name: str) -> str:
    """Return the name of an experiment as results have it."""
    return Path(name).stem.replace("_", "-") if is_file(name) else name


def _load_file(path: Path) -> Experiment:
    """Return what a file defines as EXPERIMENT; the file is run."""
    spec = importlib.util.spec_from_file_location(f"experiment_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise WrongUsage(f"{path}: the name of an experiment's file ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as dataclasses need it
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # no __pycache__ beside somebody's file
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise WrongUsage(f"{path}, line {error.lineno}: no valid Python: {error.msg}") from error
    except OSError as error:
        raise WrongUsage(f"cannot read {path}: {error.strerror or error}") from error
    except SystemExit as error:
        raise WrongUsage(
            f"{path}{_line(error, path)}: it ends the program (SystemExit: {error.code}), and so "
            "defines no experiment: remove what calls sys.exit() as the file is loaded"
        ) from error
    except Exception as error:  # whatever its code does
        raise WrongUsage(f"{path}{_line(error, path)}: {type(error).__name__}: {error}") from error
    finally:
        sys.dont_write_bytecode = before
    return _defined(module, path)


def _line(error: BaseException, path: Path) -> str:
    """Return which line of a file an error comes from, in words; nothing where none is known."""
    trace = traceback.extract_tb(error.__traceback__)
    lines = [x.lineno for x in trace if Path(x.filename).resolve() == path.resolve()]
    return f", line {lines[-1]}" if lines else ""


def _defined(module: ModuleType, path: Path) -> Experiment:
    """Return what a module has as EXPERIMENT. Raises WrongUsage."""
    found = getattr(module, "EXPERIMENT", None)
    if not isinstance(found, Experiment):
        what = (
            "does not define EXPERIMENT" if found is None else "has an EXPERIMENT of another type"
        )
        raise WrongUsage(
            f"{path} {what}: assign an Experiment of lightsleep.lab.run.experiment to it, as in "
            "docs/how-to/add-an-experiment.md"
        )
    return found
