//! Ids as people type them (UI-14): whole, by their last digits as tables show them, or `@last`. Model calls as `TURN/3`.

use std::str::FromStr;

use anyhow::{Result, bail};
use waybill_core::id::{AgentId, BatchId, BoxId, CardId, GrantId, Malformed, SessionId, StepId, ToolCallId, TurnId};
use waybill_kernel::{
    session,
    short::{self, Kind},
    turn::{self, Filter, Listing},
    work::UnitOfWork,
};

use crate::output::DIGITS;

/// The newest turn that no other turn started, or the newest session: the first row of the list.
const LAST: &str = "@last";
/// With fewer digits, too many ids end alike.
const FEWEST: usize = 4;

/// An id that can be typed by its last digits.
pub(crate) trait Id: Copy + ToString + FromStr<Err = Malformed> {
    const KIND: Kind;
}

macro_rules! ids {
    ($($id:ident $kind:ident),*) => {$(
        impl Id for $id {
            const KIND: Kind = Kind::$kind;
        }
    )*};
}

ids! { TurnId Turn, CardId Card, BoxId Box, SessionId Session, BatchId Batch, AgentId Agent, ToolCallId Call, GrantId Grant }

/// Returns the words for one and for several.
const fn words(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Turn => ("turn", "turns"),
        Kind::Card => ("card", "cards"),
        Kind::Box => ("box", "boxes"),
        Kind::Session => ("session", "sessions"),
        Kind::Batch => ("batch", "batches"),
        Kind::Agent => ("agent", "agents"),
        Kind::Call => ("call", "calls"),
        Kind::Grant => ("grant", "grants"),
    }
}

const fn has_last(kind: Kind) -> bool {
    matches!(kind, Kind::Turn | Kind::Session)
}

/// What a person typed for an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named<T> {
    Whole(T),
    /// The last digits of the id.
    Digits(String),
    Last,
}

impl<T: Id> FromStr for Named<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Named<T>, String> {
        if text == LAST && has_last(T::KIND) {
            return Ok(Named::Last);
        }
        if let Ok(id) = text.parse() {
            return Ok(Named::Whole(id));
        }
        let is_end = (FEWEST..36).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        if is_end {
            return Ok(Named::Digits(text.to_ascii_lowercase()));
        }
        let (one, _) = words(T::KIND);
        let last = if has_last(T::KIND) { ", or @last for the newest" } else { "" };
        Err(format!("expected the id of a {one}, or its last {DIGITS} digits as tables show them{last}"))
    }
}

impl<T: Id> Named<T> {
    /// Returns the id. An id that was typed whole is not looked up.
    pub(crate) async fn find(&self, work: &mut UnitOfWork) -> Result<T> {
        let digits = match self {
            Named::Whole(id) => return Ok(*id),
            Named::Last => return Ok(newest(work, T::KIND).await?.parse()?),
            Named::Digits(digits) => digits,
        };
        let found = short::find(work, T::KIND, digits).await?;
        let (one, several) = words(T::KIND);
        match found.as_slice() {
            [id] => Ok(id.parse()?),
            [] => bail!("no {one} of this project ends with {digits}: of a {one} that is old, write the whole id"),
            many => {
                let more = if many.len() > short::MOST { ", and more" } else { "" };
                let listed = many[..many.len().min(short::MOST)].join(", ");
                bail!("several {several} end with {digits}: {listed}{more}. Write more digits")
            }
        }
    }
}

/// Returns the ids that were typed, in their order.
pub(crate) async fn find_all<T: Id>(named: &[Named<T>], work: &mut UnitOfWork) -> Result<Vec<T>> {
    let mut found = Vec::with_capacity(named.len());
    for one in named {
        found.push(one.find(work).await?);
    }
    Ok(found)
}

/// Returns the id that was typed, if one was.
pub(crate) async fn find_some<T: Id>(named: Option<&Named<T>>, work: &mut UnitOfWork) -> Result<Option<T>> {
    match named {
        Some(named) => Ok(Some(named.find(work).await?)),
        None => Ok(None),
    }
}

async fn newest(work: &mut UnitOfWork, kind: Kind) -> Result<String> {
    let found = if kind == Kind::Session {
        session::list(work, None, None, 1).await?.first().map(|session| session.session_id.to_string())
    } else {
        let listing = Listing { filter: Filter { roots: true, ..Filter::default() }, most: 1, ..Listing::default() };
        turn::list(work, &listing).await?.turns.first().map(|turn| turn.agent_turn_id.to_string())
    };
    match found {
        Some(id) => Ok(id),
        None => bail!("this project has no {} yet", words(kind).0),
    }
}

/// A model call as people type it: `TURN/STEP`, or `TURN` alone. What `TURN` alone means is up to the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedCall {
    turn: Named<TurnId>,
    step: Option<NamedStep>,
}

/// A step as people type it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NamedStep {
    /// Which step of the turn, from 1.
    Number(usize),
    Whole(StepId),
    Digits(String),
}

impl FromStr for NamedCall {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedCall, String> {
        let (turn, step) = text.split_once('/').map_or((text, None), |(turn, step)| (turn, Some(step)));
        Ok(NamedCall { turn: turn.parse()?, step: step.map(str::parse).transpose()? })
    }
}

impl FromStr for NamedStep {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedStep, String> {
        if text.len() < DIGITS
            && let Ok(number) = text.parse()
        {
            return Ok(NamedStep::Number(number));
        }
        if let Ok(step_id) = text.parse() {
            return Ok(NamedStep::Whole(step_id));
        }
        if text.len() >= FEWEST && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-') {
            return Ok(NamedStep::Digits(text.to_ascii_lowercase()));
        }
        Err(format!("expected TURN/STEP, where STEP is the number of the step, its id, or its last {DIGITS} digits"))
    }
}

impl NamedCall {
    /// Returns the turn, and the step if one was named.
    pub(crate) async fn find(&self, work: &mut UnitOfWork) -> Result<(TurnId, Option<StepId>)> {
        let turn_id = self.turn.find(work).await?;
        let named = match &self.step {
            None => return Ok((turn_id, None)),
            Some(NamedStep::Whole(step_id)) => return Ok((turn_id, Some(*step_id))),
            Some(named) => named,
        };
        let steps: Vec<StepId> = turn::steps(work, turn_id).await?.iter().map(|step| step.step_id).collect();
        let found: Vec<StepId> = match named {
            NamedStep::Number(n) => n.checked_sub(1).and_then(|n| steps.get(n)).copied().into_iter().collect(),
            NamedStep::Digits(digits) => {
                steps.iter().copied().filter(|step_id| step_id.to_string().ends_with(digits.as_str())).collect()
            }
            NamedStep::Whole(step_id) => vec![*step_id],
        };
        match (found.as_slice(), named) {
            ([step_id], _) => Ok((turn_id, Some(*step_id))),
            ([], NamedStep::Number(n)) => bail!("turn {turn_id} has no step {n}: it has {} steps", steps.len()),
            ([], _) => bail!("turn {turn_id} has no such step: `waybill context list {turn_id}` lists its steps"),
            (several, _) => bail!("several steps of turn {turn_id} end alike: {several:?}. Write more digits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UI-14: what can be typed for an id.
    #[test]
    fn an_id_is_typed_whole_by_its_end_or_as_the_last() {
        let whole = TurnId::new();
        assert_eq!(whole.to_string().parse::<Named<TurnId>>(), Ok(Named::Whole(whole)));
        assert_eq!("0C07398F".parse::<Named<TurnId>>(), Ok(Named::Digits("0c07398f".to_owned())));
        assert_eq!("@last".parse::<Named<SessionId>>(), Ok(Named::Last));
        assert!("@last".parse::<Named<CardId>>().is_err());
        for wrong in ["", "abc", "the last", "@first", "0c07398g"] {
            let said = wrong.parse::<Named<TurnId>>().unwrap_err();
            assert!(said.contains("last 8 digits"), "{said}");
        }
    }

    #[test]
    fn a_call_is_a_turn_and_a_step() {
        let call: NamedCall = "@last/3".parse().unwrap();
        assert_eq!(call, NamedCall { turn: Named::Last, step: Some(NamedStep::Number(3)) });
        let call: NamedCall = "0c07398f/12345678".parse().unwrap();
        assert_eq!(call.step, Some(NamedStep::Digits("12345678".to_owned())));
        assert!("0c07398f/three".parse::<NamedCall>().is_err());
        assert_eq!("0c07398f".parse::<NamedCall>().unwrap().step, None);
    }
}
