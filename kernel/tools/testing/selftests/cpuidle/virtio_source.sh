# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# What the selftests of virtio devices that are poll sources share: the module, who polls, how
# often that found something, and how a test undoes what it has changed. Who polls is the driver
# cpuidle_lightsleep. Where the kernel has that itself (CONFIG_VIRTIO_POLL_SOURCE), it is the idle
# loop, and the switch of each device stands for the module. The folder with the modules is in
# MODULES.

DRIVER=cpuidle_lightsleep
SOURCE=virtio_poll_source
TABLE=/sys/kernel/debug/poll_source
BUS=/sys/bus/virtio
IDLE_POLL=/sys/module/idle_poll/parameters
IN_TREE=
[ -e /sys/module/$SOURCE ] || ! ls $BUS/devices/*/poll_source > /dev/null 2>&1 || IN_TREE=1

switch_all() { # VALUE
	for switch in "$BUS"/devices/*/poll_source; do
		echo "$1" 2> /dev/null > "$switch" # the device may go meanwhile
	done
}

load_source() { # [PARAMETER=VALUE...]
	if [ "$IN_TREE" ]; then
		[ "$*" = enable=0 ] || switch_all 1
	else
		insmod "$MODULES/$SOURCE.ko" "$@" || fail "insmod $SOURCE $* failed"
	fi
}

unload_source() {
	if [ "$IN_TREE" ]; then
		switch_all 0
	elif [ -e /sys/module/$SOURCE ]; then
		rmmod $SOURCE || fail "cannot unload $SOURCE"
	fi
}

unload() {
	unload_source
	if [ "$IN_TREE" ]; then
		echo 0 > $IDLE_POLL/enabled
	elif [ -e /sys/module/$DRIVER ]; then
		rmmod $DRIVER
	fi
}

start_polling() { # in the idle loop
	echo 50000 > /sys/module/poll_source/parameters/peek_budget_ns
	echo 1 > $IDLE_POLL/enabled
	for _ in $(seq 10); do # where the machine is too busy, a cost is assumed
		[ "$(cat $IDLE_POLL/halt_cost_ns)" = 0 ] || break
		sleep 1
	done
}

load_poller() {
	unload
	if [ "$IN_TREE" ]; then
		start_polling
		return
	fi
	insmod "$MODULES/$DRIVER.ko" mode=fixed poll_limit_us=10000 peek_budget_ns=50000 ||
		fail "insmod $DRIVER failed"
}

loaded() { # [PARAMETER=VALUE...] of the source; CPUs always poll first
	need_poll_sources
	load_poller
	load_source "$@"
}

pauses() { # of CPUs whose host needs the core
	cat "$CPUS"/cpu*/idle_poll/contention_pauses 2> /dev/null | tr '\n' ' '
}

# A task makes requests, one after the other, and its CPU is to poll for each.
begin_requests() { # CPU
	polling=$1
	paused=$(pauses)
	read -r begun _ < /proc/uptime
}

# What the CPU has learned from the requests. When it is idle, it soon forgets that: so this comes
# before all other commands.
note_limit() {
	{ read -r limit_ns < "$CPUS/cpu$polling/idle_poll/limit_ns"; } 2> /dev/null || limit_ns=
}

end_requests() { # COUNT
	note_limit
	read -r ended _ < /proc/uptime
	request_ns=$(((${ended%.*}${ended#*.} - ${begun%.*}${begun#*.}) * 10000000 / $1))
}

# The idle loop leaves a busy host its cores, and does not poll where that does not pay: where
# its limit on the CPU of these requests was 0 at their end, or where they take longer.
fail_if_it_polls() { # WORD...
	[ "$paused" = "$(pauses)" ] || skip "the host needs its cores"
	[ "$limit_ns" ] || fail "$@"
	[ "$limit_ns" != 0 ] && [ "$limit_ns" -ge "$request_ns" ] ||
		skip "polling does not pay on this machine: $limit_ns ns for $request_ns ns"
	fail "$@"
}

hits() { # of all sources
	total=0
	for number in $(sed 1d $TABLE | cut -d' ' -f5); do
		total=$((total + number))
	done
	echo $total
}

irq_of() { # QUEUE, or how its name begins
	grep -m 1 "$1" /proc/interrupts | cut -d: -f1 | tr -d ' '
}

undo_at_end() { # COMMAND: when this test has ended, in whatever way
	echo "$*" >> "$UNDO"
}

after_each() {
	rm -f "$BUSY"
	[ ! -e "$UNDO" ] || sh "$UNDO"
	rm -f "$UNDO"
}

name_files() {
	REPORT=$(mktemp)
	BUSY=$REPORT.busy # as long as a process of a test is to go on
	WRONG=$REPORT.wrong # what a reader complains of
	TRAFFIC=$REPORT.traffic # what a ping says that goes on beside the test
	UNDO=$REPORT.undo # commands that undo what a test has changed
}

restore() {
	trap '' HUP INT PIPE TERM
	end_test
	after_each
	rm -f "$LOAD" "$REPORT" "$WRONG" "$TRAFFIC"
	unload
}

mount_debugfs() {
	[ -d /sys/kernel/debug/sched ] || busybox mount -t debugfs none /sys/kernel/debug
}

interrupts_have_threads() {
	grep -qw threadirqs /proc/cmdline
}
