/* Programs that differ in who may look at them. Each fills more than its limit, and finds it again. */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>

#define NOBODY 65534
#define BYTES (48 * MIB)

static void fills(void) {
    char *memory = map(BYTES);
    for (int round = 0; round < 6; round++) {
        fill(memory, BYTES, round);
        check(memory, BYTES, round);
        usleep(50000);
    }
}

/* The first filter of a program need not forbid anything. */
static void filters(void) {
    struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {.len = 1, .filter = allow};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    fills();
}

static void hides(void) {
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    fills();
}

static void becomes_nobody(void) {
    CHECK(setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
    fills();
}

static void enters_namespace(void) {
    CHECK(unshare(CLONE_NEWPID) == 0);
    pid_t child = fork();
    if (child == 0) {
        fills();
        exit(0);
    }
    reap(child);
}

/* Half of it is the children's, too. */
static void forks(void) {
    char *memory = map(BYTES);
    fill(memory, BYTES, 1);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            check(memory, BYTES, 1);
            fill(memory, BYTES / 2, 2);
            check(memory, BYTES / 2, 2);
            check_from(memory + BYTES / 2, BYTES / 2, 1, BYTES / 2 / PAGE);
            exit(0);
        }
        fill(memory, BYTES, 1);
        reap(child);
    }
    check(memory, BYTES, 1);
}

static void rests(void) {
    char *memory = map(BYTES);
    fill(memory, BYTES, 1);
    pause();
}

static const struct test tests[] = {
    {"becomes_nobody", becomes_nobody},
    {"enters_namespace", enters_namespace},
    {"fills", fills},
    {"filters", filters},
    {"forks", forks},
    {"hides", hides},
    {"rests", rests},
};

int main(int argc, char **argv) {
    return run_test(tests, sizeof tests / sizeof *tests, argc, argv);
}
