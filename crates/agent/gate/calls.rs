//! What a thread wants of the kernel, and gets.
//!
//! Owns: the handler of all signals, and the way of each call: answered here, made here, or made
//! by the thread's stub when the handler has returned.
//! Invariants: whatever may wait is made by the stub. What works on memory when it is over is
//! refused, as by a kernel without it.
//! Not here: what a call touches ([`crate::holds`]).

use crate::children;
use crate::frames::{Context, Info};
use crate::holds;
use crate::letters;
use crate::gate::letter;
use crate::gate::{PIN_ROBUST, PIN_RSEQ, PIN_TASK, SECOND_AT, STUBS_AT, Slot, Span, THIRD_AT};
use crate::place::{self, door};
use crate::touches;
use crate::transfers;
use crate::kernel::{self, EBUSY, EINVAL, ENOMEM, EPERM, ENOSYS, MASK_BYTES, number};
use crate::memory;
use crate::signals::{self, OURS, SIGBUS, SIGSEGV, SIGSYS};
use crate::slots::Seat;
use core::sync::atomic::Ordering::{Relaxed, Release};

/// `si_code` of a call that was sent here.
const SYS_USER_DISPATCH: i32 = 2;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// Numbers of calls of another kind of program.
const X32_BIT: usize = 0x4000_0000;
const SECCOMP_SET_MODE_FILTER: usize = 1;
const MADV_DONTFORK: usize = 10;
const MADV_DOFORK: usize = 11;
const MADV_WIPEONFORK: usize = 18;
const MADV_KEEPONFORK: usize = 19;
const MADV_PAGEOUT: usize = 21;
/// Advice that the keeper is told of.
const TOLD: [usize; 5] =
    [MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_PAGEOUT];
const KVM_CREATE_VM: usize = 0xae01;
const UFFDIO_REGISTER: usize = 0xc020_aa00;
/// Bytes of the instruction that makes a call.
const CALL_BYTES: u64 = 2;

/// What becomes of a call.
enum Way {
    /// It has been made, or answered.
    Done(isize),
    /// The stub makes it.
    Stub,
    /// The stub makes it with these arguments, and then puts the program's back.
    Changed([usize; 6]),
    /// The stub waits for a signal, or for us.
    Waits,
    /// It has changed all registers.
    Gone,
}

/// The handler of all signals, on the thread's slot.
///
/// # Safety
/// The kernel calls it.
pub unsafe extern "C" fn on_signal(signal: i32, info: &Info, context: &mut Context) {
    let (seat, signal) = (Seat::at(core::ptr::from_ref(context) as usize), signal as usize);
    if signal == SIGSEGV && touches::is_brought(info, context) {
        return;
    }
    if (signal == SIGSEGV || signal == SIGBUS) && is_inside(context) {
        return inside(seat, signal, info, context);
    }
    // SAFETY: this thread's; only a touch interrupts from here on, which ends above.
    let slot = unsafe { seat.own() };
    if signal == SIGSYS && info.code == SYS_USER_DISPATCH {
        if context.rip == door() as u64 + CALL_BYTES {
            come_back(seat, slot, context);
        } else {
            call(seat, slot, info, context);
        }
    } else {
        leave_stub(seat, slot, context);
        signals::deliver(seat, slot, signal, info, context);
    }
    signals::send_again(seat, slot);
}

/// True if a context is in the gate, but for its stubs.
fn is_inside(context: &Context) -> bool {
    context.rip.wrapping_sub(place::base() as u64) < STUBS_AT as u64
}

/// A signal that came while a handler is at work: what the program has named is not there, or
/// somebody sends it.
fn inside(seat: Seat, signal: usize, info: &Info, context: &mut Context) {
    if info.code <= 0 {
        seat.pending().fetch_or(signals::bit(signal), Relaxed);
    } else if let Some(place) = memory::mended(context.rip as usize) {
        context.rip = place as u64;
    } else {
        signals::end_by(signal);
    }
}

/// Shows a signal that comes in a stub as one that comes at the program's own call.
fn leave_stub(own: Seat, slot: &mut Slot, context: &mut Context) {
    let Some((seat, at)) = Seat::of_stub(context.rip as usize) else {
        slot.has_wait = 0;
        if context.rip == door() as u64 {
            end_transfer(own, slot, context);
        }
        return;
    };
    // SAFETY: a thread is in its own stub.
    let back = unsafe { seat.to_return() };
    let is_part = (THIRD_AT..SECOND_AT).contains(&at);
    if is_part && (at > THIRD_AT || slot.transfer_done > 0) {
        // If it was not made, or is to be made again, it is as if it had moved nothing.
        context.rax = if at == THIRD_AT { 0 } else { context.rax };
        slot.has_wait = 0;
        return end_transfer(seat, slot, context);
    }
    if slot.redo != 0 {
        context.set_arguments(back.arguments.map(|word| word as usize));
        (context.rax, context.rip) = (slot.redo - 1, back.to - CALL_BYTES);
        (slot.redo, slot.has_wait, back.held) = (0, 0, 0);
        return;
    }
    if at >= THIRD_AT {
        context.set_arguments(back.arguments.map(|word| word as usize));
    }
    if [0, THIRD_AT, SECOND_AT].contains(&at) {
        // It is still to be made, or again.
        if is_part {
            context.rax = slot.transfer_number;
        }
        context.rip = back.to - CALL_BYTES;
        slot.has_wait = 0;
    } else {
        (context.rip, context.rcx) = (back.to, back.to);
    }
    back.held = 0;
}

fn call(seat: Seat, slot: &mut Slot, info: &Info, context: &mut Context) {
    slot.has_wait = 0;
    let number = context.rax as usize;
    let is_known = (info.rest[0] >> 32) as u32 == AUDIT_ARCH_X86_64 && number & X32_BIT == 0;
    let way = if is_known { way(seat, slot, number, context) } else { Way::Done(-ENOSYS) };
    match way {
        Way::Done(result) => {
            seat.held().store(0, Release);
            context.returns(result);
        }
        Way::Stub => match transfers::begin(slot, number, &context.arguments()) {
            Some(part) => {
                change_arguments(seat, slot, context, number, part);
                to_stub(seat, context, THIRD_AT);
            }
            None if holds::hold(seat, slot, number, &context.arguments()) => {
                to_stub(seat, context, 0);
            }
            None => context.returns(-ENOMEM),
        },
        Way::Changed(arguments) => {
            // What has taken an argument's place is ours, and always there.
            if change_arguments(seat, slot, context, number, arguments) {
                to_stub(seat, context, SECOND_AT);
            } else {
                context.returns(-ENOMEM);
            }
        }
        Way::Waits => {
            change_arguments(seat, slot, context, number::PPOLL, [0; 6]);
            context.rax = number::PPOLL as u64;
            to_stub(seat, context, SECOND_AT);
        }
        Way::Gone => {}
    }
}

/// What an `ioctl` asks for: the kernel takes 32 bits of it, whatever a program has in the others.
fn request(arguments: [usize; 6]) -> usize {
    arguments[1] as u32 as usize
}

/// Holds what a call touches with other arguments than the program's, and keeps those; false if
/// that is too much, as a part of a transfer never is.
fn change_arguments(
    seat: Seat,
    slot: &mut Slot,
    context: &mut Context,
    number: usize,
    arguments: [usize; 6],
) -> bool {
    if !holds::hold(seat, slot, number, &arguments) {
        return false;
    }
    // SAFETY: this thread's.
    unsafe { seat.to_return() }.arguments = context.arguments().map(|word| word as u64);
    context.set_arguments(arguments);
    true
}

/// A thread comes back from its stub: its transfer goes on, or ends.
fn come_back(seat: Seat, slot: &mut Slot, context: &mut Context) {
    let number = slot.transfer_number as usize;
    match transfers::go_on(slot, seat, context) {
        Some(part) => {
            holds::hold(seat, slot, number, &part);
            context.set_arguments(part);
            context.rax = number as u64;
            context.rip = (seat.stub() + THIRD_AT) as u64;
        }
        None => end_transfer(seat, slot, context),
    }
}

/// Ends a transfer, of which the last part's result is there.
fn end_transfer(seat: Seat, slot: &Slot, context: &mut Context) {
    context.rax = transfers::result_of(slot, context.rax as isize) as u64;
    // SAFETY: this thread's.
    let back = unsafe { seat.to_return() };
    context.set_arguments(back.arguments.map(|word| word as usize));
    (context.rip, context.rcx) = (back.to, back.to);
    seat.held().store(0, Release);
}

fn to_stub(seat: Seat, context: &mut Context, at: usize) {
    // SAFETY: this thread's.
    let back = unsafe { seat.to_return() };
    (back.to, back.door) = (context.rip, door() as u64);
    context.rip = (seat.stub() + at) as u64;
}

fn way(seat: Seat, slot: &mut Slot, number: usize, context: &mut Context) -> Way {
    let arguments = context.arguments();
    match number {
        number::RT_SIGRETURN => {
            signals::sigreturn(slot, context);
            Way::Gone
        }
        number::RT_SIGACTION => Way::Done(signals::sigaction(slot, arguments)),
        number::RT_SIGPROCMASK => Way::Done(signals::sigprocmask(slot, context, arguments)),
        number::RT_SIGPENDING => Way::Done(signals::sigpending(seat, arguments)),
        number::SIGALTSTACK => Way::Done(signals::sigaltstack(slot, context, arguments)),
        number::CLONE | number::FORK | number::VFORK | number::CLONE3 => {
            Way::Done(children::make(seat, number, context))
        }
        number::SET_TID_ADDRESS => pin(slot, PIN_TASK, number, arguments, size_of::<u32>()),
        number::SET_ROBUST_LIST => pin(slot, PIN_ROBUST, number, arguments, 3 * size_of::<u64>()),
        number::RSEQ => {
            holds::hold_bytes(seat, slot, [(arguments[0], arguments[1]), (0, 0), (0, 0)]);
            pin(slot, PIN_RSEQ, number, arguments, arguments[1])
        }
        number::IO_SETUP | number::IO_SUBMIT => Way::Done(-ENOSYS),
        number::IO_URING_SETUP..=number::IO_URING_REGISTER => Way::Done(-ENOSYS),
        number::PRCTL if arguments[0] == kernel::PR_SET_SYSCALL_USER_DISPATCH => {
            Way::Done(-EINVAL)
        }
        // What it filters then may be what the gate needs.
        number::SECCOMP if arguments[0] <= SECCOMP_SET_MODE_FILTER => wait_for_opening(slot, number),
        number::PRCTL if arguments[0] == kernel::PR_SET_SECCOMP => wait_for_opening(slot, number),
        number::MADVISE if TOLD.contains(&arguments[2]) => Way::Done(advise(number, arguments)),
        // As where another userfaultfd has the memory: what is out would be missing for it, too.
        number::IOCTL if request(arguments) == UFFDIO_REGISTER && letters::tells_of_touches() => {
            Way::Done(-EBUSY)
        }
        // The kernel touches its memory for it, and would find what is out missing.
        number::IOCTL if request(arguments) == KVM_CREATE_VM => Way::Done(-EPERM),
        number::EXIT => {
            // No signal comes any more: the slot is another's when the thread has ended.
            context.mask = u64::MAX;
            Way::Stub
        }
        _ => match touches::change(number, arguments) {
            Some(result) => Way::Done(result),
            None => with_mask(slot, number, arguments),
        },
    }
}

/// Gives advice that is the keeper's, too: whether children have a range as it is, for else what
/// is out there would come to them; and that it may go out.
fn advise(number: usize, arguments: [usize; 6]) -> isize {
    let result = kernel::make(number, arguments);
    if result == 0 && letters::has_keeper() {
        let [start, bytes, advice, ..] = arguments;
        let kind = if advice == MADV_PAGEOUT { letter::OUT } else { letter::KEPT };
        letters::ask(kind, [start as u64, bytes as u64, advice as u64, 0], || {});
    }
    result
}

/// Has a thread wait in its stub until the gate is open: then its call is made without it.
fn wait_for_opening(slot: &mut Slot, number: usize) -> Way {
    if !letters::has_keeper() {
        return Way::Stub;
    }
    slot.redo = number as u64 + 1;
    letters::wish_out();
    Way::Waits
}

/// Makes a call that tells the kernel of memory that it touches later.
fn pin(slot: &mut Slot, which: usize, number: usize, arguments: [usize; 6], bytes: usize) -> Way {
    let result = kernel::make(number, arguments);
    if result >= 0 {
        slot.pins[which] = Span::of(arguments[0], bytes);
    }
    Way::Done(result)
}

/// A call that waits with a mask gets one that does not block what is ours.
fn with_mask(slot: &mut Slot, number: usize, mut arguments: [usize; 6]) -> Way {
    let (which, bytes) = match number {
        number::RT_SIGSUSPEND => (0, arguments[1]),
        number::PPOLL => (3, arguments[4]),
        number::EPOLL_PWAIT | number::EPOLL_PWAIT2 => (4, arguments[5]),
        number::PSELECT6 if arguments[5] != 0 => {
            return match memory::read::<[u64; 2]>(arguments[5]) {
                Ok([at, bytes]) if at != 0 && bytes as usize == MASK_BYTES => {
                    let Some(own) = own_mask(slot, at as usize) else { return Way::Stub };
                    slot.select = [own as u64, bytes];
                    arguments[5] = slot.select.as_ptr() as usize;
                    Way::Changed(arguments)
                }
                _ => Way::Stub,
            };
        }
        _ => return Way::Stub,
    };
    if arguments[which] == 0 || bytes != MASK_BYTES {
        return Way::Stub;
    }
    let Some(own) = own_mask(slot, arguments[which]) else { return Way::Stub };
    arguments[which] = own;
    Way::Changed(arguments)
}

/// Makes a copy of a mask, without what is ours. Returns where.
fn own_mask(slot: &mut Slot, at: usize) -> Option<usize> {
    let mask = memory::read::<u64>(at).ok()?;
    (slot.wait_mask, slot.has_wait) = (mask, 1);
    slot.kernel_mask = mask & !OURS;
    Some(core::ptr::from_ref(&slot.kernel_mask) as usize)
}
