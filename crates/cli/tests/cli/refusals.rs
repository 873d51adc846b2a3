//! Programs that are not started.

use crate::installation::{Installation, assert_fails, can_run, chmod, stderr};
use std::path::Path;

#[cfg(target_arch = "x86_64")]
const LOADER: &str = "ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
const LOADER: &str = "ld-linux-aarch64.so.1";

fn assert_refused(installation: &Installation, program: &Path, status: i32, words: &[&str]) {
    let name = program.file_name().unwrap().to_str().unwrap();
    let words = [&[name], words].concat();
    assert_fails(&mut installation.run(&[], &[program]), status, &words);
}

#[test]
fn programs_that_do_not_exist() {
    let installation = Installation::new();
    for name in ["no-such-program", "./no-such-program", "/etc/passwd/program"] {
        assert_fails(&mut installation.run(&[], &[name]), 127, &[name, "no such program", "$PATH"]);
    }
    assert_fails(&mut installation.run(&[], &[""]), 127, &["no such program"]);
}

#[test]
fn files_that_cannot_be_executed() {
    let installation = Installation::new();
    let text = installation.executable("text", "echo hello\n");
    chmod(&text, 0o644);
    assert_refused(&installation, &text, 126, &["cannot be executed", "Permission denied"]);
    assert_refused(&installation, Path::new("/etc"), 126, &["cannot be executed", "directory"]);
    let data = installation.executable("data", b"\x00\x01\x02");
    assert_refused(&installation, &data, 126, &["neither an ELF program nor a script"]);
    let half = installation.executable("half", b"\x7fELF\x02\x01\x01");
    assert_refused(&installation, &half, 126, &["is damaged"]);
}

#[test]
fn scripts_are_judged_by_their_interpreter() {
    let installation = Installation::new();
    let lost = installation.executable("lost", "#!/no/such/interpreter\n");
    let words = ["/no/such/interpreter (interpreter of", "No such file"];
    assert_refused(&installation, &lost, 126, &words);

    let myself = installation.path("loop");
    installation.executable("loop", format!("#!{}\n", myself.display()));
    assert_refused(&installation, &myself, 126, &["cannot be executed", "symbolic links"]);
}

#[test]
fn programs_without_their_loader() {
    let installation = Installation::new();
    let flag = format!("-Wl,--dynamic-linker=/nowhere/{LOADER}");
    let program = installation.cc(&[&flag], "homeless");
    assert_refused(&installation, &program, 126, &["/nowhere/ld-linux", "does not exist"]);
}

#[test]
fn programs_for_other_machines() {
    let installation = Installation::new();
    let original = std::fs::read(installation.cc(&[], "original")).unwrap();
    // Offsets of the class and the machine in an ELF header, and foreign values for them.
    let cases = [("short", 4, 1, "32-bit"), ("foreign", 18, 243, "another kind of processor")];
    for (name, offset, byte, words) in cases {
        let mut image = original.clone();
        image[offset] = byte;
        let program = installation.executable(name, image);
        assert_refused(&installation, &program, 125, &[words, "build"]);
    }
}

#[test]
fn nothing_is_needed_of_a_program() {
    if !can_run() {
        return;
    }
    let installation = Installation::new();
    for flags in [&["-static"], &["-static-pie"]] {
        let program = installation.cc(flags, "static");
        let output = installation.run(&[], &[&program]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let text = installation.executable("text", [0, 1, 2]);
    assert_fails(&mut installation.run(&[], &[&text]), 126, &["neither an ELF program"]);
}
