// SPDX-License-Identifier: GPL-2.0-only
/*
 * An idle driver that polls before it halts by the rule of cpuidle-haltpoll, to compare with.
 *
 * That driver and its governor give up where KVM's signature is missing (kvm_para_available()),
 * which no emulator can show. So the rule is here again (haltpoll_rule.h), in a driver that, as
 * cpuidle-lightsleep, decides by itself whatever state the governor chooses: after a halt the
 * CPU polls up to its limit, and where nothing came, it halts. The governor still decides
 * about the tick, which haltpoll's own keeps wherever it polls.
 */
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/sched/idle.h>

#include "../../../../drivers/cpuidle/idle_driver.h"
#include "haltpoll_rule.h"

#define LOOKS_PER_CLOCK	200	/* as poll_idle() */

enum { POLL_INDEX, HALT_INDEX };

/**
 * struct rule - what one CPU has learned
 * @limit_ns: how long it may poll
 * @polled_in_vain: its last poll found nothing, and no halt has followed
 */
struct rule {
	u64 limit_ns;
	bool polled_in_vain;
};

static DEFINE_PER_CPU(struct rule, rules);

/* Returns whether a wakeup came. Idle task; interrupts off on entry and return, on meanwhile. */
static bool poll_for(u64 for_ns)
{
	u64 end_ns = ktime_get_mono_fast_ns() + for_ns;
	unsigned int looks = 0;
	bool woken = true;

	__current_set_polling();
	local_irq_enable();
	while (!need_resched()) {
		cpu_relax();
		if (++looks < LOOKS_PER_CLOCK)
			continue;
		looks = 0;
		if (ktime_get_mono_fast_ns() >= end_ns) {
			woken = false;
			break;
		}
	}
	local_irq_disable();
	return woken;
}

/* Idle task, interrupts off; RCU watches but in the halt. */
static int haltpoll_enter(struct cpuidle_device *dev, struct cpuidle_driver *drv, int index)
{
	struct rule *rule = this_cpu_ptr(&rules);
	u64 start_ns;

	if (rule->limit_ns && !rule->polled_in_vain) {
		rule->polled_in_vain = !poll_for(rule->limit_ns);
		dev->poll_time_limit = rule->polled_in_vain;
		idle_driver_pass_quiescent_state();
		return POLL_INDEX;
	}

	rule->polled_in_vain = false;
	dev->poll_time_limit = false;
	if (current_clr_polling_and_test())
		return POLL_INDEX;
	start_ns = ktime_get_mono_fast_ns();
	idle_driver_halt();
	rule->limit_ns = haltpoll_next_limit_ns(rule->limit_ns,
						ktime_get_mono_fast_ns() - start_ns);
	return HALT_INDEX;
}

static struct cpuidle_driver haltpoll_driver = {
	.name = "haltpoll_rule",
	.states = {
		[POLL_INDEX] = {
			.enter = haltpoll_enter,
			.flags = CPUIDLE_FLAG_POLLING | CPUIDLE_FLAG_RCU_IDLE,
			.name = "POLL",
			.desc = "polls for a wakeup",
		},
		[HALT_INDEX] = {
			.enter = haltpoll_enter,
			.flags = CPUIDLE_FLAG_RCU_IDLE,
			.exit_latency = 1,
			.target_residency = 1,
			.name = "HALT",
			.desc = "polls after a halt, then halts",
		},
	},
	.state_count = 2,
};

static int __init haltpoll_rule_init(void)
{
	return cpuidle_register(&haltpoll_driver, NULL);
}

static void __exit haltpoll_rule_exit(void)
{
	cpuidle_unregister(&haltpoll_driver);
}

module_init(haltpoll_rule_init);
module_exit(haltpoll_rule_exit);
MODULE_DESCRIPTION("idle driver with the rule of cpuidle-haltpoll, to compare with");
MODULE_LICENSE("GPL");
