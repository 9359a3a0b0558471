#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# poll_source in a running kernel: a CPU that polls notices the events of a
# device that is a word in memory (test_poll_source), handles them outside idle,
# and loses none, whatever happens to the source or the CPU meanwhile.
#
# Usage: poll_source.sh MODULE-FOLDER [TEST...]
# Needs root, debugfs and two CPUs. The device is on CPU 0, its driver on CPU 1.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"

MODULES=${1:?usage: $0 MODULE-FOLDER [TEST...]}
shift

DRIVER=cpuidle_lightsleep
SOURCE=test_poll_source
TABLE=/sys/kernel/debug/poll_source
PARAMETERS=/sys/module/$DRIVER/parameters
ONLINE=$CPUS/cpu1/online

load_source() { # [PARAMETER=VALUE...]
	taskset 1 insmod "$MODULES/$SOURCE.ko" cpu=1 "$@" || fail "insmod $SOURCE $* failed"
}

unload_source() {
	[ ! -e /sys/module/$SOURCE ] || rmmod $SOURCE
}

unload() {
	unload_source
	[ ! -e /sys/module/$DRIVER ] || rmmod $DRIVER
}

load_driver() { # [PARAMETER=VALUE...]; an emulated CPU is slow, so the budget is large
	unload
	insmod "$MODULES/$DRIVER.ko" peek_budget_ns=50000 "$@" || fail "insmod $DRIVER $* failed"
}

loaded() { # [PARAMETER=VALUE...] of the source; CPU 1 always polls first
	load_driver mode=fixed poll_limit_us=10000
	load_source "$@"
}

of_source() { # PARAMETER
	cat /sys/module/$SOURCE/parameters/"$1"
}

column() { # NAME, of the only source
	number=$(head -n 1 $TABLE | tr ' ' '\n' | grep -nx "$1" | cut -d: -f1)
	sed -n 2p $TABLE | cut -d' ' -f"$number"
}

idle_us() { # of CPU 1, as cpuidle counts it
	sum $CPUS/cpu1/cpuidle/state*/time
}

stat_us() { # FIELD...: of CPU 1 in /proc/stat, counted from 1 (user)
	total=0
	for field in "$@"; do
		total=$((total + $(grep '^cpu1 ' /proc/stat | cut -d' ' -f$((field + 1)))))
	done
	echo $((total * 10000))
}

now_us() {
	echo $(($(cut -d' ' -f1 /proc/uptime | tr -d .) * 10000))
}

parameter() { # of the driver: NAME VALUE
	echo "$2" > "$PARAMETERS/$1" || fail "cannot set $1 to $2"
}

until_it_grows() { # COUNTER of the source: within 5 s
	before=$(of_source "$1")
	for _ in $(seq 50); do
		[ "$(of_source "$1")" -le "$before" ] || return 0
		sleep 0.1
	done
	return 1
}

# Whoever noticed them, no event may be left over.
ends_well() {
	complaints=$(of_source complaints)
	mark_log
	unload_source
	[ "$complaints" -eq 0 ] || fail "$complaints calls in a wrong context"
	said=$(dmesg | sed "1,/$MARK/d" | grep -o '[0-9]* events, [0-9]* noticed')
	[ "${said%% *}" = "$(echo "$said" | cut -d' ' -f3)" ] || fail "of $said"
}

notices_events() {
	loaded
	sleep 2
	[ "$(column name) $(column cpu) $(column state)" = "test 1 on" ] || fail "$(cat $TABLE)"
	[ "$(column hits)" -gt 0 ] || fail "no hit: $(cat $TABLE)"
	[ "$(column peeks)" -ge "$(column hits)" ] || fail "more hits than looks: $(cat $TABLE)"
	echo "$(of_source produced) events, $(of_source notified) interrupts"
	cat $TABLE
	[ "$(of_source notified)" -lt "$(of_source produced)" ] || fail "no interrupt was spared"
	ends_well
}

looks_at_nothing_where_nothing_is_registered() {
	loaded
	unload_source
	[ "$(wc -l < $TABLE)" -eq 1 ] || fail "left behind: $(cat $TABLE)"
	polls=$(cat $CPUS/cpu1/lightsleep/polls)
	pipe_load 1000
	[ "$(cat $CPUS/cpu1/lightsleep/polls)" -gt "$polls" ] || fail "does not poll any more"
}

span() { # of 4 s or more: sets wall, handled, idle (cpuidle), stat (/proc/stat), in us, and noticed
	start=$(now_us) # first and last: to read the rest takes time, too
	handled=$(column handle_ns)
	noticed=$(of_source notified)
	idle=$(idle_us)
	stat=$(stat_us 4 5)
	sleep 4
	stat=$(($(stat_us 4 5) - stat))
	idle=$(($(idle_us) - idle))
	noticed=$(($(of_source notified) - noticed))
	handled=$((($(column handle_ns) - handled) / 1000))
	wall=$(($(now_us) - start))
}

# The handler takes half of the CPU's time, and none of it is idle time. (From 7.3 on, /proc/stat
# takes interrupts of an idle CPU for idle time where the kernel does not account their time:
# then as much as if the device interrupted it.)
handles_outside_idle() {
	loaded period_us=4000 handle_ns=2000000
	sleep 1
	span
	echo "of $wall us, $handled us in the handler, $idle us idle; in /proc/stat $stat us"
	[ $handled -gt $((wall / 10)) ] || fail "the handler hardly ran"
	[ $((idle + handled)) -lt $((wall + wall / 20)) ] || fail "the handler's time is idle time"
	too_much=$((stat + handled - wall))

	parameter linger_us 0
	parameter mode off
	sleep 1
	span
	echo "of $wall us, $noticed interrupts of 2000 us each; in /proc/stat $stat us idle"
	[ $noticed -gt $((wall / 10 / 2000)) ] || fail "the device hardly interrupted"
	too_much_by_interrupt=$((stat + noticed * 2000 - wall))
	[ $too_much_by_interrupt -gt 0 ] || too_much_by_interrupt=0
	[ $too_much -lt $((too_much_by_interrupt + wall / 20)) ] ||
		fail "the handler's time is idle time in /proc/stat"
	ends_well
}

is_interrupt_time() {
	[ "$(grep '^cpu ' /proc/stat | cut -d' ' -f8)" -gt 0 ] ||
		skip "this kernel does not account the time of interrupts"
	loaded period_us=4000 handle_ns=2000000
	handled=$(column handle_ns)
	irq=$(stat_us 6)
	sleep 4
	irq=$(($(stat_us 6) - irq))
	handled=$((($(column handle_ns) - handled) / 1000))
	echo "$handled us in the handler, $irq us of interrupts in /proc/stat"
	[ $irq -gt $((handled * 9 / 10)) ] || fail "the handler's time is not in it"
	ends_well
}

refuses_bad_parameters() {
	load_driver
	for bad in peek_budget_ns=99 peek_budget_ns=1000001 peek_budget_ns=x linger_us=10000001 \
		linger_us=-1 linger_us=; do
		name=${bad%%=*}
		before=$(cat "$PARAMETERS/$name")
		mark_log
		! echo "${bad#*=}" 2> /dev/null > "$PARAMETERS/$name" || fail "takes $bad"
		last_message "$name: must be a number from" || fail "$bad: does not say what it takes"
		[ "$(cat "$PARAMETERS/$name")" = "$before" ] || fail "$bad stuck"
	done
}

# As long as it takes: what ends it here is not the time.
lingers_after_work() {
	loaded period_us=200
	parameter linger_us 0
	sleep 0.5
	lingers=$(column lingers)
	sleep 0.5
	[ "$(column lingers)" -eq "$lingers" ] || fail "lingers with linger_us=0"
	expired=$(column expired)
	parameter linger_us 10000000
	sleep 1
	[ "$(column lingers)" -gt "$lingers" ] || fail "does not linger: $(cat $TABLE)"
	[ "$(column expired)" -eq "$expired" ] || fail "expired at once: $(cat $TABLE)"
	ends_well
}

lingers_no_longer_than_that() {
	loaded period_us=100
	for _ in $(seq 50); do
		taskset 2 sh -c 'while :; do :; done' &
		hog=$!
		until_it_grows notified || { kill $hog; fail "no interrupt on a CPU that is busy"; }
		kill $hog
		sleep 0.1
		[ "$(column expired)" -eq 0 ] || break
	done
	cat $TABLE
	[ "$(column expired)" -gt 0 ] || fail "the time was never over"
	ends_well
}

lingers_not_while_the_cpu_halts() {
	loaded period_us=200
	parameter linger_us 10000000
	sleep 0.5
	lingers=$(column lingers)
	[ "$lingers" -gt 0 ] || fail "does not linger: $(cat $TABLE)"
	parameter mode off
	until_it_grows notified || fail "no interrupt on a CPU that halts"
	ends_well
}

lingers_not_while_the_cpu_is_offline() {
	[ -e "$ONLINE" ] || skip "CPU 1 cannot go offline"
	loaded period_us=200
	parameter linger_us 10000000
	for round in $(seq 10); do
		sleep 0.2
		echo 0 > "$ONLINE" || fail "round $round: stays online"
		state=$(of_source suppressed)
		echo 1 > "$ONLINE" || fail "round $round: stays offline"
		[ "$state" = N ] || fail "round $round: lingers"
	done
	ends_well
}

is_a_wake_to_learn_from() {
	load_driver
	load_source period_us=50
	hits=$(cat $CPUS/cpu1/lightsleep/hits)
	sleep 3
	hits=$(($(cat $CPUS/cpu1/lightsleep/hits) - hits))
	limit=$(cat $CPUS/cpu1/lightsleep/limit_ns)
	echo "$hits hits, limit $limit ns"
	[ "$limit" -gt 0 ] || skip "polling does not pay on this machine"
	[ "$hits" -gt 0 ] || fail "no hit"
	ends_well
}

switches_off_who_is_slow() {
	mark_log
	loaded peek_ns=200000
	for _ in $(seq 100); do
		[ "$(column state)" = on ] || break
		sleep 0.1
	done
	[ "$(column state)" = off ] || fail "still on: $(cat $TABLE)"
	sleep 0.2
	last_message 'poll source test of CPU 1 is switched off' || fail "not named in the log"
	[ "$(column overruns)" -ge 64 ] || fail "switched off for nothing: $(cat $TABLE)"
	peeks=$(column peeks)
	notified=$(of_source notified)
	sleep 1
	[ "$(column peeks)" -eq "$peeks" ] || fail "off, but looked at"
	[ "$(of_source notified)" -gt "$notified" ] || fail "its interrupts do not arrive"
	ends_well
}

keeps_who_is_seldom_slow() {
	loaded peek_ns=200000 slow_every=100
	for _ in $(seq 200); do
		[ "$(column overruns)" -lt 100 ] || break
		sleep 0.1
	done
	cat $TABLE
	[ "$(column overruns)" -ge 100 ] || fail "too slow a machine, or overruns are not counted"
	[ "$(column state)" = on ] || fail "switched off"
	ends_well
}

survives_hotplug() {
	[ -e "$ONLINE" ] || skip "CPU 1 cannot go offline"
	loaded period_us=200
	for round in $(seq 20); do
		echo 0 > "$ONLINE" || fail "round $round: stays online"
		# A source may come and go while its CPU is offline, too.
		if [ $((round % 4)) = 0 ]; then
			unload_source
			load_source period_us=200
		fi
		echo 1 > "$ONLINE" || fail "round $round: stays offline"
	done
	hits=$(column hits)
	sleep 1
	[ "$(column hits)" -gt "$hits" ] || fail "no hit after hotplug"
	ends_well
}

comes_and_goes_while_polled() {
	loaded period_us=100
	for round in $(seq 50); do
		ends_well
		load_source period_us=100
		[ $((round % 10)) != 0 ] || sleep 0.2
	done
	ends_well
}

holds_its_driver() {
	loaded
	! rmmod $DRIVER 2> /dev/null || fail "the driver is gone, the source is not"
	unload_source
	rmmod $DRIVER || fail "cannot unload the driver"
	[ ! -e $TABLE ] || fail "statistics were left behind"
}

refuses_a_cpu_that_is_not_there() {
	load_driver
	! insmod "$MODULES/$SOURCE.ko" cpu=100000 2> /dev/null || fail "takes CPU 100000"
	[ "$(wc -l < $TABLE)" -eq 1 ] || fail "left behind: $(cat $TABLE)"
}

rests_when_its_device_is_silent() {
	load_driver
	load_source period_us=0
	sleep 2
	before=$(sum $CPUS/cpu*/lightsleep/polled_ns)
	sleep 5
	share=$((($(sum $CPUS/cpu*/lightsleep/polled_ns) - before) / 50000 / $(nproc)))
	echo "$share ppm of 5 s polled"
	[ "$share" -lt 20000 ] || fail "polls on an idle machine"
}

# Only for such kernels.
refuses_a_realtime_kernel() {
	load_driver
	! insmod "$MODULES/$SOURCE.ko" cpu=1 2> /dev/null || fail "takes a source"
	[ "$(wc -l < $TABLE)" -eq 1 ] || fail "left behind: $(cat $TABLE)"
}

if [ "$(id -u)" != 0 ]; then
	echo "1..0 # SKIP needs root"
	exit "$KSFT_SKIP"
fi
if [ ! -e $CPUS/cpu1 ]; then
	echo "1..0 # SKIP needs two CPUs"
	exit "$KSFT_SKIP"
fi
[ -d /sys/kernel/debug/sched ] || mount -t debugfs none /sys/kernel/debug

if [ $# = 0 ] && grep -qx 1 /sys/kernel/realtime 2> /dev/null; then
	set -- refuses_a_realtime_kernel
elif [ $# = 0 ]; then
	set -- notices_events looks_at_nothing_where_nothing_is_registered handles_outside_idle \
		is_interrupt_time \
		refuses_bad_parameters lingers_after_work lingers_no_longer_than_that \
		lingers_not_while_the_cpu_halts \
		lingers_not_while_the_cpu_is_offline is_a_wake_to_learn_from switches_off_who_is_slow keeps_who_is_seldom_slow \
		survives_hotplug comes_and_goes_while_polled holds_its_driver \
		refuses_a_cpu_that_is_not_there rests_when_its_device_is_silent
fi
trap 'rm -f "$LOAD"; unload' EXIT
run_tests "$@"
