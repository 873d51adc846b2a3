/* Runs a program as the first process of a container might: orphans become its children, and it
 * does not know of them. Prints how many there are when the program has ended. */
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words) {
    (void)count;
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return 1;
    pid_t program = fork();
    if (program == 0) {
        execvp(words[1], words + 1);
        _exit(127);
    }
    int status;
    if (waitpid(program, &status, 0) != program || status != 0)
        return 1;
    int orphans = 0;
    while (waitpid(-1, &status, __WALL) > 0)
        orphans++;
    printf("%d\n", orphans);
    return 0;
}
