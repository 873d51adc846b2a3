/* The allocator as programs know it from libc, and plugins that bring their own view of it. */
#include "common.h"
#include <dlfcn.h>
#include <malloc.h>

static int is_aligned(const void *block, size_t align) {
    return block && (uintptr_t)block % align == 0;
}

static void alignments(void) {
    for (size_t bytes = 0; bytes < 300; bytes++) {
        CHECK(is_aligned(malloc(bytes), 16));
        CHECK(is_aligned(calloc(1, bytes), 16));
        CHECK(is_aligned(realloc(malloc(1), bytes + 1), 16));
        CHECK(is_aligned(reallocarray(NULL, bytes, 1), 16));
    }
    for (size_t align = 1; align <= 4 * MIB; align *= 2) {
        char *block = memalign(align, 100), *between = memalign(align + align / 2, 100);
        CHECK(is_aligned(block, align < 16 ? 16 : align));
        /* Rounded up to the next power of two. */
        CHECK(is_aligned(between, align < 2 ? 16 : 2 * align));
        memset(block, 1, 100);
        memset(between, 1, 100);
        CHECK(malloc_usable_size(block) >= 100);
        free(block);
        free(between);
    }
    CHECK(memalign(SIZE_MAX / 2 + 2, 1) == NULL && errno == EINVAL);
    CHECK(memalign(0, 10) != NULL && memalign(24, 100) != NULL);
    void *block = NULL;
    CHECK(posix_memalign(&block, 24, 100) == EINVAL && posix_memalign(&block, 4, 100) == EINVAL);
    CHECK(posix_memalign(&block, 8, 100) == 0 && is_aligned(block, 16));
    CHECK(is_aligned(valloc(100), PAGE) && is_aligned(pvalloc(100), PAGE));
    CHECK(malloc_usable_size(pvalloc(PAGE + 1)) >= 2 * PAGE);
}

static void sizes(void) {
    /* Not known to the compiler. */
    volatile size_t half = SIZE_MAX / 2;
    CHECK(malloc_usable_size(NULL) == 0);
    CHECK(calloc(half, 3) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(reallocarray(NULL, half, 3) == NULL && errno == ENOMEM);
    char *zeros = calloc(1, 3);
    CHECK(zeros[0] == 0 && zeros[2] == 0);
    CHECK(realloc(malloc(10), 0) == NULL);
    for (int round = 0; round < 100; round++) {
        char *small = calloc(7, 1);
        for (size_t i = 0; i < malloc_usable_size(small) && i < 7; i++)
            CHECK(small[i] == 0);
        memset(small, 1, malloc_usable_size(small));
        free(small);
    }
}

/* Much more than is in memory, and the questions are still answered. */
static void questions(void) {
    char *blocks[BIG / MIB];
    for (size_t i = 0; i < BIG / MIB; i++) {
        blocks[i] = malloc(MIB);
        memset(blocks[i], i, MIB);
    }
    struct mallinfo2 info = mallinfo2();
    CHECK(info.uordblks + info.hblkhd >= BIG);
    for (size_t i = 0; i < BIG / MIB; i++) {
        CHECK(blocks[i][0] == (char)i && blocks[i][MIB - 1] == (char)i);
        free(blocks[i]);
    }
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1 && mallopt(M_ARENA_MAX, 2) == 1);
    int trimmed = malloc_trim(0);
    CHECK(trimmed == 0 || trimmed == 1);
    CHECK(malloc_info(1, stdout) != 0);
    FILE *file = tmpfile();
    CHECK(file && malloc_info(0, file) == 0 && ftell(file) > 0);
    rewind(file);
    char line[100];
    CHECK(fgets(line, sizeof line, file) && strncmp(line, "<malloc version", 15) == 0);
    malloc_stats();
}

/* Objects opened with RTLD_DEEPBIND get the program's blocks and give theirs. */
static void deepbind(void) {
    void *plugin = dlopen("./plugin.so", RTLD_NOW | RTLD_DEEPBIND);
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        _exit(1);
    }
    char *(*give)(const char *) = (char *(*)(const char *))dlsym(plugin, "plugin_give");
    void (*take)(char *) = (void (*)(char *))dlsym(plugin, "plugin_take");
    CHECK(give && take);
    for (int i = 0; i < 1000; i++) {
        take(malloc(100 + i));
        free(give("a plugin's text"));
        char *block = realloc(give("short"), 5000);
        CHECK(strcmp(block, "short") == 0);
        take(block);
    }
    fill(map(BIG), BIG, 1);
    CHECK(dlopen("./no-such-object.so", RTLD_NOW | RTLD_DEEPBIND) == NULL && dlerror());
    /* A namespace of its own, with a libc of its own. */
    void *apart = dlmopen(LM_ID_NEWLM, "./plugin.so", RTLD_NOW);
    CHECK(apart);
    give = (char *(*)(const char *))dlsym(apart, "plugin_give");
    take = (void (*)(char *))dlsym(apart, "plugin_take");
    for (int i = 0; i < 1000; i++) {
        char *text = give("a text of another libc");
        CHECK(strcmp(text, "a text of another libc") == 0);
        take(text);
    }
}

static const struct test TESTS[] = {
    {"alignments", alignments},
    {"sizes", sizes},
    {"questions", questions},
    {"deepbind", deepbind},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
