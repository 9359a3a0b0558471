#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# test_cpuidle_latency in a running kernel: samples of every source, which of them
# count, what is refused, signals, CPU hotplug, unbinding and unloading meanwhile.
#
# Usage: test-cpuidle_latency.sh MODULE-FOLDER [TEST...]
# Needs root and two CPUs; a virtio entropy device for its source, tracefs for the
# ledger, and cpuidle_lightsleep and cpuidle_synthetic for states that are known.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"

MODULES=${1:?usage: $0 MODULE-FOLDER [TEST...]}
shift

MODULE=test_cpuidle_latency
FILES=/sys/kernel/debug/latency_test
TRACING=/sys/kernel/tracing
DRIVER=/sys/bus/virtio/drivers/$MODULE
RUNTIME=/proc/sys/kernel/sched_rt_runtime_us
CPU1=/sys/devices/system/cpu/cpu1
COLUMNS='source src dest requested entered path settled_ns launch_ns wake_ns latency_ns verdict'
# Long enough for a kernel full of checks to become idle meanwhile.
DISTANCES='min_ns=200000 max_ns=1000000'

# A minute of it; the thread that keeps the CPU busy shows that it has begun.
LONG='state=busy samples=600 min_ns=100000000 max_ns=100000000'

WORK=$(mktemp -d)
RUNTIME_BEFORE=$(cat $RUNTIME)
WHY=$WORK/why # what the shell says of a write that failed

# Each load makes the kernel patch its code, which some emulators do not like.
load() {
	[ -e /sys/module/$MODULE ] || insmod "$MODULES/$MODULE.ko" || fail "insmod failed"
	mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug
}

unload() { # MODULE
	[ ! -e "/sys/module/$1" ] || rmmod "$1"
}

# An idle driver of ours for one test, if there is one; after_each takes it away.
idle_driver() { # NAME PARAMETER...
	[ -e "$MODULES/$1.ko" ] || skip "no $1.ko"
	[ "$(cat "$CPUS/cpuidle/current_driver")" = none ] || skip "there is an idle driver"
	insmod "$MODULES/$1.ko" "$2" || fail "insmod $1 failed"
}

after_each() {
	[ ! -s "$LOAD" ] || kill -KILL "$(cat "$LOAD")" 2> /dev/null
	: > "$LOAD"
	[ ! -e $CPU1/online ] || [ "$(cat $CPU1/online)" = 1 ] || echo 1 > $CPU1/online
	echo "$RUNTIME_BEFORE" > $RUNTIME
	unload cpuidle_lightsleep
	unload cpuidle_synthetic
}

request() { # LINE: prints the answer, fails as the write does
	exec 3<> $FILES/run || fail "cannot open run"
	echo "$1" > "$WORK/line"
	dd bs=1M status=none < "$WORK/line" 2> "$WHY" >&3
	status=$?
	cat <&3
	exec 3>&-
	return $status
}

samples() { # LINE: samples, without their header
	request "$1" > "$WORK/answer" || fail "'$1': $(cat "$WHY" "$WORK/answer")"
	[ "$(head -n 1 "$WORK/answer")" = "$COLUMNS" ] || fail "$(head -n 1 "$WORK/answer")"
	tail -n +2 "$WORK/answer"
}

refused() { # ERROR MESSAGE LINE
	! request "$3" > "$WORK/answer" || fail "takes '$3'"
	grep -q "$1" "$WHY" || fail "'$3': not $1, but $(cat "$WHY")"
	[ "$(cat "$WORK/answer")" = "error: $2" ] || fail "'$3': $(cat "$WORK/answer")"
}

begun() {
	grep -qs '^latency_test/' /proc/[0-9]*/comm
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
	(exec 3<> $FILES/run
	echo "$1" > "$WORK/line"
	exec cat "$WORK/line" >&3 2> "$WORK/background") &
	echo $! > "$LOAD"
	within_10_s begun || fail "'$1' does not begin: $(cat "$WORK/background")"
}

fails_in_background() { # ERROR
	! wait "$(cat "$LOAD")" || fail "the measurement did not fail"
	: > "$LOAD"
	grep -q "$1" "$WORK/background" || fail "not $1, but $(cat "$WORK/background")"
	! begun || fail "threads left behind"
}

still_works() {
	[ "$(samples "source=ipi src=0 dest=1 state=any samples=20 $DISTANCES" | wc -l)" = 20 ] ||
		fail "no longer works"
}

files_are_for_root_only() {
	modes=$(cd $FILES && stat -c '%n %a' -- * | tr '\n' ' ')
	expected="ipi_cpu_dest 600 ipi_cpu_src 600 ipi_latency_ns 400 run 600 sources 400 "
	expected="${expected}timeout_cpu_src 600 timeout_diff_ns 400 timeout_expected_ns 600 "
	[ "$modes" = "$expected" ] || fail "$modes"
}

names_its_sources() {
	[ "$(cut -d: -f1 $FILES/sources | tr '\n' ' ')" = "timer ipi store device " ] ||
		fail "$(cat $FILES/sources)"
	[ -z "$(ls -d $DRIVER/virtio* 2> /dev/null)" ] && why=": no virtio entropy device is bound to $MODULE"
	[ "$(grep device $FILES/sources)" = "device${why-}" ] || fail "$(cat $FILES/sources)"
}

# Every field of every sample, as far as it is known beforehand.
check_samples() { # SOURCE PATHS STATE, < samples
	taken=0
	good=0
	before=0
	while read -r source src dest requested entered path settled launch wake latency verdict; do
		line="$source $src $dest $requested $entered $path $settled $launch $wake $latency $verdict"
		[ "$source $dest $requested" = "$1 1 $3" ] || fail "not what was asked for: $line"
		[ "$launch" -gt "$((before + 200000))" ] || fail "too early after $before: $line"
		[ "$latency" = $((wake - launch)) ] || fail "wrong latency: $line"
		[ "$latency" -gt 0 ] || fail "awake before the launch: $line"
		case " $2 " in
		*" $path "*) ;;
		*) fail "path is not of $2: $line" ;;
		esac
		before=$launch
		taken=$((taken + 1))
		[ "$verdict" = ok ] || continue
		good=$((good + 1))
		case $3 in
		busy) [ "$entered $settled" = "-1 0" ] || fail "was idle: $line" ;;
		any) [ "$entered" -ge 0 ] || fail "was not idle: $line" ;;
		*) [ "$entered" = "$3" ] || fail "was in another state: $line" ;;
		esac
	done
	echo "$1, $3: $good of $taken count"
	[ "$taken" = 50 ] || fail "$taken samples, not 50"
	[ "$good" -ge 10 ] || fail "almost none counts"
}

wakes_from_idle_and_busy() { # SOURCE SRC PATHS
	for state in any busy; do
		samples "source=$1 src=$2 dest=1 state=$state samples=50 $DISTANCES" > "$WORK/samples"
		check_samples "$1" "$3" $state < "$WORK/samples"
	done
}

wakes_by_timer() {
	wakes_from_idle_and_busy timer 1 timer
	samples "source=timer dest=1 state=any samples=50 $DISTANCES" > "$WORK/samples"
	check_samples timer timer any < "$WORK/samples"
}

wakes_by_ipi() {
	wakes_from_idle_and_busy ipi 0 "ipi none"
}

wakes_by_device() {
	grep -qx device $FILES/sources || skip "$(grep device $FILES/sources)"
	wakes_from_idle_and_busy device 0 irq
}

wakes_a_busy_cpu_by_store() {
	samples "source=store src=0 dest=1 state=busy samples=50 $DISTANCES" > "$WORK/samples"
	check_samples store none busy < "$WORK/samples"
}

verdicts() { # < samples
	cut -d' ' -f11 | sort | uniq -c | tr -s '\n ' ' '
}

count() { # WORD [FIELD], < samples
	cut -d' ' -f"${2:-11}" | grep -cx -- "$1"
}

# Out of POLL without an interrupt, out of HALT with one, and it says which.
wakes_by_store_who_polls() {
	idle_driver cpuidle_lightsleep mode=off
	for state in 0 1; do
		echo 1 > $CPU1/cpuidle/state$((1 - state))/disable
		samples "source=store src=0 dest=1 state=$state samples=50 $DISTANCES" > "$WORK/samples"
		echo 0 > $CPU1/cpuidle/state$((1 - state))/disable
		echo "state $state:$(verdicts < "$WORK/samples")"
		if [ $state = 0 ]; then
			[ "$(count none 6 < "$WORK/samples")" -gt 0 ] ||
				skip "this kernel always interrupts"
			check_samples store "none ipi" 0 < "$WORK/samples"
			! grep -q "0 ipi .* ok" "$WORK/samples" || fail "an interrupt counts"
		else
			[ "$(count not-polling < "$WORK/samples")" -ge 10 ] || fail "who halts does not poll"
			! grep "1 none .* ok" "$WORK/samples" || fail "HALT took no interrupt"
		fi
	done
}

# An IPI says by itself whether it was one; the scheduler must agree each time.
agrees_with_the_scheduler() {
	event=$TRACING/events/sched/sched_wake_idle_without_ipi
	mountpoint -q $TRACING || mount -t tracefs none $TRACING || skip "no tracefs"
	[ -e $event ] || skip "no sched_wake_idle_without_ipi"
	idle_driver cpuidle_lightsleep mode=off
	echo 1 > $CPU1/cpuidle/state1/disable
	echo mono > $TRACING/trace_clock
	echo cpu==1 > $event/filter
	: > $TRACING/trace
	echo 1 > $event/enable
	for source in store ipi; do
		samples "source=$source src=0 dest=1 state=0 samples=200 $DISTANCES" >> "$WORK/ledger"
	done
	echo 0 > $event/enable
	echo 0 > $event/filter

	# Microseconds and an s for each sample, with its path, and an e for each event that an
	# interrupt on CPU 0 made. Behind each sample there has to be its event, or none.
	cut -d' ' -f6,8 "$WORK/ledger" | sed -E 's/(.*) (.*)...$/\2 s \1/' > "$WORK/both"
	sed -nE 's/.*\[000\] d..?[hH].* ([0-9]+)\.([0-9]{6}): sched_wake.*/\1\2 e/p' \
		$TRACING/trace >> "$WORK/both"
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
	[ "$none$events" != 00 ] || skip "this kernel always interrupts"
	[ $none -ge 100 ] || fail "almost no wake went without an interrupt"
	# Others wake this CPU, too; and right behind another wake none is needed.
	[ $missing -le 4 ] || fail "the scheduler does not know of $missing"
	[ $surplus -le 20 ] || fail "the scheduler knows of $surplus more"
}

counts_only_the_right_state() {
	samples "source=ipi src=0 dest=1 state=9 samples=50 $DISTANCES" > "$WORK/samples"
	echo "state 9:$(verdicts < "$WORK/samples")"
	[ "$(count ok < "$WORK/samples")" = 0 ] || fail "a state that there is not was entered"
	[ "$(count wrong-state < "$WORK/samples")" -ge 10 ] || fail "does not say wrong-state"
}

counts_only_who_settled() {
	line="source=ipi src=0 dest=1 state=any samples=50 $DISTANCES"
	samples "$line settle_ns=1000000000" > "$WORK/samples"
	echo "1 s:$(verdicts < "$WORK/samples")"
	[ "$(count ok < "$WORK/samples")" = 0 ] || fail "settled for a second, within 1 ms"
	[ "$(count unsettled < "$WORK/samples")" -ge 10 ] || fail "does not say unsettled"
	samples "$line settle_ns=10000" | while read -r _ _ _ _ _ _ settled _ _ _ verdict; do
		[ "$verdict" != ok ] || [ "$settled" -ge 10000 ] || fail "$settled ns are not settled"
	done || fail "counts who has not settled"
}

ends_with_a_wake_that_does_not_come() {
	idle_driver cpuidle_synthetic states=slow:1:1:100000
	samples "source=ipi src=0 dest=1 state=0 samples=50 min_ns=1000000 max_ns=1000000 timeout_ns=1000000" \
		> "$WORK/samples"
	tail -n 1 "$WORK/samples"
	[ "$(wc -l < "$WORK/samples")" -lt 50 ] || fail "there was nothing to wait for"
	tail -n 1 "$WORK/samples" | grep -q '^ipi 0 1 0 -1 - 0 [0-9]* 0 0 timeout$' ||
		fail "does not end with a timeout"
	unload cpuidle_synthetic
	still_works
}

# Samples or not, it ends; and so does the thread, which may never have had its turn.
# With PREEMPT_RT, the timer of timeout is a thread, too: on the CPU that has no time for it.
gives_up_on_a_cpu_without_time() {
	echo -1 > $RUNTIME
	for source in ipi store; do
		taskset -c 0 timeout 4 taskset -c 1 chrt -f 50 sh -c 'while :; do :; done' &
		sleep 1
		request "source=$source src=0 dest=1 state=busy samples=20 $DISTANCES" > "$WORK/answer" ||
			grep -qx 'error: CPU 1 is too busy to run a thread' "$WORK/answer" ||
			fail "$(cat "$WHY" "$WORK/answer")"
		tail -n 1 "$WORK/answer"
		! begun || fail "threads left behind"
		wait
	done
	still_works
}

takes_single_samples() {
	echo 0 > $FILES/ipi_cpu_src || fail "ipi_cpu_src"
	echo 1 > $FILES/ipi_cpu_dest || fail "ipi_cpu_dest"
	[ "$(cat $FILES/ipi_cpu_src $FILES/ipi_cpu_dest | tr '\n' ' ')" = "0 1 " ] || fail "CPUs lost"
	latency=$(cat $FILES/ipi_latency_ns)
	[ "$latency" -gt 0 ] || fail "ipi_latency_ns is $latency"
	echo 1 > $FILES/timeout_cpu_src || fail "timeout_cpu_src"
	echo 2000000 > $FILES/timeout_expected_ns || fail "timeout_expected_ns"
	[ "$(cat $FILES/timeout_expected_ns)" = 2000000 ] || fail "timeout_expected_ns lost"
	diff=$(cat $FILES/timeout_diff_ns)
	[ "$diff" -gt 0 ] || fail "timeout_diff_ns is $diff"

	for value in 999999 -1 x '' 4294967296 99999999999999999999; do
		for file in ipi_cpu_src ipi_cpu_dest timeout_cpu_src; do
			! env echo "$value" 2> /dev/null > $FILES/$file || fail "$file takes '$value'"
		done
	done
	for value in 999 1000000001 -1 x ''; do
		! env echo "$value" 2> /dev/null > $FILES/timeout_expected_ns ||
			fail "timeout_expected_ns takes '$value'"
	done
	! env echo 0 2> "$WHY" > $FILES/ipi_cpu_dest || fail "a CPU wakes itself"
	grep -q 'Invalid argument' "$WHY" || fail "$(cat "$WHY")"
	[ "$(cat $FILES/ipi_latency_ns)" = "$latency" ] || fail "the old result is gone"
}

refuses_nonsense() {
	good="source=ipi src=0 dest=1 state=any samples=10 $DISTANCES"
	invalid='Invalid argument'
	refused "$invalid" 'dest: is missing' ''
	refused "$invalid" 'dest: is missing' '   '
	refused "$invalid" 'no such key: x' "$good x=1"
	refused "$invalid" 'no such key: x' "x $good"
	refused "$invalid" 'no such key: ' "$good =1"
	refused "$invalid" "no such key: $(printf %032d 0)" "$good $(printf %0100d 0)=1"
	refused "$invalid" 'dest: has no value' "source=ipi dest"
	refused "$invalid" 'dest: given twice' "$good dest=1"
	refused "$invalid" 'source: given twice' "$good source=timer"
	refused "$invalid" 'source: is missing' "${good#source=ipi }"
	refused "$invalid" 'source: no such source, see the file sources' "${good%%=*}=smoke ${good#* }"
	refused "$invalid" 'src: is missing' "source=ipi dest=1 state=any samples=10 $DISTANCES"
	refused "$invalid" 'src: must be another CPU than dest, 1' \
		"source=ipi src=1 dest=1 state=any samples=10 $DISTANCES"
	refused "$invalid" 'src: source timer wakes its own CPU, here 1' \
		"source=timer src=0 dest=1 state=any samples=10 $DISTANCES"
	for state in -1 10 ANY 'any,' 1x '' 4294967296; do
		refused "$invalid" 'state: must be any, busy or from 0 to 9' \
			"source=ipi src=0 dest=1 state=$state samples=10 $DISTANCES"
	done
	for samples in 0 10001 -1 x '' 1e3 0x10 99999999999999999999; do
		refused "$invalid" 'samples: must be a number from 1 to 10000' \
			"source=ipi src=0 dest=1 state=any samples=$samples $DISTANCES"
	done
	for cpu in -1 x '' 4294967296; do
		refused "$invalid" 'dest: must be a number from 0 to 4294967295' \
			"source=ipi src=0 dest=$cpu state=any samples=10 $DISTANCES"
	done
	for distance in 999 1000000001 -5; do
		refused "$invalid" 'min_ns: must be a number from 1000 to 1000000000' \
			"source=ipi src=0 dest=1 state=any samples=1 min_ns=$distance max_ns=1000"
	done
	refused "$invalid" 'min_ns: is larger than max_ns' \
		"source=ipi src=0 dest=1 state=any samples=1 min_ns=2000 max_ns=1999"
	refused "$invalid" 'samples: samples times max_ns must be 60 s at most' \
		"source=ipi src=0 dest=1 state=any samples=61 min_ns=1000 max_ns=1000000000"
	refused "$invalid" 'timeout_ns: must be a number from 1000000 to 10000000000' \
		"$good timeout_ns=999999"
	refused "$invalid" 'settle_ns: must be a number from 0 to 1000000000' "$good settle_ns=1000000001"
	refused "$invalid" 'the line is longer than 255' "$good $(printf %0300d 0)"
	refused "$invalid" 'the line is longer than 255' "$(printf %065536d 0)"
	refused 'No such device' 'dest: CPU 4000000000 is not online' \
		"source=ipi src=0 dest=4000000000 state=any samples=10 $DISTANCES"
	refused 'No such device' 'src: CPU 8191 is not online' \
		"source=ipi src=8191 dest=1 state=any samples=10 $DISTANCES"

	refused "$invalid" 'the request is not one line of text' "$good
$good"
	refused "$invalid" 'the request is not one line of text' "$good$(printf '\t\033[2J')"
	exec 3<> $FILES/run
	! printf 'source=ipi\0src=0\n' 2> /dev/null >&3 || fail "takes a NUL"
	[ "$(cat <&3)" = "error: the request is not one line of text" ] || fail "does not say what is wrong with a NUL"
	exec 3>&-
	still_works
}

refuses_without_a_device() {
	! grep -qx device $FILES/sources || skip "there is an entropy device"
	why="no virtio entropy device is bound to $MODULE"
	refused 'No such device' "source device cannot be used: $why" \
		"source=device src=0 dest=1 state=any samples=10 $DISTANCES"
}

answers_whoever_asked() {
	exec 4<> $FILES/run 5<> $FILES/run
	[ -z "$(cat <&4)" ] || fail "an answer before the question"
	echo "source=ipi src=0 dest=1 state=any samples=7 $DISTANCES" >&4
	echo "source=timer dest=1 state=any samples=3 $DISTANCES" >&5
	[ "$(cat <&4 | grep -c '^ipi')" = 7 ] || fail "the first answer is gone"
	[ "$(cat <&5 | grep -c '^timer')" = 3 ] || fail "the second answer is gone"
	# Again on the same descriptor; and a small buffer changes nothing.
	echo "source=ipi src=0 dest=1 state=any samples=300 $DISTANCES" >&4
	[ "$(dd bs=7 <&4 2> /dev/null | grep -c '^ipi.*[a-z]$')" = 300 ] || fail "a small buffer"
	exec 4>&- 5>&-
}

refuses_two_at_once() {
	background "source=ipi src=0 dest=1 $LONG"
	refused 'Device or resource busy' 'another measurement is running' \
		"source=timer dest=0 state=any samples=10 $DISTANCES"
	! env echo 1 2> "$WHY" > $FILES/ipi_cpu_dest || fail "ipi_cpu_dest measures meanwhile"
	grep -q 'resource busy' "$WHY" || fail "$(cat "$WHY")"
	begun || fail "the first one was disturbed"
}

ends_with_its_writer() {
	for signal in TERM KILL; do
		for line in "source=ipi src=0 dest=1 $LONG" "source=timer dest=1 $LONG" \
			"source=store src=0 dest=1 $LONG"; do
			background "$line"
			kill -$signal "$(cat "$LOAD")"
			wait "$(cat "$LOAD")" 2> /dev/null
			: > "$LOAD"
			! begun || fail "$signal: threads left behind"
			still_works
		done
	done
}

takes_cpus_offline() { # LINE
	[ -e $CPU1/online ] || skip "CPU 1 cannot go offline"
	background "$1"
	echo 0 > $CPU1/online || fail "CPU 1 stays online"
	fails_in_background 'No such device'
	refused 'No such device' "${2}: CPU 1 is not online" "$(cat "$WORK/line")"
	echo 1 > $CPU1/online || fail "CPU 1 stays offline"
	still_works
}

ends_with_the_cpu_that_is_woken() {
	takes_cpus_offline "source=ipi src=0 dest=1 $LONG" dest
	takes_cpus_offline "source=timer dest=1 $LONG" dest
	takes_cpus_offline "source=store src=0 dest=1 $LONG" dest
}

ends_with_the_cpu_that_wakes() {
	takes_cpus_offline "source=ipi src=1 dest=0 $LONG" src
	takes_cpus_offline "source=store src=1 dest=0 $LONG" src
}

leaves_other_cpus_alone() {
	[ -e $CPU1/online ] || skip "CPU 1 cannot go offline"
	background "source=timer dest=0 $LONG"
	echo 0 > $CPU1/online || fail "CPU 1 stays online"
	begun || fail "a CPU that is not used ended it"
	echo 1 > $CPU1/online || fail "CPU 1 stays offline"
	begun || fail "a CPU that is not used ended it"
}

ends_with_the_device() {
	grep -qx device $FILES/sources || skip "$(grep device $FILES/sources)"
	device=$(basename "$(ls -d $DRIVER/virtio*)")
	background "source=device src=0 dest=1 $LONG"
	echo "$device" > $DRIVER/unbind || fail "cannot unbind"
	fails_in_background 'No such device'
	grep -q '^device: no virtio entropy' $FILES/sources || fail "$(cat $FILES/sources)"
	echo "$device" > $DRIVER/bind || fail "cannot bind"
	wakes_by_device
}

# Frozen, its writer gives up, and starts over when the machine is back.
survives_suspend() {
	[ -e /sys/power/pm_test ] || skip "no /sys/power/pm_test"
	background "source=ipi src=0 dest=1 $LONG"
	echo devices > /sys/power/pm_test
	echo freeze > /sys/power/state || fail "cannot suspend"
	echo none > /sys/power/pm_test
	within_10_s begun || fail "does not start over: $(cat "$WORK/background")"
	kill -TERM "$(cat "$LOAD")"
	wait "$(cat "$LOAD")" 2> /dev/null
	: > "$LOAD"
	still_works
	! grep -qx device $FILES/sources || wakes_by_device
}

survives_garbage() {
	background "source=ipi src=0 dest=1 $LONG"
	for n in $(seq "${GARBAGE:-200}"); do
		for file in run ipi_cpu_src ipi_cpu_dest timeout_cpu_src timeout_expected_ns; do
			case $((n % 4)) in
			0) echo "-$n" ;;
			1) head -c $((n * 37 % 4097)) /dev/urandom ;;
			2) echo "source=ipi src=$n dest=1 state=any samples=$n min_ns=1000 max_ns=$n$n" ;;
			3) echo $((n * n * n * n * n)) ;;
			esac > $FILES/$file
		done 2> /dev/null
	done
	# A slow machine may have come to its end; nothing else may end it.
	! begun || kill -TERM "$(cat "$LOAD")"
	wait "$(cat "$LOAD")" 2> /dev/null
	: > "$LOAD"
	[ ! -s "$WORK/background" ] || fail "the measurement failed: $(cat "$WORK/background")"
	still_works
}

cannot_be_unloaded_in_use() {
	exec 4< $FILES/sources
	! rmmod $MODULE 2> /dev/null || fail "unloaded with a file open"
	exec 4<&-
	background "source=ipi src=0 dest=1 $LONG"
	! rmmod $MODULE 2> /dev/null || fail "unloaded while measuring"
	begun || fail "the attempt ended the measurement"
}

unloads_without_a_trace() {
	rmmod $MODULE || fail "cannot be unloaded"
	[ ! -e $FILES ] || fail "files left behind"
	[ ! -e $DRIVER ] || fail "the virtio driver left behind"
	! begun || fail "threads left behind"
	! grep -q latency_test /sys/devices/system/cpu/hotplug/states || fail "the hotplug callback left behind"
	load
	still_works
}

if [ "$(id -u)" != 0 ]; then
	echo "1..0 # SKIP needs root"
	exit "$KSFT_SKIP"
fi
if [ ! -e $CPU1 ]; then
	echo "1..0 # SKIP needs two CPUs"
	exit "$KSFT_SKIP"
fi

if [ $# = 0 ]; then
	set -- files_are_for_root_only names_its_sources wakes_by_timer wakes_by_ipi \
		wakes_by_device wakes_a_busy_cpu_by_store wakes_by_store_who_polls \
		agrees_with_the_scheduler counts_only_the_right_state counts_only_who_settled \
		ends_with_a_wake_that_does_not_come gives_up_on_a_cpu_without_time \
		takes_single_samples refuses_nonsense \
		refuses_without_a_device answers_whoever_asked refuses_two_at_once \
		ends_with_its_writer ends_with_the_cpu_that_is_woken ends_with_the_cpu_that_wakes \
		leaves_other_cpus_alone ends_with_the_device survives_suspend survives_garbage \
		cannot_be_unloaded_in_use unloads_without_a_trace
fi
load
trap 'after_each; unload $MODULE; rm -rf "$LOAD" "$WORK"' EXIT
run_tests "$@"
