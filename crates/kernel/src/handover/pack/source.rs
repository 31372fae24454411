//! The boxes that a turn inherits: how far the source of the pack may read them, by which right, and which ranges hold them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value};
use waybill_core::{
    card_box::Span,
    id::{BoxId, SessionId},
};

use super::{Pack, Packing, argument::named_boxes};
use crate::{
    card_box::{self, MOST_RUNS},
    grant,
    handover::Error,
    work::UnitOfWork,
};

/// The boxes that arguments name, as far as the source may read them now: the same for all receivers that inherit them.
#[derive(Clone, Debug, Default)]
pub struct Named(pub(super) HashMap<BoxId, Source>);

/// Looks up the boxes that arguments name, once for all packs. A box of many pieces that many receivers inherit is flattened here. If this refuses,
/// what the source may not pass on is on record.
pub async fn name<'m>(
    work: &mut UnitOfWork,
    packing: Packing<'_>,
    arguments: impl IntoIterator<Item = &'m Map<String, Value>>,
) -> Result<Named, Error> {
    let mut heirs: BTreeMap<BoxId, usize> = BTreeMap::new();
    for arguments in arguments {
        for (_, box_id) in named_boxes(packing.handover, arguments)? {
            *heirs.entry(box_id).or_default() += 1;
        }
    }
    let boxes: Vec<BoxId> = heirs.keys().copied().collect();
    let rights = rights(work, &packing, &boxes).await?;
    Ok(Named(sources(work, rights, |box_id| heirs[&box_id]).await?))
}

/// What is inherited, read once for all receivers.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// What is handed over.
    pub(super) span: Span,
    pub(super) via: String,
    /// The ranges that hold it.
    pub(super) runs: Vec<Span>,
}

/// Returns the runs of spans. A span of many pieces that many receivers inherit is flattened once, since each of them would hold every piece.
async fn sources(
    work: &mut UnitOfWork,
    spans: Vec<(Span, String)>,
    heirs: impl Fn(BoxId) -> usize,
) -> Result<HashMap<BoxId, Source>, Error> {
    let mut runs = runs(work, spans.iter().map(|(span, _)| *span).collect()).await?;
    let mut sources = HashMap::with_capacity(spans.len());
    for (span, via) in spans {
        let mut held = runs.remove(&span.box_id).unwrap_or_default();
        if held.len() as i64 > MOST_RUNS && heirs(span.box_id) > 1 {
            held = vec![card_box::share(work, span).await?];
        }
        sources.insert(span.box_id, Source { span, via, runs: held });
    }
    Ok(sources)
}

/// Returns what receivers remember, as it is now.
pub(super) async fn brought(work: &mut UnitOfWork, packs: &[Pack]) -> Result<HashMap<BoxId, Source>, Error> {
    let mut heirs: BTreeMap<BoxId, usize> = BTreeMap::new();
    for (_, box_id, _) in packs.iter().flat_map(|pack| pack.brings.parts()) {
        *heirs.entry(box_id).or_default() += 1;
    }
    let boxes: Vec<BoxId> = heirs.keys().copied().collect();
    let found = grant::readable(work, None, &boxes).await?;
    let spans = found.into_values().map(|found| (Span::prefix(found.box_id, found.length), "own".to_owned()));
    sources(work, spans.collect(), |box_id| heirs[&box_id]).await
}

/// Returns the messages of the named sessions, by session and by box. An agent may name only the session that it is in.
pub(super) async fn sessions(
    work: &mut UnitOfWork,
    packing: &Packing<'_>,
    named: BTreeSet<SessionId>,
) -> Result<(HashMap<SessionId, BoxId>, HashMap<BoxId, Source>), Error> {
    let other = |session_id: &&SessionId| packing.source_agent_id.is_some() && packing.session_id != Some(**session_id);
    if let Some(other) = named.iter().find(other) {
        let error = Error::NoSession(*other);
        return Err(work.refuse(error));
    }
    let messages = messages(work, named).await?;
    let boxes: Vec<BoxId> = messages.values().copied().collect();
    let found = grant::readable(work, None, &boxes).await?;
    let rights =
        found.into_values().map(|found| (Span::prefix(found.box_id, found.length), "session".to_owned())).collect();
    // Messages are appended one by one: a session's box is one run.
    let sources = sources(work, rights, |_| 1).await?;
    Ok((messages, sources))
}

/// Returns how far the source may read boxes, and by which right. Fails closed, and leaves a record of what was asked for.
async fn rights(work: &mut UnitOfWork, packing: &Packing<'_>, boxes: &[BoxId]) -> Result<Vec<(Span, String)>, Error> {
    let rights = grant::readable(work, packing.source_agent_id, boxes).await?;
    let (mut spans, mut refused) = (Vec::with_capacity(boxes.len()), Vec::new());
    for box_id in boxes {
        match rights.get(box_id) {
            Some(grant::Readable { upto: Some(upto), via: Some(via), .. }) => {
                spans.push((Span::prefix(*box_id, *upto), via.clone()));
            }
            Some(_) => refused.push((*box_id, "forbidden")),
            None => refused.push((*box_id, "not_found")),
        }
    }
    if refused.is_empty() {
        return Ok(spans);
    }
    if let Some(source) = packing.source_agent_id {
        grant::record(work, source, packing.tool_suffix, &refused).await?;
    }
    let (unknown, forbidden): (Vec<_>, Vec<_>) = refused.into_iter().partition(|(_, why)| *why == "not_found");
    let boxes = |refused: Vec<(BoxId, &str)>| refused.into_iter().map(|(box_id, _)| box_id).collect();
    let error = if forbidden.is_empty() { Error::NoBox(boxes(unknown)) } else { Error::Forbidden(boxes(forbidden)) };
    Err(work.refuse(error))
}

async fn messages(work: &mut UnitOfWork, sessions: BTreeSet<SessionId>) -> Result<HashMap<SessionId, BoxId>, Error> {
    if sessions.is_empty() {
        return Ok(HashMap::new());
    }
    let project_id = work.project_id();
    let asked: Vec<SessionId> = sessions.iter().copied().collect();
    let rows: Vec<(SessionId, BoxId)> = sqlx::query_as(
        "select b.session_id, b.messages_box_id
           from unnest($2::uuid[]) as asked (session_id)
          cross join lateral (
                select b.* from state.blackboards b where b.project_id = $1 and b.session_id = asked.session_id offset 0) b",
    )
    .bind(project_id)
    .bind(asked)
    .fetch_all(&mut **work)
    .await?;
    let found: HashMap<SessionId, BoxId> = rows.into_iter().collect();
    match sessions.into_iter().find(|session_id| !found.contains_key(session_id)) {
        Some(unknown) => Err(Error::NoSession(unknown)),
        None => Ok(found),
    }
}

/// Returns the runs by box, in the order of places.
async fn runs(work: &mut UnitOfWork, spans: Vec<Span>) -> Result<HashMap<BoxId, Vec<Span>>, Error> {
    if spans.is_empty() {
        return Ok(HashMap::new());
    }
    let project_id = work.project_id();
    let rows: Vec<(BoxId, BoxId, i64, i64)> = sqlx::query_as(
        "select s.box_id, r.source_box_id, r.from_seq, r.to_seq
           from unnest($2::uuid[], $3::bigint[]) as s (box_id, upto)
          cross join lateral cardbox.runs($1, s.box_id, 1, s.upto) r
          order by s.box_id, r.place",
    )
    .bind(project_id)
    .bind(spans.iter().map(|span| span.box_id).collect::<Vec<_>>())
    .bind(spans.iter().map(|span| span.upto).collect::<Vec<_>>())
    .fetch_all(&mut **work)
    .await?;
    let mut runs: HashMap<BoxId, Vec<Span>> = HashMap::new();
    for (box_id, source, from, to) in rows {
        runs.entry(box_id).or_default().push(Span { box_id: source, from, upto: to });
    }
    Ok(runs)
}
