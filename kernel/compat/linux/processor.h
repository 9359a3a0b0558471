/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cpu_poll_relax() of arm64 for kernels without "arm64: wait for a store with a
 * timeout" and its series, and for words of 64 bits only, as the flags of a
 * task are.
 *
 * Such a kernel tells modules nothing but what it tells user space: EVTSTRM is
 * there if the event stream is on, which leaves out that it is off around power
 * states that lose it; nobody polls there.
 *
 * WFET ends at a value of the counter, so its deadline needs the counter's rate.
 * arch_timer_get_rate() is not exported. arch_timer_get_cntfrq() is inline in all
 * kernels from 6.1 to 7.3. It reads the register from which the kernel has that rate,
 * too, unless the devicetree has a clock-frequency. Firmware that leaves it 0 makes
 * such waits end at once. Not loops_per_jiffy: lpj= on the command line sets it.
 */
#include_next <linux/processor.h>

/* What follows needs linux/sched.h, and so cannot be in what that includes (from 7.3 on). */
#if !defined(_LIGHTSLEEP_COMPAT_PROCESSOR_H) && !defined(__LINUX_INSIDE_SPINLOCK_H)
#define _LIGHTSLEEP_COMPAT_PROCESSOR_H

#include <asm/barrier.h>

#if defined(CONFIG_ARM64) && !defined(cpu_poll_relax)
#include <linux/minmax.h>
#include <linux/time64.h>
#include <asm/arch_timer.h>
#include <asm/cmpxchg.h>
#include <asm/cpufeature.h>
#include <asm/hwcap.h>

/* WFET, spelled so that any assembler knows it, once *@word is watched. */
static inline void wait_until(unsigned long *word, unsigned long seen, u64 deadline)
{
	unsigned long now;

	asm volatile("sevl\n"
		     "wfe\n"
		     "ldxr	%[now], %[word]\n"
		     "eor	%[now], %[now], %[seen]\n"
		     "cbnz	%[now], 1f\n"
		     "msr	s0_3_c1_c0_0, %[deadline]\n"
		     "1:"
		     : [now] "=&r" (now), [word] "+Q" (*word)
		     : [seen] "r" (seen), [deadline] "r" (deadline));
}

static inline void cpu_poll_relax(unsigned long *word, unsigned long seen, u64 timeout_ns)
{
	if (cpu_have_named_feature(WFXT)) {
		u64 ns = min_t(u64, timeout_ns, NSEC_PER_SEC);
		u64 rate = arch_timer_get_cntfrq();

		wait_until(word, seen, __arch_counter_get_cntvct() + ns * rate / NSEC_PER_SEC);
	} else if (cpu_have_named_feature(EVTSTRM) &&
		   timeout_ns >= ARCH_TIMER_EVT_STREAM_PERIOD_US * NSEC_PER_USEC) {
		__cmpwait_relaxed(word, seen);
	} else {
		cpu_relax();
	}
}

#define cpu_poll_relax		cpu_poll_relax
#define SMP_TIMEOUT_POLL_COUNT	1

#endif

#endif /* _LIGHTSLEEP_COMPAT_PROCESSOR_H */
