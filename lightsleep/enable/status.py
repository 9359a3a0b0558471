# SPDX-License-Identifier: GPL-2.0-only
"""What ``lightsleep status`` knows: what is active, who enabled it, and whether it pays."""

import contextlib
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightsleep.document import headed
from lightsleep.enable import boot
from lightsleep.enable.boot_files import LOAD_FILE, OPTIONS_FILE, content_of, is_ours
from lightsleep.enable.change import IN_FORCE
from lightsleep.enable.pays import Pays, pays
from lightsleep.enable.why import always_polling, not_polling
from lightsleep.errors import LightsleepError
from lightsleep.scan import facts
from lightsleep.scan.collect import collect
from lightsleep.scan.loading import is_another_build
from lightsleep.scan.model import PollStats, Scan
from lightsleep.scan.obstacles import Obstacle, obstacles
from lightsleep.settings import journalled
from lightsleep.watch.rates import rates
from lightsleep.watch.reading import Reader

SCHEMA = "lightsleep.status"
VERSION = 1
LOOK_S = 0.2
"""How long to count wakeups without an interrupt: nothing counts them since the driver was loaded.
"""


@dataclass(frozen=True)
class Status:
    """The state of this machine.

    ``enabled`` is what ``lightsleep enable`` keeps since this boot, as one setting, ``by`` and
    ``since`` who changed it last and when. Where only the next boot brings what was enabled,
    ``enabled`` is None, and ``by`` and ``since`` are of that. ``boot_setting`` is what each boot
    brings, and ``boot_files`` load the driver then, whoever wrote them, unless it is
    ``boot_kept_away_by`` others. ``at_boot`` is None where only root may tell. ``files`` are ours,
    ``unreadable`` those which only root may read. ``changed`` are the settings that are kept.
    ``interrupted`` is left of an enable that a crash of the machine ended; ``unfinished`` tells of
    a command that changes settings now, or that has not set back what it changed.
    ``another_build`` is loaded than is installed, as after an upgrade. ``stores`` are
    wakeups without an interrupt per second, at least, by CPU; where they can be told.
    """

    active: bool
    enabled: str | None
    by: str | None
    since: str | None
    at_boot: bool | None
    boot_setting: str | None
    boot_files: list[str]
    boot_kept_away_by: list[str]
    kernels_without_module: list[str]
    interrupted: bool
    unfinished: str | None
    another_build: bool | None
    files: list[str]
    unreadable: list[str]
    changed: list[str]
    scan: Scan
    stores: dict[int, float]
    pays: Pays | None
    obstacles: list[Obstacle]


def read(root: Path) -> Status:
    """Return the status of the machine at ``root``. Raises LightsleepError."""
    scan, _ = collect(root)
    kept = journalled.kept(root)
    header = kept.header if kept else {}
    setting, by, since = IN_FORCE if header.get("later") else ("setting", "user", "since")
    files, unreadable = _our_files(root)
    at_boot = boot.read(root)
    active = facts.lightsleep_idles(scan)
    return Status(
        active=active,
        enabled=header.get(setting),
        by=header.get(by) or header.get("user"),
        since=header.get(since) or header.get("since"),
        at_boot=True if at_boot.files else None if at_boot.denied else False,
        boot_setting=at_boot.setting,
        boot_files=[f"/{name}" for name in at_boot.files],
        boot_kept_away_by=[f"/{name}" for name in at_boot.kept_away_by],
        kernels_without_module=boot.kernels_without_module(root),
        interrupted=files == [OPTIONS_FILE] and not unreadable,
        unfinished=journalled.unfinished(root),
        another_build=is_another_build(root, scan.loading.installed),
        files=[f"/{name}" for name in files],
        unreadable=[f"/{name}" for name in unreadable],
        changed=[name for _, name in kept.undos] if kept else [],
        scan=scan,
        stores=_stores(root) if active and scan.cpus else {},
        pays=pays(scan) if active else None,
        obstacles=[] if active else obstacles(scan),
    )


def _our_files(root: Path) -> tuple[list[str], list[str]]:
    """Return our files that are there, and those which only root may read. Raises LightsleepError.

    On some machines, users may not look into folders of /etc.
    """
    ours, unreadable = [], []
    for name in (OPTIONS_FILE, LOAD_FILE):
        try:
            if is_ours(content_of(root, name)):
                ours.append(name)
        except LightsleepError as error:
            if not isinstance(error.__cause__, PermissionError):
                raise
            unreadable.append(name)
    return ours, unreadable


def _stores(root: Path) -> dict[int, float]:
    with contextlib.closing(Reader(root, None)) as reader:
        before = reader.read()
        time.sleep(LOOK_S)
        found = rates(before, reader.read())
    return {
        x.cpu: x.stores_per_s for x in found if x.cpu is not None and x.stores_per_s is not None
    }


def document(status: Status) -> dict[str, Any]:
    """Return the JSON document of a status, as status.schema.json describes it."""
    fields = {x.name: getattr(status, x.name) for x in dataclasses.fields(status)}
    scan, stores = fields.pop("scan"), fields.pop("stores")
    rest = {
        **fields,
        "pays": dataclasses.asdict(status.pays) if status.pays else None,
        "obstacles": [dataclasses.asdict(x) for x in status.obstacles],
        "driver": scan.cpuidle.driver,
        "governor": scan.cpuidle.governor,
        "parameters": dataclasses.asdict(scan.lightsleep) if scan.lightsleep else None,
        "cpus": [
            {
                "cpu": cpu.number,
                **dataclasses.asdict(cpu.lightsleep or PollStats()),
                "stores_per_s": stores.get(cpu.number),
                "not_polling": not_polling(cpu, scan),
                "always_polling": always_polling(cpu, scan),
            }
            for cpu in (scan.cpus if status.active else [])
        ],
    }
    return headed(SCHEMA, VERSION, rest)
