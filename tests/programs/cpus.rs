//! What `cpus.c` checks: where threads and children may run.

crate::memory_calls::cases! { "cpus.c":
    threads_inherit attributes_hold own_are_seen children_inherit filters_are_kept
}
