/* What happens in the life of a program that runs for long. */
#include "common.h"

/* Private memory of a process, in bytes. */
static size_t private_memory(pid_t pid) {
    char path[64];
    size_t pages[3];
    snprintf(path, sizeof path, "/proc/%d/statm", pid);
    FILE *file = fopen(path, "r");
    CHECK(file && fscanf(file, "%zu %zu %zu", &pages[0], &pages[1], &pages[2]) == 3);
    fclose(file);
    return (pages[1] - pages[2]) * PAGE;
}

/* As by Ctrl-Z: what it has may go out, all of it, and it comes back. */
static void stops_a_child(void) {
    pid_t child = fork();
    if (child == 0) {
        char *memory = map(16 * MIB);
        fill(memory, 16 * MIB, 1);
        raise(SIGSTOP);
        check(memory, 16 * MIB, 1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    char *memory = map(BIG / 2);
    for (int round = 0; round < 50 && private_memory(child) > MIB; round++) {
        fill(memory, BIG / 2, round);
        check(memory, BIG / 2, round);
    }
    CHECK(private_memory(child) <= MIB);
    /* It stands as it did, for its parent too. */
    CHECK(waitpid(child, &status, WUNTRACED | WCONTINUED | WNOHANG) == 0);
    CHECK(kill(child, SIGCONT) == 0);
    reap(child);
}

/* Holds 24 MiB until it is told to end, and then finds them. */
static volatile sig_atomic_t is_over;
static void on_end(int signal) {
    (void)signal;
    is_over = 1;
}

static void holds(void) {
    char *memory = map(24 * MIB);
    fill(memory, 24 * MIB, 3);
    CHECK(signal(SIGTERM, on_end) != SIG_ERR);
    fprintf(stderr, "ready\n");
    while (!is_over)
        usleep(20000);
    check(memory, 24 * MIB, 3);
}

/* With what cannot be compressed. */
static void fills(void) {
    uint64_t state = 1;
    for (;;) {
        uint64_t *memory = map(16 * MIB);
        for (size_t word = 0; word < 16 * MIB / 8; word++) {
            state ^= state << 13;
            state ^= state >> 7;
            memory[word] = state ^= state << 17;
        }
    }
}

static const struct test tests[] = {
    {"fills", fills},
    {"holds", holds},
    {"stops_a_child", stops_a_child},
};

int main(int argc, char **argv) {
    return run_test(tests, sizeof tests / sizeof *tests, argc, argv);
}
