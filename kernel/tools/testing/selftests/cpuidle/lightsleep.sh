# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# What the selftests of cpuidle-lightsleep share: the module, its parameters and
# statistics, and a latency limit. The folder with the module is in MODULES.

MODULE=cpuidle_lightsleep
PARAMETERS=/sys/module/$MODULE/parameters

load() { # [PARAMETER=VALUE...]
	insmod "$MODULES/$MODULE.ko" "$@" || fail "insmod $MODULE $* failed"
}

unload() {
	[ ! -e /sys/module/$MODULE ] || rmmod $MODULE
}

loaded() { # [PARAMETER=VALUE...]: a test starts with the module loaded anew
	unload
	load "$@"
}

parameter() {
	cat "$PARAMETERS/$1"
}

set_parameter() {
	echo "$2" > "$PARAMETERS/$1"
}

statistic() { # NAME, all CPUs
	sum $CPUS/cpu*/lightsleep/"$1"
}

limit_all() { # [BYTE]: asks for a latency of so many us, in octal; without it, of 0
	exec 3> /dev/cpu_dma_latency
	printf "\\${1:-0}"'\0\0\0' >&3
}

lift_limit_of_all() {
	exec 3>&-
}
