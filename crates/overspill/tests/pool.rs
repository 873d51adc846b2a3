//! Pools and their vectors through the public interface: threads, limits, page sizes, files.

use overspill::{Bytes, Error, Held, PageNo, Pool, PoolError, SpillVec};
use proptest::prelude::*;

#[path = "../examples/group_by.rs"]
#[allow(dead_code, reason = "its main is run by hand")]
mod group_by;

const MEMORY: Bytes = Bytes(4 << 20);
const FRAMES: u32 = 1024;

fn pool(swap: &str) -> Pool {
    Pool::builder().memory(MEMORY).swap(swap.parse().unwrap()).build().unwrap()
}

fn next(random: &mut u64) -> u64 {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// Every word of a page is the count of its changes, so that a torn page is detected.
fn change(bytes: &mut [u8]) {
    let count = u64::from_ne_bytes(bytes[..8].try_into().unwrap()) + 1;
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&count.to_ne_bytes()));
}

fn is_whole(bytes: &[u8]) -> bool {
    bytes.chunks_exact(8).all(|word| word == &bytes[..8])
}

/// Threads change, read and look at pages of three times the memory; returns the number of changes.
fn hammer(pool: &Pool, pages: u32, threads: u64, steps: u64) -> u64 {
    let run = |seed: u64| {
        let (mut random, mut changes) = (seed, 0);
        for step in 0..steps {
            let page = PageNo(next(&mut random) as u32 % pages);
            match next(&mut random) % 8 {
                0..3 => {
                    change(&mut pool.write(page).unwrap());
                    changes += 1;
                }
                3 => pool.try_write(page).unwrap().into_iter().for_each(|mut guard| {
                    change(&mut guard);
                    changes += 1;
                }),
                4 => {
                    let words: Option<[u64; 64]> = pool.read_optimistic(page, 1024);
                    assert!(words.is_none_or(|words| words.iter().all(|&word| word == words[0])));
                }
                5 if step % 64 == 0 => {
                    let last = (page.0 + 100).min(pages);
                    pool.prefetch((page.0..last).map(PageNo)).unwrap();
                }
                _ => assert!(is_whole(&pool.read(page).unwrap()), "page {page} is torn"),
            }
        }
        changes
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=threads).map(|seed| scope.spawn(move || run(seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

fn changes_in(pool: &Pool, pages: u32) -> u64 {
    let count = |page| {
        let guard = pool.read(PageNo(page)).unwrap();
        assert!(is_whole(&guard), "page {page} is torn");
        u64::from_ne_bytes(guard[..8].try_into().unwrap())
    };
    (0..pages).map(count).sum()
}

#[test]
fn threads_lose_no_change_on_memory() {
    let pool = pool("ram:16M");
    assert_eq!(hammer(&pool, 3 * FRAMES, 4, 20_000), changes_in(&pool, 3 * FRAMES));
    assert!(pool.summary().pages_out > 0 && pool.last_error().is_none());
}

#[test]
fn threads_lose_no_change_on_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let pool = pool(&format!("file:{}", directory.path().display()));
    assert_eq!(hammer(&pool, 3 * FRAMES, 4, 6_000), changes_in(&pool, 3 * FRAMES));
    assert_eq!(pool.last_error(), None);
}

/// Few pages and many threads: they contend for the same ones.
#[test]
fn threads_lose_no_change_on_the_same_pages() {
    let pool = pool("ram:16M");
    assert_eq!(hammer(&pool, 4, 8, 20_000), changes_in(&pool, 4));
}

#[test]
fn large_pages_keep_every_byte() {
    for (page, memory) in [(64 << 10, 4 << 20), (2 << 20, 32 << 20)] {
        let builder = Pool::builder().memory(Bytes(memory)).page_size(Bytes(page));
        let pool = builder.swap("ram:160M".parse().unwrap()).build().unwrap();
        let pages = (3 * memory / page) as u32;
        let fill = |page: u32| page.wrapping_mul(0x0101_0101).to_ne_bytes();
        for page in 0..pages {
            pool.write(PageNo(page)).unwrap().chunks_exact_mut(4).for_each(|word| {
                word.copy_from_slice(&fill(page + 1));
            });
        }
        pool.prefetch([PageNo(0), PageNo(1)]).unwrap();
        for page in 0..pages {
            let guard = pool.read(PageNo(page)).unwrap();
            assert!(guard.chunks_exact(4).all(|word| word == fill(page + 1)), "page {page}");
        }
        assert!(pool.summary().pages_in > 0);
    }
}

#[test]
fn a_pool_with_every_page_pinned_says_so_and_goes_on() {
    let pool = pool("ram:16M");
    let mut guards: Vec<_> = Vec::new();
    let error = loop {
        match pool.read(PageNo(guards.len() as u32)) {
            Ok(guard) => guards.push(guard),
            Err(error) => break error,
        }
    };
    assert_eq!(guards.len(), FRAMES as usize);
    assert_eq!(error, PoolError::AllPinned { pages: FRAMES as usize });
    guards.pop();
    pool.write(PageNo(5000)).unwrap().fill(1);
}

#[test]
fn guards_exclude_as_a_lock_does() {
    let pool = pool("ram:16M");
    let (one, two) = (pool.read(PageNo(1)).unwrap(), pool.read(PageNo(1)).unwrap());
    assert!(pool.try_write(PageNo(1)).unwrap().is_none());
    assert!(pool.try_read(PageNo(1)).unwrap().is_some());
    drop((one, two));
    std::thread::scope(|scope| {
        let mut writer = pool.try_write(PageNo(1)).unwrap().unwrap();
        assert!(pool.try_read(PageNo(1)).unwrap().is_none());
        assert_eq!(pool.read_optimistic::<u8>(PageNo(1), 0), None);
        let reader = scope.spawn(|| pool.read(PageNo(1)).unwrap()[9]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        writer[9] = 3;
        drop(writer);
        assert_eq!(reader.join().unwrap(), 3);
    });
}

#[test]
fn a_full_device_is_an_error_and_what_is_discarded_makes_room() {
    let pool = pool("ram:4M");
    let error = (0..4 * FRAMES).find_map(|page| {
        let mut guard = match pool.write(PageNo(page)) {
            Ok(guard) => guard,
            Err(error) => return Some(error),
        };
        guard.fill(page as u8 | 1);
        None
    });
    assert!(matches!(error, Some(PoolError::OutOfSwap { .. })), "{error:?}");
    pool.discard(PageNo(0), 500).unwrap();
    assert_eq!(pool.read(PageNo(499)).unwrap()[0], 0);
    assert_eq!(pool.read(PageNo(500)).unwrap()[0], 500u32 as u8 | 1);
    (0..400).for_each(|page| pool.write(PageNo(page)).unwrap().fill(1));
}

#[test]
fn settings_and_numbers_that_cannot_work_are_refused_in_words() {
    let build = |page: u64, memory: u64| {
        let builder = Pool::builder().memory(Bytes(memory)).page_size(Bytes(page));
        builder.swap("ram:16M".parse().unwrap()).build().map(drop).unwrap_err()
    };
    for page in [0, 2048, 5000, 4 << 20] {
        assert!(matches!(build(page, 64 << 20), Error::PageSizeChosen(..)), "{page}");
    }
    assert!(build(2 << 20, 16 << 20).to_string().contains("at least 32 MiB"));
    assert!(matches!(build(4096, 1 << 20), Error::LimitTooSmall(..)));
    let pool = pool("ram:16M");
    let beyond = PageNo(pool.pages() as u32);
    let error = pool.read(beyond).unwrap_err();
    assert!(error.to_string().contains("numbered from 0 to"), "{error}");
    assert!(pool.prefetch([beyond]).is_err() && pool.discard(beyond, 1).is_err());
}

/// Two to a page, so that a few thousand do not fit into memory.
type Wide = [u64; 256];

fn wide(value: u64) -> Wide {
    let mut wide = [value; 256];
    wide[7] = !value;
    wide
}

#[derive(Clone, Debug)]
enum Op {
    Push(u64),
    Extend(Vec<u64>),
    Set(usize, u64),
    Get(usize),
    Double,
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => any::<u64>().prop_map(Op::Push),
        4 => prop::collection::vec(any::<u64>(), 0..1500).prop_map(Op::Extend),
        6 => (any::<usize>(), any::<u64>()).prop_map(|(index, value)| Op::Set(index, value)),
        6 => any::<usize>().prop_map(Op::Get),
        1 => Just(Op::Double),
        1 => Just(Op::Clear),
    ]
}

fn play(vec: &mut SpillVec<Wide>, model: &mut Vec<u64>, op: Op) {
    let place = |index: usize| index.checked_rem(model.len());
    match op {
        Op::Push(value) => {
            vec.push(wide(value)).unwrap();
            model.push(value);
        }
        Op::Extend(values) => {
            vec.extend(values.iter().map(|&value| wide(value)));
            model.extend(values);
        }
        Op::Set(index, value) => {
            if let Some(index) = place(index) {
                vec.set(index, wide(value)).unwrap();
                model[index] = value;
            }
        }
        Op::Get(index) => {
            let index = place(index).unwrap_or(index);
            assert_eq!(vec.get(index).unwrap(), model.get(index).copied().map(wide));
        }
        Op::Double => {
            let double = |_, chunk: &mut [Wide]| {
                chunk.iter_mut().for_each(|element| *element = wide(element[0].wrapping_mul(2)));
            };
            vec.for_each_chunk(3, double).unwrap();
            model.iter_mut().for_each(|value| *value = value.wrapping_mul(2));
        }
        Op::Clear => {
            vec.clear();
            model.clear();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn a_vector_is_a_vector(ops in prop::collection::vec(op(), 1..24)) {
        let pool = pool("ram:96M");
        let (mut vec, mut other) = (SpillVec::<Wide>::new(&pool), SpillVec::<Wide>::new(&pool));
        let mut model = Vec::new();
        other.extend((0..3000).map(wide));
        for op in ops {
            play(&mut vec, &mut model, op);
            prop_assert_eq!(vec.len(), model.len());
        }
        let all: Vec<Wide> = vec.iter().map(Result::unwrap).collect();
        prop_assert_eq!(all, model.into_iter().map(wide).collect::<Vec<_>>());
        // The neighbour in the same pool is unchanged.
        prop_assert!(other.iter().map(Result::unwrap).eq((0..3000).map(wide)));
    }
}

#[test]
fn vectors_that_are_dropped_give_their_swap_back() {
    let pool = pool("ram:12M");
    // Six times what the device holds, one vector after the other.
    for round in 0..6u64 {
        let mut vec = SpillVec::new(&pool);
        vec.try_extend((0..1_500_000).map(|n| n ^ round)).unwrap();
        assert!(vec.iter().map(Result::unwrap).eq((0..1_500_000).map(|n| n ^ round)));
    }
    assert_eq!(pool.last_error(), None);
}

#[test]
fn iteration_reads_ahead() {
    let directory = tempfile::tempdir().unwrap();
    let pool = pool(&format!("file:{}", directory.path().display()));
    let mut vec = SpillVec::new(&pool);
    vec.try_extend(0..2_000_000u64).unwrap();
    let ahead = |pool: &Pool| pool.summary().counters["swap_ra"];
    let (before, faults) = (ahead(&pool), pool.summary().counters["pgmajfault"]);
    assert_eq!(vec.iter().map(Result::unwrap).sum::<u64>(), 1_999_999 * 1_000_000);
    // 3907 pages, of which 1024 were in memory.
    let (read, missed) = (ahead(&pool) - before, pool.summary().counters["pgmajfault"] - faults);
    assert!(read > 2500 && missed < read / 20, "{read} read ahead, {missed} missed");
}

#[test]
fn the_group_by_example_counts_right() {
    let pool = pool("ram:64M");
    group_by::check(&pool, 400_000, 150_000).unwrap();
    assert!(pool.summary().pages_out > 0);
}

#[test]
fn a_held_page_keeps_others_out_and_its_pool_alive() {
    let pool = pool("ram:16M");
    pool.write(PageNo(1)).unwrap().fill(7);
    let reader = pool.hold(PageNo(1), Held::ToRead).unwrap();
    assert!(pool.try_write(PageNo(1)).unwrap().is_none());
    assert!(pool.try_read(PageNo(1)).unwrap().is_some());
    // SAFETY: the page is held, and nobody else writes.
    assert_eq!(unsafe { reader.as_mut_ptr().add(4095).read() }, 7);
    drop(reader);
    let writer = pool.hold(PageNo(1), Held::ToWrite).unwrap();
    assert!(pool.try_read(PageNo(1)).unwrap().is_none());
    // SAFETY: held to be written.
    unsafe { writer.as_mut_ptr().write(8) };
    drop(pool);
    // SAFETY: as above.
    assert_eq!(unsafe { writer.as_mut_ptr().read() }, 8);
}
