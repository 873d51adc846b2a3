/* Programs of `make soak`: each checks every byte it has written, for so many seconds, and ends at the
 * first that is wrong with what it expected, what it found and where.
 *
 *   soak touch THREADS MIB SECONDS SEED   random reads and writes; memory mapped, grown, dropped, given back
 *   soak forks KILL MIB SECONDS SEED      trees of processes that share and change pages; KILL is 1 to kill some */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s: %m\n", __FILE__, __LINE__, #condition);            \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

/* 64 bytes that tell where they belong and how often they were written. */
struct slot {
    uint64_t index, version, hash[6];
};

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t next(uint64_t *state) { return mix(*state += 0x9e3779b97f4a7c15u); }

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static struct slot slot_of(uint64_t index, uint64_t version) {
    struct slot slot = {.index = index, .version = version};
    for (int i = 0; i < 6; i++)
        slot.hash[i] = mix(index * 7 + version * 0x10001 + (uint64_t)i);
    return slot;
}

static void wrong(const char *what, const void *found, const void *expected, size_t bytes) {
    const unsigned char *a = found, *b = expected;
    char page[16384];
    size_t used = 0, at = 0;
    while (at < bytes && a[at] == b[at])
        at++;
    used += (size_t)snprintf(page, sizeof page, "WRONG: %s at %p, process %d, byte %zu of %zu\nfound   ", what, found,
                             getpid(), at, bytes);
    for (size_t i = 0; i < bytes && i < 64; i++)
        used += (size_t)snprintf(page + used, sizeof page - used, "%02x", a[i]);
    used += (size_t)snprintf(page + used, sizeof page - used, "\nexpected");
    for (size_t i = 0; i < bytes && i < 64; i++)
        used += (size_t)snprintf(page + used, sizeof page - used, "%s%02x", i ? "" : " ", b[i]);
    const uint64_t *words = (const uint64_t *)((uintptr_t)found & ~(PAGE - 1));
    size_t zero = 0;
    for (size_t i = 0; i < PAGE / 8; i++)
        zero += words[i] == 0;
    used += (size_t)snprintf(page + used, sizeof page - used, "\nof its page %zu words of 512 are zero\n", zero);
    MUST(write(2, page, used) == (ssize_t)used);
    _exit(1);
}

static void check_slot(const struct slot *slot, uint64_t index, uint64_t version) {
    struct slot expected = slot_of(index, version);
    if (memcmp(slot, &expected, sizeof expected) != 0)
        wrong("a slot", slot, &expected, sizeof expected);
}

static struct slot *table;
static uint32_t *versions;
static uint64_t slots, threads, seed;
static double until;

static void *map(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

/* Memory that is mapped, filled, moved, dropped in part and given back. */
static void come_and_go(uint64_t *state) {
    size_t pages = 1 + next(state) % 64, more = pages + next(state) % 64;
    uint64_t start = next(state) >> 1;
    uint64_t *at = map(pages * PAGE);
    for (size_t i = 0; i < pages * PAGE / 8; i += 64)
        at[i] = start + i;
    at = mremap(at, pages * PAGE, more * PAGE, MREMAP_MAYMOVE);
    MUST(at != MAP_FAILED);
    size_t dropped = next(state) % pages;
    MUST(madvise((char *)at + dropped * PAGE, PAGE, MADV_DONTNEED) == 0);
    for (size_t i = 0; i < more * PAGE / 8; i += 64) {
        uint64_t expected = i * 8 / PAGE == dropped || i >= pages * PAGE / 8 ? 0 : start + i;
        if (at[i] != expected)
            wrong("memory that came and goes", &at[i], &expected, 8);
    }
    MUST(munmap(at, more * PAGE) == 0);
}

static void touch_once(uint64_t self, uint64_t *state) {
    uint64_t index = next(state) % slots;
    uint64_t mine = index - index % threads + self;
    if (mine >= slots)
        return;
    check_slot(&table[mine], mine, versions[mine]);
    if (next(state) % 2)
        table[mine] = slot_of(mine, ++versions[mine]);
    /* Others' slots change, but never this. */
    if (table[index].index != index)
        wrong("another's slot", &table[index], &index, 8);
}

static void *touch(void *argument) {
    uint64_t self = (uintptr_t)argument, state = seed * 1000 + self, steps = 0;
    for (uint64_t i = self; i < slots; i += threads)
        table[i] = slot_of(i, 0);
    while (now() < until) {
        for (int i = 0; i < 512; i++, steps++)
            touch_once(self, &state);
        if (next(&state) % 16 == 0)
            come_and_go(&state);
    }
    for (uint64_t i = self; i < slots; i += threads)
        check_slot(&table[i], i, versions[i]);
    printf("thread %lu: %lu steps\n", self, steps);
    return NULL;
}

static void run_touch(size_t mib) {
    slots = mib * MIB / sizeof *table;
    table = seed % 2 ? map(mib * MIB) : aligned_alloc(PAGE, mib * MIB);
    versions = calloc(slots, sizeof *versions);
    MUST(table && versions);
    for (uint64_t i = 0; i < slots; i++)
        table[i].index = i;
    pthread_t thread[64];
    for (uint64_t i = 0; i < threads; i++)
        MUST(pthread_create(&thread[i], NULL, touch, (void *)(uintptr_t)i) == 0);
    for (uint64_t i = 0; i < threads; i++)
        MUST(pthread_join(thread[i], NULL) == 0);
}

/* A tree uses every 16th slot, four of a page; `versions` says how often it was changed. */
enum { STRIDE = 16 };

static void check_tree(void) {
    for (uint64_t i = 0; i < slots; i += STRIDE)
        check_slot(&table[i], i, seed + versions[i / STRIDE]);
}

static void change_tree(uint64_t from) {
    for (uint64_t i = from / STRIDE * STRIDE; i < slots; i += STRIDE)
        table[i] = slot_of(i, seed + ++versions[i / STRIDE]);
}

/* A process of the tree: finds what its parent had, changes some, and has children; finds its own again. */
static void grow(int depth, uint64_t *state, int kill_some) {
    check_tree();
    change_tree(next(state) % slots);
    pid_t child[2] = {0};
    for (int c = 0; depth > 0 && c < 2; c++) {
        child[c] = fork();
        MUST(child[c] >= 0);
        if (child[c] == 0) {
            *state += (uint64_t)c * 77 + 1;
            grow(depth - 1, state, kill_some);
            _exit(0);
        }
        if (kill_some && next(state) % 2) {
            usleep(next(state) % 200000);
            kill(child[c], SIGKILL);
        }
    }
    for (int c = 0; c < 2 && child[c]; c++) {
        int status;
        MUST(waitpid(child[c], &status, 0) == child[c]);
        int killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && kill_some;
        if (!killed && status != 0) {
            fprintf(stderr, "WRONG: process %d ended with wait status %x\n", child[c], status);
            _exit(1);
        }
    }
    check_tree();
}

static void run_forks(size_t mib, int kill_some) {
    uint64_t state = seed, trees = 0;
    slots = mib * MIB / sizeof *table;
    table = map(mib * MIB);
    versions = calloc(slots / STRIDE + 1, sizeof *versions);
    MUST(versions);
    change_tree(0);
    for (; now() < until; trees++)
        grow(3, &state, kill_some);
    printf("%lu trees\n", trees);
}

int main(int argc, char **argv) {
    MUST(argc == 6);
    threads = strtoul(argv[2], NULL, 10);
    size_t mib = strtoul(argv[3], NULL, 10);
    until = now() + strtod(argv[4], NULL);
    seed = strtoul(argv[5], NULL, 10);
    setvbuf(stdout, NULL, _IONBF, 0);
    if (strcmp(argv[1], "touch") == 0)
        run_touch(mib);
    else
        run_forks(mib, threads != 0);
    return 0;
}
