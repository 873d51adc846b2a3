//! How the kernel classifies a file by its first bytes.
//!
//! Owns: distinguishing ELF programs, scripts and texts, by the kernel's rules for `#!` lines.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Bytes of a file that the kernel reads.
pub(super) const HEAD_BYTES: u64 = 256;

/// How a file is executed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Loaded by the kernel.
    Elf,
    /// Run by the interpreter that its first line names.
    Script(PathBuf),
    /// Not executed by the kernel, but execvp and shells pass it to the shell.
    Text,
    /// Not executable.
    Unknown,
}

impl Format {
    /// Classifies a file by its first [`HEAD_BYTES`], or all of it if it is shorter.
    pub(super) fn of(head: &[u8]) -> Self {
        if head.starts_with(b"\x7fELF") {
            return Self::Elf;
        }
        match interpreter(head) {
            Some(path) => Self::Script(path),
            None if head.contains(&0) => Self::Unknown,
            None => Self::Text,
        }
    }
}

/// Returns the path after `#!`; none if it does not end within the head.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?;
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = line.iter().position(|byte| !blank(byte))?;
    let path = &line[start..];
    let end = match path.iter().position(|byte| blank(byte) || matches!(byte, b'\n' | 0)) {
        Some(end) => end,
        None if head.len() < HEAD_BYTES as usize => path.len(),
        None => return None,
    };
    (end > 0).then(|| OsStr::from_bytes(&path[..end]).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let script = |path: &str| Format::Script(path.into());
        let table: [(&[u8], Format); 10] = [
            (b"\x7fELF\x02\x01", Format::Elf),
            (b"#!/bin/sh\necho", script("/bin/sh")),
            (b"#! \t/usr/bin/env python3\n", script("/usr/bin/env")),
            (b"#!perl -w", script("perl")),
            (b"#!/bin/sh", script("/bin/sh")),
            (b"#!\necho", Format::Text),
            (b"#!", Format::Text),
            (b"echo hello", Format::Text),
            (b"", Format::Text),
            (b"MZ\x00\x01", Format::Unknown),
        ];
        for (head, format) in table {
            assert_eq!(Format::of(head), format, "{}", head.escape_ascii());
        }
    }

    #[test]
    fn a_path_cut_off_is_no_path() {
        let mut head = b"#!/".to_vec();
        head.resize(HEAD_BYTES as usize, b'x');
        assert_eq!(Format::of(&head), Format::Text);
        head[100] = b'\n';
        assert!(matches!(Format::of(&head), Format::Script(_)));
    }
}
