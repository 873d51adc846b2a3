/*
 * Programs that take more memory than there is, as fast as they can.
 *
 *     strict flood MIB PIECE_KIB     one process, in mappings of so much, with huge pages
 *     strict crowd N MIB             N processes at once, each of which fills so much and reads it twice
 *     strict random N SEED           N processes that start, fill 1 to 32 MiB, read it, and end, at random moments
 *     strict tree DEPTH MIB          a process that forks two under it, and so on: each writes what it was left, and more
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

static void die(const char *why)
{
	printf("WRONG: %s\n", why);
	fflush(stdout);
	_exit(3);
}

static char *map(size_t bytes, int huge)
{
	char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("mmap");
	if (huge)
		madvise(at, bytes, MADV_HUGEPAGE);
	return at;
}

static void fill(char *at, size_t bytes, uint64_t with)
{
	for (size_t i = 0; i < bytes; i += PAGE)
		*(uint64_t *)(at + i) = with + i;
}

static void check(char *at, size_t bytes, uint64_t with)
{
	for (size_t i = 0; i < bytes; i += PAGE)
		if (*(volatile uint64_t *)(at + i) != with + i)
			die("a page");
}

static int wait_for_all(void)
{
	int status, wrong = 0;

	while (wait(&status) > 0)
		wrong |= status;
	return wrong;
}

static void flood(size_t bytes, size_t piece)
{
	size_t count = bytes / piece;
	char **at = calloc(count, sizeof *at);

	for (size_t i = 0; i < count; i++)
		fill(at[i] = map(piece, 1), piece, i);
	for (size_t i = 0; i < count; i++)
		check(at[i], piece, i);
}

static int crowd(int count, size_t bytes)
{
	for (int i = 0; i < count; i++)
		if (fork() == 0) {
			char *at = map(bytes, 0);
			fill(at, bytes, i);
			check(at, bytes, i);
			check(at, bytes, i);
			_exit(0);
		}
	return wait_for_all();
}

static int at_random(int count, unsigned seed)
{
	srandom(seed);
	for (int i = 0; i < count; i++) {
		size_t bytes = (1 + random() % 32) << 20;
		int reads = random() % 3, pause = random() % 20000;
		if (fork() == 0) {
			char *at = map(bytes, i % 2);
			fill(at, bytes, i);
			while (reads--)
				check(at, bytes, i);
			_exit(0);
		}
		usleep(pause);
	}
	return wait_for_all();
}

static int tree(int depth, size_t bytes, char *left, uint64_t with)
{
	char *at = map(bytes, 0);

	if (left) {
		check(left, bytes, with);
		fill(left, bytes, with + 1);
	}
	fill(at, bytes, depth);
	for (int i = 0; depth && i < 2; i++)
		if (fork() == 0)
			_exit(tree(depth - 1, bytes, at, depth));
	if (left)
		check(left, bytes, with + 1);
	check(at, bytes, depth);
	return wait_for_all() != 0;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	long first = atol(argv[2]), second = atol(argv[3]);
	int wrong = 0;

	switch (argv[1][0]) {
	case 'f': flood(first << 20, second << 10); break;
	case 'c': wrong = crowd(first, second << 20); break;
	case 'r': wrong = at_random(first, second); break;
	case 't': wrong = tree(first, second << 20, 0, 0); break;
	}
	if (wrong)
		die("a child");
	puts("right");
}
