/* What the C programs of these tests share: they are a table of named cases, each of which ends the
 * process with a line on stderr if what it checks is not so. */
#ifndef COMMON_H
#define COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)
/* The tests' limit is 32 MiB. This is four times that. */
#define BIG (128 * MIB)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s (errno %d: %s)\n", __FILE__, __LINE__, #condition,  \
                    errno, strerror(errno));                                                       \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

struct test {
    const char *name;
    void (*run)(void);
};

/* The next number by chance: xorshift, of a state that is not 0. */
static inline uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* The word that belongs at the start and at the end of page `page` of what `seed` filled. */
static inline uint64_t mark(uint64_t seed, size_t page) {
    uint64_t z = seed * 0x9e3779b97f4a7c15u + page + 1;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 27);
}

static inline void fill(void *memory, size_t bytes, uint64_t seed) {
    for (size_t page = 0; page < bytes / PAGE; page++) {
        uint64_t *words = (uint64_t *)((char *)memory + page * PAGE);
        words[0] = words[PAGE / 8 - 1] = mark(seed, page);
    }
}

/* Checks `bytes` that start with page `first` of what was filled. */
static inline void check_from(const void *memory, size_t bytes, uint64_t seed, size_t first) {
    for (size_t page = 0; page < bytes / PAGE; page++) {
        const uint64_t *words = (const uint64_t *)((const char *)memory + page * PAGE);
        uint64_t expected = mark(seed, first + page);
        if (words[0] != expected || words[PAGE / 8 - 1] != expected) {
            fprintf(stderr, "page %zu at %p: %lx and %lx, not %lx\n", page, (const void *)words,
                    (unsigned long)words[0], (unsigned long)words[PAGE / 8 - 1],
                    (unsigned long)expected);
            abort();
        }
    }
}

static inline void check(const void *memory, size_t bytes, uint64_t seed) {
    check_from(memory, bytes, seed, 0);
}

static inline void check_zero(const void *memory, size_t bytes) {
    for (size_t page = 0; page < bytes / PAGE; page++) {
        const uint64_t *words = (const uint64_t *)((const char *)memory + page * PAGE);
        CHECK(words[0] == 0 && words[PAGE / 8 - 1] == 0);
    }
}

static inline void *map(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* Ends many of the kernel's mappings inside this memory: pages at an end go out together with those beyond it. */
static inline void split_mappings(char *memory, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 20 * 16 * PAGE)
        CHECK(madvise(memory + at, 8 * PAGE, MADV_DONTDUMP) == 0);
}

/* Dirties enough memory to push everything else out. */
static inline void push_out(void) {
    char *memory = map(BIG / 2);
    fill(memory, BIG / 2, 99);
    check(memory, BIG / 2, 99);
    CHECK(munmap(memory, BIG / 2) == 0);
}

static sigjmp_buf after_fault;
static volatile sig_atomic_t fault_code;

static inline void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    fault_code = info->si_code;
    siglongjmp(after_fault, 1);
}

/* True if reading (or writing) a byte there raises SIGSEGV. */
static inline int faults(volatile char *at, int write) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    CHECK(sigaction(SIGSEGV, &action, &before) == 0);
    volatile int faulted = 1;
    if (sigsetjmp(after_fault, 1) == 0) {
        if (write)
            *at = 1;
        else
            (void)*at;
        faulted = 0;
    }
    CHECK(sigaction(SIGSEGV, &before, NULL) == 0);
    return faulted;
}

/* Waits for a child, which must end well. */
static inline void reap(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "child %d ended with status %#x\n", pid, status);
        _exit(1);
    }
}

static inline int run_test(const struct test *tests, size_t count, int argc, char **argv) {
    for (size_t i = 0; i < count; i++)
        if (argc > 1 && strcmp(tests[i].name, argv[1]) == 0) {
            tests[i].run();
            puts("ok");
            return 0;
        }
    fprintf(stderr, "%s: no such case\n", argc > 1 ? argv[1] : "");
    return 2;
}

#endif
