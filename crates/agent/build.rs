//! Compiles the agent's image.
//!
//! Owns: how `payload/` becomes a flat image, and what an image must be: code and constants alone,
//! with nothing for a loader to do. It is always optimised, whatever is built around it: only so it
//! has no words of panics, and fits.
//! Invariants: the compiler and the linker are those that cargo uses for the same target, with no
//! more of the target than `core`.
//! Rejected: assembling the sections here, which would be a linker; a second package for another
//! target, which cargo cannot build for this one on a stable compiler.

use object::elf::SHF_ALLOC;
use object::{Object, ObjectSection, SectionFlags};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// As `CODE_BYTES` of `src/words.rs`.
const IMAGE_BYTES_MAX: usize = 8192;
const ENTRY: &str = "overspill_agent_entry";
/// What the linker adds for loaders, and what has no place in a flat image.
const LOADERS: [&str; 5] = [".dynamic", ".dynsym", ".dynstr", ".hash", ".gnu.hash"];
/// Tables of addresses on AArch64, with their bytes when they have but the loader's own.
const EMPTY_TABLES: [(&str, u64); 2] = [(".got", 8), (".got.plt", 24)];

/// The entry first, then all other code and constants, in one section; what is for loaders behind.
const LAYOUT: &str = "ENTRY(overspill_agent_entry)
SECTIONS {
  . = 0;
  .image : { KEEP(*(.text.entry)) *(.text .text.*) *(.rodata .rodata.*) }
  .dynsym : { *(.dynsym) } .dynstr : { *(.dynstr) } .gnu.hash : { *(.gnu.hash) } .hash : { *(.hash) }
  /DISCARD/ : { *(.comment) *(.note .note.*) *(.eh_frame .eh_frame_hdr) *(.gcc_except_table*) }
}
";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=payload");
    println!("cargo::rerun-if-changed=src/words.rs");
    println!("cargo::rustc-check-cfg=cfg(payload)");
    let out = PathBuf::from(variable("OUT_DIR"));
    let linked = link(&out);
    let image = flatten(&linked).unwrap_or_else(|fault| panic!("the agent's image {fault}"));
    std::fs::write(out.join("agent.bin"), image).expect("the output directory can be written");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Compiles and links the payload, and returns the linked file's content.
fn link(out: &Path) -> Vec<u8> {
    let (linked, layout) = (out.join("agent.elf"), out.join("agent.ld"));
    std::fs::write(&layout, LAYOUT).expect("the output directory can be written");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["payload/main.rs", "--crate-name", "overspill_agent_image", "--cfg", "payload"]);
    rustc.args(["--crate-type", "bin", "--edition", "2024", "--target", &variable("TARGET")]);
    rustc.args(["-C", "opt-level=s", "-C", "panic=abort", "-C", "relocation-model=pie"]);
    rustc.args(["-C", "codegen-units=1", "-C", "lto=fat", "-C", "overflow-checks=off"]);
    rustc.args(["-C", "debug-assertions=off", "-C", "force-unwind-tables=no", "-D", "warnings"]);
    for argument in ["-nostartfiles", "-nostdlib", "-static-pie", "-Wl,--build-id=none"] {
        rustc.args(["-C", &format!("link-arg={argument}")]);
    }
    rustc.args(["-C", &format!("link-arg=-Wl,-z,norelro,-T,{}", layout.display())]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.args(["-C", &format!("linker={linker}")]);
    }
    let status = rustc.arg("-o").arg(&linked).status().expect("the compiler can be started");
    assert!(status.success(), "the agent's image does not compile: {rustc:?}");
    std::fs::read(&linked).expect("what was linked can be read")
}

/// Takes the image out of the linked file, or says why it is none.
fn flatten(linked: &[u8]) -> Result<Vec<u8>, String> {
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
        return Err(format!("starts at {address:#x}, and {ENTRY} is at {:#x}", file.entry()));
    }
    if bytes > IMAGE_BYTES_MAX as u64 {
        return Err(format!("has {bytes} bytes, of {IMAGE_BYTES_MAX} that it may have"));
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
