//! Programs that are not started, with a pager in them and, most of them, without.

use crate::installation::{Installation, assert_fails, can_be_kept, chmod, stderr};
use std::path::Path;

#[cfg(target_arch = "x86_64")]
const LOADER: &str = "ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
const LOADER: &str = "ld-linux-aarch64.so.1";

fn assert_refused(installation: &Installation, program: &Path, status: i32, words: &[&str]) {
    let name = program.file_name().unwrap().to_str().unwrap();
    let words = [&[name], words].concat();
    assert_fails(&mut installation.run_inside(&[], &[program]), status, &words);
}

#[test]
fn programs_that_do_not_exist() {
    let installation = Installation::bare();
    for name in ["no-such-program", "./no-such-program", "/etc/passwd/program"] {
        assert_fails(&mut installation.run(&[], &[name]), 127, &[name, "no such program", "$PATH"]);
    }
    assert_fails(&mut installation.run(&[], &[""]), 127, &["no such program"]);
}

#[test]
fn files_that_cannot_be_executed() {
    let installation = Installation::bare();
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
    let installation = Installation::bare();
    let lost = installation.executable("lost", "#!/no/such/interpreter\n");
    let words = ["/no/such/interpreter (interpreter of", "No such file"];
    assert_refused(&installation, &lost, 126, &words);

    let interpreter = installation.cc(&["-static"], "interpreter");
    let direct = installation.executable("direct", format!("#! {} -x\n", interpreter.display()));
    assert_refused(&installation, &direct, 125, &["interpreter of", "statically linked"]);
    let chain = installation.executable("chain", format!("#!{}\n", direct.display()));
    assert_refused(&installation, &chain, 125, &["interpreter of", "statically linked"]);

    let myself = installation.path("loop");
    installation.executable("loop", format!("#!{}\n", myself.display()));
    assert_refused(&installation, &myself, 126, &["cannot be executed", "symbolic links"]);
}

#[test]
fn programs_that_nothing_can_be_preloaded_into() {
    let installation = Installation::bare();
    let cases: [(&str, &[&str], i32, &[&str]); 4] = [
        ("static", &["-static"], 125, &["statically linked", "shared libc"]),
        ("static-pie", &["-static-pie"], 125, &["statically linked"]),
        (
            "musl",
            &["-Wl,--dynamic-linker=/lib/ld-musl.so.1"],
            125,
            &["/lib/ld-musl.so.1", "needs glibc"],
        ),
        (
            "homeless",
            &[&format!("-Wl,--dynamic-linker=/nowhere/{LOADER}")],
            126,
            &["/nowhere/ld-linux", "does not exist"],
        ),
    ];
    for (name, flags, status, words) in cases {
        let program = installation.cc(flags, name);
        assert_refused(&installation, &program, status, words);
    }
}

#[test]
fn programs_for_other_machines() {
    let installation = Installation::bare();
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
fn programs_with_more_rights_than_their_user() {
    let installation = Installation::bare();
    let program = installation.cc(&[], "privileged");
    for mode in [0o4755, 0o2755] {
        chmod(&program, mode);
        assert_refused(&installation, &program, 125, &["setuid or setgid", "copy"]);
    }
    chmod(&program, 0o755);
    // CAP_NET_RAW, permitted and effective, in the revision 2 format.
    let words: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(&program, "security.capability", &value, flags) {
        Ok(()) => assert_refused(&installation, &program, 125, &["capabilities", "copy"]),
        Err(errno) => println!("skipped: file capabilities cannot be set here: {errno}"),
    }
}

/// A section by which every Go program is known, made by hand: it takes no Go.
#[test]
fn go_programs() {
    let installation = Installation::bare();
    let section =
        "__attribute__((section(\".go.buildinfo\"))) int v = 1; int main(void) { return 0; }";
    std::fs::write(installation.path("main.c"), section).unwrap();
    for (name, flags) in [("go", &[][..]), ("go-stripped", &["-s"]), ("go-static", &["-static"])] {
        let program = installation.cc(flags, name);
        assert_refused(&installation, &program, 125, &["is a Go program", "lose its pages"]);
    }
}

/// A keeper takes what nothing can be preloaded into.
#[test]
fn a_keeper_needs_nothing_of_a_program() {
    if !can_be_kept() {
        return;
    }
    let installation = Installation::bare();
    for flags in [&["-static"], &["-static-pie"]] {
        let program = installation.cc(flags, "static");
        let output = installation.run(&[], &[&program]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(!stderr(&output).contains("from inside"), "{}", stderr(&output));
    }
    let text = installation.executable("text", [0, 1, 2]);
    assert_fails(&mut installation.run(&[], &[&text]), 126, &["neither an ELF program"]);
}

#[test]
fn programs_with_a_sanitizer() {
    let installation = Installation::bare();
    let probe = std::process::Command::new("cc").args(["-print-file-name=libasan.so"]).output();
    if !probe.is_ok_and(|output| output.stdout.starts_with(b"/")) {
        println!("skipped: this cc has no libasan");
        return;
    }
    let program = installation.cc(&["-fsanitize=address"], "sanitized");
    assert_refused(&installation, &program, 125, &["AddressSanitizer", "use a build without"]);
}
