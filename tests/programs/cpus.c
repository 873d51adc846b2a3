/* Where threads and children may run that are started amid faults in quick succession: on all the CPUs of whoever
   starts them. */
#define _GNU_SOURCE
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ROUNDS 400

extern char **environ;
static char *pages;
static int all;

static int cpus_of(pid_t thread) {
    cpu_set_t set;
    CHECK(sched_getaffinity(thread, sizeof set, &set) == 0);
    return CPU_COUNT(&set);
}

/* Touches pages in an order that nobody foresees. */
static void touch_some(int count) {
    static unsigned long state = 88172645463325252;
    for (int i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pages[state % (BIG / PAGE) * PAGE]++;
    }
}

static void prepare(void) {
    all = cpus_of(0);
    pages = map(BIG);
    memset(pages, 1, BIG);
    touch_some(2000);
}

static void *says_cpus(void *cpus) {
    *(int *)cpus = cpus_of(0);
    return NULL;
}

static void threads_inherit(void) {
    prepare();
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t threads[2];
        int cpus[2] = {0};
        touch_some(50);
        for (int n = 0; n < 2; n++)
            CHECK(pthread_create(&threads[n], NULL, says_cpus, &cpus[n]) == 0);
        for (int n = 0; n < 2; n++)
            CHECK(pthread_join(threads[n], NULL) == 0 && cpus[n] == all);
    }
}

static void *is_on_one(void *unused) {
    CHECK(cpus_of(0) == 1);
    return unused;
}

/* Who is told where to run, runs there. */
static void attributes_hold(void) {
    pthread_attr_t attr;
    cpu_set_t one;
    pthread_t thread;
    prepare();
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setaffinity_np(&attr, sizeof one, &one) == 0);
    for (int i = 0; i < 50; i++) {
        touch_some(50);
        CHECK(pthread_create(&thread, &attr, is_on_one, NULL) == 0 && pthread_join(thread, NULL) == 0);
    }
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    touch_some(500);
    CHECK(cpus_of(0) == 1);
    CHECK(pthread_create(&thread, NULL, is_on_one, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static void *touches(void *unused) {
    touch_some(50);
    return unused;
}

static void own_are_seen(void) {
    prepare();
    for (int i = 0; i < 20000; i++) {
        touch_some(1);
        CHECK(cpus_of(0) == all);
    }
}

static void children_inherit(void) {
    char count[32], *words[] = {"sh", "-c", count, NULL};
    prepare();
    snprintf(count, sizeof count, "test $(nproc) = %d", all);
    for (int i = 0; i < ROUNDS / 8; i++) {
        pid_t spawned, forked;
        int status[2];
        touch_some(50);
        CHECK(posix_spawnp(&spawned, "sh", NULL, NULL, words, environ) == 0);
        touch_some(50);
        forked = vfork();
        if (forked == 0) {
            execvp("sh", words);
            _exit(1);
        }
        CHECK(waitpid(spawned, &status[0], 0) == spawned && status[0] == 0);
        CHECK(waitpid(forked, &status[1], 0) == forked && status[1] == 0);
        touch_some(50);
        CHECK(system(count) == 0);
    }
}

/* Whom the kernel kills for a look at where it may run. */
static void filters_are_kept(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_getaffinity, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setaffinity, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    prepare();
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0);
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        touch_some(50);
        CHECK(pthread_create(&thread, NULL, touches, NULL) == 0 && pthread_join(thread, NULL) == 0);
    }
}

int main(int argc, char **argv) {
    static const struct test tests[] = {
        {"threads_inherit", threads_inherit},
        {"attributes_hold", attributes_hold},
        {"own_are_seen", own_are_seen},
        {"children_inherit", children_inherit},
        {"filters_are_kept", filters_are_kept},
    };
    return run_test(tests, sizeof tests / sizeof *tests, argc, argv);
}
