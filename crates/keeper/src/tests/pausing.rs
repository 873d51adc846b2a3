//! What others do while a thread of a keeper pauses, where one thread plays all of them.

use std::cell::RefCell;

thread_local! {
    static OTHERS: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Has the others do this whenever this thread pauses.
pub(super) fn set_others(others: impl Fn() + 'static) {
    OTHERS.set(Some(Box::new(others)));
}

/// Lets the others do what they do; false if there are none. They do not pause themselves.
pub(crate) fn has_paused() -> bool {
    let Some(others) = OTHERS.take() else { return false };
    others();
    OTHERS.set(Some(others));
    true
}
