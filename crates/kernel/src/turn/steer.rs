//! A message to a turn while it is open. It is shown at the turn's next step, and a turn does not end before it has seen it.

use sqlx::FromRow;
use waybill_core::{
    card::{CardType, Content, Draft, NewCard, Role},
    id::{AgentId, TurnId},
    json,
    turn::TurnEpoch,
};

use super::{Error, check_cards};
use crate::{card::bind_cards, work::Work};

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
           from state.steer($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
    )
    .bind(work.project_id())
    .bind(turn_id);
    Ok(bind_cards!(query, cards).fetch_one(work.connection()).await?)
}
