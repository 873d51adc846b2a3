//! What `thread_ends.c` checks: the kernel's last words on a thread, in memory that was swapped
//! out.

crate::memory_calls::cases! { "thread_ends.c":
    robust_mutexes own_stacks
}
