//! Who may be paged by a keeper, and what becomes of the others: each row of docs/limits.md.

use crate::keeper;
use overspill_programs::bench::{Bench, overspill};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Rows of the table: who, and where the memory is.
fn rows() -> Vec<(String, String)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.md");
    let page = std::fs::read_to_string(page).unwrap();
    let table = page.lines().skip_while(|line| !line.starts_with("| who, and what |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        (cells[0].to_owned(), cells[1].to_owned())
    });
    rows.collect()
}

fn script(words: &[&str]) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/rights.sh");
    let output = Command::new(script).args(words).output().unwrap();
    let (said, errors) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{words:?}: {} {errors}", String::from_utf8_lossy(&said));
    String::from_utf8(said).unwrap().trim_end().to_owned()
}

/// As much as a compiler without 32-bit libraries can.
fn program32(bench: &Bench) -> String {
    let (source, program) = (concat!(env!("CARGO_MANIFEST_DIR"), "/word32.c"), bench.path("32"));
    let mut cc = Command::new("cc");
    cc.args(["-m32", "-nostdlib", "-static", "-o"]).arg(&program).arg(source);
    let compiled = cc.output().is_ok_and(|output| output.status.success());
    if compiled { program.display().to_string() } else { String::new() }
}

#[test]
fn everyone_is_where_the_table_says() {
    let tools = ["cc", "setcap", "setpriv", "unshare", "overspill-forks"];
    let Some(bench) = keeper::bench(&tools) else { return };
    let open = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755));
    open(&bench.path("")).unwrap();
    let directory = bench.path("installed");
    let directory = directory.to_str().unwrap();
    let (program, overspill) = (bench.cc("rights.c"), overspill());
    let built = overspill.parent().unwrap().to_str().unwrap();
    script(&["prepare", directory, built, program.to_str().unwrap(), &program32(&bench)]);
    let rows = rows();
    assert!(rows.len() > 15, "{rows:?}");
    let wrong = rows.iter().filter_map(|(row, expected)| {
        let found = script(&[row, directory]);
        println!("{row}: {found}");
        let is_so = found.starts_with(expected) || found.starts_with("skipped");
        (!is_so).then(|| format!("{row}: {found}, not {expected}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
