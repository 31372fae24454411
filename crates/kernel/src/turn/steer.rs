//! A message to a turn while it is open. It is shown at the turn's next step, and a turn does not end before it has seen it.

use sqlx::FromRow;
use waybill_core::{
    card::{CardType, Content, Draft, NewCard, Role},
    id::{AgentId, TurnId},
    json,
    turn::TurnEpoch,
};

use super::{Error, check_cards};
use crate::work::{self, Work};

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct Steered {
    pub agent_id: AgentId,
    pub turn_epoch: Option<TurnEpoch>,
    /// The turn had ended before: nothing was written.
    pub is_over: bool,
}

/// Returns a message as a card.
pub fn message(text: &str) -> Result<NewCard, Error> {
    let content = Content::Text(json::readmit(text.to_owned()));
    Ok(Draft::new(CardType::instruction(), Role::User, content).seal()?)
}

/// Sends a card to a turn. The card's id is the idempotency key: sending it again changes nothing.
pub async fn steer(work: &mut impl Work, turn_id: TurnId, card: &NewCard) -> Result<Steered, Error> {
    let cards = std::slice::from_ref(card);
    check_cards(cards)?;
    let query = sqlx::query_as(
        "select agent_id, turn_epoch, outcome = 'over' as is_over
           from state.steer(p_project => $1, p_turn => $2, p_cards => $3)",
    )
    .bind(work.project_id())
    .bind(turn_id)
    .bind(cards);
    Ok(work::one(work, query).await?)
}
