# SPDX-License-Identifier: GPL-2.0-only
"""Errors a user can act on, and the exit status each ends the command with.

Every message says what was wrong, where, and what to do about it. Exit statuses follow
kselftest and git: 0 success, 1 failure, 2 usage, 4 skipped.
"""

import click


class LightsleepError(click.ClickException):
    """Something failed that the user can understand and act on (exit status 1).

    What add_note() adds to it is told with it.
    """

    exit_code = 1

    def format_message(self) -> str:
        """Return what the user is told."""
        return "\n".join([self.message, *getattr(self, "__notes__", [])])


class WrongUsage(LightsleepError):
    """The command cannot mean what it says: it names what is not there (exit status 2)."""

    exit_code = 2


class Skipped(LightsleepError):
    """What was asked for does not apply to this machine (exit status 4, as in kselftest)."""

    exit_code = 4
