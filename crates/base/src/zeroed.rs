//! Slices on the heap that start as zeros, and take memory only where they are used.
//!
//! The allocator gets large ones from the kernel, which has zeros already. Filling one by value
//! would touch all of it: a process with a limit of 64 GiB has 16 million frames, and most
//! processes of a run use few.

/// What [`slice`] can be of.
///
/// Natively zeros are the default value; a model checker's atomics are made one by one.
#[cfg(not(loom))]
pub trait Zeroed: bytemuck::Zeroable {}
#[cfg(not(loom))]
impl<T: bytemuck::Zeroable> Zeroed for T {}

/// As above.
#[cfg(loom)]
pub trait Zeroed: Default {}
#[cfg(loom)]
impl<T: Default> Zeroed for T {}

/// Makes a slice of `len` zeros.
#[cfg(not(loom))]
pub fn slice<T: Zeroed>(len: usize) -> Box<[T]> {
    bytemuck::zeroed_slice_box(len)
}

/// As above.
#[cfg(loom)]
pub fn slice<T: Zeroed>(len: usize) -> Box<[T]> {
    std::iter::repeat_with(T::default).take(len).collect()
}
