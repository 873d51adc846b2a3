//! A call that was caught.
//!
//! Owns: what becomes of each. Most go on at [`system::resume`] with what they touch held; those
//! about signals are answered here; those that work on memory after they have returned are refused,
//! as by a kernel without them.
//! Invariant: runs on our stack, with all signals blocked and calls passing.

use super::Passing;
use super::actions;
use super::context::Context;
use super::hold;
use super::system::{self, Code, RED_ZONE, address_of};
use super::thread::{self, CAUGHT, PASS, Thread};
use crate::pager::{Process, any_process, is_managed};
use libc::{c_int, c_long, siginfo_t};
use rustix::mm::MprotectFlags;

/// `si_code` of SIGSYS from Syscall User Dispatch.
const SYS_USER_DISPATCH: c_int = 2;

/// Handler of SIGSYS.
pub(super) extern "C" fn caught(signal: c_int, info: *const siginfo_t, context: *mut Context) {
    // SAFETY: what the kernel passes to a handler.
    let code = unsafe { (*info).si_code };
    let known = thread::current().zip(any_process());
    let Some((thread, process)) = known.filter(|_| code == SYS_USER_DISPATCH) else {
        return actions::deliver(signal, info, context);
    };
    // SAFETY: as above; nobody else refers to it.
    let context = unsafe { &mut *context };
    thread.selector = PASS;
    thread.selector = answer(process, thread, context);
}

/// Handler of SIGSEGV, where touches raise it.
pub(super) extern "C" fn touched(signal: c_int, info: *const siginfo_t, context: *mut Context) {
    // SAFETY: what the kernel passes to a handler.
    let (address, was_sent) = unsafe { ((*info).si_addr().addr(), (*info).si_code <= 0) };
    // SAFETY: as above.
    let error = unsafe { (*context).register(libc::REG_ERR) };
    let touch = match error & (PAGE_FAULT_WRITE | PAGE_FAULT_EXECUTE) {
        0 => MprotectFlags::READ,
        PAGE_FAULT_WRITE => MprotectFlags::WRITE,
        _ => MprotectFlags::EXEC,
    };
    let is_touch = !was_sent && is_managed(address) && crate::apart::is_served();
    let process = any_process().filter(|_| is_touch);
    let is_served = process.is_some_and(|process| {
        let _passing = Passing::begin();
        let memory = process.memory();
        memory.permits_touch(address, touch) && memory.space().wait_for(address)
    });
    if !is_served {
        actions::deliver(signal, info, context);
    }
}

/// Bits of the error code of a page fault.
const PAGE_FAULT_WRITE: usize = 1 << 1;
const PAGE_FAULT_EXECUTE: usize = 1 << 4;

/// Answers a call, or lets it go on; returns what the selector is to be.
fn answer(process: &Process, thread: &mut Thread, context: &mut Context) -> u8 {
    let number = context.register(libc::REG_RAX) as c_long;
    let args = context.arguments();
    if number == libc::SYS_rt_sigreturn {
        return actions::returned(process, thread, context);
    }
    let result = match number {
        libc::SYS_rt_sigprocmask => actions::sigprocmask(process, thread, context, args),
        libc::SYS_rt_sigaction => actions::sigaction(process, args),
        libc::SYS_sigaltstack => actions::sigaltstack(process, thread, context, args),
        number if is_refused(number) => -libc::ENOSYS as isize,
        libc::SYS_ioctl if args[1] == KVM_CREATE_VM => -libc::EPERM as isize,
        _ => {
            go_on(process, thread, context, number, args);
            return CAUGHT;
        }
    };
    context.set_result(result);
    CAUGHT
}

/// Makes a virtual machine: it touches its memory without a call that could be caught, and would
/// find other content where pages are out. (linux/kvm.h)
const KVM_CREATE_VM: usize = 0xae01;

/// Calls that have the kernel work on memory later.
fn is_refused(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_io_uring_setup
            | libc::SYS_io_uring_enter
            | libc::SYS_io_uring_register
            | libc::SYS_io_setup
            | libc::SYS_io_submit
    )
}

/// Lets a call go on in the program, with what it touches held.
fn go_on(
    process: &Process,
    thread: &mut Thread,
    context: &mut Context,
    number: c_long,
    args: [usize; 6],
) {
    thread.wait_mask = wait_mask(process, number, &args);
    let mut changed = args;
    match overspill_calls::call(number as u32) {
        Some(call) => hold::hold_for(process, thread, call, &mut changed),
        None => hold::hold_behind(process, thread, &args),
    }
    let Some(child) = Child::of(process, number, &args) else {
        return resume(process, context, &args, &changed);
    };
    let back = context.register(libc::REG_RIP);
    match child {
        Child::OnSameStack => {
            if let Some(place) = thread.vforks.get_mut(thread.vfork_depth) {
                *place = back;
                thread.vfork_depth += 1;
                redirect(process, context, system::resume_vfork, &[back]);
            } else {
                context.set_result(-libc::EAGAIN as isize);
            }
        }
        Child::OnStack { top, shares_thread } => {
            // Written as the program would; the child goes on there.
            hold::write(process, top - size_of::<usize>(), &back);
            let way: Code = match shares_thread {
                true => system::resume_with_sharing_child,
                false => system::resume_with_child,
            };
            redirect(process, context, way, &[back]);
        }
    }
}

/// Has the program make its call from our section.
fn resume(process: &Process, context: &mut Context, args: &[usize; 6], changed: &[usize; 6]) {
    let back = context.register(libc::REG_RIP);
    if args == changed {
        return redirect(process, context, system::resume, &[back]);
    }
    redirect(process, context, system::resume_cut, &[args[2], args[1], back]);
    context.set_register(libc::REG_RSI, changed[1]);
    context.set_register(libc::REG_RDX, changed[2]);
}

/// Has the program go on at `way`, with `words` on its stack below the red zone.
fn redirect(process: &Process, context: &mut Context, way: Code, words: &[usize]) {
    let pointer = context.register(libc::REG_RSP) - RED_ZONE - size_of_val(words);
    hold::settle(process, pointer, size_of_val(words));
    // SAFETY: the program's stack, below what it uses; the kernel would write there at a signal. A
    // stack without room gets a signal, as then.
    unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), pointer as *mut usize, words.len()) };
    context.set_register(libc::REG_RSP, pointer);
    context.set_register(libc::REG_RIP, address_of(way));
}

/// Where the child of a call goes on, if it makes one that returns on a stack that this one's
/// return address is not on.
enum Child {
    OnSameStack,
    OnStack { top: usize, shares_thread: bool },
}

impl Child {
    fn of(process: &Process, number: c_long, args: &[usize; 6]) -> Option<Self> {
        let (flags, top) = match number {
            libc::SYS_vfork => return Some(Self::OnSameStack),
            libc::SYS_clone => (args[0], args[1]),
            libc::SYS_clone3 => {
                let words = hold::read::<[u64; 7]>(process, args[0])?;
                let [flags, _, _, _, _, stack, bytes] = words.map(|word| word as usize);
                (flags, if stack == 0 { 0 } else { stack + bytes })
            }
            _ => return None,
        };
        let has = |flag: c_int| flags & flag as usize != 0;
        match (has(libc::CLONE_VM), top) {
            (true, 0) => Some(Self::OnSameStack),
            (_, 0) => None,
            (shares, top) => {
                let shares_thread = shares && has(libc::CLONE_VFORK) && !has(libc::CLONE_SETTLS);
                Some(Self::OnStack { top, shares_thread })
            }
        }
    }
}

/// The mask that a call waits with instead of the thread's.
fn wait_mask(process: &Process, number: c_long, args: &[usize; 6]) -> Option<thread::Mask> {
    let at = match number {
        libc::SYS_rt_sigsuspend => args[0],
        libc::SYS_ppoll => args[3],
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => args[4],
        libc::SYS_pselect6 => hold::read::<usize>(process, args[5])?,
        _ => return None,
    };
    (at != 0).then(|| hold::read(process, at))?
}
