/* Processes that share the memory of one run. */
#include "common.h"
#include <sys/prctl.h>

enum { SEED = 5, PROCESSES = 6 };

/* Runs `body` in a child that ends with this process. */
static pid_t start(void (*body)(int n), int n) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        body(n);
        _exit(0);
    }
    return child;
}

static void start_and_reap(void (*body)(int n)) {
    pid_t children[PROCESSES];
    for (int n = 0; n < PROCESSES; n++)
        children[n] = start(body, n);
    for (int n = 0; n < PROCESSES; n++)
        reap(children[n]);
}

static void fill_own(int n) {
    char *memory = map(BIG / 4);
    for (int round = 0; round < 3; round++) {
        fill(memory, BIG / 4, SEED + n + round);
        check(memory, BIG / 4, SEED + n + round);
    }
}

/* Each of them fills as much as the limit of all. */
static void together(void) { start_and_reap(fill_own); }

static void hoard(int n) {
    (void)n;
    fill(map(BIG / 4 - 4 * MIB), BIG / 4 - 4 * MIB, SEED);
    pause();
}

/* What a killed process had is there for others. */
static void killed(void) {
    for (int n = 0; n < 10; n++) {
        pid_t child = start(hoard, n);
        usleep(300000);
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    }
}

static char *inherited;

static void read_inherited(int n) {
    (void)n;
    for (int round = 0; round < 20; round++) {
        check(inherited, BIG / 8, SEED);
        usleep(10000);
    }
}

/* A parent's pages, read by all its children, take half of the limit. */
static void read_by_all(void) {
    inherited = map(BIG / 8);
    fill(inherited, BIG / 8, SEED);
    start_and_reap(read_inherited);
}

static void write_inherited(int n) {
    fill(inherited, BIG / 8, SEED + n);
    sleep(6);
    check(inherited, BIG / 8, SEED + n);
}

/* Each child has its own copy in the end. */
static void written_by_all(void) {
    inherited = map(BIG / 8);
    fill(inherited, BIG / 8, SEED);
    start_and_reap(write_inherited);
    check(inherited, BIG / 8, SEED);
}

static void touch_a_little(int n) {
    fill(map(20 * PAGE), 20 * PAGE, n);
    sleep(2);
}

/* Hundreds that live at a time. */
static void many(void) {
    enum { MANY = 200 };
    pid_t children[MANY];
    for (int n = 0; n < MANY; n++)
        children[n] = start(touch_a_little, n);
    for (int n = 0; n < MANY; n++)
        reap(children[n]);
}

/* A process that idles gives its memory to one that works. */
static void idle(void) {
    pid_t child = start(hoard, 0);
    usleep(300000);
    char *memory = map(BIG / 4 - 8 * MIB);
    for (int round = 0; round < 20; round++) {
        fill(memory, BIG / 4 - 8 * MIB, SEED + round);
        check(memory, BIG / 4 - 8 * MIB, SEED + round);
    }
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

int main(int argc, char **argv) {
    static const struct test tests[] = {
        {"together", together},       {"killed", killed}, {"read_by_all", read_by_all},
        {"written_by_all", written_by_all}, {"many", many},     {"idle", idle},
    };
    return run_test(tests, sizeof tests / sizeof *tests, argc, argv);
}
