//! Touches that end the process, or go to a handler of the program's own: in a child, which is this
//! test binary again.

use super::{HANDLED, PAGE, SIZE, by_signal, fill, is, overspill, reach};
use overspill::{Bytes, Faults, Overspill, Region};
use std::ffi::{c_int, c_void};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::Ordering::Relaxed;

/// The signal of a touch that nobody serves.
fn signal_of_touches() -> c_int {
    if reach::reach().is_by_signal() { libc::SIGSEGV } else { libc::SIGBUS }
}

/// Runs the part called `part` of [`in_a_child`] and returns its exit status and output.
fn run_child(part: &str) -> (ExitStatus, String) {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ends::in_a_child", "--nocapture"])
        .env("OVERSPILL_TEST_PART", part)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status, String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_lost_page_kills_by_default() {
    let (status, said) = run_child("lost");
    if !said.contains("skipped:") {
        assert_eq!(status.signal(), Some(signal_of_touches()), "{said}");
    }
}

#[test]
fn who_runs_out_of_swap_is_told_before_the_signal() {
    for part in ["full", "full by message"] {
        let (status, said) = run_child(part);
        if said.contains("skipped:") {
            continue;
        }
        assert_eq!(status.signal(), Some(signal_of_touches()), "{said}");
        let told = said.lines().filter(|line| line.contains("out of memory"));
        assert_eq!(told.count(), 1, "{said}");
        for words in ["the limit of 8 MiB is full", "ram is full", "add swap elsewhere"] {
            assert!(said.contains(words), "no `{words}` in {said}");
        }
    }
}

#[test]
fn the_programs_own_handler_gets_what_is_not_ours() {
    let (status, said) = run_child("handler");
    assert!(status.success(), "{said}");
    assert!(said.contains("skipped:") || said.contains("handled 3"), "{said}");
}

#[test]
fn in_a_child() {
    match std::env::var("OVERSPILL_TEST_PART").as_deref() {
        Ok("lost") => lose_a_page(),
        Ok("handler") => chain_to_a_handler(),
        Ok("full") => fill_all(Faults::Signal),
        Ok("full by message") => fill_all(Faults::Message),
        _ => {}
    }
}

fn fill_all(faults: Faults) {
    let Some(overspill) = overspill("ram:8M") else { return };
    assert_eq!(overspill.room(), Bytes(16 << 20));
    fill(&mut overspill.region_options().faults(faults).build(SIZE).unwrap());
    unreachable!("32 MiB are in 16");
}

/// A region with a page whose copy on the device is corrupted.
fn spoilt(overspill: &Overspill) -> Region {
    let mut region = by_signal(overspill);
    fill(&mut region);
    let memory_files = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    for link in memory_files {
        let is_memory = std::fs::read_link(link.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"));
        if is_memory {
            let file = std::fs::OpenOptions::new().write(true).open(link.path()).unwrap();
            file.write_all_at(&vec![0xbb; SIZE.0 as usize], 0).unwrap();
        }
    }
    region
}

fn lose_a_page() {
    let Some(overspill) = overspill("ram:64M") else { return };
    let region = spoilt(&overspill);
    assert!((0..region.len() / PAGE).all(|page| is(&region, page, 0)), "we are dead by now");
}

/// Maps a page over the address touched, so that the program goes on.
extern "C" fn patch(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    HANDLED.fetch_add(1, Relaxed);
    // SAFETY: the kernel's siginfo; a page of this child's own mapping is replaced.
    unsafe {
        let page = ((*info).si_addr().addr() / PAGE * PAGE) as *mut c_void;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(page, PAGE, protection, flags, -1, 0);
    }
}

/// A mapping of two pages of an empty file.
fn map_nothing(file: &std::fs::File) -> *mut u8 {
    use std::os::fd::AsRawFd;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a fresh mapping.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, flags, file.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn chain_to_a_handler() {
    // SAFETY: a whole sigaction with a function of the right kind.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = patch;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        for signal in [libc::SIGBUS, libc::SIGSEGV] {
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
    let file = tempfile::tempfile().unwrap();
    let nothing = map_nothing(&file);
    // SAFETY: mapped; the handler puts memory there.
    unsafe { nothing.write_volatile(1) };
    let Some(overspill) = overspill("ram:64M") else { return };
    let region = spoilt(&overspill);
    // SAFETY: as above.
    unsafe { nothing.add(PAGE).write_volatile(1) };
    assert_eq!(HANDLED.load(Relaxed), 2, "before there was a region and after");
    let lost = (0..region.len() / PAGE).find(|&page| !is(&region, page, 0));
    println!("handled {} and lost page {lost:?}", HANDLED.load(Relaxed));
}
