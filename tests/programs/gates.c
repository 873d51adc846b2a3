/* What a gate has to do besides: programs that filter their calls, transfers that are longer than what is held, letting go. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

static char *filled(uint64_t seed) {
    char *memory = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    fill(memory, BIG, seed);
    return memory;
}

static int has_gate(void) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        found |= strstr(line, "overspill-letters") != NULL;
    fclose(maps);
    return found;
}

/* From now on prctl ends the process: what a gate does for a new thread. */
static void filter_calls(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void *add_one(void *number) { return (char *)number + 1; }

static void start_a_thread(void) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, add_one, NULL) == 0 && pthread_join(thread, &result) == 0 && result);
}

static void filters(void) {
    char *memory = filled(1);
    CHECK(has_gate());
    filter_calls();
    CHECK(!has_gate());
    start_a_thread();
    check(memory, BIG, 1);
}

static void filters_in_a_child(void) {
    char *memory = filled(2);
    pid_t child = fork();
    if (child == 0) {
        filter_calls();
        start_a_thread();
        check(memory, BIG, 2);
        _exit(0);
    }
    reap(child);
    start_a_thread();
    check(memory, BIG, 2);
}

static int ends[2];

static void *sends(void *memory) {
    for (size_t done = 0; done < BIG;) {
        ssize_t sent = send(ends[0], (char *)memory + done, BIG - done, 0);
        CHECK(sent > 0);
        done += sent;
    }
    return NULL;
}

/* Who waits for edges takes a read that is short for the end of what there is. */
static void sends_and_receives(void) {
    const size_t part = MIB;
    char *memory = filled(3), *copy = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(copy != MAP_FAILED && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    int size = part;
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    int poll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    CHECK(epoll_ctl(poll, EPOLL_CTL_ADD, ends[1], &event) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sends, memory) == 0);
    for (size_t done = 0; done < BIG;) {
        CHECK(epoll_wait(poll, &event, 1, 20000) == 1);
        ssize_t got;
        do {
            size_t most = BIG - done < part ? BIG - done : part;
            got = read(ends[1], copy + done, most);
            CHECK(got > 0 || errno == EAGAIN);
            done += got > 0 ? got : 0;
        } while (got == (ssize_t)part && done < BIG);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    check(copy, BIG, 3);
}

/* A message is taken once, whole, wherever it goes to. */
static void takes_messages(void) {
    enum { MESSAGES = 500, BYTES = 3000 };
    char *memory = filled(3), *ballast = filled(4), message[BYTES];
    check(ballast, BIG, 4);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    for (size_t n = 0; n < MESSAGES; n++) {
        char *place = memory + n * (BIG / MESSAGES / PAGE * PAGE);
        memset(message, (int)n, BYTES);
        CHECK(send(ends[0], message, BYTES, 0) == BYTES);
        CHECK(recv(ends[1], place, BYTES, MSG_DONTWAIT) == BYTES);
        CHECK(memcmp(place, message, BYTES) == 0);
    }
}

static int waits_and_ends(void *unused) {
    (void)unused;
    char word;
    while (syscall(SYS_read, ends[1], &word, 1) != 1)
        ;
    return syscall(SYS_exit, 0);
}

static int threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int entries = 0;
    CHECK(tasks != NULL);
    while (readdir(tasks))
        entries++;
    closedir(tasks);
    return entries - 2;
}

/* The kernel clears a word when a thread ends, and tells nobody if it cannot. */
static void ends_a_thread(void) {
    char *ballast = filled(6);
    /* Below it, where nobody reads ahead. */
    char *stack = map(64 * PAGE);
    volatile int *word = (int *)stack;
    *word = -1;
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    int before = threads();
    CHECK(clone(waits_and_ends, stack + 64 * PAGE, flags, NULL, NULL, NULL, word) > 0);
    check(ballast, BIG, 6);
    CHECK(write(ends[0], "", 1) == 1);
    while (threads() > before)
        usleep(1000);
    CHECK(*word == 0);
}

/* As much at a time as a file takes. */
static void writes_a_file(void) {
    char *memory = filled(4);
    int file = open(".", O_TMPFILE | O_RDWR, 0600);
    CHECK(file >= 0 && write(file, memory, BIG) == (ssize_t)BIG);
    struct iovec parts[3] = {{memory, BIG / 2}, {memory + BIG / 2, 1}, {memory + BIG / 2 + 1, BIG / 2 - 1}};
    fill(memory, BIG, 5);
    CHECK(preadv(file, parts, 3, 0) == (ssize_t)BIG);
    check(memory, BIG, 4);
}

/* Memory is free again for long. */
/* The heap and a mapping end in the middle of a page, which stays, also if it is out. */
static void ends_within_pages(void) {
    enum { PAGES = 64, KEPT = 32 };
    char *memory = map(PAGES * PAGE), *start = (char *)(((uintptr_t)sbrk(0) + PAGE - 1) & -(uintptr_t)PAGE);
    CHECK(brk(start + PAGES * PAGE) == 0);
    fill(memory, PAGES * PAGE, 7), fill(start, PAGES * PAGE, 8);
    char *ballast = filled(9);
    check(ballast, BIG, 9);
    CHECK(brk(start + KEPT * PAGE - 100) == 0);
    CHECK(mremap(memory, PAGES * PAGE, KEPT * PAGE - 100, 0) == memory);
    check(ballast, BIG, 9);
    check(start, KEPT * PAGE, 8), check(memory, KEPT * PAGE, 7);
    puts("ok");
}

/* A mapping of which parts are out is one mapping all the same. */
static void moves_and_protects(void) {
    const size_t grown = BIG + BIG / 4, half = BIG / 2;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *place = mmap(NULL, BIG + PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(place != MAP_FAILED);
    /* So that it cannot grow where it is. */
    CHECK(mprotect(place + BIG, PAGE, PROT_NONE) == 0);
    fill(place, BIG, 4);
    char *memory = mremap(place, BIG, grown, MREMAP_MAYMOVE);
    CHECK(memory != MAP_FAILED && memory != place);
    check(memory, BIG, 4);
    check_zero(memory + BIG, grown - BIG);
    for (size_t at = 0; at < half; at += 64 * PAGE)
        CHECK(mprotect(memory + at, 24 * PAGE, PROT_READ) == 0);
    check(memory, BIG, 4);
    CHECK(mprotect(memory, half, PROT_NONE) == 0 && mprotect(memory, half, PROT_READ | PROT_WRITE) == 0);
    char *target = mmap(NULL, grown, PROT_NONE, flags | MAP_NORESERVE, -1, 0);
    CHECK(target != MAP_FAILED);
    CHECK(mremap(memory, grown, grown, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
    check(target, BIG, 4);
    CHECK(mremap(target, grown, half, 0) == target);
    check(target, half, 4);
    fill(target, half, 5);
    CHECK(mremap(target, half, BIG, MREMAP_MAYMOVE) != MAP_FAILED);
    puts("ok");
}

/* A child that changes its memory before anything else. */
static void changes_in_a_child(void) {
    char *memory = filled(2);
    for (int n = 0; n < 4; n++) {
        pid_t child = fork();
        if (child == 0) {
            const size_t part = BIG / 4;
            CHECK(madvise(memory, part, MADV_DONTNEED) == 0);
            check_zero(memory, part);
            const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
            CHECK(mmap(memory + part, part, PROT_READ | PROT_WRITE, flags, -1, 0) == memory + part);
            check_zero(memory + part, part);
            check_from(memory + 2 * part, 2 * part, 2, 2 * part / PAGE);
            _exit(0);
        }
        reap(child);
    }
    check(memory, BIG, 2);
    puts("ok");
}

static void jump(int signal) {
    (void)signal;
    _exit(7);
}

/* What a program keeps from its children they do not have, whether it is out or not: and all else. */
static void left_out_of_children(void) {
    char *memory = filled(2);
    const size_t part = BIG / 8;
    for (int n = 1; n < 8; n += 2)
        CHECK(madvise(memory + n * part, part, MADV_DONTFORK) == 0);
    for (int n = 0; n < 4; n++) {
        pid_t child = fork();
        if (child == 0) {
            for (int even = 0; even < 8; even += 2)
                check_from(memory + even * part, part, 2, even * part / PAGE);
            unsigned char there;
            CHECK(mincore(memory + part, PAGE, &there) == -1 && errno == ENOMEM);
            signal(SIGSEGV, jump);
            *(volatile char *)(memory + part) = 1;
            _exit(1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    check(memory, BIG, 2);
}

/* Zeros go out like all else, and are on no device. */
static void zeros_in_children(void) {
    char *memory = filled(2);
    memset(memory, 0, BIG / 2);
    for (int n = 0; n < 3; n++) {
        check_from(memory + BIG / 2, BIG / 2, 2, BIG / 2 / PAGE);
        pid_t child = fork();
        if (child == 0) {
            check_zero(memory, BIG / 2);
            _exit(0);
        }
        reap(child);
    }
    check_zero(memory, BIG / 2);
}

/* What is dropped is gone, in a child that is forked at once too: also where it was moved before. */
static void drops_before_a_fork(void) {
    char *memory = filled(2);
    const size_t part = BIG / 64;
    for (int n = 0; n < 48; n += 2) {
        char *dropped = memory + n * part;
        CHECK(madvise(dropped, part, MADV_DONTNEED) == 0);
        if (n % 4) {
            char *place = mmap(NULL, part, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(place != MAP_FAILED);
            dropped = mremap(dropped, part, part, MREMAP_MAYMOVE | MREMAP_FIXED, place);
            CHECK(dropped == place);
        }
        pid_t child = fork();
        if (child == 0) {
            check_zero(dropped, part);
            check_from(memory + (n + 1) * part, part, 2, (n + 1) * part / PAGE);
            _exit(0);
        }
        reap(child);
        check_zero(dropped, part);
    }
}

static sigjmp_buf back;

static void jump_back(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static void check_guarded(char *page) {
    signal(SIGSEGV, jump_back);
    if (sigsetjmp(back, 1) == 0) {
        *(volatile char *)page = 1;
        CHECK(!"the guard lets this in");
    }
    signal(SIGSEGV, SIG_DFL);
}

/* Guard regions of the program's own, from before it was paged and since. */
static void guards_of_its_own(void) {
    char *early = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(early, 7, 4 * PAGE);
    if (madvise(early + PAGE, PAGE, 102 /* MADV_GUARD_INSTALL */) != 0) {
        CHECK(errno == EINVAL);
        return;
    }
    char *memory = filled(2);
    check_guarded(early + PAGE);
    CHECK(early[0] == 7 && early[3 * PAGE] == 7);
    if (madvise(memory + PAGE, PAGE, 102) == 0) {
        check_guarded(memory + PAGE);
        CHECK(madvise(memory + PAGE, PAGE, 103 /* MADV_GUARD_REMOVE */) == 0);
        check_zero(memory + PAGE, PAGE);
    } else {
        CHECK(errno == EINVAL);
        check_from(memory + PAGE, PAGE, 2, 1);
    }
    check_from(memory + 2 * PAGE, BIG - 2 * PAGE, 2, 2);
    check_guarded(early + PAGE);
}

static void rests(void) {
    char *memory = filled(6);
    check(memory, BIG, 6);
    CHECK(has_gate() && munmap(memory, BIG) == 0);
    struct timespec moment = {.tv_nsec = 500 * 1000 * 1000};
    for (int n = 0; has_gate(); n++) {
        CHECK(n < 120);
        nanosleep(&moment, NULL);
    }
    memory = filled(7);
    check(memory, BIG, 7);
    CHECK(has_gate());
}

static const struct test TESTS[] = {
    {"filters", filters},
    {"filters_in_a_child", filters_in_a_child},
    {"sends_and_receives", sends_and_receives},
    {"takes_messages", takes_messages},
    {"ends_a_thread", ends_a_thread},
    {"writes_a_file", writes_a_file},
    {"ends_within_pages", ends_within_pages},
    {"moves_and_protects", moves_and_protects},
    {"changes_in_a_child", changes_in_a_child},
    {"left_out_of_children", left_out_of_children},
    {"zeros_in_children", zeros_in_children},
    {"drops_before_a_fork", drops_before_a_fork},
    {"guards_of_its_own", guards_of_its_own},
    {"rests", rests},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
