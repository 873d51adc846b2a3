/* What a program that filters its own calls, or asks whether it could, may still do. */
#include "common.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* Numbers where other calls of the same name have addresses; addresses that are none; and some that are. */
static void calls_of_all_kinds(void) {
    int ends[2];
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    char name[16] = "", *memory = malloc(1 << 20);
    static const char constant[4096];
    CHECK(pipe(ends) == 0);
    CHECK(fcntl(0, F_SETFD, 1) == 0 && fcntl(0, F_SETFD, 0) == 0);
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) == 1 << 20);
    CHECK(prctl(PR_SET_TIMERSLACK, 1000000, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_GET_NAME, name, 0, 0, 0) == 0 && strcmp(name, "filters") == 0);
    CHECK(fcntl(fileno(tmpfile()), F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
    CHECK(prctl(PR_GET_NAME, 0x7000, 0, 0, 0) == -1 && errno == EFAULT);
    struct iovec vectors[] = {{memory, 4}, {(void *)constant, 4}};
    memcpy(memory, "abcd", 4);
    CHECK(writev(ends[1], vectors, 2) == 8);
    CHECK(writev(ends[1], (void *)0x7000, 2) == -1 && errno == EFAULT);
    CHECK(read(ends[0], memory + 4096, 8) == 8 && memcmp(memory + 4096, "abcd\0\0\0", 8) == 0);
    CHECK(write(ends[1], "x", 1) == 1);
    CHECK(read(ends[0], (void *)constant, 1) == -1 && errno == EFAULT);
    free(memory);
}

int main(void) {
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {1, code};
    /* Twice the limit. */
    const size_t count = 32 * MIB / sizeof(uint64_t);
    uint64_t *words = malloc(count * sizeof *words);
    for (size_t n = 0; n < count; n++)
        words[n] = n;
    calls_of_all_kinds();
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) == -1);
    CHECK(errno == EFAULT);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) == -1 && errno == EFAULT);
    calls_of_all_kinds();
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0);
    calls_of_all_kinds();
    for (size_t n = 0; n < count; n++)
        CHECK(words[n] == n);
    puts("ok");
    return 0;
}
