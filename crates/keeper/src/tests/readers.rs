//! Who reads, and who rests.

use super::episode::{Episode, FIRST, USUAL};
use super::twin::PLACE;
use crate::serve::read::Record;
use crate::serve::readers::WAKEUP;
use overspill_guest::userfault::Fault;
use rustix::event::epoll::{Event, EventData, EventFlags};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How long a reader may take that has a fault to serve.
const PATIENCE: Duration = Duration::from_secs(5);

/// Others sleep without end that saw no doubt before, and find no wake-up after.
#[test]
fn who_has_taken_the_wake_up_does_not_rest_before_it_has_looked() {
    let mut episode = Episode::new(USUAL, 0);
    episode.world.calm();
    episode.steps_until(|this| this.world.is_calm());
    let (shared, guest) = (episode.shared.clone(), episode.shared.guest(FIRST).unwrap());
    guest.put_off(&mut guest.hold(), Fault { at: PLACE.start, thread: 0 });
    let event = |number| Event { flags: EventFlags::IN, data: EventData::new_u64(number) };
    let mut events = vec![event(WAKEUP), event(FIRST)];
    let is_done = AtomicBool::new(false);
    let had_to_be_called = std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let (begun, mut in_vain) = (Instant::now(), false);
            while !is_done.load(SeqCst) {
                in_vain |= guest.has_waiting() && begun.elapsed() > PATIENCE;
                // When all is done it may rest.
                if in_vain || !guest.has_waiting() {
                    shared.readers.call_all();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            in_vain
        });
        shared.follow(&mut episode.worker, &mut Record::tired(), &mut events);
        is_done.store(true, SeqCst);
        calls.join().unwrap()
    });
    assert!(!had_to_be_called, "it rested while a fault waited");
    assert!(guest.hold().waiting.is_empty());
}
