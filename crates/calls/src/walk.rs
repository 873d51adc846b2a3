//! From the arguments of a call to the ranges that they lead to.
//!
//! Owns: the sizes of vectors, headers and strings as they are found in memory, and what commands
//! and requests say of their argument.
//! This file and `types.rs` are part of two programs, of this library and of the gate's image
//! (`agent/gate`): so they need nothing but `core`, and nothing here can panic.

use super::types::{ARGS_MAX, Arg};

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
/// The kind of a userfaultfd's requests, the largest of them, and the one that reads memory
/// (`linux/userfaultfd.h`).
const USERFAULTFD: usize = 0xaa;
const USERFAULT_BYTES: usize = 40;
const UFFDIO_COPY: usize = 0xc028_aa03;
/// The most that a request of unknown size is expected to touch.
const UNKNOWN_BYTES: usize = 4096;
const PAGE_BYTES: usize = 4096;
const WORD_BYTES: usize = size_of::<usize>();
const INT_BYTES: usize = size_of::<i32>();
/// Of `iovec`: an address and a length.
const VECTOR_BYTES: usize = 2 * WORD_BYTES;
/// Of `msghdr`, and where in it name, vectors and control data are, and how much of each.
const HEADER_BYTES: usize = 7 * WORD_BYTES;
const NAME_AT: [usize; 2] = [0, WORD_BYTES];
const VECTORS_AT: [usize; 2] = [2 * WORD_BYTES, 3 * WORD_BYTES];
const CONTROL_AT: [usize; 2] = [4 * WORD_BYTES, 5 * WORD_BYTES];
/// Of `mmsghdr`: a header, and how much was moved.
const MESSAGE_BYTES: usize = HEADER_BYTES + WORD_BYTES;
/// Of `futex_waitv`: a number, an address, flags.
const FUTEX_BYTES: usize = 24;
const FUTEX_WORD_AT: usize = 8;
/// Bytes of a string that are looked at together.
const STRING_BYTES: usize = 64;
/// Pointers in a request's structure are among its first bytes.
const POINTERS_BYTES: usize = 256;

/// Passes everything that a call may touch to `sink`. Where a pointer leads nowhere it stops: the
/// kernel will find the same and fail.
pub fn walk(
    kinds: &[Arg],
    args: &[usize; ARGS_MAX],
    memory: &impl Memory,
    sink: &mut impl FnMut(Span),
) {
    let mut walk = Walk { args, memory, sink };
    for (&kind, &arg) in kinds.iter().zip(args) {
        if arg != 0 {
            walk.arg(kind, arg);
        }
    }
}

struct Walk<'a, M, S> {
    args: &'a [usize; ARGS_MAX],
    memory: &'a M,
    sink: &'a mut S,
}

impl<M: Memory, S: FnMut(Span)> Walk<'_, M, S> {
    fn arg(&mut self, arg: Arg, at: usize) {
        match arg {
            Arg::Value => {}
            Arg::Bytes(len) => self.span(at, len.into()),
            Arg::Sized(n) => self.span(at, self.number(n)),
            Arg::Items(n, bytes) => self.span(at, self.number(n).saturating_mul(bytes.into())),
            Arg::Bits(n) => self.span(at, self.number(n).div_ceil(64).saturating_mul(8)),
            Arg::SizedAt(n) => self.sized_at(at, self.number(n)),
            Arg::Str => self.string(at),
            Arg::Strs => self.strings(at),
            Arg::Vectors(n) => self.vectors(at, self.number(n)),
            Arg::Headers(n) => self.span(at, self.items(n) * VECTOR_BYTES),
            Arg::Message => self.message(at),
            Arg::Messages(n) => {
                let count = self.items(n);
                self.span(at, count * MESSAGE_BYTES);
                (0..count).for_each(|n| self.message(at.wrapping_add(n * MESSAGE_BYTES)));
            }
            Arg::Mask => self.mask(at),
            Arg::Queued(n) => self.span(at, self.number(n).saturating_add(WORD_BYTES)),
            Arg::Pointers(n) => self.span(at, self.number(n).saturating_mul(WORD_BYTES)),
            Arg::PerPage(n) => self.span(at, self.number(n).div_ceil(PAGE_BYTES)),
            Arg::Pointing(n) => self.request(at, self.number(n)),
            Arg::Ioctl if ioctl_kind(self.number(1)) == USERFAULTFD => self.userfault(at),
            Arg::Ioctl => self.request(at, ioctl_bytes(self.number(1))),
            Arg::Command => self.request(at, UNKNOWN_BYTES),
            Arg::Futex => self.span(at, INT_BYTES),
            Arg::Futexes(n) => self.futexes(at, self.items(n)),
        }
    }

    fn number(&self, n: u8) -> usize {
        self.args.get(usize::from(n)).copied().unwrap_or(0)
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
        let mut bytes = [0; WORD_BYTES];
        (self.memory.read(at, &mut bytes) == WORD_BYTES).then(|| usize::from_ne_bytes(bytes))
    }

    /// Reads the words at two places behind `at`.
    fn words(&self, at: usize, places: [usize; 2]) -> Option<[usize; 2]> {
        let [first, second] = places.map(|place| self.word(at.wrapping_add(place)));
        first.zip(second).map(|(first, second)| [first, second])
    }

    fn sized_at(&mut self, at: usize, size_at: usize) {
        let mut bytes = [0; INT_BYTES];
        if self.memory.read(size_at, &mut bytes) == INT_BYTES {
            self.span(at, usize::try_from(i32::from_ne_bytes(bytes)).unwrap_or(0));
        }
    }

    fn string(&mut self, at: usize) {
        if !self.memory.matters(at) {
            return;
        }
        let mut len = 0;
        let mut bytes = [0; STRING_BYTES];
        while len < STRING_MAX {
            let from = at.wrapping_add(len);
            // Not past a page: what follows may not be mapped.
            let most = STRING_BYTES - from % STRING_BYTES;
            let Some(part) = bytes.get_mut(..most) else { break };
            let read = self.memory.read(from, part);
            let text = part.iter().take(read);
            if let Some(end) = text.into_iter().position(|&byte| byte == 0) {
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
        while let Some(string) = self.word(at.wrapping_add(count * WORD_BYTES)) {
            count += 1;
            if string == 0 {
                break;
            }
            self.string(string);
        }
        self.span(at, count * WORD_BYTES);
    }

    fn vectors(&mut self, at: usize, count: usize) {
        let count = count.min(ITEMS_MAX);
        self.span(at, count * VECTOR_BYTES);
        for vector in (0..count).map(|n| at.wrapping_add(n * VECTOR_BYTES)) {
            let Some([base, len]) = self.words(vector, [0, WORD_BYTES]) else { break };
            self.span(base, len);
        }
    }

    fn message(&mut self, at: usize) {
        self.span(at, HEADER_BYTES);
        if let Some([name, len]) = self.words(at, NAME_AT) {
            // The length of the name is an int, with padding after it.
            self.span(name, len & 0xffff_ffff);
        }
        if let Some([control, len]) = self.words(at, CONTROL_AT) {
            self.span(control, len);
        }
        if let Some([vectors, count]) = self.words(at, VECTORS_AT)
            && vectors != 0
        {
            self.vectors(vectors, count);
        }
    }

    /// The structure of a request, and what it points to, which nothing says the length of.
    fn request(&mut self, at: usize, len: usize) {
        self.span(at, len);
        for n in 0..len.min(POINTERS_BYTES) / WORD_BYTES {
            let Some(pointer) = self.word(at.wrapping_add(n * WORD_BYTES)) else { break };
            if self.memory.matters(pointer) {
                self.span(pointer, UNKNOWN_BYTES);
            }
        }
    }

    /// A request of a userfaultfd: nobody touches the addresses that it names but where UFFDIO_COPY
    /// reads. Who touched the others would wait for the caller, which fills them.
    fn userfault(&mut self, at: usize) {
        self.span(at, USERFAULT_BYTES);
        if self.number(1) as u32 as usize != UFFDIO_COPY {
            return;
        }
        if let Some([source, len]) = self.words(at, [WORD_BYTES, 2 * WORD_BYTES]) {
            self.span(source, len);
        }
    }

    fn mask(&mut self, at: usize) {
        self.span(at, 2 * WORD_BYTES);
        if let Some([mask, len]) = self.words(at, [0, WORD_BYTES]) {
            self.span(mask, len);
        }
    }

    fn futexes(&mut self, at: usize, count: usize) {
        self.span(at, count * FUTEX_BYTES);
        for n in 0..count {
            if let Some(word) = self.word(at.wrapping_add(n * FUTEX_BYTES + FUTEX_WORD_AT)) {
                self.span(word, WORD_BYTES);
            }
        }
    }
}

/// Which kind of descriptor a request is for.
fn ioctl_kind(request: usize) -> usize {
    request >> 8 & 0xff
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
        walk(call(number).unwrap().args, &args, memory, &mut note);
        found.sort_unstable();
        found
    }

    /// As libc has them.
    #[test]
    fn structures_are_as_large_as_the_kernels() {
        use libc::{iovec, mmsghdr, msghdr};
        use std::mem::offset_of;
        assert_eq!((VECTOR_BYTES, HEADER_BYTES), (size_of::<iovec>(), size_of::<msghdr>()));
        assert_eq!(
            (MESSAGE_BYTES, FUTEX_BYTES),
            (size_of::<mmsghdr>(), size_of::<nr::futex_waitv>())
        );
        let name = [offset_of!(msghdr, msg_name), offset_of!(msghdr, msg_namelen)];
        let vectors = [offset_of!(msghdr, msg_iov), offset_of!(msghdr, msg_iovlen)];
        let control = [offset_of!(msghdr, msg_control), offset_of!(msghdr, msg_controllen)];
        assert_eq!((NAME_AT, VECTORS_AT, CONTROL_AT), (name, vectors, control));
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

    /// What it fills is missing, and nobody else would bring it.
    #[test]
    fn a_userfaultfd_reads_what_it_copies_and_touches_nothing_else() {
        let memory = words(&[0x5000_0000, 0x6000_0000, 0x3000, 0, 0]);
        let found = |request| spans(nr::__NR_ioctl, [3, request, START, 0, 0, 0], &memory);
        let own = (START, USERFAULT_BYTES);
        for copy in [UFFDIO_COPY, UFFDIO_COPY as u32 as i32 as usize] {
            assert_eq!(found(copy), [own, (0x6000_0000, 0x3000)], "{copy:x}");
        }
        for other in [0xc028_aa05, 0xc020_aa04, 0x8010_aa02] {
            assert_eq!(found(other), [own], "{other:x}");
        }
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
