//! Writing prepared packs: their cards, their boxes, and where each part came from.

use waybill_core::{card::NewCard, card_box::Span, id::BoxId};

use super::{
    Plan, Prepared,
    layout::{Entry, Held, Part},
};
use crate::{card, handover::Error, work::UnitOfWork};

/// Writes the prepared packs that are to be kept; `keep` gets the place of each.
pub async fn write(work: &mut UnitOfWork, prepared: &Prepared, keep: impl Fn(usize) -> bool) -> Result<(), Error> {
    let plans: Vec<&Plan> =
        prepared.plans.iter().enumerate().filter(|(place, _)| keep(*place)).map(|(_, plan)| plan).collect();
    if plans.is_empty() {
        return Ok(());
    }
    let cards: Vec<NewCard> = plans.iter().flat_map(|plan| &plan.cards).chain(&prepared.parent).cloned().collect();
    card::insert(work, &cards).await?;
    let entries: Vec<(BoxId, &Entry)> =
        plans.iter().flat_map(|plan| plan.entries.iter().map(|entry| (plan.packed.context_box_id, entry))).collect();
    let parts: Vec<(&Plan, i32, &Part)> =
        plans.iter().flat_map(|plan| (0..).zip(&plan.parts).map(|(n, part)| (*plan, n, part))).collect();
    let ranges = |field: fn(Span) -> i64| {
        let of = |entry: &Entry| match entry.held {
            Held::Card(_) => None,
            Held::Range(span) => Some(field(span)),
        };
        entries.iter().map(|(_, entry)| of(entry)).collect::<Vec<_>>()
    };
    let project_id = work.project_id();
    sqlx::query(
        "with made as (
           insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
           select $1, b.* from unnest($2::uuid[], $3::bigint[], $4::uuid[], $5::uuid[]) as b (box_id, length, agent_id, agent_turn_id)
         ), entry as (
           insert into cardbox.box_entries (project_id, box_id, seq, card_id, source_box_id, from_seq, to_seq)
           select $1, e.*
             from unnest($6::uuid[], $7::bigint[], $8::uuid[], $9::uuid[], $10::bigint[], $11::bigint[])
                  as e (box_id, seq, card_id, source_box_id, from_seq, to_seq)
         )
         insert into state.handovers
                (project_id, source_agent_id, tool_suffix, context_box_id, part, agent_id, rule, arg_key, from_seq, n_cards, source_box_id,
                 upto, via)
         select $1, $12, $13, p.*
           from unnest($14::uuid[], $15::int[], $16::uuid[], $17::text[], $18::text[], $19::bigint[], $20::bigint[], $21::uuid[],
                       $22::bigint[], $23::text[])
                as p (context_box_id, part, agent_id, rule, arg_key, from_seq, n_cards, source_box_id, upto, via)",
    )
    .bind(project_id)
    .bind(plans.iter().map(|plan| plan.packed.context_box_id).collect::<Vec<_>>())
    .bind(plans.iter().map(|plan| plan.length).collect::<Vec<_>>())
    .bind(plans.iter().map(|plan| plan.agent_id).collect::<Vec<_>>())
    .bind(plans.iter().map(|plan| plan.agent_turn_id).collect::<Vec<_>>())
    .bind(entries.iter().map(|(box_id, _)| *box_id).collect::<Vec<_>>())
    .bind(entries.iter().map(|(_, entry)| entry.seq).collect::<Vec<_>>())
    .bind(entries.iter().map(|(_, entry)| entry.held.card_id()).collect::<Vec<_>>())
    .bind(entries.iter().map(|(_, entry)| entry.held.source_box_id()).collect::<Vec<_>>())
    .bind(ranges(|span| span.from))
    .bind(ranges(|span| span.upto))
    .bind(prepared.source_agent_id)
    .bind(&prepared.tool_suffix)
    .bind(parts.iter().map(|(plan, ..)| plan.packed.context_box_id).collect::<Vec<_>>())
    .bind(parts.iter().map(|(_, n, _)| *n).collect::<Vec<_>>())
    .bind(parts.iter().map(|(plan, ..)| plan.agent_id).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.rule).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.arg_key.as_deref()).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.from).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.n_cards).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.source.as_ref().map(|(span, _)| span.box_id)).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.source.as_ref().map(|(span, _)| span.upto)).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.source.as_ref().map(|(_, via)| via.as_str())).collect::<Vec<_>>())
    .execute(&mut **work)
    .await?;
    Ok(())
}
