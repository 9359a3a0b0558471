#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# cpuidle-synthetic in a running kernel: states as they were asked for, that they
# really take their latency, what is refused, CPU hotplug, and unloading.
#
# Usage: cpuidle-synthetic.sh MODULE-FOLDER [TEST...]
# Needs root; perf for the load, tracefs to see when timers run.
#
# Whatever ends it, but for SIGKILL, the module is unloaded, and the tracer is as before.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"

MODULES=${1:?usage: $0 MODULE-FOLDER [TEST...]}
shift

MODULE=cpuidle_synthetic
TRACING=/sys/kernel/tracing
INSTANCE=$TRACING/instances/$MODULE-$$ # what others trace is left alone
NAMES=$TRACING/options/record-cmd
ITEM='name:latency_us:residency_us\[:real_latency_us|:never\]'

WORK=$(mktemp -d)
trap 'rm -rf "$LOAD" "$WORK"' EXIT # so far

unload() {
	[ ! -e /sys/module/$MODULE ] || rmmod $MODULE
}

give_back_names() {
	[ ! -s "$WORK/names" ] || cat "$WORK/names" > $NAMES
	rm -f "$WORK/names"
}

after_each() {
	[ ! -s "$LOAD" ] || kill -- "-$(cat "$LOAD")"
	: > "$LOAD"
	give_back_names
	[ ! -d "$INSTANCE" ] || rmdir "$INSTANCE"
}

restore() { # what was found
	trap '' HUP INT PIPE TERM
	end_test
	after_each
	unload
	unmount_all
	rm -rf "$LOAD" "$WORK"
}

# Each load makes the kernel patch its code, which some emulators do not like.
loaded() { # STATES, with all four fields if several tests in a row can share one load
	[ "$(cat /sys/module/$MODULE/parameters/states 2> /dev/null)" != "$1" ] || return 0
	unload
	insmod "$MODULES/$MODULE.ko" states="$1" || fail "insmod $MODULE states=$1 failed"
}

refuses() { # STATES MESSAGE
	mark_log
	! insmod "$MODULES/$MODULE.ko" states="$1" 2> /dev/null || fail "takes '$1'"
	[ ! -e /sys/module/$MODULE ] || fail "half loaded after '$1'"
	last_message "$MODULE: states: $2" || fail "'$1' is refused without '$2'"
	last_message "$MODULE: states: an item is $ITEM" || fail "'$1': does not say what is accepted"
}

TEN=C1:2:2:2,C2-a:20:40:40,C3.b:200:400:never,C_4:2000:10000:0,c5:2001:10001:5,6:2002:10002:6
TEN=$TEN,c7:2003:10003:7,c8:2004:10004:8,c9:2005:10005:9,fifteen-letters:100000:10000000:100000

shows_the_states_as_given() {
	loaded "$TEN"
	[ "$(cat $CPUS/cpuidle/current_driver)" = synthetic ] || fail "not the current driver"
	given=$(echo "$TEN" | tr , '\n' | cut -d: -f-3)
	for cpu in "$CPUS"/cpu[0-9]*; do
		shown=$(for state in "$cpu"/cpuidle/state?; do
			echo "$(cat "$state/name"):$(cat "$state/latency"):$(cat "$state/residency")"
		done)
		[ "$shown" = "$given" ] || fail "$cpu: $shown"
	done
	[ "$(cat $CPUS/cpu0/cpuidle/state1/desc)" = "synthetic, takes 40 us" ] || fail "desc of a lie"
	[ "$(cat $CPUS/cpu0/cpuidle/state2/desc)" = "synthetic, never entered" ] || fail "desc of never"
	[ "$(cat /sys/module/$MODULE/parameters/states)" = "$TEN" ] ||
		fail "the parameter is $(cat /sys/module/$MODULE/parameters/states)"
	! echo C1:1:1 2> /dev/null > /sys/module/$MODULE/parameters/states || fail "can be changed"
	sleep 1
}

refuses_nonsense() {
	unload
	refuses "$TEN,b:100000:10000000" 'item 11, .*: there can be 10 states at most'
	refuses '' 'item 1, "": the name is missing'
	refuses 'C1:1:1,' 'item 2, "": the name is missing'
	refuses ',C1:1:1' 'item 1, "": the name is missing'
	refuses ':1:1' 'item 1, ":1:1": the name is missing'
	refuses '"C 1:1:1"' "item 1, \"C 1:1:1\": a name can have letters"
	refuses 'C/1:1:1' "item 1, \"C/1:1:1\": a name can have letters"
	refuses 'sixteen-letters-:1:1' 'item 1, .*: a name can have 15 characters at most'
	refuses 'C1:1:1,C2:2:2,C1:3:3' 'item 3, "C1:3:3": an earlier item has this name'
	for number in '' -1 x 0x1 1.5 1e3 +1 100001 4294967297 99999999999999999999; do
		refuses "C1:$number:1" 'item 1, .*: latency_us must be a number from 0 to 100000$'
		refuses "C1:1:1:$number" \
			'item 1, .*: real_latency_us must be a number from 0 to 100000, or never$'
	done
	refuses 'C1' 'item 1, "C1": latency_us must be a number'
	refuses 'C1:1' 'item 1, "C1:1": residency_us must be a number'
	refuses 'C1:1:10000001' 'item 1, .*: residency_us must be a number from 0 to 10000000$'
	refuses 'C1:1:4294967297' 'item 1, .*: residency_us must be a number'
	refuses 'C1:1:1:NEVER' 'item 1, .*: real_latency_us must be'
	refuses 'C1:1:1:1:1' 'item 1, .*: there are more than four fields'
	refuses 'C1:5:3' 'item 1, "C1:5:3": the residency is below the latency'
	refuses 'C1:5:6,C2:5:9' 'item 2, "C2:5:9": the latency must be above that of the previous item'
	refuses 'C1:5:9,C2:6:9' 'item 2, "C2:6:9": the residency must be above that of the previous item'
	refuses "$(head -c 900 /dev/zero | tr '\0' x)" 'item 1, "x*": a name can have 15 characters'
	mark_log
	! insmod "$MODULES/$MODULE.ko" 2> /dev/null || fail "loads without states"
	last_message "$MODULE: states: is missing; give name:latency_us" || fail "does not say what is missing"
}

survives_random_parameters() {
	unload
	taken=0
	for n in $(seq 60); do
		# Bytes that mean something here make better garbage than any others.
		garbage=$(tr -dc 'C12:,. nevr-' < /dev/urandom | head -c $((n % 23 + 1)))
		[ $((n % 3)) != 0 ] || garbage=C1:1:1,$garbage
		[ $((n % 4)) != 0 ] || garbage=C:$((n % 7)):$((n % 11)),D:$((n % 13)):$((n % 17))
		[ $((n % 5)) != 0 ] || garbage=$(head -c "$n" /dev/urandom | tr -d '\0')
		! insmod "$MODULES/$MODULE.ko" states="$garbage" 2> /dev/null || taken=$((taken + 1))
		unload
	done
	echo "$taken of 60 are states"
	[ "$(cat $CPUS/cpuidle/current_driver)" = none ] || fail "a driver was left behind"
}

only() { # STATE: disables all others
	for state in $CPUS/cpu0/cpuidle/state?; do
		index=${state#"${state%?}"}
		disable "$index" $((index != $1))
	done
}

enters_each_state() {
	loaded C1:2:2:2,C2:20:20:20,C3:200:200:200
	for number in 0 1 2; do
		only "$number"
		sleep 1
		before=$(usage "$number")
		others=$(($(usage 0) + $(usage 1) + $(usage 2) - before))
		pipe_load 200
		sleep 1
		after=$(usage "$number")
		[ "$after" -gt "$before" ] || fail "state $number is never entered"
		# Governors fall back on state 0 whatever is disabled.
		[ "$number" = 0 ] || [ $(($(usage 1) + $(usage 2) - after)) -le "$others" ] ||
			fail "a disabled state is entered"
	done
	disable 0 0
	disable 1 0
}

now_ms() {
	read -r up _ < /proc/uptime
	echo "${up%.*}$(echo "${up#*.}0" | cut -c-3)"
}

round_trips_ms() { # COUNT: between two CPUs; each is idle while the other is awake
	mkfifo "$WORK/there" "$WORK/back"
	# shellcheck disable=SC2016
	taskset -c 1 sh -c 'while read -r line; do echo "$line" >&4; done \
		< "$1/there" 4> "$1/back"' sh "$WORK" &
	begin=$(now_ms)
	# shellcheck disable=SC2016
	taskset -c 0 sh -c 'for n in $(seq "$1"); do echo "$n" >&3; read -r n <&4; done \
		3> "$2/there" 4< "$2/back"' sh "$1" "$WORK"
	echo $(($(now_ms) - begin))
	wait
	rm "$WORK/there" "$WORK/back"
}

delays_a_woken_thread() {
	[ -e $CPUS/cpu1 ] || skip "one CPU only"
	loaded liar:1:1:50000
	took=$(round_trips_ms 20)
	# Two wakes in a round trip, but who is on the way out of idle already owes less.
	[ "$took" -ge 1000 ] || fail "20 round trips took $took ms only"
}

# Else the scheduler is traced, too, to learn the names of threads. An instance has what the tracer
# had when it was made, and no such option of its own.
begin_to_trace() {
	cat $NAMES > "$WORK/names"
	echo 0 > $NAMES
	mkdir "$INSTANCE" || fail "no instance of the tracer"
	give_back_names
}

trace_timers() { # on an idle machine; writes "start|expire TIMER TIME" for each
	echo 1 > "$INSTANCE/events/timer/hrtimer_start/enable"
	echo 1 > "$INSTANCE/events/timer/hrtimer_expire_entry/enable"
	sleep 3
	echo 0 > "$INSTANCE/events/timer/enable"
	sed -n 's/.*hrtimer_start: hrtimer=0*\([^ ]*\) .* expires=\([0-9]*\) .*/start \1 \2/p
		s/.*hrtimer_expire_entry: hrtimer=0*\([^ ]*\) .* now=\([0-9]*\).*/expire \1 \2/p' \
		"$INSTANCE/trace"
}

timers_are_late() { # by 50 ms, on an idle machine
	mount_until_end tracefs $TRACING || skip "no tracefs"
	[ -e $TRACING/events/timer ] || skip "no events of timers"
	begin_to_trace
	trace_timers > "$WORK/timers"
	ran=0
	late=0
	while read -r event timer time; do
		due=
		case $event in
		start) eval "due_$timer=$time" ;;
		expire) eval "due=\${due_$timer-}" ;;
		esac
		[ -n "$due" ] || continue
		ran=$((ran + 1))
		[ $((time - due)) -lt 50000000 ] || late=$((late + 1))
	done < "$WORK/timers"
	echo "$late of $ran timers are late by 50 ms"
	[ "$ran" -gt 0 ] || fail "no timer ran"
	# The others met a CPU that was awake, or on its way out of idle. Where the latency passes
	# after the handler, one in thirty is late.
	[ $((late * 5)) -gt "$ran" ] || fail "they are served before the latency"
}

delays_timers() {
	loaded liar:1:1:50000
	timers_are_late
}

delays_timers_without_halting() {
	unload
	insmod "$MODULES/$MODULE.ko" spin=1 states=liar:1:1:50000 || fail "does not load with spin=1"
	before=$(usage 0)
	timers_are_late
	[ "$(usage 0)" -gt "$before" ] || fail "the state is never entered"
	rmmod $MODULE
}

comes_and_goes_without_halting() {
	need_hotplug
	for round in $(seq 3); do
		unload
		insmod "$MODULES/$MODULE.ko" spin=1 states=C1:2:2 || fail "does not load with spin=1"
		for online in "$CPUS"/cpu*/online; do
			echo 0 > "$online" || fail "round $round: $online: stays online"
			echo 1 > "$online" || fail "round $round: $online: stays offline"
		done
		sleep 1
		for cpu in "$CPUS"/cpu[0-9]*; do
			[ "$(cat "$cpu/cpuidle/state0/usage")" -gt 0 ] || fail "$cpu is not idled by us"
		done
		rmmod $MODULE || fail "round $round: rmmod failed"
	done
	pipe_load 500
}

never_enters_what_refuses() {
	loaded C1:2:2,C2:20:20:never
	only 1
	sleep 1
	# CPUs that never halt: an emulator that runs them in turn is slow.
	pipe_load 20
	[ "$(usage 1)" = 0 ] || fail "entered $(usage 1) times"
	[ "$(sum $CPUS/cpu*/cpuidle/state1/rejected)" -gt 0 ] || fail "never tried"
	# Not even where there is nothing else.
	loaded C1:2:2:never
	sleep 2
	[ "$(usage 0)" = 0 ] || fail "entered $(usage 0) times"
	[ "$(sum $CPUS/cpu*/cpuidle/state0/rejected)" -gt 0 ] || fail "never tried"
}

survives_hotplug_under_load() {
	need_hotplug
	loaded C1:2:2:2,C2:20:20:20,C3:200:200:200
	start_load
	for _ in $(seq 10); do
		for online in "$CPUS"/cpu*/online; do
			echo 0 > "$online" || fail "$online: stays online"
			echo 1 > "$online" || fail "$online: stays offline"
		done
	done
	after_each
	sleep 1
	for cpu in "$CPUS"/cpu[0-9]*; do
		[ "$(sum "$cpu"/cpuidle/state*/usage)" -gt 0 ] || fail "$cpu is not idled by us"
	done
}

loads_and_unloads_under_load() {
	unload
	start_load
	for round in $(seq 10); do
		loaded C1:2:2,C2:200:200
		rmmod $MODULE || fail "round $round: rmmod failed"
	done
	after_each
	[ "$(cat $CPUS/cpuidle/current_driver)" = none ] || fail "a driver was left behind"
	pipe_load 500
}

excludes_cpuidle_lightsleep() {
	unload
	mark_log
	insmod "$MODULES/cpuidle_lightsleep.ko"
	! insmod "$MODULES/$MODULE.ko" states=C1:1:1 2> /dev/null || fail "loads beside lightsleep"
	last_message "$MODULE: the cpuidle driver lightsleep is in use: unload" ||
		fail "does not say who has the CPUs"
	rmmod cpuidle_lightsleep
	loaded only:0:0
	[ "$(cat $CPUS/cpu0/cpuidle/state?/name)" = only ] || fail "more than the one state"
	! insmod "$MODULES/cpuidle_lightsleep.ko" 2> /dev/null || fail "lightsleep loads beside us"
	last_message 'cpuidle_lightsleep: the cpuidle driver synthetic is in use: unload' ||
		fail "lightsleep does not say who has the CPUs"
}

# Only for kernels booted with the option in question.

refuses_idle_override() {
	option=$(grep -oE 'idle=[a-z]+|powersave=off' /proc/cmdline) ||
		skip "no such option on the command line"
	mark_log
	! insmod "$MODULES/$MODULE.ko" states=C1:1:1 2> /dev/null || fail "loads with $option"
	last_message "$option on the command line" || fail "does not name $option"
}

if [ "$(id -u)" != 0 ]; then
	echo "1..0 # SKIP needs root"
	exit "$KSFT_SKIP"
fi

if [ $# = 0 ]; then
	set -- shows_the_states_as_given refuses_nonsense survives_random_parameters \
		enters_each_state survives_hotplug_under_load delays_a_woken_thread delays_timers \
		delays_timers_without_halting comes_and_goes_without_halting \
		never_enters_what_refuses loads_and_unloads_under_load excludes_cpuidle_lightsleep
fi
trap restore EXIT
trap 'exit 143' HUP INT PIPE TERM # not every shell runs the trap above then
run_tests "$@"
