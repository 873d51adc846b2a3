//! The commands of the guide: each block of shell in `docs/guide` is run as it is written.
//!
//! A block is a script for `bash -eu`, in an empty directory, with `overspill` on PATH. A comment
//! before it may say what it needs (`<!-- needs: redis-server -->`), or why it is not run (`<!--
//! not run: needs a cluster -->`).

use overspill_programs::bench::{Bench, overspill};
use std::ffi::OsString;
use std::path::Path;

struct Block {
    place: String,
    needs: Vec<String>,
    not_run: Option<String>,
    script: String,
}

/// The blocks of shell in a page.
fn blocks(page: &Path) -> Vec<Block> {
    let text = std::fs::read_to_string(page).unwrap();
    let name = page.file_name().unwrap().display();
    let (mut blocks, mut before): (Vec<Block>, &str) = (Vec::new(), "");
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line == "```sh" {
            let said =
                |what: &str| before.strip_prefix("<!-- ")?.strip_prefix(what)?.strip_suffix(" -->");
            let script = lines.by_ref().take_while(|(_, line)| *line != "```");
            blocks.push(Block {
                place: format!("{name}:{}", number + 1),
                needs: said("needs: ")
                    .unwrap_or("")
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect(),
                not_run: said("not run: ").map(str::to_owned),
                script: script.map(|(_, line)| format!("{line}\n")).collect(),
            });
        }
        before = line;
    }
    blocks
}

fn run(block: &Block) -> bool {
    if let Some(reason) = &block.not_run {
        println!("not run: {}: {reason}", block.place);
        return false;
    }
    let needs: Vec<&str> = block.needs.iter().map(String::as_str).chain(["bash"]).collect();
    let Some(bench) = Bench::with(&needs) else { return false };
    let mut path = OsString::from(overspill().parent().unwrap());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let job = bench.job(&["bash", "-euc", &block.script]).env("PATH", path).patience(120);
    let ended = job.plain().end();
    assert!(ended.status.success(), "{}: {ended}", block.place);
    true
}

#[test]
fn every_command_of_the_guide_does_what_it_is_said_to_do() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    let mut pages: Vec<_> = guide.read_dir().unwrap().map(|page| page.unwrap().path()).collect();
    pages.sort();
    let all: Vec<Block> = pages.iter().flat_map(|page| blocks(page)).collect();
    let ran = all.iter().filter(|block| run(block)).count();
    println!("{ran} of {} blocks run", all.len());
    let not_run = all.iter().filter(|block| block.not_run.is_some()).count();
    assert!(all.len() >= 12 && 2 * not_run <= all.len(), "{not_run} of {} are not run", all.len());
}
