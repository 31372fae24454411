//! Gathers what a call is made of: one statement for what the kernel has, the collector for the rest.

use chrono::{DateTime, Utc};
use waybill_context::{
    call::{Collected, Materials},
    layer::BlockKey,
    policy::{Audience, Policy},
    receipt::{BlockRef, Receipt},
};
use waybill_core::{
    card::{Card, CardType, Content, Draft, Field, Invalid, NewCard, Reading, Role},
    card_box::{Placed, Span},
    id::{AgentId, BoxId, CardId},
    json,
};
use waybill_kernel::{
    card,
    card_box::{self, Beside, Window},
    receipt,
    turn::Claimed,
    work::{self, Kernel, UnitOfWork},
};

use crate::collect::{Answer, Asked, Collector, When};

/// What an agent is and sees, as its profile says.
#[derive(Clone, Debug)]
pub struct Setting {
    /// `sys.rendered_prompt`
    pub system_prompt: Option<Card>,
    /// `sys.tools`
    pub tools: Option<Card>,
    pub audience: Audience,
    pub policy: Policy,
    /// So many cards at the beginning of the context box are always shown.
    pub n_pinned: i64,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a card of the query has ended or is not there: {0:?}")]
    QueryGone(Vec<CardId>),
    #[error(transparent)]
    Work(#[from] work::Error),
    #[error(transparent)]
    CardBox(#[from] card_box::Error),
    #[error(transparent)]
    Card(#[from] card::Error),
    #[error("a block cannot be a card")]
    Invalid(#[from] Invalid),
}

/// What a call is made of, and what is needed to go on with it.
#[derive(Clone, Debug)]
pub struct Gathered {
    pub materials: Materials,
    /// The session's memory, where this agent is shown its summary.
    pub messages_box_id: Option<BoxId>,
    /// What the session's blackboard names as its summary, also where that card is gone.
    pub compression_card_id: Option<CardId>,
    todo: Option<Card>,
    result_fields: Vec<Field>,
    parent_agent_id: Option<AgentId>,
}

/// Reads what a turn may see, and asks the sources.
pub async fn gather(
    kernel: &Kernel,
    claimed: &Claimed,
    setting: &Setting,
    collector: &Collector,
) -> Result<Gathered, Error> {
    let mut work = kernel.begin(claimed.fence.project_id()).await.map_err(work::Error::Db)?;
    let window = Window { pinned: setting.n_pinned, budget: setting.policy.budget, as_of: None };
    let beside = Beside {
        output_box_id: Some(claimed.output_box_id),
        card_ids: &claimed.query_card_ids,
        session_id: claimed.session_id,
    };
    let context_box_id = claimed.context_box_id;
    let (context, mut beside) = card_box::hydrate_beside(&mut work, context_box_id, None, window, &beside).await?;
    let before = match beside.output.is_empty() {
        true => None,
        false => collected_before(&mut work, claimed).await?,
    };
    drop(work); // nothing was written, and the sources may take their time
    let query = live(&claimed.query_card_ids, std::mem::take(&mut beside.cards)).map_err(Error::QueryGone)?;
    let length = beside.output.last().map_or(0, |last| last.place);
    let shows_summary = setting.audience.sees(&BlockKey::Compression);
    let compression_card_id = beside.compression.as_ref().map(Reading::card_id);
    let parent_agent_id = parent(&context.cards, context_box_id);
    let result_fields = match beside.fields.and_then(Reading::into_live).map(|card| card.content) {
        Some(Content::Fields(fields)) => fields,
        _ => Vec::new(),
    };
    let when = if before.is_some() { When::EveryStep } else { When::Begin };
    let (blocks, framework_version) = before.unwrap_or_else(|| (Vec::new(), collector.framework_version().to_owned()));
    let materials = Materials {
        system_prompt: setting.system_prompt.clone(),
        tools: setting.tools.clone(),
        blocks,
        session_summary: beside.compression.and_then(Reading::into_live),
        read: spans(context_box_id, context.length, context.omitted),
        n_pinned: usize::try_from(setting.n_pinned).unwrap_or_default(),
        history: context.cards,
        query,
        steps: beside.output,
        output: Span::prefix(claimed.output_box_id, length),
        framework_version,
        left_out: Vec::new(),
        read_at: context.as_of,
    };
    let mut gathered = Gathered {
        materials,
        messages_box_id: beside.messages_box_id.filter(|_| shows_summary),
        compression_card_id,
        todo: beside.todo.and_then(Reading::into_live),
        result_fields,
        parent_agent_id,
    };
    gathered.collect(kernel, claimed, setting, collector, when).await?;
    gathered.materials.allow(&setting.audience);
    Ok(gathered)
}

/// The blocks that the turn was shown before, whoever ran it, and the version of the framework's text: collected once per turn (CX-3).
/// None where no receipt says so.
async fn collected_before(work: &mut UnitOfWork, claimed: &Claimed) -> Result<Option<(Vec<Collected>, String)>, Error> {
    let Some(last) = receipt::find(work, claimed.fence.agent_turn_id(), None).await? else { return Ok(None) };
    let Ok(receipt) = serde_json::from_str::<Receipt>(last.receipt.get()) else { return Ok(None) };
    let blocks: Vec<_> = receipt.blocks.into_iter().filter(|block| !block.every_step).collect();
    let card_ids: Vec<CardId> = blocks.iter().map(|block| block.card_id).collect();
    let found = card::fetch(work, &card_ids, None).await?.found;
    let Ok(cards) = live(&card_ids, found) else { return Ok(None) };
    let block = |(block, card): (BlockRef, Card)| Collected { key: block.key, card, every_step: false };
    Ok(Some((blocks.into_iter().zip(cards).map(block).collect(), receipt.framework_version)))
}

impl Gathered {
    /// Asks the sources, and stores what they said as cards that only receipts refer to (CX-5).
    pub async fn collect(
        &mut self,
        kernel: &Kernel,
        claimed: &Claimed,
        setting: &Setting,
        collector: &Collector,
        when: When,
    ) -> Result<(), Error> {
        let asked = Asked {
            project_id: claimed.fence.project_id(),
            agent_id: claimed.fence.agent_id(),
            session_id: claimed.session_id,
            parent_agent_id: self.parent_agent_id,
            audience: &setting.audience,
            query: &self.materials.query,
            result_fields: &self.result_fields,
            todo: self.todo.as_ref(),
        };
        let (answers, left_out) = collector.collect(&asked, when).await;
        let blocks = store(kernel, claimed, answers, self.materials.read_at).await?;
        let materials = &mut self.materials;
        materials.blocks.retain(|block| when == When::EveryStep && !block.every_step);
        let answered = |key: &BlockKey| {
            blocks.iter().map(|block| &block.key).chain(left_out.iter().map(|left| &left.key)).any(|k| k == key)
        };
        materials.left_out.retain(|left| when == When::EveryStep && !answered(&left.key));
        materials.blocks.extend(blocks);
        materials.left_out.extend(left_out);
        Ok(())
    }
}

async fn store(
    kernel: &Kernel,
    claimed: &Claimed,
    answers: Vec<Answer>,
    read_at: DateTime<Utc>,
) -> Result<Vec<Collected>, Error> {
    let seal = |answer: &Answer| {
        let text = json::readmit(answer.text.clone());
        Draft::new(CardType::rendered_prompt(), Role::System, Content::Text(text)).seal()
    };
    let cards: Vec<NewCard> = answers.iter().map(seal).collect::<Result<_, _>>()?;
    if cards.is_empty() {
        return Ok(Vec::new());
    }
    let mut work = kernel.begin(claimed.fence.project_id()).await.map_err(work::Error::Db)?;
    let card_ids = card::intern(&mut work, &cards).await?;
    work.commit().await?;
    let block = |((answer, card), card_id): ((Answer, NewCard), CardId)| Collected {
        key: answer.key,
        card: Card { card_id, ..card.into_card(read_at) },
        every_step: answer.every_step,
    };
    Ok(answers.into_iter().zip(cards).zip(card_ids).map(block).collect())
}

/// In the order asked for, or what is not there to be shown.
fn live(asked: &[CardId], found: Vec<Reading>) -> Result<Vec<Card>, Vec<CardId>> {
    let card = |card_id: &CardId| found.iter().filter_map(Reading::live).find(|card| card.card_id == *card_id).cloned();
    let gone: Vec<CardId> = asked.iter().filter(|card_id| card(card_id).is_none()).copied().collect();
    if gone.is_empty() { Ok(asked.iter().filter_map(card).collect()) } else { Err(gone) }
}

/// The positions of a box that were read: all but what was omitted.
fn spans(box_id: BoxId, length: i64, omitted: Option<Span>) -> Vec<Span> {
    let omitted = omitted.unwrap_or(Span { box_id, from: length + 1, upto: length });
    let spans = [Span::prefix(box_id, omitted.from - 1), Span { box_id, from: omitted.upto + 1, upto: length }];
    spans.into_iter().filter(|span| span.from <= span.upto).collect()
}

/// Whoever handed the work over, as was put into the context box itself (`meta.parent_pointer`): not what it inherited.
fn parent(cards: &[Placed], context_box_id: BoxId) -> Option<AgentId> {
    let own = cards.iter().rev().filter(|placed| placed.origin.box_id == context_box_id);
    let pointers = own.filter_map(|placed| placed.reading.live());
    let mut pointers = pointers.filter(|card| card.metadata.card_type == CardType::parent_pointer());
    pointers.find_map(|card| match &card.content {
        Content::Json(value) => value["parent_agent_id"].as_str()?.parse().ok(),
        _ => None,
    })
}
