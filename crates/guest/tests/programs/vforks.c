// One thread waits in vfork until its child, which has the same memory, has read a byte; another
// waits for ever.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void *sleeps(void *unused) { for (;;) pause(); return unused; }

int main(void) {
	pthread_t sleeper;
	char byte;
	pthread_create(&sleeper, 0, sleeps, 0);
	puts("vfork"), fflush(stdout);
	pid_t child = vfork();
	if (!child) _exit(read(0, &byte, 1) == 1 ? 0 : 1);
	if (waitpid(child, 0, 0) != child) return 1;
	puts("back"), fflush(stdout);
	while (read(0, &byte, 1) == 1);
	return 0;
}
