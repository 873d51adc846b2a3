/* Threads that end while what the kernel touches of them is swapped out. */
#include "common.h"
#include <pthread.h>
#include <time.h>

static void *sleeps(void *seconds) {
    struct timespec time = {0, 1000000 * (long)seconds};
    nanosleep(&time, NULL);
    return NULL;
}

static void *pushes(void *unused) {
    (void)unused;
    for (int i = 0; i < 4; i++)
        push_out();
    return NULL;
}

/* Threads on stacks of managed memory end while everything is being pushed out, and can be joined. */
static void own_stacks(void) {
    enum { THREADS = 40 };
    size_t stack_bytes = 64 * 1024;
    pthread_t threads[THREADS], pusher;
    char *stacks[THREADS];
    CHECK(pthread_create(&pusher, NULL, pushes, NULL) == 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_attr_t attr;
        CHECK(pthread_attr_init(&attr) == 0);
        CHECK(posix_memalign((void **)&stacks[i], PAGE, stack_bytes) == 0);
        CHECK(pthread_attr_setstack(&attr, stacks[i], stack_bytes) == 0);
        CHECK(pthread_create(&threads[i], &attr, sleeps, (void *)(20 * (long)i)) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        free(stacks[i]);
    }
    CHECK(pthread_join(pusher, NULL) == 0);
    push_out();
}

static const struct test TESTS[] = {
    {"own_stacks", own_stacks},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
