# SPDX-License-Identifier: GPL-2.0-only
"""What in a console log is a splat, and what only looks like one."""

import pytest
from paths import ROOT

from lightsleep.lab.boot import splat

SPLATS = [
    "[    5.000001] BUG: kernel NULL pointer dereference, address: 0000000000000000",
    "[    5.000001][  T123] BUG: KASAN: slab-use-after-free in promote_arm+0x1f/0x30",
    "[    5.000001] BUG: KCSAN: data-race in poll_until [cpuidle_lightsleep] / vprintk_store",
    "[    5.000001] BUG: KCSAN: data-race in ktime_get / __idle_poll",
    "[    5.000001] BUG: KCSAN: data-race in ktime_get.isra.0 / __idle_poll",
    "[    5.000001] BUG: KCSAN: data-race in ktime_get+0x10/0x20 / __idle_poll+0x12/0x40",
    "[    5.000001] BUG: KCSAN: data-race in virtblk_source_start / ktime_get",  # of a patch
    "[    5.000001] BUG: KCSAN: data-race in wake_cost_begin+0x12/0x40",
    "[    5.000001] BUG: sleeping function called from invalid context at mm/slab.h:320",
    "[    5.000001] BUG: scheduling while atomic: swapper/0/0/0x00000002",
    "[   28.000001] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [swapper/0:0]",
    "[    5.000001] NMI watchdog: Watchdog detected hard LOCKUP on cpu 1",
    "[    5.000001] watchdog: Watchdog detected hard LOCKUP on cpu 1",
    "[    5.000001] watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 1",
    "[    5.000001] WARNING: CPU: 1 PID: 0 at kernel/sched/idle.c:233 do_idle+0x1a0/0x2b0",
    "[    5.000001] WARNING: kernel/sched/idle.c:233 at do_idle+0x1a0/0x2b0, CPU#1: swapper/1/0",
    "[    5.000001] WARNING: possible circular locking dependency detected",
    "[    5.000001] WARNING: suspicious RCU usage",
    "[    5.000001] INFO: trying to register non-static key.",
    "[    5.000001] ------------[ cut here ]------------",
    "[    5.000001] kernel BUG at lib/list_debug.c:56!",
    "[    5.000001] list_add corruption. prev->next should be next (ffff888), but was 0.",
    "[    5.000001] Oops: 0000 [#1] PREEMPT SMP NOPTI",
    "[    5.000001] Oops: general protection fault, maybe for address 0xdead: 0000",
    "[    5.000001] general protection fault, probably for non-canonical address 0xdead: 0000 [#1]",
    "[    5.000001] general protection fault: 0000 [#1] SMP PTI",
    "[    5.000001] int3: 0000 [#1] PREEMPT SMP NOPTI",
    "[    5.000001] divide error: 0000 [#1] SMP PTI",
    "[    5.000001] Internal error: Oops: 0000000096000004 [#1] PREEMPT SMP",
    "[    5.000001] Unable to handle kernel NULL pointer dereference at virtual address 00000000",
    "[    5.000001] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100",
    "[    5.000001] Call Trace:",
    "[    5.000001] Call trace:",
    "[   26.000001] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
    "[   26.000001] rcu: INFO: rcu_sched self-detected stall on CPU",
    "[  242.000001] INFO: task insmod:312 blocked for more than 120 seconds.",
    "[    5.000001] UBSAN: array-index-out-of-bounds in drivers/cpuidle/cpuidle.c:99:3",
    "[    5.000001] refcount_t: underflow; use-after-free.",
    '[    5.000001] irq 24: nobody cared (try booting with the "irqpoll" option)',
    "BUG: unable to handle page fault for address: ffffffffc0001000",
    "<4>[    5.000001] WARNING: CPU: 1 PID: 0 at kernel/smp.c:780 smp_call_function+0x2a/0x30",
]

LOOK_ALIKES = [
    "[    5.000001] BUG: KCSAN: data-race in ktime_get_mono_fast_ns / timekeeping_update",
    "[    0.000000] Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on",
    "[    0.000000] RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable to RETBleed",
    "[    0.000000] rcu: Preemptible hierarchical RCU implementation.",
    "[    0.000000] rcu: \tRCU calculated value of scheduler-enlistment delay is 25 jiffies.",
    "[    0.000000] debug: ignoring loglevel setting.",
    "[    0.000000] Kernel command line: console=ttyS0 panic=-1 oops=panic softlockup_panic=1",
    "[    0.000000] Warning: unable to open an initial console.",
    "[    1.000000] EDAC MC: Ver: 3.0.0 DEBUG: off",
    "[    1.000000] cpuidle_lightsleep: module verification failed: signature and/or required key",
    "[    1.000000] acpi PNP0A08:00: fail to add MMCONFIG information, can't access DEBUG: segment",
    "[    1.000000] PM: hibernation: no WARNING: just words",
    "[    1.000000] random: crng init done, no BUG: here",
    "[    1.000000] clocksource: tsc: mask: 0xffffffffffffffff max_cycles: 0x256be2450d9",
    "sched_wake_idle_without_ipi BUG",
    "",
]


@pytest.mark.parametrize("line", SPLATS)
def test_a_splat_is_found(line: str) -> None:
    assert [x.text for x in splat.find(f"[    0.1] Linux version\n{line}\n")] == [line]


@pytest.mark.parametrize("line", LOOK_ALIKES)
def test_a_look_alike_is_not(line: str) -> None:
    assert splat.find(line) == []


def test_of_ones_own_kernel_the_page_says_which_data_races_count() -> None:
    """That of somebody's patch is none of ours, though they may look for it."""
    assert splat.find("[    5.0] BUG: KCSAN: data-race in do_my_idle / my_wake") == []
    said = " ".join((ROOT / "docs/lab.md").read_text().split())
    assert "only those count in which a function of lightsleep takes part" in said


def test_lines_are_counted_from_one_whatever_ends_them() -> None:
    log = "one\r\n[ 1.0] Call Trace:\r\nthree\r\n[ 2.0] Call Trace:\n"
    assert [x.line for x in splat.find(log)] == [2, 4]
    assert str(splat.find(log)[0]) == "console line 2: [ 1.0] Call Trace:"


RACES = [
    "[    1.6] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n[    1.7] Code: fa 41 53 66 <90> e8 c1 ed",
    "[    1.6] int3: 0000 [#1] PREEMPT SMP NOPTI\n[    1.7] Code: fa 41 53 0f <1f> 44 00 00",
]

REAL = [
    "[    1.6] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n[    1.7] Code: cc cc cc cc <cc> cc cc cc",
    "[    1.6] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n[    1.7] Code: fa 41 53 cc <90> e8 c1 ed",
    "[    1.6] Oops: int3: 0000 [#1] SMP\n[    1.7] Code: Unable to access opcode bytes at 0xf8.",
    "[    1.6] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI",
    "[    1.6] Oops: 0000 [#1] PREEMPT SMP NOPTI\n[    1.7] Code: fa 41 53 66 <90> e8 c1 ed",
    *("[    1.6] BUG: bad page state\n" + race for race in RACES),
    "",
]


@pytest.mark.parametrize("log", RACES)
def test_a_breakpoint_that_is_not_in_the_code_is_the_emulators(log: str) -> None:
    assert splat.emulator_raced(f"[    0.0] Linux version\n{log}\n[    1.8] Call Trace:\n")


LATE = "[    0.02] Kernel panic - not syncing: IO-APIC + timer doesn't work!  Boot with apic=debug"


def test_a_timer_that_comes_late_is_the_hosts() -> None:
    assert splat.emulator_was_late(f"[    0.0] Linux version\n{LATE}\n")
    assert not splat.emulator_was_late(f"[    0.0] BUG: bad page state\n{LATE}\n")
    assert not splat.emulator_was_late("[    0.0] Linux version\n")


ASSERTIONS = [
    "qemu-system-x86_64: ../system/physmem.c:2671: iotlb_to_section: Assertion "
    "`section_index < d->map.sections_nb' failed.",
    "**\nERROR:../accel/tcg/cpu-exec.c:1053:cpu_exec_loop: assertion failed: (!have_mmap_lock())",
]


@pytest.mark.parametrize("said", ASSERTIONS)
def test_a_failed_assertion_is_the_emulators(said: str) -> None:
    said = f"qemu-system-x86_64: a warning before\n{said}\n"
    assert splat.emulator_gave_up(said, "[    0.0] Linux version\n")
    assert not splat.emulator_gave_up(said, SPLATS[0])


@pytest.mark.parametrize(
    "said",
    [
        "",
        "qemu-system-x86_64: -drive file=a.c:12: Assertion: no such file",
        "qemu-system-x86_64: terminating on signal 15 from pid 1",
        "qemu-system-x86_64: cannot set up guest memory 'pc.ram': Cannot allocate memory",
    ],
)
def test_what_else_qemu_says_is_no_assertion(said: str) -> None:
    assert not splat.emulator_gave_up(said, "")


@pytest.mark.parametrize("log", REAL)
def test_any_other_is_the_kernels(log: str) -> None:
    assert not splat.emulator_raced(f"[    0.0] Linux version\n{log}\n[    1.8] Call Trace:\n")
