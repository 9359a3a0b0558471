#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# poll_source in a running kernel: what a look at a device may cost. A source that takes too
# long is switched off, and gets another chance; one that the host stopped is kept.
#
# Usage: poll_source_budget.sh MODULE-FOLDER [TEST...]
# Needs root, debugfs and two CPUs.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"
# shellcheck source=poller.sh disable=SC1091
. "$(dirname "$0")/poller.sh"

# shellcheck disable=SC2034 # for word_source.sh
MODULES=${1:?usage: $0 MODULE-FOLDER [TEST...]}
shift
# shellcheck source=word_source.sh disable=SC1091
. "$(dirname "$0")/word_source.sh"

is_switched_off() { # within 10 s
	for _ in $(seq 100); do
		[ "$(column state)" = on ] || break
		sleep 0.1
	done
	[ "$(column state)" = off ]
}

switches_off_who_is_slow() {
	mark_log
	loaded peek_ns=200000
	is_switched_off || fail "still on: $(cat $TABLE)"
	sleep 0.2
	last_message 'poll source test of CPU 1 is switched off' || fail "not named in the log"
	[ "$(column overruns)" -ge 4 ] || fail "switched off for nothing: $(cat $TABLE)"
	peeks=$(column peeks)
	notified=$(of_source notified)
	sleep 1
	[ "$(column peeks)" -eq "$peeks" ] || fail "off, but looked at"
	[ "$(of_source notified)" -gt "$notified" ] || fail "its interrupts do not arrive"
	ends_well
}

# Interrupts are off in each of these calls.
switches_off_at_once_who_is_very_slow() {
	loaded peek_ns=10000000
	is_switched_off || fail "still on: $(cat $TABLE)"
	calls=$(($(column peek_ns) / 10000000)) # a busy host makes other calls overrun, too
	cat $TABLE
	[ $calls -le 8 ] || fail "only after $calls calls of 10 ms each"
	ends_well
}

# What is off is left out of polls: nobody would look at it while it is held back.
holds_back_nobody_who_is_off() {
	load_driver mode=fixed poll_limit_us=10000
	parameter hold_us 10000000
	load_source hold_start_ns=10000000
	is_switched_off || fail "still on: $(cat $TABLE)"
	cat $TABLE
	calls=$(($(column peek_ns) / 10000000))
	[ "$(column holds)" -lt $calls ] || fail "held back by the last of $calls calls"
	ends_well
}

overruns_reach() { # COUNT
	for _ in $(seq 200); do
		[ "$(column overruns)" -lt "$1" ] || break
		sleep 0.1
	done
	cat $TABLE
	[ "$(column overruns)" -ge "$1" ]
}

gives_another_chance() {
	loaded peek_ns=1000000
	is_switched_off || fail "still on: $(cat $TABLE)"
	sleep 0.2
	peeks=$(column peeks)
	parameter peek_budget_ns 50000
	sleep 1
	[ "$(column peeks)" -gt "$peeks" ] || fail "still off: $(cat $TABLE)"
	# By itself, ten seconds later.
	peeks=$(column peeks)
	for _ in $(seq 150); do
		[ "$(column peeks)" -eq "$peeks" ] || break
		sleep 0.1
	done
	cat $TABLE
	[ "$(column peeks)" -gt "$peeks" ] || fail "stays off"
	ends_well
}

# Together they may take as long as one alone: 8 times 30 us, where 50 us are too long.
limits_all_looks_together() {
	loaded silent=8 silent_peek_ns=30000
	sleep 2
	cat $TABLE
	row=$(of_source most_in_a_row)
	[ "$row" -gt 0 ] || fail "no look"
	# Two of 30 us, and that at the device.
	[ "$row" -le 3 ] || fail "$row looks while interrupts were off"
	peeks=$(grep ' silent ' $TABLE | cut -d' ' -f7 | sort -n | head -n 1)
	[ "$peeks" -gt 0 ] || fail "one is never looked at"
	[ "$(column hits)" -gt 0 ] || fail "no hit"
	ends_well
}

charges_who_refuses_a_poll() {
	loaded silent=1 silent_start_ns=60000
	sleep 2
	cat $TABLE
	[ "$(column overruns silent)" -gt 0 ] || fail "its own time is nobody's"
	[ "$(column state)" = on ] || fail "the other one pays for it"
	ends_well
}

keeps_who_is_seldom_slow() {
	loaded peek_ns=200000 slow_every=100
	overruns_reach 100 || fail "too slow a machine, or overruns are not counted"
	[ "$(column state)" = on ] || fail "switched off"
	ends_well
}

need_what_sources_need
if [ $# = 0 ] && is_realtime; then
	set -- refuses_a_realtime_kernel
elif [ $# = 0 ] && [ "$IN_TREE" ]; then # a limit cannot be given
	set -- switches_off_who_is_slow switches_off_at_once_who_is_very_slow
elif [ $# = 0 ]; then
	set -- switches_off_who_is_slow switches_off_at_once_who_is_very_slow \
		holds_back_nobody_who_is_off gives_another_chance \
		limits_all_looks_together \
		charges_who_refuses_a_poll keeps_who_is_seldom_slow
fi
trap 'rm -f "$LOAD"; unload' EXIT
run_tests "$@"
