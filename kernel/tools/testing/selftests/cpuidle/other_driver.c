// SPDX-License-Identifier: GPL-2.0-only
/*
 * A cpuidle driver that does nothing but be there first: cpuidle-lightsleep has
 * to refuse to load beside it, and to say so.
 */
#include <linux/cpuidle.h>
#include <linux/module.h>

/* Never entered: no device is registered. */
static int other_enter(struct cpuidle_device *dev, struct cpuidle_driver *drv, int index)
{
	return index;
}

static struct cpuidle_driver other_driver = {
	.name = "other",
	.states = { { .enter = other_enter, .name = "OTHER", .desc = "never entered" } },
	.state_count = 1,
};

static int __init other_init(void)
{
	return cpuidle_register_driver(&other_driver);
}

static void __exit other_exit(void)
{
	cpuidle_unregister_driver(&other_driver);
}

module_init(other_init);
module_exit(other_exit);
MODULE_DESCRIPTION("cpuidle driver for the tests of other cpuidle drivers");
MODULE_LICENSE("GPL");
