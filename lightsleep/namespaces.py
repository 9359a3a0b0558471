# SPDX-License-Identifier: GPL-2.0-only
"""The machine's own namespaces; a container has some of its own."""

MACHINE_NAMESPACES = {
    "pid": "pid:[4026531836]",
    "ipc": "ipc:[4026531839]",
    "uts": "uts:[4026531838]",
    "cgroup": "cgroup:[4026531835]",
}
"""Where links in /proc/PID/ns lead: PROC_PID_INIT_INO of the kernel and so on, since 3.8, cgroup
since 4.6."""
