#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# cpuidle-lightsleep in a running kernel: what it measures that a halt costs, what
# follows from that, and measurements that meet other work, hotplug, or no permission.
#
# Usage: cpuidle-lightsleep-cost.sh MODULE-FOLDER [TEST...]
# Needs root, and perf for the load. Other work on the machine, or on its host, can
# drown what is measured: then tests are skipped.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"

MODULES=${1:?usage: $0 MODULE-FOLDER [TEST...]}
shift
# shellcheck source=lightsleep.sh disable=SC1091
. "$(dirname "$0")/lightsleep.sh"

# Measures once. Only a machine that is too busy is an acceptable failure.
measure_now() {
	# The shell's own echo may call every error an I/O error.
	env echo 1 > "$PARAMETERS/calibrate" 2> /tmp/calibrate && return
	grep -qE 'timed out|unavailable|busy' /tmp/calibrate || fail "$(cat /tmp/calibrate)"
	return 1
}

calibrate() {
	for _ in $(seq 20); do
		! measure_now || return 0
		sleep 0.5
	done
	skip "other work drowns the measurement: $(cat /tmp/calibrate)"
}

measures_the_halt_cost() {
	loaded
	mark_log
	calibrate
	# 0 is a valid result, where the host wakes a halted CPU as fast as a busy one.
	cost=$(parameter halt_cost_ns)
	last_message "halt costs $cost ns more" || fail "halt_cost_ns is $cost, and not measured"
	latency=$(cat $CPUS/cpu0/cpuidle/state1/latency)
	[ "$latency" -ge 1 ] || fail "HALT advertises $latency us"
	[ "$(cat $CPUS/cpu0/lightsleep/halt_cost_ns)" = "$cost" ] || fail "CPU 0 uses another cost"
	if [ -e /sys/kernel/debug/lightsleep/halt_cost ]; then
		# Three lengths of sleep; the interval of each contains its estimate.
		tail -n +2 /sys/kernel/debug/lightsleep/halt_cost | grep -v ' s ago: ' > /tmp/halt_cost
		[ "$(wc -l < /tmp/halt_cost)" = 3 ] || fail "$(wc -l < /tmp/halt_cost) lengths of sleep"
		while read -r slept cost lower upper worst; do
			[ "$slept" -gt 0 ] || fail "slept for $slept ns"
			[ "$lower" -le "$cost" ] || fail "estimate $cost below $lower"
			[ "$cost" -le "$upper" ] || fail "estimate $cost above $upper"
			[ "$worst" -ge 0 ] || fail "worst case $worst"
		done < /tmp/halt_cost
	fi
	# The measurement's own threads are gone.
	! grep -q '^halt_cost/' /proc/[0-9]*/comm 2> /dev/null || fail "threads left behind"
}

# They tell what polling is worth to the programs: the measurement of the machine is none.
leaves_measurements_out_of_its_statistics() {
	loaded mode=off
	calibrate
	before="$(statistic polls) $(statistic hits)"
	polled=$(statistic polled_ns)
	calibrate
	after="$(statistic polls) $(statistic hits)"
	polled=$(($(statistic polled_ns) - polled))
	[ "$before" = "$after" ] || fail "polls and hits were $before, and are $after"
	# Nor does an idle entry that finds its wakeup there already. A measurement takes 80 ms.
	[ $polled = 0 ] || fail "$polled ns polled"
}

assumes_a_cost_while_busy() {
	unload
	mark_log
	# CPUs that are never idle cannot be measured. Two more threads than CPUs leave none.
	setsid sh -c 'for _ in $(seq $(($(nproc) + 2))); do while :; do :; done & done; wait' \
		> /dev/null 2>&1 &
	echo $! > "$LOAD"
	sleep 1
	load
	last_message "cannot measure the halt cost" || fail "the log does not say that it failed"
	if last_message "polls make wakeups slower"; then
		skip "the host wants the cores"
	fi
	[ "$(parameter halt_cost_ns)" = 0 ] || fail "what is assumed is shown as measured"
	last_message " $(cat $CPUS/cpu0/lightsleep/halt_cost_ns) ns is assumed" ||
		fail "CPU 0 uses another cost than the log says"
	[ "$(cat $CPUS/cpu0/lightsleep/halt_cost_ns)" -gt 0 ] || fail "no cost is assumed"
	latency_ns=$(($(cat $CPUS/cpu0/cpuidle/state1/latency) * 1000))
	[ $latency_ns -ge "$(cat $CPUS/cpu0/lightsleep/halt_cost_ns)" ] ||
		fail "HALT is said to take $latency_ns ns, less than is assumed"
}

# A new estimate between two of these reads is no fault, and comes once a second.
in_its_interval() { # FOLDER of a CPU
	cost=$(cat "$1/lightsleep/program_cost_ns")
	lower=$(cat "$1/lightsleep/program_cost_lower_ns")
	upper=$(cat "$1/lightsleep/program_cost_upper_ns")
	[ "$lower" -le "$cost" ] && [ "$cost" -le "$upper" ]
}

asks_the_programs() {
	loaded
	calibrate
	for _ in $(seq 10); do
		pipe_load 10000
		[ "$(statistic deliberate_halts)" -lt 128 ] || break
	done
	polls=$(statistic polls)
	asked=$(statistic deliberate_halts)
	echo "$asked deliberate halts, $polls polls"
	[ "$asked" -gt 0 ] || fail "never halted on purpose in $polls polls"
	# One of 32, and the gaps vary by half of that.
	[ $((asked * 15)) -le $((polls + 1000)) ] || fail "$asked deliberate halts in $polls polls"
	for cpu in "$CPUS"/cpu[0-9]*; do
		in_its_interval "$cpu" || in_its_interval "$cpu" ||
			fail "$cpu: $lower to $upper does not contain $cost"
	done
	# Who chose a limit is not experimented with.
	set_parameter poll_limit_us 100
	set_parameter mode fixed
	sleep 0.1
	asked=$(statistic deliberate_halts)
	pipe_load 5000
	[ "$(statistic deliberate_halts)" = "$asked" ] || fail "halts on purpose in mode fixed"
}

longest_limit() {
	cat $CPUS/cpu*/lightsleep/limit_ns | sort -n | tail -n 1
}

ping_pong() { # NANOSECONDS of work between two wakeups
	insmod "$MODULES/test_ping_pong.ko" work_ns="$1" || fail "no ping-pong"
	trap 'rmmod test_ping_pong 2> /dev/null' EXIT
}

# How long a wakeup takes from halt, with all that it takes from polling, too, in ns.
wakeup_ns() {
	set_parameter mode off
	ping_pong 100000
	halts=$(cat $CPUS/cpu0/lightsleep/halts)
	begun=$(date +%s%N)
	sleep 1
	took=$(($(date +%s%N) - begun))
	halts=$(($(cat $CPUS/cpu0/lightsleep/halts) - halts))
	rmmod test_ping_pong
	set_parameter mode adaptive
	echo $((took / (halts + 1) / 2 - 100000))
}

# Waits longer than any poll at the price of the machine: the programs cannot tell.
probes_where_polls_are_too_short() {
	[ -d $CPUS/cpu1 ] || skip "needs two CPUs"
	loaded
	calibrate
	cost=$(parameter halt_cost_ns)
	[ "$cost" -gt 0 ] || skip "a halt costs nothing here"
	wakeup=$(wakeup_ns) || fail "$wakeup"
	# A wait is as long as the work of the other side and its wakeup. Polls are no longer than
	# 8 costs; in a probe they pay up to 16, our own wakeup included.
	work=$((cost * 19 / 2 - wakeup))
	[ $work -gt 0 ] || skip "a wakeup takes $wakeup ns, and a halt costs $cost ns of that"
	[ $((work + wakeup)) -lt 600000 ] || skip "too few cycles in a second, for $work ns of work"
	ping_pong $work
	for _ in $(seq 100); do
		limit=$(longest_limit)
		[ "$limit" -le $((cost * 9)) ] || break
		sleep 0.1
	done
	now=$(parameter halt_cost_ns)
	[ "$(sum $CPUS/cpu*/lightsleep/contention_pauses)" = 0 ] || skip "the host is short of cores"
	[ "$now" = "$cost" ] || skip "the machine's figure is now $now ns, and was $cost ns"
	echo "cost $cost ns, wakeup $wakeup ns, work $work ns: $(statistic probes) probes, limit $limit ns"
	[ "$(statistic probes)" -gt 0 ] ||
		fail "no probe: $(statistic hits) hits, $(statistic halts) halts"
	[ "$limit" -gt $((cost * 9)) ] || fail "polls are no longer in a probe"
	sleep 4
	echo "the programs' figures: $(cat $CPUS/cpu*/lightsleep/program_cost_ns | tr '\n' ' ')ns"
}

weighs_waiting() {
	loaded wait_weight=1
	calibrate
	cost=$(parameter halt_cost_ns)
	[ "$cost" -gt 0 ] || skip "a halt costs nothing here"
	# Without a limit of its own, mode fixed polls for the price of a missed wakeup.
	set_parameter mode fixed
	limit=0
	[ "$cost" -lt 1000000 ] || skip "the longest poll is shorter than nine times $cost ns"
	for weight in 1 8 9; do # a change of an eighth counts, too
		before=$limit
		set_parameter wait_weight $weight || fail "wait_weight $weight refused"
		calibrate
		sleep 3 # prices follow costs once a second, or later on a machine at rest
		pipe_load 100
		sleep 3
		cost=$(cat $CPUS/cpu0/lightsleep/halt_cost_ns)
		limit=$(cat $CPUS/cpu0/lightsleep/limit_ns)
		apart=$((limit - cost * weight))
		[ ${apart#-} -le $((limit / 7 + 1)) ] ||
			fail "weight $weight, cost $cost ns, but polls for $limit ns"
		[ "$limit" != "$before" ] || fail "weight $weight, and polls for $limit ns, as before"
	done
}

halts_after_the_longest_poll() {
	loaded mode=fixed poll_limit_us=10000
	calibrate # not meanwhile
	polls=$(sum $CPUS/cpu*/cpuidle/state0/usage)
	polled=$(sum $CPUS/cpu*/cpuidle/state0/time)
	halted=$(sum $CPUS/cpu*/cpuidle/state1/time)
	sleep 3
	polls=$(($(sum $CPUS/cpu*/cpuidle/state0/usage) - polls))
	polled=$(($(sum $CPUS/cpu*/cpuidle/state0/time) - polled))
	halted=$(($(sum $CPUS/cpu*/cpuidle/state1/time) - halted))
	echo "polled $polls times, for $polled us; halted for $halted us"
	[ $halted -gt 0 ] || fail "polls for ever"
	# 10 ms each, and as much again for a host that takes the core meanwhile.
	[ $polled -le $(((polls + 1) * 20000)) ] || fail "polls for too long"
}

does_not_poll_an_idle_machine() {
	loaded
	calibrate # a measurement polls: not meanwhile
	sleep 2
	polled=$(statistic polled_ns)
	sleep 5
	share=$((($(statistic polled_ns) - polled) / 50000 / $(nproc)))
	echo "$share ppm of 5 s polled"
	[ "$share" -lt 20000 ] || fail "polls on an idle machine"
}

says_why_it_cannot_measure() {
	loaded
	calibrate
	limit_all
	calibrated=0
	env echo 1 > "$PARAMETERS/calibrate" 2> /tmp/refusal || calibrated=$? # it names the error
	lift_limit_of_all
	# Where the host is short of cores, the CPUs halt all the same.
	[ $calibrated != 0 ] || skip "the host is short of cores"
	grep -q 'not permitted' /tmp/refusal || fail "refused by: $(cat /tmp/refusal)"
	calibrate
}

# Who holds the latency that sysfs shows wants CPUs to halt: so does force_latency= of tuned.
halts_at_the_latency_it_advertises() {
	loaded
	calibrate
	latency=$(cat $CPUS/cpu0/cpuidle/state1/latency)
	exec 3> /dev/cpu_dma_latency
	printf '%b' "\\0$(printf %o $((latency % 256)))\\0$(printf %o $((latency / 256)))\\0\\0" >&3
	sleep 1
	before=$(usage 1)
	sleep 2
	halts=$(($(usage 1) - before))
	exec 3>&-
	echo "$halts halts in 2 s at a limit of $latency us"
	[ $halts -gt 0 ] || fail "never halts at the latency that HALT advertises"
}

# Leaves the threads of CPU 0 or 1 without time until the test ends, or hog is killed.
occupy_cpu() { # CPU
	command -v chrt > /dev/null || skip "chrt is not installed"
	[ -d $CPUS/cpu1 ] || skip "needs two CPUs"
	# Neither throttling nor, since 6.12, a server for fair tasks is to give them time.
	runtime=/proc/sys/kernel/sched_rt_runtime_us
	server=/sys/kernel/debug/sched/fair_server/cpu$1/runtime
	was=$(cat $runtime)
	was_served=$(cat "$server" 2> /dev/null)
	# In this order: without the server, the kernel refuses to limit real-time tasks again.
	trap '[ -z "$was_served" ] || echo "$was_served" > "$server"; echo "$was" > $runtime' EXIT
	echo -1 > $runtime
	[ -z "$was_served" ] || echo 0 > "$server"
	taskset -c $((1 - $1)) timeout 40 taskset -c "$1" chrt -f 50 sh -c 'while :; do :; done' &
	hog=$!
	sleep 1
}

# A wait that a measurement chose is no poll of the statistics: a CPU that is still told how to
# wait counts none. Fails after 5 s, in which a measurement that runs now ends.
polls_by_itself() { # CPU, in mode fixed
	polls=$CPUS/cpu$1/lightsleep/polls
	before=$(cat "$polls")
	for _ in $(seq 50); do
		taskset -c "$1" sleep 0.1
		[ "$(cat "$polls")" = "$before" ] || return 0
	done
	return 1
}

# CPU 1 has the thread that asks, which then tells no CPU how to wait; CPU 0 the one that answers.
measures_beside_a_hog_on() { # CPU
	# Switched off, it measures on request only: nothing else tells the CPUs how to wait.
	loaded mode=off
	occupy_cpu "$1"
	# A write must not wait for ever for a thread that has no time.
	taskset -c $((1 - $1)) sh -c "echo 1 > $PARAMETERS/calibrate" 2> /dev/null &
	writer=$!
	for _ in $(seq 30); do
		kill -0 $writer 2> /dev/null || break
		sleep 1
	done
	ended=yes
	kill -0 $writer 2> /dev/null && ended=no
	kill "$hog"
	wait
	[ $ended = yes ] || fail "the measurement waits for CPU $1, which has no time"
	set_parameter poll_limit_us 500
	set_parameter mode fixed
	for cpu in $(seq 0 $(($(nproc) - 1))); do
		polls_by_itself "$cpu" || fail "after a hog on CPU $1, CPU $cpu still waits as told"
	done
}

measures_beside_a_hog() {
	for hogged in 0 1; do
		(measures_beside_a_hog_on $hogged) || exit
	done
}

# Nor does who reads a parameter wait for the end of a measurement.
shows_parameters_while_it_measures() {
	loaded mode=off
	occupy_cpu 1
	waits=yes
	for _ in $(seq 3); do
		taskset -c 0 sh -c "echo 1 > $PARAMETERS/calibrate" 2> /dev/null &
		writer=$!
		sleep 0.3
		taskset -c 0 cat "$PARAMETERS/mode" > /dev/null
		taskset -c 0 sleep 0.2 # whoever wrote has left by now, if that is over
		! kill -0 $writer 2> /dev/null || waits=no
		wait $writer
		[ $waits = yes ] || break
	done
	kill "$hog"
	wait
	[ $waits = no ] || fail "a parameter is shown only when the measurement is over"
}

# Counts those of our own processes that are left after a second, in which the shell reaps others.
count_left_of() { # PIDS
	sleep 1
	left=0
	for pid in $1; do
		! kill -0 "$pid" 2> /dev/null || left=$((left + 1))
	done
}

# Who waits for the measurement of somebody else can be killed, and holds up nobody.
lets_go_of_writers_that_are_killed() {
	loaded mode=off
	occupy_cpu 1
	writers=
	for _ in $(seq 16); do
		taskset -c 0 sh -c "echo 1 > $PARAMETERS/calibrate" 2> /dev/null &
		writers="$writers $!"
	done
	count_left_of "$writers"
	waited=$left
	for writer in $writers; do
		kill -9 "$writer" 2> /dev/null
	done
	# The one that measures may be left, for 4 s. If each had its turn, it would be a minute.
	for _ in $(seq 15); do
		count_left_of "$writers"
		[ $left != 0 ] || break
	done
	kill "$hog"
	wait
	echo "$waited of 16 writers were there when they were killed"
	[ $left = 0 ] || fail "$left writers are left 15 s after they were killed"
	[ $waited -gt 1 ] || skip "no writer had to wait"
}

# A measurement that waits for a busy CPU holds up no CPU that comes or goes.
goes_offline_while_a_measurement_waits() {
	loaded
	last=$CPUS/cpu$(($(nproc) - 1))
	[ "$(nproc)" -ge 3 ] && [ -e "$last/online" ] || skip "needs three CPUs"
	occupy_cpu 1
	waits=no
	for _ in $(seq 3); do
		taskset -c 0 sh -c "echo 1 > $PARAMETERS/calibrate" 2> /dev/null &
		writer=$!
		sleep 0.3
		taskset -c 0 sh -c "echo 0 > $last/online" || fail "the last CPU stays online"
		! kill -0 $writer 2> /dev/null || waits=yes
		echo 1 > "$last/online"
		wait $writer
		[ $waits = no ] || break
	done
	kill "$hog"
	wait
	[ $waits = yes ] || fail "the CPU goes offline only when the measurement is over"
}

measures_during_hotplug() {
	loaded
	online=$CPUS/cpu1/online
	[ -e "$online" ] || skip "CPU 1 cannot go offline"
	(for _ in $(seq 20); do
		echo 0 > "$online"
		echo 1 > "$online"
	done) > /dev/null 2>&1 &
	for _ in $(seq 10); do
		measure_now || true
	done
	wait
	[ "$(cat "$online")" = 1 ] || fail "the CPU did not come back"
}

# The work of measuring stays off isolated CPUs, even where one of them loaded the module.
leaves_isolated_cpus_alone() {
	isolated=$(cat $CPUS/isolated)
	[ -n "$isolated" ] || skip "no CPU is isolated"
	unload
	need_tracer
	echo 1 > "$TRACE/events/workqueue/workqueue_execute_start/enable"
	taskset -c "$isolated" insmod "$MODULES/$MODULE.ko" || fail "insmod failed"
	sleep 10 # one estimate in 4 s
	echo 0 > "$TRACE/events/workqueue/workqueue_execute_start/enable"
	# "kworker/u8:1-31  [000] d..2. 12.3: workqueue_execute_start: work struct X: function estimate_costs"
	grep 'estimate_costs' "$TRACE/trace" | sed 's/.*\[0*\([0-9]\)/\1/; s/\].*//' > /tmp/workers
	[ -s /tmp/workers ] || fail "nothing is estimated"
	echo "estimates on CPUs: $(tr '\n' ' ' < /tmp/workers)"
	for cpu in $(cpus_of "$isolated"); do
		! grep -qx "$cpu" /tmp/workers || fail "isolated CPU $cpu works"
	done
}

if [ "$(id -u)" != 0 ]; then
	echo "1..0 # SKIP needs root"
	exit "$KSFT_SKIP"
fi

if [ $# = 0 ]; then
	set -- measures_the_halt_cost leaves_measurements_out_of_its_statistics \
		assumes_a_cost_while_busy asks_the_programs \
		probes_where_polls_are_too_short weighs_waiting \
		halts_after_the_longest_poll does_not_poll_an_idle_machine \
		says_why_it_cannot_measure halts_at_the_latency_it_advertises \
		measures_beside_a_hog shows_parameters_while_it_measures \
		lets_go_of_writers_that_are_killed \
		goes_offline_while_a_measurement_waits \
		measures_during_hotplug leaves_isolated_cpus_alone
fi
trap 'after_each; rm -f "$LOAD"; unload' EXIT
run_tests "$@"
