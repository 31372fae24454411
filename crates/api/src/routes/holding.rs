//! Where cards stand and how they got there: the boxes that hold a card, the agents that could see it, what a box consists of, and what a turn was
//! handed (PM-12).

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::Deserialize;
use utoipa::IntoParams;
use waybill_core::id::{BoxId, CardId, TurnId};
use waybill_kernel::{
    card_box::{self, Entry, Heir, Holding},
    handover::{self, Handed, Sight},
    work::UnitOfWork,
};

use super::{
    card::{OneBox, OneCard},
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
    let boxes = card_box::holders(&mut work, card_id, after, and_one(n)).await?;
    let seen = handover::sight(&mut work, card_id, after, and_one(n) - 1).await?;
    let next = (boxes.len() > n).then(|| boxes[n - 1]);
    Ok(Json(Page::upto(seen, next)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PlaceParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[param(pattern = "^[0-9a-f-]{36}:[0-9]{1,18}$")]
    after: Option<String>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

impl PlaceParams {
    fn after(&self) -> Result<Option<Holding>, Problem> {
        let read = |text: &str| {
            let (box_id, place) = text.split_once(':')?;
            Some(Holding {
                box_id: box_id.parse().ok()?,
                place: place.parse::<i64>().ok().filter(|place| *place >= 0)?,
            })
        };
        let wrong = || Problem::invalid("`after` must be the `next` of the previous page");
        self.after.as_deref().map(|text| read(text).ok_or_else(wrong)).transpose()
    }
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

async fn known(work: &mut UnitOfWork, box_id: BoxId) -> Result<(), Problem> {
    if card_box::find(work, &[box_id]).await?.found.is_empty() {
        return Err(Problem::not_found(format!("there is no box {box_id} in this project")));
    }
    Ok(())
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
    known(&mut work, box_id).await?;
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
    known(&mut work, box_id).await?;
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
