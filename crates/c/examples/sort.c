/* Sorts 64 MiB of numbers in 16 MiB of memory, by the C library's qsort.

   cc -O2 sort.c $(pkg-config --cflags --libs overspill) -o sort && ./sort */

#include <overspill.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, overspill_error());
	return 1;
}

int main(void)
{
	const char *swaps[] = { "ram:128M", NULL };
	const overspill_options options = { .memory_bytes = 16 << 20, .swaps = swaps };
	const size_t count = 8 << 20;
	overspill_stats stats;
	uint64_t random = 1;

	overspill *limit = overspill_new(&options);
	if (!limit)
		return fail("overspill_new");
	overspill_region *region =
		overspill_region_new(limit, count * sizeof(uint64_t), OVERSPILL_BY_MESSAGE);
	if (!region)
		return fail("overspill_region_new");

	uint64_t *numbers = overspill_region_data(region);
	for (size_t n = 0; n < count; n++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		numbers[n] = random;
	}
	qsort(numbers, count, sizeof(uint64_t), by_value);
	for (size_t n = 1; n < count; n++) {
		if (numbers[n - 1] > numbers[n]) {
			fprintf(stderr, "not sorted at %zu\n", n);
			return 1;
		}
	}

	overspill_get_stats(limit, &stats);
	printf("sorted %zu numbers; %llu pages out, %llu in\n", count,
	       (unsigned long long)stats.pages_out, (unsigned long long)stats.pages_in);
	overspill_region_free(region);
	overspill_free(limit);
	return stats.pages_out == 0;
}
