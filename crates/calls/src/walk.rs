//! From the arguments of a call to the ranges that they lead to.
//!
//! Owns: the sizes of vectors, headers and strings as they are found in memory, and what commands
//! and requests say of their argument.

use crate::types::{Arg, Call};
use libc::{c_int, iovec, mmsghdr, msghdr};
use std::mem::{offset_of, size_of};

/// The caller's memory.
pub trait Memory {
    /// Reads bytes from `address` on; returns how many there are, which is less than wanted where
    /// nothing is mapped or may be read.
    fn read(&self, address: usize, bytes: &mut [u8]) -> usize;

    /// False for an address at which nothing concerns who walks: strings there are not looked at.
    fn matters(&self, address: usize) -> bool;
}

/// Bytes of the caller's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The address of the first.
    pub start: usize,
    /// How many.
    pub len: usize,
}

/// The most vectors, messages and strings that a call takes.
const ITEMS_MAX: usize = 1024;
/// The longest string, one of execve.
const STRING_MAX: usize = 1 << 17;
/// The most that a request of unknown size is expected to touch.
const UNKNOWN_BYTES: usize = 4096;
const PAGE_BYTES: usize = 4096;
/// Pointers in a request's structure are among its first bytes.
const POINTERS_BYTES: usize = 256;

/// Passes everything that a call may touch to `sink`. Where a pointer leads nowhere it stops: the
/// kernel will find the same and fail.
pub fn walk(call: &Call, args: &[usize; 6], memory: &impl Memory, sink: &mut impl FnMut(Span)) {
    let mut walk = Walk { args, memory, sink };
    for (n, &arg) in call.args.iter().enumerate() {
        if args[n] != 0 {
            walk.arg(arg, args[n]);
        }
    }
}

struct Walk<'a, M, S> {
    args: &'a [usize; 6],
    memory: &'a M,
    sink: &'a mut S,
}

impl<M: Memory, S: FnMut(Span)> Walk<'_, M, S> {
    fn arg(&mut self, arg: Arg, at: usize) {
        match arg {
            Arg::Value => {}
            Arg::Bytes(len) => self.span(at, len),
            Arg::Sized(n) => self.span(at, self.number(n)),
            Arg::Items(n, bytes) => self.span(at, self.number(n).saturating_mul(bytes)),
            Arg::Bits(n) => self.span(at, self.number(n).div_ceil(64).saturating_mul(8)),
            Arg::SizedAt(n) => self.sized_at(at, self.args[usize::from(n)]),
            Arg::Str => self.string(at),
            Arg::Strs => self.strings(at),
            Arg::Vectors(n) => self.vectors(at, self.number(n)),
            Arg::Headers(n) => self.span(at, self.items(n) * size_of::<iovec>()),
            Arg::Message => self.message(at),
            Arg::Messages(n) => {
                let count = self.items(n);
                self.span(at, count * size_of::<mmsghdr>());
                (0..count).for_each(|n| self.message(at + n * size_of::<mmsghdr>()));
            }
            Arg::Mask => self.mask(at),
            Arg::Queued(n) => self.span(at, self.number(n).saturating_add(size_of::<usize>())),
            Arg::Pointers(n) => self.span(at, self.number(n).saturating_mul(size_of::<usize>())),
            Arg::PerPage(n) => self.span(at, self.number(n).div_ceil(PAGE_BYTES)),
            Arg::Pointing(n) => self.request(at, self.number(n)),
            Arg::Ioctl => self.request(at, ioctl_bytes(self.args[1])),
            Arg::Command => self.request(at, UNKNOWN_BYTES),
            Arg::Futex => self.span(at, size_of::<u32>()),
            Arg::Futexes(n) => self.futexes(at, self.items(n)),
        }
    }

    fn number(&self, n: u8) -> usize {
        self.args[usize::from(n)]
    }

    fn items(&self, n: u8) -> usize {
        self.number(n).min(ITEMS_MAX)
    }

    fn span(&mut self, start: usize, len: usize) {
        if start != 0 && len > 0 {
            (self.sink)(Span { start, len: len.min(usize::MAX - start) });
        }
    }

    /// Reads a word of the caller's.
    fn word(&self, at: usize) -> Option<usize> {
        let mut bytes = [0; size_of::<usize>()];
        (self.memory.read(at, &mut bytes) == bytes.len()).then(|| usize::from_ne_bytes(bytes))
    }

    fn sized_at(&mut self, at: usize, size_at: usize) {
        let mut bytes = [0; size_of::<c_int>()];
        if self.memory.read(size_at, &mut bytes) == bytes.len() {
            self.span(at, usize::try_from(c_int::from_ne_bytes(bytes)).unwrap_or(0));
        }
    }

    fn string(&mut self, at: usize) {
        if !self.memory.matters(at) {
            return;
        }
        let mut len = 0;
        let mut bytes = [0; 256];
        while len < STRING_MAX {
            // Not past a page: what follows may not be mapped.
            let most = bytes.len() - (at + len) % bytes.len();
            let read = self.memory.read(at + len, &mut bytes[..most]);
            if let Some(end) = bytes[..read].iter().position(|&byte| byte == 0) {
                len += end + 1;
                break;
            }
            len += read;
            if read < most {
                break;
            }
        }
        self.span(at, len);
    }

    fn strings(&mut self, at: usize) {
        let mut count = 0;
        while let Some(string) = self.word(at + count * size_of::<usize>()) {
            count += 1;
            if string == 0 {
                break;
            }
            self.string(string);
        }
        self.span(at, count * size_of::<usize>());
    }

    fn vectors(&mut self, at: usize, count: usize) {
        let count = count.min(ITEMS_MAX);
        self.span(at, count * size_of::<iovec>());
        for vector in (0..count).map(|n| at + n * size_of::<iovec>()) {
            let base = self.word(vector + offset_of!(iovec, iov_base));
            let len = self.word(vector + offset_of!(iovec, iov_len));
            let Some((base, len)) = base.zip(len) else { break };
            self.span(base, len);
        }
    }

    fn message(&mut self, at: usize) {
        let field = |offset: usize| self.word(at + offset);
        let lens = [offset_of!(msghdr, msg_name), offset_of!(msghdr, msg_control)].map(field);
        // The length of the name is an int, with padding after it.
        let name_len = field(offset_of!(msghdr, msg_namelen)).map(|len| len & 0xffff_ffff);
        let control_len = field(offset_of!(msghdr, msg_controllen));
        let vectors = field(offset_of!(msghdr, msg_iov));
        let count = field(offset_of!(msghdr, msg_iovlen));
        self.span(at, size_of::<msghdr>());
        for (start, len) in lens.into_iter().zip([name_len, control_len]) {
            self.span(start.unwrap_or(0), len.unwrap_or(0));
        }
        if let Some((vectors, count)) = vectors.zip(count)
            && vectors != 0
        {
            self.vectors(vectors, count);
        }
    }

    /// The structure of a request, and what it points to, which nothing says the length of.
    fn request(&mut self, at: usize, len: usize) {
        self.span(at, len);
        let mut bytes = [0; POINTERS_BYTES];
        let read = self.memory.read(at, &mut bytes[..len.min(POINTERS_BYTES)]);
        for word in bytes[..read].chunks_exact(size_of::<usize>()) {
            let pointer = usize::from_ne_bytes(word.try_into().expect("a word"));
            if self.memory.matters(pointer) {
                self.span(pointer, UNKNOWN_BYTES);
            }
        }
    }

    fn mask(&mut self, at: usize) {
        self.span(at, 2 * size_of::<usize>());
        if let Some((mask, len)) = self.word(at).zip(self.word(at + size_of::<usize>())) {
            self.span(mask, len);
        }
    }

    fn futexes(&mut self, at: usize, count: usize) {
        // struct futex_waitv: the value, the address, flags; 8 bytes each.
        self.span(at, count * 24);
        for n in 0..count {
            if let Some(word) = self.word(at + n * 24 + 8) {
                self.span(word, size_of::<u64>());
            }
        }
    }
}

/// What an ioctl's number says of its argument: some have more behind it, and old ones say nothing.
fn ioctl_bytes(request: usize) -> usize {
    let (direction, bytes) = (request >> 30 & 3, request >> 16 & 0x3fff);
    if direction != 0 { bytes.max(UNKNOWN_BYTES) } else { UNKNOWN_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call;
    use linux_raw_sys::general as nr;

    /// Memory from 0x1000 on.
    struct Bytes(Vec<u8>);

    const START: usize = 0x1000;

    impl Memory for Bytes {
        fn read(&self, address: usize, bytes: &mut [u8]) -> usize {
            let Some(from) = address.checked_sub(START) else { return 0 };
            let here = self.0.get(from..).unwrap_or_default();
            let len = here.len().min(bytes.len());
            bytes[..len].copy_from_slice(&here[..len]);
            len
        }

        fn matters(&self, address: usize) -> bool {
            address >= START
        }
    }

    fn words(words: &[usize]) -> Bytes {
        Bytes(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    fn spans(number: u32, args: [usize; 6], memory: &Bytes) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut note = |span: Span| found.push((span.start, span.len));
        walk(call(number).unwrap(), &args, memory, &mut note);
        found.sort_unstable();
        found
    }

    #[test]
    fn buffers_and_vectors() {
        let memory = words(&[0x9000, 10, 0x8000, 20]);
        assert_eq!(spans(nr::__NR_read, [3, 0x7000, 5, 0, 0, 0], &memory), [(0x7000, 5)]);
        let found = spans(nr::__NR_readv, [3, START, 2, 0, 0, 0], &memory);
        assert_eq!(found, [(START, 32), (0x8000, 20), (0x9000, 10)]);
        // The second vector is not there.
        let found = spans(nr::__NR_readv, [3, START + 16, 2, 0, 0, 0], &memory);
        assert_eq!(found, [(START + 16, 32), (0x8000, 20)]);
    }

    #[test]
    fn a_message_leads_to_its_parts() {
        let memory = words(&[0x2000, 16, START + 56, 1, 0x4000, 24, 0, 0x5000, 100]);
        let found = spans(nr::__NR_sendmsg, [3, START, 0, 0, 0, 0], &memory);
        assert_eq!(
            found,
            [(START, 56), (START + 56, 16), (0x2000, 16), (0x4000, 24), (0x5000, 100)]
        );
    }

    #[test]
    fn a_request_leads_to_what_it_points_to() {
        // _IOWR('x', 1, 16): a number, and a pointer.
        let memory = words(&[7, 0x9000]);
        let found = spans(nr::__NR_ioctl, [3, 0xc010_7801, START, 0, 0, 0], &memory);
        assert_eq!(found, [(START, UNKNOWN_BYTES), (0x9000, UNKNOWN_BYTES)]);
        // A number in place of a structure.
        assert_eq!(spans(nr::__NR_ioctl, [3, 0x5401, 5, 0, 0, 0], &memory), [(5, UNKNOWN_BYTES)]);
    }

    #[test]
    fn strings_end() {
        let mut memory = words(&[START + 32, START + 37, 0, 0]);
        memory.0.extend(b"echo\0-n\0");
        let args = [START + 32, START, 0, 0, 0, 0];
        let found = spans(nr::__NR_execve, args, &memory);
        assert_eq!(found, [(START, 24), (START + 32, 5), (START + 32, 5), (START + 37, 3)]);
        // One that does not end is read as far as there is memory.
        memory.0.truncate(34);
        assert_eq!(spans(nr::__NR_chdir, args, &memory), [(START + 32, 2)]);
    }

    #[test]
    fn nothing_is_touched_through_a_null_pointer() {
        let memory = words(&[0; 8]);
        assert_eq!(spans(nr::__NR_pselect6, [9, 0, 0x3000, 0, 0, 0], &memory), [(0x3000, 8)]);
        assert_eq!(spans(nr::__NR_sendmsg, [3, START, 0, 0, 0, 0], &memory), [(START, 56)]);
    }
}
