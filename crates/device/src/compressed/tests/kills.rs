//! Processes killed while they write.

use super::*;

/// Kills writers at random moments. Slots of others stay readable, the store stays usable, and at
/// most one place per kill is lost.
#[test]
fn a_killed_writer_costs_one_place() {
    const KILLS: usize = 40;
    let device = device(512, Algorithm::Lz4);
    let (mut queue, pages) = (queue(&device), Pages::new(1));
    (0..128).for_each(|slot| put(&mut *queue, &pages, slot, slot.into(), 1200));
    for kill in 0..KILLS {
        let victim = fork_writer(&device);
        std::thread::sleep(std::time::Duration::from_micros(1000 + (kill as u64 * 977) % 5000));
        // SAFETY: kill and waitpid touch no memory of ours; the pid is our child's, unreaped.
        unsafe {
            libc::kill(victim, libc::SIGKILL);
            libc::waitpid(victim, std::ptr::null_mut(), 0);
        }
        (0..128).for_each(|slot| assert_has(&mut *queue, &pages, slot, slot.into(), 1200));
        // What the victim held is released on its behalf.
        device.discard(Slot(128), 384).unwrap();
        device.store.check_leaked(kill + 1);
    }
    (128..512).for_each(|slot| put(&mut *queue, &pages, slot, slot.into(), 3000));
    (0..128).for_each(|slot| assert_has(&mut *queue, &pages, slot, slot.into(), 1200));
    device.store.check_leaked(KILLS);
}

/// Forks a child that writes slots 128 to 512 over and over, and never returns. Everything it needs
/// is allocated before the fork: another thread may hold the allocator's lock.
fn fork_writer(device: &CompressedDevice) -> i32 {
    let mut queue = queue(device);
    let pages = Pages::new(1);
    // SAFETY: the child works on its own memory and on atomics; it ends by a signal.
    let pid = unsafe { libc::fork() };
    if pid != 0 {
        return pid;
    }
    let mut round = 0;
    loop {
        for slot in 128..512 {
            put(&mut *queue, &pages, slot, round, (u64::from(slot * 61) + round) as usize % 4097);
            round += 1;
        }
    }
}
