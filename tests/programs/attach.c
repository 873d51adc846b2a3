/* A program that goes on until it is told to end, and checks all that it has. */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4

static atomic_int is_over;

/* Memory of one thread: pages that say how often they were written. */
struct own {
    uint64_t *words;
    uint32_t *written;
    uint64_t seed;
    size_t pages;
};

static void check_page(const struct own *own, size_t page) {
    const uint64_t *words = own->words + page * (PAGE / 8);
    uint64_t expected = own->written[page] ? mark(own->seed, page) + own->written[page] : 0;
    CHECK(words[0] == expected && words[PAGE / 8 - 1] == expected);
}

static void write_page(struct own *own, size_t page) {
    uint64_t *words = own->words + page * (PAGE / 8);
    own->written[page]++;
    words[0] = words[PAGE / 8 - 1] = mark(own->seed, page) + own->written[page];
}

static void *works(void *argument) {
    struct own *own = argument;
    uint64_t state = own->seed;
    for (size_t page = 0; page < own->pages; page++)
        if (page % 8)
            write_page(own, page);
    while (!is_over) {
        for (int round = 0; round < 100; round++) {
            size_t page = next(&state) % own->pages;
            check_page(own, page);
            write_page(own, page);
        }
        /* What is given back is new, whoever pages it meanwhile. */
        if (next(&state) % 64 == 0) {
            size_t page = next(&state) % own->pages;
            CHECK(madvise(own->words + page * (PAGE / 8), PAGE, MADV_DONTNEED) == 0);
            own->written[page] = 0;
        }
        usleep(500);
    }
    for (size_t page = 0; page < own->pages; page++)
        check_page(own, page);
    return NULL;
}

static void on_end(int signal) {
    (void)signal;
    is_over = 1;
}

static void work(int forks) {
    pthread_t thread[THREADS];
    static struct own own[THREADS];
    char *still = map(BIG / 4);
    fill(still, BIG / 4, 77);
    CHECK(signal(SIGTERM, on_end) != SIG_ERR);
    for (int n = 0; n < THREADS; n++) {
        own[n] = (struct own){.seed = n + 1, .pages = BIG / PAGE / THREADS};
        own[n].words = map(BIG / THREADS);
        own[n].written = calloc(own[n].pages, sizeof *own[n].written);
        CHECK(own[n].written != NULL);
        CHECK(pthread_create(&thread[n], NULL, works, &own[n]) == 0);
    }
    while (!is_over) {
        usleep(20000);
        pid_t child = forks ? fork() : 0;
        if (forks && child == 0) {
            usleep(getpid() % 30 * 1000);
            check(still, BIG / 4, 77);
            _exit(0);
        }
        if (forks)
            reap(child);
    }
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_join(thread[n], NULL) == 0);
    check(still, BIG / 4, 77);
}

static void works_on(void) { work(0); }

static void works_on_and_forks(void) { work(1); }

/* Touches nothing until it is told to end. */
static void rests(void) {
    char *still = map(2 * BIG);
    fill(still, 2 * BIG, 77);
    CHECK(signal(SIGTERM, on_end) != SIG_ERR);
    while (!is_over)
        usleep(20000);
}

static const struct test tests[] = {
    {"works_on", works_on},
    {"works_on_and_forks", works_on_and_forks},
    {"rests", rests},
};

int main(int argc, char **argv) {
    return run_test(tests, sizeof tests / sizeof tests[0], argc, argv);
}
