//! A forked child has copies of what its parent made, and is refused each use of them: its threads
//! are not there, and its pages would go to its parent's slots.
//!
//! Skips, printing the reason, if touches cannot be noticed.

use overspill::{Advice, Bytes, Error, Held, Overspill, PageNo, Pool, PoolError, SpillVec};

const LIMIT: Bytes = Bytes(8 << 20);
const PAGES: u32 = 4 * 2048;

/// What a forked child makes of `check`, which ends it the way programs end.
fn in_child(check: impl FnOnce() -> bool) {
    // SAFETY: other threads of this process are the pager's, whose locks the child must not take,
    // which is what is tested.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a child that waits for a lock is ended.
        unsafe { libc::alarm(20) };
        std::process::exit(i32::from(!check()));
    }
    let mut status = -1;
    // SAFETY: our own child, not yet waited for.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "status {status:x}");
}

fn fill(pool: &Pool, version: u8) {
    for page in (0..PAGES).map(PageNo) {
        pool.write(page).unwrap().fill(version ^ page.0 as u8);
    }
}

fn holds(pool: &Pool, version: u8) -> bool {
    (0..PAGES)
        .all(|page| pool.read(PageNo(page)).unwrap().iter().all(|&b| b == version ^ page as u8))
}

/// Encrypted, on a file: that would be two contents under one nonce.
#[test]
fn a_pool_is_its_makers() {
    let directory = tempfile::tempdir().unwrap();
    let swap = format!("file:{}", directory.path().display());
    let pool = Pool::builder().memory(LIMIT).swap(swap.parse().unwrap()).build().unwrap();
    let mut numbers = SpillVec::<u64>::new(&pool);
    numbers.push(7).unwrap();
    fill(&pool, 1);
    let refused = |result: Result<(), PoolError>| result == Err(PoolError::Forked);
    in_child(|| {
        let page = PageNo(5);
        let all = [
            refused(pool.read(page).map(drop)),
            refused(pool.write(page).map(drop)),
            refused(pool.try_read(page).map(drop)),
            refused(pool.hold(page, Held::ToWrite).map(drop)),
            refused(pool.prefetch([page]).map(drop)),
            refused(pool.discard(page, 1)),
            refused(numbers.push(8)),
        ];
        drop(numbers);
        drop(pool);
        all == [true; 7]
    });
}

#[test]
fn the_parent_goes_on() {
    let pool = Pool::builder().memory(LIMIT).swap("ram:64M".parse().unwrap()).build().unwrap();
    fill(&pool, 1);
    in_child(|| pool.read(PageNo(0)).is_err());
    assert!(holds(&pool, 1));
    fill(&pool, 2);
    assert!(holds(&pool, 2));
}

#[test]
fn a_limit_is_its_makers() {
    let built = Overspill::builder().memory(LIMIT).swap("ram:64M".parse().unwrap()).build();
    let overspill = match built {
        Ok(overspill) => overspill,
        Err(lack @ Error::Space(_)) => return println!("skipped: {lack}"),
        Err(error) => panic!("{error}"),
    };
    let mut region = overspill.region(Bytes(32 << 20)).unwrap();
    region.fill(7);
    in_child(|| {
        let forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked));
        region.advise(0..4096, Advice::PageOut);
        region.discard(0..4096);
        let all = [
            forked(overspill.region(Bytes(1 << 20)).map(drop)),
            forked(overspill.swapon(&"ram:1M".parse().unwrap())),
            forked(overspill.swapoff("ram")),
            forked(region.pin(0..4096).map(drop)),
        ];
        drop(region);
        drop(overspill);
        all == [true; 4]
    });
}
