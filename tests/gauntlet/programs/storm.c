/*
 * Memory calls of all kinds, in a random order, by several threads; every page is compared with what it must hold.
 *
 *     storm MIB THREADS SECONDS SEED [forks]
 *
 * Each thread has regions of its own. Of every page a region knows a number, from which its content follows; 0 is zeros. The
 * numbers lie in memory like any other. A wrong byte ends the program with status 3, after a line; else it prints "right".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

enum { PAGE = 4096, WORDS = PAGE / 8, REGIONS = 6, CHUNK = 64 };

struct region {
	char *at;
	size_t pages;
	uint32_t *number; /* of each page's content */
};

struct thread {
	uint64_t random;
	uint32_t last;
	size_t most_pages;
	int file;
	struct region region[REGIONS];
};

static time_t end;
static int forks;

static uint64_t next(struct thread *t)
{
	t->random ^= t->random << 13;
	t->random ^= t->random >> 7;
	t->random ^= t->random << 17;
	return t->random;
}

static size_t below(struct thread *t, size_t bound)
{
	return bound ? (next(t) >> 11) % bound : 0;
}

static void must(int holds, const char *call)
{
	if (!holds) {
		printf("%s: %s\n", call, strerror(errno));
		fflush(stdout);
		_exit(4);
	}
}

static uint64_t word_of(uint32_t number, size_t word)
{
	return number ? (number + word) * 0x9e3779b97f4a7c15u : 0;
}

static void write_page(struct thread *t, struct region *r, size_t page)
{
	uint64_t *words = (uint64_t *)(r->at + page * PAGE);
	uint32_t number = ++t->last;

	for (size_t i = 0; i < WORDS; i++)
		words[i] = word_of(number, i);
	r->number[page] = number;
}

/* The first and the last word of a page, and one between. */
static void check_words(const char *what, uint64_t *words, uint32_t number, size_t between)
{
	size_t at[] = { 0, between % WORDS, WORDS - 1 };

	for (int i = 0; i < 3; i++) {
		uint64_t found = ((volatile uint64_t *)words)[at[i]];
		if (found == word_of(number, at[i]))
			continue;
		printf("WRONG: %s: %p has %lx, not the %lx of %u\n", what, (void *)(words + at[i]), found,
		       word_of(number, at[i]), number);
		fflush(stdout);
		_exit(3);
	}
}

static void check(struct thread *t, const char *what, struct region *r, size_t first, size_t pages)
{
	for (size_t page = first; page < first + pages; page++)
		check_words(what, (uint64_t *)(r->at + page * PAGE), r->number[page], next(t));
}

static void forget(struct region *r, size_t first, size_t pages)
{
	memset(r->number + first, 0, pages * sizeof *r->number);
}

static void renumber(struct region *r, size_t pages)
{
	r->number = realloc(r->number, (pages + 1) * sizeof *r->number);
	must(r->number != 0, "realloc");
	if (pages > r->pages)
		memset(r->number + r->pages, 0, (pages - r->pages) * sizeof *r->number);
	r->pages = pages;
}

static void map_anew(struct thread *t, struct region *r)
{
	int populate = below(t, 4) == 0 ? MAP_POPULATE : 0;
	size_t pages = 1 + below(t, t->most_pages);

	if (r->at) {
		check(t, "before munmap", r, 0, r->pages);
		must(munmap(r->at, r->pages * PAGE) == 0, "munmap");
	}
	r->at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | populate, -1, 0);
	must(r->at != MAP_FAILED, "mmap");
	if (below(t, 3) == 0)
		madvise(r->at, pages * PAGE, MADV_HUGEPAGE);
	r->pages = 0;
	renumber(r, pages);
}

static void resize(struct thread *t, struct region *r)
{
	size_t pages = 1 + below(t, t->most_pages);
	char *at = mremap(r->at, r->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);

	/* Advice may have made several mappings of it, which are not moved together. */
	if (at == MAP_FAILED && errno == EFAULT)
		return;
	must(at != MAP_FAILED, "mremap");
	r->at = at;
	renumber(r, pages);
}

/* Over a hole that was reserved, with or without what is left behind. */
static void move(struct thread *t, struct region *r)
{
	char *to = mmap(0, r->pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int keeps = below(t, 2) ? MREMAP_DONTUNMAP : 0;
	char *from = r->at;

	must(to != MAP_FAILED, "mmap");
	if (mremap(from, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | keeps, to) != to) {
		/* Several mappings, of which some may have moved. */
		must(errno == EFAULT, "mremap over");
		munmap(to, r->pages * PAGE);
		munmap(from, r->pages * PAGE);
		r->at = 0;
		map_anew(t, r);
		return;
	}
	r->at = to;
	if (keeps) {
		check_words("left behind", (uint64_t *)(from + below(t, r->pages) * PAGE), 0, next(t));
		must(munmap(from, r->pages * PAGE) == 0, "munmap");
	}
}

static void map_over(struct thread *t, struct region *r, size_t first, size_t pages)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;

	(void)t;
	must(mmap(r->at + first * PAGE, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED, "mmap over");
	forget(r, first, pages);
}

static void advise(struct thread *t, struct region *r, size_t first, size_t pages)
{
	static const int harmless[] = { MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_RANDOM, MADV_SEQUENTIAL, MADV_NORMAL,
		MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE };
	char *at = r->at + first * PAGE;

	switch (below(t, 6)) {
	case 0:
	case 1:
		must(madvise(at, pages * PAGE, MADV_DONTNEED) == 0, "DONTNEED");
		forget(r, first, pages);
		break;
	case 2:
		/* Zeros or what was there, until it is written. */
		if (madvise(at, pages * PAGE, MADV_FREE) == 0)
			for (size_t page = first; page < first + pages; page++)
				write_page(t, r, page);
		break;
	case 3:
		if (madvise(at, pages * PAGE, MADV_GUARD_INSTALL) == 0) {
			must(madvise(at, pages * PAGE, MADV_GUARD_REMOVE) == 0, "GUARD_REMOVE");
			forget(r, first, pages);
		}
		break;
	default:
		madvise(at, pages * PAGE, harmless[below(t, sizeof harmless / sizeof *harmless)]);
	}
}

static void protect(struct thread *t, struct region *r, size_t first, size_t pages)
{
	char *at = r->at + first * PAGE;
	int kind = below(t, 3) ? PROT_READ : PROT_NONE;

	must(mprotect(at, pages * PAGE, kind) == 0, "mprotect");
	if (kind == PROT_READ)
		check(t, "read only", r, first, pages);
	else
		usleep(below(t, 2000));
	must(mprotect(at, pages * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect back");
	check(t, "after mprotect", r, first, pages);
}

/* Through a file, past the page cache, into other pages. */
static void direct_io(struct thread *t, struct region *r, size_t first, size_t pages)
{
	ssize_t bytes = pages * PAGE;
	size_t into = below(t, r->pages - pages + 1);

	if (t->file < 0)
		return;
	must(pwrite(t->file, r->at + first * PAGE, bytes, 0) == bytes, "pwrite");
	uint32_t numbers[CHUNK];
	memcpy(numbers, r->number + first, pages * sizeof *numbers);
	must(pread(t->file, r->at + into * PAGE, bytes, 0) == bytes, "pread");
	memcpy(r->number + into, numbers, pages * sizeof *numbers);
	check(t, "direct I/O", r, into, pages);
}

static void read_from_outside(struct thread *t, struct region *r, size_t page)
{
	uint64_t copy[WORDS];
	struct iovec to = { copy, PAGE }, from = { r->at + page * PAGE, PAGE };

	if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == PAGE)
		check_words("process_vm_readv", copy, r->number[page], next(t));
}

static void lock(struct region *r, size_t first, size_t pages)
{
	if (mlock(r->at + first * PAGE, pages * PAGE) == 0)
		must(munlock(r->at + first * PAGE, pages * PAGE) == 0, "munlock");
}

/* Deep into the stack and back. */
static uint64_t recurse(struct thread *t, int depth)
{
	volatile uint64_t words[WORDS];
	uint64_t seed = next(t);

	for (size_t i = 0; i < WORDS; i += 64)
		words[i] = seed + i;
	uint64_t sum = depth ? recurse(t, depth - 1) : 0;
	for (size_t i = 0; i < WORDS; i += 64)
		if (words[i] != seed + i) {
			printf("WRONG: stack: %lx, not %lx\n", words[i], seed + i);
			fflush(stdout);
			_exit(3);
		}
	return sum + words[64];
}

/* A child compares what it was left, changes some, and compares again. */
static void fork_one(struct thread *t)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		for (struct region *r = t->region; r < t->region + REGIONS; r++) {
			size_t first = below(t, r->pages), pages = below(t, r->pages - first) % CHUNK;
			check(t, "in a child", r, first, pages);
			for (size_t page = first; page < first + pages; page += 3)
				write_page(t, r, page);
			if (below(t, 4) == 0)
				usleep(below(t, 20000));
			check(t, "written by a child", r, first, pages);
		}
		_exit(0);
	}
	must(child > 0, "fork");
	must(waitpid(child, &status, 0) == child, "waitpid");
	if (status != 0) {
		printf("WRONG: a child ended with %x\n", status);
		fflush(stdout);
		_exit(3);
	}
}

static void *empty_thread(void *nothing)
{
	return nothing;
}

static void start_thread(void)
{
	pthread_t thread;

	if (pthread_create(&thread, 0, empty_thread, 0) == 0)
		pthread_join(thread, 0);
}

static void step(struct thread *t)
{
	struct region *r = t->region + below(t, REGIONS);
	size_t pages = 1 + below(t, r->pages < CHUNK ? r->pages : CHUNK);
	size_t first = below(t, r->pages - pages + 1);

	switch (below(t, forks ? 30 : 29)) {
	case 0: map_anew(t, r); break;
	case 1: resize(t, r); break;
	case 2: move(t, r); break;
	case 3: map_over(t, r, first, pages); break;
	case 4: case 5: case 6: advise(t, r, first, pages); break;
	case 7: case 8: protect(t, r, first, pages); break;
	case 9: direct_io(t, r, first, pages); break;
	case 10: read_from_outside(t, r, first); break;
	case 11: lock(r, first, pages); break;
	case 12: recurse(t, below(t, 200)); break;
	case 13: start_thread(); break;
	case 29: if (below(t, 8) == 0) fork_one(t); break;
	case 14: case 15: case 16: case 17: case 18: case 19: case 20:
		for (size_t page = first; page < first + pages; page++)
			write_page(t, r, page);
		break;
	default:
		check(t, "read", r, first, pages);
	}
}

static void *work(void *thread)
{
	struct thread *t = thread;

	for (struct region *r = t->region; r < t->region + REGIONS; r++)
		map_anew(t, r);
	while (time(0) < end)
		step(t);
	for (struct region *r = t->region; r < t->region + REGIONS; r++)
		check(t, "at the end", r, 0, r->pages);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	size_t pages = strtoul(argv[1], 0, 10) * 256, threads = strtoul(argv[2], 0, 10);
	pthread_t *id = calloc(threads, sizeof *id);
	struct thread *t = calloc(threads, sizeof *t);

	forks = argc > 5;
	end = time(0) + atoi(argv[3]);
	for (size_t i = 0; i < threads; i++) {
		char name[64];
		snprintf(name, sizeof name, "storm.%d.%zu", getpid(), i);
		t[i].random = strtoul(argv[4], 0, 10) * 1000003 + i * 7919 + 1;
		/* On average a region has half of it. */
		t[i].most_pages = 2 * pages / threads / REGIONS;
		t[i].file = open(name, O_RDWR | O_CREAT | O_DIRECT, 0600);
		unlink(name);
		must(pthread_create(id + i, 0, work, t + i) == 0, "pthread_create");
	}
	for (size_t i = 0; i < threads; i++)
		pthread_join(id[i], 0);
	puts("right");
}
