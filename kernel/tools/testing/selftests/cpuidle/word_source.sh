# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# What the selftests of poll sources share: a device that is a word in memory
# (test_poll_source), and who polls. That is the idle loop where the kernel has poll sources
# (CONFIG_POLL_SOURCE), else the driver cpuidle_lightsleep. The device is on CPU 0, its
# driver on CPU 1. The folder with the modules is in MODULES.

DRIVER=cpuidle_lightsleep
SOURCE=test_poll_source
TABLE=/sys/kernel/debug/poll_source
IDLE_POLL=/sys/module/idle_poll/parameters/enabled
if [ -d /sys/module/poll_source ]; then
	IN_TREE=1
	PARAMETERS=/sys/module/poll_source/parameters
	STATISTICS=$CPUS/cpu1/idle_poll
else
	IN_TREE=
	PARAMETERS=/sys/module/$DRIVER/parameters
	STATISTICS=$CPUS/cpu1/lightsleep
fi

# The idle loop decides by itself whether to poll, by how soon tasks run: so each event wakes one there.
load_source() { # [PARAMETER=VALUE...]
	need_poll_sources
	taskset 1 insmod "$MODULES/$SOURCE.ko" cpu=1 ${IN_TREE:+wakes=1} "$@" ||
		fail "insmod $SOURCE $* failed"
}

unload_source() {
	[ ! -e /sys/module/$SOURCE ] || rmmod $SOURCE
}

unload() {
	unload_source
	if [ "$IN_TREE" ]; then
		stop_polling
	elif [ -e /sys/module/$DRIVER ]; then
		rmmod $DRIVER
	fi
}

stop_polling() {
	if [ "$IN_TREE" ]; then
		echo 0 > $IDLE_POLL
	else
		parameter mode off
	fi
}

load_driver() { # [PARAMETER=VALUE...]; an emulated CPU is slow, so the budget is large
	unload
	if [ "$IN_TREE" ]; then
		start_polling
	else
		insmod "$MODULES/$DRIVER.ko" peek_budget_ns=50000 "$@" ||
			fail "insmod $DRIVER $* failed"
	fi
}

start_polling() { # in the idle loop
	parameter peek_budget_ns 50000
	parameter hold_us 2000
	echo 1 > $IDLE_POLL
	for _ in $(seq 10); do # where the machine is too busy, a cost is assumed
		[ "$(cat "${IDLE_POLL%/*}/halt_cost_ns")" = 0 ] || break
		sleep 1
	done
}

loaded() { # [PARAMETER=VALUE...] of the source; CPU 1 always polls first
	load_driver mode=fixed poll_limit_us=10000
	if [ "$IN_TREE" ]; then
		load_source period_us=100 "$@"
		it_polls
	else
		load_source "$@"
	fi
}

it_polls() { # CPU 1, now and then
	pauses=$(cat $STATISTICS/contention_pauses)
	for _ in $(seq 100); do
		[ "$(column polls)" -lt 100 ] || return 0
		[ "$(column state)" = on ] || return 0
		sleep 0.1
	done
	[ "$(cat $STATISTICS/contention_pauses)" = "$pauses" ] || skip "the host needs its cores"
	[ "$(cat $STATISTICS/limit_ns)" != 0 ] || skip "polling does not pay on this machine"
	fail "hardly polls: $(cat $TABLE)"
}

of_source() { # PARAMETER
	cat /sys/module/$SOURCE/parameters/"$1"
}

column() { # NAME [SOURCE]
	number=$(head -n 1 $TABLE | tr ' ' '\n' | grep -nx "$1" | cut -d: -f1)
	grep -m 1 " ${2:-test} " $TABLE | cut -d' ' -f"$number"
}

parameter() { # of the driver: NAME VALUE
	echo "$2" > "$PARAMETERS/$1" || fail "cannot set $1 to $2"
}

# Whoever noticed them, no event may be left over.
ends_well() {
	complaints=$(of_source complaints)
	mark_log
	unload_source || fail "cannot be unloaded"
	[ "$complaints" -eq 0 ] || fail "$complaints calls in a wrong context"
	said=$(dmesg | sed "1,/$MARK/d" | grep -o '[0-9]* events, [0-9]* noticed')
	[ -n "$said" ] || fail "the log has no account of events"
	[ "${said%% *}" = "$(echo "$said" | cut -d' ' -f3)" ] || fail "of $said"
}

# Only for such kernels.
refuses_a_realtime_kernel() {
	load_driver
	! insmod "$MODULES/$SOURCE.ko" cpu=1 2> /dev/null || fail "takes a source"
	[ "$(wc -l < $TABLE)" -eq 1 ] || fail "left behind: $(cat $TABLE)"
}

need_what_sources_need() {
	[ "$(id -u)" = 0 ] || skip_all "needs root"
	[ -e $CPUS/cpu1 ] || skip_all "needs two CPUs"
	[ -d /sys/kernel/debug/sched ] || mount -t debugfs none /sys/kernel/debug
}
