# SPDX-License-Identifier: GPL-2.0-only
"""Writes a man page per verb, from the same text that --help prints: man_pages.py FOLDER."""

import sys
from pathlib import Path

from click_man.core import write_man_pages

from lightsleep import __version__
from lightsleep.cli import VERBS, main

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
# The command imports verbs as they are used; the generator wants to see them all.
for verb in VERBS:
    command = main.get_command(None, verb)  # type: ignore[arg-type]
    assert command is not None
    main.add_command(command, verb)
main.short_help = main.help
write_man_pages("lightsleep", main, version=__version__, target_dir=str(folder))
