//! What a keeper was asked, and what it says.
//!
//! Owns: what was asked and is not answered; what was heard and is not taken; how things were when
//! the keeper said so last.
//! Invariants: a keeper answers in the order in which it is asked. Nobody waits for an answer while
//! a run goes on: it comes as an event, or is kept until it is asked for (how things are); if the
//! keeper has ended or is not understood, the event is that.
//! Not here: sending and receiving (`super`); what follows from an event (`crate::front`).

use super::error::KeeperError;
use overspill_guest::Vpn;
use overspill_keeper::{AreaState, KeeperState, Report, Wanted};
use overspill_wire::LinkError;
use std::collections::VecDeque;
use std::time::Instant;

/// How things are: the areas, and the rest.
pub type State = (Vec<AreaState>, KeeperState);

/// What was asked. Guests are named by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// To begin, to swap to another place, too, or no more to one.
    Change,
    /// To page a guest.
    Add(u64),
    /// To take note of a guest's end.
    End(u64),
    /// To bring some of a guest back.
    Bring(Bring),
    /// To let a guest go.
    LetGo(u64),
    /// How things are, at this moment.
    State(Instant),
    /// What nobody waits for any more.
    Nothing,
}

/// Some of a guest, from here on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bring {
    pub(crate) number: u64,
    pub(crate) from: Vpn,
    pub(crate) purpose: Purpose,
}

/// What a guest is brought back for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// It is to be let go.
    Leaving,
    /// Its tracer reads it.
    Traced,
}

/// What has come of a keeper. Guests are named by their numbers.
#[derive(Debug)]
pub(crate) enum Event {
    Wanted(Wanted),
    /// The areas that were added, or are leaving.
    Changed(Result<Vec<AreaState>, KeeperError>),
    /// Whether a guest is paged. One that is not is lost: without a keeper its agent ends it.
    Added(u64, Result<(), KeeperError>),
    /// Nothing that is done for a guest reaches the process any more.
    Ended(u64),
    /// Some of a guest is back; there may be more from there on.
    Brought(Bring, Result<Option<Vpn>, KeeperError>),
    /// Whether a guest is let go; if not, it is paged as before, and other things are to be done
    /// first.
    LetGo(u64, Result<bool, KeeperError>),
}

/// What a keeper was asked, and what it says.
#[derive(Default)]
pub(super) struct Exchange {
    asked: VecDeque<Asked>,
    /// Of the answer that is being heard.
    areas: Vec<AreaState>,
    events: Vec<Event>,
    /// And when it was asked for.
    state: Option<(Instant, State)>,
}

impl Exchange {
    pub(super) fn ask(&mut self, asked: Asked) {
        self.asked.push_back(asked);
    }

    /// True if there are answers to come.
    pub(super) fn is_open(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Takes what the keeper says; lines are its user's.
    pub(super) fn hear(&mut self, report: Report) {
        match report {
            Report::Area(area) => self.areas.push(area),
            Report::Wanted(wanted) => self.events.push(Event::Wanted(wanted)),
            answer => self.answer(Ok(answer)),
        }
    }

    /// Nothing more is heard.
    pub(super) fn end(&mut self, error: &LinkError) {
        while self.is_open() {
            self.answer(Err(error.clone()));
        }
    }

    /// What could not be asked is answered so.
    pub(super) fn refuse(&mut self, asked: Asked, error: KeeperError) {
        let event = self.event(asked, Err(error));
        self.events.extend(event);
    }

    /// Nobody waits any more for what of a guest is brought back.
    pub(super) fn forget_brought(&mut self, guest: u64) {
        let is_of = |asked: &&mut Asked| matches!(asked, Asked::Bring(it) if it.number == guest);
        self.asked.iter_mut().filter(is_of).for_each(|asked| *asked = Asked::Nothing);
    }

    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// How things were at this moment or later.
    pub(super) fn state_since(&self, moment: Instant) -> Option<&State> {
        self.state.as_ref().filter(|(asked, _)| *asked >= moment).map(|(_, state)| state)
    }

    /// True if that is to be heard soon.
    pub(super) fn awaits_state_since(&self, moment: Instant) -> bool {
        self.asked.iter().any(|asked| matches!(asked, Asked::State(asked) if *asked >= moment))
    }

    /// How things were when they were last heard.
    pub(super) fn last_state(&self) -> Option<&State> {
        self.state.as_ref().map(|(_, state)| state)
    }

    /// What nobody has asked for has no answer.
    fn answer(&mut self, report: Result<Report, LinkError>) {
        if let Some(asked) = self.asked.pop_front() {
            let event = self.event(asked, report.map_err(KeeperError::from));
            self.events.extend(event);
        }
        self.areas.clear();
    }

    fn event(&mut self, asked: Asked, report: Result<Report, KeeperError>) -> Option<Event> {
        Some(match asked {
            Asked::Nothing => return None,
            Asked::State(asked) => {
                if let Ok(Report::State(state)) = report {
                    self.state = Some((asked, (std::mem::take(&mut self.areas), state)));
                }
                return None;
            }
            Asked::Change => {
                let areas = std::mem::take(&mut self.areas);
                Event::Changed(report.and_then(done).map(|()| areas))
            }
            Asked::Add(number) => Event::Added(number, report.and_then(done)),
            Asked::End(number) => Event::Ended(number),
            Asked::Bring(bring) => Event::Brought(bring, report.and_then(brought)),
            Asked::LetGo(number) => Event::LetGo(number, report.and_then(is_gone)),
        })
    }
}

fn done(report: Report) -> Result<(), KeeperError> {
    match report {
        Report::Done => Ok(()),
        other => Err(refusal(other)),
    }
}

fn brought(report: Report) -> Result<Option<Vpn>, KeeperError> {
    match report {
        Report::Brought(rest) => Ok(rest),
        other => Err(refusal(other)),
    }
}

fn is_gone(report: Report) -> Result<bool, KeeperError> {
    match report {
        Report::Done => Ok(true),
        Report::NotNow => Ok(false),
        other => Err(refusal(other)),
    }
}

fn refusal(report: Report) -> KeeperError {
    match report {
        Report::Refused(why) => KeeperError::Refused(why),
        Report::Unable(why) => KeeperError::Unable(why),
        _ => KeeperError::Answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_base::Bytes;
    use std::time::Duration;

    fn area(number: usize) -> AreaState {
        let (name, notes) = (String::new(), Vec::new());
        let (capacity, used, used_most) = (Bytes(0), Bytes(0), Bytes(0));
        let (leaving, compressed) = (false, None);
        AreaState { number, leaving, name, notes, capacity, used, used_most, compressed }
    }

    fn bring(number: u64) -> Bring {
        Bring { number, from: Vpn(0), purpose: Purpose::Leaving }
    }

    #[test]
    fn each_question_has_its_answer_in_their_order() {
        let mut exchange = Exchange::default();
        let all = [Asked::Add(1), Asked::Bring(bring(1)), Asked::LetGo(1), Asked::End(1)];
        all.into_iter().for_each(|asked| exchange.ask(asked));
        exchange.hear(Report::Refused("no".into()));
        exchange.hear(Report::Wanted(Wanted::Hold(7)));
        exchange.hear(Report::Brought(Some(Vpn(3))));
        exchange.hear(Report::NotNow);
        exchange.hear(Report::Done);
        assert!(!exchange.is_open());
        let events = exchange.take();
        assert!(
            matches!(
                &*events,
                [
                    Event::Added(1, Err(KeeperError::Refused(_))),
                    Event::Wanted(Wanted::Hold(7)),
                    Event::Brought(_, Ok(Some(Vpn(3)))),
                    Event::LetGo(1, Ok(false)),
                    Event::Ended(1),
                ]
            ),
            "{events:?}"
        );
        assert!(exchange.take().is_empty());
    }

    #[test]
    fn areas_are_those_of_the_answer_after_them() {
        let (mut exchange, begun) = (Exchange::default(), Instant::now());
        let later = begun + Duration::from_secs(1);
        [Asked::State(begun), Asked::Change].into_iter().for_each(|asked| exchange.ask(asked));
        assert!(exchange.awaits_state_since(begun) && !exchange.awaits_state_since(later));
        [0, 1].into_iter().for_each(|number| exchange.hear(Report::Area(area(number))));
        exchange.hear(Report::State(KeeperState::default()));
        exchange.hear(Report::Area(area(2)));
        exchange.hear(Report::Done);
        assert_eq!(exchange.state_since(begun).unwrap().0, [area(0), area(1)]);
        assert_eq!(
            (exchange.state_since(later), exchange.awaits_state_since(begun)),
            (None, false)
        );
        let events = exchange.take();
        assert!(matches!(&*events, [Event::Changed(Ok(areas))] if *areas == [area(2)]));
    }

    #[test]
    fn who_has_ended_answers_all_that_it_was_asked_so() {
        let mut exchange = Exchange::default();
        let all = [Asked::Add(1), Asked::End(2), Asked::State(Instant::now()), Asked::Change];
        all.into_iter().for_each(|asked| exchange.ask(asked));
        exchange.end(&LinkError::Ended);
        let events = exchange.take();
        assert!(
            matches!(
                &*events,
                [
                    Event::Added(1, Err(KeeperError::Link(_))),
                    Event::Ended(2),
                    Event::Changed(Err(_))
                ]
            ),
            "{events:?}"
        );
        assert!(!exchange.is_open() && exchange.last_state().is_none());
    }

    #[test]
    fn an_answer_to_something_else_is_none() {
        let mut exchange = Exchange::default();
        // What nobody asked for.
        exchange.hear(Report::Done);
        for asked in [Asked::Add(1), Asked::Bring(bring(1)), Asked::LetGo(1), Asked::Change] {
            exchange.ask(asked);
            exchange.hear(Report::State(KeeperState::default()));
        }
        let is_wrong = |event: &Event| {
            matches!(
                event,
                Event::Added(_, Err(KeeperError::Answer))
                    | Event::Brought(_, Err(KeeperError::Answer))
                    | Event::LetGo(_, Err(KeeperError::Answer))
                    | Event::Changed(Err(KeeperError::Answer))
            )
        };
        let events = exchange.take();
        assert!(events.len() == 4 && events.iter().all(is_wrong), "{events:?}");
    }

    #[test]
    fn what_is_brought_back_of_a_guest_that_stays_is_nobodys() {
        let mut exchange = Exchange::default();
        [1, 2].into_iter().for_each(|number| exchange.ask(Asked::Bring(bring(number))));
        exchange.forget_brought(1);
        [4, 5].into_iter().for_each(|rest| exchange.hear(Report::Brought(Some(Vpn(rest)))));
        let events = exchange.take();
        assert!(
            matches!(&*events, [Event::Brought(it, Ok(Some(Vpn(5))))] if it.number == 2),
            "{events:?}"
        );
    }
}
