// SPDX-License-Identifier: GPL-2.0-only
/* Prints what read_trace_dat.c takes the interrupt handlers for that its arguments name. */
#define main read_trace_dat
#include "read_trace_dat.c"
#undef main

int main(int argc, char **argv)
{
	int i;

	for (i = 1; i < argc; i++) {
		size_t size = strlen(argv[i]) + 1;

		puts(is_ipi(argv[i], size) ? "ipi" :
		     tells_nothing(argv[i], size) ? "unknown" : "device");
	}
	return 0;
}
