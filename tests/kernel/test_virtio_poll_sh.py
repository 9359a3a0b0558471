# SPDX-License-Identifier: GPL-2.0-only
"""What virtio_poll_blk.sh and virtio_poll_net.sh make of devices.

Their functions run here, on files of a folder.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from ktap import SELFTESTS
from virtio_guests import DISKS, NETWORKS

FAILED, SKIPPED = 1, 4
TOO_LONG_S = 20


def ran(folder: Path, commands: str, name: str = DISKS) -> subprocess.CompletedProcess[str]:
    """Run commands after the functions of a script, which is told of no device."""
    functions, _, _ = (SELFTESTS / name).read_text().partition('\n[ "$(id -u)" = 0 ]')
    script = f"""
        {functions.replace('$(dirname "$0")', str(SELFTESTS))}
        rm "$LOAD"
        LOAD={folder}/load
        mktemp() {{ echo {folder}/report; }}
        name_files
        unset -f mktemp
        {commands}
    """
    # All of its processes end with it, whatever they wait for.
    return subprocess.run(
        ["timeout", str(TOO_LONG_S), "sh", "-c", script, name, str(folder)],
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("script", [DISKS, NETWORKS])
def test_a_signal_has_what_was_changed_undone(tmp_path: Path, script: str) -> None:
    _, _, traps = (SELFTESTS / script).read_text().partition("\nname_files\n")
    begun, undone = tmp_path / "begun", tmp_path / "undone"
    start_s = time.monotonic()
    done = ran(
        tmp_path,
        f"""
        unload() {{ :; }}
        changes() {{ undo_at_end "touch {undone}"; touch {begun}; sleep 15; }}
        (while [ ! -e {begun} ]; do sleep 0.01; done; kill $$) &
        set -- changes changes
        {traps}
        """,
        script,
    )
    assert (done.returncode, "ok 2" in done.stdout) == (128 + signal.SIGTERM, False)
    assert undone.exists()
    assert time.monotonic() - start_s < 10, "it waits for the end of the test"


def test_what_the_last_read_finds_wrong_is_told(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    done = ran(
        tmp_path,
        f"""
        read_disk() {{
            [ -e "$BUSY" ] || {{ echo right; return; }}
            touch {begun}
            while [ -e "$BUSY" ]; do sleep 0.01; done
            echo wrong
        }}
        start_reading disk
        while [ ! -e {begun} ]; do sleep 0.01; done
        ends_well
        """,
    )
    assert (done.returncode, done.stdout) == (FAILED, "read wrong, not right\n")


def test_reads_that_all_find_the_same_are_no_complaint(tmp_path: Path) -> None:
    done = ran(tmp_path, "read_disk() { echo same; }; start_reading disk; sleep 0.1; ends_well")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("queues", "polls", "status"), [(2, True, 0), (2, False, FAILED), (1, False, 0)]
)
def test_a_cpu_that_goes_offline_was_polling_its_queue(
    tmp_path: Path, queues: int, polls: bool, status: int
) -> None:
    """Where CPUs share a queue, another one may have its interrupts.

    In the kernel, a queue is a source from its first interrupt on, and keeps its old counts.
    """
    (tmp_path / "cpu1").mkdir()
    (tmp_path / "cpu1/online").write_text("1\n")
    (tmp_path / "possible").write_text("0-1\n")
    (tmp_path / "table").write_text("cpu name state polls\n")
    masks = tmp_path / "masks"
    done = ran(
        tmp_path,
        f"""
        CPUS={tmp_path} TABLE={tmp_path}/table ROUNDS=3
        loaded() {{ :; }}
        start_reading() {{ :; }}
        ends_well() {{ :; }}
        virtio_of() {{ echo virtio0; }}
        queues_of() {{ echo {queues}; }}
        taskset() {{
            echo "$1 $(cat {tmp_path}/cpu1/online)" >> {masks}
            if [ "$(sources_of disk)" -eq 0 ]; then
                echo "1 virtio0-req.1 on 3" >> $TABLE
            else
                {"sed -i '$s/3$/4/' $TABLE" if polls else ":"}
            fi
        }}
        survives_hotplug
        """,
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert masks.read_text() == 4 * "2 1\n"


BUSYBOX = """#!/bin/sh
cd {folder}
case $* in
ping*) echo $$ > pid; exec sleep 60 ;;
*show*) echo "2: eth0    inet 10.0.2.15/24 brd 10.0.2.255"; exit ;;
*down) while [ ! -s pid ]; do sleep 0.01; done ;;
esac
echo "$*" >> ran
"""


def with_busybox(folder: Path) -> str:
    """Put a busybox into the folder whose ping never ends; return the PATH that has it first."""
    busybox = folder / "bin/busybox"
    busybox.parent.mkdir()
    busybox.write_text(BUSYBOX.format(folder=folder))
    busybox.chmod(0o755)
    return f"{busybox.parent}:$PATH"


def look_for_ping(folder: Path) -> str:
    return f"""
        sleep 0.1
        ! grep -q sleep "/proc/$(cat {folder}/pid)/cmdline" 2> {folder}/errors ||
            echo "a ping goes on"
    """


def test_a_failure_leaves_the_link_up_and_no_ping_behind(tmp_path: Path) -> None:
    done = ran(
        tmp_path,
        f"""
        PATH={with_busybox(tmp_path)} TABLE={tmp_path}/table
        need_peer() {{ net_device=virtio1; }}
        loaded() {{ : > "$TABLE"; }}
        ping_peer() {{ :; }}
        ( run_tests survives_a_link_that_goes_down )
        {look_for_ping(tmp_path)}
        """,
        NETWORKS,
    )
    assert "# no source any more\n" in done.stdout
    assert (tmp_path / "ran").read_text().splitlines()[-1] == "ip link set eth0 up"
    assert "a ping goes on" not in done.stdout


def test_traffic_that_fails_leaves_no_ping_and_no_cpu_behind(tmp_path: Path) -> None:
    online = tmp_path / "cpu1/online"
    online.parent.mkdir()
    online.write_text("1\n")
    done = ran(
        tmp_path,
        f"""
        PATH={with_busybox(tmp_path)} BUS={tmp_path} CPUS={tmp_path}
        mkdir -p {tmp_path}/devices/virtio1
        need_peer() {{ net_device=virtio1; }}
        loaded() {{ :; }}
        unload_source() {{
            while [ ! -s {tmp_path}/pid ]; do sleep 0.01; done
            echo 0 > {online}
            fail "cannot unload"
        }}
        ( run_tests survives_traffic )
        {look_for_ping(tmp_path)}
        """,
        NETWORKS,
    )
    assert "# cannot unload\n" in done.stdout
    assert online.read_text() == "1\n"
    assert "a ping goes on" not in done.stdout


@pytest.mark.parametrize(("received", "status"), [(3000, 0), (2999, FAILED)])
def test_no_packet_of_the_traffic_may_be_lost(tmp_path: Path, received: int, status: int) -> None:
    done = ran(
        tmp_path,
        f"""
        CPUS={tmp_path} BUS={tmp_path} ROUNDS=2
        mkdir -p {tmp_path}/devices/virtio1
        need_peer() {{ net_device=virtio1; }}
        loaded() {{ :; }}
        load_source() {{ :; }}
        unload_source() {{ :; }}
        ping_peer() {{ :; }}
        busybox() {{ echo "3000 packets transmitted, {received} packets received"; }}
        survives_traffic
        """,
        NETWORKS,
    )
    assert done.returncode == status


def test_a_cpu_comes_back_where_its_test_fails(tmp_path: Path) -> None:
    online = tmp_path / "cpu1/online"
    online.parent.mkdir()
    online.write_text("1\n")
    done = ran(
        tmp_path,
        f"""
        CPUS={tmp_path} TABLE={tmp_path}/table
        : > "$TABLE"
        loaded() {{ :; }}
        wait_for_source() {{ :; }}
        virtio_of() {{ echo virtio0; }}
        read_on_cpu_1() {{ :; }}
        start_reading() {{ echo 0 > {online}; fail "stays offline"; }}
        run_tests survives_hotplug
        """,
    )
    assert "# stays offline\n" in done.stdout
    assert online.read_text() == "1\n"


@pytest.mark.parametrize(
    ("script", "name", "driver"),
    [
        (DISKS, "survives_unbinding", "virtio_blk"),
        (NETWORKS, "survives_unbinding_of_a_network_device", "virtio_net"),
    ],
)
def test_a_failure_gives_the_device_its_driver_back(
    tmp_path: Path, script: str, name: str, driver: str
) -> None:
    drivers = tmp_path / "drivers" / driver
    drivers.mkdir(parents=True)
    done = ran(
        tmp_path,
        f"""
        BUS={tmp_path} TABLE={tmp_path}/table DISK={tmp_path}/disk
        echo "0 virtio1-req.0 on" > "$TABLE"
        need_peer() {{ net_device=virtio1; }}
        need_disk() {{ :; }}
        virtio_of() {{ echo virtio1; }}
        read_disk() {{ :; }}
        loaded() {{ :; }}
        busybox() {{ echo "inet 10.0.2.15/24"; }}
        run_tests {name}
        """,
        script,
    )
    assert "# round 1: polled without a driver\n" in done.stdout
    assert (drivers / "unbind").read_text() == "virtio1\n"
    assert (drivers / "bind").read_text() == "virtio1\n"


def test_a_failure_gives_the_network_device_its_address_back(tmp_path: Path) -> None:
    (tmp_path / "drivers/virtio_net").mkdir(parents=True)
    ran(
        tmp_path,
        f"""
        PATH={with_busybox(tmp_path)} BUS={tmp_path} TABLE={tmp_path}/table
        echo "0 virtio1-req.0 on" > "$TABLE"
        need_peer() {{ net_device=virtio1; }}
        loaded() {{ :; }}
        run_tests survives_unbinding_of_a_network_device
        """,
        NETWORKS,
    )
    *_, address, up = (tmp_path / "ran").read_text().splitlines()
    assert (address, up) == ("ip addr add 10.0.2.15/24 dev eth0", "ip link set eth0 up")


def test_a_failure_leaves_no_tracer_on_and_no_device_unplugged(tmp_path: Path) -> None:
    (tmp_path / "devices/virtio1").mkdir(parents=True)
    (tmp_path / "devices/remove").mkdir()  # nothing can be written to it
    (tmp_path / "available_filter_functions").write_text("synchronize_rcu_tasks\n")
    done = ran(
        tmp_path,
        f"""
        BUS={tmp_path} RESCAN={tmp_path}/rescan DISK={tmp_path}/disk
        need_disk() {{ :; }}
        need_tracer() {{ TRACE={tmp_path}; }}
        virtio_of() {{ echo virtio1; }}
        loaded() {{ :; }}
        run_tests waits_for_nobody_while_a_device_is_unplugged
        """,
    )
    assert "# cannot unplug\n" in done.stdout
    assert (tmp_path / "current_tracer").read_text() == "nop\n"
    assert (tmp_path / "set_ftrace_filter").read_text() == "\n"
    assert (tmp_path / "rescan").read_text() == "1\n"


@pytest.mark.parametrize(
    ("polled", "why"), [("true", "no hit on CPU 1"), ("false", "not polled by CPU 1")]
)
def test_a_failure_gives_the_interrupt_its_mask_back(tmp_path: Path, polled: str, why: str) -> None:
    mask, online = tmp_path / "24/smp_affinity", tmp_path / "cpu1/online"
    for file, text in ((mask, "f\n"), (online, "1\n")):
        file.parent.mkdir()
        file.write_text(text)
    done = ran(
        tmp_path,
        f"""
        IRQS={tmp_path} CPUS={tmp_path} TABLE={tmp_path}/table
        : > "$TABLE"
        need_peer() {{ :; }}
        loaded() {{ :; }}
        irq_of() {{ echo 24; }}
        ping_peer() {{ :; }}
        hits() {{ echo 0; }}
        polled_by() {{ echo 2 > {mask}; echo 0 > {online}; {polled}; }}
        run_tests follows_the_interrupt
        """,
        NETWORKS,
    )
    assert why in done.stdout
    assert (mask.read_text(), online.read_text()) == ("f\n", "1\n")


@pytest.mark.parametrize(
    ("limits_ns", "status", "why"),
    [
        ({0: 50000, 1: 0}, FAILED, "no look ever found anything"),
        ({0: 0, 1: 50000}, SKIPPED, "polling does not pay"),
        # A packet takes 30 us.
        ({0: 20000, 1: 50000}, SKIPPED, "polling does not pay"),
        ({}, FAILED, "no look ever found anything"),
    ],
    ids=["pays", "never", "takes-longer", "module"],
)
def test_the_cpu_of_the_load_is_the_one_that_has_to_poll(
    tmp_path: Path, limits_ns: dict[int, int], status: int, why: str
) -> None:
    """Another one is idle, as long as it likes, and does not poll."""
    for cpu, limit_ns in limits_ns.items():
        statistics = tmp_path / f"cpu{cpu}/idle_poll"
        statistics.mkdir(parents=True)
        (statistics / "limit_ns").write_text(f"{limit_ns}\n")
        (statistics / "contention_pauses").write_text("0\n")
    done = ran(
        tmp_path,
        f"""
        CPUS={tmp_path} TABLE={tmp_path}/table
        echo "0 virtio1-input.0 on" > "$TABLE"
        need_peer() {{ net_device=virtio1; }}
        loaded() {{ :; }}
        hits() {{ echo 7; }}
        end_requests() {{ note_limit; request_ns=30000; }}
        ping_peer() {{ echo "$1 packets, CPU $2"; }}
        polls_a_network_device
        """,
        NETWORKS,
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert why in done.stdout
    assert "500 packets, CPU 0\n" in done.stdout


@pytest.mark.parametrize(
    ("script", "name"),
    [
        *((DISKS, "spares_interrupts"), (DISKS, "survives_hotplug")),
        *((NETWORKS, "polls_a_network_device"), (NETWORKS, "leaves_napi_with_a_timeout_alone")),
        (NETWORKS, "follows_the_interrupt"),
    ],
)
def test_what_a_cpu_forgets_after_the_requests_is_no_excuse(
    tmp_path: Path, script: str, name: str
) -> None:
    """It is idle while the script counts hits, and soon polls no more."""
    own = tmp_path / "cpu1/idle_poll"
    own.mkdir(parents=True)
    (own / "limit_ns").write_text("1000000000\n")
    (own / "contention_pauses").write_text("0\n")
    (tmp_path / "cpu1/online").write_text("1\n")
    (tmp_path / "possible").write_text("0-1\n")
    (tmp_path / "24").mkdir()
    (tmp_path / "24/smp_affinity").write_text("2\n")
    (tmp_path / "devices/virtio0").mkdir(parents=True)
    (tmp_path / "table").write_text(
        "cpu name state polls hits\n1 virtio0-input.0 on 3 7\n1 virtio0-req.0 on 3 7\n"
    )
    requests = f"echo 1000000000 > {own}/limit_ns"
    counting = f"echo 0 > {own}/limit_ns; echo 7"
    done = ran(
        tmp_path,
        f"""
        BUS={tmp_path} CPUS={tmp_path} IRQS={tmp_path} TABLE={tmp_path}/table ROUNDS=2
        need_peer() {{ net_device=virtio0; }}
        for name in loaded taskset sleep start_reading ends_well wait_for_source; do
            eval "$name() {{ :; }}"
        done
        virtio_of() {{ echo virtio0; }}
        queues_of() {{ echo 2; }}
        irq_of() {{ echo 24; }}
        cpu_of_disk() {{ echo 1; }}
        polled_by() {{ :; }}
        read_disk() {{ {requests}; }}
        ping_peer() {{ {requests}; }}
        read_on_cpu_1() {{ {requests}; }}
        hits() {{ {counting}; }}
        interrupts_of() {{ {counting}; }}
        polls_of_net() {{ {counting}; }}
        polls_of_cpu_1() {{ {counting}; }}
        {name}
        """,
        script,
    )
    assert (done.returncode, done.stderr) == (FAILED, "")


@pytest.mark.parametrize(
    ("files", "cpu"),
    [
        ({"effective_affinity_list": "1", "smp_affinity_list": "0-1"}, "1"),
        ({"smp_affinity_list": "2-3"}, "2"),
    ],
)
def test_a_disk_is_read_by_the_cpu_that_it_interrupts(
    tmp_path: Path, files: dict[str, str], cpu: str
) -> None:
    (tmp_path / "25").mkdir()
    for name, text in files.items():
        (tmp_path / "25" / name).write_text(f"{text}\n")
    done = ran(
        tmp_path,
        f"""
        IRQS={tmp_path}
        virtio_of() {{ echo virtio0; }}
        grep() {{ [ "$*" = "-m 1 virtio0-req /proc/interrupts" ] &&
            echo " 25:  7  0  PCI-MSIX-0000:00:01.0  1-edge  virtio0-req.0"; }}
        cpu_of_disk disk
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{cpu}\n", "")


def test_no_interrupt_is_moved_in_a_guest_with_one_cpu(tmp_path: Path) -> None:
    done = ran(
        tmp_path,
        f"""
        CPUS={tmp_path}
        need_peer() {{ :; }}
        loaded() {{ fail "goes on"; }}
        follows_the_interrupt
        """,
        NETWORKS,
    )
    assert (done.returncode, done.stdout) == (SKIPPED, "CPU 1 is not online\n")
