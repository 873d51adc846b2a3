/* What it costs to take 64 pages out: one UFFDIO_MOVE each, or write-protect, copy and drop. Alone, and beside a thread
 * that computes, whose TLB each change of protection or place flushes. docs/delivery.md has the figures.
 *
 *   cc -O2 -pthread batches.c && ./a.out */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef UFFDIO_MOVE /* Linux 6.8 */
#define UFFD_FEATURE_MOVE (1 << 16)
struct uffdio_move {
    uint64_t dst, src, len, mode;
    int64_t move;
};
#define UFFDIO_MOVE _IOWR(0xAA, 0x05, struct uffdio_move)
#endif

enum { PAGE = 4096, PAGES = 1 << 16, VICTIMS = 64, WINDOW = 64, ROUNDS = 200 };
enum way { MOVE, PROTECT_EACH, PROTECT_WINDOWS, WAYS };
static const char *const NAMES[] = {"move each", "protect each, copy, drop all", "protect windows, copy, drop all"};

static char *memory, *staging, resident[PAGES], content[VICTIMS * PAGE];
static int faults, self;
static volatile int busy, over;

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            perror(#condition);                                                                                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static char *at(size_t page) { return memory + page * PAGE; }

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec * 1e-3;
}

static size_t draw(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

static void protect(char *from, size_t bytes, uint64_t mode) {
    struct uffdio_writeprotect call = {{(uint64_t)from, bytes}, mode};
    MUST(ioctl(faults, UFFDIO_WRITEPROTECT, &call) == 0);
}

static void fill(size_t page) {
    struct uffdio_copy call = {.dst = (uint64_t)at(page), .src = (uint64_t)content, .len = PAGE};
    MUST(ioctl(faults, UFFDIO_COPY, &call) == 0);
    resident[page] = 1;
}

/* Protects or frees the windows that the victims are in. */
static void protect_windows(const size_t *victims, uint64_t mode) {
    for (int n = 0; n < VICTIMS; n++)
        if (n == 0 || victims[n] / WINDOW != victims[n - 1] / WINDOW)
            protect(at(victims[n] / WINDOW * WINDOW), WINDOW * PAGE, mode);
}

static void take_out(const size_t *victims, enum way way) {
    struct iovec pages[VICTIMS];
    for (int n = 0; n < VICTIMS; n++) {
        pages[n] = (struct iovec){at(victims[n]), PAGE};
        struct uffdio_move call = {.dst = (uint64_t)staging + n * PAGE, .src = (uint64_t)at(victims[n]), .len = PAGE};
        if (way == MOVE)
            MUST(ioctl(faults, UFFDIO_MOVE, &call) == 0);
        if (way == PROTECT_EACH)
            protect(at(victims[n]), PAGE, UFFDIO_WRITEPROTECT_MODE_WP);
    }
    if (way == MOVE)
        return;
    if (way == PROTECT_WINDOWS)
        protect_windows(victims, UFFDIO_WRITEPROTECT_MODE_WP);
    for (int n = 0; n < VICTIMS; n++)
        memcpy(content + n * PAGE, at(victims[n]), PAGE);
    MUST(syscall(SYS_process_madvise, self, pages, VICTIMS, MADV_DONTNEED, 0) == VICTIMS * PAGE);
    if (way == PROTECT_WINDOWS)
        protect_windows(victims, 0);
}

static int ascending(const void *a, const void *b) {
    const size_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Pages anywhere, or all that there are in windows. */
static void choose(size_t *victims, int dense) {
    for (int count = 0; count < VICTIMS;) {
        size_t page = dense ? draw() % (PAGES / WINDOW) * WINDOW : draw() % PAGES, end = dense ? page + WINDOW : page + 1;
        for (; page < end && count < VICTIMS; page++)
            if (resident[page]) {
                resident[page] = 0;
                victims[count++] = page;
            }
    }
    qsort(victims, VICTIMS, sizeof *victims, ascending);
}

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median_us(int dense, enum way way) {
    static double took[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        size_t victims[VICTIMS];
        choose(victims, dense);
        double begun = now_us();
        take_out(victims, way);
        took[round] = (now_us() - begun) / VICTIMS;
        madvise(staging, VICTIMS * PAGE, MADV_DONTNEED);
        for (int n = 0; n < VICTIMS; n++)
            fill(victims[n]);
    }
    qsort(took, ROUNDS, sizeof *took, by_size);
    return took[ROUNDS / 2];
}

static void *compute(void *sum) {
    while (!over) {
        for (int n = 0; busy && n < 1000; n++)
            ++*(volatile long *)sum;
        if (!busy)
            usleep(1000);
    }
    return NULL;
}

static char *map(size_t bytes, uint64_t mode) {
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(mapped != MAP_FAILED && madvise(mapped, bytes, MADV_NOHUGEPAGE) == 0);
    struct uffdio_register range = {.range = {(uint64_t)mapped, bytes}, .mode = mode};
    MUST(ioctl(faults, UFFDIO_REGISTER, &range) == 0);
    return mapped;
}

int main(void) {
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MOVE | UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    MUST((faults = syscall(SYS_userfaultfd, O_CLOEXEC)) >= 0 && ioctl(faults, UFFDIO_API, &api) == 0);
    MUST((self = syscall(SYS_pidfd_open, getpid(), 0)) >= 0);
    memory = map((size_t)PAGES * PAGE, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP);
    staging = map(VICTIMS * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    for (int count = 0; count < PAGES / 4;) {
        size_t page = draw() % PAGES;
        if (!resident[page])
            fill(page), count++;
    }
    pthread_t thread;
    long sum = 0;
    MUST(pthread_create(&thread, NULL, compute, &sum) == 0);
    for (busy = 0; busy < 2; busy++) {
        usleep(10000); /* The thread begins. */
        for (int dense = 0; dense < 2; dense++)
            for (enum way way = MOVE; way < WAYS; way++)
                printf("%-6s %-22s %-32s %6.2f us a page\n", busy ? "beside" : "alone",
                       dense ? "16 of 64 neighbours" : "anywhere", NAMES[way], median_us(dense, way));
    }
    over = 1;
    return pthread_join(thread, NULL);
}
