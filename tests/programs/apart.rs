//! What `apart.c` checks: programs that close, filter, hide or drop what a pager would need if it
//! were part of their process.

crate::memory_calls::cases! { "apart.c":
    ended_children living_children nothing_to_be_seen every_descriptor_closed user_namespace last_thread
    filtered filtered_in_all_threads handler_reads flush_amid_forks locale rights_given_up root_changed
    children_by_clone killed_sharers unseen_child images
}
