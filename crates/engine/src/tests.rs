//! Tests that need single steps of the engine, which only its own crate can start.

#[cfg(not(loom))]
mod free_frames;
#[cfg(not(loom))]
mod lru;
#[cfg(loom)]
mod models;
mod staging;
