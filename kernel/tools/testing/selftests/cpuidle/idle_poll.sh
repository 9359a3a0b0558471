#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# The poll of the idle loop (CONFIG_IDLE_POLL): the switch, the statistics, the
# accounting of time, latency requests, function calls, CPU hotplug, and CPUs at rest.
#
# Usage: idle_poll.sh [MODULE-FOLDER [TEST...]]
# Needs root, two CPUs, python3, taskset, and perf, as a load and to count. Some tests need modules
# of the repository of its authors: test_smp_mask calls functions, test_told_idle tells CPUs to be
# idle, and cpuidle_synthetic gives the CPUs states of known latency where they have no
# driver. Without these, and where they are loaded already, these tests are skipped.
#
# Whatever ends it, but for SIGKILL, the switch, the weight, CPUs, modules and mounts are as before.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"
# shellcheck source=poller.sh disable=SC1091
. "$(dirname "$0")/poller.sh"

# shellcheck disable=SC2034 # for load_module
MODULES=${1-}
[ $# = 0 ] || shift

PARAMETERS=/sys/module/idle_poll/parameters
MEASURED=/sys/kernel/debug/idle_poll/halt_cost
trap 'rm -f "$LOAD" "$LOAD.count"' EXIT # so far

statistic() { # NAME, all CPUs
	sum "$CPUS"/cpu*/idle_poll/"$1"
}

need_idle_poll() {
	[ -e $PARAMETERS/enabled ] || skip "this kernel does not poll in its idle loop"
}

off() { # and no poll that began before goes on
	need_idle_poll
	echo 0 > $PARAMETERS/enabled
	sleep 0.2
}

wait_for_cost() { # where the machine is too busy, one is assumed
	for _ in $(seq 10); do
		[ "$(cat $PARAMETERS/halt_cost_ns)" = 0 ] || return 0
		sleep 1
	done
}

on() {
	need_idle_poll
	echo 1 > $PARAMETERS/enabled
	wait_for_cost
}

end_load() { # of start_load
	[ ! -s "$LOAD" ] || kill -- "-$(cat "$LOAD")"
	: > "$LOAD"
}

after_each() { # as it was found
	end_load
	[ -z "$WAS_ENABLED" ] || echo "$WAS_ENABLED" > $PARAMETERS/enabled
	[ -z "$WAS_WEIGHT" ] || echo "$WAS_WEIGHT" > $PARAMETERS/wait_weight
	is_online 1 || echo 1 > "$CPUS"/cpu1/online
	for module in $OWN_MODULES; do
		[ ! -e "/sys/module/$module" ] || rmmod "$module"
	done
}

restore() {
	trap '' HUP INT PIPE TERM
	end_test
	after_each
	unmount_all
	rm -f "$LOAD" "$LOAD.count"
}

# Those that polling is for.
cpus_that_may_poll() {
	for cpu in $(cpus_of "$(cat "$CPUS"/online)"); do
		is_isolated "$cpu" || echo "$cpu"
	done
}

# In a round of a pipe, each of two CPUs waits for the other, for half of the round at most. A
# poll for that pays if the price of a wakeup from halt, on one of them, is as much. Beside an
# idle driver that polls, and on a host that does, the price may be next to nothing.
pays() { # SECONDS of 2000 rounds, with three decimals; CPU...
	ms=$((${1%.*} * 1000 + 1${1#*.} - 1000))
	shift
	cost_ns=0
	for cpu; do
		own_ns=$(cat "$CPUS/cpu$cpu/idle_poll/halt_cost_ns")
		[ "$own_ns" -le "$cost_ns" ] || cost_ns=$own_ns
	done
	half_ns=$((ms * 1000000 / 2000 / 2))
	[ $half_ns -le $((cost_ns * $(cat $PARAMETERS/wait_weight))) ]
}

# A CPU whose host needs the core does not poll for some seconds. Such a host can show
# nothing here, nor can a machine on which polling does not pay.
check_hits() {
	need_commands perf taskset
	# shellcheck disable=SC2046 # two numbers
	set -- $(cpus_that_may_poll | head -n 2)
	[ $# = 2 ] || skip "all CPUs but one are isolated"
	pauses=$(statistic contention_pauses)
	for _ in $(seq 10); do
		hits_before=$(statistic hits)
		took=$(taskset -c "$1,$2" perf bench -f simple sched pipe -l 2000) || fail "no load"
		[ $(($(statistic hits) - hits_before)) -le 500 ] || return 0
		sleep 2
	done
	[ "$(statistic contention_pauses)" = "$pauses" ] || skip "the host needs its cores"
	pays "$took" "$@" || skip "polling does not pay on this machine"
	fail "$(($(statistic hits) - hits_before)) hits in 2000 rounds, which took $took s;" \
		"cost $cost_ns ns"
}

# A module that was loaded before is somebody else's.
load_own() { # MODULE [PARAMETER=VALUE...]
	case "$OWN_MODULES " in
	*" $1 "*) load_module "$@" 2> /dev/null ;;
	*) return 1 ;;
	esac
}

check_no_polls() {
	polls_before=$(statistic polls)
	pipe_load 1000
	[ "$(statistic polls)" = "$polls_before" ] || fail "polls"
}

does_nothing_when_off() {
	need_idle_poll
	need_debugfs # to see whether it measures
	off
	check_no_polls
	for _ in $(seq 10); do # a measurement that goes on ends first
		[ -e /sys/kernel/debug/idle_poll ] || return 0
		sleep 1
	done
	fail "still measures"
}

now() { # sets now, in 1/100 s since boot, without a process of its own
	read -r now _ < /proc/uptime
	now=${now%.*}${now#*.}
}

# Whoever turns the switch does not wait for the measurement, which takes 0.3 s and more.
measures_in_the_background() {
	need_idle_poll
	need_debugfs
	for _ in $(seq 5); do
		off
		for _ in $(seq 10); do # until a measurement that goes on has ended
			[ -e "${MEASURED%/*}" ] || break
			sleep 1
		done
		now
		began=$now
		echo 1 > $PARAMETERS/enabled
		now
		took=$((now - began))
		# There is a result, from now or from before. (To read it waits for one that is
		# being made.)
		wait_for_cost
		[ -e $MEASURED ] && [ "$(wc -l < $MEASURED)" -gt 1 ] ||
			skip "other work drowns the measurement"
		[ $took -ge 10 ] || return 0
	done
	fail "to turn the switch took $took/100 s"
}

polls_when_on() {
	on
	check_hits
	[ "$(statistic hits)" -le "$(statistic polls)" ] || fail "more hits than polls"
	[ "$(statistic wasted_ns)" -le "$(statistic polled_ns)" ] || fail "more wasted than polled"
	[ "$(statistic halts)" -gt 0 ] || fail "never halted"
}

restores_when_switched_off() {
	on
	check_hits
	off
	check_no_polls
	on
	check_hits
}

# How often idle CPU 1 began to run a task while a command ran.
idle_periods() { # COMMAND...
	perf stat -C 1 -x, -o "$LOAD.count" -e sched:sched_switch --filter 'prev_pid == 0' "$@" \
		> /dev/null || return
	sed -n 's/^\([0-9]*\),.*sched_switch.*/\1/p' "$LOAD.count"
}

# Each idle period that ends with a task ends with a hit or a halt, and with one only. Here
# one task sleeps and wakes, so that a CPU rarely goes from one task to the next. (The
# scheduler may do so without a pass through the idle loop, and that is no period.)
counts_each_period_once() {
	! is_isolated 1 || skip "isolated CPUs count nothing, and CPU 1 is one"
	need_commands perf python3 taskset
	on
	own="$CPUS/cpu1/idle_poll"
	before=$(sum "$own/hits" "$own/halts")
	periods=$(idle_periods taskset -c 1 python3 -c \
		'import time; [time.sleep(0.001) for _ in range(1000)]') ||
		skip "perf cannot count what the scheduler does"
	counted=$(($(sum "$own/hits" "$own/halts") - before))
	echo "$periods idle periods, $counted hits and halts"
	[ "$periods" -ge 1000 ] || fail "too few to tell"
	# A period is counted when the next one begins; and this script runs before and after perf.
	[ $((counted + periods / 20)) -ge "$periods" ] || fail "some are not counted"
	[ $counted -le $((periods + periods / 20 + 100)) ] || fail "some are counted twice"
}

counts_halts() {
	on
	before=$(statistic halts)
	hits=$(statistic hits)
	for _ in $(seq 20); do
		sleep 0.05 # far beyond any limit
	done
	halts=$(($(statistic halts) - before))
	[ $halts -ge 20 ] || fail "$halts halts for 20 sleeps"
	[ $(($(statistic hits) - hits)) -lt $((halts * 20)) ] || fail "hits instead"
}

# A function call is no task: it ends no idle period, teaches nothing, and the CPU
# gets no second limit for it.
ignores_function_calls() {
	on
	check_hits # so that CPU 1 has learned to poll
	load_own test_smp_mask pause_us=20 || skip "no test_smp_mask of its own"
	! polls_for_calls "$CPUS"/cpu1/idle_poll/polls || fail "polls for each call"
}

asks_the_programs() {
	on
	check_hits
	before=$(statistic deliberate_halts)
	pauses=$(statistic contention_pauses)
	for _ in $(seq 5); do
		pipe_load 4000
		[ "$(statistic deliberate_halts)" -eq "$before" ] || break
	done
	if [ "$(statistic deliberate_halts)" -eq "$before" ]; then
		[ "$(statistic contention_pauses)" = "$pauses" ] || skip "the host needs its cores"
		check_hits
		fail "no deliberate halts"
	fi
	[ $(($(statistic deliberate_halts) - before)) -lt 1000 ] || fail "too many of them"
}

# By how much /proc/stat and the clock disagree under a load, idle time, and time polled,
# in 1/1000 of all time.
account() {
	python3 - <<-END || fail "cannot account"
		import glob, os, subprocess, time
		def times():
		    words = open("/proc/stat").readline().split()[1:9]
		    return [int(x) / os.sysconf("SC_CLK_TCK") for x in words]
		def polled():
		    files = glob.glob("$CPUS/cpu*/idle_poll/polled_ns")
		    return sum(int(open(f).read()) for f in files) / 1e9
		load = subprocess.Popen(
		    ["sh", "-c", "while :; do perf bench sched pipe -l 2000; done"],
		    stdout=subprocess.DEVNULL, start_new_session=True)
		time.sleep(0.5)
		a, p, t = times(), polled(), time.monotonic()
		time.sleep(20)
		b, q, u = times(), polled(), time.monotonic()
		os.killpg(load.pid, 9)
		total = (u - t) * os.cpu_count()
		spent = [y - x for x, y in zip(a, b)]
		idle = spent[3] + spent[4]
		print(*(round(1000 * x / total) for x in (sum(spent) - total, idle, q - p)))
	END
}

time_polled_is_idle_time() {
	need_commands python3
	off
	without=$(account) || fail "$without"
	on
	check_hits
	with=$(account) || fail "$with"
	echo "1/1000 of all time too much, idle, polled: off $without, on $with"
	# shellcheck disable=SC2086
	set -- $without $with
	[ $(($1 * $1)) -le 400 ] || skip "the host is too busy: the kernel loses time by itself"
	[ "$6" -gt 0 ] || { # the programs may have said meanwhile that polling does not pay
		check_hits
		fail "nothing is polled"
	}
	[ "$5" -ge $(($6 - 10)) ] || fail "not all time polled is idle time"
	[ $((($4 - $1) * ($4 - $1))) -le 100 ] || fail "polling changes the sum"
}

# Readers of /proc/stat take it for granted.
idle_time_never_goes_backward() {
	need_commands python3
	on
	start_load
	python3 - <<-END || fail "it does"
		import sys, time
		def idle():
		    with open("/proc/stat") as file:
		        return [int(x.split()[4]) for x in file if x[:3] == "cpu"]
		before, end, readings = idle(), time.monotonic() + 5, 0
		while time.monotonic() < end:
		    now = idle()
		    if any(y < x for x, y in zip(before, now)):
		        sys.exit(f"{before} becomes {now}")
		    before, readings = now, readings + 1
		print(readings, "readings")
	END
}

busy_ticks() { # of all CPUs, each of which has 100 a second
	read -r _ user nice system _ _ irq softirq steal _ < /proc/stat
	echo $((user + nice + system + irq + softirq + steal))
}

does_not_poll_at_rest() {
	on
	sleep 1
	busy=$(busy_ticks)
	before=$(statistic polled_ns)
	sleep 3
	polled=$(($(statistic polled_ns) - before))
	busy=$(($(busy_ticks) - busy))
	cpus=$(find "$CPUS"/cpu*/idle_poll -name polled_ns | wc -l)
	[ $polled -ge $((3 * 10000000 * cpus)) ] || return 0 # 1 % of the time
	[ $busy -le $((3 * 5 * cpus)) ] || skip "CPUs were busy for $busy ticks: no rest"
	fail "polled $polled ns in 3 s"
}

# What CPU 1 has learned to poll for is let be then.
does_not_poll_when_told() { # PARAMETER of test_told_idle
	need_naps
	on
	echo 100 > $PARAMETERS/wait_weight # so that to poll for a nap pays
	for _ in $(seq 5); do # prices and limits follow
		polled=yes
		polls_for_naps $CPUS/cpu1/idle_poll/polls && break
		polled=no
	done
	[ $polled = yes ] || skip "the host needs its cores, or a halt costs nothing"
	! polls_for_naps $CPUS/cpu1/idle_poll/polls "$1" || fail "polls"
}

does_not_poll_while_idle_is_injected() {
	does_not_poll_when_told inject=1
}

# Only where the machine may be suspended, so not without being asked.
does_not_poll_in_suspend_to_idle() {
	need_suspend_to_idle
	does_not_poll_when_told suspend=1
}

honours_a_latency_request() {
	on
	[ -e /dev/cpu_dma_latency ] || skip "no /dev/cpu_dma_latency"
	load_own cpuidle_synthetic states=lite:1:1,deep:500:1000 ||
		skip "the CPUs have a driver of their own"
	exec 3> /dev/cpu_dma_latency # holds as long as it is open
	printf '\001\000\000\000' >&3
	sleep 0.2
	deep=$(usage 1)
	check_hits
	sleep 0.5
	[ "$(usage 1)" = "$deep" ] || fail "enters a state beyond the request"
	exec 3>&-
	sleep 1
	[ "$(usage 1)" -gt "$deep" ] || fail "no deep state after the request"
}

survives_hotplug() {
	[ -e "$CPUS"/cpu1/online ] || skip "CPU 1 cannot go offline"
	on
	start_load
	for _ in $(seq 10); do
		echo 0 > "$CPUS"/cpu1/online || fail "CPU 1 does not go offline"
		sleep 0.1
		echo 1 > "$CPUS"/cpu1/online || fail "CPU 1 does not come back"
		sleep 0.1
	done
	[ -d "$CPUS"/cpu1/idle_poll ] || fail "no statistics"
	end_load
	check_hits
}

survives_switching_under_load() {
	need_idle_poll
	start_load
	for _ in $(seq 5); do
		echo 1 > $PARAMETERS/enabled
		sleep 0.2
		echo 0 > $PARAMETERS/enabled
	done
	end_load
	on
	check_hits
}

refuses_nonsense() {
	off
	for word in '' x 2x maybe; do
		! echo "$word" 2> /dev/null > $PARAMETERS/enabled || fail "'$word' is taken"
	done
	[ "$(cat $PARAMETERS/enabled)" = 0 ] || fail "changed all the same"
	weight=$(cat $PARAMETERS/wait_weight)
	for word in '' x 0 101 -1; do
		! echo "$word" 2> /dev/null > $PARAMETERS/wait_weight || fail "'$word' is a weight"
	done
	[ "$(cat $PARAMETERS/wait_weight)" = "$weight" ] || fail "changed the weight all the same"
	for file in $PARAMETERS/halt_cost_ns $PARAMETERS/polling_flag "$CPUS"/cpu0/idle_poll/*; do
		[ "$(stat -c %a "$file")" = 444 ] || fail "$file can be written"
	done
}

[ $# -gt 0 ] || set -- does_nothing_when_off measures_in_the_background polls_when_on \
	restores_when_switched_off asks_the_programs counts_each_period_once counts_halts \
	ignores_function_calls time_polled_is_idle_time idle_time_never_goes_backward \
	does_not_poll_at_rest does_not_poll_while_idle_is_injected \
	honours_a_latency_request survives_hotplug survives_switching_under_load refuses_nonsense

need_root_and_two_cpus
OWN_MODULES=
for module in cpuidle_synthetic test_smp_mask test_told_idle; do
	[ -e "/sys/module/$module" ] || OWN_MODULES="$OWN_MODULES $module"
done
WAS_ENABLED=$(cat $PARAMETERS/enabled 2> /dev/null)
WAS_WEIGHT=$(cat $PARAMETERS/wait_weight 2> /dev/null)
trap restore EXIT
trap 'exit 143' HUP INT PIPE TERM # not every shell runs the trap above then
run_tests "$@"
