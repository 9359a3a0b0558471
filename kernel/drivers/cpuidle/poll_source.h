/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the module that holds poll_source.c calls at its own begin and end.
 */
#ifndef _DRIVERS_CPUIDLE_POLL_SOURCE_H
#define _DRIVERS_CPUIDLE_POLL_SOURCE_H

void poll_source_init(void);
void poll_source_exit(void);

#endif /* _DRIVERS_CPUIDLE_POLL_SOURCE_H */
