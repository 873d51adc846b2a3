/* Reads a file with O_DIRECT, by pread or by io_uring, into 128 MiB of memory while two threads dirty
 * memory of their own to push it out, and checks every byte. A page that is evicted while the device
 * writes to it must not lose what the device wrote. */
#include "common.h"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sys/syscall.h>

enum { DEPTH = 32, ROUNDS = 2 };
#define FILE_BYTES BIG
#define CHUNK ((size_t)64 * 1024)
#define CHUNKS (FILE_BYTES / CHUNK)

static volatile int stop;

static void *dirty(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    char *memory = map(24 * MIB);
    for (; !stop; seed += 2) {
        fill(memory, 24 * MIB, seed);
        check(memory, 24 * MIB, seed);
    }
    return NULL;
}

static uint64_t word(size_t index) { return mark(5, index); }

static void check_file(const char *memory) {
    const uint64_t *words = (const uint64_t *)memory;
    for (size_t i = 0; i < FILE_BYTES / 8; i++)
        if (words[i] != word(i)) {
            fprintf(stderr, "byte %zu: %lx, not %lx\n", i * 8, (unsigned long)words[i],
                    (unsigned long)word(i));
            _exit(1);
        }
}

static int make_file(void) {
    char name[] = "direct.XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    uint64_t *words = malloc(CHUNK);
    for (size_t chunk = 0; chunk < CHUNKS; chunk++) {
        for (size_t i = 0; i < CHUNK / 8; i++)
            words[i] = word(chunk * CHUNK / 8 + i);
        CHECK(write(fd, words, CHUNK) == (ssize_t)CHUNK);
    }
    free(words);
    CHECK(fsync(fd) == 0 && close(fd) == 0);
    fd = open(name, O_RDONLY | O_DIRECT);
    if (fd < 0) {
        printf("no O_DIRECT here: %s\n", strerror(errno));
        exit(0);
    }
    CHECK(unlink(name) == 0);
    return fd;
}

/* The order in which chunks are read: not sequential. */
static size_t place(size_t number) { return number * 769 % CHUNKS; }

static void read_directly(int fd, char *memory) {
    for (size_t i = 0; i < CHUNKS; i++) {
        size_t at = place(i) * CHUNK;
        CHECK(pread(fd, memory + at, CHUNK, at) == (ssize_t)CHUNK);
    }
}

struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

static void open_ring(struct ring *ring) {
    struct io_uring_params p = {0};
    ring->fd = syscall(SYS_io_uring_setup, DEPTH, &p);
    if (ring->fd < 0) {
        printf("no io_uring here: %s\n", strerror(errno));
        exit(0);
    }
    CHECK(p.features & IORING_FEAT_SINGLE_MMAP);
    size_t sq_bytes = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t cq_bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    size_t bytes = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    int prot = PROT_READ | PROT_WRITE;
    char *at = mmap(NULL, bytes, prot, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    CHECK(at != MAP_FAILED);
    ring->sqes = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), prot, MAP_SHARED, ring->fd,
                      IORING_OFF_SQES);
    CHECK(ring->sqes != MAP_FAILED);
    ring->sq_tail = (unsigned *)(at + p.sq_off.tail);
    ring->sq_mask = (unsigned *)(at + p.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(at + p.sq_off.array);
    ring->cq_head = (unsigned *)(at + p.cq_off.head);
    ring->cq_tail = (unsigned *)(at + p.cq_off.tail);
    ring->cq_mask = (unsigned *)(at + p.cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(at + p.cq_off.cqes);
}

static void submit_read(struct ring *ring, int fd, char *memory, size_t chunk) {
    unsigned tail = *ring->sq_tail, index = tail & *ring->sq_mask;
    ring->sqes[index] = (struct io_uring_sqe){
        .opcode = IORING_OP_READ,
        .fd = fd,
        .addr = (uintptr_t)(memory + chunk * CHUNK),
        .len = CHUNK,
        .off = chunk * CHUNK,
        .user_data = chunk,
    };
    ring->sq_array[index] = index;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring->fd, 1, 0, 0, NULL, 0) == 1);
}

static void reap_read(struct ring *ring) {
    unsigned head = *ring->cq_head;
    while (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) {
        long n = syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        CHECK(n >= 0 || errno == EINTR);
    }
    struct io_uring_cqe *cqe = &ring->cqes[head & *ring->cq_mask];
    if (cqe->res != (int)CHUNK) {
        fprintf(stderr, "chunk %lu: %d\n", (unsigned long)cqe->user_data, cqe->res);
        _exit(1);
    }
    __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
}

static void read_by_ring(int fd, char *memory) {
    struct ring ring;
    open_ring(&ring);
    for (size_t i = 0; i < CHUNKS + DEPTH; i++) {
        if (i >= DEPTH)
            reap_read(&ring);
        if (i < CHUNKS)
            submit_read(&ring, fd, memory, place(i));
    }
    CHECK(close(ring.fd) == 0);
}

int main(int argc, char **argv) {
    int by_ring = argc > 1 && strcmp(argv[1], "uring") == 0;
    int fd = make_file();
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, dirty, (void *)i) == 0);
    char *mapped = map(FILE_BYTES);
    char *allocated = aligned_alloc(PAGE, FILE_BYTES);
    split_mappings(mapped, FILE_BYTES);
    for (int round = 0; round < ROUNDS; round++) {
        char *memory = round % 2 ? allocated : mapped;
        /* Content from before, on swap, that must not come back. */
        fill(memory, FILE_BYTES, 77);
        (by_ring ? read_by_ring : read_directly)(fd, memory);
        check_file(memory);
    }
    check_file(mapped);
    stop = 1;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    puts("ok");
}
