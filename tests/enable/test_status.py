# SPDX-License-Identifier: GPL-2.0-only
"""What status says of what is enabled, now and at the next boot."""

from pathlib import Path

from enabled import done, run, status

pytest_plugins = "enabled"


def test_what_only_the_next_boot_brings_is_not_in_force(root: Path) -> None:
    done("enable", "lightsleep:fixed:100us")
    since = status()["since"]
    assert status()["later"] is None
    for later in ("lightsleep:off", "lightsleep:adaptive:50us"):
        done("enable", "--persist", "--later", later)
        found = status()
        assert (found["enabled"], found["later"]) == ("lightsleep:fixed:100us", later)
        assert found["since"] == since
    said = run("status").output
    assert "lightsleep:fixed:100us, since" in said
    assert "brings lightsleep:adaptive:50us\n" in said
    done("enable", "--persist", "lightsleep:off")
    assert (status()["enabled"], status()["later"]) == ("lightsleep:off", None)
    done("disable")
    assert (status()["enabled"], status()["later"]) == (None, None)


def test_what_the_next_boot_brings_where_nothing_is_enabled_now(root: Path) -> None:
    done("enable", "--persist", "--later", "lightsleep:off")
    found = status()
    assert (found["enabled"], found["later"]) == (None, "lightsleep:off")
    assert found["by"]
    assert f"brings lightsleep:off, enabled {found['since']} by {found['by']}" in (
        run("status").output
    )
    assert "undid lightsleep enable lightsleep:off" in done("disable")
