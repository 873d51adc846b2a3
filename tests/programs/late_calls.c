/* Calls about more memory than there is room for, made when paging has begun. */
#include "common.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/syscall.h>

/* Has the program paged. */
static void *begin(void) {
    char *memory = map(BIG / 2);
    fill(memory, BIG / 2, 1);
    push_out();
    return memory;
}

/* What it has stays right, whether that keeps to the limit or not. */
static void locks_all(void) {
    char *memory = begin();
    CHECK(mlockall(MCL_CURRENT) == 0);
    char *more = map(BIG / 2);
    fill(more, BIG / 2, 2);
    check(memory, BIG / 2, 1);
    CHECK(munlockall() == 0);
    push_out();
    check(memory, BIG / 2, 1);
    check(more, BIG / 2, 2);
}

static void populates(void) {
    char *memory = begin();
    for (int advice = 22; advice <= 23; advice++) {
        char *more = map(BIG);
        CHECK(madvise(more, BIG, advice) == 0);
        check_zero(more, BIG);
        fill(more, BIG, 3);
        CHECK(madvise(more, BIG, advice) == 0);
        check(more, BIG, 3);
        CHECK(munmap(more, BIG) == 0);
    }
    check(memory, BIG / 2, 1);
}

/* One call that touches all of it is made, or fails as for want of memory. */
static void names_much(void) {
    char *memory = begin();
    size_t done = 0;
    while (done < BIG / 2) {
        ssize_t got = getrandom(memory + done, BIG / 2 - done, 0);
        if (got < 0) {
            CHECK(errno == ENOMEM);
            break;
        }
        done += got;
    }
    char *copy = map(BIG / 2);
    fill(copy, BIG / 2, 4);
    struct iovec from = {copy, BIG / 2}, to = {memory, BIG / 2};
    ssize_t copied = syscall(SYS_process_vm_readv, getpid(), &to, 1, &from, 1, 0);
    CHECK(copied == (ssize_t)(BIG / 2) || (copied == -1 && (errno == ENOMEM || errno == EFAULT)) ||
          copied > 0);
    CHECK(mlock(copy, BIG / 2) == 0 || errno == ENOMEM);
    check(copy, BIG / 2, 4);
}

static int uffd;
static char *lazy;

static void *bring(void *unused) {
    (void)unused;
    char *page = map(PAGE);
    struct pollfd ready = {uffd, POLLIN, 0};
    struct uffd_msg message;
    while (poll(&ready, 1, -1) > 0 && read(uffd, &message, sizeof message) == sizeof message) {
        uint64_t at = message.arg.pagefault.address & ~(PAGE - 1);
        fill(page, PAGE, (at - (uint64_t)lazy) / PAGE);
        struct uffdio_copy copy = {.dst = at, .src = (uint64_t)page, .len = PAGE};
        CHECK(ioctl(uffd, UFFDIO_COPY, &copy) == 0 || errno == EEXIST);
    }
    return NULL;
}

/* Maps new memory, and registers it with a userfaultfd of this program's own. */
static int register_lazy(void) {
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    CHECK(uffd >= 0);
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(ioctl(uffd, UFFDIO_API, &api) == 0);
    lazy = map(BIG / 4);
    struct uffdio_register registered = {{(uint64_t)lazy, BIG / 4}, UFFDIO_REGISTER_MODE_MISSING, 0};
    return ioctl(uffd, UFFDIO_REGISTER, &registered);
}

/* It serves its own, or is told that somebody else has the memory. */
static void pages_itself(void) {
    char *memory = begin();
    if (register_lazy() == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, bring, NULL) == 0);
        for (size_t page = 0; page < BIG / 4 / PAGE; page++)
            check(lazy + page * PAGE, PAGE, page);
    } else {
        CHECK(errno == EBUSY);
    }
    check(memory, BIG / 2, 1);
}

/* Nothing of ours is in it then, and it goes on as it is. */
static void pages_itself_first(void) {
    CHECK(register_lazy() == 0);
    push_out();
}

static const struct test TESTS[] = {
    {"locks_all", locks_all},
    {"populates", populates},
    {"names_much", names_much},
    {"pages_itself", pages_itself},
    {"pages_itself_first", pages_itself_first},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
