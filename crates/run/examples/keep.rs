//! `keep LIMIT_MIB PROGRAM ARGS`: the program, paged by a keeper to plain memory.
use overspill_base::Bytes;
use overspill_base::stats::Event;
use overspill_run::{KeeperOptions, KeeperProcess, Prepared, has_ended};
use rustix::process::Pid;
use std::process::Command;

fn main() {
    let mut args = std::env::args_os().skip(1).peekable();
    if args.peek().is_none() {
        return overspill_keeper::process::run().unwrap();
    }
    let mib: u64 = args.next().unwrap().to_str().unwrap().parse().unwrap();
    let memory = Bytes(mib << 20);
    let options = KeeperOptions {
        memory,
        swaps: vec!["ram:8G".parse().unwrap()],
        options: overspill_device::file::OpenOptions::default(),
    };
    let say = Box::new(|line: &str| eprintln!("keep: {line}"));
    let (keeper, _) = KeeperProcess::start(Command::new("/proc/self/exe"), options, say).unwrap();
    let stats = keeper.stats().clone();
    let prepared = Prepared::new(memory, keeper).unwrap();
    let mut program = Command::new(args.next().unwrap()).args(args).spawn().unwrap();
    let pid = Pid::from_child(&program);
    let mut front = prepared.follow(pid);
    while !has_ended(pid) {
        std::thread::sleep(front.turn());
    }
    let status = program.wait().unwrap();
    while !front.is_deserted() {
        front.turn();
        front.reap_orphans();
    }
    let end = front.end();
    for (event, name) in Event::ALL.iter().filter(|(event, _)| stats.get(*event) > 0) {
        eprint!("{name} {} ", stats.get(*event));
    }
    eprintln!("{end:?}");
    std::process::exit(status.code().unwrap_or(1));
}
