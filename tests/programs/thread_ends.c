/* Threads that end while what the kernel touches of them is swapped out. */
#include "common.h"
#include <pthread.h>
#include <time.h>

static pthread_mutex_t *mutexes[3];
static int started[2], may_end[2];

static void wait_for(int *ends) {
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1);
}

static void *locks_and_ends(void *how) {
    for (int i = 0; i < 3; i++)
        CHECK(pthread_mutex_lock(mutexes[i]) == 0);
    CHECK(write(started[1], "x", 1) == 1);
    wait_for(may_end);
    if (how)
        pthread_exit(how);
    return NULL;
}

static void make_mutexes(void) {
    static const pthread_mutex_t INITIAL = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutexattr_t robust;
    CHECK(pthread_mutexattr_init(&robust) == 0);
    CHECK(pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST) == 0);
    for (int i = 0; i < 3; i++) {
        mutexes[i] = map(PAGE);
        *mutexes[i] = INITIAL;
        CHECK(pthread_mutex_init(mutexes[i], &robust) == 0);
    }
}

static int lock_in_time(pthread_mutex_t *mutex) {
    struct timespec until;
    CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += 5;
    return pthread_mutex_timedlock(mutex, &until);
}

static void robust_mutexes(void) {
    CHECK(pipe(started) == 0 && pipe(may_end) == 0);
    make_mutexes();
    for (long round = 0; round < 4; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, locks_and_ends, (void *)(round % 2)) == 0);
        wait_for(started);
        push_out();
        push_out();
        if (round == 3)
            CHECK(pthread_cancel(thread) == 0);
        else
            CHECK(write(may_end[1], "x", 1) == 1);
        CHECK(pthread_join(thread, NULL) == 0);
        for (int i = 0; i < 3; i++) {
            CHECK(lock_in_time(mutexes[i]) == EOWNERDEAD);
            CHECK(pthread_mutex_consistent(mutexes[i]) == 0);
            CHECK(pthread_mutex_unlock(mutexes[i]) == 0);
        }
    }
    /* What was kept in memory for them goes out like everything else. */
    push_out();
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    check(memory, BIG, 1);
}

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
    {"robust_mutexes", robust_mutexes},
    {"own_stacks", own_stacks},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
