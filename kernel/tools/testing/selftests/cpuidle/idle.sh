# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# What the selftests of idle drivers share: sysfs, the kernel log, and a load.

CPUS=/sys/devices/system/cpu
PARTITIONS=/sys/fs/cgroup/cpuset.cpus.isolated
LATENCY_REQUESTS=/dev/cpu_dma_latency
KMSG=/dev/kmsg
LOAD=$(mktemp) # the process that makes the load, while there is one

sum() { # FILE...: each holds one number
	total=0
	for file in "$@"; do
		total=$((total + $(cat "$file")))
	done
	echo $total
}

usage() { # STATE: times entered, all CPUs
	sum $CPUS/cpu*/cpuidle/state"$1"/usage
}

disable() { # STATE 0|1, all CPUs
	for file in "$CPUS"/cpu*/cpuidle/state"$1"/disable; do
		echo "$2" > "$file"
	done
}

cpus_of() { # LIST, as 1,4-6
	echo "$1" | tr ',' '\n' | while IFS=- read -r first last; do
		seq "$first" "${last:-$first}"
	done
}

is_online() { # CPU; some cannot be anything else
	[ -e "$CPUS/cpu$1" ] &&
		{ [ ! -e "$CPUS/cpu$1/online" ] || [ "$(cat "$CPUS/cpu$1/online")" = 1 ]; }
}

is_isolated() { # CPU: by the command line, or by a partition of cpusets
	cat $CPUS/isolated $CPUS/nohz_full $PARTITIONS 2> /dev/null | grep '^[0-9]' |
		while read -r list; do cpus_of "$list"; done | grep -qx "$1"
}

latency_request() { # in us: the least that anybody requests for all CPUs
	python3 -c "print(int.from_bytes(open('$LATENCY_REQUESTS', 'rb').read(4), 'little'))"
}

latency_limit() { # CPU: the least that anybody requests for it, in us
	limit=2000000000 # that of the kernel
	[ ! -e "$LATENCY_REQUESTS" ] || limit=$(latency_request)
	own=$(cat "$CPUS/cpu$1/power/pm_qos_resume_latency_us" 2> /dev/null || echo 0)
	case $own in
	0) ;; # none
	n/a) limit=0 ;;
	*) [ "$limit" -le "$own" ] || limit=$own ;;
	esac
	echo "$limit"
}

need_root_and_two_cpus() {
	[ "$(id -u)" = 0 ] || skip_all "needs root"
	is_online 0 && is_online 1 || skip_all "needs CPUs 0 and 1, online"
}

mount_at() { # TYPE FOLDER
	mount -t "$1" none "$2" 2> /dev/null || busybox mount -t "$1" none "$2" 2> /dev/null
}

unmount() { # FOLDER
	umount "$1" 2> /dev/null || busybox umount "$1"
}

# Until the script ends: it calls unmount_all then.
mount_until_end() { # TYPE FOLDER
	! mountpoint -q "$2" || return 0
	mount_at "$1" "$2" || return 1
	echo "$2" >> "$LOAD.mounted"
}

unmount_all() {
	[ -e "$LOAD.mounted" ] || return 0
	while read -r folder; do
		unmount "$folder"
	done < "$LOAD.mounted"
	rm "$LOAD.mounted"
}

need_debugfs() {
	mount_until_end debugfs /sys/kernel/debug || skip "the kernel has no debugfs"
}

need_tracer() { # sets TRACE, its folder
	TRACE=/sys/kernel/tracing
	[ -d $TRACE/events ] || mount_at tracefs $TRACE || skip "the kernel has no tracer"
}

pipe_load() { # wakes a thread on another CPU, and waits for it, over and over
	need_commands perf
	perf bench -f simple sched pipe -l "${1:-2000}" > /dev/null
}

need_suspend_to_idle() { # that ends by a timer
	grep -qw freeze /sys/power/state 2> /dev/null || skip "cannot suspend to idle"
	[ -z "$(find $CPUS/cpu*/cpuidle/ -name s2idle 2> /dev/null)" ] ||
		skip "in suspend to idle, timers stop"
}

start_load() { # until the test ends; a session of its own, to be ended as a whole
	need_commands perf
	setsid sh -c 'while :; do perf bench -f simple sched pipe -l 2000; done' \
		> /dev/null 2>&1 &
	echo $! > "$LOAD"
}

after_each() {
	[ ! -s "$LOAD" ] || kill -- "-$(cat "$LOAD")"
	: > "$LOAD"
}

since_mark() { # what the kernel said since mark_log, and the mark; nothing if it is lost
	dmesg | sed -n "/$MARK/,\$p"
}

last_message() { # PATTERN in what the kernel said since mark_log
	messages=$(since_mark)
	[ -n "$messages" ] || fail "the log has lost its mark: see its size, log_buf_len"
	printf '%s\n' "$messages" | sed 1d | grep -q -- "$1"
}

mark_log() {
	MARK="cpuidle-selftest-$$-$(cat /proc/uptime)"
	MARK=$(echo "$MARK" | tr -c 'a-z0-9-\n' '-')
	echo "$MARK" > $KMSG
	[ -n "$(since_mark)" ] || skip "the log takes no mark: see printk.devkmsg"
}
