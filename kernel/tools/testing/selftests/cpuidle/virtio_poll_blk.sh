#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# virtio_poll_source in a running kernel: CPUs that poll notice what virtio disks
# have completed. No request is lost or answered twice, whatever happens to the
# device, its switch, the module or the CPUs meanwhile. Disks also stand for all
# devices in tests of the switch, the module, and kernels that poll no device.
#
# Usage: [ROUNDS=20] virtio_poll_blk.sh MODULE-FOLDER [TEST...]
# Needs root, debugfs and a virtio disk that may be read, at least. DISK names
# one that may be taken away from its driver, as well: /dev/vdb if not set.
# ROUNDS: how often a device, CPU or module comes and goes.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"
# shellcheck source=poller.sh disable=SC1091
. "$(dirname "$0")/poller.sh"

MODULES=${1:?usage: $0 MODULE-FOLDER [TEST...]}
shift
# shellcheck source=virtio_source.sh disable=SC1091
. "$(dirname "$0")/virtio_source.sh"

READ=/dev/vda
DISK=${DISK:-/dev/vdb}
ROUNDS=${ROUNDS:-20}
IRQS=/proc/irq
RESCAN=/sys/bus/pci/rescan

polled_again() { # DISK, once it has a driver again
	[ ! "$IN_TREE" ] || load_source
	read_disk "$1" > /dev/null
	wait_for_source "$1"
}

# In the kernel, the first interrupt of a queue makes it a source.
wait_for_source() { # DISK
	for _ in $(seq 20); do
		[ "$(sources_of "$1")" -eq 0 ] || return 0
		sleep 0.1
	done
	return 1
}

virtio_of() { # DISK: its name on the virtio bus
	basename "$(readlink -f "/sys/block/${1#/dev/}/device")"
}

sources_of() { # DISK
	grep -c " $(virtio_of "$1")-" $TABLE
}

# Past the cache, block by block; prints a checksum, and fails unless all of them came.
read_disk() { # DISK [BLOCKS [CPU]]
	copy=$(mktemp)
	${3:+taskset -c "$3"} dd if="$1" of="$copy" bs=4k count="${2:-300}" iflag=direct status=none &&
		[ "$(wc -c < "$copy")" -eq $((${2:-300} * 4096)) ] && md5sum < "$copy"
	came=$?
	rm -f "$copy"
	return $came
}

cpu_of_disk() { # DISK: the one that its first queue interrupts, and so the one that polls it
	irq=$IRQS/$(irq_of "$(virtio_of "$1")-req")
	list=$(cat "$irq/effective_affinity_list" 2> /dev/null || cat "$irq/smp_affinity_list")
	cpus_of "$list" | head -n 1
}

queues_of() { # DISK: those with an interrupt of their own
	grep -c "$(virtio_of "$1")-req" /proc/interrupts
}

# Reads all the time; each time, the data have to be the same.
start_reading() { # DISK
	expected=$(read_disk "$1") || fail "cannot read $1"
	: > "$WRONG"
	: > "$BUSY"
	(while [ -e "$BUSY" ]; do
		got=$(read_disk "$1") || got="not all of it"
		[ "$got" = "$expected" ] || echo "read $got, not $expected" >> "$WRONG"
	done) > /dev/null 2>&1 &
	reader=$!
}

ends_well() {
	rm "$BUSY"
	wait "$reader"
	complaints=$(cat "$WRONG") # of the last read, too
	[ -z "$complaints" ] || fail "$complaints"
}

need_disk() {
	[ -b "$DISK" ] || skip "no $DISK"
}

# shellcheck disable=SC2154 # polling, which begin_requests sets
polls_every_queue() {
	loaded
	for disk in $READ "$DISK"; do
		[ -b "$disk" ] || continue
		for mask in 1 2; do
			taskset $mask dd if="$disk" of=/dev/null bs=4k count=100 iflag=direct status=none
		done
		sleep 0.2
		[ "$(sources_of "$disk")" -eq "$(queues_of "$disk")" ] ||
			fail "not every queue of $disk is polled: $(cat $TABLE)"
		before=$(hits)
		begin_requests "$(cpu_of_disk "$disk")"
		read_disk "$disk" 1000 "$polling" || fail "cannot read $disk"
		end_requests 1000
		[ "$(hits)" -gt "$before" ] ||
			fail_if_it_polls "no look at $disk ever found anything: $(cat $TABLE)"
	done
	cat $TABLE
}

interrupts_of() { # DISK
	total=0
	for number in $(grep "$(virtio_of "$1")-req" /proc/interrupts | grep -o ' [0-9]\+ ' | tr -d ' '); do
		total=$((total + number))
	done
	echo $total
}

interrupts_per_reads() { # VALUE of the switch, PREFIX of the result
	echo "$1" > "$BUS/devices/$(virtio_of $READ)/poll_source"
	read_disk $READ 300 "$polling" > /dev/null
	count=$(interrupts_of $READ)
	read_disk $READ 3000 "$polling" > /dev/null
	reads=$((reads + 3300))
	end_requests $reads
	count=$(($(interrupts_of $READ) - count))
}

spares_interrupts() {
	loaded enable=0
	begin_requests "$(cpu_of_disk $READ)"
	reads=0
	interrupts_per_reads 0
	off=$count
	interrupts_per_reads 1
	on=$count
	interrupts_per_reads 0
	again=$count
	echo "interrupts of 3000 reads: $off off, $on on, $again off again"
	[ $on -lt $((off * 3 / 4)) ] && [ $on -lt $((again * 3 / 4)) ] ||
		fail_if_it_polls "hardly any interrupt was spared: $(cat $TABLE)"
}

obeys_the_switch() {
	loaded enable=0
	switch=$BUS/devices/$(virtio_of $READ)/poll_source
	[ "$(cat "$switch") $(sources_of $READ)" = "0 0" ] || fail "polled by default"
	echo 1 > "$switch" || fail "cannot switch on"
	read_disk $READ > /dev/null
	wait_for_source $READ || fail "on, but not polled"
	for value in '' 2 x -1 99999999999999999999; do
		! env echo "$value" 2> /dev/null > "$switch" || fail "takes '$value'"
	done
	[ "$(cat "$switch")" = 1 ] || fail "a refused value stuck"
	echo 0 > "$switch"
	[ "$(sources_of $READ)" -eq 0 ] || fail "off, but polled"
	[ ! "$IN_TREE" ] || return 0
	unload_source
	[ ! -e "$switch" ] || fail "the switch was left behind"
	rmmod $DRIVER || fail "cannot unload the driver"
}

survives_the_switch() {
	loaded
	start_reading $READ
	for _ in $(seq 100); do
		for value in 0 1; do
			echo $value > "$BUS/devices/$(virtio_of $READ)/poll_source"
		done
	done
	ends_well
}

survives_loading_and_unloading() {
	loaded
	start_reading $READ
	for _ in $(seq "$ROUNDS"); do
		unload_source
		load_source
	done
	ends_well
	unload
}

polls_of_cpu_1() { # of queues of READ
	total=0
	for number in $(grep "^1 $(virtio_of $READ)-" $TABLE | cut -d' ' -f4); do
		total=$((total + number))
	done
	echo $total
}

# Its own queue has just been in use, and may still be, when the CPU goes.
read_on_cpu_1() {
	read="dd if=$READ of=/dev/null bs=4k iflag=direct status=none"
	taskset 2 sh -c "$read count=100; $read count=50 > /dev/null 2>&1 &"
}

each_cpu_has_a_queue() { # of READ
	[ "$(queues_of $READ)" -ge "$(cpus_of "$(cat $CPUS/possible)" | wc -l)" ]
}

survives_hotplug() {
	[ -e $CPUS/cpu1/online ] || skip "CPU 1 cannot go offline"
	undo_at_end "echo 1 > $CPUS/cpu1/online"
	loaded
	read_on_cpu_1 # a queue that was a source before keeps its counts
	wait_for_source $READ
	sleep 0.2
	begin_requests 1
	# shellcheck disable=SC2034 # for fail_if_it_polls
	request_ns=0 # any poll will do
	before=$(polls_of_cpu_1)
	start_reading $READ
	for round in $(seq "$ROUNDS"); do
		read_on_cpu_1
		note_limit
		echo 0 > $CPUS/cpu1/online || fail "round $round: stays online"
		echo 1 > $CPUS/cpu1/online || fail "round $round: stays offline"
	done
	ends_well
	! each_cpu_has_a_queue || [ "$(polls_of_cpu_1)" -gt "$before" ] ||
		fail_if_it_polls "CPU 1 never polled its queue: $(cat $TABLE)"
}

survives_unbinding() {
	need_disk
	loaded
	device=$(virtio_of "$DISK")
	undo_at_end "[ -e $BUS/devices/$device/driver ] || echo $device > $BUS/drivers/virtio_blk/bind"
	for round in $(seq $((ROUNDS / 2))); do
		read_disk "$DISK" 5000 > /dev/null 2>&1 &
		echo "$device" > $BUS/drivers/virtio_blk/unbind || fail "round $round: cannot unbind"
		! grep -q " $device-" $TABLE || fail "round $round: polled without a driver"
		echo "$device" > $BUS/drivers/virtio_blk/bind || fail "round $round: cannot bind"
		wait
		polled_again "$DISK" || fail "round $round: not polled again"
		read_disk "$DISK" || fail "round $round: cannot be read"
	done
}

survives_a_reset() {
	need_disk
	grep -q ' virtio_device_reset_prepare$' /proc/kallsyms || skip "the driver does not survive it"
	reset=$(readlink -f "$BUS/devices/$(virtio_of "$DISK")/..")/reset
	[ -e "$reset" ] || skip "the device cannot be reset"
	loaded
	for round in $(seq $((ROUNDS / 2))); do
		read_disk "$DISK" 2000 > /dev/null 2>&1 &
		echo 1 > "$reset" || fail "round $round: cannot reset"
		wait
		polled_again "$DISK" || fail "round $round: not polled again"
		read_disk "$DISK" || fail "round $round: cannot be read"
	done
}

# The kernel's tracer names who waits for a grace period: not the task that has the locks.
waits_for_nobody_while_a_device_is_unplugged() {
	need_disk
	need_tracer
	grep -q '^synchronize_rcu_tasks' "$TRACE/available_filter_functions" 2> /dev/null ||
		skip "the kernel cannot trace it"
	remove=$(readlink -f "$BUS/devices/$(virtio_of "$DISK")/..")/remove
	[ -e "$remove" ] || skip "the device cannot be unplugged"
	loaded
	undo_at_end "echo nop > $TRACE/current_tracer; echo > $TRACE/set_ftrace_filter"
	undo_at_end "[ -b $DISK ] || echo 1 > $RESCAN"
	echo synchronize_rcu_tasks > "$TRACE/set_ftrace_filter"
	echo function > "$TRACE/current_tracer"
	echo > "$TRACE/trace"
	sh -c 'echo $$; echo 1 > "$0"' "$remove" > "$REPORT" || fail "cannot unplug"
	pid=$(cat "$REPORT")
	sleep 2
	waiters=$(grep -v '^#' "$TRACE/trace")
	echo nop > "$TRACE/current_tracer"
	echo > "$TRACE/set_ftrace_filter"
	echo 1 > "$RESCAN"
	echo "$waiters"
	[ -n "$waiters" ] || fail "nobody waits: the operations are freed too early"
	! echo "$waiters" | grep -q -- "-$pid " || fail "waits with the locks of the device"
	[ -b "$DISK" ] || fail "$DISK did not come back"
	[ "$(sources_of "$DISK")" -gt 0 ] || fail "not polled again"
}

survives_unplugging() {
	need_disk
	remove=$(readlink -f "$BUS/devices/$(virtio_of "$DISK")/..")/remove
	[ -e "$remove" ] || skip "the device cannot be unplugged"
	loaded
	: > "$BUSY"
	(while [ -e "$BUSY" ]; do
		if [ "$IN_TREE" ]; then
			load_source
			unload_source
		else
			insmod "$MODULES/$SOURCE.ko" 2> /dev/null
			rmmod $SOURCE 2> /dev/null
		fi
	done) > /dev/null 2>&1 &
	load=$!
	undo_at_end "[ -b $DISK ] || echo 1 > $RESCAN"
	for round in $(seq "$ROUNDS"); do
		read_disk "$DISK" 2000 > /dev/null 2>&1 &
		echo 1 > "$remove" || fail "round $round: cannot unplug"
		echo 1 > "$RESCAN"
		wait $!
		[ -b "$DISK" ] || fail "round $round: did not come back"
		remove=$(readlink -f "$BUS/devices/$(virtio_of "$DISK")/..")/remove
	done
	rm "$BUSY"
	wait $load
	[ -e /sys/module/$SOURCE ] || load_source
	polled_again "$DISK" || fail "not polled again"
	read_disk "$DISK" || fail "cannot be read"
}

# Only with threadirqs.
polls_no_queue_whose_interrupt_has_a_thread() {
	mark_log
	loaded
	read_disk $READ > /dev/null
	sleep 0.2
	[ "$(wc -l < $TABLE)" -eq 1 ] || fail "polls: $(cat $TABLE)"
	last_message 'virtio_blk.*not polled: its .*(threadirqs' || fail "does not say so"
	read_disk $READ || fail "cannot read $READ"
}

# Only where the kernel polls virtio devices by itself.
refuses_the_module() {
	mark_log
	! insmod "$MODULES/$SOURCE.ko" 2> /dev/null || fail "both change the same rings"
	last_message 'write 1 to the file poll_source' || fail "does not say what to do"
}

# Only for such kernels.
polls_nothing_on_a_realtime_kernel() {
	load_poller
	load_source
	[ "$(wc -l < $TABLE)" -eq 1 ] || fail "polls: $(cat $TABLE)"
	read_disk $READ || fail "cannot read $READ"
}

[ "$(id -u)" = 0 ] || skip_all "needs root"
[ -b $READ ] || skip_all "no $READ"
mount_debugfs
if [ $# = 0 ] && is_realtime; then
	set -- polls_nothing_on_a_realtime_kernel
elif [ $# = 0 ] && interrupts_have_threads; then
	set -- polls_no_queue_whose_interrupt_has_a_thread
elif [ $# = 0 ] && [ "$IN_TREE" ]; then
	set -- polls_every_queue spares_interrupts obeys_the_switch survives_the_switch \
		refuses_the_module survives_hotplug survives_unbinding survives_a_reset \
		survives_unplugging
elif [ $# = 0 ]; then
	set -- polls_every_queue spares_interrupts obeys_the_switch survives_the_switch \
		survives_loading_and_unloading survives_hotplug survives_unbinding survives_a_reset \
		waits_for_nobody_while_a_device_is_unplugged survives_unplugging
fi
name_files
trap restore EXIT
trap 'exit 143' HUP INT PIPE TERM # not every shell runs the trap above then
run_tests "$@"
