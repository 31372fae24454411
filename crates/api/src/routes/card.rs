//! Cards, and boxes that hold them. A card is written by the worker that runs a turn, under its fence; here it can only be given an end.

use std::sync::Arc;

use axum::{
    extract::State,
    http::HeaderMap,
    response::{Json, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use waybill_core::{
    card::Reading,
    card_box::{Placed, Span},
    id::{BoxId, CardId},
};
use waybill_kernel::{
    audit, card,
    card_box::{self, CardBox},
    work::UnitOfWork,
};

use crate::{
    Api,
    caller::Caller,
    kept,
    problem::Problem,
    request::{Body, Page, Path, Query, answer, check_reason, most, not_too_many, size},
    write::{Once, OnceParams},
};

#[derive(Debug, Deserialize)]
pub(crate) struct OneCard {
    pub(super) card: CardId,
}

/// Show a card. If it has expired or was deleted, only its id, its hash and the reason are shown.
#[utoipa::path(
    get, path = "/cards/{card}", tag = "cards", params(("card" = CardId, Path)),
    responses((status = 200, body = Reading), (status = 304, description = "The client has the answer.")),
)]
pub(crate) async fn show_card(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneCard { card: card_id }): Path<OneCard>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    caller.may_read()?;
    let found = one_card(&mut caller.begin(&api).await?, card_id).await?;
    let n_bytes = size([&found]);
    kept::json(&headers, found, n_bytes).await
}

/// The card that was deleted or that will expire.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EndedCard {
    /// Id of the card.
    card_id: CardId,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeleteParams {
    /// Why the card is deleted, in 1 to 1,000 characters. The reason is kept with the card's hash.
    #[param(min_length = 1, max_length = 1000)]
    reason: String,
}

/// Delete a card, so that turns no longer see it.
///
/// The card's hash, the reason, and its positions in boxes are kept. Receipts still show which turns have seen the card. If the card was deleted
/// before, nothing changes, and the first reason is kept. The content stays in the database: to destroy it, use `waybill card erase`.
#[utoipa::path(
    delete, path = "/cards/{card}", tag = "cards", params(("card" = CardId, Path), DeleteParams, OnceParams),
    responses((status = 200, body = EndedCard)),
)]
pub(crate) async fn delete_card(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneCard { card: card_id }): Path<OneCard>,
    Query(DeleteParams { reason }): Query<DeleteParams>,
    once: Once,
) -> Result<Json<Value>, Problem> {
    caller.may(&[])?;
    check_reason(&reason)?;
    let actor = caller.actor.clone();
    once.write(&api, &caller, &[], move |work| {
        Box::pin(async move {
            card::delete(work, &[card_id], &reason).await?;
            audit::record(work, &actor, "card.delete", &card_id.to_string(), &json!({ "reason": reason })).await?;
            Ok(EndedCard { card_id })
        })
    })
    .await
}

/// When a card expires.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expiry {
    /// Seconds until the card expires, at most ten years.
    #[schema(minimum = 1, maximum = 315360000)]
    ttl_seconds: i32,
}

/// Set when a card expires. After that time, turns no longer see it.
///
/// A card that already has an expiry time keeps it: the request is refused. Shared cards, such as profiles, cannot expire.
#[utoipa::path(
    post, path = "/cards/{card}/expire", tag = "cards", params(("card" = CardId, Path), OnceParams), request_body = Expiry,
    responses((status = 200, body = EndedCard)),
)]
pub(crate) async fn expire_card(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneCard { card: card_id }): Path<OneCard>,
    once: Once,
    Body { value: Expiry { ttl_seconds }, bytes, .. }: Body<Expiry>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[])?;
    if !(1..=315_360_000).contains(&ttl_seconds) {
        return Err(Problem::invalid("`ttl_seconds` must be 1 to 315,360,000 (ten years)"));
    }
    let actor = caller.actor.clone();
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            card::expire(work, &[card_id], ttl_seconds).await?;
            let detail = json!({ "ttl_seconds": ttl_seconds });
            audit::record(work, &actor, "card.expire", &card_id.to_string(), &detail).await?;
            Ok(EndedCard { card_id })
        })
    })
    .await
}

/// Which cards to show.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CardIds {
    /// Ids of the cards to show, at most 1,000.
    #[schema(max_items = 1000)]
    card_ids: Vec<CardId>,
}

/// The most bytes of cards in one answer; a single card may have more.
pub(super) const MOST_BYTES: i64 = 4 << 20;

/// The cards that exist, and the ids of those that do not exist or did not fit.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Cards {
    /// Cards that exist, in the order of the request.
    found: Vec<Reading>,
    /// Ids of cards that do not exist in this project.
    missing_card_ids: Vec<CardId>,
    /// Ids of cards that did not fit into this response. Request them again.
    left_card_ids: Vec<CardId>,
}

/// Show cards by id, up to 1,000.
///
/// A response has at most 4 MiB of cards, or one larger card. `left_card_ids` lists the cards that did not fit: request them again.
#[utoipa::path(
    post, path = "/cards/batch", tag = "cards", request_body = CardIds,
    responses((status = 200, body = Cards)),
)]
pub(crate) async fn show_cards(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Body { value: CardIds { card_ids }, .. }: Body<CardIds>,
) -> Result<Response, Problem> {
    caller.may_read()?;
    not_too_many("card_ids", &card_ids)?;
    let mut work = caller.begin(&api).await?;
    let (now, left) = card_ids.split_at(card::n_within(&mut work, &card_ids, MOST_BYTES).await?);
    let card::Batch { found, missing } = card::fetch(&mut work, now, None).await?;
    drop(work);
    let cards = Cards { found, missing_card_ids: missing, left_card_ids: left.to_vec() };
    answer(cards, |cards| size(&cards.found)).await
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneBox {
    #[serde(rename = "box")]
    pub(super) card_box: BoxId,
}

/// Show a box, without its cards.
#[utoipa::path(
    get, path = "/boxes/{box}", tag = "cards", params(("box" = BoxId, Path)),
    responses((status = 200, body = CardBox)),
)]
pub(crate) async fn show_box(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneBox { card_box: box_id }): Path<OneBox>,
) -> Result<Json<CardBox>, Problem> {
    caller.may_read()?;
    Ok(Json(one_box(&mut caller.begin(&api).await?, box_id).await?))
}

/// Finds a box, or refuses the request.
pub(super) async fn one_card(work: &mut UnitOfWork, card_id: CardId) -> Result<Reading, Problem> {
    let found = card::fetch(work, &[card_id], None).await?.found.pop();
    found.ok_or_else(|| Problem::not_found(format!("there is no card {card_id} in this project")))
}

pub(super) async fn one_box(work: &mut UnitOfWork, box_id: BoxId) -> Result<CardBox, Problem> {
    let found = card_box::find(work, &[box_id]).await?.found.pop();
    found.ok_or_else(|| Problem::not_found(format!("there is no box {box_id} in this project")))
}

/// Which boxes to show.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BoxIds {
    /// Ids of the boxes to show, at most 1,000.
    #[schema(max_items = 1000)]
    box_ids: Vec<BoxId>,
}

/// The boxes that exist, and the ids of those that do not exist.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Boxes {
    /// Boxes that exist, in the order of the request.
    found: Vec<CardBox>,
    /// Ids of boxes that do not exist in this project.
    missing_box_ids: Vec<BoxId>,
}

/// Show boxes by id, up to 1,000, without their cards.
#[utoipa::path(
    post, path = "/boxes/batch", tag = "cards", request_body = BoxIds,
    responses((status = 200, body = Boxes)),
)]
pub(crate) async fn show_boxes(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Body { value: BoxIds { box_ids }, .. }: Body<BoxIds>,
) -> Result<Json<Boxes>, Problem> {
    caller.may_read()?;
    not_too_many("box_ids", &box_ids)?;
    let card::Batch { found, missing } = card_box::find(&mut caller.begin(&api).await?, &box_ids).await?;
    Ok(Json(Boxes { found, missing_box_ids: missing }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Places {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[param(minimum = 0, maximum = 4611686018427387903u64)]
    after: Option<i64>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

impl Places {
    /// Answers with one page of the cards of a box that has this length.
    pub(super) async fn page(&self, mut work: UnitOfWork, box_id: BoxId, length: i64) -> Result<Response, Problem> {
        let (n, after) = (most(self.most)?, self.after.unwrap_or(0));
        if !(0..=i64::MAX / 2).contains(&after) {
            return Err(Problem::invalid("`after` must be 0, or the `next` of the previous page"));
        }
        let upto = after + i64::try_from(n).unwrap_or(i64::from(u16::MAX));
        let upto = card_box::within(&mut work, Span { box_id, from: after + 1, upto }, MOST_BYTES).await?;
        let cards = card_box::read(&mut work, Span { box_id, from: after + 1, upto }, None).await?;
        drop(work);
        let page = Page::upto(cards, (upto < length).then_some(upto));
        answer(page, |page| size(page.items().iter().map(|placed| &placed.reading))).await
    }
}

/// List the cards of a box, in order.
///
/// A page has at most 4 MiB of cards, or one larger card. A card that occurs several times on a page is listed once, at its first position.
#[utoipa::path(
    get, path = "/boxes/{box}/cards", tag = "cards", params(("box" = BoxId, Path), Places),
    responses((status = 200, body = Page<Placed>)),
)]
pub(crate) async fn list_cards(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneBox { card_box: box_id }): Path<OneBox>,
    Query(params): Query<Places>,
) -> Result<Response, Problem> {
    caller.may_read()?;
    let mut work = caller.begin(&api).await?;
    let length = one_box(&mut work, box_id).await?.length;
    params.page(work, box_id, length).await
}
