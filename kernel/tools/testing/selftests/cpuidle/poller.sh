# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# What the selftests of whoever polls in idle share: naps and calls that CPUs are not to poll
# for, by modules of tests (test_told_idle, test_smp_mask), and where devices are polled at all.

is_realtime() {
	uname -v | grep -qw PREEMPT_RT
}

# Where threads handle interrupts, no device is polled.
need_poll_sources() {
	! is_realtime || skip "a kernel with PREEMPT_RT polls no device"
}

# A task naps on CPU 1 for 3 s. Does the number of polls, in a file, grow by one for most naps?
polls_for_naps() { # FILE [inject=1|suspend=1]: the CPU is told to be idle meanwhile
	file=$1
	shift
	polls=$(cat "$file")
	load_module test_told_idle "$@" || fail "no naps"
	polls=$(($(cat "$file") - polls))
	naps=$(cat /sys/module/test_told_idle/parameters/naps)
	rmmod test_told_idle
	echo "$* $polls polls for $naps naps"
	[ "$naps" -ge 500 ] || skip "too few naps to tell"
	[ $((polls * 2)) -gt "$naps" ]
}

# CPU 0 calls 5000 functions on CPU 1, which wake no task. Does CPU 1, by its number of polls, in
# a file, poll for more than a few of them anew? test_smp_mask is loaded, with pause_us=20.
polls_for_calls() { # FILE
	need_commands taskset
	mount_until_end debugfs /sys/kernel/debug || fail "no debugfs"
	polls=$(cat "$1")
	taskset -c 0 sh -c 'echo "1 5000 1" > /sys/kernel/debug/test_smp_mask/run' ||
		fail "cannot call functions"
	polls=$(($(cat "$1") - polls))
	echo "$polls polls for 5000 calls"
	[ $polls -ge 1000 ]
}

need_naps() {
	has_module test_told_idle || skip "no test_told_idle"
	[ ! -d /sys/module/test_told_idle ] || skip "test_told_idle is loaded already"
	is_online 1 || skip "CPU 1 is not online"
}
