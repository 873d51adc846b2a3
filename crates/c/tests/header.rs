//! The header is what cbindgen makes of the sources.
//!
//! `OVERSPILL_WRITE=1 cargo test -p overspill-c --test header` writes it.

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new().with_crate(here).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    // What every call demands is said once, at the head.
    let text = without_safety(&String::from_utf8(text).unwrap());
    let path = here.join("include/overspill.h");
    if std::env::var_os("OVERSPILL_WRITE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "run OVERSPILL_WRITE=1 cargo test -p overspill-c --test header");
}

/// Leaves out the section `# Safety` of each comment, which is for readers of the Rust code.
fn without_safety(text: &str) -> String {
    let (mut kept, mut skips) = (String::new(), false);
    for line in text.lines() {
        skips = line.starts_with("//") && (skips || line.trim() == "// # Safety");
        if skips {
            kept.truncate(kept.trim_end_matches("\n//\n").len());
            if !kept.ends_with('\n') {
                kept.push('\n');
            }
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}
