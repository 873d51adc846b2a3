//! Compiles the images of agent and gate.
//!
//! Owns: how `payload/` and `gate/` become flat images, and what an image must be: code and
//! constants alone, with nothing for a loader to do. It is always optimised, whatever is built
//! around it: only so it has no words of panics, and fits.
//! Invariants: the compiler and the linker are those that cargo uses for the same target, with no
//! more of the target than `core`.
//! Rejected: assembling the sections here, which would be a linker; a second package for another
//! target, which cargo cannot build for this one on a stable compiler.

use object::elf::SHF_ALLOC;
use object::{Object, ObjectSection, SectionFlags};
use overspill_calls::{ARGS_MAX, Arg, CALLS};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An image.
struct Image {
    name: &'static str,
    source: &'static str,
    entry: &'static str,
    bytes_max: u64,
}

/// As large as `CODE_BYTES` of `src/words.rs`.
const AGENT: Image = Image {
    name: "agent",
    source: "payload/main.rs",
    entry: "overspill_agent_entry",
    bytes_max: 3 * 4096,
};
/// As large as `GATE_CODE_BYTES` of `src/gate.rs`.
const GATE: Image =
    Image { name: "gate", source: "gate/main.rs", entry: "overspill_gate_entry", bytes_max: 32768 };
/// What the linker adds for loaders, and what has no place in a flat image.
const LOADERS: [&str; 5] = [".dynamic", ".dynsym", ".dynstr", ".hash", ".gnu.hash"];
/// Tables of addresses on AArch64, with their bytes when they have but the loader's own.
const EMPTY_TABLES: [(&str, u64); 2] = [(".got", 8), (".got.plt", 24)];

/// The entry first, then all other code and constants, in one section; what is for loaders behind.
const LAYOUT: &str = "
SECTIONS {
  . = 0;
  .image : { KEEP(*(.text.entry)) *(.text .text.*) *(.rodata .rodata.*) }
  .dynsym : { *(.dynsym) } .dynstr : { *(.dynstr) } .gnu.hash : { *(.gnu.hash) } .hash : { *(.hash) }
  /DISCARD/ : { *(.comment) *(.note .note.*) *(.eh_frame .eh_frame_hdr) *(.gcc_except_table*) }
}
";

fn main() {
    for source in ["build.rs", "payload", "gate", "src/words.rs", "src/gate.rs", "../calls/src"] {
        println!("cargo::rerun-if-changed={source}");
    }
    println!("cargo::rustc-check-cfg=cfg(payload)");
    make(&AGENT);
    // Elsewhere the kernel does not dispatch calls to a program.
    if variable("CARGO_CFG_TARGET_ARCH") == "x86_64" {
        write_calls();
        make(&GATE);
    }
}

/// Writes the table of system calls as the gate has it: what the arguments are, each list once, and
/// which list a number has. It is this machine's, which is the gate's: there is one kind of them.
fn write_calls() {
    const { assert!(cfg!(target_arch = "x86_64"), "the gate can be built on x86-64 only") };
    let mut lists: Vec<[Arg; ARGS_MAX]> = vec![[Arg::Value; ARGS_MAX]];
    let highest = CALLS.iter().map(|call| call.number).max().expect("there are calls");
    let mut list_of = vec![u8::MAX; highest as usize + 1];
    for call in CALLS {
        let mut list = [Arg::Value; ARGS_MAX];
        list[..call.args.len()].copy_from_slice(call.args);
        let known = lists.iter().position(|other| *other == list);
        let index = known.unwrap_or_else(|| {
            lists.push(list);
            lists.len() - 1
        });
        list_of[call.number as usize] = u8::try_from(index).expect("there are few lists");
    }
    let text = format!(
        "pub const LIST_OF: [u8; {}] = {list_of:?};\n\
         pub const LISTS: [[Arg; ARGS_MAX]; {}] = {lists:?};\n",
        list_of.len(),
        lists.len()
    );
    let path = PathBuf::from(variable("OUT_DIR")).join("calls.rs");
    std::fs::write(path, text).expect("the output directory can be written");
}

fn make(image: &Image) {
    let out = PathBuf::from(variable("OUT_DIR"));
    let linked = link(image, &out);
    let bytes = flatten(image, &linked);
    let bytes = bytes.unwrap_or_else(|fault| panic!("the image of the {} {fault}", image.name));
    let path = out.join(image.name).with_extension("bin");
    std::fs::write(path, bytes).expect("the output directory can be written");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Compiles and links the payload, and returns the linked file's content.
fn link(image: &Image, out: &Path) -> Vec<u8> {
    let file = out.join(image.name);
    let (linked, layout) = (file.with_extension("elf"), file.with_extension("ld"));
    let script = format!("ENTRY({}){LAYOUT}", image.entry);
    std::fs::write(&layout, script).expect("the output directory can be written");
    let mut rustc = Command::new(variable("RUSTC"));
    let name = format!("overspill_{}_image", image.name);
    rustc.args([image.source, "--crate-name", &name, "--cfg", "payload"]);
    rustc.args(["--crate-type", "bin", "--edition", "2024", "--target", &variable("TARGET")]);
    rustc.args(["-C", "opt-level=s", "-C", "panic=abort", "-C", "relocation-model=pie"]);
    rustc.args(["-C", "codegen-units=1", "-C", "lto=fat", "-C", "overflow-checks=off"]);
    rustc.args(["-C", "debug-assertions=off", "-C", "force-unwind-tables=no", "-D", "warnings"]);
    if variable("CARGO_CFG_TARGET_ARCH") == "aarch64" {
        // Else atomics ask a word that is written at the start which kind they are.
        rustc.args(["-C", "target-feature=-outline-atomics"]);
    }
    if variable("CARGO_CFG_TARGET_ENV") == "musl" {
        // Else it brings start files.
        rustc.args(["-C", "link-self-contained=no"]);
    }
    for argument in ["-nostartfiles", "-nostdlib", "-static-pie", "-Wl,--build-id=none"] {
        rustc.args(["-C", &format!("link-arg={argument}")]);
    }
    rustc.args(["-C", &format!("link-arg=-Wl,-z,norelro,-T,{}", layout.display())]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.args(["-C", &format!("linker={linker}")]);
    }
    let status = rustc.arg("-o").arg(&linked).status().expect("the compiler can be started");
    assert!(status.success(), "the image of the {} does not compile: {rustc:?}", image.name);
    std::fs::read(&linked).expect("what was linked can be read")
}

/// Takes the image out of the linked file, or says why it is none.
fn flatten(of: &Image, linked: &[u8]) -> Result<Vec<u8>, String> {
    let file = object::File::parse(linked).map_err(|error| format!("cannot be read: {error}"))?;
    if let Some(section) = file.sections().find(is_foreign) {
        let (name, bytes) = (section.name().unwrap_or("without a name"), section.size());
        return Err(format!(
            "has a section {name} of {bytes} bytes: nothing may be written or relocated there"
        ));
    }
    let image = file.section_by_name(".image").ok_or("is empty: the linker left nothing")?;
    let (address, bytes) = (image.address(), image.size());
    if (address, file.entry()) != (0, 0) {
        let (name, entry) = (of.entry, file.entry());
        return Err(format!("starts at {address:#x}, and {name} is at {entry:#x}"));
    }
    if bytes > of.bytes_max {
        return Err(format!("has {bytes} bytes, of {} that it may have", of.bytes_max));
    }
    image.data().map(<[u8]>::to_vec).map_err(|error| format!("cannot be read: {error}"))
}

/// Returns true for a section that would be in memory, and is neither the image nor a loader's.
/// Relocations and written data are such sections.
fn is_foreign(section: &object::Section<'_, '_>) -> bool {
    let name = section.name().unwrap_or_default();
    let SectionFlags::Elf { sh_flags, .. } = section.flags() else { return true };
    let is_empty_table = EMPTY_TABLES.contains(&(name, section.size()));
    let expected = name == ".image" || LOADERS.contains(&name) || is_empty_table;
    section.size() > 0 && sh_flags.contains(SHF_ALLOC) && !expected
}
