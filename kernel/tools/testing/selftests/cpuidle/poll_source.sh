#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# poll_source in a running kernel: a CPU that polls notices the events of a
# device that is a word in memory, handles them outside idle, and loses none,
# whatever happens to the source or the CPU meanwhile.
#
# Usage: [ROUNDS=50] poll_source.sh MODULE-FOLDER [TEST...]
# Needs root, debugfs and two CPUs. ROUNDS: how often a source or a CPU comes and goes.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"
# shellcheck source=poller.sh disable=SC1091
. "$(dirname "$0")/poller.sh"

MODULES=${1:?usage: $0 MODULE-FOLDER [TEST...]}
shift
# shellcheck source=word_source.sh disable=SC1091
. "$(dirname "$0")/word_source.sh"

ROUNDS=${ROUNDS:-50}
ONLINE=$CPUS/cpu1/online

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

until_it_grows() { # COUNTER of the source: within 5 s
	before=$(of_source "$1")
	for _ in $(seq 50); do
		[ "$(of_source "$1")" -le "$before" ] || return 0
		sleep 0.1
	done
	return 1
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
	polls=$(cat $STATISTICS/polls)
	pipe_load 1000
	[ "$(cat $STATISTICS/polls)" -gt "$polls" ] || fail "does not poll any more"
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

	parameter hold_us 0
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
	for bad in peek_budget_ns=99 peek_budget_ns=1000001 peek_budget_ns=x hold_us=10000001 \
		hold_us=-1 hold_us=; do
		name=${bad%%=*}
		before=$(cat "$PARAMETERS/$name")
		mark_log
		! echo "${bad#*=}" 2> /dev/null > "$PARAMETERS/$name" || fail "takes $bad"
		last_message "$name: must be a number from" || fail "$bad: does not say what it takes"
		[ "$(cat "$PARAMETERS/$name")" = "$before" ] || fail "$bad stuck"
	done
}

holds_back_after_work() {
	loaded period_us=200
	parameter hold_us 0
	sleep 0.5
	holds=$(column holds)
	sleep 0.5
	[ "$(column holds)" -eq "$holds" ] || fail "holds with hold_us=0"
	expired=$(column expired)
	polls=$(column polls)
	parameter hold_us 10000000
	sleep 1
	polls=$(($(column polls) - polls))
	holds=$(($(column holds) - holds))
	expired=$(($(column expired) - expired))
	cat $TABLE
	# The idle loop leaves its cores to a host that needs them. Who does not poll holds nothing.
	[ ! "$IN_TREE" ] || [ $polls -gt 20 ] || skip "polls only $polls times a second"
	[ $holds -gt 0 ] || fail "does not hold"
	[ $expired -lt $((holds / 2 + 1)) ] || fail "$expired of $holds expired"
	ends_well
}

# The source does not join a poll by itself: nothing in the poll would notice what comes meanwhile. The
# device is on the same CPU here. From another one, its interrupt would be a function call, which a CPU
# that polls takes after the poll. A second source takes part in polls, and so tells which interrupts
# come during one. Totals would not tell: a busy host ends polls early, and a hold may follow each.
holds_nothing_during_a_poll() {
	load_driver mode=fixed poll_limit_us=10000
	parameter hold_us 1000000
	taskset 2 insmod "$MODULES/$SOURCE.ko" cpu=1 period_us=200 silent=1 refuses=1 ||
		fail "insmod failed"
	sleep 2
	interrupts=$(of_source notified_in_poll)
	cat $TABLE
	echo "$interrupts of $(of_source notified) interrupts during a poll"
	[ "$interrupts" -gt 20 ] || skip "$interrupts interrupts during a poll"
	[ "$(of_source held_in_poll)" = 0 ] || fail "$(of_source held_in_poll) holds during a poll"
	ends_well
}

holds_no_longer_than_that() {
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

# A CPU without a poll would hear of events late, and gain nothing. (With mode=off, the governor may
# still choose POLL.)
# The driver polls whatever it is told while it measures what a halt costs, as it does once it is
# loaded, for seconds on a slow machine.
holds_nothing_where_the_cpu_does_not_poll() {
	load_driver mode=off
	load_source period_us=200
	sleep 1
	[ "$(of_source notified)" -gt 0 ] || fail "no interrupt"
	polls=$(cat $STATISTICS/polls)
	cat $TABLE
	[ "$(column holds)" -le "$polls" ] || fail "mode=off, $polls polls"
	ends_well
	load_driver mode=fixed poll_limit_us=1000
	disable 0 1 # then the limit of HALT is 0, too
	before=$(cat $STATISTICS/polls)
	load_source period_us=200
	sleep 1
	holds=$(column holds)
	polls=$(($(cat $STATISTICS/polls) - before))
	disable 0 0
	[ "$holds" -le "$polls" ] || fail "POLL disabled, $polls polls: $(cat $TABLE)"
	ends_well
}

# Prints how many timers of holds were cancelled in idle on CPU 1, and how many of these more than one
# entry into HALT had seen.
timers_seen() {
	command -v awk > /dev/null || set -- busybox
	"$@" awk '!/\[001\]/ { next }
		/hrtimer_start:.*poll_sources_hold_over/ {
			match($0, /hrtimer=[^ ]*/)
			timer = substr($0, RSTART, RLENGTH)
			entries = 0
		}
		timer && /cpu_idle: state=1 / { entries++ }
		timer && /hrtimer_expire_entry:/ && index($0, timer) { timer = "" }
		timer && /hrtimer_cancel:/ && index($0, timer) {
			if (entries) total++
			if (entries > 1) late++
			timer = ""
		}
		END { print total + 0, late + 0 }' "$TRACE/trace"
}

# The second event of a burst ends a poll. The next poll ends with nothing, and then the CPU halts:
# the timer of the hold must be gone before the governor asks for the next timer. The first hold of
# a source lasts as long as hold_us allows.
leaves_no_timer_to_the_governor() {
	need_tracer
	[ -d "$TRACE/events/timer/hrtimer_start" ] || skip "the kernel cannot trace timers"
	load_driver mode=fixed poll_limit_us=5000 hold_us=1000000
	for event in timer/hrtimer_start timer/hrtimer_cancel timer/hrtimer_expire_entry \
		power/cpu_idle; do
		echo 1 > "$TRACE/events/$event/enable"
	done
	echo > "$TRACE/trace"
	for _ in $(seq 10); do
		load_source period_us=50000 burst=2
		sleep 0.2
		ends_well
	done
	echo 0 > "$TRACE/events/enable"
	seen=$(timers_seen)
	echo > "$TRACE/trace"
	total=${seen% *}
	late=${seen#* }
	echo "$total timers cancelled in idle, $late of them late"
	[ "$total" -gt 0 ] || fail "no poll ended without a hit after a hold"
	[ $((late * 2)) -lt "$total" ] || fail "the governor takes the timer into account"
}

holds_nothing_while_the_cpu_halts() {
	loaded period_us=200
	parameter hold_us 10000000
	sleep 0.5
	holds=$(column holds)
	[ "$holds" -gt 0 ] || fail "does not hold: $(cat $TABLE)"
	stop_polling
	until_it_grows notified || fail "no interrupt on a CPU that halts"
	ends_well
}

holds_nothing_while_the_cpu_is_offline() {
	[ -e "$ONLINE" ] || skip "CPU 1 cannot go offline"
	loaded period_us=200
	parameter hold_us 10000000
	for round in $(seq 10); do
		sleep 0.2
		echo 0 > "$ONLINE" || fail "round $round: stays online"
		state=$(of_source suppressed)
		echo 1 > "$ONLINE" || fail "round $round: stays offline"
		[ "$state" = N ] || fail "round $round: held back"
	done
	ends_well
}

is_a_wake_to_learn_from() {
	load_driver
	load_source period_us=50
	hits=$(cat $STATISTICS/hits)
	sleep 3
	hits=$(($(cat $STATISTICS/hits) - hits))
	limit=$(cat $STATISTICS/limit_ns)
	echo "$hits hits, limit $limit ns"
	[ "$limit" -gt 0 ] || skip "polling does not pay on this machine"
	[ "$hits" -gt 0 ] || fail "no hit"
	ends_well
}

# An interrupt that wakes nobody ends a halt, but no poll: there is nothing to poll for. The timer that
# plays the device is one, on the CPU that loads the module.
does_not_poll_for_interrupts() {
	load_driver
	taskset 2 insmod "$MODULES/$SOURCE.ko" cpu=0 period_us=200 || fail "insmod failed"
	sleep 1
	start=$(now_us)
	polled=$(cat $STATISTICS/polled_ns)
	events=$(of_source produced)
	sleep 3
	us=$(($(now_us) - start))
	polled=$((($(cat $STATISTICS/polled_ns) - polled) / 1000))
	events=$(($(of_source produced) - events))
	echo "polled for $polled of $us us, $events interrupts"
	[ $events -gt 300 ] || skip "only $events interrupts"
	[ $((polled * 20)) -lt $us ] || fail "polled for $polled of $us us"
	ends_well
}

survives_hotplug() {
	[ -e "$ONLINE" ] || skip "CPU 1 cannot go offline"
	loaded period_us=200
	for round in $(seq "$ROUNDS"); do
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
	for round in $(seq "$ROUNDS"); do
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

# Only for the idle loop: the tests up to the next such comment.
survives_the_switch_of_the_idle_loop() {
	loaded
	for _ in $(seq 100); do
		echo 0 > $IDLE_POLL
		echo 1 > $IDLE_POLL
	done
	echo 0 > $IDLE_POLL
	until_it_grows notified || fail "no interrupt on a CPU that does not poll"
	[ "$(of_source suppressed)" = N ] || sleep 1
	holds=$(column holds)
	until_it_grows notified || fail "no interrupt any more"
	[ "$(column holds)" -eq "$holds" ] || fail "holds, but does not poll: $(cat $TABLE)"
	ends_well
}

# Nobody told the CPU, as it had no source by then.
holds_nothing_where_polling_ended_without_sources() {
	loaded
	unload_source
	echo 0 > $IDLE_POLL
	load_source period_us=100
	until_it_grows notified || fail "no interrupt on a CPU that does not poll"
	sleep 1
	[ "$(column holds)" -eq 0 ] || fail "holds, but does not poll: $(cat $TABLE)"
	ends_well
}

# The handler takes a fifth of the CPU's time and more. In the idle time of the tick's own account there
# is none of it, as there is none of the interrupts that the device sends without a poll.
leaves_the_handler_out_of_idle_time() {
	loaded period_us=300 handle_ns=100000
	start=$(now_us)
	handled=$(column handle_ns)
	idle=$(stat_us 4 5)
	sleep 4
	idle=$(($(stat_us 4 5) - idle))
	handled=$((($(column handle_ns) - handled) / 1000))
	wall=$(($(now_us) - start))
	echo "of $wall us, $handled us in the handler; in /proc/stat $idle us idle"
	[ $handled -gt $((wall / 50)) ] || skip "the handler hardly ran"
	[ $((idle + handled)) -lt $((wall + wall / 20)) ] || fail "the handler's time is idle time"
	ends_well
}

lets_the_driver_poll_without_sources() {
	loaded
	insmod "$MODULES/$DRIVER.ko" mode=fixed poll_limit_us=1000 || fail "cannot load $DRIVER"
	[ ! -e /sys/module/$DRIVER/parameters/hold_us ] || fail "it has sources of its own"
	sleep 1
	rmmod $DRIVER || fail "cannot unload $DRIVER: the source holds it"
	ends_well
}

need_what_sources_need
# In the idle loop, a limit cannot be given, and other files tell of idle time.
if [ $# = 0 ] && is_realtime; then
	set -- refuses_a_realtime_kernel
elif [ $# = 0 ] && [ "$IN_TREE" ]; then
	set -- notices_events looks_at_nothing_where_nothing_is_registered \
		refuses_bad_parameters holds_back_after_work holds_nothing_during_a_poll \
		holds_nothing_while_the_cpu_halts holds_nothing_while_the_cpu_is_offline \
		survives_hotplug comes_and_goes_while_polled survives_the_switch_of_the_idle_loop \
		holds_nothing_where_polling_ended_without_sources leaves_the_handler_out_of_idle_time \
		refuses_a_cpu_that_is_not_there lets_the_driver_poll_without_sources
elif [ $# = 0 ]; then
	set -- notices_events looks_at_nothing_where_nothing_is_registered handles_outside_idle \
		is_interrupt_time refuses_bad_parameters holds_back_after_work \
		holds_nothing_during_a_poll holds_no_longer_than_that \
		holds_nothing_where_the_cpu_does_not_poll leaves_no_timer_to_the_governor \
		holds_nothing_while_the_cpu_halts holds_nothing_while_the_cpu_is_offline \
		does_not_poll_for_interrupts is_a_wake_to_learn_from survives_hotplug \
		comes_and_goes_while_polled \
		holds_its_driver refuses_a_cpu_that_is_not_there rests_when_its_device_is_silent
fi
trap 'rm -f "$LOAD"; unload' EXIT
run_tests "$@"
