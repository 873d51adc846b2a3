//! No gate: this processor's kernel does not hand system calls to a program.
//!
//! Owns: saying so.

use crate::error::{AttachError, Result};
use crate::hold::Held;
use crate::system::System;
use overspill_agent::Barrier;
use overspill_agent::gate::{LETTERS_AT, STUB_AT};

/// A gate that is shut: there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gate {
    /// Where its memory would start.
    pub base: u64,
}

/// What a gate would do.
#[derive(Clone, Copy, Debug)]
pub struct Catch {
    /// What would have touches be signals.
    pub barrier: Option<Barrier>,
    /// Pages that a call might hold.
    pub hold_pages_max: u32,
}

impl Gate {
    pub(crate) fn of(letters: u64) -> Self {
        Self { base: letters.wrapping_sub(LETTERS_AT as u64) }
    }

    pub(crate) fn passes_at(self) -> u64 {
        self.base.wrapping_add(STUB_AT as u64)
    }
}

/// Says why not.
///
/// # Errors
/// Always.
pub fn can_shut<S: System>(held: &mut Held<'_, S>) -> Result<()> {
    none(held).map(drop)
}

/// Says why not.
///
/// # Errors
/// Always.
pub fn shut<S: System>(held: &mut Held<'_, S>, _: Catch) -> Result<Gate> {
    none(held)
}

fn none<S: System>(held: &Held<'_, S>) -> Result<Gate> {
    let why = "this processor's kernel does not hand its system calls to a program";
    Err(AttachError::NoGate { pid: held.pid, why })
}

/// Says why not.
///
/// # Errors
/// Always.
pub fn inherited<S: System>(held: &mut Held<'_, S>) -> Result<Gate> {
    none(held)
}

/// Has nobody to let out.
///
/// # Errors
/// None.
pub fn let_out<S: System>(_: &mut Held<'_, S>, _: Gate) -> Result<()> {
    Ok(())
}

/// Has nothing to open.
///
/// # Errors
/// None.
pub fn can_open<S: System>(_: &mut Held<'_, S>, _: Gate) -> Result<()> {
    Ok(())
}

/// Has nothing to open.
///
/// # Errors
/// None.
pub fn open<S: System>(_: &mut Held<'_, S>, _: Gate) -> Result<()> {
    Ok(())
}
