//! What this machine's kernel does to pages that are evicted while other threads access them.
//!
//! Skips, printing the reason, if userfaultfd is not permitted.

use overspill::{Bytes, Overspill};
use overspill_base::PAGE_SIZE;
use overspill_space::uffd::{Delivery, Uffd};
use overspill_space::words::Reach;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A region four times its memory, touched in order and at random, while another thread makes the
/// kernel age every page, as DAMON does. On Linux 6.18 some moves are misreported in that time.
#[test]
fn pages_that_are_aged_while_they_are_evicted_keep_their_content() {
    if let Err(lack) = Uffd::open(Delivery::Messages, Reach::All) {
        return println!("skipped: {lack}");
    }
    const LEN: usize = 32 << 20;
    let builder = Overspill::builder().memory(Bytes(LEN as u64 / 4));
    let overspill = builder.swap("ram:64M".parse().unwrap()).build().unwrap();
    let mut region = overspill.region(Bytes(LEN as u64)).unwrap();
    let start = region.as_mut_ptr().addr();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for window in (0..LEN).step_by(64 * PAGE_SIZE).cycle() {
                let at = (start + window) as *mut u8;
                for page in 0..64 {
                    // SAFETY: advice that changes no content, and a byte that is not used.
                    unsafe {
                        let cold = rustix::mm::Advice::LinuxCold;
                        rustix::mm::madvise(at.cast(), 64 * PAGE_SIZE, cold).unwrap();
                        let _ = at.add(page * PAGE_SIZE).read_volatile();
                    }
                }
                if stop.load(Relaxed) {
                    break;
                }
            }
        });
        let mut chance = fastrand::Rng::with_seed(1);
        let mut model = vec![0u8; LEN / PAGE_SIZE];
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            let first = chance.usize(..model.len());
            let pages = chance.usize(1..=200);
            for page in first..(first + pages).min(model.len()) {
                let content = &mut region[page * PAGE_SIZE..][..PAGE_SIZE];
                let wrong = content.iter().position(|&byte| byte != model[page]);
                assert_eq!(wrong, None, "page {page}, {:?}", overspill.last_error());
                model[page] = chance.u8(..);
                content.fill(model[page]);
            }
        }
        stop.store(true, Relaxed);
    });
    let counters = overspill.summary().counters;
    println!("{} of {} moves misreported", counters["move_misreported"], counters["pswpout"]);
    assert_eq!((counters["pages_lost"], counters["kernel_unexpected"]), (0, 0));
    assert_eq!(overspill.last_error(), None);
}

/// A pipe refers to pages, which are evicted while others are read; what went in comes out.
#[test]
fn what_a_pipe_refers_to_is_not_written_to() {
    if let Err(lack) = Uffd::open(Delivery::Messages, Reach::All) {
        return println!("skipped: {lack}");
    }
    const LEN: usize = 32 << 20;
    const PIPED: usize = 256 << 10;
    let mark = |page: usize| (page % 251) as u8 + 1;
    let builder = Overspill::builder().memory(Bytes(LEN as u64 / 4));
    let overspill = builder.swap("ram:64M".parse().unwrap()).build().unwrap();
    let mut region = overspill.region(Bytes(LEN as u64)).unwrap();
    for (number, page) in region.chunks_exact_mut(PAGE_SIZE).enumerate() {
        page.fill(mark(number));
    }
    let (mut from, into) = std::io::pipe().unwrap();
    // SAFETY: takes and returns numbers.
    assert!(unsafe { libc::fcntl(into.as_raw_fd(), libc::F_SETPIPE_SZ, PIPED) } > 0);
    for first in (0..LEN).step_by(LEN / 16) {
        let piece = &region[first..first + PIPED];
        let mut sum: u64 = piece.iter().map(|&byte| u64::from(byte)).sum();
        let piece = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: PIPED };
        // SAFETY: the piece is memory of ours, which does not change until it has been read.
        let sent = unsafe { libc::vmsplice(into.as_raw_fd(), &raw const piece, 1, 0) };
        assert_eq!(sent, PIPED as isize);
        sum += region.iter().step_by(PAGE_SIZE).map(|&byte| u64::from(byte)).sum::<u64>();
        assert!(sum > 0);
        let mut got = vec![0; PIPED];
        from.read_exact(&mut got).unwrap();
        for (n, page) in got.chunks_exact(PAGE_SIZE).enumerate() {
            let number = first / PAGE_SIZE + n;
            let wrong = page.iter().position(|&byte| byte != mark(number));
            assert_eq!(wrong, None, "page {number} left the pipe as {}", page[0]);
        }
    }
}

/// The kernel writes through pins that it takes for a whole piece at a time, while pages are
/// evicted. The advice splits its mappings, so runs of pages span two of them.
#[test]
fn what_is_written_through_a_pin_is_not_lost() {
    if let Err(lack) = Uffd::open(Delivery::Messages, Reach::All) {
        return println!("skipped: {lack}");
    }
    const PIECE: usize = 4 << 20;
    let builder = Overspill::builder().memory(Bytes(PIECE as u64));
    let overspill = builder.swap("ram:64M".parse().unwrap()).build().unwrap();
    let mut region = overspill.region(Bytes(4 * PIECE as u64)).unwrap();
    let start = region.as_mut_ptr();
    for at in (0..4 * PIECE).step_by(300 << 10).map(|at| at / PAGE_SIZE * PAGE_SIZE) {
        // SAFETY: advice on the region's own pages that changes no content.
        let split = unsafe {
            let advice = rustix::mm::Advice::LinuxDontDump;
            rustix::mm::madvise(start.add(at).cast(), 10 * PAGE_SIZE, advice)
        };
        split.unwrap();
    }
    let mut from = vec![0u8; PIECE];
    for round in 1..=100 {
        from.fill(round);
        let into = &mut region[usize::from(round) % 4 * PIECE..][..PIECE];
        let local = libc::iovec { iov_base: from.as_mut_ptr().cast(), iov_len: PIECE };
        let remote = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: PIECE };
        // SAFETY: writes to a part of the region that nothing else refers to meanwhile.
        let written = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
        assert_eq!(written, PIECE as isize, "{}", std::io::Error::last_os_error());
        let wrong = into.iter().position(|&byte| byte != round);
        assert_eq!(wrong.map(|at| at / PAGE_SIZE), None, "round {round}");
    }
    assert_eq!(overspill.summary().counters["kernel_unexpected"], 0);
}
