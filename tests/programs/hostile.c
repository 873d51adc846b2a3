/* A program that does all it can to its keeper: it takes its agent over, and races whatever is done to its memory. What it does
 * depends on the variable SEED. Whoever starts it kills it, and all that it has forked, in the end: where it has spoiled a gate it may
 * run for ever with all other signals blocked. */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define MEMORY (48 * MIB)
#define THREADS 3
#define AGENT_CODE (3 * PAGE)

static char *memory;

#ifdef __x86_64__
/* What the agent does from now on: it says what comes to its mind to whoever listens. It is copied, so it calls nothing. */
__attribute__((naked, used, section(".text.taken"))) static void taken(void) {
    __asm__ volatile(
        "lea -8192(%rsp), %rsi\n"
        "and $-4096, %rsi\n"
        "rdtsc\n"
        "mov %eax, %r12d\n"
        "or $1, %r12\n"
        "xor %r13d, %r13d\n"
        "1: mov %r12, %rax\n"
        "shl $13, %rax\n"
        "xor %rax, %r12\n"
        "mov %r12, %rax\n"
        "shr $7, %rax\n"
        "xor %rax, %r12\n"
        "mov %r12, %rax\n"
        "shl $17, %rax\n"
        "xor %rax, %r12\n"
        /* An answer of a size that there is, mostly: few words of it are more than small numbers. */
        "xor %ecx, %ecx\n"
        "2: mov %r12, %rax\n"
        "rol %cl, %rax\n"
        "and $0x1f, %eax\n"
        "test $7, %cl\n"
        "jnz 3f\n"
        "mov %r12, %rax\n"
        "3: mov %rax, (%rsi,%rcx,8)\n"
        "inc %ecx\n"
        "cmp $67, %ecx\n"
        "jb 2b\n"
        "mov %r12, %rdx\n"
        "and $0x3ff, %edx\n"
        "test $3, %r12b\n"
        "jz 4f\n"
        "mov $536, %edx\n"
        "4: mov %r13d, %edi\n"
        "inc %r13d\n"
        "and $15, %r13d\n"
        "mov $0x4040, %r10d\n"
        "xor %r8d, %r8d\n"
        "xor %r9d, %r9d\n"
        "mov $44, %eax\n"
        "syscall\n"
        "jmp 1b\n"
        ".globl taken_end\n"
        "taken_end:\n");
}
extern char taken_end[];
#endif

/* Looks for code in nobody's file: an agent's, or a gate's. */
static int find_code(char **start, size_t *bytes) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    int is_found = 0;
    while (maps != NULL && !is_found && fgets(line, sizeof line, maps) != NULL) {
        unsigned long first, end, inode;
        char rights[8];
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &first, &end, rights, &inode) == 4)
            is_found = rights[2] == 'x' && inode == 0 && strchr(line, '[') == NULL;
        if (is_found)
            *start = (char *)first, *bytes = end - first;
    }
    if (maps != NULL)
        fclose(maps);
    return is_found;
}

static void take_over(uint64_t chance) {
    char *code;
    size_t bytes;
    while (!find_code(&code, &bytes))
        usleep(1000);
    usleep(chance % 300000);
    if (mprotect(code, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        return;
    size_t most = bytes < AGENT_CODE ? bytes : AGENT_CODE;
    switch (chance >> 32 & 3) {
#ifdef __x86_64__
    case 0:
    case 1: {
        size_t length = taken_end - (char *)taken;
        memset(code, 0x90, most - length);
        memcpy(code + most - length, (char *)taken, length);
        break;
    }
#endif
    case 2:
        for (int n = 0; n < 64; n++)
            code[next(&chance) % bytes] = next(&chance);
        break;
    default:
        munmap(code + chance % bytes / PAGE * PAGE, PAGE);
    }
}

static void in_a_child(uint64_t what) {
    pid_t child = fork();
    if (child != 0) {
        usleep(what >> 40 & 0xfff);
        return;
    }
    switch (what & 3) {
    case 0:
        syscall(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID);
        break;
    case 1:
        prctl(PR_SET_DUMPABLE, 0);
        break;
    case 2:
        execl("/proc/self/exe", "hostile", "rests", (char *)NULL);
        _exit(0);
    default:
        take_over(what);
    }
    for (size_t at = 0; at < MEMORY; at += 7 * PAGE)
        memory[at]++;
    _exit(0);
}

/* Where a thread goes on that has touched what another one has made inaccessible. */
static __thread sigjmp_buf again;
static void goes_on(int signal) { siglongjmp(again, signal); }

static void *races(void *argument) {
    static _Atomic uint64_t turn;
    sigsetjmp(again, 1);
    for (;;) {
        uint64_t state = (uint64_t)argument + ++turn * 0x9e3779b97f4a7c15u;
        uint64_t chance = next(&state);
        size_t pages = 1 + (chance >> 8) % 600;
        char *place = memory + (chance >> 20) % (MEMORY / PAGE - pages) * PAGE;
        size_t bytes = pages * PAGE;
        switch (chance & 15) {
        case 0:
        case 1:
            madvise(place, bytes, MADV_DONTNEED);
            break;
        case 2:
            mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            break;
        case 3: {
            void *elsewhere = mremap(place, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
            if (elsewhere != MAP_FAILED)
                munmap(elsewhere, bytes);
            break;
        }
        case 4:
            mprotect(place, bytes, PROT_NONE);
            mprotect(place, bytes, PROT_READ | PROT_WRITE);
            break;
        case 5:
            prctl(PR_SET_DUMPABLE, chance >> 60 & 1);
            break;
        case 6:
            if ((chance >> 56) == 0)
                in_a_child(next(&state));
            break;
        default:
            for (size_t at = 0; at < bytes; at += PAGE)
                *(volatile char *)(place + at) += 1;
        }
    }
    return NULL;
}

static void does_all_it_can(void) {
    pthread_t thread;
    const char *text = getenv("SEED");
    uint64_t seed = (text ? strtoull(text, NULL, 10) : 1) * 0x9e3779b97f4a7c15u | 1;
    /* It is not to harm the machine. */
    CHECK(getuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0));
    memory = map(MEMORY);
    fill(memory, MEMORY, seed);
    CHECK(signal(SIGSEGV, goes_on) != SIG_ERR && signal(SIGBUS, goes_on) != SIG_ERR);
    CHECK(signal(SIGCHLD, SIG_IGN) != SIG_ERR);
    for (uint64_t n = 0; n < THREADS; n++)
        CHECK(pthread_create(&thread, NULL, races, (void *)(next(&seed) + n)) == 0);
    const uint64_t whether = next(&seed), how = next(&seed);
    if (sigsetjmp(again, 1) == 0 && whether % 4 != 0)
        take_over(how);
    pause();
}

static void rests(void) { usleep(100000); }

static const struct test tests[] = {
    {"does_all_it_can", does_all_it_can},
    {"rests", rests},
};

int main(int argc, char **argv) {
    return run_test(tests, sizeof tests / sizeof *tests, argc, argv);
}
