// SPDX-License-Identifier: GPL-2.0-only
/*
 * One CPU and its idle loop, as kernel/sched/idle.c and kernel/time/tick-sched.c
 * have it: what governors and promote.c, all of them the kernel's own files, make
 * of a series of idle periods. Time passes only while it sleeps or works.
 */
#include <kernel.h>

#include "promote.h"

#define GOVERNORS	4
#define NEVER		UINT64_MAX
#define LOOP_NS		1000		/* once around the idle loop */
#define SELECT_NS	300		/* of that, until the CPU sleeps */
#define POLL_MIN_NS	((u64)10000)	/* a residency below that ends no poll */
#define POLL_MAX_NS	((u64)TICK_NSEC / 16)

/**
 * struct period - an idle period, and what comes before it
 * @idle_ns: until a task is woken
 * @busy_ns: how long one has run before
 * @timer_ns: until the next timer that the kernel knows of, but for the tick
 * @nobody: no task is woken then: an interrupt comes, and the CPU stays in its idle loop
 * @tick: that interrupt is the tick
 * @resumes: the CPU has stayed in its idle loop since the last period
 */
struct period {
	u64 idle_ns;
	u64 busy_ns;
	u64 timer_ns;
	u64 nobody;
	u64 tick;
	u64 resumes;
};

/**
 * struct choice - what became of one of them
 * @polled_ns: the time in states that poll
 * @first: the state that the governor chose when it began; -1 where it was not asked
 * @last: the state in which the wakeup found the CPU; -1 where it was in none
 */
struct choice {
	u64 polled_ns;
	s32 first;
	s32 last;
};

/**
 * struct totals - what became of them
 * @time_ns: by state
 * @wakes: how often a state was left
 * @promotions: how often a state was left by promotion
 * @empty: how often the governor was told of a sleep that was none
 * @forbidden: how often promotion led to a state that is disabled, or beyond the limit
 * @untrue: how often the governor was told of another time than was slept, but for latencies
 * @halts: how often a state was left that does not poll
 * @too_shallow_ns: time in stays that the kernel counts as below
 * @too_deep_ns: time in stays that it counts as above
 */
struct totals {
	u64 time_ns[CPUIDLE_STATE_MAX];
	u64 wakes;
	u64 promotions;
	u64 empty;
	u64 forbidden;
	u64 untrue;
	u64 halts;
	u64 too_shallow_ns;
	u64 too_deep_ns;
};

static struct cpuidle_governor *governors[GOVERNORS], *governor;
static struct cpuidle_driver driver;
static struct cpuidle_device device;
struct cpuidle_device *cpuidle_devices = &device;

static struct task_struct idle_task;
struct task_struct *current = &idle_task;

static u64 now_ns, wake_ns, timer_ns, tick_ns, limit_ns = KTIME_MAX;
static bool tick_stopped, got_tick;
static struct hrtimer *armed;
static bool nobody, by_tick;	/* what ends the period: see struct period */

/* A poll that an interrupt without a task came into: it goes on in the next period. */
static int poll_index = -1;
static u64 poll_begin_ns;

int cpuidle_register_governor(struct cpuidle_governor *one)
{
	int i = 0;

	while (governors[i])
		i++;
	governors[i] = one;
	return 0;
}

s64 cpuidle_governor_latency_req(unsigned int cpu)
{
	return limit_ns;
}

struct cpuidle_driver *cpuidle_get_cpu_driver(struct cpuidle_device *dev)
{
	return &driver;
}

u64 local_clock(void)
{
	return now_ns;
}

bool need_resched(void)
{
	return !nobody && wake_ns <= now_ns;
}

bool tick_nohz_tick_stopped(void)
{
	return tick_stopped;
}

bool tick_nohz_idle_got_tick(void)
{
	bool got = got_tick;

	got_tick = false;
	return got;
}

ktime_t tick_nohz_get_next_hrtimer(void)
{
	return min(timer_ns, tick_stopped ? NEVER : tick_ns);
}

ktime_t tick_nohz_get_sleep_length(ktime_t *delta_next)
{
	*delta_next = tick_nohz_get_next_hrtimer() - now_ns;
	return timer_ns - now_ns;
}

void hrtimer_start(struct hrtimer *timer, ktime_t expires, int mode)
{
	timer->expires = expires;
	armed = timer;
}

void hrtimer_try_to_cancel(struct hrtimer *timer)
{
	armed = NULL;
}

int param_set_bool(const char *text, const struct kernel_param *kp)
{
	return 0;
}

/* For how long poll_idle() polls: cpuidle_poll_time(). */
static u64 poll_time_ns(void)
{
	for (int i = 1; i < driver.state_count; i++) {
		u64 residency_ns = driver.states[i].target_residency_ns;

		if (!device.states_usage[i].disable && residency_ns >= POLL_MIN_NS)
			return min(residency_ns, POLL_MAX_NS);
	}
	return POLL_MAX_NS;
}

/* When it is due next: it comes once, also for those that were due meanwhile. */
static void forward_tick(void)
{
	tick_ns += (now_ns - tick_ns + TICK_NSEC) / TICK_NSEC * TICK_NSEC;
}

/* The tick comes, if it runs, however long the CPU was in a state. */
static void pass_ticks(void)
{
	if (by_tick && wake_ns <= now_ns)	/* the recorded one */
		got_tick = true;
	if (!tick_stopped && tick_ns <= now_ns) {
		got_tick = true;
		forward_tick();
	}
}

/*
 * Polls until a task is woken, or up to the limit. Neither a timer nor another interrupt ends a
 * poll. Returns false if the poll goes on in the next period.
 */
static bool poll(int index)
{
	u64 limit_ns = poll_begin_ns + poll_time_ns();

	device.poll_time_limit = wake_ns > limit_ns;
	now_ns = max_t(u64, now_ns, min(wake_ns, limit_ns));
	poll_index = !device.poll_time_limit && nobody ? index : -1;
	if (poll_index < 0)
		now_ns += driver.states[index].exit_latency_ns;
	pass_ticks();
	device.last_residency_ns = now_ns - poll_begin_ns;
	return poll_index < 0;
}

/*
 * No timer ends a stay before its wakeup: the recorded period would have ended there.
 * A timer that was due by then was late, or had been cancelled.
 */
static void sleep(int index)
{
	u64 begin_ns = now_ns;
	u64 expiry_ns = armed ? armed->expires : NEVER;
	u64 end_ns = min(min(wake_ns, expiry_ns), tick_stopped ? NEVER : tick_ns);

	now_ns = (end_ns > now_ns ? end_ns : now_ns) + driver.states[index].exit_latency_ns;
	if (expiry_ns <= now_ns)
		armed->function(armed);
	pass_ticks();
	device.last_residency_ns = now_ns - begin_ns;
}

static int next_enabled(int index, int step)
{
	do
		index += step;
	while (index >= 0 && index < driver.state_count && device.states_usage[index].disable);
	return index < driver.state_count ? index : -1;
}

/* As cpuidle_enter_state() counts above and below, but in time; replay/stays.py tells the rule. */
static void judge(int index, struct totals *totals)
{
	const struct cpuidle_state *state = &driver.states[index];
	u64 stay_ns = device.last_residency_ns;
	int deeper = next_enabled(index, 1);

	totals->halts += !(state->flags & CPUIDLE_FLAG_POLLING);
	if (stay_ns < state->target_residency_ns)
		totals->too_deep_ns += next_enabled(index, -1) >= 0 ? stay_ns : 0;
	else if (deeper >= 0 && stay_ns > state->exit_latency_ns &&
		 stay_ns - state->exit_latency_ns >= driver.states[deeper].target_residency_ns)
		totals->too_shallow_ns += stay_ns;
}

static bool polls(int index)
{
	return driver.states[index].flags & CPUIDLE_FLAG_POLLING;
}

static void left(int index, struct totals *totals)
{
	totals->time_ns[index] += device.last_residency_ns;
	totals->wakes++;
	judge(index, totals);
}

/* A CPU that was woken meanwhile does not sleep: call_cpuidle(). */
static int call(int index, struct totals *totals)
{
	bool promoting;

	now_ns += SELECT_NS;
	if (need_resched()) {
		device.last_residency_ns = 0;
		return -EBUSY;
	}
	device.next_hrtimer = tick_nohz_get_next_hrtimer();
	promoting = cpuidle_promote_arm(&device, index);
	poll_begin_ns = now_ns;
	if (!polls(index))
		sleep(index);
	else if (!poll(index))
		return index;
	if (promoting)
		cpuidle_promote_disarm();
	left(index, totals);
	return index;
}

static bool is_forbidden(int index)
{
	return device.states_usage[index].disable ||
	       driver.states[index].exit_latency_ns > limit_ns;
}

static u64 longest_ns(void)
{
	u64 ns = 0;

	for (int i = 0; i < driver.state_count; i++)
		ns = ns > driver.states[i].exit_latency_ns ? ns : driver.states[i].exit_latency_ns;
	return ns;
}

static u64 slept_ns;	/* since the governor was asked */

static int choose(struct choice *made, struct totals *totals)
{
	bool stop_tick = true;
	int index = cpuidle_promote_select(&device, &stop_tick);

	if (index >= 0) {
		totals->promotions++;
		totals->forbidden += is_forbidden(index);
	} else {
		int chosen = governor->select(&driver, &device, &stop_tick);

		slept_ns = 0;
		made->first = made->first < 0 ? chosen : made->first;
		index = cpuidle_promote_raise(&device, chosen);
		totals->forbidden += index != chosen && is_forbidden(index);
	}
	/* tick_nohz_next_event() says no where a timer is near. */
	if (stop_tick && timer_ns > now_ns + TICK_NSEC)
		tick_stopped = true;
	return index;
}

/* The governor learns of a stay; @index is negative where the CPU entered no state. */
static void reflect(int index, struct totals *totals)
{
	bool rejected = index < 0;

	slept_ns += device.last_residency_ns;
	index = cpuidle_promote_reflect(&device, index);
	if (index >= 0) {
		totals->empty += rejected && !slept_ns;
		totals->untrue += device.last_residency_ns > slept_ns ||
				  device.last_residency_ns + longest_ns() < slept_ns;
		governor->reflect(&device, index);
	}
	now_ns += LOOP_NS - SELECT_NS;
}

/* Goes on with the poll of the last period. Returns its state. */
static int go_on(struct totals *totals)
{
	int index = poll_index;

	if (poll(index))
		left(index, totals);
	return index;
}

static struct choice go_idle(struct totals *totals)
{
	struct choice made = { .first = -1, .last = -1 };

	while (now_ns < wake_ns) {
		u64 begin_ns = now_ns;
		int index = poll_index < 0 ? call(choose(&made, totals), totals) : go_on(totals);

		made.last = index < 0 ? -1 : index;
		if (index >= 0 && polls(index))
			made.polled_ns += now_ns - max_t(u64, begin_ns, poll_begin_ns);
		if (poll_index >= 0)
			break;
		reflect(index, totals);
	}
	return made;
}

/* A task ran: tick_nohz_idle_exit(). If the CPU was polling still, the task ended that. */
static void leave_loop(struct totals *totals)
{
	int index = poll_index;

	poll_index = -1;
	if (index >= 0) {
		left(index, totals);
		reflect(index, totals);
	}
	tick_stopped = false;
	idle_task.nvcsw++;
}

extern bool *param_promote_arg;

void machine_promote(bool on)
{
	*param_promote_arg = on;
	cpuidle_promote_update(&device);
}

void machine_allow(const bool *states, u64 latency_ns)
{
	for (int i = 0; i < driver.state_count; i++)
		device.states_usage[i].disable = !states[i];
	limit_ns = latency_ns;
	cpuidle_promote_update(&device);
}

void machine_start(const char *name, const struct cpuidle_state *states, int count)
{
	governor = NULL;
	for (int i = 0; i < GOVERNORS; i++)
		if (governors[i] && !strcmp(governors[i]->name, name))
			governor = governors[i];
	driver.state_count = count;
	memcpy(driver.states, states, count * sizeof(*states));
	for (int i = 0; i < count; i++)
		driver.states[i].flags |= CPUIDLE_FLAG_PROMOTE; /* machine_promote() decides */
	memset(&device, 0, sizeof(device));
	limit_ns = KTIME_MAX;
	cpuidle_promote_update(&device);
	device.enabled = true;
	tick_ns = now_ns + TICK_NSEC;
	governor->enable(&driver, &device);
}

void machine_run(const struct period *periods, struct choice *choices, size_t count,
		 struct totals *totals)
{
	memset(totals, 0, sizeof(*totals));
	for (size_t i = 0; i < count; i++) {
		if (!periods[i].resumes)
			leave_loop(totals);
		now_ns += periods[i].busy_ns;
		poll_begin_ns += periods[i].busy_ns;	/* the recorded exit is no part of a poll */
		if (tick_ns <= now_ns)
			forward_tick();
		wake_ns = now_ns + periods[i].idle_ns;
		timer_ns = now_ns + periods[i].timer_ns;
		nobody = periods[i].nobody;
		by_tick = periods[i].tick;
		choices[i] = go_idle(totals);
	}
}
