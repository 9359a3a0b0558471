# SPDX-License-Identifier: GPL-2.0-only
"""Whether lightsleep could load on this machine; if not, why, and what to do about it.

lightsleep is a cpuidle driver in a module, for machines that have no cpuidle driver: mostly
guests. So three things must hold. The kernel's idle loop must ask cpuidle, and no other driver
may be bound to it. A module for the running kernel must be there. And the kernel must accept it.

Each rule looks at the data of a scan and says what is in the way, or nothing. All that apply are
told, in the order in which a user has to deal with them: what cannot be changed without a reboot
comes before what can. ``scan``, ``status``, ``enable`` and ``try`` all ask obstacles().
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lightsleep.scan import explain, facts
from lightsleep.scan.collect import BLACKLIST
from lightsleep.scan.loading import MODULE
from lightsleep.scan.model import Scan
from lightsleep.sources import DKMS_INSTALL


@dataclass(frozen=True)
class Obstacle:
    """One reason why lightsleep cannot be loaded: ``what`` was found, and ``fix`` for it."""

    id: str
    what: str
    fix: str


Reason = tuple[str, str] | None
"""What keeps lightsleep from being loaded, and what to do; None where nothing does."""

ENROLL = (
    "Enroll the key that DKMS signs with: mokutil --import /var/lib/dkms/mok.pub (on Ubuntu "
    "/var/lib/shim-signed/mok/MOK.der), then reboot and confirm at the console. mokutil --test-key "
    "tells whether it is."
)

UNENFORCE = (
    "Remove module.sig_enforce and lockdown= from the kernel command line, and reboot. If neither "
    "is there, a service sets this at boot, or the kernel was built so. Keys that mokutil enrolls "
    "do not help here: without Secure Boot, the kernel ignores them."
)
"""In load_uefi_certs(): "the MOK/MOKx can not be trusted when secure boot is disabled"."""

KERNELS = r"^(6\.([1-9]|1[0-9])|7\.[0-3])([.+~-]|$)"
OLDEST, NEWEST = "6.1", "7.3"
ARCHITECTURES = ("x86_64", "aarch64", "ppc64le")
"""What kernel/dkms-kernels.sh lets DKMS build for: a test compares them."""

TDX_SAFE_SINCE = (6, 3)
"""Since "cpuidle-haltpoll: Replace default_idle() with arch_cpu_idle()"."""

HARDWARE_DRIVERS = {
    "intel_idle": "Booting with intel_idle.max_cstate=0 does not help: acpi_idle is bound then.",
    "acpi_idle": "No option unbinds acpi_idle alone.",
    "powernv_idle": "initcall_blacklist=powernv_processor_idle_init at boot keeps it away.",
    "pseries_idle": "initcall_blacklist=pseries_processor_idle_init at boot keeps it away.",
    "psci_idle": "The device tree or ACPI describes these states.",
}
"""Drivers of the processor's own idle states -> what is known about getting rid of them."""

HAS_MWAIT = (
    "A hypervisor shows MWAIT only to guests that may wait by themselves, so these states cause no "
    "exit."
)
"""What to say of intel_idle in a guest, where acpi_idle may find no states."""

FORCE = "cpuidle_haltpoll.force"
KEEPS_HALTPOLL_AWAY = "initcall_blacklist=haltpoll_init"


def _container(scan: Scan) -> Reason:
    kind = scan.loading.container
    if not kind:
        return None
    return (
        f"this is a container ({kind}), which cannot load modules",
        "Run lightsleep on the host of the container: all containers share its idle CPUs.",
    )


def _no_cpuidle(scan: Scan) -> Reason:
    what = explain.why_no_cpuidle(scan)
    if what is None:
        return None
    if scan.hypervisor == "Xen":
        return (
            what,
            "No option of the kernel changes that, so lightsleep cannot run in this guest. On x86, "
            "it can run in an HVM guest.",
        )
    return what, "Boot a kernel with CONFIG_CPU_IDLE=y, as the kernels of distributions have."


def _cpuidle_off(scan: Scan) -> Reason:
    if not facts.cpuidle_off(scan):
        return None
    return (
        "cpuidle is switched off: cpuidle.off is on the kernel command line",
        "Remove cpuidle.off from the kernel command line, and reboot.",
    )


def _idle_option(scan: Scan) -> Reason:
    option = facts.idle_option(scan)
    if option is None:
        return None
    return (
        f"{option} on the kernel command line decides how CPUs idle",
        f"Remove {option} from the kernel command line, and reboot.",
    )


def _other_driver(scan: Scan) -> Reason:
    driver = scan.cpuidle.driver
    if not driver or driver == facts.LIGHTSLEEP_DRIVER:
        return None
    what = f"the cpuidle driver {driver} is bound, and there can be only one"
    if _gives_way(scan):
        return (
            what,
            "lightsleep enable unloads haltpoll, and lightsleep disable loads it again. To load "
            "lightsleep at every boot, first write the line 'blacklist cpuidle_haltpoll' to a file "
            "such as /etc/modprobe.d/no-haltpoll.conf.",
        )
    if driver == "haltpoll":
        return what, f"It is built into this kernel. {_without_haltpoll(scan)}"
    if why := HARDWARE_DRIVERS.get(driver):
        if driver == "intel_idle" and scan.hypervisor:
            why = HAS_MWAIT
        return (
            f"{what}; {driver} knows the processor's own idle states",
            f"{why} lightsleep serves machines without a driver, such as most guests. Here, try "
            "no-deeper-than:STATE or qos:10us instead: see lightsleep try.",
        )
    return what, f"Unload {driver}, if it is a module: lsmod lists it."


def _without_haltpoll(scan: Scan) -> str:
    """Return how to boot without the haltpoll driver, where it is built in.

    cpuidle-haltpoll.c binds where the host gives KVM_HINTS_REALTIME, or with force=1. The hint is
    in a CPUID leaf, which scan does not read.
    """
    keep_away = f"{KEEPS_HALTPOLL_AWAY} at boot keeps it away"
    if FORCE not in scan.kernel.options or facts.is_off(scan.kernel.options[FORCE]):
        return f"{keep_away}."
    (option,) = facts.words(scan, FORCE)
    return (
        f"Remove {option} from the kernel command line, and reboot. If it is bound even so, the "
        f"host asks for it (KVM_HINTS_REALTIME): {keep_away}."
    )


def _gives_way(scan: Scan) -> bool:
    """Return whether the driver that is bound is one that lightsleep enable unloads."""
    return scan.cpuidle.driver == "haltpoll" and "cpuidle_haltpoll" in scan.loading.unloadable


def _modules(scan: Scan) -> Reason:
    if scan.loading.modules is not False:
        return None
    if scan.loading.modules_disabled:
        return (
            "this kernel loads no modules: kernel.modules_disabled is 1",
            "Only a reboot resets it. If it is 1 again then, find what sets it: sysctl.d(5).",
        )
    return (
        "this kernel loads no modules: there is no /proc/modules",
        "Boot a kernel with CONFIG_MODULES=y, or build one with lightsleep's series of patches.",
    )


def _timers_stop(scan: Scan) -> Reason:
    if scan.loading.loaded or not scan.loading.timers_stop:
        return None
    return (
        "the timers of these CPUs stop when they halt (AMD erratum 400)",
        "Switch C1E off in the firmware.",
    )


def _tdx_guest(scan: Scan) -> Reason:
    version = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", scan.kernel.release or "")
    if scan.loading.loaded or not scan.loading.tdx_guest or version is None:
        return None
    if (int(version[1]), int(version[2])) >= TDX_SAFE_SINCE:
        return None
    return "this kernel exports no halt that is safe in a TDX guest", "Use Linux 6.3 or later."


def _blacklisted(scan: Scan) -> Reason:
    if scan.loading.loaded or BLACKLIST not in scan.kernel.options:
        return None
    return (
        f"{BLACKLIST} on the kernel command line forbids {MODULE}",
        f"Remove {MODULE} from {BLACKLIST}, and reboot. If the machine does not boot without it, "
        "run first: sudo lightsleep disable",
    )


def _unsupported_kernel(scan: Scan) -> Reason:
    here, kernel = scan.loading, scan.kernel
    if here.loaded or here.installed or here.built:
        return None
    supported = f"Linux {OLDEST} to {NEWEST} on {', '.join(ARCHITECTURES)}"
    if kernel.arch and kernel.arch not in ARCHITECTURES:
        what = f"there is no {MODULE} for the architecture {kernel.arch}"
        return what, f"lightsleep supports {supported}."
    if kernel.release and not re.search(KERNELS, kernel.release):
        what = f"there is no {MODULE} for kernel {kernel.release}"
        return (
            what,
            f"lightsleep supports {supported}. Boot such a kernel, or look for a newer version of "
            "lightsleep.",
        )
    return None


def _not_built(scan: Scan) -> Reason:
    here = scan.loading
    if here.loaded or here.installed or here.built or here.headers is None:
        return None
    # What is installed would not help.
    if here.modules is False or _unsupported_kernel(scan):
        return None
    release = scan.kernel.release or "unknown"
    what = f"{MODULE} is not installed for kernel {release}"
    build = f"Install the package lightsleep-dkms, or run: {DKMS_INSTALL}"
    if here.headers:
        return what, f"{build}."
    return (
        f"{what}, and neither are the headers to build it with",
        f"Install linux-headers-{release} (Debian, Ubuntu) or kernel-devel-{release} (Fedora). "
        f"{build}. If the package is there already: sudo dkms autoinstall. If an upgrade removed "
        f"/lib/modules/{release}, boot the installed kernel first.",
    )


def _enforced(scan: Scan) -> str | None:
    """Return what makes this kernel ask for signed modules, None where nothing does."""
    here = scan.loading
    if here.lockdown:
        boot = " under Secure Boot" if here.secure_boot else ""
        return f"the kernel is locked down ({here.lockdown}){boot}"
    if here.sig_enforce:
        return "the kernel enforces signatures of modules (module.sig_enforce)"
    return None


def have_it_accepted(secure_boot: bool | None) -> str:
    """Return what to do where the kernel accepts only signed modules, and rejects our key."""
    return by_secure_boot(secure_boot, ENROLL)


def by_secure_boot(secure_boot: bool | None, under_it: str) -> str:
    """Return what to do where the kernel accepts only signed modules: ``under_it``, or without.

    Both where it is not known whether Secure Boot is on.
    """
    if secure_boot is None:
        both = f"Under Secure Boot: {under_it} Without it: {UNENFORCE}"
        return f"Find out whether Secure Boot is on (mokutil --sb-state). {both}"
    return under_it if secure_boot else UNENFORCE


def _unsigned(scan: Scan) -> Reason:
    enforced = _enforced(scan)
    here = scan.loading
    if here.loaded or not enforced or here.signed is not False:
        return None
    sign = (
        "Have DKMS build it, which signs with a key of its own where openssl and mokutil are "
        f"installed: sudo dpkg-reconfigure lightsleep-dkms, or {DKMS_INSTALL}. {ENROLL} Or switch "
        "Secure Boot off."
    )
    what = f"{enforced}, and /{here.installed or here.built} is not signed"
    return what, by_secure_boot(here.secure_boot, sign)


def _not_enrolled(scan: Scan) -> Reason:
    enforced = _enforced(scan)
    here = scan.loading
    if here.loaded or not enforced or not here.signed or here.enrolled is not False:
        return None
    return (
        f"{enforced}, and the key that signs {MODULE} seems not to be enrolled",
        have_it_accepted(here.secure_boot),
    )


def _not_root(scan: Scan) -> Reason:
    if scan.loading.root is not False:
        return None
    return "only root may load a module", "Run the command with sudo."


RULES: dict[str, Callable[[Scan], Reason]] = {
    "container": _container,
    "no-cpuidle": _no_cpuidle,
    "cpuidle-off": _cpuidle_off,
    "idle-option": _idle_option,
    "other-driver": _other_driver,
    "timers-stop": _timers_stop,
    "tdx-guest": _tdx_guest,
    "no-modules": _modules,
    "blacklisted": _blacklisted,
    "unsupported-kernel": _unsupported_kernel,
    "not-built": _not_built,
    "unsigned": _unsigned,
    "not-enrolled": _not_enrolled,
    "not-root": _not_root,
}


def obstacles(scan: Scan) -> list[Obstacle]:
    """Return what keeps lightsleep from being loaded, or from working, on this machine."""
    return [Obstacle(name, *reason) for name, rule in RULES.items() if (reason := rule(scan))]


OF_THIS_BOOT = ("cpuidle-off", "idle-option", "tdx-guest", "no-modules", "blacklisted")
OF_THIS_KERNEL = ("unsupported-kernel", "not-built")
"""The rules whose obstacles the next boot may not have: another command line, another kernel."""


def _unread_signature(scan: Scan) -> Reason:
    """Say so where a signature decides and cannot be read. No obstacle: the kernel can read it."""
    enforced = _enforced(scan)
    here = scan.loading
    file = here.installed or here.built
    if here.loaded or not enforced or not file or here.signed is not None:
        return None
    return (
        f"{enforced}, and whether /{file} is signed cannot be read",
        f"modinfo -F signer /{file} names who signed it, and prints nothing if nobody did. The "
        "kernel knows, too: lightsleep enable tries to load it.",
    )


def passed_by_enable(scan: Scan) -> set[str]:
    """Return the rules whose obstacles ``sudo lightsleep enable`` gets past by itself."""
    return {"not-root", *(["other-driver"] if _gives_way(scan) else [])}


def in_short(scan: Scan) -> Iterator[tuple[str, str]]:
    """Yield what the top of a scan says: whether lightsleep is active or could load, else why."""
    passed = passed_by_enable(scan)
    found = [x for x in obstacles(scan) if x.id not in passed]
    if not scan.cpus:
        yield "lightsleep", "unknown: /sys/devices/system/cpu shows no CPU"
    elif facts.lightsleep_idles(scan):
        yield "lightsleep", "active: lightsleep status tells whether it pays"
    elif scan.cpuidle.driver == facts.LIGHTSLEEP_DRIVER:
        option = f"{facts.spins(scan)} is on the kernel command line"
        yield "lightsleep", f"loaded, but the idle loop never asks it: {option}"
        yield "what to do", "\n".join(x.fix for x in found)
    elif found:
        yield "lightsleep", "cannot load: " + "; ".join(x.what for x in found)
        yield "what to do", "\n".join(x.fix for x in found)
    elif unread := _unread_signature(scan):
        what, how = unread
        yield "lightsleep", f"unknown: {what}"
        yield "what to do", how
    else:
        place = " in place of haltpoll" if _gives_way(scan) else ""
        only_built = ", until the next boot: it is built, but not installed"
        lasts = only_built if scan.loading.built else ""
        idle = explain.default_idle(scan)
        can = f"can load (lightsleep enable){place}{lasts}"
        here = scan.loading
        if here.modules is None and not (here.installed or here.built):
            can = f"unknown: whether the module can be loaded{place}, a recording does not tell"
        yield "lightsleep", f"{can}; CPUs would poll before {idle}"
