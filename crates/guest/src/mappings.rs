//! The list of a guest's mappings.
//!
//! Owns: what a line of `/proc/PID/smaps` says, and which mappings can be paged. The text is
//! the kernel's, but names in it are the guest's: what is not understood is not paged.
//! Invariant: only private anonymous memory is pageable, and none that is locked, shared by huge
//! pages of a file system, or dropped by the kernel at will.
//! Not here: registering them.

use crate::Vpn;
use std::io::BufRead;
use std::ops::Range;

/// The flag of a mapping that is registered with a userfaultfd for missing pages.
const REGISTERED: &str = "um";

/// One mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses.
    pub place: Range<Vpn>,
    /// May be paged.
    pub is_pageable: bool,
    /// Can be read now.
    pub is_readable: bool,
    /// Can be written to now: only such memory is moved out while its program runs.
    pub is_writable: bool,
    /// Is executable too.
    pub is_executable: bool,
    /// Registered with a userfaultfd.
    pub is_registered: bool,
    /// Locked in memory.
    pub is_locked: bool,
    /// A forked child has zeros there (MADV_WIPEONFORK).
    pub is_wiped_on_fork: bool,
    /// A forked child does not have it (MADV_DONTFORK).
    pub is_not_forked: bool,
    /// The kernel makes it larger, as its first page is. Without flags: if it is the first stack.
    pub is_growing: bool,
}

/// Returns the mappings of a text of `/proc/PID/smaps`. A mapping whose lines are not understood,
/// or are cut off, is left out.
pub fn parse(smaps: &str) -> Vec<Mapping> {
    let (mut mappings, mut head) = (Vec::new(), None);
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            mappings.extend(head.take().map(|head: Head| head.with_flags(flags)));
        } else if let Some(next) = Head::parse(line) {
            head = Some(next);
        }
    }
    mappings
}

/// Returns the mappings of a text of `/proc/PID/maps`, which costs less, and says nothing of what
/// [`parse`] takes from flags: such mappings count as pageable.
pub fn parse_list(maps: &str) -> Vec<Mapping> {
    maps.lines().filter_map(Head::parse).map(|head| head.with_flags("")).collect()
}

/// True if a text of `/proc/PID/smaps` has a mapping that is registered with a userfaultfd. Reads
/// no further than the first: the kernel looks at all pages of what is read.
pub fn has_registered(smaps: impl BufRead) -> bool {
    let mut lines = smaps.split(b'\n').map_while(Result::ok);
    lines.any(|line| {
        let flags = line.strip_prefix(b"VmFlags:").unwrap_or_default();
        flags.split(u8::is_ascii_whitespace).any(|flag| flag == REGISTERED.as_bytes())
    })
}

/// The first line of a mapping.
struct Head {
    place: Range<Vpn>,
    is_anonymous: bool,
    is_stack: bool,
    /// Whether it can be read, written, executed.
    can: [bool; 3],
}

impl Head {
    /// `start-end rwxp offset device inode name`
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let place = Vpn::range(&(address(start)?..address(end)?));
        let access = fields.next()?;
        let can = ['r', 'w', 'x'].map(|right| access.contains(right));
        let is_private = access.ends_with('p');
        let inode = fields.nth(2)?;
        let name = fields.next().unwrap_or_default();
        let is_plain = matches!(name, "" | "[heap]" | "[stack]") || name.starts_with("[anon:");
        let is_anonymous = is_private && inode == "0" && is_plain;
        let is_stack = name == "[stack]";
        (!place.is_empty()).then_some(Self { place, is_anonymous, is_stack, can })
    }

    fn with_flags(self, flags: &str) -> Mapping {
        let has = |flag| flags.split_ascii_whitespace().any(|other| other == flag);
        // Locked, droppable, huge pages of a file system, device memory, pages without a frame.
        let is_odd = ["lo", "dp", "ht", "io", "pf", "mm", "ss"].into_iter().any(has);
        let [is_readable, is_writable, is_executable] = self.can;
        Mapping {
            place: self.place,
            is_pageable: self.is_anonymous && !is_odd,
            is_readable,
            is_writable,
            is_executable,
            is_registered: has(REGISTERED),
            is_locked: has("lo"),
            is_wiped_on_fork: has("wf"),
            is_not_forked: has("dc"),
            is_growing: self.is_stack || has("gd"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_mutate::Script;

    const SMAPS: &str = "\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon
Size:                328 kB
VmFlags: rd ex mr mw me
00651000-00653000 rw-p 00000000 00:00 0
Anonymous:             8 kB
VmFlags: rd wr mr mw me ac um
01000000-01021000 rw-p 00000000 00:00 0           [heap]
VmFlags: rd wr mr mw me ac lo
7f0000000000-7f0000001000 rw-p 00000000 00:00 0   [anon:glibc: malloc]
VmFlags: rd wr mr mw me wf dc
7f0000001000-7f0000002000 rw-s 00000000 00:01 7   /memfd:x (deleted)
VmFlags: rd wr sh mr mw
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
VmFlags: ex
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0   [stack]
";

    #[test]
    fn only_private_anonymous_memory_is_pageable() {
        let mappings = parse(SMAPS);
        let pageable: Vec<u64> =
            mappings.iter().filter(|m| m.is_pageable).map(|m| m.place.start.address()).collect();
        assert_eq!(pageable, [0x651000, 0x7f00_0000_0000]);
        assert!(mappings[1].is_registered && mappings[1].is_writable);
        assert!(mappings[2].is_locked && !mappings[1].is_locked);
        assert!(mappings[3].is_wiped_on_fork && mappings[3].is_not_forked);
        // The last one has no flags yet: the text is cut off.
        assert_eq!(mappings.len(), 6);
    }

    #[test]
    fn what_is_registered_is_found_where_it_is_first() {
        assert!(has_registered(SMAPS.as_bytes()));
        let others = SMAPS.replace(" um", "");
        assert!(!has_registered(others.as_bytes()));
        let mut read = SMAPS.as_bytes();
        assert!(has_registered(&mut read));
        assert!(read.starts_with(b"01000000-"), "{}", String::from_utf8_lossy(read));
    }

    #[test]
    fn a_list_without_flags_names_all_that_may_be() {
        let list: String =
            SMAPS.lines().filter(|line| !line.contains(": ")).collect::<Vec<_>>().join("\n");
        let pageable = parse_list(&list).into_iter().filter(|m| m.is_pageable).count();
        // The heap too, which is locked.
        assert_eq!(pageable, 3);
    }

    #[test]
    fn nonsense_is_no_mapping() {
        for text in ["", "x", "12-", "5000-4000 rw-p 0 0 0\nVmFlags: wr", "-\nVmFlags: wr um"] {
            assert_eq!(parse(text), [], "{text}");
        }
    }

    /// A program chooses names of mappings, with line feeds and brackets in them.
    #[test]
    fn whatever_the_kernel_lists_is_read() {
        let samples = [
            "7f00-8000 rw-p 00000000 00:00 0 [heap]\nSize: 4 kB\nVmFlags: rd wr mr um uw\n",
            "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n",
        ];
        bolero::check!().with_type::<Script>().for_each(|script| {
            let text = script.text(&samples);
            parse(&text);
            parse_list(&text);
            has_registered(text.as_bytes());
        });
    }
}
