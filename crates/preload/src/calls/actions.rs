//! Signals of a program whose calls are caught.
//!
//! Owns: what the program wants done at each signal; the kernel only knows [`deliver`]. The kernel
//! cannot wait for a page of a stack that may be out, so it always gets a stack of ours, and the
//! frame is copied to where the program expects it. A handler of the program has its calls caught
//! whatever it has interrupted, and what the interrupted call holds is held again afterwards.
//! Invariants: SIGSYS is never blocked where calls are caught, nor SIGSEGV where touches raise it:
//! it would end the process. Every handler of ours runs with all signals blocked, so the thread's
//! own stack for signals never holds more than one frame.
//!
//! ```text
//! kernel    frame on our stack ──> deliver: copies it, sets the handler's mask
//! program   handler, on its own stack; returns to its restorer: rt_sigreturn, which is caught
//! kernel    frame on our stack ──> returned: copies the program's frame there, and what it held
//! ```

use super::context::{Context, Frame, LEGACY_BYTES};
use super::hold;
use super::system::{self, RED_ZONE};
use super::thread::{self, CAUGHT, Mask, PASS, Thread};
use crate::pager::{Process, any_process};
use libc::{c_int, c_ulong, siginfo_t, stack_t};
use overspill_engine::Held;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

const SIGNALS: usize = 65;
/// Signals that are never blocked and always come to us.
static OURS: AtomicU64 = AtomicU64::new(bit(libc::SIGSYS));
const SA_RESTORER: c_ulong = 0x0400_0000;
/// Size of a set of signals.
const MASK_BYTES: usize = size_of::<Mask>();

const fn bit(signal: c_int) -> Mask {
    1 << (signal - 1)
}

/// struct kernel_sigaction.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    flags: c_ulong,
    restorer: usize,
    mask: Mask,
}

impl Action {
    const DEFAULT: Self = Self { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

    fn has(&self, flag: c_int) -> bool {
        self.flags & flag as c_ulong != 0
    }

    fn is_handler(&self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }
}

/// What the program wants, by signal.
struct Actions {
    is_locked: AtomicBool,
    table: UnsafeCell<[Action; SIGNALS]>,
}

// SAFETY: the table is touched by who holds the lock only.
unsafe impl Sync for Actions {}

static ACTIONS: Actions = Actions {
    is_locked: AtomicBool::new(false),
    table: UnsafeCell::new([Action::DEFAULT; SIGNALS]),
};

impl Actions {
    /// Calls `act` with an action.
    fn with<R>(&self, signal: c_int, act: impl FnOnce(&mut Action) -> R) -> R {
        let _locked = Locked::take();
        // SAFETY: locked.
        act(unsafe { &mut (*self.table.get())[signal as usize] })
    }
}

/// The table, locked by a thread that has all signals blocked, so that it never waits for itself.
#[derive(Debug)]
pub(super) struct Locked(());

impl Locked {
    pub(super) fn take() -> Self {
        while ACTIONS.is_locked.swap(true, Acquire) {
            std::thread::yield_now();
        }
        Self(())
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        ACTIONS.is_locked.store(false, Release);
    }
}

/// Has caught calls come to us, and touches if they raise signals.
pub(super) fn begin(by_touch: bool) {
    set_action(libc::SIGSYS, &ours(super::trap::caught, 0));
    if by_touch {
        OURS.fetch_or(bit(libc::SIGSEGV), Relaxed);
        set_action(libc::SIGSEGV, &ours(super::trap::touched, 0));
    }
}

fn ours_mask() -> Mask {
    OURS.load(Relaxed)
}

fn is_ours(signal: c_int) -> bool {
    ours_mask() & bit(signal) != 0
}

type Handler = extern "C" fn(c_int, *const siginfo_t, *mut Context);

/// An action with a handler of ours.
fn ours(handler: Handler, flags: c_ulong) -> Action {
    let handler = handler as *const () as usize;
    let always = (libc::SA_SIGINFO | libc::SA_ONSTACK) as c_ulong | SA_RESTORER;
    Action {
        handler,
        flags: flags | always,
        restorer: system::address_of(system::returns),
        mask: Mask::MAX,
    }
}

fn set_action(signal: c_int, action: &Action) -> isize {
    let action = std::ptr::from_ref(action).addr();
    // SAFETY: an action whose handler stays valid, of the size given.
    unsafe { system::call(libc::SYS_rt_sigaction, signal as usize, action, 0, MASK_BYTES, 0, 0) }
}

fn kernel_action(signal: c_int) -> Action {
    let mut action = Action::DEFAULT;
    let at = (&raw mut action).addr();
    // SAFETY: writes an action.
    unsafe { system::call(libc::SYS_rt_sigaction, signal as usize, 0, at, MASK_BYTES, 0, 0) };
    action
}

/// rt_sigaction(2).
pub(super) fn sigaction(process: &Process, [signal, new, old, size, ..]: [usize; 6]) -> isize {
    let signal = match c_int::try_from(signal) {
        Ok(signal @ 1..65) if size == MASK_BYTES => signal,
        _ => return -libc::EINVAL as isize,
    };
    let wanted = (new != 0).then(|| hold::read::<Action>(process, new));
    let Some(wanted) = wanted.map_or(Some(None), |read| read.map(Some)) else {
        return -libc::EFAULT as isize;
    };
    let before = match change(signal, wanted) {
        Ok(before) => before,
        Err(error) => return error,
    };
    if old != 0 && !hold::write(process, old, &before) { -libc::EFAULT as isize } else { 0 }
}

/// Sets what the program wants at a signal; returns what it wanted before.
fn change(signal: c_int, wanted: Option<Action>) -> Result<Action, isize> {
    // A child by vfork has our table and actions of its own.
    let is_foreign = crate::apart::is_foreign();
    let before = match kernel_action(signal) {
        theirs if !is_ours(signal) && theirs.handler != deliver as *const () as usize => theirs,
        _ => ACTIONS.with(signal, |action| *action),
    };
    let Some(wanted) = wanted else { return Ok(before) };
    let for_kernel = match wanted {
        wanted if is_foreign && wanted.is_handler() => wanted,
        wanted if !wanted.is_handler() => wanted,
        wanted => ours(deliver, wanted.flags),
    };
    if !is_ours(signal) {
        match set_action(signal, &for_kernel) {
            0 => {}
            error => return Err(error),
        }
    }
    if !is_foreign {
        ACTIONS.with(signal, |action| *action = wanted);
    }
    Ok(before)
}

/// rt_sigprocmask(2).
pub(super) fn sigprocmask(
    process: &Process,
    thread: &mut Thread,
    context: &mut Context,
    [how, new, old, size, ..]: [usize; 6],
) -> isize {
    if size != MASK_BYTES {
        return -libc::EINVAL as isize;
    }
    let before = context.mask | thread.believed;
    if new != 0 {
        let Some(set) = hold::read::<Mask>(process, new) else { return -libc::EFAULT as isize };
        let after = match how as c_int {
            libc::SIG_BLOCK => before | set,
            libc::SIG_UNBLOCK => before & !set,
            libc::SIG_SETMASK => set,
            _ => return -libc::EINVAL as isize,
        };
        set_mask(thread, context, after);
    }
    if old != 0 && !hold::write(process, old, &before) { -libc::EFAULT as isize } else { 0 }
}

/// Unblocks what must never be blocked, on a thread whose calls will be caught.
pub(super) fn unblock(thread: &mut Thread) {
    let (ours, mut before): (Mask, Mask) = (ours_mask(), 0);
    let (how, new, old) =
        (libc::SIG_UNBLOCK as usize, (&raw const ours).addr(), (&raw mut before).addr());
    // SAFETY: both are sets of the given size.
    unsafe { system::call(libc::SYS_rt_sigprocmask, how, new, old, MASK_BYTES, 0, 0) };
    thread.believed = before & ours;
}

/// Sets the mask with which the program goes on.
fn set_mask(thread: &mut Thread, context: &mut Context, mask: Mask) {
    thread.believed = mask & ours_mask();
    context.mask = mask & !ours_mask();
}

/// sigaltstack(2).
pub(super) fn sigaltstack(
    process: &Process,
    thread: &mut Thread,
    context: &Context,
    [new, old, ..]: [usize; 6],
) -> isize {
    const MIN_BYTES: usize = 2048;
    let pointer = context.register(libc::REG_RSP);
    let before = described(&thread.stack, pointer);
    if new != 0 {
        let Some(mut stack) = hold::read::<stack_t>(process, new) else {
            return -libc::EFAULT as isize;
        };
        let mode = stack.ss_flags & !SS_AUTODISARM;
        if is_on(&thread.stack, pointer) {
            return -libc::EPERM as isize;
        }
        if mode != libc::SS_DISABLE && mode != libc::SS_ONSTACK && mode != 0 {
            return -libc::EINVAL as isize;
        }
        let is_new = [stack.ss_sp.addr(), stack.ss_size, stack.ss_flags as usize]
            != [thread.stack.ss_sp.addr(), thread.stack.ss_size, thread.stack.ss_flags as usize];
        if mode == libc::SS_DISABLE {
            (stack.ss_sp, stack.ss_size) = (std::ptr::null_mut(), 0);
        } else if is_new && stack.ss_size < MIN_BYTES {
            return -libc::ENOMEM as isize;
        }
        thread.stack = stack;
    }
    if old != 0 && !hold::write(process, old, &before) { -libc::EFAULT as isize } else { 0 }
}

/// linux/signal.h
const SS_AUTODISARM: c_int = 1 << 31;

fn is_on(stack: &stack_t, pointer: usize) -> bool {
    let bottom = stack.ss_sp.addr();
    stack.ss_flags & SS_AUTODISARM == 0
        && stack.ss_size > 0
        && (bottom + 1..=bottom + stack.ss_size).contains(&pointer)
}

/// A stack for signals as sigaltstack reports it.
fn described(stack: &stack_t, pointer: usize) -> stack_t {
    let mode = match stack {
        stack if stack.ss_size == 0 => libc::SS_DISABLE,
        stack if is_on(stack, pointer) => libc::SS_ONSTACK,
        _ => 0,
    };
    stack_t { ss_flags: mode | stack.ss_flags & SS_AUTODISARM, ..*stack }
}

/// What stands above a frame of [`deliver`]'s, for [`returned`].
#[repr(C)]
#[derive(Clone, Copy)]
struct Aside {
    magic: usize,
    selector: u8,
    held: Held,
}

/// Mixed with its address, so that a copy elsewhere is not taken for one.
const MAGIC: usize = 0x6f76_6572_7370_696c;

/// Handler of every signal that the program handles; the signal has been delivered on our stack.
pub(super) extern "C" fn deliver(signal: c_int, info: *const siginfo_t, context: *mut Context) {
    let action = ACTIONS.with(signal, |action| {
        let now = *action;
        if now.has(libc::SA_RESETHAND) {
            *action = Action::DEFAULT;
        }
        now
    });
    let Some((thread, process)) = thread::current().zip(any_process()) else {
        return hand_over(&action, signal, info, context);
    };
    if !action.is_handler() {
        return without_handler(signal, &action, info);
    }
    // SAFETY: what the kernel passes to a handler.
    let (info, context) = unsafe { (&*info, &*context) };
    let held = process.pager.engine().held(thread.holder);
    let aside = Aside { magic: 0, selector: thread.selector, held };
    thread.selector = PASS;
    let stack = place(thread, context, &action);
    hold::settle(process, stack - FRAME_MAX, FRAME_MAX);
    // SAFETY: below the program's stack pointer, or on its stack for signals, which it lets be used
    // for this; touched as the program would.
    let frame = unsafe { copy_frame(stack, info, context, &action, thread, aside) };
    thread.handler_mask = mask_of(thread, context, &action, signal);
    thread.believed = 0;
    thread.selector = CAUGHT;
    let (info, context) = (frame + INFO, frame + CONTEXT);
    // SAFETY: a frame as the kernel makes it.
    unsafe {
        system::enter(frame, signal, info, context, action.handler, &raw const thread.handler_mask)
    }
}

/// Room for a frame with all registers there are.
const FRAME_MAX: usize = 16 << 10;
const CONTEXT: usize = std::mem::offset_of!(Frame, context);
const INFO: usize = std::mem::offset_of!(Frame, info);

/// A thread that we do not know: its calls are not caught, and it gets its signal where it came.
fn hand_over(action: &Action, signal: c_int, info: *const siginfo_t, context: *mut Context) {
    if action.is_handler() {
        // SAFETY: the program's handler; one of the short kind ignores the rest.
        let handler: Handler = unsafe { std::mem::transmute(action.handler) };
        handler(signal, info, context);
    }
}

/// What the kernel does without a handler. What caused the signal happens again at once.
fn without_handler(signal: c_int, action: &Action, info: *const siginfo_t) {
    // SAFETY: what the kernel passes to a handler.
    let was_sent = unsafe { (*info).si_code } <= 0;
    if !is_ours(signal) || was_sent && action.handler == libc::SIG_IGN {
        return;
    }
    set_action(signal, &Action::DEFAULT);
    if was_sent {
        end_by(signal);
    }
}

/// Where the frame of a handler ends.
fn place(thread: &Thread, context: &Context, action: &Action) -> usize {
    let pointer = context.register(libc::REG_RSP);
    let stack = &thread.stack;
    if action.has(libc::SA_ONSTACK) && stack.ss_size > 0 && !is_on(stack, pointer) {
        return stack.ss_sp.addr() + stack.ss_size;
    }
    pointer - RED_ZONE
}

/// The mask with which a handler runs.
fn mask_of(thread: &mut Thread, context: &Context, action: &Action, signal: c_int) -> Mask {
    let waits = context.register(libc::REG_RIP) == system::after_resume();
    let before = thread.wait_mask.take().filter(|_| waits).unwrap_or(context.mask);
    let own = if action.has(libc::SA_NODEFER) { 0 } else { bit(signal) };
    (before | action.mask | own) & !ours_mask()
}

/// Copies a frame to a stack of the program's; returns its address.
///
/// # Safety
/// There is room below `top`, and `context` is what the kernel wrote.
unsafe fn copy_frame(
    top: usize,
    info: &siginfo_t,
    context: &Context,
    action: &Action,
    thread: &mut Thread,
    aside: Aside,
) -> usize {
    // SAFETY: contract.
    let bytes = unsafe { context.extended_bytes() };
    let extended = (top - bytes) & !63;
    // As at the first instruction of a function: the return address has been pushed.
    let frame = ((extended - size_of::<Aside>() - size_of::<Frame>()) & !15) - 8;
    let aside_at = frame + size_of::<Frame>();
    let mut context = *context;
    let pointer = context.register(libc::REG_RSP);
    context.stack = described(&thread.stack, pointer);
    if thread.stack.ss_flags & SS_AUTODISARM != 0 {
        thread.stack = stack_t { ss_size: 0, ss_flags: 0, ..thread.stack };
    }
    // SAFETY: contract.
    unsafe {
        if bytes > 0 {
            let from = context.extended as *const u8;
            std::ptr::copy_nonoverlapping(from, extended as *mut u8, bytes);
            context.extended = extended as u64;
        }
        let aside = Aside { magic: MAGIC ^ aside_at, ..aside };
        (aside_at as *mut Aside).write(aside);
        let returns_to = action.restorer;
        (frame as *mut Frame).write(Frame { returns_to, context, info: *info });
    }
    frame
}

/// rt_sigreturn(2): puts the frame that a handler has left in place of the one on our stack.
/// Returns what the selector was.
pub(super) fn returned(process: &Process, thread: &mut Thread, ours: &mut Context) -> u8 {
    // The handler has popped the return address.
    let frame = ours.register(libc::REG_RSP) - CONTEXT;
    let Some(left) = hold::read::<Frame>(process, frame) else {
        end_by(libc::SIGSEGV);
        return CAUGHT;
    };
    let mut context = left.context;
    (context.stack, thread.stack) = (ours.stack, context.stack);
    // SAFETY: the kernel's; and what the program left, or has put there.
    unsafe {
        hold::settle(process, context.extended as usize, LEGACY_BYTES);
        let (room, bytes) = (ours.extended_bytes(), context.extended_bytes());
        if bytes > 0 && ours.extended != 0 {
            hold::settle(process, context.extended as usize, bytes);
            let (from, to) = (context.extended as *const u8, ours.extended as *mut u8);
            std::ptr::copy_nonoverlapping(from, to, bytes.min(room));
            context.extended = ours.extended;
        }
    }
    let mask = context.mask;
    *ours = context;
    set_mask(thread, ours, mask);
    let aside_at = frame + size_of::<Frame>();
    match hold::read::<Aside>(process, aside_at) {
        Some(aside) if aside.magic == MAGIC ^ aside_at => {
            hold::hold_again(process, thread, &aside.held);
            aside.selector
        }
        _ => CAUGHT,
    }
}

/// Ends the program as the kernel does one that has no way on, when the handler has returned.
fn end_by(signal: c_int) {
    set_action(signal, &Action::DEFAULT);
    let own = rustix::process::getpid().as_raw_pid() as usize;
    // SAFETY: touches no memory.
    unsafe { system::call(libc::SYS_kill, own, signal as usize, 0, 0, 0, 0) };
}
