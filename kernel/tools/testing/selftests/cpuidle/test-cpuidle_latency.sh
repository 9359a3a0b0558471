#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# test_cpuidle_latency in a running kernel: samples of every source, what they say, what
# is refused, signals, CPU hotplug, suspend, unbinding and unloading meanwhile.
#
# Usage: test-cpuidle_latency.sh [MODULE-FOLDER [TEST...]]
# Needs root and two CPUs; a virtio entropy device for its source, tracefs for the
# ledger. Four tests need states that are known, and so cpuidle_lightsleep or
# cpuidle_synthetic. These drivers come from the repository of this test's authors, not
# with the kernel: without them, and where there is another driver, the four are skipped.
#
# Whatever ends it, but for SIGKILL, settings, drivers and CPUs are as before.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"

# shellcheck disable=SC2034 # for load_module
MODULES=${1-}
[ $# = 0 ] || shift

MODULE=test_cpuidle_latency
FILES=/sys/kernel/debug/latency_test
TRACING=/sys/kernel/tracing
INSTANCE=$TRACING/instances/$MODULE-$$ # what others trace is left alone
DRIVER=/sys/bus/virtio/drivers/$MODULE
LOCKDOWN=/sys/kernel/security/lockdown
RUNTIME=/proc/sys/kernel/sched_rt_runtime_us
CPU1=/sys/devices/system/cpu/cpu1
COLUMNS='launch_ns wake_ns cpu path state entered_ns left_ns'
# MIN_NS and MAX_NS, long enough for a kernel full of checks to become idle meanwhile;
# TIMEOUT_NS.
DISTANCES='200000 1000000'
TIMES="$DISTANCES 1000000000"

# BUSY and what follows, for a minute; the thread that keeps the CPU busy shows that it has begun.
LONG='1 600 100000000 100000000 1000000000'

WORK=$(mktemp -d)
trap 'rm -rf "$LOAD" "$WORK"' EXIT # so far
WHY=$WORK/why # what the shell says of a write that failed

# As many are that were booted with Secure Boot.
is_locked_down() {
	[ -e $LOCKDOWN ] && ! grep -qF '[none]' $LOCKDOWN
}

# Each load makes the kernel patch its code, which some emulators do not like.
load() {
	[ -e /sys/module/$MODULE ] || load_module $MODULE || fail "$MODULE does not load"
	mount_until_end debugfs /sys/kernel/debug || fail "no debugfs"
}

unload() { # MODULE
	[ ! -e "/sys/module/$1" ] || rmmod "$1"
}

# An idle driver of ours for one test, if there is one; after_each takes it away.
idle_driver() { # NAME PARAMETER...
	has_module "$1" || skip "no module $1"
	[ ! -e "/sys/module/$1" ] || skip "$1 is loaded already"
	[ "$(cat "$CPUS/cpuidle/current_driver")" = none ] || skip "there is an idle driver"
	echo "$1" > "$WORK/driver"
	load_module "$1" "$2" || fail "$1 does not load"
}

# A setting, until the test ends: of a choice, the word in brackets.
borrow() { # FILE VALUE
	echo "$1 $(sed 's/.*\[\(.*\)\].*/\1/' "$1")" >> "$WORK/borrowed"
	echo "$2" > "$1" || fail "$1 does not become $2"
}

give_back() { # the last one first: a setting that was borrowed twice is as before, too
	touch "$WORK/borrowed"
	tac "$WORK/borrowed" | while read -r file value; do
		echo "$value" > "$file"
	done
	rm "$WORK/borrowed"
}

# The device is the driver's again, if a test has taken it away.
bind_again() {
	[ -s "$WORK/unbound" ] || return 0
	device=$(cat "$WORK/unbound")
	[ ! -e $DRIVER ] || [ -e "$DRIVER/$device" ] || echo "$device" > $DRIVER/bind
	: > "$WORK/unbound"
}

after_each() {
	[ ! -s "$LOAD" ] || kill -KILL "$(cat "$LOAD")" 2> /dev/null
	: > "$LOAD"
	[ ! -s "$WORK/hog" ] || kill "$(cat "$WORK/hog")" 2> /dev/null
	: > "$WORK/hog"
	is_online 1 || echo 1 > $CPU1/online
	give_back
	bind_again
	[ ! -d "$INSTANCE" ] || rmdir "$INSTANCE"
	[ ! -s "$WORK/driver" ] || unload "$(cat "$WORK/driver")"
	: > "$WORK/driver"
}

restore() { # what was found
	trap '' HUP INT PIPE TERM
	end_test
	after_each
	if [ -n "$WAS_LOADED" ]; then
		(load)
	else # a write that no signal has reached uses it until its batch ends
		within_10_s unload $MODULE 2> "$WHY" || tail -n 1 "$WHY" >&2
	fi
	unmount_all
	rm -rf "$LOAD" "$WORK"
}

# A request is SOURCE SRC DEST BUSY SAMPLES MIN_NS MAX_NS TIMEOUT_NS.
request() { # LINE, fails as the write does
	echo "$1" > "$WORK/line"
	dd bs=1M status=none < "$WORK/line" 2> "$WHY" > $FILES/run
}

samples() { # LINE: samples, without their header
	request "$1" || fail "'$1': $(cat "$WHY")"
	[ "$(head -n 1 $FILES/samples)" = "$1" ] || fail "samples of $(head -n 1 $FILES/samples)"
	[ "$(sed -n 2p $FILES/samples)" = "$COLUMNS" ] || fail "$(sed -n 2p $FILES/samples)"
	tail -n +3 $FILES/samples
}

refused() { # ERROR LINE
	! request "$2" || fail "takes '$2'"
	grep -q "$1" "$WHY" || fail "'$2': not $1, but $(cat "$WHY")"
}

begun() {
	grep -qs '^latency_test/' /proc/[0-9]*/comm
}

# A thread that was stopped may need a moment to go.
ended() {
	! begun
}

within_10_s() { # COMMAND...
	for _ in $(seq 100); do
		! "$@" || return 0
		sleep 0.1
	done
	return 1
}

# In a process of its own, which is to be waited for or killed: its id is in LOAD.
background() { # LINE
	(exec 3> $FILES/run
	echo "$1" > "$WORK/line"
	exec cat "$WORK/line" >&3 2> "$WORK/background") &
	echo $! > "$LOAD"
	within_10_s begun || fail "'$1' does not begin: $(cat "$WORK/background")"
}

end_background() {
	kill "-${1:-TERM}" "$(cat "$LOAD")"
	wait "$(cat "$LOAD")" 2> /dev/null
	: > "$LOAD"
}

fails_in_background() { # ERROR
	! wait "$(cat "$LOAD")" || fail "the measurement did not fail"
	: > "$LOAD"
	grep -q "$1" "$WORK/background" || fail "not $1, but $(cat "$WORK/background")"
	within_10_s ended || fail "threads left behind"
}

still_works() {
	[ "$(samples "ipi 0 1 0 20 $TIMES" | wc -l)" = 20 ] || fail "no longer works"
}

has_device() {
	[ -n "$(ls -d $DRIVER/virtio* 2> /dev/null)" ]
}

files_are_for_root_only() {
	modes=$(cd $FILES && stat -c '%n %a' -- * | tr '\n' ' ')
	[ "$modes" = "run 200 samples 400 " ] || fail "$modes"
}

# Was CPU 1 in an idle state at the launch? Of the sample that was read last.
was_idle() {
	[ "$cpu" = 1 ] && [ "$state" -ge 0 ] && [ "$entered" -le "$launch" ] &&
		{ [ "$left" = 0 ] || [ "$left" -ge "$launch" ]; }
}

# Every field of every sample, as far as it is known beforehand.
check_samples() { # PATHS BUSY, < samples
	taken=0
	good=0
	before=0
	while read -r launch wake cpu path state entered left; do
		line="$launch $wake $cpu $path $state $entered $left"
		[ "$launch" -gt "$((before + 200000))" ] || fail "too early after $before: $line"
		[ "$wake" -gt "$launch" ] || fail "awake before the launch: $line"
		case " $1 " in
		*" $path "*) ;;
		*) fail "path is not of $1: $line" ;;
		esac
		[ "$left" = 0 ] || [ "$left" -ge "$entered" ] || fail "left too early: $line"
		before=$launch
		taken=$((taken + 1))
		if was_idle; then idle=0; else idle=1; fi
		[ "$cpu$idle" != "1$2" ] || good=$((good + 1))
	done
	echo "busy $2: $good of $taken"
	[ "$taken" = 50 ] || fail "$taken samples, not 50"
	[ "$good" -ge 10 ] || fail "almost none was as requested"
}

wakes_from_idle_and_busy() { # SOURCE SRC PATHS
	for busy in 0 1; do
		samples "$1 $2 1 $busy 50 $TIMES" > "$WORK/samples"
		check_samples "$3" $busy < "$WORK/samples"
	done
}

wakes_by_timer() {
	wakes_from_idle_and_busy timer 1 timer
}

wakes_by_ipi() {
	wakes_from_idle_and_busy ipi 0 "ipi none"
}

# Where interrupts are threads, that of the device is one, too, and must not pass for less.
device_path() {
	if grep -q PREEMPT_RT /proc/version || grep -qw threadirqs /proc/cmdline; then
		echo thread
	else
		echo irq
	fi
}

wakes_by_device() {
	has_device || skip "no virtio entropy device"
	wakes_from_idle_and_busy device 0 "$(device_path)"
}

# Its interrupt is moved while CPU 1 is to be woken; a batch before had watched CPU 0.
shows_no_state_of_another_cpu() {
	has_device || skip "no virtio entropy device"
	device=$(basename "$(ls -d $DRIVER/virtio*)")
	irq=$(sed -n "s/^ *\([0-9]*\):.* $device-input\$/\1/p" /proc/interrupts)
	[ -n "$irq" ] || skip "its interrupt has no line of its own"
	samples "device 1 0 0 10 $TIMES" > /dev/null
	background "device 0 1 $LONG"
	borrow "/proc/irq/$irq/smp_affinity_list" 0
	sleep 2
	end_background
	tail -n +3 $FILES/samples | cut -d' ' -f3,5- | grep '^0 ' | sort | uniq -c > "$WORK/others"
	cat "$WORK/others"
	[ "$(wc -l < "$WORK/others")" != 0 ] || skip "its interrupt cannot be moved"
	[ "$(sed 's/^ *[0-9]* //' "$WORK/others")" = "0 -1 0 0" ] ||
		fail "the state of a CPU that nobody watched"
}

wakes_a_busy_cpu_by_store() {
	samples "store 0 1 1 50 $TIMES" > "$WORK/samples"
	check_samples none 1 < "$WORK/samples"
}

paths_from_idle() { # < samples: how many of each path
	while read -r launch _ cpu path state entered left; do
		! was_idle || echo "$path"
	done | sort | uniq -c | tr -s '\n ' ' '
}

# Others wake this CPU, too; and right behind the interrupt of another wake none is needed, so
# that a kernel that always interrupts has now and then a sample without one.
STRAY=4

# Out of POLL without an interrupt, out of HALT with one, and it says which.
wakes_by_store_who_polls() {
	idle_driver cpuidle_lightsleep mode=off
	for state in 0 1; do
		echo 1 > $CPU1/cpuidle/state$((1 - state))/disable
		samples "store 0 1 0 50 $TIMES" > "$WORK/samples"
		echo 0 > $CPU1/cpuidle/state$((1 - state))/disable
		cut -d' ' -f4,5 "$WORK/samples" | sort | uniq -c > "$WORK/counts"
		cat "$WORK/counts"
		if [ $state = 0 ]; then
			none=$(cut -d' ' -f4 "$WORK/samples" | grep -c none)
			[ "$none" -gt $STRAY ] || skip "this kernel always interrupts"
			check_samples "none ipi" 0 < "$WORK/samples"
		else
			paths_from_idle < "$WORK/samples" > "$WORK/counts"
			grep -q ipi "$WORK/counts" || fail "who halts needs no interrupt"
			! grep -q none "$WORK/counts" || fail "HALT took no interrupt"
		fi
	done
}

# An IPI says by itself whether it was one; the scheduler must agree each time.
agrees_with_the_scheduler() {
	event=events/sched/sched_wake_idle_without_ipi
	idle_driver cpuidle_lightsleep mode=off
	mount_until_end tracefs $TRACING || skip "no tracefs"
	[ -e $TRACING/$event ] || skip "no sched_wake_idle_without_ipi"
	echo 1 > $CPU1/cpuidle/state1/disable
	mkdir "$INSTANCE" || fail "no instance of the tracer"
	echo mono > "$INSTANCE/trace_clock"
	echo cpu==1 > "$INSTANCE/$event/filter"
	echo 1 > "$INSTANCE/$event/enable"
	for source in store ipi; do
		samples "$source 0 1 0 200 $TIMES" >> "$WORK/ledger"
	done
	echo 0 > "$INSTANCE/$event/enable"

	# Microseconds and an s for each sample, with its path, and an e for each event that an
	# interrupt on CPU 0 made. Behind each sample there has to be its event, or none.
	cut -d' ' -f1,4 "$WORK/ledger" | sed -E 's/(.*)... (.*)$/\1 s \2/' > "$WORK/both"
	sed -nE 's/.*\[000\] d..?[hH].* ([0-9]+)\.([0-9]{6}): sched_wake.*/\1\2 e/p' \
		"$INSTANCE/trace" >> "$WORK/both"
	echo "9999999999999999 s end" >> "$WORK/both"
	none=0 missing=0 surplus=0 path='' seen=0
	sort -k1,1n -k2,2r "$WORK/both" > "$WORK/sorted"
	while read -r _ kind next; do
		[ "$kind" = s ] || seen=$((seen + 1))
		[ "$kind" = s ] || continue
		case $path in
		none)
			none=$((none + 1))
			[ $seen -gt 0 ] || missing=$((missing + 1))
			;;
		ipi) surplus=$((surplus + seen)) ;;
		esac
		path=$next
		seen=0
	done < "$WORK/sorted"
	events=$(grep -c ' e$' "$WORK/both")
	echo "$none of 400 without an interrupt, $events events, $missing missing, $surplus surplus"
	[ "$events" != 0 ] || [ $none -gt $STRAY ] || skip "this kernel always interrupts"
	[ $none -ge 100 ] || fail "almost no wake went without an interrupt"
	[ $missing -le $STRAY ] || fail "the scheduler does not know of $missing"
	[ $surplus -le 20 ] || fail "the scheduler knows of $surplus more"
}

ends_with_a_wake_that_does_not_come() {
	idle_driver cpuidle_synthetic states=slow:1:1:100000
	samples "ipi 0 1 0 50 1000000 1000000 1000000" > "$WORK/samples"
	tail -n 1 "$WORK/samples"
	[ -s "$WORK/samples" ] || fail "no samples"
	[ "$(wc -l < "$WORK/samples")" -lt 50 ] || fail "there was nothing to wait for"
	# It may have come while the batch ended, and then shows how late it was.
	tail -n 1 "$WORK/samples" | while read -r launch wake _; do
		[ "$wake" = 0 ] || [ $((wake - launch)) -ge 1000000 ]
	done || fail "does not end with a wakeup that is late"
	unload cpuidle_synthetic
	still_works
}

# The wakeup takes 100 ms, a bit longer than it may: it is late however often one looks.
ends_with_a_wake_that_comes_late() {
	idle_driver cpuidle_synthetic states=slow:1:1:100000
	samples "ipi 0 1 0 20 1000000 1000000 90000000" > "$WORK/samples"
	tail -n 1 "$WORK/samples"
	[ -s "$WORK/samples" ] || fail "no samples"
	[ "$(wc -l < "$WORK/samples")" -lt 20 ] || fail "a wakeup that is late did not end it"
	tail -n 1 "$WORK/samples" | while read -r launch wake _; do
		[ "$wake" = 0 ] || [ $((wake - launch)) -ge 90000000 ]
	done || fail "ends behind a wakeup that was not late"
	head -n -1 "$WORK/samples" | while read -r launch wake _; do
		[ $((wake - launch)) -lt 90000000 ] || exit 1
	done || fail "goes on behind a wakeup that was late"
	unload cpuidle_synthetic
	still_works
}

# Samples or not, it ends before that CPU has time again; and so does the thread, which may
# never have had its turn. With PREEMPT_RT, timers are threads, too: so all else is on CPU 0.
gives_up_on_a_cpu_without_time() {
	need_commands taskset timeout chrt
	borrow $RUNTIME -1
	read -r self _ < /proc/self/stat
	taskset -pc 0 "$self" > /dev/null
	for source in ipi store; do
		timeout 20 taskset -c 1 chrt -f 50 sh -c 'while :; do :; done' > /dev/null 2>&1 &
		echo $! > "$WORK/hog"
		sleep 1
		! request "$source 0 1 1 20 $TIMES" || echo "all samples" > "$WHY"
		kill "$(cat "$WORK/hog")" 2> /dev/null || echo "waited for that CPU" > "$WHY"
		wait
		: > "$WORK/hog"
		within_10_s ended || echo "threads left behind" > "$WHY"
		grep -q 'all samples\|timed out' "$WHY" || fail "$source: $(cat "$WHY")"
	done
	still_works
}

refuses_nonsense() {
	invalid='Invalid argument'
	for line in '' '   ' ipi "ipi 0 1 0 10 $DISTANCES" "ipi 0 1 0 10 $TIMES 1" \
		"smoke 0 1 0 10 $TIMES" "0 0 1 0 10 $TIMES" "ipi  0 1 0 10 $TIMES" \
		"ipi 1 1 0 10 $TIMES" "timer 0 1 0 10 $TIMES"; do
		refused "$invalid" "$line"
	done
	for number in -1 x 1x 1e3 0x10 4294967296 99999999999999999999; do
		refused "$invalid" "ipi $number 1 0 10 $TIMES"
		refused "$invalid" "ipi 0 $number 0 10 $TIMES"
		refused "$invalid" "ipi 0 1 $number 10 $TIMES"
		refused "$invalid" "ipi 0 1 0 $number $TIMES"
		refused "$invalid" "ipi 0 1 0 10 $number 1000000000 1000000000"
		refused "$invalid" "ipi 0 1 0 10 1000 $number 1000000000"
		refused "$invalid" "ipi 0 1 0 10 $DISTANCES $number"
	done
	refused "$invalid" "ipi 0 1 2 10 $TIMES"
	for samples in 0 10001; do
		refused "$invalid" "ipi 0 1 0 $samples $TIMES"
	done
	for distances in "999 1000" "1000 1000000001" "2000 1999"; do
		refused "$invalid" "ipi 0 1 0 1 $distances 1000000000"
	done
	for timeout in 999999 1000000001; do
		refused "$invalid" "ipi 0 1 0 10 $DISTANCES $timeout"
	done
	refused "$invalid" "ipi 0 1 0 61 1000 1000000000 1000000000" # more than 60 s
	refused "$invalid" "ipi 0 1 0 10 $TIMES$(printf %0300d 0)"
	refused "$invalid" "$(printf %065536d 0)"
	refused "$invalid" "ipi 0 1 0 10 $TIMES
ipi 0 1 0 10 $TIMES"
	refused 'No such device' "ipi 0 4000000000 0 10 $TIMES"
	refused 'No such device' "ipi 8191 1 0 10 $TIMES"
	still_works
}

refuses_without_a_device() {
	! has_device || skip "there is an entropy device"
	refused 'No such device' "device 0 1 0 10 $TIMES"
}

keeps_the_last_batch() {
	samples "ipi 0 1 0 300 $TIMES" > "$WORK/samples"
	[ "$(wc -l < "$WORK/samples")" = 300 ] || fail "samples are missing"
	# Again, and a small buffer changes nothing.
	[ "$(dd bs=7 < $FILES/samples 2> /dev/null | tail -n +3)" = "$(cat "$WORK/samples")" ] ||
		fail "read twice, they differ"
	samples "timer 1 1 0 3 $TIMES" > "$WORK/samples"
	[ "$(wc -l < "$WORK/samples")" = 3 ] || fail "the batch before is still there"
	refused 'Invalid argument' "timer 1 1 0 0 $TIMES"
	[ "$(wc -l < $FILES/samples)" = 2 ] || fail "a request that was refused has samples"
}

refuses_two_at_once() {
	background "ipi 0 1 $LONG"
	refused 'Device or resource busy' "timer 0 0 0 10 $TIMES"
	begun || fail "the first one was disturbed"
	timeout -s INT 1 cat $FILES/samples > "$WORK/samples" && fail "samples of a batch that runs"
	begun || fail "a reader disturbed it"
}

ends_with_its_writer() {
	for signal in TERM KILL; do
		for line in "ipi 0 1 $LONG" "timer 1 1 $LONG" "store 0 1 $LONG"; do
			background "$line"
			end_background $signal
			within_10_s ended || fail "$signal: threads left behind"
			still_works
		done
	done
}

takes_cpus_offline() { # LINE
	[ -e $CPU1/online ] || skip "CPU 1 cannot go offline"
	background "$1"
	echo 0 > $CPU1/online || fail "CPU 1 stays online"
	fails_in_background 'No such device'
	refused 'No such device' "$(cat "$WORK/line")"
	echo 1 > $CPU1/online || fail "CPU 1 stays offline"
	still_works
}

ends_with_the_cpu_that_is_woken() {
	takes_cpus_offline "ipi 0 1 $LONG"
	takes_cpus_offline "timer 1 1 $LONG"
	takes_cpus_offline "store 0 1 $LONG"
}

ends_with_the_cpu_that_wakes() {
	takes_cpus_offline "ipi 1 0 $LONG"
	takes_cpus_offline "store 1 0 $LONG"
}

# It is away only between two launches.
ends_with_a_cpu_that_comes_back() {
	[ -e $CPU1/online ] || skip "CPU 1 cannot go offline"
	background "ipi 0 1 1 60 1000000000 1000000000 1000000000"
	echo 0 > $CPU1/online || fail "CPU 1 stays online"
	echo 1 > $CPU1/online || fail "CPU 1 stays offline"
	fails_in_background 'No such device'
	still_works
}

leaves_other_cpus_alone() {
	[ -e $CPU1/online ] || skip "CPU 1 cannot go offline"
	background "timer 0 0 $LONG"
	echo 0 > $CPU1/online || fail "CPU 1 stays online"
	begun || fail "a CPU that is not used ended it"
	echo 1 > $CPU1/online || fail "CPU 1 stays offline"
	begun || fail "a CPU that is not used ended it"
}

ends_with_the_device() {
	has_device || skip "no virtio entropy device"
	device=$(basename "$(ls -d $DRIVER/virtio*)")
	background "device 0 1 $LONG"
	echo "$device" > "$WORK/unbound"
	echo "$device" > $DRIVER/unbind || fail "cannot unbind"
	fails_in_background 'No such device'
	refused 'No such device' "device 0 1 0 10 $TIMES"
	echo "$device" > $DRIVER/bind || fail "cannot bind"
	wakes_by_device
}

# Frozen, its writer gives up, and starts over when the machine is back. Only where devices may be
# suspended, so not without being asked.
survives_suspend() {
	[ -e /sys/power/pm_test ] || skip "no /sys/power/pm_test"
	background "ipi 0 1 $LONG"
	borrow /sys/power/pm_test devices
	echo freeze > /sys/power/state || skip "this machine does not suspend"
	within_10_s begun || fail "does not start over: $(cat "$WORK/background")"
	end_background
	still_works
	! has_device || wakes_by_device
}

# Each is refused: by whoever reads it, and without being read while a batch runs.
write_garbage() {
	for n in $(seq "${GARBAGE:-200}"); do
		case $((n % 4)) in
		0) echo "-$n" ;;
		1) head -c $((n * 37 % 150 + 1)) /dev/urandom ;;
		2) echo "ipi 4000$n 1 0 $n 1000 $n$n 1000000" ;;
		3) echo "ipi 0 1 0 $((n * n * n * n * n))" ;;
		esac > $FILES/run 2> /dev/null && fail "takes garbage of kind $((n % 4)), n = $n"
	done
}

survives_garbage() {
	write_garbage
	still_works
	background "ipi 0 1 $LONG"
	write_garbage
	# A slow machine may have come to its end; nothing else may end it.
	! begun || kill -TERM "$(cat "$LOAD")"
	wait "$(cat "$LOAD")" 2> /dev/null
	: > "$LOAD"
	[ ! -s "$WORK/background" ] || fail "the measurement failed: $(cat "$WORK/background")"
	still_works
}

cannot_be_unloaded_in_use() {
	exec 4< $FILES/samples
	! rmmod $MODULE 2> /dev/null || fail "unloaded with a file open"
	exec 4<&-
	background "ipi 0 1 $LONG"
	! rmmod $MODULE 2> /dev/null || fail "unloaded while measuring"
	begun || fail "the attempt ended the measurement"
}

unloads_without_a_trace() {
	[ -z "$WAS_LOADED" ] || skip "somebody else has loaded it"
	rmmod $MODULE || fail "cannot be unloaded"
	[ ! -e $FILES ] || fail "files left behind"
	[ ! -e $DRIVER ] || fail "the virtio driver left behind"
	within_10_s ended || fail "threads left behind"
	load
	still_works
}

need_root_and_two_cpus
has_module $MODULE || skip_all "no module $MODULE"
! is_locked_down || skip_all "a kernel that is locked down lets nobody write to debugfs"

if [ $# = 0 ]; then
	set -- files_are_for_root_only wakes_by_timer wakes_by_ipi wakes_by_device \
		shows_no_state_of_another_cpu wakes_a_busy_cpu_by_store wakes_by_store_who_polls \
		agrees_with_the_scheduler ends_with_a_wake_that_does_not_come \
		ends_with_a_wake_that_comes_late gives_up_on_a_cpu_without_time \
		refuses_nonsense refuses_without_a_device keeps_the_last_batch refuses_two_at_once \
		ends_with_its_writer ends_with_the_cpu_that_is_woken ends_with_the_cpu_that_wakes \
		ends_with_a_cpu_that_comes_back leaves_other_cpus_alone ends_with_the_device \
		survives_garbage cannot_be_unloaded_in_use unloads_without_a_trace
fi
WAS_LOADED=
[ ! -e /sys/module/$MODULE ] || WAS_LOADED=1
trap restore EXIT
trap 'exit 143' HUP INT PIPE TERM # not every shell runs the trap above then
load
run_tests "$@"
