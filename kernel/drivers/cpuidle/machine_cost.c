// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the measurements of halt_cost.c say together: what a wakeup from halt costs here.
 *
 * The median of the latest five results counts, so one bad minute decides nothing.
 *
 * Noise may hide the cost: then the interval contains 0, and there is no result. But its
 * upper end still is a bound. It is never below MACHINE_COST_NOTHING_NS, so that bounds alone
 * end no polling, and the programs can contradict them. Where there is no result yet,
 * nothing above the bound is assumed. Where there is, and three measurements in a row are
 * bounds below it, the machine has changed: the results go, and all begins anew.
 *
 * A machine that is busy when polling starts cannot be measured. A cost of 0
 * would then keep the CPUs from polling, and a CPU that never polls learns nothing from its
 * programs. So after a measurement without a result ASSUMED_COST_NS is used until there is
 * one, or the bound of the latest that noise drowned, if that is lower: times the default
 * weight, it makes a missed wakeup as dear as 100 us of polling, which is how long the
 * first proposal for arm64 polled. If a measurement says that polls make wakeups slower
 * before there is a result, the cost is 0 from then on: somebody else wants the core. It stays
 * so until another one has a figure, or three in a row have a bound: these no longer found any
 * harm.
 * Later on a failed measurement changes nothing: the programs and host_contention.c notice
 * such a host.
 *
 * This file only judges. Context: any, one call at a time.
 */
#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/idle_poll/machine_cost.h>
#include <linux/limits.h>
#include <linux/minmax.h>

#define ASSUMED_COST_NS		25000
#define REFUTED_TIMES		3
#define TYPICAL_SLEEP		1	/* the length that stands for all: 100 us */

static u64 median(const u64 values[MACHINE_COST_RESULTS], unsigned int results)
{
	unsigned int n = min_t(unsigned int, results, MACHINE_COST_RESULTS), i, j;
	u64 sorted[MACHINE_COST_RESULTS];

	for (i = 0; i < n; i++) {
		for (j = i; j > 0 && sorted[j - 1] > values[i]; j--)
			sorted[j] = sorted[j - 1];
		sorted[j] = values[i];
	}
	return sorted[(n - 1) / 2];
}

/* Does the interval say that halting costs something, or that it costs next to nothing? */
static bool conclusive(const struct wake_cost_estimate *estimate)
{
	const s64 nothing_ns = MACHINE_COST_NOTHING_NS;

	return estimate->lower_ns > 0 ||
	       (estimate->lower_ns > -nothing_ns && estimate->upper_ns < nothing_ns);
}

/*
 * The estimate that stands for all: that of sleeps of 100 us, about where polling and
 * halting compete. Where noise drowned it, one of the others is better than none.
 */
static const struct wake_cost_estimate *
telling_estimate(const struct halt_cost measured[HALT_COST_SLEEPS])
{
	static const unsigned int preferred[HALT_COST_SLEEPS] = { TYPICAL_SLEEP, 0, 2 };
	unsigned int n;

	for (n = 0; n < HALT_COST_SLEEPS; n++)
		if (conclusive(&measured[preferred[n]].estimate))
			return &measured[preferred[n]].estimate;
	return NULL;
}

/* Did polls make wakeups slower, beyond doubt? */
static bool harmful(const struct halt_cost measured[HALT_COST_SLEEPS])
{
	unsigned int n;

	for (n = 0; n < HALT_COST_SLEEPS; n++)
		if (measured[n].estimate.upper_ns < -MACHINE_COST_NOTHING_NS)
			return true;
	return false;
}

/**
 * machine_cost_says - what one measurement says
 * @measured: it
 * @cost_ns: set to what a wakeup from halt costs after sleeps of 100 us
 * @is_bound: set to whether it costs that at most. Where these sleeps cannot tell, that is a bound,
 *	whatever longer ones cost: a host that polls for its guests does so for some time only.
 *
 * Return: 0 if it has a result; -EBUSY if polls make wakeups slower, where @cost_ns means nothing;
 * -ENODATA if noise leaves no more than the bound.
 */
int machine_cost_says(const struct halt_cost measured[HALT_COST_SLEEPS], u64 *cost_ns,
		      bool *is_bound)
{
	const struct wake_cost_estimate *typical = &measured[TYPICAL_SLEEP].estimate;
	const struct wake_cost_estimate *telling = telling_estimate(measured);
	s64 most_ns = max_t(s64, typical->upper_ns, MACHINE_COST_NOTHING_NS);

	*is_bound = !conclusive(typical) && (!telling || telling->cost_ns >= most_ns);
	*cost_ns = *is_bound ? most_ns : max(telling->cost_ns, 0LL);
	if (telling)
		return 0;
	return harmful(measured) ? -EBUSY : -ENODATA;
}

#ifdef LIGHTSLEEP_MODULE
static u64 worst_of_all(const struct halt_cost measured[HALT_COST_SLEEPS])
{
	u64 worst_ns = 0;
	unsigned int n;

	for (n = 0; n < HALT_COST_SLEEPS; n++)
		if (conclusive(&measured[n].estimate))
			worst_ns = max(worst_ns, measured[n].worst_ns);
	return worst_ns;
}
#endif

static void add_result(struct machine_cost *mc, const struct halt_cost measured[HALT_COST_SLEEPS],
		       u64 cost_ns)
{
	unsigned int next = mc->results % MACHINE_COST_RESULTS;

#ifdef LIGHTSLEEP_MODULE
	mc->worst_results_ns[next] = worst_of_all(measured);
	mc->worst_ns = median(mc->worst_results_ns, mc->results + 1);
#endif
	mc->results_ns[next] = cost_ns;
	WRITE_ONCE(mc->cost_ns, median(mc->results_ns, mc->results + 1));
	WRITE_ONCE(mc->results, mc->results + 1);
	WRITE_ONCE(mc->bound_ns, 0);
	mc->refuted = 0;
	WRITE_ONCE(mc->harmful, false);
}

/*
 * Three that refute the figure are more than bad luck: it is from before a live migration, say.
 * And so it is with three that refute harm, from when the machine booted.
 */
static void add_bound(struct machine_cost *mc, u64 most_ns)
{
	bool refutes = mc->harmful || (mc->results && most_ns < mc->cost_ns);

	WRITE_ONCE(mc->bound_ns, most_ns);
	mc->refuted = refutes ? mc->refuted + 1 : 0;
	if (mc->refuted < REFUTED_TIMES)
		return;
	WRITE_ONCE(mc->results, 0);
	mc->refuted = 0;
	WRITE_ONCE(mc->harmful, false);
}

static void add_harm(struct machine_cost *mc)
{
	if (mc->results)
		return;
	mc->refuted = 0;
	WRITE_ONCE(mc->harmful, true);
}

/**
 * machine_cost_assume - a measurement did not come to its end
 * @mc: what is known: while there is no result, something is assumed from now on
 */
void machine_cost_assume(struct machine_cost *mc)
{
	if (mc->results)
		return;
	WRITE_ONCE(mc->cost_ns, mc->harmful ? 0 :
				min_t(u64, ASSUMED_COST_NS, mc->bound_ns ?: U64_MAX));
#ifdef LIGHTSLEEP_MODULE
	/*
	 * A latency request below it has to be honoured as well. A bound of what is usual bounds
	 * no worst case, and what was once measured of that is not undone.
	 */
	if (!mc->worst_results_ns[0])
		mc->worst_ns = mc->harmful ? 0 : ASSUMED_COST_NS;
#endif
}

/**
 * machine_cost_add - take a measurement for what it says
 * @mc: what is known up to then
 * @measured: the measurement
 *
 * Return: as of machine_cost_says().
 */
int machine_cost_add(struct machine_cost *mc, const struct halt_cost measured[HALT_COST_SLEEPS])
{
	bool is_bound;
	u64 cost_ns;
	int ret = machine_cost_says(measured, &cost_ns, &is_bound);

	if (!ret) {
		add_result(mc, measured, cost_ns);
		return 0;
	}
	if (ret == -ENODATA)
		add_bound(mc, cost_ns);
	else
		add_harm(mc);
	machine_cost_assume(mc);
	return ret;
}
