//! What `process_calls.c` checks: threads, children of all kinds, and loaded objects.

crate::memory_calls::cases! { "process_calls.c":
    threads many_threads fork_and_go_on grandchildren child_outlives_parent many_children
    fork_amid_threads spawn vfork_and_exec exec load_objects
}
