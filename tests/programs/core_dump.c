/* What a debugger finds in the memory of a paged program, and in the core that it leaves. */
#include "common.h"

static uint64_t table[48 * MIB / 8];
static char *heap;

static void fills(void) {
    heap = map(16 * MIB);
    fill(heap, 16 * MIB, 2);
    fill(table, sizeof table, 1);
    /* Again, in another order, so that it is not the end of the table that is in memory. */
    check(heap, 16 * MIB, 2);
}

static void dumps(void) {
    fills();
    abort();
}

static void forks_and_dumps(void) {
    fills();
    pid_t child = fork();
    if (child == 0) {
        /* Until it has been attached to. */
        for (int round = 0; round < 50; round++) {
            check(heap, 16 * MIB, 2);
            usleep(10000);
        }
        abort();
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WCOREDUMP(status));
    check(table, sizeof table, 1);
}

static void rests(void) {
    fills();
    fprintf(stderr, "ready\n");
    for (;;)
        pause();
}

static const struct test tests[] = {
    {"dumps", dumps},
    {"forks_and_dumps", forks_and_dumps},
    {"rests", rests},
};

int main(int argc, char **argv) {
    return run_test(tests, sizeof tests / sizeof *tests, argc, argv);
}
