/* Numbers that no enum of overspill.h has: each call fails, says so, and changes nothing. */
#include <assert.h>
#include <limits.h>
#include <overspill.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    const int strange[] = {-1, 7, 8, 100, 255, 256, 263, 1000, INT_MAX, INT_MIN};
    const char *swaps[] = {"ram:16M", NULL};
    overspill_options options = {.memory_bytes = 8 << 20, .swaps = swaps};
    overspill *limit = overspill_new(&options);
    overspill_pool *pool = overspill_pool_new(&options);
    assert(limit && pool);
    overspill_region *region = overspill_region_new(limit, 1 << 20, OVERSPILL_BY_MESSAGE);
    assert(region);
    memset(overspill_region_data(region), 7, 1 << 20);
    for (size_t n = 0; n < sizeof strange / sizeof *strange; n++) {
        assert(overspill_region_advise(region, 0, 1 << 20, strange[n]) == -1);
        assert(strstr(overspill_error(), "is no overspill_advice"));
        assert(!overspill_region_new(limit, 4096, strange[n]));
        assert(strstr(overspill_error(), "is no overspill_faults"));
        assert(!overspill_page_take(pool, 0, strange[n]));
        assert(strstr(overspill_error(), "is no overspill_use"));
    }
    assert(overspill_region_advise(region, 0, 4096, OVERSPILL_DISCARD) == 0);
    const char *bytes = overspill_region_data(region);
    assert(bytes[0] == 0 && bytes[4096] == 7);
    overspill_page *page = overspill_page_take(pool, 0, OVERSPILL_TO_WRITE);
    assert(page);
    overspill_page_release(page);
    overspill_region_free(region);
    overspill_pool_free(pool);
    overspill_free(limit);
    puts("ok");
    return 0;
}
