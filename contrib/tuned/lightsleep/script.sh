#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Called by tuned: start when the profile is chosen and at boot, stop when it is left, verify on
# "tuned-adm verify". tuned loads the profile at each boot, so nothing is enabled persistently. Where
# an administrator has run "lightsleep enable --persist", start and stop leave that alone.

# Runs lightsleep; that there is nothing to do (4) is success. The file stands for --persist, whether
# or not something else loads the driver, or keeps it away.
change() {
	files=$(lightsleep status --json)
	files=${files#*'"files": ['}
	case ${files%%]*} in
	*'"/etc/modules-load.d/lightsleep.conf"'*)
		echo "lightsleep enable --persist was run here: left as it is"
		return
		;;
	esac
	status=0
	lightsleep "$1" || status=$?
	[ "$status" = 4 ] || return "$status"
}

case "$1" in
start)
	change enable
	;;
stop)
	change disable
	;;
verify)
	lightsleep status > /dev/null
	;;
*)
	echo "usage: $0 start|stop|verify" >&2
	exit 2
	;;
esac
