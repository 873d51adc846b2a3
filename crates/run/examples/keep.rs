//! `keep LIMIT_MIB PROGRAM ARGS`: the program, paged by a keeper to plain memory.
use overspill_area::AreaNo;
use overspill_base::stats::{Event, Stats};
use overspill_base::{Bytes, sync::Arc};
use overspill_device::any::Device;
use overspill_engine::{Swap, Tuning};
use overspill_keeper::KeeperParts;
use overspill_run::{Front, RunParts};

fn main() {
    let mut args = std::env::args_os().skip(1);
    let mib: u64 = args.next().unwrap().to_str().unwrap().parse().unwrap();
    let mut command = std::process::Command::new(args.next().unwrap());
    command.args(args);
    let memory = Bytes(mib << 20);
    let parts = RunParts {
        memory,
        keeper: Box::new(move |holder| {
            let spec = "ram:8G".parse().unwrap();
            let options = overspill_device::file::OpenOptions { swap_size: None, force: false };
            let device: Arc<dyn overspill_device::SwapDevice> =
                Device::open(&spec, &options).unwrap().bare();
            Ok(KeeperParts {
                memory,
                swaps: vec![Swap::private(AreaNo(0), device, 0, 7)?],
                stats: Stats::on_heap(),
                holder,
                tuning: Tuning::default(),
                report: Box::new(|line| eprintln!("keep: {line}")),
            })
        }),
        say: Box::new(|line| eprintln!("keep: {line}")),
    };
    let mut front = Front::start(parts, command).unwrap();
    let status = front.watch().unwrap();
    if let Some(keeper) = front.keeper_of() {
        let stats = keeper.engine().stats();
        for event in [
            Event::pgfault,
            Event::pgmajfault,
            Event::pgadopt,
            Event::pswpin,
            Event::pswpout,
            Event::pgzero,
            Event::pages_lost,
            Event::evict_pinned,
            Event::evict_refused,
            Event::pgdiscard,
        ] {
            eprint!("{event:?} {} ", stats.get(event));
        }
        eprintln!("{:?}", keeper.engine().status());
    }
    std::process::exit(status.code().unwrap_or(1));
}
