/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _DRIVERS_CPUIDLE_LATENCY_BATCH_H
#define _DRIVERS_CPUIDLE_LATENCY_BATCH_H

#include <linux/completion.h>
#include <linux/hrtimer.h>
#include <linux/prandom.h>
#include <linux/types.h>

#include "latency_watch.h"

struct task_struct;

/* What a request may want of the woken CPU, other than the index of an idle state. */
#define LATENCY_STATE_ANY	(-1)
#define LATENCY_STATE_BUSY	(-2)

enum wake_path {
	PATH_UNKNOWN,
	PATH_TIMER,
	PATH_IPI,
	PATH_NONE,
	PATH_IRQ,
};

/**
 * enum latency_verdict - does a sample count, or why not
 * @LATENCY_OK: it does
 * @LATENCY_NOT_IDLE: the CPU was not idle at the launch
 * @LATENCY_BUSY_WAS_IDLE: it was to be busy, but was idle
 * @LATENCY_WRONG_STATE: it was in another idle state
 * @LATENCY_UNSETTLED: it had only just entered its state
 * @LATENCY_NOT_POLLING: it did not poll, so it was interrupted
 * @LATENCY_WRONG_CPU: the wake arrived at another CPU
 * @LATENCY_TIMEOUT: the wake did not arrive in time; the batch ends with it
 */
enum latency_verdict {
	LATENCY_OK,
	LATENCY_NOT_IDLE,
	LATENCY_BUSY_WAS_IDLE,
	LATENCY_WRONG_STATE,
	LATENCY_UNSETTLED,
	LATENCY_NOT_POLLING,
	LATENCY_WRONG_CPU,
	LATENCY_TIMEOUT,
};

/**
 * struct latency_request - what to measure
 * @source: what wakes
 * @src: the CPU that wakes; that of a timer is @dest
 * @dest: the CPU that is woken
 * @state: index of the idle state that @dest has to be in, or LATENCY_STATE_*
 * @samples: how many
 * @min_ns: the least distance from arming to launch
 * @max_ns: the largest, below 2^32
 * @settle_ns: @dest has to be in its state for so long before the launch
 * @timeout_ns: how long to wait for a wake to arrive
 */
struct latency_request {
	const struct wake_source *source;
	unsigned int src;
	unsigned int dest;
	int state;
	unsigned int samples;
	u32 min_ns;
	u32 max_ns;
	u64 settle_ns;
	u64 timeout_ns;
};

/**
 * struct latency_sample - one wake
 * @launch_ns: when it was sent, CLOCK_MONOTONIC
 * @wake_ns: when the woken CPU ran, 0 if that was not seen
 * @settled_ns: how long the CPU had been in its state at the launch
 * @entered: index of that state, -1 if the CPU was not idle
 * @path: what woke it
 * @verdict: whether it counts
 */
struct latency_sample {
	u64 launch_ns;
	u64 wake_ns;
	u64 settled_ns;
	int entered;
	enum wake_path path;
	enum latency_verdict verdict;
};

/* Why a request was refused or given up, in one line for the user. */
struct latency_error {
	char text[160];
};

/**
 * struct latency_batch - the batch that runs
 * @request: what is measured
 * @samples: filled one by one
 * @pacer: on @request.src: sends each wake, then looks whether it arrived
 * @random: for distances
 * @taken: samples that are complete
 * @launched: wakes sent
 * @launch_ns: when the last of them was
 * @arrived: value of @launched that the last wake to arrive belongs to
 * @wake_ns: when it arrived
 * @wake_cpu: where
 * @period: the last idle period of @request.dest, as it was when the wake arrived
 * @path: the way it took; written by whichever side knows
 * @thread: on @request.dest, if there has to be one: it is woken, or keeps it busy
 * @ready: @thread runs
 * @ended: all samples are taken, or there will be no more
 * @error: why there will be no more, if nobody waits for them
 */
struct latency_batch {
	struct latency_request request;
	struct latency_sample *samples;
	struct hrtimer pacer;
	struct rnd_state random;
	unsigned int taken;
	unsigned int launched;
	u64 launch_ns;
	unsigned int arrived;
	u64 wake_ns;
	unsigned int wake_cpu;
	struct idle_period period;
	enum wake_path path;
	struct task_struct *thread;
	struct completion ready;
	struct completion ended;
	const char *error;
};

/**
 * struct wake_source - a way to wake a CPU
 * @name: what it is called in requests
 * @local: it wakes the CPU that it is launched on
 * @polling: a sample counts only if no interrupt was needed
 * @unavailable: why it cannot be used, NULL if it can; optional
 * @begin: prepares a batch, in process context; optional
 * @launch: wakes @request.dest. Calls latency_batch_launch() just before, and sees
 *	to it that latency_batch_arrived() is called on the woken CPU. In the hard
 *	interrupt of the timer that was due at @due_ns and ran at @now_ns.
 * @end: returns when no wake is on its way and nothing refers to the batch;
 *	optional
 * @thread: for a thread on the woken CPU, unless that is to be busy; optional
 * @spin: called over and over on a CPU that is to be busy; optional
 */
struct wake_source {
	const char *name;
	bool local;
	bool polling;
	const char *(*unavailable)(void);
	int (*begin)(struct latency_batch *batch, struct latency_error *error);
	void (*launch)(struct latency_batch *batch, u64 due_ns, u64 now_ns);
	void (*end)(struct latency_batch *batch);
	int (*thread)(void *batch);
	void (*spin)(struct latency_batch *batch);
};

extern const struct wake_source wake_timer;
extern const struct wake_source wake_ipi;
extern const struct wake_source wake_store;
extern const struct wake_source wake_device;

/* The only source that exists outside batches: it is a driver. */
#if IS_ENABLED(CONFIG_VIRTIO)
int wake_device_init(void);
void wake_device_exit(void);
#else
static inline int wake_device_init(void)
{
	return 0;
}

static inline void wake_device_exit(void)
{
}
#endif

/* For wake sources. */
void latency_batch_launch(struct latency_batch *batch, u64 launch_ns);
bool latency_batch_in_flight(const struct latency_batch *batch);
void latency_batch_arrived(struct latency_batch *batch, u64 wake_ns);
void latency_batch_abort_source(const struct wake_source *source, const char *error);

/* For those who want samples. */
__printf(3, 4)
int latency_refuse(struct latency_error *error, int ret, const char *format, ...);
int latency_batch_run(const struct latency_request *request, struct latency_sample *samples,
		      struct latency_error *error);
int latency_batch_init(void);
void latency_batch_exit(void);

#endif /* _DRIVERS_CPUIDLE_LATENCY_BATCH_H */
