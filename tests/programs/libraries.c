/* Forks of a program that has opened many libraries and registered many fork handlers. What libc keeps of them is
   read in the child, also before the child can page. */
#include "common.h"
#include <dlfcn.h>
#include <pthread.h>

enum { LIBRARIES = 100, HANDLERS = 200, ROUNDS = 12 };

static void *libraries[LIBRARIES];

/* A library is opened anew under each name of its own file. */
static void open_libraries(void) {
    for (int i = 0; i < LIBRARIES; i++) {
        char copy[64];
        snprintf(copy, sizeof copy, "cp plugin.so ./plugin.%d.so", i);
        CHECK(system(copy) == 0);
        libraries[i] = dlopen(copy + strlen("cp plugin.so "), RTLD_NOW | RTLD_GLOBAL);
        CHECK(libraries[i] && unlink(copy + strlen("cp plugin.so ")) == 0);
    }
}

static int turn_of(int library) {
    int (*turn)(void) = (int (*)(void))dlsym(libraries[library], "plugin_turn");
    CHECK(turn);
    return turn();
}

static void *use_libraries(void *unused) {
    for (int i = 0; i < LIBRARIES; i++)
        CHECK(turn_of(i) == 7 && turn_of(i) == 8);
    return unused;
}

/* Does `act` in one child after the other, each forked while most memory is out. */
static void in_children(void (*act)(void)) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    for (int round = 0; round < ROUNDS; round++) {
        push_out();
        pid_t child = fork();
        if (child == 0) {
            act();
            check(memory, BIG, 1);
            _exit(0);
        }
        reap(child);
    }
}

static void use_libraries_in_a_thread(void) {
    pthread_t thread;
    CHECK(turn_of(0) == 7 && turn_of(LIBRARIES - 1) == 7);
    CHECK(pthread_create(&thread, NULL, use_libraries, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void many_libraries(void) {
    open_libraries();
    in_children(use_libraries_in_a_thread);
    CHECK(turn_of(0) == 7);
}

static int handled;

static void handle(void) { handled++; }

static void expect_handled(void) { CHECK(handled == HANDLERS); }

static void many_handlers(void) {
    for (int i = 0; i < HANDLERS; i++)
        CHECK(pthread_atfork(NULL, NULL, handle) == 0);
    in_children(expect_handled);
}

static const struct test TESTS[] = {
    {"many_libraries", many_libraries},
    {"many_handlers", many_handlers},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
