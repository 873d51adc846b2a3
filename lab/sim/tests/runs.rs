//! Properties of simulations: repeatable runs, and errors for impossible machines.

use overspill_sim::{ExploreOptions, Parameter, RunOptions, SweepOptions, explore, run, sweep};

fn scan_more(seed: u64) -> String {
    let presets = vec!["scan-more".to_owned()];
    let report = run(&RunOptions { presets, seed, seconds: Some(0.01) }, &|_| ()).unwrap();
    format!("{report:?}")
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_does_not() {
    let first = scan_more(7);
    assert_eq!(first, scan_more(7));
    assert_ne!(first, scan_more(8));
}

#[test]
fn another_thread_gives_the_same_bytes_too() {
    let there = std::thread::spawn(|| scan_more(7)).join().unwrap();
    assert_eq!(there, scan_more(7));
}

fn sweep_error(over: &str, value: f64) -> String {
    let options = SweepOptions {
        over: over.parse().unwrap(),
        values: vec![value],
        presets: vec!["modern".into()],
        seconds: 0.001,
        seed: 1,
    };
    sweep(&options, &|_| ()).unwrap_err().to_string()
}

#[test]
fn machines_that_cannot_be_are_named() {
    for (over, value, says) in [
        ("cpus", 0.0, "cpus cannot be 0: it is from 1 to 1024 here"),
        ("cpus", 2000.0, "cpus cannot be 2000: it is from 1 to 1024 here"),
        ("sockets", 17.0, "sockets cannot be 17: it is from 1 to 16 here"),
        ("devices", 33.0, "devices cannot be 33: it is from 1 to 32 here"),
        ("size", 0.001, "size (GiB) cannot be 0.001: it is from 0.0625 to 16384 here"),
        (
            "size",
            1e30,
            "size (GiB) cannot be 1000000000000000000000000000000: it is from 0.0625 to 16384 here",
        ),
        ("fragmentation", 1.0, "fragmentation cannot be 1: it is from 0 to 0.95 here"),
        ("clients", 1025.0, "clients cannot be 1025: it is from 1 to 1024 here"),
        ("servers", 0.0, "servers cannot be 0: it is from 1 to 1024 here"),
        ("deaths", 33.0, "deaths cannot be 33: it is from 0 to 32 here"),
    ] {
        assert_eq!(sweep_error(over, value), says);
    }
    let unknown = "colour".parse::<Parameter>().unwrap_err().to_string();
    assert!(
        unknown.contains("cpus, sockets, devices, size, fragmentation, clients, servers, deaths"),
        "{unknown}"
    );
}

#[test]
fn the_oldest_and_the_newest_preset_go_through_a_small_sweep_of_every_parameter() {
    for over in ["cpus", "sockets", "devices", "size", "fragmentation", "clients"] {
        let over: Parameter = over.parse().unwrap();
        let value = if over == Parameter::Fragmentation { 0.5 } else { 2.0 };
        let options = SweepOptions {
            over,
            values: vec![value],
            presets: vec!["linux-2.6.23".into(), "modern".into()],
            seconds: 0.001,
            seed: 1,
        };
        let points = sweep(&options, &|_| ()).unwrap().points;
        assert_eq!(points.len(), 2);
        let scores: Vec<f64> = points.iter().map(|point| point.sample.score).collect();
        // The oldest preset has collapsed with 64 CPUs, and may make no progress in this time.
        assert!(scores[0] >= 0.0 && scores[1] > 0.0, "{over:?}: {scores:?}");
    }
}

/// As many as take a few seconds; `make explore` runs more.
const SCHEDULES: u64 = 1000;

#[test]
fn no_schedule_breaks_a_promise() {
    explore(&ExploreOptions { seed: 1, runs: SCHEDULES }, &|_| ()).unwrap();
}

/// Machines on a network, by `over`.
fn on_network(over: &str, values: &[f64]) -> Vec<(f64, f64)> {
    let options = SweepOptions {
        over: over.parse().unwrap(),
        values: values.to_vec(),
        presets: vec!["modern".into()],
        seconds: 0.01,
        seed: 1,
    };
    let points = sweep(&options, &|_| ()).unwrap().points;
    points.iter().map(|p| (p.sample.score, p.sample.server_percent.unwrap())).collect()
}

#[test]
fn servers_are_shared_by_all_machines() {
    let [few, many] = on_network("servers", &[1.0, 64.0])[..] else { panic!() };
    assert!(few.1 > 80.0 && many.1 < 50.0, "{few:?} {many:?}");
    assert!(many.0 > 3.0 * few.0, "{few:?} {many:?}");
}

#[test]
fn machines_wait_until_a_dead_server_is_replaced_and_lose_nothing() {
    // The second is longer by the time it takes; in the rest as much is done as otherwise.
    let [none, some] = on_network("deaths", &[0.0, 8.0])[..] else { panic!() };
    assert!(some.0 * 100.0 < none.0, "{none:?} {some:?}");
}
