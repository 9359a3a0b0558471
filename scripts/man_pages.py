# SPDX-License-Identifier: GPL-2.0-only
"""Writes a man page per verb, from the same text that --help prints."""

from pathlib import Path

import click
from click_man.core import write_man_pages

from lightsleep import __version__, cli


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def main(folder: Path) -> None:
    """Write the man pages to FOLDER."""
    folder.mkdir(parents=True, exist_ok=True)
    # The command imports verbs as they are used; the generator wants to see them all.
    for verb in cli.VERBS:
        command = cli.main.get_command(None, verb)  # type: ignore[arg-type]
        assert command is not None
        cli.main.add_command(command, verb)
    cli.main.short_help = cli.main.help
    write_man_pages("lightsleep", cli.main, version=__version__, target_dir=str(folder))


if __name__ == "__main__":
    main()
