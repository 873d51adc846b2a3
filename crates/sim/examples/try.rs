//! Scratch.
use overspill_area::{Preset, ScanBase};
use overspill_engine::Tuning;
use overspill_sim::*;
use overspill_vcpu::Costs;
fn main() {
    let secs: f64 = std::env::args().nth(1).map_or(0.05, |s| s.parse().unwrap());
    let which = std::env::args().nth(2).unwrap_or("s1".into());
    let plan = Plan { cpus: 48, sockets: 2, nodes: 2, threads: 16, processes: true, frames: 8192,
        working_set: 4.0, devices: 1, device_slots: 1 << 19, device: PMEM, foreign: 0.6,
        pattern: Pattern::Random, interrupt_cpu: None, settle_s: 0.02, seconds: secs };
    let t57 = Tuning::of(Preset::Linux5_7);
    let mut sm = t57; sm.area.scan_more = true;
    let mut sb = sm; sb.area.scan_base = ScanBase::PerCpu;
    let s2 = Plan { cpus: 36, nodes: 1, threads: 8, processes: false, working_set: 2.0, frames: 16384, foreign: 0.0, device_slots: 1<<18, ..plan.clone() };
    let nv = Plan { device: NVME, ..plan.clone() };
    let op = Plan { device: OPTANE, ..plan.clone() };
    let runs: Vec<(&str, Plan, Tuning)> = match &which[..] {
        "s1" => vec![("s1 before", plan.clone(), t57), ("s1 after", plan.clone(), sm), ("s3 after", plan.clone(), sb)],
        "s2" => vec![("4.8", s2.clone(), Tuning::of(Preset::Linux4_8)), ("4.11", s2.clone(), Tuning::of(Preset::Linux4_11))],
        "nv" => vec![("nvme b", nv.clone(), sm), ("nvme a", nv.clone(), sb), ("opt b", op.clone(), sm), ("opt a", op.clone(), sb)],
        "mod" => vec![("modern", plan.clone(), Tuning::of(Preset::Modern))],
        "s4" => { let p4 = Plan { cpus: 4, sockets: 1, nodes: 1, threads: 4, processes: true, frames: 16384, working_set: 8.0, devices: 1, device_slots: 1<<19, device: DISK, foreign: 0.0, settle_s: 1.0, seconds: secs, pattern: Pattern::Fresh, interrupt_cpu: Some(0) };
          let b = Tuning::of(Preset::Linux2_6_23); let mut a = b; a.rotate_batch_pages = 14; vec![("2.6.23", p4.clone(), b), ("batched", p4, a)] }
        _ => vec![],
    };
    for (name, plan, tuning) in runs {
        let start = std::time::Instant::now();
        let mut c = Costs::DEFAULT; for kv in std::env::args().skip(3) { let (k,v) = kv.split_once("=").unwrap(); let v: u64 = v.parse().unwrap(); match k { "evict" => c.evict_page_ns = v, "fault" => c.fault_ns = v, "list" => c.list_move_ns = v, "chg" => c.cache_change_ns = v, "scan" => c.scan_slot_ns = v, "copy" => c.copy_page_ns = v, "access" => c.access_ns = v, "mem" => c.memory_ns = v, "unfair" => c.unfair_locks = v > 0, _ => panic!() } }
        let s = plan.run(tuning, Box::leak(Box::new(c)), 1).unwrap();
        println!("{:?}", s.ping); println!("== {name}: score {:.0} in {:.2} out {:.2} ratio {:.2} p50 {:.1} p99 {:.1} locks {:.1} % wall {:.2}", s.score, s.swap_in_gb_per_s, s.swap_out_gb_per_s, s.fault_ratio, s.fault_p50_us, s.fault_p99_us, s.locks_percent, start.elapsed().as_secs_f64());
        for l in s.locks.iter().take(10) { println!("   {:>12} {:<24} {:6.2} % {:9.0}/s cont {:5.1} % max {:8.1} us hold {:6.0} ns", l.class, l.path, l.share_percent, l.acquisitions_per_s, l.contended_percent, l.wait_max_us, l.hold_ns); }
    }
}
