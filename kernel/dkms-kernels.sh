# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2034,SC2154
# Which kernels DKMS builds for, and which it skips. Both dkms.conf read this; BUILD_EXCLUSIVE_CONFIG
# stands before.
AUTOINSTALL="yes"
# DKMS before 3.0.11 (Debian 12) knows the pattern only.
BUILD_EXCLUSIVE_KERNEL="^(6\.([1-9]|1[0-9])|7\.[0-3])([.+~-]|$)"
BUILD_EXCLUSIVE_KERNEL_MIN="6.1"
BUILD_EXCLUSIVE_KERNEL_MAX="7.3.999"
BUILD_EXCLUSIVE_ARCH="^(x86_64|aarch64|ppc64le)$"

# To that DKMS, a kernel that it skips is a failure, which breaks the installation of the kernel's
# package. So it must not be offered such a kernel.
excluded() {
	local config option
	[[ $1 =~ $BUILD_EXCLUSIVE_KERNEL && $(uname -m) =~ $BUILD_EXCLUSIVE_ARCH ]] || return 0
	config=/lib/modules/$1/build/.config
	# Without headers it is not known: DKMS then says that they are missing.
	[[ -e $config ]] || return 1
	for option in $BUILD_EXCLUSIVE_CONFIG; do
		if [[ $option = !* ]]; then
			! grep -Eqs "^${option#!}=[ym]" "$config" || return 0
		else
			grep -Eqs "^$option=[ym]" "$config" || return 0
		fi
	done
	return 1
}

if [[ $action = autoinstall && $dkms_conf_variables != *BUILD_EXCLUSIVE_KERNEL_MAX* ]]; then
	# A local variable of DKMS hides the one that has the kernel that is being installed.
	unset -v kernelver
	if excluded "$kernelver"; then
		AUTOINSTALL=""
		[[ ${FUNCNAME[*]} != *" autoinstall "* || ${FUNCNAME[*]} = *is_module* ]] ||
			echo "$PACKAGE_NAME: kernel $kernelver is not supported: skipped" >&2
	fi
fi
