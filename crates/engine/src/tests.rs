//! Tests that need single steps of the engine, which nobody outside it can start.

#[cfg(not(loom))]
mod lru;
#[cfg(loom)]
mod models;
