//! Exit statuses that are not the program's.

/// The status for Overspill's own failures.
pub(crate) const FAILED: u8 = 125;
/// As in shells: the program exists, but cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// As in shells: the program does not exist.
pub(crate) const NOT_FOUND: u8 = 127;
