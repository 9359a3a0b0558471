#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Promotion out of shallow idle states, in a kernel that has it: that it happens,
# that every setting is honoured, and that governors do not learn from it.
#
# Usage: [SLOW=N STATES=...] promote.sh [MODULE-FOLDER [TEST...]]
# SLOW makes all sleeps N times as long, for a kernel that takes so much longer to begin
# one. STATES are those for cpuidle_synthetic: three, of which short sleeps fit the first
# one only. Two timeouts have to fit in a period of the tick.
# Needs root, two CPUs, and python3.
#
# Where a driver is bound whose states ask for promotion, as powernv's do, it tests with
# those: of what they are, it knows nothing. Without a driver, it can test all, with states
# made up by cpuidle_synthetic, a module that comes from the repository of this test's
# authors and not with the kernel. That is made for a machine whose clock counts
# instructions: how long a CPU sleeps is then up to the test alone. With neither, only the
# switch is tested.
#
# Whatever ends it, but for SIGKILL, settings, drivers and CPUs are as before.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"

# shellcheck disable=SC2034 # for load_module
MODULES=${1-}
[ $# = 0 ] || shift

PARAMETER=/sys/module/cpuidle/parameters/promote
SLOW=${SLOW:-1}
STATES=${STATES:-lite:1:10,mid:16:60,deep:32:120}
CPU=$CPUS/cpu1/cpuidle
WORK=$(mktemp -d)
GROUP=promote-test-$$
TRACES=/sys/kernel/tracing/instances/$GROUP
trap 'rm -f "$LOAD"; rmdir "$WORK"' EXIT # so far

need_switch() {
	[ -e $PARAMETER ] || skip "this kernel cannot promote"
	echo 1 > $PARAMETER
}

need_made_up_states() {
	need_switch
	[ "$DRIVER" = none ] || skip "the states are those of $DRIVER"
	has_module cpuidle_synthetic || skip "no module cpuidle_synthetic"
	[ -e /sys/module/cpuidle_synthetic ] || load_states
	need_no_veto
}

# Whoever isolates CPU 1, or requests a latency, wants no promotion.
need_no_veto() {
	! is_isolated 1 || skip "CPU 1 is isolated"
	need_commands python3
	for state in $(deeper); do
		[ "$(cat "$CPU/state$state/disable")" = 0 ] || continue
		limit=$(latency_limit 1)
		[ "$limit" -ge "$(cat "$CPU/state$state/latency")" ] ||
			skip "somebody requests a latency of $limit us"
		[ "$DRIVER" = none ] || break # one is enough; the made-up ones are entered all
	done
}

asked() { # the states that the driver asks to leave, the shallowest first
	for folder in "$CPU"/state*; do
		[ ! -e "$folder/promoted" ] || echo "${folder#"$CPU"/state}"
	done | sort -n
}

# Made-up states, or those of the driver that is bound, and a governor that they mislead.
need_promotion() {
	[ "$DRIVER" != none ] || {
		need_made_up_states
		return
	}
	need_switch
	[ -n "$(asked)" ] || skip "$DRIVER does not ask for promotion"
	need_no_veto
	before=$(all_promoted)
	pattern 20
	# So often that it errs in the next 20 as well.
	[ "$(all_promoted)" -ge $((before + 10)) ] ||
		skip "$WAS_GOVERNOR hardly errs with the states of $DRIVER"
}

load_states() { # [PARAMETER...]
	load_module cpuidle_synthetic "states=$STATES" "$@" || fail "insmod failed"
}

cgroups() { # the folder of cgroup v2, if it is mounted
	sed -n 's/^[^ ]* \([^ ]*\) cgroup2 .*/\1/p' /proc/mounts | head -n 1
}

# A partition of cpusets with CPU 1 alone. What there is to undo is noted first.
isolate() {
	if [ -z "$(cgroups)" ]; then
		mkdir "$WORK/cgroups"
		mount_at cgroup2 "$WORK/cgroups" || skip "no cgroup v2"
	fi
	root=$(cgroups)
	grep -qw cpuset "$root/cgroup.controllers" || skip "no cpusets in cgroup v2"
	echo "$root" > "$WORK/root"
	if ! grep -qw cpuset "$root/cgroup.subtree_control"; then
		: > "$WORK/enabled"
		echo +cpuset > "$root/cgroup.subtree_control" || skip "no cpusets in cgroup v2"
	fi
	mkdir "$root/$GROUP" || fail "no new cgroup"
	[ -e "$root/$GROUP/cpuset.cpus.partition" ] || skip "no partitions of cpusets"
	echo 1 > "$root/$GROUP/cpuset.cpus"
	echo isolated > "$root/$GROUP/cpuset.cpus.partition"
	state=$(cat "$root/$GROUP/cpuset.cpus.partition")
	[ "$state" = isolated ] || skip "no partition for CPU 1: $state"
}

in_isolation() { # COMMAND...: others may not use the CPU any more
	(echo 0 > "$root/$GROUP/cgroup.procs" && "$@")
}

# A command that was killed may need a moment to go.
remove_group() { # FOLDER
	[ ! -e "$1/cpuset.cpus.partition" ] || echo member > "$1/cpuset.cpus.partition"
	echo 1 > "$1/cgroup.kill"
	for _ in 1 2 3 4 5 6 7 8 9; do
		! rmdir "$1" 2> /dev/null || return 0
		sleep 0.1
	done
	rmdir "$1"
}

end_isolation() {
	if [ -s "$WORK/root" ]; then
		root=$(cat "$WORK/root")
		[ ! -d "$root/$GROUP" ] || remove_group "$root/$GROUP"
		[ ! -e "$WORK/enabled" ] || echo -cpuset > "$root/cgroup.subtree_control"
	fi
	[ ! -d "$WORK/cgroups" ] || {
		! grep -q " $WORK/cgroups cgroup2 " /proc/mounts || unmount "$WORK/cgroups"
		rmdir "$WORK/cgroups"
	}
	rm -f "$WORK/root" "$WORK/enabled"
}

after_each() {
	end_isolation
	rm -f "$WORK/begun"
	[ ! -d "$TRACES" ] || rmdir "$TRACES"
	[ -e $PARAMETER ] || return 0
	echo 1 > $PARAMETER
	is_online 1 || echo 1 > "$CPUS"/cpu1/online
	echo "$WAS_DISABLED" | while IFS=: read -r file value; do
		[ ! -e "$file" ] || echo "$value" > "$file"
	done
	[ -e /sys/module/cpuidle_synthetic ] || return 0
	for state in 0 1 2; do
		[ ! -e "$CPU/state$state" ] || disable "$state" 0
	done
}

# Bursts of short sleeps on CPU 1, each with a silence behind it. The burst makes a
# governor believe that sleeps are short. SCHED_FIFO: others are woken 50 us late.
pattern() { # COUNT [FILE, made as it begins]
	need_commands python3
	python3 - "$1" "$SLOW" "${2:-/dev/null}" <<-END || fail "the pattern failed"
		import os, sys, time
		os.sched_setaffinity(0, [1])
		os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
		count, slow = map(int, sys.argv[1:3])
		open(sys.argv[3], "w").close()
		for _ in range(count):
		    for _ in range(8):
		        time.sleep(slow * 15e-6)
		    time.sleep(slow * 500e-6)
	END
}

promoted() { # STATE
	cat "$CPU/state$1/promoted"
}

all_promoted() {
	sum "$CPU"/state*/promoted
}

leaves_shallow_states() {
	need_made_up_states
	lite=$(promoted 0) mid=$(promoted 1) deep=$(cat "$CPU"/state2/usage)
	pattern 20
	[ $(($(promoted 0) - lite)) -ge 15 ] || fail "promoted $(($(promoted 0) - lite)) times"
	[ $(($(promoted 1) - mid)) -ge 15 ] || fail "not promoted a second time"
	[ $(($(cat "$CPU"/state2/usage) - deep)) -ge 15 ] || fail "the deepest state is not entered"
	[ "$(promoted 2)" = 0 ] || fail "promoted out of the deepest state"
}

# Sleeps there that were long enough for a deeper state; the kernel counts them by itself.
too_shallow() {
	# shellcheck disable=SC2046
	sum $(asked | sed "s,.*,$CPU/state&/below,")
}

# A governor may well not err with them.
leaves_states_of_the_driver() {
	need_switch
	[ -n "$(asked)" ] || skip "$DRIVER does not ask for promotion"
	need_no_veto
	promoted=$(all_promoted) stayed=$(too_shallow)
	pattern 20
	stayed=$(($(too_shallow) - stayed))
	promoted=$(($(all_promoted) - promoted))
	[ $stayed -ge 5 ] || [ $promoted -gt 0 ] ||
		skip "$WAS_GOVERNOR does not err with the states of $DRIVER"
	[ $promoted -gt 0 ] || fail "$stayed sleeps in too shallow a state, and no promotion"
}

deeper() { # states than the first that the driver asks to leave
	first=$(asked | head -n 1)
	for folder in "$CPU"/state*; do
		[ "${folder#"$CPU"/state}" -le "$first" ] || echo "${folder#"$CPU"/state}"
	done
}

stays_where_no_deeper_state_is_allowed() {
	need_promotion
	for state in $(deeper); do
		disable "$state" 1
	done
	pattern 1 # ends the sleep that this found the CPU in
	before=$(all_promoted)
	pattern 20
	[ "$(all_promoted)" = "$before" ] || fail "promoted to a disabled state"
	for state in $(deeper); do
		disable "$state" 0
	done
	pattern 20
	[ "$(all_promoted)" -gt "$before" ] || fail "not promoted when they are enabled again"
}

does_nothing_when_off() {
	need_promotion
	echo 0 > $PARAMETER
	before=$(all_promoted)
	pattern 20
	[ "$(all_promoted)" = "$before" ] || fail "promoted"
	echo 1 > $PARAMETER
	pattern 20
	[ "$(all_promoted)" -gt "$before" ] || fail "not promoted when on again"
}

traced() { # how many promotions there are in a pattern, by an instance of its own
	echo > "$TRACES/trace"
	echo 1 > "$TRACES/events/power/cpu_idle_promote/enable" || fail "cannot trace"
	pattern 20
	grep -c 'cpu_idle_promote:' "$TRACES/trace" || true
}

# By the trace, as a governor enters the deepest state itself, too, and not always as often.
leaves_only_states_that_the_driver_asks_to_leave() {
	need_made_up_states
	mount_until_end tracefs /sys/kernel/tracing || skip "no tracefs"
	[ -e /sys/kernel/tracing/events/power/cpu_idle_promote ] || skip "no trace event"
	mkdir "$TRACES" || fail "cannot make an instance of tracing"
	rmmod cpuidle_synthetic || fail "rmmod failed"
	load_states promote=0
	! ls "$CPU"/state*/promoted 2> /dev/null || fail "these states cannot be left"
	few=$(traced)
	rmmod cpuidle_synthetic || fail "rmmod failed"
	load_states
	many=$(traced)
	[ "$many" -ge 10 ] || fail "promoted $many times where asked for"
	[ "$few" = 0 ] || fail "and $few times where not"
}

passes_over_disabled_states() {
	need_made_up_states
	disable 1 1
	mid=$(cat "$CPU"/state1/usage) deep=$(cat "$CPU"/state2/usage) lite=$(promoted 0)
	pattern 20
	[ "$(cat "$CPU"/state1/usage)" = "$mid" ] || fail "a disabled state is entered"
	[ "$(promoted 0)" -gt "$lite" ] || fail "not promoted"
	[ "$(cat "$CPU"/state2/usage)" -gt "$deep" ] || fail "not past it"
	disable 2 1
	before=$(all_promoted)
	pattern 20
	[ "$(all_promoted)" = "$before" ] || fail "promoted without anywhere to go"
}

keeps_to_the_latency_limit() {
	need_made_up_states
	[ -e /dev/cpu_dma_latency ] || skip "no /dev/cpu_dma_latency"
	exec 3> /dev/cpu_dma_latency # holds as long as it is open
	printf '%b' "\\0$(printf %o "$(cat "$CPU"/state1/latency)")\\0\\0\\0" >&3
	pattern 1 # ends the sleep that the limit found the CPU in
	deep=$(cat "$CPU"/state2/usage) mid=$(promoted 1) lite=$(promoted 0)
	pattern 20
	[ "$(promoted 0)" -gt "$lite" ] || fail "not promoted within the limit"
	[ "$(promoted 1)" = "$mid" ] || fail "promoted to a state beyond the limit"
	[ "$(cat "$CPU"/state2/usage)" = "$deep" ] || fail "enters a state beyond the limit"
	exec 3>&-
}

refuses_nonsense() {
	need_switch
	for word in '' x -1 2 ' ' "$(head -c 5000 /dev/zero | tr '\0' 9)"; do
		! echo "$word" 2> /dev/null > $PARAMETER || fail "'$word' is taken"
	done
	[ "$(cat $PARAMETER)" = Y ] || fail "changed all the same"
	for state in $(asked); do
		[ "$(stat -c %a "$CPU/state$state/promoted")" = 444 ] ||
			fail "a counter can be written"
	done
	[ "$(stat -c %a $PARAMETER)" = 644 ] || fail "anybody can change $PARAMETER"
}

# The driver was there first, and has learned of no change since.
leaves_new_partitions_alone() {
	need_promotion
	isolate
	before=$(all_promoted)
	in_isolation pattern 20 || exit
	[ "$(all_promoted)" = "$before" ] || fail "promoted on an isolated CPU"
	end_isolation
	pattern 20
	[ "$(all_promoted)" -gt "$before" ] || fail "not promoted behind the partition"
}

# After a test that has used mark_log.
check_it_still_promotes() {
	before=$(all_promoted)
	pattern 20
	[ "$(all_promoted)" -gt "$before" ] || fail "no promotions any more"
	! last_message 'BUG:\|WARNING:' || fail "the kernel complains: see its log"
}

survives_hotplug() {
	[ -e "$CPUS/cpu1/online" ] || skip "CPU 1 cannot go offline"
	need_promotion
	mark_log
	for _ in $(seq 10); do
		pattern 1000 "$WORK/begun" &
		while [ ! -e "$WORK/begun" ] && kill -0 $! 2> /dev/null; do
			sleep 0.1 # it needs CPU 1 to begin
		done
		rm -f "$WORK/begun"
		sleep 0.1
		echo 0 > "$CPUS"/cpu1/online || fail "CPU 1 does not go offline"
		wait $! || fail "the load failed"
		echo 1 > "$CPUS"/cpu1/online || fail "CPU 1 does not come back"
	done
	check_it_still_promotes
}

survives_another_governor() {
	need_promotion
	mark_log
	governor=$(cat "$CPUS"/cpuidle/current_governor)
	pattern 3000 &
	for _ in $(seq 3); do
		# shellcheck disable=SC2013
		for other in $(cat "$CPUS"/cpuidle/available_governors); do
			echo "$other" > "$CPUS"/cpuidle/current_governor
			sleep 0.05
		done
	done
	echo "$governor" > "$CPUS"/cpuidle/current_governor
	wait $! || fail "the load failed"
	check_it_still_promotes
}

survives_switching_all_the_time() {
	need_promotion
	mark_log
	states=$(deeper)
	pattern 3000 &
	load=$!
	while kill -0 $load 2> /dev/null; do
		for n in 0 1; do
			for state in $states; do
				disable "$state" $n
				echo $n > $PARAMETER
			done
		done
		sleep 0.01
	done
	wait $load || fail "the load failed"
	for state in $states; do
		disable "$state" 0
	done
	check_it_still_promotes
}

survives_another_driver() {
	need_made_up_states
	mark_log
	pattern 3000 &
	for _ in $(seq 3); do
		rmmod cpuidle_synthetic
		load_module cpuidle_synthetic states=one:1:1 || fail "insmod failed"
		sleep 0.02
		rmmod cpuidle_synthetic
		load_states
		sleep 0.02
	done
	wait $! || fail "the load failed"
	check_it_still_promotes
}

# The same, but another CPU ends all of it, which no governor can foresee; teo knows timers.
woken() { # COUNT
	need_commands python3
	python3 - "$1" "$SLOW" <<-END || fail "the load failed"
		import os, sys, time
		def be_on(cpu):
		    os.sched_setaffinity(0, [cpu])
		    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
		orders, give = os.pipe()
		done, say = os.pipe()
		if os.fork() == 0:
		    os.close(give)
		    be_on(1)
		    while os.read(orders, 1):
		        os.write(say, b".")
		    os._exit(0)
		be_on(0)
		count, slow = map(int, sys.argv[1:])
		for _ in range(count):
		    for us in (10, 10, 10, 10, 10, 10, 10, 10, 2000):
		        if us > 10:
		            time.sleep(slow * us * 1e-6)
		        os.write(give, b".")
		        os.read(done, 1)
		os.close(give)
		os.wait()
	END
}

usages() {
	cat "$CPU"/state0/usage "$CPU"/state1/usage "$CPU"/state2/usage
}

shares() { # LOAD: of the three states in what a governor chooses, in %; promotion is off
	before=$(usages)
	$1 1000
	# shellcheck disable=SC2046,SC2086
	set -- $(usages) $before
	all=$(($1 + $2 + $3 - $4 - $5 - $6))
	echo $((100 * ($1 - $4) / all)) $((100 * ($2 - $5) / all)) $((100 * ($3 - $6) / all))
}

learns_nothing() { # GOVERNOR LOAD: 10,000 promotions leave its choices as they are
	[ "$SLOW" = 1 ] || skip "takes too long in a slow kernel"
	need_made_up_states
	grep -qw "$1" "$CPUS"/cpuidle/available_governors || skip "this kernel has no $1"
	was=$(cat "$CPUS"/cpuidle/current_governor)
	echo "$1" > "$CPUS"/cpuidle/current_governor
	echo 0 > $PARAMETER
	without=$(shares "$2")
	echo 1 > $PARAMETER
	before=$(all_promoted)
	# Not every silence of a kernel that wakes its CPUs slowly begins in a shallow state.
	for _ in 1 2 3 4 5 6; do
		"$2" 11000
		promotions=$(($(all_promoted) - before))
		[ "$promotions" -lt 10000 ] || break
	done
	echo 0 > $PARAMETER
	after=$(shares "$2")
	echo "$was" > "$CPUS"/cpuidle/current_governor
	echo "$1 chooses lite, mid, deep, in %:"
	echo "$without before $promotions promotions, $after after"
	[ "$promotions" -ge 10000 ] || fail "not promoted often enough"
	# shellcheck disable=SC2086
	set -- $without $after
	for _ in 1 2 3; do
		[ $((($1 - $4) * ($1 - $4))) -le 9 ] || fail "not as before"
		shift
	done
}

menu_learns_nothing() {
	learns_nothing menu woken
}

teo_learns_nothing() {
	learns_nothing teo woken
}

ladder_learns_nothing() {
	learns_nothing ladder pattern
}

DRIVER=$(cat "$CPUS"/cpuidle/current_driver 2> /dev/null || echo none)
[ $# -gt 0 ] || [ "$DRIVER" = none ] || set -- leaves_states_of_the_driver \
	stays_where_no_deeper_state_is_allowed does_nothing_when_off refuses_nonsense \
	leaves_new_partitions_alone survives_hotplug survives_another_governor \
	survives_switching_all_the_time
[ $# -gt 0 ] || set -- leaves_shallow_states does_nothing_when_off \
	leaves_only_states_that_the_driver_asks_to_leave passes_over_disabled_states \
	stays_where_no_deeper_state_is_allowed keeps_to_the_latency_limit refuses_nonsense \
	leaves_new_partitions_alone survives_hotplug survives_another_governor \
	survives_switching_all_the_time survives_another_driver \
	menu_learns_nothing teo_learns_nothing ladder_learns_nothing

need_root_and_two_cpus
[ ! -e /sys/module/cpuidle_synthetic ] || skip_all "cpuidle_synthetic is loaded already"
WAS_ON=$(cat $PARAMETER 2> /dev/null)
WAS_GOVERNOR=$(cat "$CPUS"/cpuidle/current_governor)
WAS_DISABLED=$(grep . "$CPUS"/cpu*/cpuidle/state*/disable /dev/null 2> /dev/null)

restore() { # what was found
	trap '' HUP INT PIPE TERM
	end_test
	after_each
	[ -z "$WAS_ON" ] || echo "$WAS_ON" > $PARAMETER
	[ "$(cat "$CPUS"/cpuidle/current_governor)" = "$WAS_GOVERNOR" ] ||
		echo "$WAS_GOVERNOR" > "$CPUS"/cpuidle/current_governor
	[ ! -e /sys/module/cpuidle_synthetic ] || rmmod cpuidle_synthetic
	rm -f "$LOAD"
	rmdir "$WORK" # not what is in it: cgroups may be
}
trap restore EXIT
trap 'exit 143' HUP INT PIPE TERM # not every shell runs the trap above then
run_tests "$@"
