/* Makes system calls with arguments of all kinds, good and bad, and prints what each returned and
 * what it left in memory.
 *
 *     call_fuzz SEED COUNT [ADDRESS]
 *
 * `calls.h` is made from the table of calls. Every call is made by a child of its own, in a
 * directory of its own, on memory that has just been paged out. The first line is the address of
 * that memory; with the same one, and compiled for fixed addresses, what two plain runs print is the
 * same, but for clocks, process numbers and the like. */
#include "common.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>

struct row {
    long number;
    const char *name;
    /* Of each argument: v value, n length, p pointer, s string, z pointer to a length, c any. */
    const char *kinds;
};

static const struct row rows[] = {
#include "calls.h"
};
#define ROWS (sizeof rows / sizeof *rows)

/* Those that end the process, wait for nothing we have, change the machine, outlast the child, or map
 * memory. */
static const char *const left_out[] = {
    "exit", "exit_group", "kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
    "pidfd_send_signal", "fork", "vfork", "clone", "clone3", "rt_sigreturn", "mmap", "munmap",
    "mremap", "brk", "mprotect", "madvise", "pkey_mprotect", "remap_file_pages", "shmat",
    "process_madvise", "userfaultfd", "map_shadow_stack", "mseal", "memfd_secret", "arch_prctl",
    "set_thread_area", "modify_ldt", "seccomp", "ptrace", "setrlimit", "prlimit64", "mlockall",
    "mlock", "mlock2", "munlock", "munlockall", "migrate_pages", "add_key", "request_key", "keyctl",
    "mq_open", "mq_unlink", "msgget", "semget", "shmget", "sync", "syncfs", "reboot", "unshare",
    "execve", "execveat", "vhangup", "setpriority", "ioprio_set", "personality", "restart_syscall", "process_mrelease",
};

enum { ARENA_PAGES = 16, FD_FIRST = 3, FD_COUNT = 14, TICK_US = 50000 };

/* What a child leaves, in memory that is not managed. */
struct outcome {
    int is_done;
    long result;
    uint64_t content;
};

static uint64_t state;

static uint64_t draw(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(size_t bound) { return draw() % bound; }

#define ONE_OF(...)                                                                                \
    ({                                                                                             \
        long choices[] = {__VA_ARGS__};                                                            \
        choices[below(sizeof choices / sizeof *choices)];                                          \
    })

static char *arena, *read_only, *nobody, *nothing;
static char fixed[2 * 4096];
static const char *const names[] = {
    "file", "dir", "link", "missing", "dir/inner", "", ".", "/", "/proc/self/exe",
};

enum { WORDS = ARENA_PAGES * 4096 / 8, BALLAST = 24 << 20 };

static int is_left_out(const char *name) {
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (strcmp(left_out[i], name) == 0)
            return 1;
    return 0;
}

static long pointer(void) {
    char *in_arena = arena + below(ARENA_PAGES * PAGE);
    switch (below(24)) {
    case 0: return 0;
    case 1: return (long)read_only + (long)below(PAGE);
    case 2: return (long)nobody + (long)below(PAGE);
    case 3: return (long)nothing + (long)below(PAGE);
    case 4: return (long)fixed + (long)below(PAGE);
    case 5: return ONE_OF(-1, 1, 4095, 0x7ffffffff000, 0x800000000000);
    case 6: return (long)arena + ARENA_PAGES * PAGE - (long)below(64); /* over its end */
    case 7: return (long)((uintptr_t)in_arena | (PAGE - 1)) - (long)below(16); /* over a page's end */
    default: return (long)((uintptr_t)in_arena & ~(uintptr_t)7);
    }
}

/* A string in the arena, often over the end of a page. */
static long string(void) {
    if (below(6) == 0)
        return pointer();
    const char *name = names[below(sizeof names / sizeof *names)];
    size_t offset = (1 + below(ARENA_PAGES - 2)) * PAGE - below(8);
    char *at = strcpy(arena + offset, name);
    return (long)at;
}

static long value(void) {
    switch (below(8)) {
    case 0: return ONE_OF(-1, AT_FDCWD, 16, 100, 4095, 4096, 0x10000, 1 << 20, 1 << 30);
    case 1:
    case 2:
    case 3: return FD_FIRST + (long)below(FD_COUNT);
    default: return ONE_OF(0, 0, 0, 1, 2, 3, 4);
    }
}

static long argument(char kind) {
    switch (kind) {
    case 'n': return ONE_OF(0, 1, 2, 3, 4, 8, 12, 16, 24, 32, 64, 110, 128, 255, 4096, 5000, 20000);
    case 'p': return pointer();
    case 's': return string();
    case 'z': {
        long at = pointer();
        if (at >= (long)arena && at <= (long)arena + (ARENA_PAGES - 1) * (long)PAGE)
            *(int *)at = ONE_OF(0, 1, 2, 4, 8, 16, 110, 128, -1);
        return at;
    }
    case 'c': return below(2) ? pointer() : value();
    default: return value();
    }
}

/* Words that a structure may have: numbers, pointers, zeros. */
static void scribble(void) {
    uint64_t *words = (uint64_t *)arena;
    for (size_t i = 0; i < WORDS; i++)
        switch (draw() % 8) {
        case 0: words[i] = (uint64_t)(arena + below(ARENA_PAGES * PAGE)); break;
        case 1: words[i] = (uint64_t)pointer(); break;
        case 2: words[i] = below(300); break;
        case 3: words[i] = below(16) | (uint64_t)below(16) << 32; break;
        default: words[i] = 0;
        }
}

static int is_paged;

static uint64_t content(void) {
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < WORDS; i++)
        sum = (sum ^ ((uint64_t *)arena)[i]) * 1099511628211u;
    return sum;
}

static void on_tick(int signal) { (void)signal; }

static void open_at(int number, int fd) {
    CHECK(fd >= 0);
    if (fd != number) {
        CHECK(dup2(fd, number) == number);
        close(fd);
    }
}

/* A directory with the usual things, and a descriptor of each kind. */
static void furnish(size_t n) {
    char name[32];
    sprintf(name, "%zu", n);
    CHECK(mkdir(name, 0755) == 0 && chdir(name) == 0);
    CHECK(mkdir("dir", 0755) == 0 && symlink("file", "link") == 0);
    CHECK(close_range(0, ~0u, 0) == 0);
    /* The size of the table of descriptors bounds what select looks at. */
    CHECK(open("/dev/null", O_RDWR) == 0 && dup2(0, 1023) == 1023 && close(0) == 0 && close(1023) == 0);
    for (int fd = 0; fd < FD_FIRST; fd++)
        CHECK(open("/dev/null", O_RDWR) == fd);
    int file = open("file", O_RDWR | O_CREAT, 0644);
    for (int i = 0; i < 8; i++)
        CHECK(write(file, fixed, 1000) == 1000);
    CHECK(lseek(file, 0, SEEK_SET) == 0);
    open_at(3, file);
    open_at(4, open(".", O_RDONLY | O_DIRECTORY));
    int two[2];
    CHECK(pipe(two) == 0 && write(two[1], "some words", 10) == 10); /* 5 and 6 */
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, two) == 0 && write(two[1], "a stream", 8) == 8);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, two) == 0 && write(two[1], "a message", 9) == 9);
    open_at(11, eventfd(3, 0));
    open_at(12, epoll_create1(0));
    CHECK(epoll_ctl(12, EPOLL_CTL_ADD, 11, &(struct epoll_event){.events = EPOLLIN}) == 0);
    open_at(13, timerfd_create(CLOCK_MONOTONIC, 0));
    open_at(14, inotify_init());
    open_at(15, socket(AF_INET, SOCK_DGRAM, 0));
    open_at(16, open("dir", O_PATH));
}

static long raw_call(long number, const long args[6]) {
    register long r10 __asm__("r10") = args[3];
    register long r8 __asm__("r8") = args[4];
    register long r9 __asm__("r9") = args[5];
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(args[0]), "S"(args[1]), "d"(args[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

/* Has the arena be out, if this is to be paged: a child has to be known for that. */
static void page_out(void) {
    unsigned char in[ARENA_PAGES];
    for (int tries = 0; tries < 1000; tries++) {
        CHECK(madvise(arena, ARENA_PAGES * PAGE, MADV_PAGEOUT) == 0);
        CHECK(mincore(arena, sizeof in * PAGE, in) == 0);
        if (!is_paged || memchr(in, 1, sizeof in) == NULL)
            return;
        usleep(1000);
    }
    CHECK(!"the arena stays in memory");
}

static void make_call(const struct row *row, size_t n, struct outcome *outcome) {
    furnish(n);
    struct sigaction action = {.sa_handler = on_tick};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    scribble();
    long args[6];
    for (int i = 0; i < 6; i++)
        args[i] = argument(row->kinds[i]);
    if (strcmp(row->name, "prctl") == 0)
        args[0] = ONE_OF(1, 2, 3, 4, 7, 8, 15, 16, 21, 25, 27, 29, 30, 36, 37, 39, 40); /* not dispatch, not seccomp */
    if (strcmp(row->name, "wait4") == 0)
        args[2] &= 0xff; /* not __WALL: a pager is such a child (docs/limits.md) */
    page_out();
    struct itimerval tick = {.it_value.tv_usec = TICK_US, .it_interval.tv_usec = TICK_US};
    CHECK(setitimer(ITIMER_REAL, &tick, NULL) == 0);
    outcome->result = raw_call(row->number, args);
    outcome->content = content();
    outcome->is_done = 1;
    _exit(0);
}

/* The result of a child, or how it ended. */
static void report(const struct row *row, size_t n, pid_t child, struct outcome *outcome) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (outcome->is_done)
        printf("%zu %s %ld %016lx\n", n, row->name, outcome->result, (unsigned long)outcome->content);
    else
        printf("%zu %s status %x\n", n, row->name, status);
}

/* What a child with other rights can do is not our subject. */
static void become_nobody(void) {
    if (geteuid() == 0) {
        CHECK(chown(".", 65534, 65534) == 0);
        CHECK(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    }
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    uint64_t seed = strtoull(argv[1], NULL, 10);
    size_t count = strtoul(argv[2], NULL, 10);
    become_nobody();
    is_paged = argc == 3;
    void *wanted = argc > 3 ? (void *)strtoull(argv[3], NULL, 16) : NULL;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (wanted ? MAP_FIXED_NOREPLACE : 0);
    arena = mmap(wanted, (ARENA_PAGES + 8) * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(arena != MAP_FAILED);
    nobody = arena + ARENA_PAGES * PAGE;
    read_only = nobody + 2 * PAGE;
    nothing = read_only + 2 * PAGE;
    memset(read_only, 7, 2 * PAGE);
    CHECK(mprotect(nobody, 2 * PAGE, PROT_NONE) == 0 && mprotect(read_only, 2 * PAGE, PROT_READ) == 0);
    CHECK(munmap(nothing, 2 * PAGE) == 0);
    struct outcome *outcome =
        mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(outcome != MAP_FAILED);
    /* More than the limit: so the program is paged from here on. */
    char *ballast = mmap(NULL, BALLAST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(ballast != MAP_FAILED);
    fill(ballast, BALLAST, seed);
    check(ballast, BALLAST, seed);
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("%lx\n", (unsigned long)arena);
    for (size_t n = 0; n < count; n++) {
        const struct row *row;
        state = seed * 1000003 + n;
        do
            row = &rows[below(ROWS)];
        while (is_left_out(row->name));
        memset(outcome, 0, sizeof *outcome);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            make_call(row, n, outcome);
        report(row, n, child, outcome);
    }
    return 0;
}
