// SPDX-License-Identifier: GPL-2.0-only
/*
 * What does it cost to wake a CPU from its idle states?
 *
 * The files are in debugfs, in latency_test/. Two of them are for batches:
 *
 *   sources  what can wake a CPU here, one per line; after a colon, why one cannot
 *   run      write one request, such as "source=ipi src=0 dest=1 state=2
 *            samples=200 min_ns=50000 max_ns=150000 settle_ns=10000". The write
 *            returns when the batch is done. Then read the samples, or the error,
 *            from the beginning of the same descriptor.
 *
 * Six more take one sample per write, whatever the CPU is doing:
 *
 *   ipi_cpu_src, ipi_cpu_dest (a write measures), ipi_latency_ns
 *   timeout_cpu_src, timeout_expected_ns (a write measures), timeout_diff_ns
 *
 * latency_batch.c takes the samples and judges them; wake_*.c send the wakeups.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpuidle.h>
#include <linux/cpumask.h>
#include <linux/ctype.h>
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/kstrtox.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "latency_batch.h"

#define LINE_MAX		255
#define SAMPLES_MAX		10000
#define DISTANCE_MIN_NS		1000
#define DISTANCE_MAX_NS		NSEC_PER_SEC
#define TIMEOUT_MIN_NS		NSEC_PER_MSEC
#define TIMEOUT_MAX_NS		(10ULL * NSEC_PER_SEC)
#define TIMEOUT_DEFAULT_NS	NSEC_PER_SEC
#define TOTAL_MAX_NS		(60ULL * NSEC_PER_SEC)

/* One sample of the six files: how long the CPU is left alone before an IPI. */
#define SINGLE_IPI_NS		(100 * NSEC_PER_USEC)

static const struct wake_source * const sources[] = {
	&wake_timer,
	&wake_ipi,
	&wake_store,
#if IS_ENABLED(CONFIG_VIRTIO)
	&wake_device,
#endif
};

static const char * const path_names[] = {
	[PATH_UNKNOWN]	= "-",
	[PATH_TIMER]	= "timer",
	[PATH_IPI]	= "ipi",
	[PATH_NONE]	= "none",
	[PATH_IRQ]	= "irq",
};

static const char * const verdict_names[] = {
	[LATENCY_OK]		= "ok",
	[LATENCY_NOT_IDLE]	= "not-idle",
	[LATENCY_BUSY_WAS_IDLE]	= "busy-was-idle",
	[LATENCY_WRONG_STATE]	= "wrong-state",
	[LATENCY_UNSETTLED]	= "unsettled",
	[LATENCY_NOT_POLLING]	= "not-polling",
	[LATENCY_WRONG_CPU]	= "wrong-cpu",
	[LATENCY_TIMEOUT]	= "timeout",
};

/* The request, as text. */

enum request_key {
	KEY_SRC,
	KEY_DEST,
	KEY_SAMPLES,
	KEY_MIN_NS,
	KEY_MAX_NS,
	KEY_SETTLE_NS,
	KEY_TIMEOUT_NS,
	/* The rest are words. */
	KEY_SOURCE,
	KEY_STATE,
	KEYS,
};

/**
 * struct key_rule - what a key may be
 * @name: the key
 * @optional: it may be left out
 * @min: the least value
 * @max: the largest value
 * @missing: the value if it is left out
 */
struct key_rule {
	const char *name;
	bool optional;
	u64 min;
	u64 max;
	u64 missing;
};

static const struct key_rule key_rules[KEYS] = {
	[KEY_SRC]	 = { "src", true, 0, UINT_MAX },
	[KEY_DEST]	 = { "dest", false, 0, UINT_MAX },
	[KEY_SAMPLES]	 = { "samples", false, 1, SAMPLES_MAX },
	[KEY_MIN_NS]	 = { "min_ns", false, DISTANCE_MIN_NS, DISTANCE_MAX_NS },
	[KEY_MAX_NS]	 = { "max_ns", false, DISTANCE_MIN_NS, DISTANCE_MAX_NS },
	[KEY_SETTLE_NS]	 = { "settle_ns", true, 0, DISTANCE_MAX_NS },
	[KEY_TIMEOUT_NS] = { "timeout_ns", true, TIMEOUT_MIN_NS, TIMEOUT_MAX_NS,
			     TIMEOUT_DEFAULT_NS },
	[KEY_SOURCE]	 = { "source" },
	[KEY_STATE]	 = { "state" },
};

/* What was given: the text behind each key, NULL if there is none, and its value. */
struct line {
	const char *text[KEYS];
	u64 value[KEYS];
};

static int find_key(const char *name)
{
	int key;

	for (key = 0; key < KEYS; key++)
		if (!strcmp(name, key_rules[key].name))
			return key;
	return -1;
}

static int split_line(char *text, struct line *line, struct latency_error *error)
{
	char *word;
	int key;

	while ((word = strsep(&text, " "))) {
		char *value = word, *name = strsep(&value, "=");

		if (!*word && !value)
			continue;
		key = find_key(name);
		if (key < 0)
			return latency_refuse(error, -EINVAL, "no such key: %.32s", name);
		if (!value)
			return latency_refuse(error, -EINVAL, "%s: has no value", name);
		if (line->text[key])
			return latency_refuse(error, -EINVAL, "%s: given twice", name);
		line->text[key] = value;
	}
	return 0;
}

static int read_number(enum request_key key, struct line *line, struct latency_error *error)
{
	const struct key_rule *rule = &key_rules[key];
	u64 *value = &line->value[key];

	if (!line->text[key]) {
		*value = rule->missing;
		return 0;
	}
	if (kstrtou64(line->text[key], 10, value) || *value < rule->min || *value > rule->max)
		return latency_refuse(error, -EINVAL, "%s: must be a number from %llu to %llu",
				      rule->name, rule->min, rule->max);
	return 0;
}

static int read_state(const char *text, int *state, struct latency_error *error)
{
	unsigned int index;

	if (!strcmp(text, "any")) {
		*state = LATENCY_STATE_ANY;
	} else if (!strcmp(text, "busy")) {
		*state = LATENCY_STATE_BUSY;
	} else if (!kstrtouint(text, 10, &index) && index < CPUIDLE_STATE_MAX) {
		*state = index;
	} else {
		return latency_refuse(error, -EINVAL, "state: must be any, busy or from 0 to %d",
				      CPUIDLE_STATE_MAX - 1);
	}
	return 0;
}

static int read_source(const char *text, const struct wake_source **source,
		       struct latency_error *error)
{
	int n;

	for (n = 0; n < ARRAY_SIZE(sources); n++) {
		if (!strcmp(text, sources[n]->name)) {
			*source = sources[n];
			return 0;
		}
	}
	return latency_refuse(error, -EINVAL, "source: no such source, see the file sources");
}

/* What no single key can tell. */
static int check_line(const struct line *line, const struct wake_source *source,
		      struct latency_error *error)
{
	const u64 *value = line->value;

	if (!line->text[KEY_SRC] && !source->local)
		return latency_refuse(error, -EINVAL, "src: is missing");
	if (value[KEY_MIN_NS] > value[KEY_MAX_NS])
		return latency_refuse(error, -EINVAL, "min_ns: is larger than max_ns");
	if (value[KEY_SAMPLES] * value[KEY_MAX_NS] > TOTAL_MAX_NS)
		return latency_refuse(error, -EINVAL,
				      "samples: samples times max_ns must be 60 s at most");
	return 0;
}

static int read_request(char *text, struct latency_request *request, struct latency_error *error)
{
	struct line line = { };
	const u64 *value = line.value;
	int ret, key;

	ret = split_line(text, &line, error);
	if (ret)
		return ret;
	for (key = 0; key < KEYS; key++)
		if (!line.text[key] && !key_rules[key].optional)
			return latency_refuse(error, -EINVAL, "%s: is missing",
					      key_rules[key].name);
	for (key = 0; key < KEY_SOURCE; key++) {
		ret = read_number(key, &line, error);
		if (ret)
			return ret;
	}
	ret = read_source(line.text[KEY_SOURCE], &request->source, error);
	if (!ret)
		ret = read_state(line.text[KEY_STATE], &request->state, error);
	if (!ret)
		ret = check_line(&line, request->source, error);
	if (ret)
		return ret;

	request->dest = value[KEY_DEST];
	request->src = line.text[KEY_SRC] ? value[KEY_SRC] : request->dest;
	request->samples = value[KEY_SAMPLES];
	request->min_ns = value[KEY_MIN_NS];
	request->max_ns = value[KEY_MAX_NS];
	request->settle_ns = value[KEY_SETTLE_NS];
	request->timeout_ns = value[KEY_TIMEOUT_NS];
	return 0;
}

/**
 * struct answer - what one open file has to say
 * @lock: a file may be read and written at the same time
 * @request: what the samples are of
 * @samples: of the last batch, if that went well
 * @taken: how many
 * @error: what was wrong with it, if anything
 */
struct answer {
	struct mutex lock; /* a reader and a writer */
	struct latency_request request;
	struct latency_sample *samples;
	unsigned int taken;
	struct latency_error error;
};

static void *answer_start(struct seq_file *seq, loff_t *pos)
{
	struct answer *answer = seq->private;

	mutex_lock(&answer->lock);
	if (*pos == 0 && (answer->taken || *answer->error.text))
		return SEQ_START_TOKEN;
	if (*pos > 0 && *pos <= answer->taken)
		return &answer->samples[*pos - 1];
	return NULL;
}

static void *answer_next(struct seq_file *seq, void *at, loff_t *pos)
{
	struct answer *answer = seq->private;

	return ++*pos <= answer->taken ? &answer->samples[*pos - 1] : NULL;
}

static void answer_stop(struct seq_file *seq, void *at)
{
	struct answer *answer = seq->private;

	mutex_unlock(&answer->lock);
}

static void show_requested(struct seq_file *seq, int state)
{
	if (state == LATENCY_STATE_ANY)
		seq_puts(seq, "any");
	else if (state == LATENCY_STATE_BUSY)
		seq_puts(seq, "busy");
	else
		seq_printf(seq, "%d", state);
}

static int answer_show(struct seq_file *seq, void *at)
{
	const struct answer *answer = seq->private;
	const struct latency_request *r = &answer->request;
	const struct latency_sample *s = at;

	if (at == SEQ_START_TOKEN) {
		if (*answer->error.text)
			seq_printf(seq, "error: %s\n", answer->error.text);
		else
			seq_puts(seq, "source src dest requested entered path settled_ns launch_ns wake_ns latency_ns verdict\n");
		return 0;
	}
	seq_printf(seq, "%s %u %u ", r->source->name, r->src, r->dest);
	show_requested(seq, r->state);
	seq_printf(seq, " %d %s %llu %llu %llu %lld %s\n", s->entered, path_names[s->path],
		   s->settled_ns, s->launch_ns, s->wake_ns,
		   s->wake_ns ? (s64)(s->wake_ns - s->launch_ns) : 0, verdict_names[s->verdict]);
	return 0;
}

static const struct seq_operations answer_ops = {
	.start = answer_start,
	.next = answer_next,
	.stop = answer_stop,
	.show = answer_show,
};

/* Samples, or why there are none, replace what the file had to say before. */
static void give_answer(struct answer *answer, const struct latency_request *request,
			struct latency_sample *samples, int taken,
			const struct latency_error *error)
{
	mutex_lock(&answer->lock);
	swap(answer->samples, samples);
	answer->request = *request;
	answer->taken = max(taken, 0);
	answer->error = *error;
	mutex_unlock(&answer->lock);
	kvfree(samples);
}

/* What is quoted in an answer must not look like something else. */
static bool is_text(const char *text, size_t length)
{
	size_t n;

	for (n = 0; n < length; n++)
		if (!isascii(text[n]) || !isprint(text[n]))
			return false;
	return true;
}

static int run_text(char *text, size_t length, struct answer *answer)
{
	struct latency_sample *samples = NULL;
	struct latency_request request = { };
	struct latency_error error = { };
	int ret;

	if (length && text[length - 1] == '\n')
		text[--length] = '\0';
	if (is_text(text, length))
		ret = read_request(text, &request, &error);
	else
		ret = latency_refuse(&error, -EINVAL, "the request is not one line of text");
	if (!ret) {
		samples = kvcalloc(request.samples, sizeof(*samples), GFP_KERNEL);
		if (samples)
			ret = latency_batch_run(&request, samples, &error);
		else
			ret = latency_refuse(&error, -ENOMEM, "samples: not enough memory");
	}
	give_answer(answer, &request, samples, ret, &error);
	return ret;
}

/*
 * The position is that of the reader: it finds the answer there, if it had come
 * to the end of the one before, too.
 */
static ssize_t run_write(struct file *file, const char __user *from, size_t count, loff_t *pos)
{
	struct answer *answer = ((struct seq_file *)file->private_data)->private;
	struct latency_error too_long = { "the line is longer than " __stringify(LINE_MAX) };
	struct latency_request none = { };
	char text[LINE_MAX + 1];
	int ret;

	if (count > LINE_MAX) {
		give_answer(answer, &none, NULL, 0, &too_long);
		return -EINVAL;
	}
	if (copy_from_user(text, from, count))
		return -EFAULT;
	text[count] = '\0';
	ret = run_text(text, count, answer);
	if (ret < 0)
		return ret;
	*pos = 0;
	return count;
}

static int run_open(struct inode *inode, struct file *file)
{
	struct answer *answer = __seq_open_private(file, &answer_ops, sizeof(*answer));

	if (!answer)
		return -ENOMEM;
	mutex_init(&answer->lock);
	return 0;
}

static int run_release(struct inode *inode, struct file *file)
{
	struct answer *answer = ((struct seq_file *)file->private_data)->private;

	kvfree(answer->samples);
	return seq_release_private(inode, file);
}

static const struct file_operations run_fops = {
	.owner = THIS_MODULE,
	.open = run_open,
	.read = seq_read,
	.write = run_write,
	.llseek = seq_lseek,
	.release = run_release,
};

static int sources_show(struct seq_file *seq, void *unused)
{
	const char *why;
	int n;

	for (n = 0; n < ARRAY_SIZE(sources); n++) {
		why = sources[n]->unavailable ? sources[n]->unavailable() : NULL;
		seq_printf(seq, "%s%s%s\n", sources[n]->name, why ? ": " : "", why ?: "");
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(sources);

/* The six files. Values are single words, so there is nothing to lock. */

static u64 ipi_cpu_src, ipi_cpu_dest, ipi_latency_ns;
static u64 timeout_cpu_src, timeout_expected_ns;
static s64 timeout_diff_ns;

/* One sample, whatever the CPU does. Without one the old result stays. */
static int run_single(struct latency_request *request, s64 *latency_ns)
{
	struct latency_sample sample = { };
	struct latency_error error = { };
	int ret;

	request->state = LATENCY_STATE_ANY;
	request->samples = 1;
	request->timeout_ns = TIMEOUT_DEFAULT_NS;
	ret = latency_batch_run(request, &sample, &error);
	if (ret < 0)
		return ret;
	if (sample.verdict == LATENCY_TIMEOUT)
		return -ETIMEDOUT;
	*latency_ns = sample.wake_ns - sample.launch_ns;
	return 0;
}

static int get_u64(void *data, u64 *value)
{
	*value = READ_ONCE(*(u64 *)data);
	return 0;
}

static int set_cpu(void *data, u64 value)
{
	if (value >= nr_cpu_ids)
		return -EINVAL;
	WRITE_ONCE(*(u64 *)data, value);
	return 0;
}

static int measure_ipi(void *data, u64 value)
{
	struct latency_request request = {
		.source = &wake_ipi,
		.src = READ_ONCE(ipi_cpu_src),
		.dest = value,
		.min_ns = SINGLE_IPI_NS,
		.max_ns = SINGLE_IPI_NS,
	};
	s64 latency_ns;
	int ret = set_cpu(data, value);

	if (!ret)
		ret = run_single(&request, &latency_ns);
	if (!ret)
		WRITE_ONCE(ipi_latency_ns, latency_ns);
	return ret;
}

static int measure_timeout(void *data, u64 value)
{
	struct latency_request request = {
		.source = &wake_timer,
		.src = READ_ONCE(timeout_cpu_src),
		.dest = READ_ONCE(timeout_cpu_src),
		.min_ns = value,
		.max_ns = value,
	};
	s64 latency_ns;
	int ret;

	if (value < DISTANCE_MIN_NS || value > DISTANCE_MAX_NS)
		return -EINVAL;
	WRITE_ONCE(timeout_expected_ns, value);
	ret = run_single(&request, &latency_ns);
	if (!ret)
		WRITE_ONCE(timeout_diff_ns, latency_ns);
	return ret;
}

DEFINE_DEBUGFS_ATTRIBUTE(cpu_fops, get_u64, set_cpu, "%llu\n");
DEFINE_DEBUGFS_ATTRIBUTE(ipi_dest_fops, get_u64, measure_ipi, "%llu\n");
DEFINE_DEBUGFS_ATTRIBUTE(timeout_fops, get_u64, measure_timeout, "%llu\n");
DEFINE_DEBUGFS_ATTRIBUTE(result_fops, get_u64, NULL, "%lld\n");

static struct dentry *dir;

static void create_files(void)
{
	dir = debugfs_create_dir("latency_test", NULL);
	debugfs_create_file("run", 0600, dir, NULL, &run_fops);
	debugfs_create_file("sources", 0400, dir, NULL, &sources_fops);
	debugfs_create_file("ipi_cpu_src", 0600, dir, &ipi_cpu_src, &cpu_fops);
	debugfs_create_file("ipi_cpu_dest", 0600, dir, &ipi_cpu_dest, &ipi_dest_fops);
	debugfs_create_file("ipi_latency_ns", 0400, dir, &ipi_latency_ns, &result_fops);
	debugfs_create_file("timeout_cpu_src", 0600, dir, &timeout_cpu_src, &cpu_fops);
	debugfs_create_file("timeout_expected_ns", 0600, dir, &timeout_expected_ns, &timeout_fops);
	debugfs_create_file("timeout_diff_ns", 0400, dir, &timeout_diff_ns, &result_fops);
}

static int __init latency_test_init(void)
{
	int ret;

	ret = idle_watch_init();
	if (ret)
		return ret;
	ret = latency_batch_init();
	if (ret)
		goto out_watch;
	ret = wake_device_init();
	if (ret)
		goto out_batch;
	create_files();
	return 0;

out_batch:
	latency_batch_exit();
out_watch:
	idle_watch_exit();
	return ret;
}

static void __exit latency_test_exit(void)
{
	debugfs_remove(dir);
	wake_device_exit();
	latency_batch_exit();
	idle_watch_exit();
}

module_init(latency_test_init);
module_exit(latency_test_exit);
MODULE_DESCRIPTION("Measure what it costs to wake a CPU from its idle states");
MODULE_LICENSE("GPL");
