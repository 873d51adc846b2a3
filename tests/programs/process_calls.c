/* Threads, and everything that makes processes, while most memory is swapped out. */
#include "common.h"
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/prctl.h>

extern char **environ;

struct share {
    char *memory;
    size_t bytes;
    unsigned seed;
};

static void *work(void *argument) {
    struct share *share = argument;
    for (unsigned round = 0; round < 3; round++) {
        fill(share->memory, share->bytes, share->seed + round);
        for (int i = 0; i < 200; i++) {
            char *block = malloc(1000 + i * 500);
            memset(block, i, 1000 + i * 500);
            CHECK(block[999] == (char)i);
            free(block);
        }
        check(share->memory, share->bytes, share->seed + round);
    }
    return NULL;
}

static void threads(void) {
    enum { COUNT = 8 };
    char *memory = map(BIG);
    struct share shares[COUNT];
    pthread_t threads[COUNT];
    for (int i = 0; i < COUNT; i++) {
        shares[i] = (struct share){memory + i * (BIG / COUNT), BIG / COUNT, 10 * i};
        CHECK(pthread_create(&threads[i], NULL, work, &shares[i]) == 0);
    }
    for (int i = 0; i < COUNT; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < COUNT; i++)
        check(shares[i].memory, shares[i].bytes, 10 * i + 2);
}

static void *end_at_once(void *argument) { return argument; }

static void many_threads(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    for (int i = 0; i < 500; i++) {
        pthread_t threads[4];
        for (int j = 0; j < 4; j++)
            CHECK(pthread_create(&threads[j], NULL, end_at_once, NULL) == 0);
        for (int j = 0; j < 4; j++)
            CHECK(pthread_join(threads[j], NULL) == 0);
    }
    check(memory, BIG, 1);
}

/* The child reads what was there at the fork while the parent writes over it, and the reverse. */
static void fork_and_go_on(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        check(memory, BIG, 1);
        fill(memory, BIG, 2);
        check(memory, BIG, 2);
        char *own = map(BIG / 2);
        fill(own, BIG / 2, 3);
        check(own, BIG / 2, 3);
        _exit(0);
    }
    fill(memory, BIG / 2, 4);
    check_from(memory + BIG / 2, BIG / 2, 1, BIG / 2 / PAGE);
    check(memory, BIG / 2, 4);
    reap(child);
    check(memory, BIG / 2, 4);
    check_from(memory + BIG / 2, BIG / 2, 1, BIG / 2 / PAGE);
}

static void generation(char *memory, uint64_t depth) {
    check(memory, BIG / 2, depth);
    fill(memory, BIG / 2, depth - 1);
    if (depth == 0)
        return;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        generation(memory, depth - 1);
        _exit(0);
    }
    check(memory, BIG / 2, depth - 1);
    reap(child);
    check(memory, BIG / 2, depth - 1);
}

static void grandchildren(void) {
    char *memory = map(BIG / 2);
    fill(memory, BIG / 2, 4);
    generation(memory, 4);
}

/* The child's slots must live on when the parent that filled them is gone. */
static void child_outlives_parent(void) {
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    char *memory = map(BIG);
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t parent = fork();
    CHECK(parent >= 0);
    if (parent == 0) {
        fill(memory, BIG, 1);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0)
            _exit(0);
        char go;
        close(ends[1]);
        CHECK(read(ends[0], &go, 1) == 0);
        check(memory, BIG, 1);
        fill(memory, BIG, 2);
        check(memory, BIG, 2);
        _exit(0);
    }
    reap(parent);
    close(ends[1]);
    fill(memory, BIG, 3);
    /* All that ends here: a keeper's agents, too. */
    int status, ended = 0;
    for (; wait(&status) > 0; ended++)
        CHECK(status == 0);
    CHECK(ended > 0);
    check(memory, BIG, 3);
}

static void many_children(void) {
    char *memory = map(BIG / 2);
    fill(memory, BIG / 2, 1);
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        size_t at = (size_t)i * MIB;
        if (child == 0) {
            check_from(memory + at, MIB, 1, at / PAGE);
            memset(memory + at, i, MIB);
            _exit(0);
        }
        if (i % 2)
            reap(child);
    }
    while (wait(NULL) > 0)
        ;
    check(memory, BIG / 2, 1);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int stop;

static void *churn(void *argument) {
    char *memory = argument;
    for (unsigned seed = 0; !stop; seed++) {
        char *block = malloc(300000);
        CHECK(block);
        fill(block, 290000 / PAGE * PAGE, seed);
        pthread_mutex_lock(&mutex);
        fill(memory, 16 * MIB, seed);
        check(memory, 16 * MIB, seed);
        pthread_mutex_unlock(&mutex);
        check(block, 290000 / PAGE * PAGE, seed);
        free(block);
        CHECK(munmap(map(MIB), MIB) == 0);
    }
    return NULL;
}

/* Forks while other threads fault, allocate and map. */
static void fork_amid_threads(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, churn, map(16 * MIB)) == 0);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            check_from(memory + i * MIB, 8 * MIB, 1, i * MIB / PAGE);
            char *block = malloc(4 * MIB);
            memset(block, 1, 4 * MIB);
            free(block);
            _exit(0);
        }
        reap(child);
    }
    stop = 1;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    check(memory, BIG, 1);
}

static void spawn(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    /* Words and names that are themselves swapped out when they are needed. */
    char *words[] = {strdup("sh"), strdup("-c"), strdup("exit 7"), NULL};
    for (int i = 0; i < 10; i++) {
        push_out();
        pid_t child;
        int status;
        CHECK(posix_spawnp(&child, words[0], NULL, NULL, words, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
        CHECK(WEXITSTATUS(system("exit 3")) == 3);
        FILE *output = popen("echo hello", "r");
        char line[20];
        CHECK(output && fgets(line, sizeof line, output) && strcmp(line, "hello\n") == 0);
        CHECK(pclose(output) == 0);
    }
    check(memory, BIG, 1);
}

static void vfork_and_exec(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    char *command = strdup("exit 5");
    for (int i = 0; i < 10; i++) {
        push_out();
        int status;
        pid_t child = vfork();
        if (child == 0) {
            execlp("sh", "sh", "-c", command, NULL);
            _exit(127);
        }
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5);
    }
    check(memory, BIG, 1);
}

static void exec(void) {
    fill(map(BIG), BIG, 1);
    char program[4096];
    ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    CHECK(len > 0);
    program[len] = 0;
    fflush(stdout);
    execl(program, program, "threads", NULL);
    CHECK(!"exec");
}

static void load_objects(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    const char *names[] = {"libm.so.6", "libresolv.so.2", "libutil.so.1", "libanl.so.1"};
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            void *object = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
            CHECK(object);
            push_out();
            double (*cosine)(double) = (double (*)(double))dlsym(object, "cos");
            CHECK(i != 0 || (cosine && cosine(0) == 1));
            CHECK(dlclose(object) == 0);
        }
    CHECK(!dlopen("no-such-object.so", RTLD_NOW) && strstr(dlerror(), "no-such-object"));
    check(memory, BIG, 1);
}

/* For a core dump. */
static void abort_with_memory(void) {
    char *memory = map(BIG / 2);
    fill(memory, BIG / 2, 1);
    abort();
}

static const struct test TESTS[] = {
    {"threads", threads},
    {"many_threads", many_threads},
    {"fork_and_go_on", fork_and_go_on},
    {"grandchildren", grandchildren},
    {"child_outlives_parent", child_outlives_parent},
    {"many_children", many_children},
    {"fork_amid_threads", fork_amid_threads},
    {"spawn", spawn},
    {"vfork_and_exec", vfork_and_exec},
    {"exec", exec},
    {"load_objects", load_objects},
    {"abort_with_memory", abort_with_memory},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
