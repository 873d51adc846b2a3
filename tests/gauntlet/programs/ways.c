/* What system calls and touches cost: prints a name and a number a line.
 *
 *     ways MIB
 *
 * Calls in ns, each in a loop over memory that is there: before memory runs short, and after. Touches per
 * second, of one byte a page in MIB MiB, which are more than the limit: at random, and in order. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static void time_call(const char *name, const char *when, int (*call)(int, char *), int fd, char *buffer) {
    long count = 0;
    double begun = seconds(), now;
    do {
        for (int i = 0; i < 1000; i++)
            must(call(fd, buffer) >= 0, name);
        count += 1000;
        now = seconds();
    } while (now - begun < 0.5);
    printf("%s_%s %.0f\n", name, when, (now - begun) / count * 1e9);
}

static int own_getpid(int fd, char *buffer) {
    (void)fd, (void)buffer;
    return getpid();
}
static int read_1(int fd, char *buffer) { return pread(fd, buffer, 1, 0); }
static int read_64k(int fd, char *buffer) { return pread(fd, buffer, 64 << 10, 0); }

static void time_calls(const char *when, int fd, char *buffer) {
    time_call("getpid", when, own_getpid, fd, buffer);
    time_call("read_1", when, read_1, fd, buffer);
    time_call("read_64k", when, read_64k, fd, buffer);
}

static uint64_t state = 1;
static uint64_t draw(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 27);
}

static void touch(const char *name, volatile char *memory, size_t pages, int at_random) {
    size_t count = 0;
    double begun = seconds(), now;
    do {
        for (int i = 0; i < 1000; i++, count++)
            memory[(at_random ? draw() % pages : count % pages) * PAGE]++;
        now = seconds();
    } while (now - begun < 3);
    printf("%s %.0f\n", name, count / (now - begun));
}

int main(int argc, char **argv) {
    size_t bytes = strtoul(argc > 1 ? argv[1] : "64", NULL, 10) << 20;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED, "mmap");
    char path[] = "/tmp/ways.XXXXXX";
    int fd = mkstemp(path);
    must(fd >= 0 && unlink(path) == 0 && ftruncate(fd, 64 << 10) == 0, path);
    char *buffer = memory;
    memset(buffer, 1, 128 << 10);
    time_calls("before", fd, buffer);
    for (size_t at = 0; at < bytes; at += PAGE)
        memset(memory + at, (int)(at >> 12), PAGE / 4);
    touch("in_order", memory, bytes / PAGE, 0);
    touch("random", memory, bytes / PAGE, 1);
    time_calls("after", fd, buffer);
    return 0;
}
