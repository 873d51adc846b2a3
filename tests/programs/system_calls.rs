//! What `system_calls.c` checks: buffers that are swapped out, limits, descriptors, signals.

crate::memory_calls::cases! { "system_calls.c":
    read_and_write send_and_receive vmsplice_then_swap zero_copy_then_swap small_structures standard_io write_from_outside limits
    room close_everything dup_over_everything become_a_daemon signals
}
