/* Memory of the kinds that are outside the limit, and programs that start others. */
#include "common.h"
#include <spawn.h>

#define LARGE (64 * MIB)

extern char **environ;
#ifdef LIKE_GO
/* By a section of this name a Go program is known. */
__attribute__((used, section(".go.buildinfo"))) static int version = 1;
#endif

static char zeros[LARGE];
static char values[LARGE / 2] = {1};

static int starts(const char *how, char *program) {
    char *words[] = {program, "none", "3", "4", "5", "6", "7", "8", NULL};
    pid_t child;
    if (strcmp(how, "execl") == 0)
        execl(program, program, "none", "3", "4", "5", "6", "7", "8", (char *)NULL);
    if (strcmp(how, "execlp") == 0)
        execlp(program, program, "none", "3", "4", "5", "6", "7", "8", (char *)NULL);
    if (strcmp(how, "execle") == 0)
        execle(program, program, "none", "3", "4", "5", "6", "7", "8", (char *)NULL, environ);
    if (strcmp(how, "execv") == 0)
        execv(program, words);
    if (strcmp(how, "execvp") == 0)
        execvp(program, words);
    if (strcmp(how, "spawn") == 0)
        CHECK(posix_spawn(&child, program, NULL, NULL, words, environ) == 0);
    else
        CHECK(posix_spawnp(&child, program, NULL, NULL, words, environ) == 0);
    reap(child);
    return 0;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "none";
    if (strcmp(how, "none") == 0)
        /* All arguments have come through. */
        return argc > 2 && (argc != 8 || strcmp(argv[7], "8") != 0);
    if (strcmp(how, "bss") == 0)
        fill(zeros, LARGE, 1);
    else if (strcmp(how, "data") == 0)
        fill(values, LARGE / 2, 1);
    else if (strcmp(how, "brk") == 0)
        fill((char *)(((uintptr_t)sbrk(LARGE) + PAGE) / PAGE * PAGE), LARGE - PAGE, 1);
    else if (strcmp(how, "shared") == 0)
        fill(mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), LARGE, 1);
    else if (strcmp(how, "managed") == 0)
        fill(map(LARGE / 2), LARGE / 2, 1);
    else
        return starts(how, argv[2]);
    /* As shells end. */
    _exit(0);
}
