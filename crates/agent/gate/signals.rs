//! What signals do.
//!
//! Owns: the program's belief about actions, blocked signals and its stack for signals, where the
//! kernel has another; the way of a signal to the program's handler.
//! Invariants: [`OURS`] always have our handler, and are never blocked: what the program believes
//! of them is kept here. Every other handler of the program's is ours for the kernel, on the
//! thread's slot; what is ignored or has its default is the kernel's alone.
//! A signal of [`OURS`] that another process has sent is put off while it cannot be delivered, and
//! sent again.
//! Not here: what a frame looks like ([`crate::frames`]).

use crate::place::base;
use crate::frames::{self, Context, Delivery, Info};
use crate::gate::{Action, HANDLER_AT, RESTORER_AT, SIGNALS, Slot};
use crate::kernel::{self, EFAULT, EINVAL, EPERM, ENOMEM, MASK_BYTES};
use crate::memory;
use crate::slots::{Seat, with_action};
use core::sync::atomic::Ordering::Relaxed;

pub const SIGBUS: usize = 7;
const SIGKILL: usize = 9;
pub const SIGSEGV: usize = 11;
const SIGSTOP: usize = 19;
pub const SIGSYS: usize = 31;
/// Signals that are always ours.
pub const OURS: u64 = bit(SIGSYS) | bit(SIGSEGV) | bit(SIGBUS);
/// What is blocked in a handler of ours: all but what a touch can raise.
const BLOCKED: u64 = !(bit(SIGSEGV) | bit(SIGBUS));
const NOT_TO_BLOCK: u64 = bit(SIGKILL) | bit(SIGSTOP);

const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
const SS_ONSTACK: u64 = 1;
const SS_DISABLE: u64 = 2;
const SS_AUTODISARM: u64 = 1 << 31;
const MINSIGSTKSZ: u64 = 2048;
pub const DEFAULT: u64 = 0;
const IGNORE: u64 = 1;

pub const fn bit(signal: usize) -> u64 {
    1 << (signal - 1)
}

fn is_ours(signal: usize) -> bool {
    OURS & bit(signal) != 0
}

/// Has the kernel call our handler.
pub fn catch(signal: usize, flags: u64) -> isize {
    let nested = if signal == SIGSYS { 0 } else { flags & SA_NODEFER };
    let flags = flags & !SA_NODEFER | nested | SA_SIGINFO | SA_ONSTACK | SA_RESTORER;
    let [handler, restorer] = [HANDLER_AT, RESTORER_AT].map(|at| (base() + at) as u64);
    kernel::action(signal, Some(&Action { handler, flags, restorer, mask: BLOCKED }), None)
}

/// Has it call our handler for those that are always ours.
pub fn catch_ours() {
    for signal in [SIGSYS, SIGSEGV, SIGBUS] {
        catch(signal, SA_NODEFER);
    }
}

// Calls.

/// `rt_sigaction`.
pub fn sigaction(slot: &Slot, [signal, new_at, old_at, bytes, ..]: [usize; 6]) -> isize {
    if bytes != MASK_BYTES || !(1..SIGNALS).contains(&signal) {
        return -EINVAL;
    }
    let new = match new_at {
        0 => None,
        at => match memory::read::<[u64; 4]>(at) {
            Ok([handler, flags, restorer, mask]) => {
                Some(Action { handler, flags, restorer, mask: mask & !NOT_TO_BLOCK })
            }
            Err(_) => return -EFAULT,
        },
    };
    if new.is_some() && NOT_TO_BLOCK & bit(signal) != 0 {
        return -EINVAL;
    }
    let done = with_action(slot.actions, signal, |action| change(signal, action, new));
    match done {
        Some(Ok(_)) if old_at == 0 => 0,
        Some(Ok(old)) if memory::write(old_at, &old).is_ok() => 0,
        Some(Ok(_)) => -EFAULT,
        Some(Err(errno)) => errno,
        None => -EINVAL,
    }
}

/// Changes what a signal does. Returns what it did.
fn change(signal: usize, action: &mut Action, new: Option<Action>) -> Result<Action, isize> {
    let mut old = *action;
    if !is_ours(signal) && action.handler <= IGNORE {
        match kernel::action(signal, None, Some(&mut old)) {
            0 => {}
            errno => return Err(errno),
        }
    }
    let Some(new) = new else { return Ok(old) };
    let done = match new.handler {
        DEFAULT | IGNORE if is_ours(signal) => 0,
        DEFAULT | IGNORE => kernel::action(signal, Some(&new), None),
        _ if is_ours(signal) => 0,
        _ => catch(signal, new.flags & !SA_NODEFER),
    };
    if done < 0 {
        return Err(done);
    }
    *action = new;
    Ok(old)
}

/// `rt_sigprocmask`.
pub fn sigprocmask(
    slot: &mut Slot,
    context: &mut Context,
    [how, new_at, old_at, bytes, ..]: [usize; 6],
) -> isize {
    if bytes != MASK_BYTES {
        return -EINVAL;
    }
    let before = context.mask | slot.believed;
    if new_at != 0 {
        let Ok(set) = memory::read::<u64>(new_at) else { return -EFAULT };
        let after = match how {
            0 => before | set,
            1 => before & !set,
            2 => set,
            _ => return -EINVAL,
        };
        set_mask(slot, context, after);
    }
    match old_at {
        0 => 0,
        at if memory::write(at, &before).is_ok() => 0,
        _ => -EFAULT,
    }
}

/// Has the program go on with a mask.
fn set_mask(slot: &mut Slot, context: &mut Context, mask: u64) {
    let mask = mask & !NOT_TO_BLOCK;
    slot.believed = mask & OURS;
    context.mask = mask & !OURS;
}

/// `rt_sigpending`.
pub fn sigpending(seat: Seat, [at, bytes, ..]: [usize; 6]) -> isize {
    if bytes > MASK_BYTES {
        return -EINVAL;
    }
    let mut set = 0u64;
    let own = core::ptr::from_mut(&mut set) as usize;
    let arguments = [own, MASK_BYTES, 0, 0, 0, 0];
    match kernel::make(kernel::number::RT_SIGPENDING, arguments) {
        0 => {}
        errno => return errno,
    }
    let blocked_ours = seat.pending().load(Relaxed);
    let set = (set | blocked_ours).to_ne_bytes();
    // SAFETY: the program's memory.
    let written = unsafe { memory::move_bytes(at, set.as_ptr() as usize, bytes) };
    if written.is_ok() { 0 } else { -EFAULT }
}

/// `sigaltstack`.
pub fn sigaltstack(slot: &mut Slot, context: &Context, [new_at, old_at, ..]: [usize; 6]) -> isize {
    let old = seen_stack(slot, context.rsp);
    if new_at != 0 {
        let Ok([start, flags, bytes]) = memory::read::<[u64; 3]>(new_at) else { return -EFAULT };
        let flags = flags & 0xffff_ffff;
        if is_on_stack(slot, context.rsp) {
            return -EPERM;
        }
        match flags & !SS_AUTODISARM {
            SS_DISABLE => (slot.stack, slot.stack_bytes) = (0, 0),
            0 | SS_ONSTACK if bytes < MINSIGSTKSZ => return -ENOMEM,
            0 | SS_ONSTACK => (slot.stack, slot.stack_bytes) = (start, bytes),
            _ => return -EINVAL,
        }
        slot.stack_flags = flags & SS_AUTODISARM;
    }
    match old_at {
        0 => 0,
        at if memory::write(at, &old).is_ok() => 0,
        _ => -EFAULT,
    }
}

/// The program's stack for signals, as it sees it.
fn seen_stack(slot: &Slot, rsp: u64) -> [u64; 3] {
    let flags = match slot.stack_bytes {
        0 => SS_DISABLE,
        _ if is_on_stack(slot, rsp) => SS_ONSTACK,
        _ => 0,
    };
    [slot.stack, flags | slot.stack_flags, slot.stack_bytes]
}

fn is_on_stack(slot: &Slot, rsp: u64) -> bool {
    let is_armed = slot.stack_flags & SS_AUTODISARM == 0;
    let below_end = rsp.wrapping_sub(slot.stack).wrapping_sub(1);
    is_armed && slot.stack_bytes > 0 && below_end < slot.stack_bytes
}

/// `rt_sigreturn`. A frame that is not there ends the program, as ever.
pub fn sigreturn(slot: &mut Slot, context: &mut Context) {
    let Ok([start, flags, bytes]) = frames::go_back(context) else { return fault(context) };
    let mask = context.mask;
    set_mask(slot, context, mask);
    if !is_on_stack(slot, context.rsp) {
        let is_off = flags & SS_DISABLE != 0;
        (slot.stack, slot.stack_bytes) = if is_off { (0, 0) } else { (start, bytes) };
        slot.stack_flags = flags & SS_AUTODISARM;
    }
}

// Signals.

/// Has a signal do what the program wants.
pub fn deliver(seat: Seat, slot: &mut Slot, signal: usize, info: &Info, context: &mut Context) {
    let is_sent = info.code <= 0;
    if is_ours(signal) && slot.believed & bit(signal) != 0 {
        match is_sent {
            true => _ = seat.pending().fetch_or(bit(signal), Relaxed),
            false => end_by(signal),
        }
        return;
    }
    let took = with_action(slot.actions, signal, |action| {
        let took = *action;
        if took.handler > IGNORE && took.flags & SA_RESETHAND != 0 {
            action.handler = DEFAULT;
        }
        took
    });
    match took {
        Some(action) if action.handler > IGNORE => {
            run_handler(slot, signal, &action, info, context);
        }
        Some(action) if is_ours(signal) && !(is_sent && action.handler == IGNORE) => {
            end_by(signal);
            if is_sent || signal == SIGSYS {
                kernel::send_signal(seat.task().load(Relaxed), signal);
            }
        }
        _ => {}
    }
}

fn run_handler(slot: &mut Slot, signal: usize, action: &Action, info: &Info, context: &mut Context) {
    let before = context.mask | slot.believed;
    let during = if slot.has_wait != 0 { slot.wait_mask } else { before };
    slot.has_wait = 0;
    let wants_stack = action.flags & SA_ONSTACK != 0 && slot.stack_bytes > 0;
    let stack_end = slot.stack.wrapping_add(slot.stack_bytes);
    let delivery = Delivery {
        signal,
        handler: action.handler,
        restorer: action.restorer,
        mask: before,
        stack: seen_stack(slot, context.rsp),
        stack_end: (wants_stack && !is_on_stack(slot, context.rsp)).then_some(stack_end),
    };
    if frames::deliver(context, info, &delivery).is_err() {
        return fault(context);
    }
    if slot.stack_flags & SS_AUTODISARM != 0 {
        (slot.stack, slot.stack_bytes, slot.stack_flags) = (0, 0, 0);
    }
    let own = if action.flags & SA_NODEFER != 0 { 0 } else { bit(signal) };
    set_mask(slot, context, during | action.mask | own);
}

/// Has the signal's default happen: whoever returns from the handler raises it again.
pub fn end_by(signal: usize) {
    let restorer = (base() + RESTORER_AT) as u64;
    let default = Action { handler: DEFAULT, flags: SA_RESTORER, restorer, mask: 0 };
    kernel::action(signal, Some(&default), None);
}

/// Ends the program where a frame of it is not where it should be, as the kernel would.
fn fault(context: &mut Context) {
    end_by(SIGSEGV);
    context.rip = 0;
}

/// Sends signals again that were put off and can come now. They come when the handler returns.
pub fn send_again(seat: Seat, slot: &Slot) {
    let due = seat.pending().load(Relaxed) & !slot.believed;
    if due == 0 {
        return;
    }
    seat.pending().fetch_and(!due, Relaxed);
    kernel::block(OURS);
    for signal in [SIGSYS, SIGSEGV, SIGBUS] {
        if due & bit(signal) != 0 {
            kernel::send_signal(seat.task().load(Relaxed), signal);
        }
    }
}
