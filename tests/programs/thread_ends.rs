//! What `thread_ends.c` checks: what the kernel writes at a thread's end, in swapped memory.

crate::memory_calls::cases! { "thread_ends.c":
    own_stacks
}
