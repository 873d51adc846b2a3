// Eight threads wait in eight calls, each for 400 ms or until told, and say what it returned.
// Then the first thread prints one line for each: the call, its result, whether it took as long as
// it should.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 400, THREADS = 9 };
static int pipes[2], listener, word;
static const struct timespec wait_time = { 0, WAIT_MS * 1000000L };

static long sleeps(void) { struct timespec left; return nanosleep(&wait_time, &left); }
static long polls(void) { return poll(0, 0, WAIT_MS); }
static long ppolls(void) { return ppoll(0, 0, &wait_time, 0); }
static long waits_word(void) { return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &wait_time, 0, 0); }
static long reads(void) { char byte; return read(pipes[0], &byte, 1); }
static long accepts(void) { return accept(listener, 0, 0) >= 0; }
static long clock_sleeps(void) {
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += WAIT_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L, until.tv_nsec %= 1000000000L;
	return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
}
static long epolls(void) {
	struct epoll_event event;
	return epoll_wait(epoll_create1(0), &event, 1, WAIT_MS);
}
static long sigwaits(void) {
	sigset_t set;
	sigemptyset(&set), sigaddset(&set, SIGUSR1);
	return sigtimedwait(&set, 0, &wait_time);
}

// Those in the last two are repeated with their whole timeout, which may be longer than it was.
static const struct { const char *name; long (*call)(void); int starts_anew; } calls[THREADS] = {
	{ "nanosleep", sleeps, 0 }, { "poll", polls, 0 }, { "ppoll", ppolls, 0 },
	{ "futex", waits_word, 0 }, { "read", reads, 0 }, { "accept", accepts, 0 },
	{ "clock_nanosleep", clock_sleeps, 0 }, { "epoll_wait", epolls, 1 },
	{ "sigtimedwait", sigwaits, 1 },
};
static char results[THREADS][100];

static long now_ms(void) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void *run(void *number) {
	long i = (long)number, start = now_ms();
	errno = 0;
	long result = calls[i].call();
	int error = errno;
	long took = now_ms() - start, longest = calls[i].starts_anew ? 3 * WAIT_MS : WAIT_MS + 300;
	const char *time = took < WAIT_MS - 1 ? "too short" : took > longest ? "too long" : "in time";
	snprintf(results[i], sizeof results[i], "%s: %ld, %s, %s", calls[i].name, result,
		 result < 0 ? strerror(error) : "no error", time);
	return 0;
}

int main(void) {
	pthread_t threads[THREADS];
	sigset_t set;
	struct sockaddr_un name = { AF_UNIX, "" };
	socklen_t size = sizeof(sa_family_t);
	sigemptyset(&set), sigaddset(&set, SIGUSR1), pthread_sigmask(SIG_BLOCK, &set, 0);
	if (pipe(pipes)) return 1;
	listener = socket(AF_UNIX, SOCK_STREAM, 0);
	bind(listener, (struct sockaddr *)&name, size), listen(listener, 1);
	size = sizeof name, getsockname(listener, (struct sockaddr *)&name, &size);
	for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, (void *)i);
	puts("waiting"), fflush(stdout);
	struct timespec longer = { 0, (WAIT_MS + 100) * 1000000L };
	nanosleep(&longer, 0);
	int client = socket(AF_UNIX, SOCK_STREAM, 0);
	if (write(pipes[1], "x", 1) != 1 || connect(client, (struct sockaddr *)&name, size)) return 1;
	for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0), puts(results[i]);
	return 0;
}
