/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Let devices join the poll of an idle CPU. See drivers/cpuidle/poll_source.c.
 */
#ifndef _LINUX_POLL_SOURCE_H
#define _LINUX_POLL_SOURCE_H

#include <linux/idle_poll/poll_hold.h>
#include <linux/init.h>
#include <linux/irq_work.h>
#include <linux/jump_label.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/percpu-defs.h>
#include <linux/types.h>

struct poll_source;

/**
 * struct poll_source_ops - what a CPU that polls does with a source
 * @start: The CPU begins to poll, or is expected to do so soon: suppress
 *	notifications. False: leave this source out of this poll; nothing may
 *	have changed then.
 * @peek: Is there work? A look at memory, without side effects.
 * @stop: The CPU ends its poll: let notifications arrive again. True if there
 *	is work that came without one; then @handle follows.
 * @handle: Do the work, and let notifications arrive again. Follows a @peek
 *	that said so in place of @stop, or a @stop that did. It may find
 *	nothing left to do, where a notification had been faster.
 * @holds: @start may suppress notifications after work as well.
 *
 * Context: all run on the CPU of the source with interrupts off, so none of
 * them ever interrupts another. @handle runs in an interrupt, outside idle. The
 * others run in the idle task, with RCU watching, or in an interrupt; each of
 * their calls has to end within peek_budget_ns, so they must not wait. @start may
 * also run right after @handle, or in poll_source_notified(), if the source @holds. There, it
 * may follow a @start without a @stop in between.
 */
struct poll_source_ops {
	bool (*start)(struct poll_source *source);
	bool (*peek)(struct poll_source *source);
	bool (*stop)(struct poll_source *source);
	void (*handle)(struct poll_source *source);
	bool holds;
};

/**
 * struct poll_source_stats - written by the CPU of the source only
 * @polls: polls that the source took part in
 * @hits: of those, the ones in which it had work, or could not be asked in the end
 * @peeks: looks at it
 * @peek_ns: time of all calls of start(), peek() and stop()
 * @overruns: of those calls, the ones that took longer than the budget
 * @handled: calls of handle(): for hits, and for work that came while notifications were held back
 * @handle_ns: time of all of them
 * @holds: how often notifications were held back after work
 * @expired: of those, how often no poll came in time
 */
struct poll_source_stats {
	u64 polls;
	u64 hits;
	u64 peeks;
	u64 peek_ns;
	u64 overruns;
	u64 handled;
	u64 handle_ns;
	u64 holds;
	u64 expired;
};

/**
 * struct poll_source - something that an idle CPU can look at
 * @ops: what to do with it
 * @name: for people, in the statistics and in the log
 * @cpu: the CPU that looks, and that its notifications would interrupt
 * @stats: what became of it so far
 * @all: private: in the list of all sources
 * @node: private: in the list of its CPU
 * @work: private: brings handle() out of idle
 * @state: private: where this source is in the poll of its CPU
 * @held_until: private: when the hold ends at the latest
 * @held_since_ns: private: when it began (local_clock())
 * @hold: private: what is known of its holds
 * @excess_ns: private: how close it is to being switched off
 * @retry_at: private: when it is switched on again (jiffies)
 * @retry_delay: private: for how long it is off
 * @off: private: it is switched off, as it was too slow
 * @reported: private: the log says so
 */
struct poll_source {
	const struct poll_source_ops *ops;
	const char *name;
	unsigned int cpu;
	struct poll_source_stats stats;

	struct list_head all;
	struct list_head node;
	struct irq_work work;
	enum poll_source_state {
		POLL_SOURCE_NOTIFIES,
		POLL_SOURCE_POLLED,
		POLL_SOURCE_HIT,
		POLL_SOURCE_HELD,
	} state;
	ktime_t held_until;
	u64 held_since_ns;
	struct poll_hold hold;
	u64 excess_ns;
	unsigned long retry_at;
	unsigned long retry_delay;
	bool off;
	bool reported;
};

int poll_source_register(struct poll_source *source);
void poll_source_unregister(struct poll_source *source);
int poll_source_move(struct poll_source *source, unsigned int cpu);
void poll_source_notified(struct poll_source *source);

/* For whoever polls. Where no source is registered, a nop each. */

#ifdef CONFIG_POLL_SOURCE
void __init poll_source_init(void);
#ifdef LIGHTSLEEP_MODULE
void poll_source_exit(void);
#endif

DECLARE_STATIC_KEY_FALSE(poll_sources_registered);
DECLARE_PER_CPU(bool, poll_sources_started);

void __poll_sources_start(void);
bool __poll_sources_peek(void);
bool __poll_sources_stop(void);
bool __poll_sources_release(bool halts);

/** poll_sources_exist - is any source registered, for whichever CPU? */
static inline bool poll_sources_exist(void)
{
	return static_branch_unlikely(&poll_sources_registered);
}

/** poll_sources_start - this CPU begins to poll; interrupts are off */
static inline void poll_sources_start(void)
{
	if (poll_sources_exist())
		__poll_sources_start();
}

/**
 * poll_sources_here - is there a source to peek at, in the poll of this CPU?
 *
 * Preemption is off.
 */
static inline bool poll_sources_here(void)
{
	return poll_sources_exist() && __this_cpu_read(poll_sources_started);
}

/**
 * poll_sources_peek - has a source work? interrupts are on
 *
 * Return: true if the poll must end, as one has.
 */
static inline bool poll_sources_peek(void)
{
	return poll_sources_exist() && __poll_sources_peek();
}

/**
 * poll_sources_stop - this CPU ends its poll; interrupts are off
 *
 * The handlers run as soon as they are on.
 *
 * Return: true if any source has work.
 */
static inline bool poll_sources_stop(void)
{
	return poll_sources_exist() && __poll_sources_stop();
}

/**
 * poll_sources_release - no poll follows; interrupts are off
 * @halts: this CPU is idle, and about to halt; else it goes offline, or polls are switched off
 *
 * Return: true if any source has work, or if the idle loop has to look at timers again.
 */
static inline bool poll_sources_release(bool halts)
{
	return poll_sources_exist() && __poll_sources_release(halts);
}
#else
static inline bool poll_sources_exist(void) { return false; }
static inline void poll_sources_start(void) { }
static inline bool poll_sources_here(void) { return false; }
static inline bool poll_sources_peek(void) { return false; }
static inline bool poll_sources_stop(void) { return false; }
static inline bool poll_sources_release(bool halts) { return false; }
#endif /* CONFIG_POLL_SOURCE */

#endif /* _LINUX_POLL_SOURCE_H */
