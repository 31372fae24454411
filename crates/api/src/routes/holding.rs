//! Where cards stand and how they got there: the boxes that hold a card, the agents that could see it, what a box consists of, and what a turn was
//! handed (PM-12).

use std::{collections::BTreeSet, sync::Arc};

use axum::{extract::State, response::Json};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use waybill_context::receipt::Receipt;
use waybill_core::{
    card_box::Span,
    id::{BoxId, CardId, StepId, TurnId},
};
use waybill_kernel::{
    card_box::{self, Entry, Heir, Holding},
    handover::{self, Handed, Sight},
    receipt,
};
use waybill_orchestrator::replay;

use super::{
    card::{OneBox, OneCard, one_box},
    turn::{OneTurn, one},
};
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Page, Path, Query, and_one, most},
};

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SightParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<BoxId>,
    /// Boxes per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List the agents that could see a card, and why.
///
/// A box with the card was made for the agent, packed for it, granted to it, or written by its children. Grants that were revoked count: the agent
/// could see the card before. A page covers up to `most` boxes that hold the card, so it may have fewer entries, or more.
#[utoipa::path(
    get, path = "/cards/{card}/sight", tag = "cards", params(("card" = CardId, Path), SightParams),
    responses((status = 200, body = Page<Sight>)),
)]
pub(crate) async fn list_sight(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneCard { card: card_id }): Path<OneCard>,
    Query(SightParams { after, most: asked }): Query<SightParams>,
) -> Result<Json<Page<Sight>>, Problem> {
    caller.may_read()?;
    let n = most(asked)?;
    let mut work = caller.begin(&api).await?;
    let mut held = card_box::holders(&mut work, card_id, after, and_one(n)).await?;
    let more = held.len() > n;
    held.truncate(n);
    let seen = handover::sight(&mut work, &held).await?;
    let next = held.last().filter(|_| more).map(|last| last.box_id);
    Ok(Json(Page::upto(seen, next)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PlaceParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[param(pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]{1,18}$")]
    after: Option<String>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

impl PlaceParams {
    fn after(&self) -> Result<Option<Holding>, Problem> {
        self.after.as_deref().map(|text| holding(text).ok_or_else(wrong)).transpose()
    }
}

/// Reads a cursor.
fn holding(text: &str) -> Option<Holding> {
    let (box_id, place) = text.split_once(':')?;
    Some(Holding { box_id: box_id.parse().ok()?, place: place.parse::<i64>().ok().filter(|place| *place >= 0)? })
}

fn wrong() -> Problem {
    Problem::invalid("`after` must be the `next` of the previous page")
}

fn cursor(box_id: BoxId, place: i64) -> String {
    format!("{box_id}:{place}")
}

/// List the places where a card stands: the boxes that hold it, and where.
#[utoipa::path(
    get, path = "/cards/{card}/holdings", tag = "cards", params(("card" = CardId, Path), PlaceParams),
    responses((status = 200, body = Page<Holding>)),
)]
pub(crate) async fn list_holdings(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneCard { card: card_id }): Path<OneCard>,
    Query(params): Query<PlaceParams>,
) -> Result<Json<Page<Holding>>, Problem> {
    caller.may_read()?;
    let (n, after) = (most(params.most)?, params.after()?);
    let held = card_box::holdings(&mut caller.begin(&api).await?, card_id, after, and_one(n)).await?;
    Ok(Json(Page::new(held, n, |held| cursor(held.box_id, held.place))))
}

/// A model call that read a card.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CardCall {
    /// Turn of the model call.
    agent_turn_id: TurnId,
    /// Step of the model call.
    step_id: StepId,
    /// Box in which the card was read: the context box or the output box of the turn.
    box_id: BoxId,
    /// Position of the card in the box. The first position is 1.
    place: i64,
    /// When the context was read.
    read_at: DateTime<Utc>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CallParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[param(pattern = "^[0-9a-f-]{36}:[0-9]{1,18}(:[0-9a-f-]{36})?$")]
    after: Option<String>,
    /// Places of the card per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

impl CallParams {
    /// Returns after which place to continue; and, if that place is not done, after which of its turns.
    fn after(&self) -> Result<(Option<Holding>, Option<TurnId>), Problem> {
        let Some(text) = self.after.as_deref() else { return Ok((None, None)) };
        let (place, turn_id) = match text.match_indices(':').nth(1) {
            Some((at, _)) => (&text[..at], Some(text[at + 1..].parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        Ok((Some(holding(place).ok_or_else(wrong)?), turn_id))
    }
}

/// The most receipts that are read for one answer, those of one turn together; and the most turns for one place of the card.
const MOST_RECEIPTS: usize = 1_000;
const MOST_READERS: usize = 100;

/// List the model calls that read a card from a box, by their receipts.
///
/// A call that read a card may have left it out, to stay within its budget or because a summary covers it: the context of the call says so. Cards
/// that stand in no box of a turn (prompts, tool lists, blocks) are not found here. A page covers up to `most` places of the card, so it may have
/// fewer entries, or more.
#[utoipa::path(
    get, path = "/cards/{card}/calls", tag = "cards", params(("card" = CardId, Path), CallParams),
    responses((status = 200, body = Page<CardCall>)),
)]
pub(crate) async fn list_card_calls(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneCard { card: card_id }): Path<OneCard>,
    Query(params): Query<CallParams>,
) -> Result<Json<Page<CardCall>>, Problem> {
    caller.may_read()?;
    let (n, (after, after_turn)) = (most(params.most)?, params.after()?);
    let mut work = caller.begin(&api).await?;
    // A place that is not done comes once more.
    let same = after.filter(|_| after_turn.is_some());
    let before = same.map(|same| Holding { place: (same.place - 1).max(0), ..same });
    let mut held = card_box::holdings(&mut work, card_id, before.or(after), and_one(n)).await?;
    let mut is_cut = held.len() > n;
    held.truncate(n);
    let box_ids: BTreeSet<BoxId> = held.iter().map(|held| held.box_id).collect();
    let box_ids: Vec<BoxId> = box_ids.into_iter().collect();
    let readers = receipt::readers(&mut work, &box_ids, None, and_one(MOST_READERS)).await?;
    let same_box: Vec<BoxId> = same.iter().map(|same| same.box_id).collect();
    let others = receipt::readers(&mut work, &same_box, after_turn, and_one(MOST_READERS)).await?;
    let (mut calls, mut n_receipts, mut last) = (Vec::new(), 0, None);
    for holding in held {
        let Holding { box_id, place } = holding;
        if n_receipts > MOST_RECEIPTS {
            is_cut = true;
            break;
        }
        let is_same = same.is_some_and(|same| (same.box_id, same.place) == (box_id, place));
        let readers = if is_same { &others } else { &readers };
        let turn_ids: Vec<TurnId> =
            readers.iter().filter(|(known, _)| *known == box_id).map(|(_, turn_id)| *turn_id).collect();
        for turn_id in turn_ids.iter().take(MOST_READERS) {
            let receipts = replay::list(&mut work, *turn_id).await?;
            n_receipts += receipts.len();
            let read = receipts.into_iter().filter(|(_, receipt)| reads(receipt, card_id, holding));
            calls.extend(read.map(|(step_id, receipt)| CardCall {
                agent_turn_id: *turn_id,
                step_id,
                box_id,
                place,
                read_at: receipt.read_at,
            }));
        }
        last = Some(cursor(box_id, place));
        if turn_ids.len() > MOST_READERS {
            is_cut = true;
            last = Some(format!("{box_id}:{place}:{}", turn_ids[MOST_READERS - 1]));
            break;
        }
    }
    Ok(Json(Page::upto(calls, last.filter(|_| is_cut))))
}

/// Checks whether a call read the card at this place, before it had ended; or names it.
fn reads(receipt: &Receipt, card_id: CardId, Holding { box_id, place }: Holding) -> bool {
    let has = |span: &Span| span.box_id == box_id && (span.from..=span.upto).contains(&place);
    let mut spans = receipt.history.iter().chain([&receipt.output]);
    spans.any(has) && !receipt.gone.contains(box_id, place) || receipt.card_ids().contains(&card_id)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EntryParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List the entries of a box: cards of its own, and ranges of other boxes.
#[utoipa::path(
    get, path = "/boxes/{box}/entries", tag = "cards", params(("box" = BoxId, Path), EntryParams),
    responses((status = 200, body = Page<Entry>)),
)]
pub(crate) async fn list_entries(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneBox { card_box: box_id }): Path<OneBox>,
    Query(params): Query<EntryParams>,
) -> Result<Json<Page<Entry>>, Problem> {
    caller.may_read()?;
    let (n, after) = (most(params.most)?, not_negative(params.after)?);
    let mut work = caller.begin(&api).await?;
    one_box(&mut work, box_id).await?;
    let entries = card_box::entries(&mut work, box_id, after.unwrap_or(0), and_one(n)).await?;
    Ok(Json(Page::new(entries, n, |entry| entry.seq)))
}

fn not_negative(after: Option<i64>) -> Result<Option<i64>, Problem> {
    match after {
        Some(after) if after < 0 => Err(Problem::invalid("`after` must not be negative")),
        after => Ok(after),
    }
}

/// List the boxes that took a range of a box.
#[utoipa::path(
    get, path = "/boxes/{box}/heirs", tag = "cards", params(("box" = BoxId, Path), PlaceParams),
    responses((status = 200, body = Page<Heir>)),
)]
pub(crate) async fn list_heirs(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneBox { card_box: box_id }): Path<OneBox>,
    Query(params): Query<PlaceParams>,
) -> Result<Json<Page<Heir>>, Problem> {
    caller.may_read()?;
    let (n, after) = (most(params.most)?, params.after()?);
    let mut work = caller.begin(&api).await?;
    one_box(&mut work, box_id).await?;
    let heirs = card_box::heirs(&mut work, box_id, after, and_one(n)).await?;
    Ok(Json(Page::new(heirs, n, |heir| cursor(heir.box_id, heir.place))))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PartParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[param(minimum = 0)]
    after: Option<i32>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List what a turn was handed, part by part: by which rule, from which agent and box, and by which right.
#[utoipa::path(
    get, path = "/turns/{turn}/handovers", tag = "context", params(("turn" = TurnId, Path), PartParams),
    responses((status = 200, body = Page<Handed>)),
)]
pub(crate) async fn list_handovers(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Query(params): Query<PartParams>,
) -> Result<Json<Page<Handed>>, Problem> {
    caller.may_read()?;
    let n = most(params.most)?;
    not_negative(params.after.map(i64::from))?;
    let mut work = caller.begin(&api).await?;
    one(&mut work, turn).await?;
    let parts = handover::handed(&mut work, turn, params.after.unwrap_or(-1), and_one(n)).await?;
    Ok(Json(Page::new(parts, n, |handed| handed.part)))
}
