/*
 * Does all that a gate has to get right, in threads that check themselves, until its input ends: signals with and without a
 * stack of their own, masks, jumps out of handlers, faults, waits with masks and with times, children of all kinds,
 * cancellation, floating point numbers across signals.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

extern char **environ;
static atomic_int wrong, over;

#define MUST(what)                                                                                \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            wrong++;                                                                              \
            dprintf(2, "signals.c:%d: %s (errno %d)\n", __LINE__, #what, errno);                  \
        }                                                                                         \
    } while (0)

#define MUST_BE(what, value)                                                                      \
    do {                                                                                          \
        if ((what) != (value)) {                                                                  \
            wrong++;                                                                              \
            dprintf(2, "signals.c:%d: %s is %#x\n", __LINE__, #what, what);                       \
        }                                                                                         \
    } while (0)

static __thread volatile sig_atomic_t came;
static __thread volatile int on_stack;
static __thread char *own_stack;
static __thread sigjmp_buf back;
enum { STACK_BYTES = 1 << 16 };

static void handler(int signal, siginfo_t *info, void *context) {
    char here;
    int before = errno;
    double x = 1.5;
    for (int n = 0; n < 10; n++)
        x *= 1.25;
    (void)signal, (void)info, (void)context;
    on_stack = own_stack && &here >= own_stack && &here < own_stack + STACK_BYTES;
    getppid();
    came += x > 0;
    errno = before;
}

static void ignore(int signal) { (void)signal; }

static void jump(int signal, siginfo_t *info, void *context) {
    if (!own_stack) {
        const greg_t *now = ((ucontext_t *)context)->uc_mcontext.gregs;
        dprintf(2, "signal %d: %p, touched at %llx, rsp %llx\n", signal, info->si_addr, now[REG_RIP], now[REG_RSP]);
        abort();
    }
    siglongjmp(back, info->si_addr == (void *)8 ? 8 : 1);
}

static void tell_self(int signal) { syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal); }

static void *signals(void *unused) {
    own_stack = malloc(STACK_BYTES);
    stack_t new = {.ss_sp = own_stack, .ss_size = STACK_BYTES}, old;
    MUST(sigaltstack(&new, NULL) == 0);
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    while (!over) {
        double a = 1.25, b = 2.5;
        int before = came;
        a += b;
        tell_self(SIGUSR1);
        MUST(came == before + 1 && on_stack && a * 2 == 7.5);
        MUST(sigaltstack(NULL, &old) == 0 && old.ss_sp == own_stack && old.ss_flags == 0);

        sigset_t set, mask, now;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1), sigaddset(&set, SIGSYS), sigaddset(&set, SIGSEGV);
        MUST(pthread_sigmask(SIG_BLOCK, &set, &mask) == 0);
        before = came;
        tell_self(SIGUSR1), tell_self(SIGUSR1);
        MUST(came == before);
        sigpending(&now);
        MUST(sigismember(&now, SIGUSR1) && !sigismember(&now, SIGUSR2));
        pthread_sigmask(0, NULL, &now);
        MUST(sigismember(&now, SIGSYS) && sigismember(&now, SIGSEGV) && sigismember(&now, SIGUSR1));
        sigdelset(&now, SIGUSR1);
        MUST(sigsuspend(&now) == -1 && errno == EINTR && came == before + 1);
        struct timespec soon = {0, 200000};
        MUST(ppoll(NULL, 0, &soon, &now) == 0 || errno == EINTR);
        pthread_sigmask(SIG_SETMASK, &mask, NULL);
        pthread_sigmask(0, NULL, &now);
        MUST(!sigismember(&now, SIGSYS) && !sigismember(&now, SIGSEGV));

        switch (sigsetjmp(back, 1)) {
        case 0:
            *(volatile int *)8 = 1;
            MUST(!"a fault");
            break;
        case 8: break;
        default: MUST(!"where");
        }
        struct sigaction action;
        MUST(sigaction(SIGUSR1, NULL, &action) == 0 && action.sa_sigaction == handler);
        MUST(sigaction(SIGSEGV, NULL, &action) == 0 && action.sa_sigaction == jump);
        MUST(sigaction(SIGSYS, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
    }
    return unused;
}

static void *add_one(void *number) { return (void *)((long)number + 1); }

static void *threads(void *unused) {
    while (!over) {
        pthread_t made[4];
        for (long n = 0; n < 4; n++)
            MUST(pthread_create(&made[n], NULL, add_one, (void *)n) == 0);
        for (long n = 0; n < 4; n++) {
            void *result;
            MUST(pthread_join(made[n], &result) == 0 && result == (void *)(n + 1));
        }
    }
    return unused;
}

static void be_a_child(int to) {
    pthread_t thread;
    void *result;
    char text[] = "right";
    if (pthread_create(&thread, NULL, add_one, (void *)41) || pthread_join(thread, &result) || result != (void *)42)
        _exit(9);
    signal(SIGUSR2, ignore);
    if (raise(SIGUSR2) || signal(SIGUSR2, SIG_DFL) != ignore)
        _exit(8);
    if (write(to, text, sizeof text) != sizeof text)
        _exit(7);
    _exit(5);
}

static void *forks(void *unused) {
    while (!over) {
        int ends[2], status;
        char text[6] = "";
        MUST(pipe(ends) == 0);
        pid_t child = fork();
        if (child == 0)
            be_a_child(ends[1]);
        MUST(child > 0 && read(ends[0], text, sizeof text) == sizeof text && !strcmp(text, "right"));
        MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
        close(ends[0]), close(ends[1]);
    }
    return unused;
}

static void *spawns(void *unused) {
    char *arguments[] = {"true", NULL};
    while (!over) {
        pid_t child;
        int status;
        MUST(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0);
        MUST(waitpid(child, &status, 0) == child && status == 0);
        if ((child = vfork()) == 0) {
            getppid();
            execl("/bin/false", "false", NULL);
            _exit(9);
        }
        MUST(waitpid(child, &status, 0) == child);
        MUST_BE(status, 1 << 8);
    }
    return unused;
}

static void *pipes(void *unused) {
    int ends[2];
    char out[100], in[100];
    for (int n = 0; n < 100; n++)
        out[n] = n;
    MUST(pipe(ends) == 0);
    while (!over) {
        memset(in, 0, sizeof in);
        MUST(write(ends[1], out, sizeof out) == sizeof out);
        MUST(read(ends[0], in, sizeof in) == sizeof in && !memcmp(in, out, sizeof in));
    }
    return unused;
}

static sem_t turns[2];

static void *takes_turns(void *which) {
    long own = (long)which;
    while (!over) {
        while (sem_wait(&turns[own]) && errno == EINTR)
            ;
        sem_post(&turns[1 - own]);
    }
    sem_post(&turns[1 - own]);
    return NULL;
}

static long passed_ns(const struct timespec *since) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - since->tv_sec) * 1000000000L + now.tv_nsec - since->tv_nsec;
}

static void *sleeps(void *unused) {
    while (!over) {
        struct timespec start, rest = {0, 5000000};
        clock_gettime(CLOCK_MONOTONIC, &start);
        while (nanosleep(&rest, &rest) && errno == EINTR)
            ;
        MUST(passed_ns(&start) >= 4900000);
    }
    return unused;
}

/* Signals come to the others: this one is not interrupted, unless somebody else does it. */
static void *waits_long(void *unused) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    while (!over) {
        struct timespec start, rest = {0, 50000000};
        clock_gettime(CLOCK_MONOTONIC, &start);
        MUST(nanosleep(&rest, NULL) == 0);
        MUST(passed_ns(&start) >= 50000000);
        clock_gettime(CLOCK_MONOTONIC, &start);
        MUST(poll(NULL, 0, 50) == 0);
        MUST(passed_ns(&start) >= 50000000);
    }
    return unused;
}

static void *computes(void *unused) {
    double expected = 0;
    while (!over) {
        double sum = 0;
        for (int n = 1; n < 20000; n++)
            sum += 1.0 / n;
        MUST(expected == 0 || sum == expected);
        expected = sum;
    }
    return unused;
}

static void *pauses(void *unused) {
    for (;;)
        pause();
    return unused;
}

static void *cancels(void *unused) {
    while (!over) {
        pthread_t thread;
        void *result;
        MUST(pthread_create(&thread, NULL, pauses, NULL) == 0);
        usleep(100);
        MUST(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    return unused;
}

static void catch(int signal, void (*how)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = how, .sa_flags = SA_SIGINFO | flags};
    MUST(sigaction(signal, &action, NULL) == 0);
}

int main(void) {
    void *(*kinds[])(void *) = {signals, signals, threads, forks, spawns, pipes, sleeps, waits_long, computes, cancels};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    pthread_t made[KINDS + 2];
    catch(SIGUSR1, handler, SA_ONSTACK);
    catch(SIGSEGV, jump, 0);
    catch(SIGALRM, handler, SA_RESTART);
    struct itimerval often = {{0, 3000}, {0, 3000}};
    setitimer(ITIMER_REAL, &often, NULL);
    sem_init(&turns[0], 0, 1), sem_init(&turns[1], 0, 0);
    for (int n = 0; n < KINDS; n++)
        MUST(pthread_create(&made[n], NULL, kinds[n], NULL) == 0);
    for (long n = 0; n < 2; n++)
        MUST(pthread_create(&made[KINDS + n], NULL, takes_turns, (void *)n) == 0);
    puts("busy");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) != 0)
        ;
    over = 1;
    for (int n = 0; n < KINDS + 2; n++)
        pthread_join(made[n], NULL);
    puts(wrong ? "wrong" : "right");
    return wrong != 0;
}
