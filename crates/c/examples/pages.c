/* A table of counters in the pages of a pool: 32 MiB in 4 MiB of memory, one page written to a file
   straight from the pool, a region pinned for a read.

   cc -O2 pages.c $(pkg-config --cflags --libs overspill) -o pages && ./pages */

#include <overspill.h>
#include <stdio.h>
#include <string.h>

enum { PAGES = 8192, LIMIT = 4 << 20 };

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, overspill_error());
	return 1;
}

/* Adds one to the counter of every page. */
static int count_all(overspill_pool *pool)
{
	for (uint32_t n = 0; n < PAGES; n++) {
		overspill_page *page = overspill_page_take(pool, n, OVERSPILL_TO_WRITE);
		if (!page)
			return fail("overspill_page_take");
		++*(uint64_t *)overspill_page_data(page);
		overspill_page_release(page);
	}
	return 0;
}

static int check_all(overspill_pool *pool, uint64_t count)
{
	for (uint32_t n = 0; n < PAGES; n++) {
		overspill_page *page = overspill_page_take(pool, n, OVERSPILL_TO_READ);
		if (!page)
			return fail("overspill_page_take");
		const uint64_t found = *(const uint64_t *)overspill_page_data(page);
		overspill_page_release(page);
		if (found != count) {
			fprintf(stderr, "page %u has %llu\n", n, (unsigned long long)found);
			return 1;
		}
	}
	return 0;
}

/* Reads a file into a region whose faults are signals: the buffer of a system call must be pinned. */
static int read_pinned(void)
{
	const char *swaps[] = { "ram:32M", NULL };
	const overspill_options options = { .memory_bytes = LIMIT, .swaps = swaps };
	overspill *limit = overspill_new(&options);
	if (!limit)
		return fail("overspill_new");
	overspill_region *region = overspill_region_new(limit, 16 << 20, OVERSPILL_BY_SIGNAL);
	if (!region)
		return fail("overspill_region_new");
	char *bytes = overspill_region_data(region);
	memset(bytes, 7, overspill_region_bytes(region));

	overspill_pin *pin = overspill_pin_new(region, 0, 4096);
	if (!pin)
		return fail("overspill_pin_new");
	FILE *zeros = fopen("/dev/zero", "rb");
	if (!zeros || fread(bytes, 1, 4096, zeros) != 4096)
		return 1;
	fclose(zeros);
	overspill_pin_free(pin);
	if (bytes[0] != 0 || bytes[4096] != 7)
		return 1;

	/* What is not there is an error in words. */
	if (overspill_region_advise(region, 0, (size_t)-1, OVERSPILL_COLD) != -1)
		return 1;
	printf("refused: %s\n", overspill_error());
	overspill_region_free(region);
	overspill_free(limit);
	return 0;
}

int main(void)
{
	const char *swaps[] = { "compressed:64M", NULL };
	const overspill_options options = { .memory_bytes = LIMIT, .swaps = swaps };
	const uint32_t soon[] = { 1, 2, 3, 4 };
	overspill_stats stats;

	overspill_pool *pool = overspill_pool_new(&options);
	if (!pool)
		return fail("overspill_pool_new");
	if (count_all(pool) || count_all(pool) || check_all(pool, 2))
		return 1;
	if (overspill_pool_prefetch(pool, soon, 4) || overspill_pool_discard(pool, 0, PAGES))
		return fail("overspill_pool_discard");
	if (check_all(pool, 0))
		return 1;
	overspill_pool_get_stats(pool, &stats);
	printf("%llu pages out, %llu in\n", (unsigned long long)stats.pages_out,
	       (unsigned long long)stats.pages_in);
	overspill_pool_free(pool);
	return read_pinned() || stats.pages_out == 0;
}
