/* Programs that a keeper pages from outside. */
#include "common.h"

#include <pthread.h>
#include <sys/ptrace.h>
#include <time.h>

#define THREADS 4
#define ROUNDS 60000
#define ROUNDS_OF_TRACED 500

/* Memory of one thread: pages that say how often they were written. */
struct own {
    uint64_t *words;
    uint64_t seed;
    size_t pages;
    uint64_t sum;
};

static void *writes_and_checks(void *argument) {
    struct own *own = argument;
    uint64_t state = own->seed;
    uint32_t *written = calloc(own->pages, sizeof *written);
    CHECK(written != NULL);
    for (int round = 0; round < ROUNDS; round++) {
        size_t page = next(&state) % own->pages;
        uint64_t *words = own->words + page * (PAGE / 8);
        uint64_t expected = written[page] ? mark(own->seed, page) + written[page] : 0;
        CHECK(words[0] == expected && words[PAGE / 8 - 1] == expected);
        written[page]++;
        words[0] = words[PAGE / 8 - 1] = mark(own->seed, page) + written[page];
        own->sum += words[0];
    }
    free(written);
    return NULL;
}

static void threads(void) {
    pthread_t thread[THREADS];
    struct own own[THREADS];
    for (int n = 0; n < THREADS; n++) {
        own[n] = (struct own){.seed = n + 1, .pages = BIG / PAGE / THREADS};
        own[n].words = map(BIG / THREADS);
        CHECK(pthread_create(&thread[n], NULL, writes_and_checks, &own[n]) == 0);
    }
    for (int n = 0; n < THREADS; n++) {
        CHECK(pthread_join(thread[n], NULL) == 0);
        printf("%lx\n", (unsigned long)own[n].sum);
    }
}

static void *filled(uint64_t seed) {
    void *memory = map(BIG);
    fill(memory, BIG, seed);
    return memory;
}

/* Goes on as another program, which is small. */
static void executes(void) {
    check(filled(3), BIG, 3);
    execl("/proc/self/exe", "keeper", "waits", NULL);
    CHECK(0);
}

static void waits(void) {
    puts("ready");
    fflush(stdout);
    struct timespec long_enough = {.tv_sec = 30};
    nanosleep(&long_enough, NULL);
}

/* The first thread ends before the others, which go on to use memory that is out. */
static void *goes_on(void *memory) {
    struct timespec moment = {.tv_nsec = 300 * 1000 * 1000};
    nanosleep(&moment, NULL);
    check(memory, BIG, 4);
    puts("all there");
    exit(0);
}

static void ends_its_first_thread(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, goes_on, filled(4)) == 0);
    pthread_exit(NULL);
}

static void waits_for(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A forked child has what its parent had, whatever becomes of that; so has a child of its own. */
static void forks(void) {
    void *memory = filled(5);
    for (int n = 0; n < 5; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            check(memory, BIG / 2, 5 + n);
            pid_t grandchild = fork();
            CHECK(grandchild >= 0);
            check(memory, BIG, 5 + n);
            if (grandchild != 0) {
                fill(memory, BIG, 100 + n);
                check(memory, BIG, 100 + n);
                waits_for(grandchild);
            }
            _exit(0);
        }
        fill(memory, BIG, 6 + n);
        check(memory, BIG, 6 + n);
        waits_for(child);
    }
    check(memory, BIG, 10);
}

/* A child that is small, and ends soon, in the middle of its parent's work. */
static void forks_often(void) {
    uint64_t *memory = filled(11);
    uint64_t state = 11;
    for (int n = 0; n < 300; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        for (int touch = 0; touch < 30; touch++) {
            size_t page = next(&state) % (BIG / PAGE);
            CHECK(memory[page * (PAGE / 8)] == mark(11, page));
        }
        if (child == 0) {
            _exit(0);
        }
        waits_for(child);
    }
    check(memory, BIG, 11);
}

/* Children that are paged by the time they execute something else. */
static void children_execute(void) {
    void *memory = filled(12);
    struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
    for (int n = 0; n < 30; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            check(memory, BIG / 16, 12);
            nanosleep(&moment, NULL);
            execl("/bin/sh", "sh", "-c", "sleep 0.02; exit 3", NULL);
            _exit(1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    }
    check(memory, BIG, 12);
}

/* Children that execute something else need nothing of their parent. */
static void starts_others(void) {
    void *memory = filled(6);
    for (int n = 0; n < 5; n++) {
        CHECK(system("exit 3") == 3 << 8);
    }
    check(memory, BIG, 6);
}

/* Leaves a process behind, which is paged on. */
static void leaves_a_process(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        check(filled(7), BIG, 7);
        puts("all there");
        fflush(stdout);
        _exit(0);
    }
    _exit(4);
}

/* Many start at once, each fills fresh mappings, and keeps them for a while. */
static void crowd(void) {
    enum { CROWD = 50, EACH = 4 };
    pid_t children[CROWD];
    for (int n = 0; n < CROWD; n++) {
        CHECK((children[n] = fork()) >= 0);
        if (children[n] > 0)
            continue;
        char *memory[EACH];
        for (int i = 0; i < EACH; i++)
            fill(memory[i] = map(MIB), MIB, n * EACH + i);
        usleep(500000);
        for (int i = 0; i < EACH; i++)
            check(memory[i], MIB, n * EACH + i);
        _exit(0);
    }
    for (int n = 0; n < CROWD; n++)
        reap(children[n]);
}

/* Code that is written to memory where it can be executed, as valgrind and Java do. */
static void writes_code(void) {
    size_t bytes = BIG / 2, step = bytes / 64;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
#ifdef __x86_64__
    static const unsigned char RETURN_42[] = {0xb8, 42, 0, 0, 0, 0xc3};
#else
    static const uint32_t RETURN_42[] = {0x52800540, 0xd65f03c0};
#endif
    for (int round = 0; round < 3; round++) {
        fill(memory, bytes, round);
        check(memory, bytes, round);
        for (size_t at = 64; at < bytes; at += step) {
            memcpy(memory + at, RETURN_42, sizeof RETURN_42);
            __builtin___clear_cache(memory + at, memory + at + sizeof RETURN_42);
        }
        for (size_t at = 64; at < bytes; at += step)
            CHECK(((int (*)(void))(memory + at))() == 42);
    }
}

/* Traces the next child of a process from its first instruction on, and gives it its signals. */
static void debug_next_child(pid_t parent, int ready) {
    while (ptrace(PTRACE_SEIZE, parent, NULL, PTRACE_O_TRACEFORK) != 0)
        CHECK(errno == EPERM);
    CHECK(write(ready, "r", 1) == 1);
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
        int event = status >> 16;
        if (pid == parent && event == PTRACE_EVENT_FORK)
            CHECK(ptrace(PTRACE_DETACH, parent, NULL, NULL) == 0);
        else if (WIFSTOPPED(status))
            ptrace(PTRACE_CONT, pid, NULL, event ? 0 : WSTOPSIG(status));
    }
    _exit(0);
}

/* A child that a debugger has from the start on reads what its parent had. */
static void debugs_a_child(void) {
    char *memory = map(BIG), byte;
    int asked[2], ready[2];
    CHECK(pipe(asked) == 0 && pipe(ready) == 0);
    pid_t debugger = fork();
    if (debugger == 0) {
        CHECK(read(asked[0], &byte, 1) == 1);
        debug_next_child(getppid(), ready[1]);
    }
    fill(memory, BIG, 3);
    CHECK(write(asked[1], "a", 1) == 1 && read(ready[0], &byte, 1) == 1);
    pid_t child = fork();
    if (child == 0) {
        check(memory, BIG, 3);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    reap(debugger);
    check(memory, BIG, 3);
    printf("child ended by signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

/* Children that ask to be traced as soon as they begin, which is when they are attached to. */
static void children_ask_to_be_traced(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 4);
    for (int round = 0; round < ROUNDS_OF_TRACED; round++) {
        pid_t child = fork();
        if (child == 0) {
            volatile char *page = memory + round % (BIG / PAGE) * PAGE;
            for (int n = 0; n < round % 400 * 20; n++)
                *page;
            CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
            raise(SIGSTOP);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
        CHECK(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
        reap(child);
    }
    check(memory, BIG, 4);
}

static const struct test TESTS[] = {
    {"threads", threads},
    {"executes", executes},
    {"waits", waits},
    {"ends_its_first_thread", ends_its_first_thread},
    {"forks", forks},
    {"forks_often", forks_often},
    {"children_execute", children_execute},
    {"starts_others", starts_others},
    {"leaves_a_process", leaves_a_process},
    {"crowd", crowd},
    {"writes_code", writes_code},
    {"debugs_a_child", debugs_a_child},
    {"children_ask_to_be_traced", children_ask_to_be_traced},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
