/*
 * Touches memory and checks every byte it can: the same program under kernel swap and under
 * overspill. Each page carries its number and how often it was written.
 *
 *   touch random|read|modify THREADS MIB SECONDS
 *
 * random: pages at random, one access in five a read, the rest writes. read: pages in order, the whole
 * page is summed. modify: pages in order, the whole page is read and one word written. The sequential
 * modes count bytes, random counts accesses; both after one pass that fills the memory.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static uint64_t *memory;
static size_t pages;
static int threads;
static double seconds;
static char mode;
static pthread_barrier_t filled;

struct worker {
    pthread_t thread;
    int number;
    uint64_t accesses;
    double elapsed;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Half of each page is noise, so that it compresses to about a half. */
static void fill(size_t page) {
    uint64_t *p = memory + page * WORDS, noise = page * 0x9e3779b97f4a7c15u + 1;
    p[0] = page;
    p[1] = 0;
    for (int i = 2; i < WORDS; i++) {
        noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
        p[i] = i % 2 ? noise : page;
    }
}

static void check(size_t page) {
    uint64_t *p = memory + page * WORDS;
    if (p[0] != page || p[2] != page || p[WORDS - 2] != page) {
        fprintf(stderr, "touch: page %zu holds %lu, %lu, %lu\n", page, p[0], p[2], p[WORDS - 2]);
        abort();
    }
}

static uint64_t sum(size_t page) {
    uint64_t *p = memory + page * WORDS, total = 0;
    for (int i = 0; i < WORDS; i++) total += p[i];
    return total;
}

static void *work(void *arg) {
    struct worker *w = arg;
    size_t mine = pages / threads, first = mine * w->number;
    for (size_t i = 0; i < mine; i++) fill(first + i);
    pthread_barrier_wait(&filled);
    uint64_t state = w->number + 1, n = 0;
    volatile uint64_t sink = 0;
    double start = now(), end = start + seconds;
    for (size_t at = 0;; n++, at = (at + 1) % mine) {
        if (n % 64 == 0 && now() > end) break;
        size_t page = first + at;
        if (mode == 'r') {
            state = state * 6364136223846793005u + 1442695040888963407u;
            page = first + (state >> 33) % mine;
            if ((state >> 20) % 5 != 0) memory[page * WORDS + 1]++;
        } else {
            sink += sum(page);
            if (mode == 'm') memory[page * WORDS + 1]++;
        }
        check(page);
    }
    w->accesses = n;
    w->elapsed = now() - start;
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: touch random|read|modify THREADS MIB SECONDS\n");
        return 2;
    }
    mode = strcmp(argv[1], "random") == 0 ? 'r' : strcmp(argv[1], "modify") == 0 ? 'm' : 's';
    threads = atoi(argv[2]);
    pages = (size_t)atoi(argv[3]) << 8;
    seconds = atof(argv[4]);
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return perror("touch: mmap"), 1;
    madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
    struct worker *workers = calloc(threads, sizeof *workers);
    pthread_barrier_init(&filled, NULL, threads);
    for (int i = 0; i < threads; i++) {
        workers[i].number = i;
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    double rate = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        rate += workers[i].accesses / workers[i].elapsed;
    }
    printf("%.0f\n", rate);
    return 0;
}
