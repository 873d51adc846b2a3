// Fills 16 pages, behind which is one that nobody may touch, says where they are, and checks them each time it is told a line. A line "drop"
// has it change its user for one without rights first, and "age" has a thread clear and set the accessed bits of the pages from then on.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 16, PAGE = 4096 };
static unsigned char expected(int at) { return at / PAGE * 7 + at % 251 + 1; }

static void *age(void *bytes) {
	for (;;) {
		madvise(bytes, PAGES * PAGE, MADV_COLD);
		for (int at = 0; at < PAGES * PAGE; at += PAGE) (void)((volatile char *)bytes)[at];
	}
	return NULL;
}

int main(void) {
	pthread_t thread;
	char line[100];
	unsigned char *bytes = mmap(0, (PAGES + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mprotect(bytes + PAGES * PAGE, PAGE, PROT_NONE)) return 1;
	for (int at = 0; at < PAGES * PAGE; at++) bytes[at] = expected(at);
	printf("%p\n", (void *)bytes), fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		if (!strcmp(line, "drop\n") && setresuid(1000, 1000, 1000)) return 1;
		if (!strcmp(line, "age\n") && pthread_create(&thread, NULL, age, bytes)) return 1;
		int wrong = 0;
		for (int at = 0; at < PAGES * PAGE; at++) wrong += bytes[at] != expected(at);
		printf("%d wrong\n", wrong), fflush(stdout);
	}
	return 0;
}
