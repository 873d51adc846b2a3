//! Scratch.
fn main() {
    let presets = std::env::args().skip(1).collect();
    let r = overspill_sim::run(&overspill_sim::RunOptions { presets, seed: 1, seconds: None }, &|l| eprintln!("{l}")).unwrap();
    for e in &r.experiments { println!("{}", e.name); for f in &e.figures { println!("  {:<36} {:?} {:?} {} | {:.3} {:.3} {:+.1} % | {} {:?}", f.what, f.published_before, f.published_after, f.claimed, f.before, f.after, f.change_percent(), f.mark, f.holds); } }
}
