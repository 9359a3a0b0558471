# SPDX-License-Identifier: GPL-2.0-only
"""Scripts and benchmarks of the project, which are in no package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from paths import ROOT


def loaded(path: str) -> ModuleType:
    """Return the module of a file of the project, such as ``scripts/bench.py``."""
    file = Path(path)
    name = f"{file.parent.name}_{file.stem}"  # not that of a test, or of what a test imports
    spec = importlib.util.spec_from_file_location(name, ROOT / file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module
