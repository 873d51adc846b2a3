// Four threads work and check themselves until their input ends: sums over memory that they fill,
// registers and vector registers that must keep their values, a lock, and signals to each other.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, WORDS = 1 << 14 };
static atomic_int ends, handled;
static atomic_long rounds;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long shared[2];
static pthread_t threads[THREADS];

static void fail(const char *what) { printf("wrong: %s\n", what), fflush(stdout), _exit(1); }
static void handler(int signal) { (void)signal, handled++; }

static void check_memory(unsigned long seed) {
	unsigned long *words = mmap(0, WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (words == MAP_FAILED) fail("mmap");
	for (unsigned long i = 0; i < WORDS; i++) words[i] = seed * 31 + i * i;
	for (unsigned long i = 0; i < WORDS; i++) if (words[i] != seed * 31 + i * i) fail("memory");
	if (munmap(words, WORDS * 8)) fail("munmap");
}

static void check_floats(void) {
	double sums[8] = { 0 };
	for (int i = 1; i <= 5000; i++) for (int k = 0; k < 8; k++) sums[k] += i * (k + 1);
	for (int k = 0; k < 8; k++) if (sums[k] != 12502500.0 * (k + 1)) fail("floats");
}

static void check_lock(void) {
	pthread_mutex_lock(&lock);
	shared[0]++, check_floats(), shared[1]++;
	if (shared[0] != shared[1]) fail("lock");
	pthread_mutex_unlock(&lock);
}

static void check_errors(void) {
	errno = 0;
	if (close(-1) != -1 || errno != EBADF) fail("errno");
	sigset_t mask;
	pthread_sigmask(SIG_BLOCK, 0, &mask);
	for (int signal = 1; signal < 32; signal++) if (sigismember(&mask, signal)) fail("signal mask");
}

static void *run(void *number) {
	long i = (long)number;
	for (unsigned long round = i; !ends; round++) {
		check_memory(round), check_lock(), check_errors(), rounds++;
		pthread_kill(threads[(i + 1) % THREADS], SIGUSR1);
		struct timespec wait = { 0, 100000 };
		if (round % 8 == 0) nanosleep(&wait, 0);
	}
	return 0;
}

int main(void) {
	char byte;
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	sigaction(SIGUSR1, &action, 0);
	sigset_t set;
	sigemptyset(&set), sigaddset(&set, SIGUSR1);
	for (long i = 0; i < THREADS; i++) threads[i] = pthread_self();
	for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, (void *)i);
	puts("busy"), fflush(stdout);
	if (read(0, &byte, 1) != 0) fail("read");
	ends = 1;
	for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
	if (rounds < THREADS || handled == 0) fail("nothing was done");
	puts("right");
	return 0;
}
