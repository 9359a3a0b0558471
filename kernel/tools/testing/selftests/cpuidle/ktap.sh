# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# KTAP for shell selftests. A test is a function that returns 0 (ok), 4 (skip)
# or anything else (not ok); what it prints becomes diagnostics, and so does how
# long it took. run_tests ends the script with the status that kselftest expects.

# Tests compare what tools print, and the C library translates its messages for errors.
export LC_ALL=C

KSFT_SKIP=4
running=

# after_each: redefine it to undo what a test that failed may have left.
after_each() {
	:
}

# end_test: ends the test that runs, for a trap. Tests run in the background, as a shell that waits
# for one acts on a signal at once. In a command substitution, it acts when the test has ended.
end_test() {
	[ -z "$running" ] || kill "$running" 2> /dev/null
	rm -f "$OUTPUT"
}

# run_tests TEST...: runs every test, in order, each in a shell of its own.
run_tests() {
	OUTPUT=$(mktemp)
	echo "KTAP version 1"
	echo "1..$#"
	number=0
	skipped=0
	failed=0
	for name in "$@"; do
		number=$((number + 1))
		read -r begun _ < /proc/uptime
		("$name") > "$OUTPUT" 2>&1 &
		running=$!
		wait "$running"
		status=$?
		running=
		after_each
		read -r ended _ < /proc/uptime
		sed 's/^/# /' "$OUTPUT"
		echo "# $((${ended%.*} - ${begun%.*})) s"
		case $status in
		0) echo "ok $number $name" ;;
		"$KSFT_SKIP")
			echo "ok $number $name # SKIP"
			skipped=$((skipped + 1))
			;;
		*)
			echo "not ok $number $name"
			failed=1
			;;
		esac
	done
	rm -f "$OUTPUT"
	# kselftest goes by the status alone: what ran nothing has not passed.
	[ $skipped -lt $# ] || exit $KSFT_SKIP
	exit $failed
}

# fail WORD...: ends the test with a reason.
fail() {
	echo "$*"
	exit 1
}

# skip WORD...: ends the test, as one that does not apply here.
skip() {
	echo "$*"
	exit "$KSFT_SKIP"
}

# need_commands NAME...: skips the test where one of them is not installed.
need_commands() {
	for command; do
		command -v "$command" > /dev/null || skip "no $command"
	done
}

# need_hotplug: skips the test where no CPU can go offline.
need_hotplug() {
	for online in /sys/devices/system/cpu/cpu*/online; do
		[ ! -e "$online" ] || return 0
	done
	skip "no CPU can go offline"
}

# skip_all WORD...: ends the script, which does not apply here at all.
skip_all() {
	echo "1..0 # SKIP $*"
	exit "$KSFT_SKIP"
}

# load_module NAME PARAMETER...: from the folder MODULES if that is set, else as installed.
load_module() {
	if [ -n "$MODULES" ]; then
		module=$MODULES/$1.ko
		shift
		insmod "$module" "$@"
	else
		modprobe "$@"
	fi
}

# has_module NAME
has_module() {
	if [ -n "$MODULES" ]; then
		[ -e "$MODULES/$1.ko" ]
	else
		modprobe -nq "$1"
	fi
}
