//! Children, and threads.
//!
//! Owns: the calls that make them.
//! Invariants: a child that shares the memory gets a slot before it is made, starts there, and
//! goes on as a copy of its parent's context: the program's stack has nothing of this. One that
//! has a copy of the memory goes on in its parent's slot, and is the only one there.
//! Not here: what a child needs so that its pages come (the front attaches to it).

use crate::frames::{self, Context};
use crate::holds;
use crate::letters;
use crate::gate::letter;
use crate::gate::{PIN_ROBUST, PIN_TASK, SIGNALS, Span};
use crate::kernel::{self, E2BIG, EAGAIN, EFAULT, EINVAL, number};
use crate::memory;
use crate::signals::{catch_ours, DEFAULT};
use crate::slots::{self, Seat, new_seat};
use core::arch::naked_asm;
use core::sync::atomic::Ordering::Relaxed;

const CLONE_VM: u64 = 0x100;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
const SIGCHLD: u64 = 17;
/// Words of the arguments of clone3: those of its first version, and those that are known.
const WORDS_LEAST: usize = 8;
const WORDS_MOST: usize = 11;
const WORD_BYTES: usize = size_of::<u64>();
/// Of these words.
const FLAGS: usize = 0;
const PIDFD: usize = 1;
const CHILD_TASK: usize = 2;
const PARENT_TASK: usize = 3;
const STACK: usize = 5;
const STACK_BYTES: usize = 6;
/// What is left between a child's stack and its context.
const GAP: usize = 256;

/// What is to be made.
struct Wish {
    flags: u64,
    /// Where the program wants the child's stack pointer; 0 where it is.
    stack: u64,
    /// Where the child's number is, that is cleared at its end.
    task_at: u64,
    kind: Kind,
}

enum Kind {
    /// By `clone`: parent's word, child's word, thread-local storage.
    Clone([usize; 3]),
    /// By `clone3`: the words, and how many bytes.
    Clone3([u64; WORDS_MOST], usize),
}

/// `clone`, `fork`, `vfork`, `clone3`.
pub fn make(seat: Seat, number: usize, context: &mut Context) -> isize {
    let wish = match wish(number, context.arguments()) {
        Ok(wish) => wish,
        Err(errno) => return errno,
    };
    hold_words(seat, &wish);
    match wish.flags & CLONE_VM {
        0 => fork(seat, &wish, context),
        _ => share(seat, &wish, context),
    }
}

fn wish(number: usize, [a, b, c, d, e, _]: [usize; 6]) -> Result<Wish, isize> {
    let simple = |flags| Wish { flags, stack: 0, task_at: 0, kind: Kind::Clone([0; 3]) };
    match number {
        number::FORK => Ok(simple(SIGCHLD)),
        number::VFORK => Ok(simple(CLONE_VFORK | CLONE_VM | SIGCHLD)),
        number::CLONE => {
            let (flags, stack, task_at) = (a as u64, b as u64, d as u64);
            Ok(Wish { flags, stack, task_at, kind: Kind::Clone([c, d, e]) })
        }
        _ => wish_of_clone3(a, b),
    }
}

fn wish_of_clone3(at: usize, bytes: usize) -> Result<Wish, isize> {
    if bytes < WORDS_LEAST * WORD_BYTES {
        return Err(-EINVAL);
    }
    if bytes > WORDS_MOST * WORD_BYTES {
        return Err(-E2BIG);
    }
    let mut words = [0u64; WORDS_MOST];
    for (n, word) in words.iter_mut().enumerate() {
        if (n + 1) * WORD_BYTES <= bytes {
            *word = memory::read(at + n * WORD_BYTES).map_err(|_| -EFAULT)?;
        }
    }
    let stack = match words[STACK] {
        0 => 0,
        stack => stack.wrapping_add(words[STACK_BYTES]),
    };
    let (flags, task_at) = (words[FLAGS], words[CHILD_TASK]);
    Ok(Wish { flags, stack, task_at, kind: Kind::Clone3(words, bytes) })
}

/// What the kernel writes of a child's number, here and there.
fn hold_words(seat: Seat, wish: &Wish) {
    let places = match &wish.kind {
        Kind::Clone([parent, child, _]) => [*parent, *child, 0],
        Kind::Clone3(words, _) => {
            [words[PIDFD], words[CHILD_TASK], words[PARENT_TASK]].map(|word| word as usize)
        }
    };
    // SAFETY: this thread's, in its handler.
    let slot = unsafe { seat.own() };
    holds::hold_bytes(seat, slot, places.map(|place| (place, size_of::<u64>())));
}

/// Makes a child with a copy of the memory. What is out is not in that: so the keeper hears of it
/// before, and again from both, and neither goes on before the child can have its pages.
fn fork(seat: Seat, wish: &Wish, context: &mut Context) -> isize {
    if !letters::has_keeper() {
        return make_copy(seat, wish, context);
    }
    let key = letters::ask(letter::FORK, [0; 4], || {});
    if key < 0 {
        return key;
    }
    let made = make_copy(seat, wish, context);
    if made == 0 {
        be_born(key as u64);
        return 0;
    }
    let mut is_told = false;
    let known = letters::ask(letter::FORKED, [key as u64, made as u64, 0, 0], || {
        // Nobody else would say so.
        if made > 0 && !is_told && kernel::has_ended(made) {
            is_told = true;
            letters::ask(letter::FORKED, [key as u64, 0, 0, 0], || {});
        }
    });
    if made > 0 && known < 0 && !is_told {
        // It has no pages, and ends itself.
        kernel::reap(made);
        return known;
    }
    made
}

/// Has a child, in which nobody has touched anything yet, get its pages.
fn be_born(key: u64) {
    let userfaultfd = if letters::tells_of_touches() { -1 } else { kernel::userfaultfd() };
    let (number, parent) = (kernel::this_process(), kernel::parent());
    let page = letters::ask(letter::BORN, [key, number, userfaultfd as u64, 0], || {
        // Without a keeper nobody answers, and the parent has been ended.
        if kernel::parent() != parent {
            kernel::exit();
        }
    });
    if page <= 0 {
        kernel::exit();
    }
    if userfaultfd >= 0 {
        kernel::close(userfaultfd);
    }
    letters::page().store(page as u32, Relaxed);
}

fn make_copy(seat: Seat, wish: &Wish, context: &mut Context) -> isize {
    let made = match wish.kind {
        Kind::Clone([parent, child, storage]) => {
            kernel::make(number::CLONE, [wish.flags as usize, 0, parent, child, storage, 0])
        }
        Kind::Clone3(mut words, bytes) => {
            (words[STACK], words[STACK_BYTES]) = (0, 0);
            kernel::make(number::CLONE3, [words.as_ptr() as usize, bytes, 0, 0, 0, 0])
        }
    };
    if made == 0 {
        go_on_alone(seat, wish, context);
    }
    made
}

/// What a child does first that has a copy of the memory.
fn go_on_alone(seat: Seat, wish: &Wish, context: &mut Context) {
    kernel::shut();
    slots::only(seat);
    // SAFETY: this thread's, in its handler.
    let slot = unsafe { seat.own() };
    if wish.stack != 0 {
        context.rsp = wish.stack;
    }
    // A child's list of robust futexes is empty.
    slot.pins[PIN_ROBUST] = Span::default();
    set_task_pin(slot, wish);
    if wish.flags & CLONE_CLEAR_SIGHAND != 0 {
        clear_actions(slot.actions);
        catch_ours();
    }
}

fn set_task_pin(slot: &mut crate::gate::Slot, wish: &Wish) {
    slot.pins[PIN_TASK] = match wish.flags & CLONE_CHILD_CLEARTID {
        0 => Span::default(),
        _ => Span::of(wish.task_at as usize, size_of::<u32>()),
    };
}

fn clear_actions(table: u64) {
    for signal in 1..SIGNALS {
        let _ = slots::with_action(table, signal, |action| {
            if action.handler > 1 {
                action.handler = DEFAULT;
            }
        });
    }
}

/// Makes a child that shares the memory: a thread, or what vfork makes.
fn share(seat: Seat, wish: &Wish, context: &Context) -> isize {
    let is_thread = wish.flags & CLONE_SIGHAND != 0;
    // SAFETY: this thread's, in its handler.
    let parent = unsafe { seat.own() };
    let Some(new) = new_seat(parent.actions) else { return -EAGAIN };
    // SAFETY: it is claimed by this thread.
    let slot = unsafe { new.own() };
    slot.believed = parent.believed;
    slot.is_foreign = u32::from(!is_thread) | parent.is_foreign;
    set_task_pin(slot, wish);
    if wish.flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM | CLONE_VFORK {
        let stack = (parent.stack, parent.stack_bytes, parent.stack_flags);
        (slot.stack, slot.stack_bytes, slot.stack_flags) = stack;
    }
    if !is_thread {
        slot.actions = &raw mut slot.own_actions as u64;
        for (signal, own) in slot.own_actions.iter_mut().enumerate() {
            let _ = slots::with_action(parent.actions, signal, |action| *own = *action);
        }
        if wish.flags & CLONE_CLEAR_SIGHAND != 0 {
            clear_actions(slot.actions);
        }
    }
    let made = begin(new, wish, context);
    let is_over = made < 0 || !is_thread && wish.flags & CLONE_VFORK != 0;
    match is_over {
        true => new.free(),
        // What it says itself it may say in other numbers.
        false if !is_thread => new.give(made as u32),
        false => {}
    }
    made
}

/// Makes a child in its slot.
fn begin(new: Seat, wish: &Wish, context: &Context) -> isize {
    let (start, bytes) = new.stack();
    // SAFETY: the new slot's stack, which nobody runs on.
    let Ok(at) = (unsafe { frames::copy_below(context, start + bytes) }) else { return -EFAULT };
    // SAFETY: it was just put there.
    let child = unsafe { &mut *(at as *mut Context) };
    child.returns(0);
    (child.stack, child.stack_flags, child.stack_bytes) = (start as u64, 0, bytes as u64);
    if wish.stack != 0 {
        child.rsp = wish.stack;
    }
    let top = (at - GAP) & !15;
    if memory::write(top, &(at as u64)).is_err() {
        return -EFAULT;
    }
    match wish.kind {
        Kind::Clone([parent, child, storage]) => {
            let flags = wish.flags as usize;
            // SAFETY: the stack is the child's, and the context one of this thread's kernel.
            unsafe { clone_raw(number::CLONE, flags, top, parent, child, storage) }
        }
        Kind::Clone3(mut words, bytes) => {
            (words[STACK], words[STACK_BYTES]) = (start as u64, (top - start) as u64);
            let words = words.as_ptr() as usize;
            // SAFETY: as above.
            unsafe { clone_raw(number::CLONE3, words, bytes, 0, 0, 0) }
        }
    }
}

/// What a child does first that shares the memory. On its stack is nothing but the address of the
/// context that it goes on with.
extern "C" fn begin_child(context: usize) -> ! {
    let seat = Seat::at(context);
    // SAFETY: this thread's, which has no other handler yet.
    let slot = unsafe { seat.own() };
    match slot.is_foreign {
        0 => seat.give(kernel::this_task()),
        _ => catch_ours(),
    }
    let (start, bytes) = seat.stack();
    kernel::signal_stack(start, bytes);
    kernel::shut();
    // SAFETY: its parent has put it there.
    unsafe { leave(context) }
}

/// Goes on with a context.
///
/// # Safety
/// It is one that the kernel has made for this thread, or a copy of one, and lies on this thread's
/// stack for signals.
#[unsafe(naked)]
unsafe extern "C" fn leave(context: usize) -> ! {
    naked_asm!("mov rsp, rdi", "mov eax, 15", "syscall", "ud2")
}

/// Makes `clone` or `clone3`, by number, for a child that has this memory and a stack of its own,
/// at whose top the address of its context lies. Returns what the kernel says to the parent.
///
/// # Safety
/// The stack is nobody else's, and the context one to leave with.
#[unsafe(naked)]
unsafe extern "C" fn clone_raw(
    number: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
) -> isize {
    naked_asm!(
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2: pop rdi",
        "xor ebp, ebp",
        "call {begin_child}",
        "ud2",
        begin_child = sym begin_child,
    )
}
