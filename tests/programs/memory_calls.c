/* Calls that hand out, change and take away memory, on memory most of which is swapped out. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <ucontext.h>

static void dontneed(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    CHECK(madvise(memory + BIG / 4, BIG / 2, MADV_DONTNEED) == 0);
    check(memory, BIG / 4, 1);
    check_zero(memory + BIG / 4, BIG / 2);
    check_from(memory + 3 * BIG / 4, BIG / 4, 1, 3 * BIG / 4 / PAGE);
    fill(memory + BIG / 4, BIG / 2, 2);
    push_out();
    check(memory + BIG / 4, BIG / 2, 2);
}

/* After MADV_FREE a page is as it was or zero; what is written after it stays. */
static void lazily_free(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    CHECK(madvise(memory, BIG, MADV_FREE) == 0);
    fill(memory, BIG / 2, 2);
    push_out();
    check(memory, BIG / 2, 2);
    for (size_t page = BIG / 2 / PAGE; page < BIG / PAGE; page++) {
        uint64_t word = *(uint64_t *)(memory + page * PAGE);
        CHECK(word == 0 || word == mark(1, page));
    }
}

static void moves(void) {
    size_t moved_bytes = BIG / 2 + MIB;
    /* A page right behind what is moved, so that it cannot grow where it is. */
    char *memory = map(BIG / 2 + PAGE);
    fill(memory, BIG / 2, 1);
    char *moved = mremap(memory, BIG / 2, moved_bytes, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    CHECK(moved != memory);
    check(moved, BIG / 2, 1);
    check_zero(moved + BIG / 2, moved_bytes - BIG / 2);
    CHECK(faults(memory, 0));
    fill(moved, moved_bytes, 2);
    push_out();
    check(moved, moved_bytes, 2);
}

static void grow_and_shrink(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    CHECK(mremap(memory, BIG, BIG / 4, 0) == memory);
    CHECK(faults(memory + BIG / 4, 0));
    check(memory, BIG / 4, 1);
    char *grown = mremap(memory, BIG / 4, BIG, 0);
    if (grown == MAP_FAILED) {
        CHECK(errno == ENOMEM);
        grown = mremap(memory, BIG / 4, BIG, MREMAP_MAYMOVE);
    }
    CHECK(grown != MAP_FAILED);
    check(grown, BIG / 4, 1);
    check_zero(grown + BIG / 4, 3 * BIG / 4);
}

static void reallocate(void) {
    char *memory = NULL;
    size_t filled = 0;
    for (size_t bytes = MIB; bytes <= 256 * MIB; bytes *= 2) {
        memory = realloc(memory, bytes);
        CHECK(memory);
        for (size_t page = filled / PAGE; page < bytes / PAGE; page++)
            *(uint64_t *)(memory + page * PAGE) = mark(3, page);
        filled = bytes;
    }
    memory = realloc(memory, 200 * MIB + 12345);
    for (size_t page = 0; page < 200 * MIB / PAGE; page++)
        CHECK(*(uint64_t *)(memory + page * PAGE) == mark(3, page));
    free(memory);
    CHECK(malloc((size_t)1 << 60) == NULL && errno == ENOMEM);
}

static void protect(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    CHECK(mprotect(memory, BIG, PROT_READ) == 0);
    check(memory, BIG, 1);
    for (size_t at = 0; at < BIG; at += BIG / 16) {
        CHECK(faults(memory + at, 1) && fault_code == SEGV_ACCERR);
    }
    CHECK(mprotect(memory, BIG, PROT_NONE) == 0);
    push_out();
    for (size_t at = 0; at < BIG; at += BIG / 16)
        CHECK(faults(memory + at, 0) && faults(memory + at, 1));
    CHECK(mprotect(memory + BIG / 2, BIG / 2, PROT_READ | PROT_WRITE) == 0);
    CHECK(faults(memory + BIG / 2 - 1, 0));
    check_from(memory + BIG / 2, BIG / 2, 1, BIG / 2 / PAGE);
    CHECK(mprotect(memory, BIG, PROT_READ | PROT_WRITE) == 0);
    check(memory, BIG, 1);
    fill(memory, BIG, 2);
    check(memory, BIG, 2);
}

static void reserve_and_commit(void) {
    size_t bytes = 1024 * MIB;
    char *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED && faults(memory, 0));
    for (size_t at = 0; at < BIG; at += 2 * MIB) {
        CHECK(mprotect(memory + at * 4, 2 * MIB, PROT_READ | PROT_WRITE) == 0);
        fill(memory + at * 4, 2 * MIB, at);
    }
    for (size_t at = 0; at < BIG; at += 2 * MIB)
        check(memory + at * 4, 2 * MIB, at);
    CHECK(munmap(memory, bytes) == 0);
}

/* A file whose page n holds mark(7, n), and its descriptor. */
static int marked_file(size_t bytes) {
    char name[] = "mapped.XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0);
    char *content = map(bytes);
    fill(content, bytes, 7);
    for (size_t at = 0; at < bytes; at += MIB)
        CHECK(write(fd, content + at, MIB) == (ssize_t)MIB);
    CHECK(munmap(content, bytes) == 0);
    return fd;
}

static void map_over(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(memory + BIG / 2, MIB, PROT_READ | PROT_WRITE, flags, -1, 0) == memory + BIG / 2);
    check_zero(memory + BIG / 2, MIB);
    int fd = marked_file(2 * MIB);
    int shared = MAP_SHARED | MAP_FIXED;
    char *file = memory + BIG / 4;
    CHECK(mmap(file, 2 * MIB, PROT_READ | PROT_WRITE, shared, fd, 0) == file);
    check(file, 2 * MIB, 7);
    push_out();
    check(file, 2 * MIB, 7);
    fill(file, 2 * MIB, 8);
    char *back = mmap(NULL, 2 * MIB, PROT_READ, MAP_SHARED, fd, 0);
    check(back, 2 * MIB, 8);
    check(memory, BIG / 4, 1);
    check_from(file + 2 * MIB, BIG / 4 - 2 * MIB, 1, (BIG / 4 + 2 * MIB) / PAGE);
    check_from(memory + BIG / 2 + MIB, BIG / 2 - MIB, 1, (BIG / 2 + MIB) / PAGE);
    /* Anonymous memory in the file's place again, and then nothing. */
    CHECK(mmap(file, 2 * MIB, PROT_READ | PROT_WRITE, flags, -1, 0) == file);
    check_zero(file, 2 * MIB);
    fill(file, 2 * MIB, 9);
    check(back, 2 * MIB, 8);
    check(file, 2 * MIB, 9);
    CHECK(munmap(memory, BIG) == 0);
    CHECK(faults(file, 0));
}

static void unmap_the_middle(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    CHECK(munmap(memory + BIG / 4, BIG / 2) == 0);
    CHECK(faults(memory + BIG / 4, 0));
    CHECK(faults(memory + BIG / 2, 1) && faults(memory + 3 * BIG / 4 - 1, 0));
    check(memory, BIG / 4, 1);
    check_from(memory + 3 * BIG / 4, BIG / 4, 1, 3 * BIG / 4 / PAGE);
    CHECK(munmap(memory, BIG) == 0);
    CHECK(faults(memory, 0) && faults(memory + BIG - 1, 0));
    CHECK(munmap(memory, BIG) == 0);
}

static void lock(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    CHECK(mlock(memory, 4 * MIB) == 0);
    push_out();
    check(memory, BIG, 1);
    CHECK(munlock(memory, 4 * MIB) == 0);
    push_out();
    check(memory, BIG, 1);
}

/* KiB of anonymous memory that is there, by the kernel's own count. */
static long resident_kib(void) {
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    char line[256];
    long kib = -1;
    while (fgets(line, sizeof line, status))
        sscanf(line, "RssAnon: %ld", &kib);
    fclose(status);
    CHECK(kib >= 0);
    return kib;
}

/* Whatever is said about memory, it holds what it held; and parts of it may be told different things. */
static void advise(void) {
    static const int ADVICE[] = {MADV_SEQUENTIAL, MADV_RANDOM,  MADV_NORMAL,
                                 MADV_WILLNEED,   MADV_COLD,    MADV_PAGEOUT};
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    for (size_t n = 0; n < sizeof ADVICE / sizeof *ADVICE; n++) {
        CHECK(madvise(memory, BIG, ADVICE[n]) == 0);
        check(memory, BIG, 1);
        CHECK(madvise(memory + (n + 1) * MIB, 4 * MIB, ADVICE[n]) == 0);
        check(memory, BIG, 1);
    }
    CHECK(posix_madvise(memory, BIG, POSIX_MADV_RANDOM) == 0);
    CHECK(posix_madvise(memory, BIG, POSIX_MADV_DONTNEED) == 0);
    CHECK(munmap(memory + BIG / 2, MIB) == 0);
    CHECK(madvise(memory, BIG, MADV_RANDOM) == -1 && errno == ENOMEM);
    CHECK(posix_madvise(memory, BIG, POSIX_MADV_NORMAL) == ENOMEM);
    CHECK(madvise(memory + 1, MIB, MADV_NORMAL) == -1 && errno == EINVAL);
    check(memory, BIG / 2, 1);
    fill(memory, BIG / 2, 2);
    check(memory, BIG / 2, 2);
}

/* What is told to go has gone when the call returns, if there is somewhere to go. */
static void page_out(void) {
    size_t bytes = 16 * MIB;
    char *memory = map(bytes);
    fill(memory, bytes, 1);
    CHECK(madvise(memory, bytes, MADV_COLD) == 0);
    long before = resident_kib();
    CHECK(madvise(memory, bytes, MADV_PAGEOUT) == 0);
    long freed = before - resident_kib();
    /* Without a pager it depends on the machine's swap. */
    if (getenv("LD_PRELOAD")) {
        /* All but what is kept in staging memory for the next reads, 8 chunks of 64 pages. */
        CHECK(freed >= (long)(bytes / 1024 - 3 * 1024));
    }
    check(memory, bytes, 1);
    CHECK(madvise(memory, bytes, MADV_PAGEOUT) == 0);
    CHECK(madvise(memory, bytes, MADV_WILLNEED) == 0);
    check(memory, bytes, 1);
}

static ucontext_t main_context, coroutine_context;

static int sum_down(int depth) {
    volatile char frame[2000];
    memset((char *)frame, depth, sizeof frame);
    if (depth % 16 == 0)
        swapcontext(&coroutine_context, &main_context);
    int sum = depth == 0 ? 0 : depth + sum_down(depth - 1);
    CHECK(frame[0] == (char)depth && frame[1999] == (char)depth);
    return sum;
}

/* Runs on a stack that is managed memory, most of which has been swapped out between two steps. */
static void coroutine_body(void) {
    for (int i = 0; i < 10; i++) {
        char *block = malloc(3 * MIB), *mapping = map(2 * MIB);
        fill(block, 2 * MIB, i);
        fill(mapping, 2 * MIB, i);
        swapcontext(&coroutine_context, &main_context);
        check(block, 2 * MIB, i);
        check(mapping, 2 * MIB, i);
        CHECK(mprotect(mapping, MIB, PROT_NONE) == 0);
        CHECK(madvise(mapping + MIB, MIB, MADV_DONTNEED) == 0);
        free(block);
        CHECK(munmap(mapping, 2 * MIB) == 0);
    }
    CHECK(sum_down(100) == 5050);
}

static void coroutine(void) {
    size_t stack_bytes = 4 * MIB;
    getcontext(&coroutine_context);
    coroutine_context.uc_stack.ss_sp = malloc(stack_bytes);
    coroutine_context.uc_stack.ss_size = stack_bytes;
    coroutine_context.uc_link = &main_context;
    makecontext(&coroutine_context, coroutine_body, 0);
    for (int switches = 0; switches < 10 + 7; switches++) {
        swapcontext(&main_context, &coroutine_context);
        push_out();
    }
    swapcontext(&main_context, &coroutine_context);
}

static const struct test TESTS[] = {
    {"dontneed", dontneed},
    {"lazily_free", lazily_free},
    {"moves", moves},
    {"grow_and_shrink", grow_and_shrink},
    {"reallocate", reallocate},
    {"protect", protect},
    {"reserve_and_commit", reserve_and_commit},
    {"map_over", map_over},
    {"unmap_the_middle", unmap_the_middle},
    {"lock", lock},
    {"advise", advise},
    {"page_out", page_out},
    {"coroutine", coroutine},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
