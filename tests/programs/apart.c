/* What a program does to itself and its children while the pager, a process apart, goes on. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

enum { SEED = 7 };

/* Memory of which most is out. */
static char *swapped(void) {
    char *memory = map(BIG / 2);
    fill(memory, BIG / 2, SEED);
    push_out();
    return memory;
}

/* One after the other: what the ended ones held is given back. */
static void ended_children(void) {
    swapped();
    for (int n = 0; n < 1000; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            _exit(0);
        reap(child);
    }
}

static void living_children(void) {
    char *memory = swapped();
    enum { CHILDREN = 300 };
    int gate[2];
    pid_t children[CHILDREN];
    CHECK(pipe(gate) == 0);
    for (int n = 0; n < CHILDREN; n++) {
        CHECK((children[n] = fork()) >= 0);
        if (children[n] == 0) {
            char byte;
            close(gate[1]);
            CHECK(read(gate[0], &byte, 1) == 0);
            check_from(memory + n * PAGE, PAGE, SEED, n);
            _exit(0);
        }
    }
    close(gate[1]);
    for (int n = 0; n < CHILDREN; n++)
        reap(children[n]);
}

/* Children that wait for each other's end, until a fork is refused. */
static void children_until_refused(void) {
    enum { CHILDREN = 300 };
    int gate[2], made = 0;
    pid_t children[CHILDREN];
    CHECK(pipe(gate) == 0);
    while (made < CHILDREN && (children[made] = fork()) > 0)
        made++;
    if (made < CHILDREN && children[made] == 0) {
        char byte;
        close(gate[1]);
        CHECK(read(gate[0], &byte, 1) == 0);
        _exit(0);
    }
    CHECK(made == CHILDREN || errno == EAGAIN);
    close(gate[1]);
    for (int n = 0; n < made; n++)
        reap(children[n]);
    printf("%d children\n", made);
}

/* Calls `look` with the names in a directory; returns their number. */
static int entries(const char *path, void (*look)(const char *name)) {
    DIR *directory = opendir(path);
    CHECK(directory != NULL);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (entry->d_name[0] != '.') {
            look(entry->d_name);
            count++;
        }
    closedir(directory);
    return count;
}

static void is_own(const char *descriptor) {
    static const char *strange[] = {"userfaultfd", "overspill", "io_uring", "eventfd", "pidfd"};
    char path[300], link[300] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%s", descriptor);
    CHECK(readlink(path, link, sizeof link - 1) > 0);
    for (size_t n = 0; n < sizeof strange / sizeof *strange; n++)
        CHECK(strstr(link, strange[n]) == NULL || strstr(link, "overspill-test-") != NULL);
}

static void is_anything(const char *name) { (void)name; }

static void nothing_to_be_seen(void) {
    char *memory = swapped();
    entries("/proc/self/fd", is_own);
    CHECK(entries("/proc/self/task", is_anything) == 1);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    check(memory, BIG / 2, SEED);
}

static void every_descriptor_closed(void) {
    char *memory = swapped();
    CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    check(memory, BIG / 2, SEED);
    for (int fd = 3; fd < 1000; fd++)
        CHECK(dup2(2, fd) == fd);
    check(memory, BIG / 2, SEED);
}

static void user_namespace(void) {
    char *memory = swapped();
    if (unshare(CLONE_NEWUSER) != 0)
        fprintf(stderr, "skipped: no user namespace: %s\n", strerror(errno));
    check(memory, BIG / 2, SEED);
}

static char *shared;

static void *last(void *argument) {
    usleep(50000);
    check(shared, BIG / 2, SEED);
    puts("ok");
    return argument;
}

/* The first thread ends, then the last one, and so the process. */
static void last_thread(void) {
    pthread_t thread;
    shared = swapped();
    CHECK(pthread_create(&thread, NULL, last, NULL) == 0);
    pthread_exit(NULL);
}

static void filter(unsigned flags) {
    static const int allowed[] = {SYS_read,   SYS_write,    SYS_exit,   SYS_exit_group,
                                  SYS_mmap,   SYS_munmap,   SYS_brk,    SYS_mprotect,
                                  SYS_mremap, SYS_madvise,  SYS_futex,  SYS_rt_sigreturn,
                                  SYS_close,  SYS_newfstatat, SYS_fstat, SYS_getrandom};
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter code[2 * COUNT + 2];
    int n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                             offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {n, code};
    char *memory = swapped();
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0);
    for (int round = 0; round < 20; round++) {
        char *block = malloc(3 * MIB);
        memset(block, round, 3 * MIB);
        free(block);
    }
    push_out();
    check(memory, BIG / 2, SEED);
}

static void filtered(void) { filter(0); }

static void filtered_in_all_threads(void) { filter(SECCOMP_FILTER_FLAG_TSYNC); }

static volatile long ticks;

static void on_tick(int signal) {
    (void)signal;
    static size_t page;
    page = (page * 5 + 1) % (BIG / 2 / PAGE);
    check_from(shared + page * PAGE, PAGE, SEED, page);
    ticks++;
}

/* A handler that reads memory, in the middle of calls that change memory. */
static void handler_reads(void) {
    shared = swapped();
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    CHECK(signal(SIGALRM, on_tick) != SIG_ERR);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    char *other = map(MIB);
    while (ticks < 2000) {
        CHECK(mprotect(other, MIB, PROT_READ) == 0);
        CHECK(mprotect(other, MIB, PROT_READ | PROT_WRITE) == 0);
        CHECK(munmap(map(MIB), MIB) == 0);
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static volatile int stop;

static void *flush(void *argument) {
    while (!stop)
        fflush(NULL);
    return argument;
}

/* The flusher holds the list of streams while it waits for a page of one. */
static void flush_amid_forks(void) {
    enum { STREAMS = 64 };
    FILE *streams[STREAMS];
    for (int n = 0; n < STREAMS; n++) {
        CHECK((streams[n] = fopen("/dev/null", "w")) != NULL);
        CHECK(setvbuf(streams[n], malloc(64 << 10), _IOFBF, 64 << 10) == 0);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, flush, NULL) == 0);
    for (int round = 0; round < 30; round++) {
        for (int n = 0; n < STREAMS; n++)
            fputc('x', streams[n]);
        push_out();
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            _exit(0);
        reap(child);
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

static void fork_and_check(const char *memory) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        check(memory, BIG / 2, SEED);
        _exit(0);
    }
    reap(child);
}

/* The number of this process's children; `last` becomes one of them, and stays 0 without any. */
static int children(pid_t *last) {
    char path[100];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *list = fopen(path, "r");
    CHECK(list != NULL);
    int count = 0, child;
    *last = 0;
    while (fscanf(list, "%d", &child) == 1) {
        *last = child;
        count++;
    }
    fclose(list);
    return count;
}

/* Stops `pager`, for a while. */
static void delay(pid_t pager) {
    pid_t waker = fork();
    CHECK(waker >= 0);
    if (waker == 0) {
        if (fork() != 0)
            _exit(0);
        usleep(200000);
        kill(pager, SIGCONT);
        _exit(0);
    }
    reap(waker);
    CHECK(kill(pager, SIGSTOP) == 0);
}

/* A program of several images leaves no pager behind, even if one ends after the next has started. */
static void images(void) {
    const char *before = getenv("IMAGES");
    int image = before == NULL ? 0 : atoi(before);
    pid_t pager;
    CHECK(children(&pager) <= 1);
    char *memory = swapped();
    check(memory, BIG / 2, SEED);
    if (image == 6)
        return;
    if (image % 2 == 1 && pager != 0)
        delay(pager);
    char number[2] = {(char)('1' + image), 0};
    CHECK(setenv("IMAGES", number, 1) == 0);
    execl("/proc/self/exe", "apart", "images", (char *)NULL);
    CHECK(!"executed");
}

/* The tables of a locale are read by every new thread, and may be out. */
static void locale(void) {
    CHECK(setlocale(LC_ALL, "C.UTF-8") != NULL);
    char *memory = swapped();
    for (int n = 0; n < 10; n++) {
        push_out();
        fork_and_check(memory);
    }
}

static void rights_given_up(void) {
    char *memory = swapped();
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
        fprintf(stderr, "skipped: cannot give up rights: %s\n", strerror(errno));
    fork_and_check(memory);
    check(memory, BIG / 2, SEED);
}

static void root_changed(void) {
    char *memory = swapped(), name[] = "/tmp/overspill-test-XXXXXX";
    CHECK(mkdtemp(name) != NULL);
    int changed = chroot(name) == 0;
    CHECK(rmdir(changed ? "/" : name) == 0 || errno == EBUSY);
    if (!changed)
        fprintf(stderr, "skipped: cannot change the root: %s\n", strerror(errno));
    fork_and_check(memory);
    check(memory, BIG / 2, SEED);
}

static int cloned(void *memory) {
    check(memory, BIG / 2, SEED);
    _exit(0);
}

static void children_by_clone(void) {
    char *memory = swapped();
    static char stack[64 << 10] __attribute__((aligned(16)));
    reap(clone(cloned, stack + sizeof stack, SIGCHLD, memory));
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    CHECK(child >= 0);
    if (child == 0)
        cloned(memory);
    reap(child);
}

/* Unmapping pages that are out takes the pager's locks again and again. */
static int map_and_unmap(void *memory) {
    munmap(memory, 16 * MIB);
    do {
        memory = map(MIB);
        fill(memory, MIB, SEED);
    } while (munmap(memory, MIB) == 0);
    return 1;
}

/* A process that shares memory is killed in the middle of its calls: the others go on. */
static void killed_sharers(void) {
    char *memory = swapped();
    static char stack[64 << 10] __attribute__((aligned(16)));
    for (int n = 0; n < 60; n++) {
        char *swapped = map(16 * MIB);
        fill(swapped, 16 * MIB, n);
        fill(memory, BIG / 2, SEED);
        pid_t child = clone(map_and_unmap, stack + sizeof stack, SIGCHLD | CLONE_VM, swapped);
        CHECK(child >= 0);
        usleep(n % 20 * 200);
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        char *own = map(PAGE);
        own[0] = 1;
        CHECK(munmap(own, PAGE) == 0);
    }
    check(memory, BIG / 2, SEED);
}

/* What a killed process had open is closed when it has been reaped, also if it was about to start. */
static void killed_starting(void) {
    swapped();
    signal(SIGPIPE, SIG_IGN);
    for (int n = 0; n < 500; n++) {
        int ends[2];
        CHECK(pipe(ends) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            close(ends[1]);
            execlp("sleep", "sleep", "60", (char *)NULL);
            _exit(1);
        }
        close(ends[0]);
        usleep(n % 100 * 100);
        CHECK(kill(child, SIGKILL) == 0);
        CHECK(waitpid(child, NULL, 0) == child);
        CHECK(write(ends[1], "x", 1) == -1 && errno == EPIPE);
        close(ends[1]);
    }
}

/* The pager of a child; the child itself in a plain run. */
static pid_t pager_of(pid_t child) {
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", child, child);
    FILE *children = fopen(path, "r");
    pid_t pager = child;
    CHECK(children != NULL);
    if (fscanf(children, "%d", &pager) == 1) {
        snprintf(path, sizeof path, "/proc/%d/comm", pager);
        FILE *comm = fopen(path, "r");
        CHECK(comm != NULL && fscanf(comm, "%31s", name) == 1 && strcmp(name, "ovs-pager") == 0);
        fclose(comm);
    }
    fclose(children);
    return pager;
}

/* A program whose pager is killed ends before it sees a page that nobody brings in. */
static void killed_pagers(void) {
    char *memory = swapped();
    /* 1 once it reads, 2 if it reads something wrong. */
    volatile int *state = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(state != MAP_FAILED);
    for (int n = 0; n < 100; n++) {
        *state = 0;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (size_t page = 0;; page = (page + 7919) % (BIG / 2 / PAGE)) {
                if (*(volatile uint64_t *)(memory + page * PAGE) != mark(SEED, page))
                    *state = 2;
                else if (*state == 0)
                    *state = 1;
            }
        }
        while (*state == 0)
            usleep(100);
        usleep(n % 10 * 500);
        CHECK(kill(pager_of(child), SIGKILL) == 0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK(*state == 1);
    }
}

/* Forks once, which a filter stops. */
static void *fork_for_ever(void *listener) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_VM, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    int fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    CHECK(fd >= 0);
    __atomic_store_n((int *)listener, fd, __ATOMIC_RELEASE);
    fork();
    return NULL;
}

/* Killed amid a fork, while libc has every lock of its heap. */
static void killed_forking(void) {
    int listener = -1;
    pthread_t thread;
    struct seccomp_notif call = {0};
    swapped();
    CHECK(pthread_create(&thread, NULL, fork_for_ever, &listener) == 0);
    while (__atomic_load_n(&listener, __ATOMIC_ACQUIRE) < 0)
        usleep(1000);
    CHECK(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) == 0);
    kill(getpid(), SIGKILL);
}

#ifdef __x86_64__
/* Forks without libc. */
static inline long fork_unseen(void) {
    long child = SYS_fork;
    __asm__ volatile("syscall" : "+a"(child) : : "rcx", "r11", "memory");
    CHECK(child >= 0);
    return child;
}
#endif

/* A child that nobody has seen must not find zeros, nor wait for a pager. */
static void unseen_child(void) {
    volatile char *memory = swapped();
#ifdef __x86_64__
    long child = fork_unseen();
    if (child == 0) {
        /* No call of libc's: it has nothing of the child's to work with. */
        char byte = memory[0];
        long status = byte, number = SYS_exit_group;
        __asm__ volatile("syscall" : "+a"(number) : "D"(status) : "rcx", "r11", "memory");
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(getenv("OVERSPILL_SESSION") == NULL || (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
    child = fork_unseen();
    if (child == 0) {
        munmap(map(PAGE), PAGE);
        _exit(0);
    }
    reap(child);
#endif
    check((char *)memory, BIG / 2, SEED);
}

static const struct test TESTS[] = {
    {"ended_children", ended_children},
    {"living_children", living_children},
    {"children_until_refused", children_until_refused},
    {"nothing_to_be_seen", nothing_to_be_seen},
    {"every_descriptor_closed", every_descriptor_closed},
    {"user_namespace", user_namespace},
    {"last_thread", last_thread},
    {"filtered", filtered},
    {"filtered_in_all_threads", filtered_in_all_threads},
    {"handler_reads", handler_reads},
    {"flush_amid_forks", flush_amid_forks},
    {"images", images},
    {"locale", locale},
    {"rights_given_up", rights_given_up},
    {"root_changed", root_changed},
    {"children_by_clone", children_by_clone},
    {"killed_sharers", killed_sharers},
    {"killed_starting", killed_starting},
    {"killed_forking", killed_forking},
    {"killed_pagers", killed_pagers},
    {"unseen_child", unseen_child},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
