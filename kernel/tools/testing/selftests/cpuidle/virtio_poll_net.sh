#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# virtio_poll_source in a running kernel: CPUs that poll notice what virtio network
# devices have received. No packet is lost, whatever happens to the device, its
# link, its interrupt, its switch, the module or the CPUs meanwhile.
#
# Usage: PEER=ADDRESS [ROUNDS=20] virtio_poll_net.sh MODULE-FOLDER [TEST...]
# Needs root and debugfs. PEER is an address that answers to ping through a virtio
# network device, NET: eth0 if not set. Without PEER, all tests are skipped.
# ROUNDS: how often a device, CPU or module comes and goes.

# shellcheck source=ktap.sh disable=SC1091
. "$(dirname "$0")/ktap.sh"
# shellcheck source=idle.sh disable=SC1091
. "$(dirname "$0")/idle.sh"
# shellcheck source=poller.sh disable=SC1091
. "$(dirname "$0")/poller.sh"

# shellcheck disable=SC2034 # for virtio_source.sh
MODULES=${1:?usage: $0 MODULE-FOLDER [TEST...]}
shift
# shellcheck source=virtio_source.sh disable=SC1091
. "$(dirname "$0")/virtio_source.sh"

NET=${NET:-eth0}
PEER=${PEER:-}
ROUNDS=${ROUNDS:-20}
IRQS=/proc/irq

need_peer() {
	[ -n "$PEER" ] || skip "no PEER"
	net_device=$(basename "$(readlink -f "/sys/class/net/$NET/device")")
}

all_came() { # COUNT FILE, what ping says at its end
	grep -q "^$1 .* $1 " "$2"
}

ping_peer() { # COUNT [CPU]: one after the other, none may be lost
	${2:+taskset -c "$2"} busybox ping -A -q -c "$1" "$PEER" | grep 'packets received' > "$REPORT"
	cat "$REPORT"
	all_came "$1" "$REPORT" || fail "packets lost"
}

# shellcheck disable=SC2154 # polling, which begin_requests sets
polls_a_network_device() {
	need_peer
	loaded
	ping_peer 20
	grep -q " $net_device-input.0 " $TABLE || fail "not polled: $(cat $TABLE)"
	before=$(hits)
	begin_requests "$(cpu_of_net)"
	ping_peer 500 "$polling"
	end_requests 500
	[ "$(hits)" -gt "$before" ] ||
		fail_if_it_polls "no look ever found anything: $(cat $TABLE)"
	cat $TABLE
}

polls_of_net() {
	grep " $net_device-input.0 " $TABLE | cut -d' ' -f4
}

# With a timeout, NAPI's timer turns interrupts on again: nobody may stand in its way.
leaves_napi_with_a_timeout_alone() {
	need_peer
	loaded
	ping_peer 20
	polls=$(polls_of_net)
	begin_requests "$(cpu_of_net)"
	ping_peer 200 "$polling"
	note_limit
	# shellcheck disable=SC2034 # for fail_if_it_polls
	request_ns=0 # any poll will do
	[ "$(polls_of_net)" -gt "$polls" ] || fail_if_it_polls "never polled: $(cat $TABLE)"
	timeout=/sys/class/net/$NET/gro_flush_timeout
	undo_at_end "echo $(cat "$timeout") > $timeout"
	echo 1000000 > "$timeout"
	ping_peer 20
	polls=$(polls_of_net)
	ping_peer 200 "$polling"
	polls=$(($(polls_of_net) - polls))
	[ $polls = 0 ] || fail "$polls polls of a queue with a timeout"
}

cpu_of_net() { # the CPU that polls
	grep " $net_device-input.0 " $TABLE | cut -d' ' -f1
}

polled_by() { # CPU: within 100 packets
	for _ in $(seq 10); do
		ping_peer 20 > /dev/null
		[ "$(cpu_of_net)" != "$1" ] || return 0
	done
	return 1
}

follows_the_interrupt() {
	need_peer
	is_online 1 || skip "CPU 1 is not online"
	loaded
	irq=$(irq_of "$net_device-input.0")
	mask=$IRQS/$irq/smp_affinity
	[ ! -e $CPUS/cpu1/online ] || undo_at_end "echo 1 > $CPUS/cpu1/online"
	undo_at_end "echo $(cat "$mask") > $mask"
	for round in 1 2 3; do
		for cpu in 1 0; do
			echo $cpu > "${mask}_list" || fail "cannot move interrupt $irq"
			polled_by $cpu || fail "round $round: not polled by CPU $cpu: $(cat $TABLE)"
			before=$(hits)
			begin_requests $cpu
			for sent in 50 100 150 200 250; do # the idle loop learns that it pays
				ping_peer 50 $cpu
				end_requests $sent
				[ "$(hits)" -eq "$before" ] || break
			done
			[ "$(hits)" -gt "$before" ] ||
				fail_if_it_polls "round $round: no hit on CPU $cpu: $(cat $TABLE)"
		done
	done
	[ -e $CPUS/cpu1/online ] || return 0
	echo 1 > "${mask}_list"
	polled_by 1 || fail "not polled by CPU 1"
	echo 0 > $CPUS/cpu1/online
	polled_by 0 || fail "does not follow the interrupt off a CPU that goes offline"
}

survives_traffic() {
	need_peer
	[ ! -e $CPUS/cpu1/online ] || undo_at_end "echo 1 > $CPUS/cpu1/online"
	loaded
	busybox ping -A -q -c 3000 "$PEER" > "$TRAFFIC" 2>&1 &
	load=$!
	undo_at_end "kill $load 2> /dev/null"
	for _ in $(seq $((ROUNDS / 2))); do
		for value in 0 1; do
			echo $value > "$BUS/devices/$net_device/poll_source"
		done
		unload_source
		load_source
		[ ! -e $CPUS/cpu1/online ] || for value in 0 1; do
			echo $value > $CPUS/cpu1/online
		done
	done
	wait $load
	all_came 3000 "$TRAFFIC" || fail "$(cat "$TRAFFIC")"
	ping_peer 200
}

survives_a_link_that_goes_down() {
	need_peer
	loaded
	ping_peer 20
	undo_at_end "busybox ip link set $NET up"
	busybox ping -A -q "$PEER" > /dev/null 2>&1 &
	load=$!
	undo_at_end "kill $load 2> /dev/null"
	for _ in $(seq "$ROUNDS"); do
		busybox ip link set "$NET" down
		grep -q " $net_device-" $TABLE || fail "no source any more"
		busybox ip link set "$NET" up
		sleep 0.1
	done
	kill $load
	ping_peer 200
}

survives_unbinding_of_a_network_device() {
	need_peer
	loaded
	address=$(busybox ip -o -4 addr show dev "$NET" | grep -o '[0-9.]*/[0-9]*')
	undo_at_end "[ -e $BUS/devices/$net_device/driver ] ||
		echo $net_device > $BUS/drivers/virtio_net/bind"
	undo_at_end "busybox ip addr add $address dev $NET 2> /dev/null"
	undo_at_end "busybox ip link set $NET up"
	for round in $(seq 5); do
		busybox ping -A -q -c 100 "$PEER" > /dev/null 2>&1 &
		load=$!
		undo_at_end "kill $load 2> /dev/null"
		echo "$net_device" > $BUS/drivers/virtio_net/unbind || fail "round $round: cannot unbind"
		! grep -q " $net_device-" $TABLE || fail "round $round: polled without a driver"
		echo "$net_device" > $BUS/drivers/virtio_net/bind || fail "round $round: cannot bind"
		kill $load 2> /dev/null
		busybox ip addr add "$address" dev "$NET"
		busybox ip link set "$NET" up
		[ ! "$IN_TREE" ] || load_source
		# The first one may go while the link comes up.
		busybox ping -c 1 -W 10 "$PEER" > /dev/null || fail "round $round: no answer"
		ping_peer 50
		grep -q " $net_device-" $TABLE || fail "round $round: not polled again"
	done
}

[ "$(id -u)" = 0 ] || skip_all "needs root"
mount_debugfs
if [ $# = 0 ]; then
	! is_realtime || skip_all "a kernel with PREEMPT_RT polls no device"
	! interrupts_have_threads || skip_all "with threadirqs, no device is polled"
	set -- polls_a_network_device leaves_napi_with_a_timeout_alone survives_traffic \
		survives_a_link_that_goes_down \
		survives_unbinding_of_a_network_device follows_the_interrupt
fi
name_files
trap restore EXIT
trap 'exit 143' HUP INT PIPE TERM # not every shell runs the trap above then
run_tests "$@"
