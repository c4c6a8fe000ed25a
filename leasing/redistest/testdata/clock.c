// The clock of a process that loads this before others: the machine's, set ahead by the microseconds in the
// first eight bytes of the file that STEPPED_CLOCK names.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

static volatile int64_t *by;

__attribute__((constructor)) static void begin(void) {
	const char *name = getenv("STEPPED_CLOCK");
	int file = name ? open(name, O_RDONLY) : -1;
	if (file >= 0) {
		void *at = mmap(NULL, sizeof *by, PROT_READ, MAP_SHARED, file, 0);
		by = at == MAP_FAILED ? NULL : at;
	}
}

int gettimeofday(struct timeval *tv, void *zone) {
	int failed = syscall(SYS_gettimeofday, tv, zone);
	if (failed == 0 && tv && by) {
		int64_t us = tv->tv_sec * INT64_C(1000000) + tv->tv_usec + *by;
		tv->tv_sec = us / 1000000, tv->tv_usec = us % 1000000;
	}
	return failed;
}
