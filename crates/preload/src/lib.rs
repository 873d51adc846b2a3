//! The shared object that `overspill run` preloads in front of libc in an unmodified program.
//!
//! Owns: the functions of libc that hand out or manage memory ([`malloc`], [`mm`], [`remap`],
//! [`advice`]), process and thread creation where it concerns the pager ([`fork`], [`thread`],
//! [`exits`], [`cpus`]), limits that would hit the pager ([`limits`]), opening objects that would
//! bypass us ([`dlopen`]), filters of system calls ([`sandbox`]); and noting what escapes the limit
//! ([`escapes`], [`starts`]). The pager itself is a separate process ([`apart`]).
//! Invariants:
//! - Managed memory lies in one reserved range. A pointer's address tells its allocator; libc's own
//!   heap serves the pager and what was allocated before it started.
//! - Code that holds a lock of the pager never touches managed memory: the pager allocates from
//!   libc's heap, and calls made on a managed stack run in the pager's process ([`apart`]).
//! - Without a session in the environment every function is libc's.
//!
//! Not here: paging itself (`overspill`). Not caught: system calls made without libc, `clone`
//! without `CLONE_VM` other than through `fork`, `MAP_SHARED`, `MAP_HUGETLB`, `MAP_STACK`,
//! `MAP_GROWSDOWN`, `MAP_32BIT` and executable mappings, and `brk`; such memory is the kernel's,
//! outside the limit. A program whose threads have stacks in managed memory must not fork.

#![allow(unreachable_pub, reason = "reached by their symbols")]

mod advice;
mod apart;
#[cfg(target_arch = "x86_64")]
mod calls;
#[cfg(not(target_arch = "x86_64"))]
#[path = "calls_pass.rs"]
mod calls;
mod cpus;
mod dlopen;
mod environment;
mod escapes;
mod exits;
mod fork;
mod futex;
mod go;
mod heap;
mod hints;
mod limits;
mod linker;
mod malloc;
mod malloc_info;
mod mm;
mod pager;
mod real;
mod remap;
mod sandbox;
mod signals;
mod starts;
mod thread;

#[global_allocator]
static HEAP: heap::LibcHeap = heap::LibcHeap;

/// Runs when the dynamic linker loads the object, before all other constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(libc::c_int, Words, Words) = start;

type Words = *mut *mut libc::c_char;

extern "C" fn start(_: libc::c_int, _: Words, environment: Words) {
    pager::start(environment);
    malloc::prepare();
    dlopen::prepare();
    exits::make_key();
    starts::prepare();
}
