// One thread waits for any child, of any kind, while there is one; the other reads lines and says
// them again. The child ends with the input.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t child;
static void *waits(void *unused) {
	int status;
	pid_t ended = waitpid(-1, &status, __WALL);
	printf("%s ended: %d\n", ended == child ? "the child" : "another", WEXITSTATUS(status));
	if (waitpid(-1, &status, __WALL) != -1 || errno != ECHILD) puts("there are more");
	return unused;
}

int main(void) {
	int ends[2];
	char line[100], byte;
	pthread_t waiter;
	if (pipe(ends)) return 1;
	if (!(child = fork())) close(ends[1]), _exit(read(ends[0], &byte, 1) == 0 ? 7 : 1);
	close(ends[0]);
	pthread_create(&waiter, 0, waits, 0);
	while (fgets(line, sizeof line, stdin)) fputs(line, stdout), fflush(stdout);
	close(ends[1]);
	pthread_join(waiter, 0);
	return 0;
}
