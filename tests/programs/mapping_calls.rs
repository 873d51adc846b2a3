//! What `mapping_calls.c` checks: mappings that replace others, and advice about memory.

crate::memory_calls::cases! { "mapping_calls.c":
    addresses_asked_for failing_map_fixed protection_keys moved_onto moved_within wiped_in_children advice
    file_in_the_middle shared_segment
}
