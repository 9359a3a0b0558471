#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# cpuidle-lightsleep in a running kernel: both states, their accounting, the
# parameters, governors, latency QoS, CPU hotplug, unloading, and what it refuses.
#
# Usage: [ROUNDS=100] cpuidle-lightsleep.sh MODULE-FOLDER [TEST...]
# Needs root, and perf for the load. ROUNDS: how often to load and unload.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"
# shellcheck source=poller.sh disable=SC1091
. "$(dirname "$0")/poller.sh"

MODULES=${1:?usage: $0 MODULE-FOLDER [TEST...]}
shift
# shellcheck source=lightsleep.sh disable=SC1091
. "$(dirname "$0")/lightsleep.sh"
ROUNDS=${ROUNDS:-100}

binds_and_names_its_states() {
	loaded
	[ "$(cat $CPUS/cpuidle/current_driver)" = lightsleep ] || fail "not the current driver"
	for cpu in "$CPUS"/cpu[0-9]*; do
		[ "$(cat "$cpu"/cpuidle/state*/name | tr '\n' ' ')" = "POLL HALT " ] ||
			fail "$cpu: states are $(cat "$cpu"/cpuidle/state*/name)"
		[ -d "$cpu/lightsleep" ] || fail "$cpu: no statistics"
	done
}

enters_both_states() {
	loaded
	polls=$(usage 0)
	halts=$(usage 1)
	for _ in $(seq 5); do
		pipe_load 5000
		sleep 1
		[ "$(statistic hits)" = 0 ] || break
	done
	[ "$(usage 0)" -gt "$polls" ] || fail "never polled"
	[ "$(usage 1)" -gt "$halts" ] || fail "never halted"
	[ "$(statistic hits)" = 0 ] || return 0
	[ "$(statistic contention_pauses)" = 0 ] || skip "the host is short of cores"
	fail "no poll ever saw a wake"
}

accounts_for_its_time() {
	loaded
	pipe_load
	sleep 2
	for cpu in "$CPUS"/cpu[0-9]*; do
		# Statistics lag behind by one idle period, so read them first.
		polled_us=$(($(cat "$cpu/lightsleep/polled_ns") / 1000))
		polls=$(cat "$cpu/lightsleep/polls")
		hits=$(cat "$cpu/lightsleep/hits")
		wasted=$(cat "$cpu/lightsleep/wasted_ns")
		polled=$(cat "$cpu/lightsleep/polled_ns")
		poll_us=$(cat "$cpu/cpuidle/state0/time")
		halt_us=$(cat "$cpu/cpuidle/state1/time")
		uptime_us=$((($(cut -d. -f1 /proc/uptime) + 1) * 1000000))
		[ "$hits" -le "$polls" ] || fail "$cpu: $hits hits in $polls polls"
		[ "$wasted" -le "$polled" ] || fail "$cpu: $wasted ns wasted of $polled"
		[ "$polled_us" -le "$((poll_us + 1))" ] ||
			fail "$cpu: polled $polled_us us, but POLL lasted $poll_us us"
		[ $((poll_us + halt_us)) -le "$uptime_us" ] ||
			fail "$cpu: idle for $poll_us + $halt_us us of $uptime_us us"
		[ "$halt_us" -gt 0 ] || fail "$cpu: no time in HALT"
	done
}

shows_all_counters_in_one_line() {
	loaded
	pipe_load
	for cpu in "$CPUS"/cpu[0-9]*; do
		files=
		for name in polls hits halts polled_ns wasted_ns; do
			files="$files $cpu/lightsleep/$name"
		done
		states="$cpu/cpuidle/state0/usage $cpu/cpuidle/state0/time"
		states="$states $cpu/cpuidle/state1/usage $cpu/cpuidle/state1/time"
		states="$states $cpu/lightsleep/paused_ns"
		# shellcheck disable=SC2086 # names without blanks
		before=$(cat $files $states)
		read -r polls hits halts polled wasted _ _ counts < "$cpu/lightsleep/stat"
		# shellcheck disable=SC2086
		after=$(cat $files $states)
		at=0
		left=${counts##* }
		for count in $polls $hits $halts $polled $wasted ${counts% *}; do
			at=$((at + 1))
			least=$(echo "$before" | sed -n ${at}p)
			most=$(echo "$after" | sed -n ${at}p)
			[ "$least" -le "$count" ] && [ "$count" -le "$most" ] ||
				fail "$cpu: number $at of stat is $count, its file $least to $most"
		done
		[ $at -eq 10 ] || fail "$cpu: stat has $at counters: $(cat "$cpu/lightsleep/stat")"
		[ "$left" -ge 0 ] && [ "$left" -le 17000 ] || fail "$cpu: $left ms of a pause are left"
	done
	set_parameter mode fixed
	set_parameter poll_limit_us 77
	limit_is 77000 || fail "the limit does not follow"
	read -r _ _ _ _ _ limit cost _ < $CPUS/cpu0/lightsleep/stat
	[ "$limit" = 77000 ] || fail "the limit of stat is $limit"
	[ "$cost" = "$(cat $CPUS/cpu0/lightsleep/halt_cost_ns)" ] || fail "the cost of stat is $cost"
}

# Whoever measures: it is the limit without a measurement.
limit_is() { # NS
	[ "$(cat $CPUS/cpu0/lightsleep/limit_ns)" = "$1" ]
}

# At rest, nearly no poll sees the end of its idle period: a halt follows.
tells_what_was_polled_in_vain() {
	loaded mode=fixed poll_limit_us=500
	sleep 3 # it may still measure, and what that polls does not count
	polled=$(statistic polled_ns)
	wasted=$(statistic wasted_ns)
	sleep 3
	polled=$(($(statistic polled_ns) - polled))
	wasted=$(($(statistic wasted_ns) - wasted))
	echo "at rest, $wasted of $polled ns polled in vain"
	[ $polled -gt 0 ] || fail "does not poll"
	# Nearly all of it, but less where the guest has to share its CPUs.
	[ $((4 * wasted)) -gt $polled ] || fail "only $wasted of $polled ns in vain"
}

takes_parameters_at_run_time() {
	loaded mode=fixed poll_limit_us=77
	[ "$(parameter mode) $(parameter poll_limit_us)" = "fixed 77" ] || fail "lost at load"
	limit_is 77000 || fail "the limit does not follow"
	set_parameter poll_limit_us 10000 || fail "10000 refused"
	limit_is 10000000 || fail "the limit does not follow"
	set_parameter mode off || fail "off refused"
	limit_is 0 || fail "off, and a limit"
	# Whatever the governor chooses: menu of 6.1 prefers POLL for short waits, as haltpoll does.
	before=$(cat $CPUS/cpuidle/current_governor)
	# shellcheck disable=SC2013 # the file has one line of words
	for governor in $(cat $CPUS/cpuidle/available_governors); do
		echo "$governor" > $CPUS/cpuidle/current_governor || fail "cannot switch to $governor"
		pipe_load 100
		polls=$(statistic polls)
		pipe_load
		polls=$(($(statistic polls) - polls))
		[ $polls -eq 0 ] || fail "off, but polls $polls times under $governor"
	done
	echo "$before" > $CPUS/cpuidle/current_governor
	set_parameter poll_limit_us 1 || fail "1 refused"
	set_parameter mode adaptive || fail "adaptive refused"
	pipe_load
	[ "$(cat $CPUS/cpu0/lightsleep/limit_ns)" -le 1000 ] || fail "limit above the ceiling"
}

refuses_bad_parameters() {
	loaded mode=fixed poll_limit_us=50
	for value in 10001 -1 '' ' ' abc 1e3 0x 4294967297 99999999999999999999 '50 50'; do
		! set_parameter poll_limit_us "$value" 2> /dev/null || fail "poll_limit_us takes '$value'"
		! set_parameter wait_weight "$value" 2> /dev/null || fail "wait_weight takes '$value'"
	done
	! set_parameter wait_weight 0 2> /dev/null || fail "wait_weight takes 0"
	for value in '' ADAPTIVE fixe fixedd 1 'off off' "$(head -c 5000 /dev/zero | tr '\0' x)"; do
		! set_parameter mode "$value" 2> /dev/null || fail "mode takes '$value'"
	done
	for value in 0 2 '' x; do
		! set_parameter calibrate "$value" 2> /dev/null || fail "calibrate takes '$value'"
	done
	! set_parameter halt_cost_ns 1 2> /dev/null || fail "halt_cost_ns can be written"
	[ "$(parameter mode) $(parameter poll_limit_us)" = "fixed 50" ] || fail "a refused value stuck"
	mark_log
	! set_parameter mode never 2> /dev/null || fail "mode takes never"
	! set_parameter poll_limit_us 10001 2> /dev/null || fail "poll_limit_us takes 10001"
	last_message 'mode: must be adaptive, fixed or off$' || fail "does not say which modes"
	last_message 'poll_limit_us: must be a number from 0 to 10000$' || fail "does not say which limits"

	unload
	for bad in mode=never poll_limit_us=10001 wait_weight=0 poll_limit_us= calibrate=0 calibrate=1 \
		halt_cost_ns=1 mode; do
		! insmod "$MODULES/$MODULE.ko" $bad 2> /dev/null || fail "loads with $bad"
		[ ! -e /sys/module/$MODULE ] || fail "half loaded after $bad"
	done
	last_message 'calibrate: write 1 while the driver runs; at load,' ||
		fail "does not say that calibrate is not for loading"
}

survives_random_writes() {
	loaded
	for file in mode poll_limit_us wait_weight calibrate; do
		for n in $(seq 50); do
			head -c $((n % 97)) /dev/urandom > "$PARAMETERS/$file" 2> /dev/null
		done
	done
	case $(parameter mode) in
	adaptive | fixed | off) ;;
	*) fail "mode is $(parameter mode)" ;;
	esac
	limit=$(parameter poll_limit_us)
	[ "$limit" -le 10000 ] || fail "poll_limit_us is $limit"
	pipe_load 500
}

works_under_every_governor() {
	loaded
	before=$(cat $CPUS/cpuidle/current_governor)
	# shellcheck disable=SC2013 # the file has one line of words
	for governor in $(cat $CPUS/cpuidle/available_governors); do
		echo "$governor" > $CPUS/cpuidle/current_governor || fail "cannot switch to $governor"
		pipe_load 1000
		polls=$(usage 0)
		halts=$(usage 1)
		pipe_load
		sleep 1
		echo "$governor: $(($(usage 0) - polls)) times POLL, $(($(usage 1) - halts)) HALT"
		[ "$(usage 0)" -gt "$polls" ] || fail "$governor: never polled"
		[ "$(usage 1)" -gt "$halts" ] || fail "$governor: never halted"
	done
	echo "$before" > $CPUS/cpuidle/current_governor
}

limit_each() {
	for file in "$CPUS"/cpu*/power/pm_qos_resume_latency_us; do
		echo n/a > "$file" || fail "$file does not take n/a"
	done
}

lift_limit_of_each() {
	for file in "$CPUS"/cpu*/power/pm_qos_resume_latency_us; do
		echo 0 > "$file"
	done
}

# Prints how often the CPUs halted under a latency limit of 0, and then without it.
halts_under_qos() { # all|each
	loaded
	sleep 1
	"limit_$1"
	for cpu in $(seq 0 $(($(nproc) - 1))); do
		taskset -c "$cpu" true # a limit of one CPU does not end its halt
	done
	sleep 1
	before=$(usage 1)
	pipe_load 1000
	sleep 1
	after=$(usage 1)
	"lift_limit_of_$1"
	sleep 1
	echo "$((after - before)) $(($(usage 1) - after))"
}

# A host that gives the core to somebody else cannot grant such a request.
obeys_limit_of() { # all|each
	for _ in 1 2; do
		halts=$(halts_under_qos "$1")
		[ "${halts#* }" -gt 0 ] || fail "does not halt again"
		[ "${halts% *}" != 0 ] || return 0
		[ "$(statistic contention_pauses)" -gt 0 ] ||
			fail "halted ${halts% *} times at a latency limit of 0 for $1"
	done
	skip "the host is short of cores"
}

obeys_latency_qos() {
	obeys_limit_of all
}

obeys_resume_latency() {
	obeys_limit_of each
}

watch_for_2_s() { # sets halts, and polled in ns
	halts=$(usage 1)
	polled=$(statistic polled_ns)
	sleep 2
	halts=$(($(usage 1) - halts))
	polled=$(($(statistic polled_ns) - polled))
}

# A function call is no task: it ends no idle period, and is no reason to poll anew.
ignores_function_calls() {
	has_module test_smp_mask || skip "no test_smp_mask"
	[ ! -d /sys/module/test_smp_mask ] || skip "test_smp_mask is loaded already"
	is_online 1 || skip "CPU 1 is not online"
	loaded mode=fixed poll_limit_us=1000
	load_module test_smp_mask pause_us=20 || fail "no calls"
	called=
	! polls_for_calls $CPUS/cpu1/lightsleep/polls || called=anew
	rmmod test_smp_mask
	[ -z "$called" ] || fail "polls for each call"
}

# What CPU 1 would poll for, and a request that it must poll, count for nothing then.
does_not_poll_when_told() { # PARAMETER of test_told_idle
	need_naps
	loaded mode=fixed poll_limit_us=1000
	for _ in $(seq 5); do # a measurement may run, and counts no polls
		polled=yes
		polls_for_naps $CPUS/cpu1/lightsleep/polls && break
		polled=no
	done
	[ $polled = yes ] || fail "does not poll for naps"
	limit_all
	! polls_for_naps $CPUS/cpu1/lightsleep/polls "$1" || fail "polls"
	lift_limit_of_all
}

does_not_poll_while_idle_is_injected() {
	does_not_poll_when_told inject=1
}

heeds_no_limit_when_off() {
	loaded mode=off
	limit_all
	sleep 1
	watch_for_2_s
	lift_limit_of_all
	[ $halts -gt 0 ] || fail "never halts, although it is off"
	[ $polled = 0 ] || fail "polled for $polled ns, although it is off"
}

obeys_disabled_states() {
	# In this mode HALT always polls first.
	loaded mode=fixed
	for state in 0 1; do
		disable $state 1
		sleep 1
		halts=$(usage 1)
		polls=$(statistic polls)
		# A measurement obeys, too: it fails, rather than enter the state.
		! env echo 1 > "$PARAMETERS/calibrate" 2> /tmp/refusal ||
			fail "measured although state $state is disabled"
		grep -q 'not permitted' /tmp/refusal || fail "refused by: $(cat /tmp/refusal)"
		pipe_load 1000
		sleep 1
		halts=$(($(usage 1) - halts))
		polls=$(($(statistic polls) - polls))
		disable $state 0
		if [ $state = 0 ]; then
			[ $polls -eq 0 ] || fail "POLL is disabled, but HALT polled $polls times"
			[ $halts -gt 0 ] || fail "POLL is disabled, and HALT never entered"
		else
			[ $halts -eq 0 ] || fail "HALT is disabled, but entered $halts times"
			[ $polls -gt 0 ] || fail "HALT is disabled, and POLL never entered"
		fi
	done
}

# A request below the latency of HALT has the CPU poll, but not where the user forbids polls.
polls_for_no_request_where_polls_are_forbidden() {
	loaded mode=fixed
	latency=$(cat $CPUS/cpu0/cpuidle/state1/latency)
	[ "$latency" -gt 1 ] || skip "HALT is said to take $latency us"
	disable 0 1
	limit_all 1
	sleep 1
	watch_for_2_s
	lift_limit_of_all
	disable 0 0
	[ $halts -gt 0 ] || fail "never halts"
	[ $polled = 0 ] || fail "polled for $polled ns"
}

# However many calls of the driver an idle period takes: such a poll ends every 200 us.
counts_a_period_once() {
	loaded
	limit_all
	sleep 1
	polls=$(statistic polls)
	polled=$(statistic polled_ns)
	sleep 2
	polls=$(($(statistic polls) - polls))
	polled=$(($(statistic polled_ns) - polled))
	lift_limit_of_all
	echo "$polls polls in $polled ns"
	# Counted from the load: a pause lasts up to 16 s, and may have begun before the limit.
	[ "$(statistic contention_pauses)" = 0 ] || skip "the host is short of cores"
	[ $polled -gt 1000000000 ] || fail "polled for $polled ns"
	[ $((polls * 1000000)) -lt $polled ] || fail "counted $polls polls in $polled ns"
}

survives_hotplug_under_load() {
	need_hotplug
	loaded
	start_load
	for round in $(seq 10); do
		for online in "$CPUS"/cpu*/online; do
			cpu=${online%/online}
			echo 0 > "$online" || fail "$cpu stays online"
			[ ! -e "$cpu/lightsleep" ] || fail "$cpu is offline, its statistics are not"
			echo 1 > "$online" || fail "$cpu stays offline"
			[ -e "$cpu/lightsleep/polls" ] || fail "$cpu came back without us"
		done
		# Parameters and measurements meet CPUs that come and go.
		set_parameter poll_limit_us $((round * 10)) || fail "round $round: poll_limit_us"
	done
	after_each
	for cpu in "$CPUS"/cpu[0-9]*; do
		[ "$(sum "$cpu"/cpuidle/state*/usage)" -gt 0 ] || fail "$cpu is not idled by us"
	done
}

loads_and_unloads_under_load() {
	unload
	start_load
	for round in $(seq "$ROUNDS"); do
		load
		rmmod $MODULE || fail "round $round: rmmod failed"
	done
	after_each
	[ "$(cat $CPUS/cpuidle/current_driver)" = none ] || fail "a driver was left behind"
	[ ! -e $CPUS/cpu0/lightsleep ] || fail "statistics were left behind"
	pipe_load 500
}

refuses_beside_another_driver() {
	unload
	[ -e "$MODULES/other_driver.ko" ] || skip "no other_driver.ko"
	insmod "$MODULES/other_driver.ko"
	mark_log
	! insmod "$MODULES/$MODULE.ko" 2> /dev/null || fail "loads beside another driver"
	last_message 'the cpuidle driver other is in use: unload' || fail "does not say who has the CPUs"
	rmmod other_driver
	load
}

refuses_to_load_twice() {
	loaded
	! insmod "$MODULES/$MODULE.ko" 2> /dev/null || fail "loaded twice"
	[ "$(cat $CPUS/cpuidle/current_driver)" = lightsleep ] || fail "the first one is gone"
}

# Only where the machine may be suspended: not every one takes that well.

does_not_poll_in_suspend_to_idle() {
	need_suspend_to_idle
	does_not_poll_when_told suspend=1
}

# Only for kernels booted with the option in question.

refuses_idle_override() {
	option=$(grep -o 'idle=[a-z]*' /proc/cmdline) || skip "no idle= on the command line"
	mark_log
	! insmod "$MODULES/$MODULE.ko" 2> /dev/null || fail "loads with $option"
	last_message "$option on the command line" || fail "does not name $option"
}

refuses_where_halting_stops_the_timer() {
	grep -q '^bugs.*apic_c1e' /proc/cpuinfo || skip "no CPU of this sort"
	mark_log
	! insmod "$MODULES/$MODULE.ko" 2> /dev/null || fail "loads all the same"
	last_message 'stop when they halt (AMD erratum 400)' || fail "does not say why"
}

refuses_without_cpuidle() {
	grep -q cpuidle.off=1 /proc/cmdline || skip "cpuidle is not off"
	mark_log
	! insmod "$MODULES/$MODULE.ko" 2> /dev/null || fail "loads without cpuidle"
	last_message 'cpuidle is disabled, by cpuidle.off=1' || fail "does not say why"
}

if [ "$(id -u)" != 0 ]; then
	echo "1..0 # SKIP needs root"
	exit "$KSFT_SKIP"
fi

if [ $# = 0 ]; then
	set -- binds_and_names_its_states enters_both_states \
		accounts_for_its_time shows_all_counters_in_one_line tells_what_was_polled_in_vain \
		takes_parameters_at_run_time refuses_bad_parameters survives_random_writes \
		works_under_every_governor \
		obeys_latency_qos obeys_resume_latency does_not_poll_while_idle_is_injected \
		heeds_no_limit_when_off obeys_disabled_states \
		polls_for_no_request_where_polls_are_forbidden counts_a_period_once \
		ignores_function_calls \
		survives_hotplug_under_load loads_and_unloads_under_load \
		refuses_beside_another_driver refuses_to_load_twice
fi
trap 'after_each; unmount_all; rm -f "$LOAD"; unload' EXIT
run_tests "$@"
