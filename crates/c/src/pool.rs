//! Pools: numbered pages that are asked for.

use crate::fail::{choice, end, handle, status};
use crate::limit::{builder_of, overspill_options, overspill_stats};
use ::overspill::{Held, HeldPage, PageNo, Pool, PoolBuilder};
use std::ffi::{c_int, c_void};

/// Pages of which a limited number is in RAM. Pages are numbered from 0 and are zeros until they
/// are written. A child made by fork is refused it.
pub struct overspill_pool {
    inner: Pool,
}

/// A page in use.
pub struct overspill_page {
    inner: HeldPage,
}

/// What a page is asked for.
#[repr(C)]
pub enum overspill_use {
    /// To be read, beside other readers.
    OVERSPILL_TO_READ,
    /// To be read and written, alone.
    OVERSPILL_TO_WRITE,
}

/// By the numbers of [`overspill_use`].
const USES: [Held; 2] = [Held::ToRead, Held::ToWrite];

/// Makes a pool and opens the places to swap to. NULL if that fails.
///
/// # Safety
/// `options` are valid, and their texts end with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pool_new(
    options: *const overspill_options,
) -> *mut overspill_pool {
    // SAFETY: the caller's promise.
    let builder = unsafe { builder_of(options) };
    let built = builder.and_then(|it| PoolBuilder::from(it).build().map_err(|e| e.to_string()));
    handle(built.map(|inner| overspill_pool { inner }))
}

/// Ends a pool when its last page is released. NULL is allowed.
///
/// # Safety
/// `pool` is from `overspill_pool_new` and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pool_free(pool: *mut overspill_pool) {
    // SAFETY: the caller's promise.
    unsafe { end(pool) };
}

/// Size of a page in bytes.
///
/// # Safety
/// `pool` is from `overspill_pool_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pool_page_bytes(pool: *const overspill_pool) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &*pool }.inner.page_size()
}

/// Takes a page; it stays where it is until it is released. Blocks while it is read from swap, and
/// while others have it in a way that excludes this use, also if that is the calling thread. NULL
/// if it was lost or memory is full of pages in use.
///
/// # Safety
/// `pool` is from `overspill_pool_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_page_take(
    pool: *const overspill_pool,
    page: u32,
    to: c_int,
) -> *mut overspill_page {
    let page = choice("overspill_use", &USES, to).and_then(|held| {
        // SAFETY: the caller's promise.
        unsafe { &*pool }.inner.hold(PageNo(page), held).map_err(|why| why.to_string())
    });
    handle(page.map(|inner| overspill_page { inner }))
}

/// Where its bytes are. Write them only if it was taken to be written.
///
/// # Safety
/// `page` is from `overspill_page_take`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_page_data(page: *const overspill_page) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { &*page }.inner.as_mut_ptr().cast()
}

/// Releases a page. NULL is allowed.
///
/// # Safety
/// `page` is from `overspill_page_take`; neither it nor its bytes are used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_page_release(page: *mut overspill_page) {
    // SAFETY: the caller's promise.
    unsafe { end(page) };
}

/// Starts reading `count` pages at `pages` and does not wait for them. 0, or -1.
///
/// # Safety
/// `pool` is from `overspill_pool_new`, and `count` numbers are at `pages`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pool_prefetch(
    pool: *const overspill_pool,
    pages: *const u32,
    count: usize,
) -> c_int {
    if count == 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    let (pool, pages) = unsafe { (&*pool, std::slice::from_raw_parts(pages, count)) };
    status(pool.inner.prefetch(pages.iter().copied().map(PageNo)).map(drop))
}

/// Makes `count` pages from `first` on zeros again; they then cost nothing. Waits for their users.
/// 0, or -1.
///
/// # Safety
/// `pool` is from `overspill_pool_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pool_discard(
    pool: *const overspill_pool,
    first: u32,
    count: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { &*pool }.inner.discard(PageNo(first), count))
}

/// Fills `stats`. Does not block.
///
/// # Safety
/// `pool` is from `overspill_pool_new`, and `stats` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pool_get_stats(
    pool: *const overspill_pool,
    stats: *mut overspill_stats,
) {
    // SAFETY: the caller's promise.
    unsafe { stats.write((*pool).inner.summary().into()) };
}
