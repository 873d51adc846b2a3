/*
 * libc's functions that read and write, for a thread whose calls are caught: in C, because a thread may be
 * cancelled in them, and no frame of Rust may be below it then. What is done is in transfers.rs.
 */
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

enum kind { READ, READ_ALL, WRITE };

/* The beginning of Transfer in transfers.rs. */
struct transfer {
    void *at;     /* of the part: its buffer or vectors */
    size_t count; /* of its bytes or vectors */
    size_t done;  /* bytes before it */
    ssize_t result;
    void *rest[152];
};

/* The first byte of a thread's state says whether its calls are caught. */
extern __thread unsigned char *overspill_caught __attribute__((visibility("hidden"), tls_model("initial-exec")));

extern void *overspill_next(const char *name);
extern bool overspill_begin_buffer(struct transfer *, int fd, enum kind, const void *buffer, size_t len);
extern bool overspill_begin_vectors(struct transfer *, int fd, enum kind, const struct iovec *, int count);
extern void overspill_hold_part(struct transfer *);
extern bool overspill_goes_on(struct transfer *, ssize_t moved);

static void end_passing(unsigned char **selector) { **selector = 1; }

/* Does `call`, which does a part of the transfer `t`, as often as there are parts. */
#define IN_PARTS(call)                                                                             \
    ssize_t moved;                                                                                 \
    do {                                                                                           \
        __attribute__((cleanup(end_passing))) unsigned char *selector = overspill_caught;          \
        *(volatile unsigned char *)selector = 0;                                                   \
        /* From the hold on calls pass: a caught call would end it. */                             \
        overspill_hold_part(&t);                                                                   \
        moved = call;                                                                              \
    } while (overspill_goes_on(&t, moved));                                                        \
    return t.result

#define IS_CAUGHT (__builtin_expect(overspill_caught && *overspill_caught, 0))

#define NEXT(name)                                                                                 \
    static __typeof__(&overspill_##name) cached;                                                   \
    __typeof__(&overspill_##name) next = __atomic_load_n(&cached, __ATOMIC_RELAXED);               \
    if (!next)                                                                                     \
        __atomic_store_n(&cached, next = overspill_next(#name), __ATOMIC_RELAXED);                 \
    struct transfer t

#define BUFFER(name, kind, pointer, other, arguments)                                              \
    ssize_t overspill_##name(int fd, pointer buffer, size_t len other) {                           \
        NEXT(name);                                                                                \
        if (!IS_CAUGHT || !overspill_begin_buffer(&t, fd, kind, buffer, len)) {                    \
            t.at = (void *)buffer, t.count = len, t.done = 0;                                      \
            return next arguments;                                                                 \
        }                                                                                          \
        IN_PARTS(next arguments);                                                                  \
    }

#define VECTORS(name, kind, other, arguments)                                                      \
    ssize_t overspill_##name(int fd, const struct iovec *vectors, int count other) {               \
        NEXT(name);                                                                                \
        if (!IS_CAUGHT || !overspill_begin_vectors(&t, fd, kind, vectors, count)) {                \
            t.at = (void *)vectors, t.count = count, t.done = 0;                                   \
            return next arguments;                                                                 \
        }                                                                                          \
        IN_PARTS(next arguments);                                                                  \
    }

#define OFFSET , off_t offset
#define FLAGS , int flags
#define NONE
#define RECEIVE (flags & MSG_WAITALL ? READ_ALL : READ)

BUFFER(read, READ, void *, NONE, (fd, t.at, t.count))
BUFFER(write, WRITE, const void *, NONE, (fd, t.at, t.count))
BUFFER(pread, READ, void *, OFFSET, (fd, t.at, t.count, offset + t.done))
BUFFER(pread64, READ, void *, OFFSET, (fd, t.at, t.count, offset + t.done))
BUFFER(pwrite, WRITE, const void *, OFFSET, (fd, t.at, t.count, offset + t.done))
BUFFER(pwrite64, WRITE, const void *, OFFSET, (fd, t.at, t.count, offset + t.done))
BUFFER(recv, RECEIVE, void *, FLAGS, (fd, t.at, t.count, flags))
BUFFER(send, WRITE, const void *, FLAGS, (fd, t.at, t.count, flags))
VECTORS(readv, READ, NONE, (fd, t.at, t.count))
VECTORS(writev, WRITE, NONE, (fd, t.at, t.count))
VECTORS(preadv, READ, OFFSET, (fd, t.at, t.count, offset + t.done))
VECTORS(preadv64, READ, OFFSET, (fd, t.at, t.count, offset + t.done))
VECTORS(pwritev, WRITE, OFFSET, (fd, t.at, t.count, offset + t.done))
VECTORS(pwritev64, WRITE, OFFSET, (fd, t.at, t.count, offset + t.done))
