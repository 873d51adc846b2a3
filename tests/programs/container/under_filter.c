/* under_filter FILE COMMAND [ARG]...: runs a command under the filter in FILE, which docker_seccomp.py has written. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
    static struct sock_filter filter[BPF_MAXINSNS];
    int file = argc > 2 ? open(argv[1], O_RDONLY) : -1;
    ssize_t bytes = read(file, filter, sizeof filter);
    if (bytes <= 0) {
        fprintf(stderr, "under_filter FILE COMMAND [ARG]...\n");
        return 125;
    }
    close(file);
    struct sock_fprog program = {.len = (unsigned short)(bytes / sizeof *filter), .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("a filter");
        return 125;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
