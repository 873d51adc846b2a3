//! `overspill top`: all runs of this user, on a terminal, while they go on.
//!
//! Owns: the terminal, the keys, and the loop: look, draw, wait for a key or for the next look.
//! Invariants: the terminal is as it was when this ends, also by an error. What is drawn was seen a
//! moment ago ([`state`]); drawing asks nothing ([`view`]).

mod columns;
mod state;
mod view;

use super::of_process;
use super::seen::Seen;
use super::set::change_memory;
use crate::args::TopArgs;
use crate::error::Error;
use overspill::Bytes;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use state::{Order, State};
use std::io::{IsTerminal, stdin, stdout};
use std::time::{Duration, Instant};

/// What a key does.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Action {
    Quit,
    Select(isize),
    Sort(Order),
    /// Multiplies the limit of the selected run.
    Scale(f64),
    /// Asks whether to end the selected run.
    End,
    /// Agrees to what is asked.
    Yes,
    Help,
    None,
}

impl Action {
    /// The keys are htop's, where it has such.
    fn of(key: KeyEvent) -> Self {
        let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if ctrl => Self::Quit,
            KeyCode::Char('q') | KeyCode::F(10) | KeyCode::Esc => Self::Quit,
            KeyCode::Down => Self::Select(1),
            KeyCode::Up => Self::Select(-1),
            KeyCode::PageDown | KeyCode::End => Self::Select(isize::MAX),
            KeyCode::PageUp | KeyCode::Home => Self::Select(isize::MIN),
            KeyCode::Char('W') => Self::Sort(Order::Waits),
            KeyCode::Char('M') => Self::Sort(Order::Memory),
            KeyCode::Char('P') => Self::Sort(Order::Faults),
            KeyCode::Char('T') => Self::Sort(Order::Time),
            KeyCode::Char('N') => Self::Sort(Order::Number),
            KeyCode::F(7) | KeyCode::Char('[') => Self::Scale(1.0 / 1.125),
            KeyCode::F(8) | KeyCode::Char(']') => Self::Scale(1.125),
            KeyCode::F(9) | KeyCode::Char('k') => Self::End,
            KeyCode::Char('y' | 'Y') => Self::Yes,
            KeyCode::F(1) | KeyCode::Char('h' | '?') => Self::Help,
            _ => Self::None,
        }
    }
}

/// Shows runs until a key ends it.
///
/// # Errors
/// [`Error::NoTerminal`], [`Error::Output`].
pub(crate) fn top(args: &TopArgs) -> Result<u8, Error> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Error::NoTerminal);
    }
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, Duration::from_secs_f64(args.delay.into()));
    ratatui::try_restore()?;
    shown.map(|()| 0)
}

fn show(terminal: &mut DefaultTerminal, delay: Duration) -> Result<(), Error> {
    let mut state = State::default();
    loop {
        state.look(Seen::all(), Instant::now());
        let next = Instant::now() + delay;
        loop {
            terminal.draw(|frame| view::draw(frame, &state))?;
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match read_key(left)? {
                Some(Action::Quit) if !state.asks() => return Ok(()),
                Some(action) => act(&mut state, action),
                None => {}
            }
        }
    }
}

/// What a key that is pressed within `patience` does.
fn read_key(patience: Duration) -> Result<Option<Action>, Error> {
    if !event::poll(patience)? {
        return Ok(None);
    }
    Ok(match event::read()? {
        Event::Key(key) if key.kind == KeyEventKind::Press => Some(Action::of(key)),
        _ => Some(Action::None),
    })
}

fn act(state: &mut State, action: Action) {
    if std::mem::take(&mut state.helps) {
        return;
    }
    if let Some(run) = state.answer_end() {
        if action == Action::Yes {
            end(state, run as i32);
        }
        return;
    }
    match action {
        Action::Select(by) => state.select(by),
        Action::Sort(order) => state.sort(order),
        Action::Scale(factor) => scale(state, factor),
        Action::End => state.ask_to_end(),
        Action::Help => state.helps = true,
        Action::Quit | Action::Yes | Action::None => {}
    }
}

/// Changes the limit of the selected run; what it answers is shown.
fn scale(state: &mut State, factor: f64) {
    let Some(seen) = state.selected() else { return };
    let limit = Bytes(((seen.memory_bytes as f64 * factor) as u64).min(seen.memory_bytes_max));
    let number = seen.run as i32;
    let changed = of_process(number).and_then(|run| change_memory(run, limit));
    state.say(match changed {
        Ok(_) => format!("run {number}: limit {limit}"),
        Err(error) => error.to_string(),
    });
}

/// Asks a run to end. It passes that on to its program, or lets go of what it is attached to.
fn end(state: &mut State, number: i32) {
    state.say(match send_term(number) {
        Ok(()) => format!("run {number} was asked to end"),
        Err(error) => error.to_string(),
    });
}

fn send_term(number: i32) -> Result<(), Error> {
    let ended = || Error::system("end the run");
    let pid = Pid::from_raw(number).ok_or(Error::NoRun(number))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| ended()(errno.into()))?;
    // The number is the run's still, and so is the descriptor.
    if of_process(number)?.process != number {
        return Err(Error::NoRun(number));
    }
    pidfd_send_signal(process, Signal::TERM).map_err(|errno| ended()(errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_htop() {
        let key = |code| Action::of(KeyEvent::new(code, KeyModifiers::NONE));
        assert_eq!(key(KeyCode::F(10)), Action::Quit);
        assert_eq!(key(KeyCode::Char('M')), Action::Sort(Order::Memory));
        assert_eq!((key(KeyCode::F(9)), key(KeyCode::Char('x'))), (Action::End, Action::None));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(Action::of(interrupt), Action::Quit);
    }
}
