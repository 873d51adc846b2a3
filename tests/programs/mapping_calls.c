/* Mappings of one kind where another kind stood, calls that must change nothing, and what is said about
 * memory for a fork and for a dump. */
#include "common.h"
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#define PART (8 * MIB)

static int memory_file(size_t bytes) {
    int fd = memfd_create("file", 0);
    CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
    return fd;
}

/* Later mappings are private and independent, whatever stood there before. */
static void check_new_mappings(void) {
    char *maps[8];
    for (int i = 0; i < 8; i++) {
        maps[i] = map(PART);
        fill(maps[i], PART, 70 + i);
    }
    for (int i = 0; i < 8; i++) {
        check(maps[i], PART, 70 + i);
        CHECK(munmap(maps[i], PART) == 0);
    }
}

static void failing_map_fixed(void) {
    int anywhere = MAP_SHARED | MAP_FIXED, read_write = PROT_READ | PROT_WRITE;
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    CHECK(mmap(memory, BIG, read_write, anywhere, -1, 0) == MAP_FAILED && errno == EBADF);
    int read_only = open("/dev/zero", O_RDONLY);
    CHECK(mmap(memory, MIB, read_write, anywhere, read_only, 0) == MAP_FAILED && errno == EACCES);
    int fd = memory_file(MIB);
    CHECK(mmap(memory, MIB, read_write, anywhere, fd, 100) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(memory + 100, MIB, read_write, anywhere, fd, 0) == MAP_FAILED && errno == EINVAL);
    int huge = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_FIXED;
    void *pages = mmap(memory + PAGE, 2 * MIB, read_write, huge, -1, 0);
    CHECK(pages == MAP_FAILED && errno == EINVAL);
    push_out();
    check(memory, BIG, 1);
    /* And one that succeeds. */
    CHECK(mmap(memory + MIB, MIB, read_write, anywhere, fd, 0) == memory + MIB);
    fill(memory + MIB, MIB, 2);
    push_out();
    check(memory + MIB, MIB, 2);
    check(memory, MIB, 1);
    check_from(memory + 2 * MIB, BIG - 2 * MIB, 1, 2 * MIB / PAGE);
}

/* A program that takes an address or nothing, and one that takes what it gets. */
static void addresses_asked_for(void) {
    char *wanted = (char *)((uintptr_t)5 << 42), *got;
    int reserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, tries = 0;
    for (; tries < 1000; tries++) {
        got = mmap(wanted, PART, PROT_NONE, reserve, -1, 0);
        CHECK(got != MAP_FAILED);
        if (got == wanted)
            break;
        CHECK(munmap(got, PART) == 0);
    }
    CHECK(tries < 1000 && munmap(got, PART) == 0);
    got = mmap(wanted, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(got != MAP_FAILED);
    fill(got, BIG, 1);
    check(got, BIG, 1);
}

static void protection_keys(void) {
    char *memory = map(PART);
    fill(memory, PART, 1);
    CHECK(pkey_mprotect(memory, PART, PROT_READ, -1) == 0);
    push_out();
    check(memory, PART, 1);
    CHECK(faults(memory, 1));
    CHECK(pkey_mprotect(memory, PART, PROT_READ, 12) == -1 && errno == EINVAL);
    CHECK(munmap(memory, PART) == 0);
    check_new_mappings();
    int key = pkey_alloc(0, 0);
    if (getenv("LD_PRELOAD"))
        CHECK(key == -1 && errno == ENOSPC);
}

/* The mirrored ring buffer: shared memory twice in a row. */
static void moved_onto(void) {
    int fd = memory_file(PART);
    char *shared = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *ring = map(2 * PART);
    fill(ring, 2 * PART, 5);
    push_out();
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    CHECK(mremap(shared, PART, PART, flags, ring + 1) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(ring, PART, PART, flags, ring + PAGE) == MAP_FAILED && errno == EINVAL);
    check(ring, 2 * PART, 5);
    CHECK(mremap(shared, PART, PART, flags, ring) == ring);
    CHECK(faults(shared, 0));
    CHECK(mmap(ring + PART, PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
          ring + PART);
    fill(ring, PART, 1);
    push_out();
    check(ring, PART, 1);
    check(ring + PART, PART, 1);
    /* Out again, larger, and back into other managed memory. */
    CHECK(ftruncate(fd, 2 * PART) == 0);
    char *grown = mremap(ring, PART, 2 * PART, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED);
    check(grown, PART, 1);
    CHECK(faults(ring, 0));
    char *other = map(2 * PART);
    fill(other, 2 * PART, 6);
    CHECK(mremap(grown, 2 * PART, PART, flags, other + PART) == other + PART);
    check(other, PART, 6);
    check(other + PART, PART, 1);
    char *file = mmap(NULL, PART, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(munmap(ring, 2 * PART) == 0 && munmap(other, 2 * PART) == 0);
    check_new_mappings();
    check(file, PART, 1);
}

static void moved_within(void) {
    char *from = map(BIG / 2), *to = map(BIG / 2);
    fill(from, BIG / 2, 1);
    fill(to, BIG / 2, 2);
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    CHECK(mremap(from, PART, PART, flags, to) == to);
    CHECK(faults(from, 0));
    check(to, PART, 1);
    check_from(to + PART, BIG / 2 - PART, 2, PART / PAGE);
    /* Smaller and larger on the way. */
    CHECK(mremap(from + PART, 2 * PART, PART, flags, to + PART) == to + PART);
    CHECK(faults(from + 2 * PART, 0));
    check_from(to + PART, PART, 1, PART / PAGE);
    CHECK(mremap(from + 3 * PART, PART, 2 * PART, flags, to + 2 * PART) == to + 2 * PART);
    check_from(to + 2 * PART, PART, 1, 3 * PART / PAGE);
    check_zero(to + 3 * PART, PART);
    push_out();
    check(to, PART, 1);
    check_from(to + PART, PART, 1, PART / PAGE);
    /* The old place stays mapped, and empty. */
    char *source = map(BIG / 2);
    fill(source, BIG / 2, 3);
    CHECK(mprotect(source, PART, PROT_READ) == 0);
    flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    char *moved = mremap(source, PART, PART, flags, NULL);
    CHECK(moved != MAP_FAILED && moved != source);
    check(moved, PART, 3);
    CHECK(faults(moved, 1) && faults(source, 1));
    check_zero(source, PART);
    CHECK(mremap(source + PART, PART, 2 * PART, flags, NULL) == MAP_FAILED && errno == EINVAL);
    check_from(source + PART, BIG / 2 - PART, 3, PART / PAGE);
}

static void wiped_in_children(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    CHECK(madvise(memory + PART, PART, MADV_WIPEONFORK) == 0);
    CHECK(madvise(memory + 2 * PART, PART, MADV_WIPEONFORK) == 0);
    CHECK(madvise(memory + 2 * PART, PART, MADV_KEEPONFORK) == 0);
    char *gone = map(PART);
    CHECK(madvise(gone, PART, MADV_WIPEONFORK) == 0 && munmap(gone, PART) == 0);
    CHECK(mmap(gone, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          gone);
    fill(gone, PART, 9);
    pid_t child = fork();
    if (child == 0) {
        check(memory, PART, 1);
        check_zero(memory + PART, PART);
        check_from(memory + 2 * PART, BIG - 2 * PART, 1, 2 * PART / PAGE);
        check(gone, PART, 9);
        fill(memory + PART, PART, 2);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            check_zero(memory + PART, PART);
            _exit(0);
        }
        reap(grandchild);
        check(memory + PART, PART, 2);
        _exit(0);
    }
    reap(child);
    check(memory, BIG, 1);
}

/* Advice is taken, or it is refused; what is not known is refused. */
static void advice(void) {
    char *memory = map(BIG);
    fill(memory, BIG, 1);
    CHECK(madvise(memory, PART, 12345) == -1 && errno == EINVAL);
    CHECK(madvise(memory, 0, 12345) == -1 && errno == EINVAL);
    CHECK(madvise(memory, PART, MADV_REMOVE) == -1 && errno == EINVAL);
    CHECK(madvise(memory, PART, MADV_DOFORK) == 0);
    CHECK(madvise(memory, PART, MADV_DONTDUMP) == 0 && madvise(memory, PART, MADV_DODUMP) == 0);
    CHECK(madvise(memory, PART, MADV_POPULATE_READ) == 0);
    CHECK(madvise(memory, PART, MADV_POPULATE_WRITE) == 0);
    if (getenv("LD_PRELOAD")) {
        static const int REFUSED[] = {MADV_DONTFORK, MADV_MERGEABLE, 25 /* COLLAPSE */,
                                      102 /* GUARD_INSTALL */, 103};
        for (size_t n = 0; n < sizeof REFUSED / sizeof *REFUSED; n++)
            CHECK(madvise(memory, PART, REFUSED[n]) == -1 && errno == EINVAL);
    }
    check(memory, BIG, 1);
    CHECK(mprotect(memory, PART, PROT_READ) == 0);
    CHECK(madvise(memory, PART, MADV_POPULATE_WRITE) == -1);
    CHECK(munmap(memory + MIB, MIB) == 0);
    unsigned char core[3 * MIB / PAGE];
    CHECK(mincore(memory, MIB, core) == 0 && mincore(memory, 0, core) == 0);
    CHECK(mincore(memory, 3 * MIB, core) == -1 && errno == ENOMEM);
    CHECK(mincore(memory + 1, PAGE, core) == -1 && errno == EINVAL);
    CHECK(madvise(memory, 3 * MIB, MADV_POPULATE_READ) == -1 && errno == ENOMEM);
    CHECK(madvise(memory, 3 * MIB, MADV_DONTNEED) == -1 && errno == ENOMEM);
    check_zero(memory, MIB);
    check_zero(memory + 2 * MIB, MIB);
    CHECK(faults(memory + MIB, 0));
}

/* What is said about a range in which a file is mapped holds for both. */
static void file_in_the_middle(void) {
    char *memory = map(3 * PART), *file = memory + PART;
    fill(memory, 3 * PART, 1);
    int fd = memory_file(2 * PART);
    CHECK(mmap(file, PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == file);
    fill(file, PART, 2);
    CHECK(madvise(file, PART, MADV_DONTNEED) == 0);
    CHECK(madvise(memory, 3 * PART, MADV_DONTNEED) == 0);
    check_zero(memory, PART);
    check_zero(memory + 2 * PART, PART);
    check(file, PART, 2);
    CHECK(madvise(file, MIB, MADV_REMOVE) == 0);
    check_zero(file, MIB);
    fill(file, PART, 2);
    CHECK(mlock(file, PAGE) == 0 && munlock(file, PAGE) == 0);
    CHECK(mlock(file - PAGE, 2 * PAGE) == 0 && munlock(file - PAGE, 2 * PAGE) == 0);
    CHECK(msync(file, PART, MS_SYNC) == 0);
    CHECK(mprotect(file, PART, PROT_READ) == 0 && faults(file, 1));
    CHECK(mprotect(memory, 3 * PART, PROT_READ | PROT_WRITE) == 0);
    pid_t child = fork();
    if (child == 0) {
        check(file, PART, 2);
        _exit(0);
    }
    reap(child);
    /* The same pages of the file, in the other order. */
    long moved = syscall(SYS_remap_file_pages, file, PAGE, 0, 1, 0);
    CHECK(moved == 0 && *(uint64_t *)file == mark(2, 1));
    CHECK(syscall(SYS_remap_file_pages, memory, PAGE, 0, 1, 0) == -1);
    CHECK(mremap(file + MIB, PART - MIB, PART - 2 * MIB, 0) == file + MIB);
    CHECK(faults(file + PART - MIB, 0));
    fill(memory, PART, 5);
    push_out();
    check(memory, PART, 5);
}

static void shared_segment(void) {
    int id = shmget(IPC_PRIVATE, PART - 100, IPC_CREAT | 0600);
    CHECK(id >= 0);
    char *memory = map(3 * PART), *shared = memory + PART;
    fill(memory, 3 * PART, 3);
    CHECK(shmat(id, shared, 0) == (void *)-1 && errno == EINVAL);
    CHECK(shmat(-1, shared, SHM_REMAP) == (void *)-1);
    check(memory, 3 * PART, 3);
    CHECK(shmat(id, shared + 100, SHM_REMAP | SHM_RND) == shared);
    CHECK(shmctl(id, IPC_RMID, NULL) == 0);
    fill(shared, PART, 1);
    push_out();
    check(shared, PART, 1);
    check(memory, PART, 3);
    CHECK(shmdt(shared) == 0);
    CHECK(faults(shared, 0));
    CHECK(shmdt(shared) == -1 && errno == EINVAL);
    CHECK(munmap(memory, 3 * PART) == 0);
    check_new_mappings();
}

static const struct test TESTS[] = {
    {"failing_map_fixed", failing_map_fixed},
    {"addresses_asked_for", addresses_asked_for},
    {"protection_keys", protection_keys},
    {"moved_onto", moved_onto},
    {"moved_within", moved_within},
    {"wiped_in_children", wiped_in_children},
    {"advice", advice},
    {"file_in_the_middle", file_in_the_middle},
    {"shared_segment", shared_segment},
};

int main(int argc, char **argv) {
    return run_test(TESTS, sizeof TESTS / sizeof *TESTS, argc, argv);
}
