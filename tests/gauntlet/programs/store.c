/*
 * A store of pages, as Redis is one: it changes values at random, forks every second, and the child compares all of it with what
 * it was at the fork. Meanwhile a thread reads into the store, and writes from it, past the page cache.
 *
 *     store MIB SECONDS
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, RUN = 16 };

static char *pages;
static uint32_t *number; /* of each page's content */
static size_t count;
static atomic_int over;
static unsigned long reads, writes;

static uint64_t word_of(uint32_t number, size_t word)
{
	return (number + word) * 0x9e3779b97f4a7c15u;
}

static void fill(void *page, uint32_t number)
{
	for (size_t i = 0; i < WORDS; i++)
		((uint64_t *)page)[i] = word_of(number, i);
}

static void check(const char *what, const void *page, uint32_t number)
{
	for (size_t i = 0; i < WORDS; i += 101)
		if (((volatile const uint64_t *)page)[i] != word_of(number, i)) {
			printf("WRONG: %s: page of %u, word %zu\n", what, number, i);
			fflush(stdout);
			_exit(3);
		}
}

static uint64_t next(uint64_t *random)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return *random >> 11;
}

/* The last pages of the store are this thread's. */
static void *direct_io(void *nothing)
{
	int file = open("store.data", O_RDWR | O_CREAT | O_DIRECT, 0600);
	uint64_t random = 7;
	size_t first = count - 64 * RUN;
	static char content[RUN * PAGE] __attribute__((aligned(PAGE)));

	if (file < 0)
		return nothing;
	unlink("store.data");
	while (!over) {
		size_t at = first + next(&random) % 64 * RUN;
		uint32_t with = next(&random);
		for (size_t i = 0; i < RUN; i++)
			fill(content + i * PAGE, with + i);
		if (pwrite(file, content, sizeof content, 0) != sizeof content ||
		    pread(file, pages + at * PAGE, sizeof content, 0) != sizeof content)
			_exit(4);
		reads++;
		for (size_t i = 0; i < RUN; i++) {
			check("read past the page cache", pages + (at + i) * PAGE, with + i);
			number[at + i] = with + i;
		}
		at = first + next(&random) % 64 * RUN;
		if (number[at] == 0)
			continue;
		if (pwrite(file, pages + at * PAGE, sizeof content, sizeof content) != sizeof content ||
		    pread(file, content, sizeof content, sizeof content) != sizeof content)
			_exit(4);
		writes++;
		for (size_t i = 0; i < RUN; i++)
			check("written past the page cache", content + i * PAGE, number[at + i]);
	}
	return nothing;
}

static pid_t compare_in_a_child(void)
{
	pid_t child = fork();

	if (child)
		return child;
	/* What the thread was changing at the fork is left out. */
	for (size_t page = 0; page < count - 64 * RUN; page++)
		check("in a child", pages + page * PAGE, number[page]);
	_exit(0);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	uint64_t random = 1;
	unsigned long forks = 0;
	pthread_t thread;
	pid_t child = 0;
	int status;

	count = strtoul(argv[1], 0, 10) * 256;
	pages = mmap(0, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	number = calloc(count, sizeof *number);
	for (size_t page = 0; page < count - 64 * RUN; page++)
		fill(pages + page * PAGE, number[page] = page + 1);
	pthread_create(&thread, 0, direct_io, 0);
	time_t end = time(0) + atoi(argv[2]), forked = 0;
	while (time(0) < end) {
		size_t page = next(&random) % (count - 64 * RUN);
		check("changed", pages + page * PAGE, number[page]);
		fill(pages + page * PAGE, number[page] = next(&random));
		if (child && waitpid(child, &status, WNOHANG) == child) {
			if (status) {
				printf("WRONG: a child ended with %x\n", status);
				return 3;
			}
			child = 0;
		}
		if (!child && forked != time(0)) {
			forked = time(0);
			child = compare_in_a_child();
			forks++;
		}
	}
	over = 1;
	pthread_join(thread, 0);
	if (child && (waitpid(child, &status, 0) != child || status))
		return 3;
	for (size_t page = 0; page < count - 64 * RUN; page++)
		check("at the end", pages + page * PAGE, number[page]);
	printf("right: %lu forks, %lu direct reads, %lu direct writes\n", forks, reads, writes);
}
