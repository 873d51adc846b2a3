/* Overspill: memory larger than RAM, for C and C++.

   Made from crates/c/src by cbindgen; do not edit.

   A call that fails returns NULL or -1, changes nothing, and leaves the reason for overspill_error().
   Handles may be used by any thread, and freed once. */

#ifndef OVERSPILL_H
#define OVERSPILL_H

#include <stddef.h>
#include <stdint.h>

// Which thread brings in a page that is touched.
//
// Functions take a number, because C may pass any, and an enum of Rust must be one of its values.
typedef enum overspill_faults {
  // A thread of Overspill. Works wherever memory works.
  OVERSPILL_BY_MESSAGE,
  // The thread that touches it, in a handler for SIGBUS: faster on fast devices. A system call
  // on memory that is out fails with EFAULT: pin it first. The handler takes up to 16 KiB of the
  // thread's stack.
  OVERSPILL_BY_SIGNAL,
} overspill_faults;

// How memory will be used.
typedef enum overspill_advice {
  // As usual.
  OVERSPILL_NORMAL,
  // In order.
  OVERSPILL_SEQUENTIAL,
  // In no order.
  OVERSPILL_RANDOM,
  // Soon: it is read ahead. Does not block.
  OVERSPILL_WILL_NEED,
  // Not soon: it is evicted first.
  OVERSPILL_COLD,
  // Not soon: it is evicted now. Blocks until it is written.
  OVERSPILL_PAGE_OUT,
  // Not at all: whole pages read as zeros from now on and cost nothing.
  OVERSPILL_DISCARD,
} overspill_advice;

// What a page is asked for.
typedef enum overspill_use {
  // To be read, beside other readers.
  OVERSPILL_TO_READ,
  // To be read and written, alone.
  OVERSPILL_TO_WRITE,
} overspill_use;

// A memory limit, and places to swap to. Its regions keep it alive after `overspill_free`.
typedef struct overspill overspill;

// A page in use.
typedef struct overspill_page overspill_page;

// Bytes that stay in RAM.
typedef struct overspill_pin overspill_pin;

// Pages of which a limited number is in RAM. Pages are numbered from 0 and are zeros until they
// are written. A child made by fork is refused it.
typedef struct overspill_pool overspill_pool;

// Zeroed memory of which only a part is in RAM at any time. A process that forks keeps it; its
// children do not have it and end with SIGSEGV if they touch it.
typedef struct overspill_region overspill_region;

// What a limit or a pool is made of. Set what you do not need to 0.
typedef struct overspill_options {
  // Memory to use at most, at least 4 MiB and 16 pages. Required.
  uint64_t memory_bytes;
  // Size of a page: a power of two from 4096, which 0 stands for, to 2 MiB.
  uint64_t page_bytes;
  // Most that a swap file without a size of its own may grow to; 0 for what is usual.
  uint64_t swap_bytes;
  // Places to swap to, in the words of `overspill run --swap`, after the last one NULL. NULL for
  // an unnamed file in `$TMPDIR` or `/var/tmp`.
  const char *const *swaps;
} overspill_options;

// Counted so far.
typedef struct overspill_stats {
  // The limit.
  uint64_t memory_bytes;
  // Faults served; for a pool, requests of absent pages.
  uint64_t faults;
  // Pages read from swap.
  uint64_t pages_in;
  // Pages written to swap.
  uint64_t pages_out;
  // Pages whose content was lost by a device. A touch of one raises SIGBUS, or is an error.
  uint64_t pages_lost;
  // Median time of a fault, to within 1/16.
  uint64_t fault_median_ns;
  // Its 99th percentile, to within 1/16.
  uint64_t fault_p99_ns;
  // The longest.
  uint64_t fault_max_ns;
} overspill_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Why the last call of this thread that failed did so, and what to do about it. Valid until this
// thread's next call that fails.
const char *overspill_error(void);

// Sets a limit and opens the places to swap to. Starts threads. NULL if that fails.
struct overspill *overspill_new(const struct overspill_options *options);

// Ends a limit when its last region ends. NULL is allowed.
void overspill_free(struct overspill *limit);

// Size of a page in bytes.
size_t overspill_page_bytes(const struct overspill *limit);

// 1 if a system call on memory of a region fails with EFAULT unless that is pinned: only touches
// by the program itself are served here, which takes no permission; 0 otherwise.
int overspill_needs_pins(const struct overspill *limit);

// Fills `stats`. Does not block.
void overspill_get_stats(const struct overspill *limit, struct overspill_stats *stats);

// A counter by its name in /proc/vmstat, such as `pswpin`; 0 if there is none of that name.
uint64_t overspill_counter(const struct overspill *limit, const char *name);

// Adds a place to swap to, in the words of `overspill run --swap`. 0, or -1.
int overspill_swapon(const struct overspill *limit, const char *swap);

// Moves all pages of the place called `name` elsewhere and closes it. Blocks for that. 0, or -1,
// and it is in use as before.
int overspill_swapoff(const struct overspill *limit, const char *name);

// Makes a pool and opens the places to swap to. NULL if that fails.
struct overspill_pool *overspill_pool_new(const struct overspill_options *options);

// Ends a pool when its last page is released. NULL is allowed.
void overspill_pool_free(struct overspill_pool *pool);

// Size of a page in bytes.
size_t overspill_pool_page_bytes(const struct overspill_pool *pool);

// Takes a page; it stays where it is until it is released. Blocks while it is read from swap, and
// while others have it in a way that excludes this use, also if that is the calling thread. NULL
// if it was lost or memory is full of pages in use.
struct overspill_page *overspill_page_take(const struct overspill_pool *pool,
                                           uint32_t page,
                                           int to);

// Where its bytes are. Write them only if it was taken to be written.
void *overspill_page_data(const struct overspill_page *page);

// Releases a page. NULL is allowed.
void overspill_page_release(struct overspill_page *page);

// Starts reading `count` pages at `pages` and does not wait for them. 0, or -1.
int overspill_pool_prefetch(const struct overspill_pool *pool, const uint32_t *pages, size_t count);

// Makes `count` pages from `first` on zeros again; they then cost nothing. Waits for their users.
// 0, or -1.
int overspill_pool_discard(const struct overspill_pool *pool, uint32_t first, size_t count);

// Fills `stats`. Does not block.
void overspill_pool_get_stats(const struct overspill_pool *pool, struct overspill_stats *stats);

// Makes zeroed memory of `bytes`, rounded up to pages; `faults` is an `overspill_faults`. NULL if
// that fails.
struct overspill_region *overspill_region_new(const struct overspill *limit,
                                              size_t bytes,
                                              int faults);

// Unmaps the region when its last pin ends. NULL is allowed.
void overspill_region_free(struct overspill_region *region);

// Where its bytes are; any thread may use them.
void *overspill_region_data(const struct overspill_region *region);

// Number of its bytes.
size_t overspill_region_bytes(const struct overspill_region *region);

// Says how the whole pages among `bytes` bytes from `offset` on will be used: `advice` is an
// `overspill_advice`. 0, or -1.
int overspill_region_advise(const struct overspill_region *region,
                            size_t offset,
                            size_t bytes,
                            int advice);

// Brings `bytes` bytes from `offset` on into RAM and keeps them there. Pins may overlap; at most
// half of the limit can be pinned. Blocks for the reads. NULL if that fails.
struct overspill_pin *overspill_pin_new(const struct overspill_region *region,
                                        size_t offset,
                                        size_t bytes);

// Ends a pin. NULL is allowed.
void overspill_pin_free(struct overspill_pin *pin);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OVERSPILL_H */
