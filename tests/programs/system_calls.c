/* System calls whose buffers are swapped out, limits, and file descriptors. */
#include "common.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#define BUFFER (8 * MIB)

static int temporary_file(void) {
    char name[] = "calls.XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0);
    return fd;
}

static void read_and_write(void) {
    int fd = temporary_file();
    char *from = map(BUFFER), *to = map(BUFFER);
    fill(from, BUFFER, 1);
    fill(to, BUFFER, 2);
    push_out();
    CHECK(pwrite(fd, from, BUFFER, 0) == (ssize_t)BUFFER);
    push_out();
    CHECK(pread(fd, to, BUFFER, 0) == (ssize_t)BUFFER);
    check(to, BUFFER, 1);
    fill(to, BUFFER, 3);
    /* Scattered pieces, in an array that is swapped out as well. */
    struct iovec *pieces = map(PAGE);
    for (int i = 0; i < 8; i++)
        pieces[i] = (struct iovec){to + (7 - i) * MIB, MIB};
    push_out();
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, pieces, 8) == (ssize_t)BUFFER);
    for (int i = 0; i < 8; i++)
        check_from(to + (7 - i) * MIB, MIB, 1, i * MIB / PAGE);
    push_out();
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && writev(fd, pieces, 8) == (ssize_t)BUFFER);
    push_out();
    CHECK(pread(fd, to, BUFFER, 0) == (ssize_t)BUFFER);
    check(to, BUFFER, 1);
}

/* Ends the process at the first byte of `got` that is not `want`'s. */
static void check_bytes(const char *got, size_t bytes, const char *want, const char *how) {
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i]) {
            fprintf(stderr, "%s: byte %zu of %zu is %02x, not %02x\n", how, i, bytes,
                    (unsigned char)got[i], (unsigned char)want[i]);
            _exit(1);
        }
}

/* Bytes to send; not managed memory, so that they take no part. */
static char *expected(size_t bytes, int seed) {
    char *want = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(want != MAP_FAILED);
    for (size_t i = 0; i < bytes; i++)
        want[i] = (char)(i / PAGE * 7 + i % PAGE + seed);
    return want;
}

/* A pipe refers to pages of the program, which does not change them. They are swapped out, and come
 * back, and others come and go; what leaves the pipe is what went in. */
static void vmsplice_then_swap(void) {
    enum { PIPE = 256 * PAGE };
    int pipe_fds[2];
    CHECK(pipe(pipe_fds) == 0 && fcntl(pipe_fds[1], F_SETPIPE_SZ, PIPE) > 0);
    for (int round = 0; round < 6; round++) {
        char *want = expected(PIPE, round), *from = map(PIPE);
        memcpy(from, want, PIPE);
        size_t sent = 0;
        while (sent < PIPE) {
            struct iovec piece = {from + sent, PIPE - sent};
            ssize_t count = vmsplice(pipe_fds[1], &piece, 1, SPLICE_F_NONBLOCK);
            if (count < 0 && errno == EPERM) {
                fputs("skipped: vmsplice is refused, as in containers\n", stderr);
                return push_out();
            }
            if (count <= 0)
                break;
            sent += count;
        }
        CHECK(sent > 0);
        push_out();
        char *got = mmap(NULL, PIPE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(got != MAP_FAILED);
        for (size_t received = 0; received < sent;) {
            ssize_t count = read(pipe_fds[0], got + received, sent - received);
            CHECK(count > 0);
            received += count;
        }
        check_bytes(got, sent, want, "vmsplice");
        check_bytes(from, PIPE, want, "the sender's own memory");
        CHECK(munmap(got, PIPE) == 0 && munmap(want, PIPE) == 0 && munmap(from, PIPE) == 0);
    }
}

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

/* A socket's queue refers to pages of the program until the other side has taken them. */
static void zero_copy_then_swap(void) {
    enum { SENT = 2 * 1024 * 1024 };
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, small = 8192, large = 4 << 20;
    CHECK(listener >= 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    CHECK(bind(listener, (void *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (void *)&address, &length) == 0);
    int sender = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(setsockopt(sender, SOL_SOCKET, SO_SNDBUF, &large, sizeof large) == 0);
    if (setsockopt(sender, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) != 0)
        return;
    CHECK(connect(sender, (void *)&address, sizeof address) == 0);
    int receiver = accept(listener, NULL, NULL);
    CHECK(receiver >= 0 && fcntl(sender, F_SETFL, O_NONBLOCK) == 0);
    char *want = expected(SENT, 1), *from = map(SENT);
    memcpy(from, want, SENT);
    size_t sent = 0;
    while (sent < SENT) {
        ssize_t count = send(sender, from + sent, SENT - sent, MSG_ZEROCOPY);
        if (count <= 0)
            break;
        sent += count;
    }
    CHECK(sent > 0);
    push_out();
    push_out();
    CHECK(shutdown(sender, SHUT_WR) == 0);
    char *got = mmap(NULL, SENT, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(got != MAP_FAILED);
    size_t received = 0;
    for (ssize_t count; (count = read(receiver, got + received, SENT - received)) > 0;)
        received += count;
    CHECK(received == sent);
    check_bytes(got, sent, want, "MSG_ZEROCOPY");
    check_bytes(from, SENT, want, "the sender's own memory");
}

struct stream {
    int fd;
    char *memory;
};

static void *send_all(void *argument) {
    struct stream *stream = argument;
    for (size_t sent = 0; sent < BUFFER;) {
        ssize_t count = send(stream->fd, stream->memory + sent, BUFFER - sent, 0);
        CHECK(count > 0);
        sent += count;
    }
    return NULL;
}

static void send_and_receive(void) {
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    char *to = map(BUFFER);
    struct stream stream = {fds[0], map(BUFFER)};
    fill(stream.memory, BUFFER, 1);
    fill(to, BUFFER, 2);
    push_out();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, send_all, &stream) == 0);
    for (size_t received = 0; received < BUFFER;) {
        ssize_t count = recv(fds[1], to + received, BUFFER - received, 0);
        CHECK(count > 0);
        received += count;
    }
    CHECK(pthread_join(thread, NULL) == 0);
    check(to, BUFFER, 1);
}

/* Structures and names in memory that is swapped out at every call. */
static void small_structures(void) {
    struct buffers {
        char path[PAGE], entries[8 * PAGE];
        struct stat status;
        struct timespec time;
        struct pollfd poll;
        char link[PAGE];
    } *at = map(sizeof(struct buffers));
    strcpy(at->path, "/usr/bin");
    push_out();
    CHECK(stat(at->path, &at->status) == 0 && S_ISDIR(at->status.st_mode));
    push_out();
    int fd = open(at->path, O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0);
    push_out();
    CHECK(syscall(SYS_getdents64, fd, at->entries, sizeof at->entries) > 0);
    push_out();
    CHECK(clock_gettime(CLOCK_MONOTONIC, &at->time) == 0 && at->time.tv_sec > 0);
    push_out();
    CHECK(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &at->time) == 0 && at->time.tv_sec > 0);
    strcpy(at->path, "/proc/self/exe");
    push_out();
    CHECK(readlink(at->path, at->link, sizeof at->link) > 0 && strstr(at->link, "system_calls"));
    int ends[2];
    CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    at->poll = (struct pollfd){.fd = ends[0], .events = POLLIN};
    push_out();
    CHECK(poll(&at->poll, 1, 1000) == 1 && at->poll.revents == POLLIN);
    DIR *directory = opendir("/usr/bin");
    int names = 0;
    for (; readdir(directory); names++)
        if (names % 512 == 0)
            push_out();
    CHECK(names > 10 && closedir(directory) == 0);
    CHECK(syscall(SYS_read, ends[0], (void *)16, 1) < 0 && errno == EFAULT);
}

/* Files that lie in each other's way in stdio's buffers, all of them swapped out. */
static void standard_io(void) {
    enum { FILES = 8, LINES = 3000 };
    FILE *files[FILES];
    for (int i = 0; i < FILES; i++)
        CHECK((files[i] = tmpfile()) && setvbuf(files[i], NULL, _IOFBF, MIB) == 0);
    for (int line = 0; line < LINES; line++) {
        for (int i = 0; i < FILES; i++)
            fprintf(files[i], "%d %d %0300d\n", i, line, i * line);
        if (line % 1000 == 0)
            push_out();
    }
    for (int i = 0; i < FILES; i++) {
        rewind(files[i]);
        for (int line = 0; line < LINES; line++) {
            int file, number, product;
            CHECK(fscanf(files[i], "%d %d %d\n", &file, &number, &product) == 3);
            CHECK(file == i && number == line && product == i * line);
        }
        push_out();
        CHECK(fclose(files[i]) == 0);
    }
}

/* The kernel writes through a pin that it takes for a whole part at a time, while pages go out; around the ends of
   its own mappings too. */
static void write_from_outside(void) {
    enum { PART = 16 * MIB, ROUNDS = 40 };
    char *from = map(PART), *to = map(4 * PART);
    split_mappings(to, 4 * PART);
    for (int round = 1; round <= ROUNDS; round++) {
        fill(from, PART, round);
        char *part = to + round % 4 * PART;
        for (size_t done = 0; done < PART;) {
            struct iovec local = {from + done, PART - done}, remote = {part + done, PART - done};
            ssize_t moved = process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
            CHECK(moved > 0);
            done += moved;
        }
        check(part, PART, round);
    }
}

static void limit(__rlimit_resource_t resource, rlim_t value) {
    struct rlimit was, wanted, is;
    CHECK(getrlimit(resource, &was) == 0);
    wanted = (struct rlimit){value, was.rlim_max};
    CHECK(setrlimit(resource, &wanted) == 0);
    CHECK(getrlimit(resource, &is) == 0 && is.rlim_cur == value && is.rlim_max == was.rlim_max);
}

/* Whether that much more can be mapped, and given out by malloc. */
static int has_room(size_t bytes) {
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED || errno == ENOMEM);
    CHECK(mapped == MAP_FAILED || munmap(mapped, bytes) == 0);
    void *allocated = malloc(bytes);
    CHECK((allocated == NULL) == (mapped == MAP_FAILED));
    free(allocated);
    return mapped != MAP_FAILED;
}

/* Limits on address space hold for managed memory, also in children and in programs they start. */
static void room(void) {
    struct rlimit now;
    CHECK(getrlimit(RLIMIT_AS, &now) == 0);
    if (now.rlim_cur != RLIM_INFINITY)
        _exit(!has_room(1024 * MIB) || has_room(2560 * MIB));
    push_out();
    CHECK(has_room(2560 * MIB));
    limit(RLIMIT_AS, 2048 * MIB);
    char *memory = map(1024 * MIB);
    CHECK(has_room(512 * MIB) && !has_room(1536 * MIB));
    CHECK(mremap(memory, 1024 * MIB, 2560 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
    memory = mremap(memory, 1024 * MIB, 1280 * MIB, MREMAP_MAYMOVE);
    CHECK(memory != MAP_FAILED && !has_room(1024 * MIB));
    pid_t child = fork();
    if (child == 0)
        _exit(!has_room(256 * MIB) || has_room(1024 * MIB));
    reap(child);
    CHECK(munmap(memory, 1280 * MIB) == 0 && has_room(1536 * MIB));
    limit(RLIMIT_DATA, 1024 * MIB);
    CHECK(has_room(768 * MIB) && !has_room(1536 * MIB));
    limit(RLIMIT_DATA, RLIM_INFINITY);
    child = fork();
    if (child == 0)
        execl("/proc/self/exe", "system_calls", "room", (char *)NULL);
    reap(child);
}

/* A limit on the size of files is the program's; swap files grow all the same. */
static void files_are_limited(void) {
    int fd = temporary_file();
    signal(SIGXFSZ, SIG_IGN);
    CHECK(pwrite(fd, "", 1, 64 * 1024 - 1) == 1);
    CHECK(pwrite(fd, "", 1, 64 * 1024) == -1 && errno == EFBIG);
    CHECK(close(fd) == 0);
}

static void limits(void) {
    limit(RLIMIT_AS, 2048 * MIB);
    limit(RLIMIT_DATA, 1024 * MIB);
    limit(RLIMIT_FSIZE, 64 * 1024);
    files_are_limited();
    limit(RLIMIT_NOFILE, 64);
    limit(RLIMIT_STACK, 4 * MIB);
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    pid_t child = fork();
    if (child == 0) {
        check(memory, BIG, 1);
        fill(memory, BIG, 2);
        check(memory, BIG, 2);
        files_are_limited();
        _exit(0);
    }
    reap(child);
    check(memory, BIG, 1);
    /* The program's own files are few enough for the limit, whatever the pager has open. */
    int opened = 0;
    while (open("/dev/null", O_RDONLY) >= 0)
        opened++;
    CHECK(errno == EMFILE && opened >= 32);
    push_out();
    check(memory, BIG, 1);
}

static void keep_paging(char *memory, unsigned seed) {
    check(memory, BIG, seed);
    fill(memory, BIG, seed + 1);
}

static void close_everything(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    int low = dup(0);
    CHECK(low > 2);
    CHECK(close_range(3, ~0U, 0) == 0);
    CHECK(fcntl(low, F_GETFD) < 0 && errno == EBADF);
    keep_paging(memory, 1);
    closefrom(3);
    keep_paging(memory, 2);
    for (int fd = 3; fd < 5000; fd++)
        close(fd);
    keep_paging(memory, 3);
    /* Files opened now work, whatever their numbers. */
    for (int i = 0; i < 100; i++)
        CHECK(open("/dev/zero", O_RDONLY) >= 3);
    keep_paging(memory, 4);
    pid_t child = fork();
    if (child == 0) {
        closefrom(3);
        check(memory, BIG, 5);
        fill(memory, BIG, 6);
        check(memory, BIG, 6);
        _exit(0);
    }
    reap(child);
    keep_paging(memory, 5);
}

static void dup_over_everything(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    int zero = open("/dev/zero", O_RDONLY);
    for (int fd = 10; fd < 900; fd++)
        dup2(zero, fd);
    keep_paging(memory, 1);
    keep_paging(memory, 2);
}

/* A daemon: the parent is gone, the standard streams too. */
static void become_a_daemon(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(daemon(1, 0) == 0);
        check(memory, BIG, 1);
        fill(memory, BIG, 2);
        check(memory, BIG, 2);
        CHECK(write(ends[1], "y", 1) == 1);
        _exit(0);
    }
    reap(child);
    close(ends[1]);
    char answer = 0;
    CHECK(read(ends[0], &answer, 1) == 1 && answer == 'y');
    check(memory, BIG, 1);
}

static volatile int ticks;

static void on_tick(int signal) {
    (void)signal;
    ticks++;
}

/* Signals that interrupt faults, handled on a stack that is swapped out. */
static void signals(void) {
    stack_t stack = {.ss_sp = malloc(64 * 1024), .ss_size = 64 * 1024};
    CHECK(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_ONSTACK | SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerspec every = {{0, 2000000}, {0, 2000000}};
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0);
    CHECK(timer_settime(timer, 0, &every, NULL) == 0);
    char *memory = map(BIG);
    for (int round = 0; round < 4; round++) {
        fill(memory, BIG, round);
        check(memory, BIG, round);
    }
    CHECK(ticks > 10);
}

static const struct test TESTS[] = {
    {"read_and_write", read_and_write},
    {"send_and_receive", send_and_receive},
    {"vmsplice_then_swap", vmsplice_then_swap},
    {"zero_copy_then_swap", zero_copy_then_swap},
    {"small_structures", small_structures},
    {"standard_io", standard_io},
    {"write_from_outside", write_from_outside},
    {"limits", limits},
    {"room", room},
    {"close_everything", close_everything},
    {"dup_over_everything", dup_over_everything},
    {"become_a_daemon", become_a_daemon},
    {"signals", signals},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
