//! Nothing is left of what has ended: a test of its own process, because it counts mappings.
//!
//! Skips, printing the reason, what is not permitted.

use overspill::{Bytes, Error, Overspill, Reach};

const REACHES: [Reach; 4] = [Reach::All, Reach::Program, Reach::Guards, Reach::Shut];
/// Rounds; more than would fit if each kept its addresses.
const ROUNDS: usize = 40;

/// Mappings of this process, and what they hold in MiB.
fn held() -> (usize, u64) {
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    (mappings, size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10)
}

/// Makes one, swaps, and ends it; false, printing the reason, if that is not possible here.
fn make_and_end(reach: Reach) -> bool {
    let builder = Overspill::builder().memory(Bytes(8 << 20)).swap("ram:64M".parse().unwrap());
    let overspill = match builder.reach(reach).build() {
        Ok(overspill) => overspill,
        Err(lack @ Error::Space(_)) => {
            println!("{reach:?} skipped: {lack}");
            return false;
        }
        Err(error) => panic!("{reach:?}: {error}"),
    };
    overspill.region(Bytes(16 << 20)).unwrap().fill(7);
    true
}

#[test]
fn nothing_is_left_of_what_has_ended() {
    for reach in REACHES {
        if !make_and_end(reach) {
            continue;
        }
        let before = held();
        (0..ROUNDS).for_each(|_| assert!(make_and_end(reach)));
        let after = held();
        println!("{reach:?}: {before:?}, {after:?}");
        // The allocator keeps some of what ended threads had.
        assert!(after.0 < before.0 + ROUNDS && after.1 < before.1 + 1024, "{reach:?}");
    }
}
