//! A memory limit: what regions share.

use crate::fail::{end, handle, status, text};
use ::overspill::{Builder, Bytes, Overspill, Summary, SwapSpec};
use std::ffi::{c_char, c_int};

/// A memory limit, and places to swap to. Its regions keep it alive after `overspill_free`.
pub struct overspill {
    pub(crate) inner: Overspill,
}

/// What a limit or a pool is made of. Set what you do not need to 0.
#[repr(C)]
pub struct overspill_options {
    /// Memory to use at most, at least 4 MiB and 16 pages. Required.
    pub memory_bytes: u64,
    /// Size of a page: a power of two from 4096, which 0 stands for, to 2 MiB.
    pub page_bytes: u64,
    /// Most that a swap file without a size of its own may grow to; 0 for what is usual.
    pub swap_bytes: u64,
    /// Places to swap to, in the words of `overspill run --swap`, after the last one NULL. NULL for
    /// an unnamed file in `$TMPDIR` or `/var/tmp`.
    pub swaps: *const *const c_char,
}

/// Counted so far.
#[repr(C)]
pub struct overspill_stats {
    /// The limit.
    pub memory_bytes: u64,
    /// Faults served; for a pool, requests of absent pages.
    pub faults: u64,
    /// Pages read from swap.
    pub pages_in: u64,
    /// Pages written to swap.
    pub pages_out: u64,
    /// Pages whose content was lost by a device. A touch of one raises SIGBUS, or is an error.
    pub pages_lost: u64,
    /// Median time of a fault, to within 1/16.
    pub fault_median_ns: u64,
    /// Its 99th percentile, to within 1/16.
    pub fault_p99_ns: u64,
    /// The longest.
    pub fault_max_ns: u64,
}

impl From<Summary> for overspill_stats {
    fn from(summary: Summary) -> Self {
        let latency = summary.fault_latency;
        Self {
            memory_bytes: summary.memory_bytes,
            faults: summary.faults,
            pages_in: summary.pages_in,
            pages_out: summary.pages_out,
            pages_lost: summary.pages_lost,
            fault_median_ns: latency.median_ns,
            fault_p99_ns: latency.p99_ns,
            fault_max_ns: latency.max_ns,
        }
    }
}

/// What `options` say.
///
/// # Safety
/// NULL, or options whose texts are NULL or end with 0, the last of them NULL.
pub(crate) unsafe fn builder_of(options: *const overspill_options) -> Result<Builder, String> {
    // SAFETY: the caller's promise.
    let options = unsafe { options.as_ref() }.ok_or("the options are NULL")?;
    let given = |bytes: u64| (bytes > 0).then_some(Bytes(bytes));
    let mut builder = Overspill::builder().memory(Bytes(options.memory_bytes));
    builder = given(options.page_bytes).into_iter().fold(builder, Builder::page_size);
    builder = given(options.swap_bytes).into_iter().fold(builder, Builder::swap_size);
    let mut at = options.swaps;
    // SAFETY: the list ends with NULL, which is not passed.
    while !at.is_null() && unsafe { !(*at).is_null() } {
        // SAFETY: as above.
        builder = builder.swap(unsafe { spec_at(*at) }?);
        at = at.wrapping_add(1);
    }
    Ok(builder)
}

/// The place that the text at `words` names.
///
/// # Safety
/// NULL, or a string that ends with 0.
unsafe fn spec_at(words: *const c_char) -> Result<SwapSpec, String> {
    // SAFETY: the caller's promise.
    let words = unsafe { text(words) }?;
    words.parse().map_err(|why| format!("{words}: {why}"))
}

/// Sets a limit and opens the places to swap to. Starts threads. NULL if that fails.
///
/// # Safety
/// `options` are valid, and their texts end with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_new(options: *const overspill_options) -> *mut overspill {
    // SAFETY: the caller's promise.
    let builder = unsafe { builder_of(options) };
    let built = builder.and_then(|builder| builder.build().map_err(|why| why.to_string()));
    handle(built.map(|inner| overspill { inner }))
}

/// Ends a limit when its last region ends. NULL is allowed.
///
/// # Safety
/// `limit` is from `overspill_new` and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_free(limit: *mut overspill) {
    // SAFETY: the caller's promise.
    unsafe { end(limit) };
}

/// Size of a page in bytes.
///
/// # Safety
/// `limit` is from `overspill_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_page_bytes(limit: *const overspill) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &*limit }.inner.page_size()
}

/// 1 if a system call on memory of a region fails with EFAULT unless that is pinned: only touches
/// by the program itself are served here, which takes no permission; 0 otherwise.
///
/// # Safety
/// `limit` is from `overspill_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_needs_pins(limit: *const overspill) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { &*limit }.inner.needs_pins().into()
}

/// Fills `stats`. Does not block.
///
/// # Safety
/// `limit` is from `overspill_new`, and `stats` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_get_stats(limit: *const overspill, stats: *mut overspill_stats) {
    // SAFETY: the caller's promise.
    unsafe { stats.write((*limit).inner.summary().into()) };
}

/// A counter by its name in /proc/vmstat, such as `pswpin`; 0 if there is none of that name.
///
/// # Safety
/// `limit` is from `overspill_new`, and `name` ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_counter(limit: *const overspill, name: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    let (limit, name) = unsafe { (&*limit, text(name)) };
    name.ok().and_then(|name| limit.inner.summary().counters.get(name).copied()).unwrap_or(0)
}

/// Adds a place to swap to, in the words of `overspill run --swap`. 0, or -1.
///
/// # Safety
/// `limit` is from `overspill_new`, and `swap` ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_swapon(limit: *const overspill, swap: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (limit, swap) = unsafe { (&*limit, text(swap)) };
    let spec = swap.and_then(|swap| swap.parse().map_err(|why| format!("{swap}: {why}")));
    status(spec.and_then(|spec: SwapSpec| limit.inner.swapon(&spec).map_err(|why| why.to_string())))
}

/// Moves all pages of the place called `name` elsewhere and closes it. Blocks for that. 0, or -1,
/// and it is in use as before.
///
/// # Safety
/// As for `overspill_swapon`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_swapoff(limit: *const overspill, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (limit, name) = unsafe { (&*limit, text(name)) };
    status(name.and_then(|name| limit.inner.swapoff(name).map_err(|why| why.to_string())))
}
