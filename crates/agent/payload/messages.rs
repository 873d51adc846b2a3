//! Messages of the channel.
//!
//! Owns: the form in which the kernel brings a request with its descriptors.
//! Invariants: descriptors that come are owned by the agent, whatever becomes of their request.
//! Not here: what is asked.

use crate::calls;
use crate::words::Request;

/// Descriptors that a request can bring.
const DESCRIPTORS_MAX: usize = 2;
const SOL_SOCKET: u64 = 1;
const SCM_RIGHTS: u64 = 1;
/// A control message without what it brings: its length, level and kind.
const HEAD_BYTES: usize = 16;

#[repr(C)]
struct Header {
    name: usize,
    name_bytes: usize,
    vectors: *mut Vector,
    vectors_count: usize,
    control: *mut u64,
    control_bytes: usize,
    flags: usize,
}

#[repr(C)]
struct Vector {
    start: *mut Request,
    bytes: usize,
}

/// The descriptors of a request, -1 where there is none.
pub type Descriptors = [i32; DESCRIPTORS_MAX];

/// Waits for a request. Returns its length, which is 0 at the channel's end, and what came with it.
pub fn receive(channel: i32, request: &mut Request) -> (usize, Descriptors) {
    let mut control = [0u64; 3];
    let mut vector = Vector { start: request, bytes: size_of::<Request>() };
    let mut header = Header {
        name: 0,
        name_bytes: 0,
        vectors: &mut vector,
        vectors_count: 1,
        control: control.as_mut_ptr(),
        control_bytes: size_of_val(&control),
        flags: 0,
    };
    let bytes = calls::receive(channel, &mut header).unwrap_or(0);
    (bytes, descriptors(&control))
}

fn descriptors(control: &[u64; 3]) -> Descriptors {
    let [bytes, kind, pair] = *control;
    let count = (bytes as usize).saturating_sub(HEAD_BYTES) / size_of::<i32>();
    let rights = kind == (SCM_RIGHTS << 32 | SOL_SOCKET);
    let first = if rights && count > 0 { pair as i32 } else { -1 };
    let second = if rights && count > 1 { (pair >> 32) as i32 } else { -1 };
    [first, second]
}
