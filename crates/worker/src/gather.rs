//! Gathers what a call is made of: one statement for what the kernel has, the collector for the rest.

use chrono::{DateTime, Utc};
use waybill_context::{
    call::{Collected, Materials},
    framework::{Facts, Framework},
    layer::BlockKey,
    policy::{Audience, Policy},
    receipt::{BlockRef, Receipt},
};
use waybill_core::{
    card::{Card, CardType, Content, Draft, Invalid, NewCard, Reading, ResultForm, Role, changed},
    card_box::{Origin, Placed, Span},
    id::{AgentId, BoxId, CardId},
    json,
    resource::Shelf,
    template::Template,
    turn::Budget,
};
use waybill_kernel::{
    card,
    card_box::{self, Also, Pointers, Window},
    external,
    fork::Fork,
    receipt,
    retry::Transient,
    turn::{self, Claimed},
    work::{self, Kernel, UnitOfWork},
};

use crate::{
    collect::{Answer, Asked, Collector, When},
    toolbox::Toolbox,
};

/// What an agent is and sees, according to its profile.
#[derive(Clone, Debug)]
pub struct Setting {
    pub system_prompt_template: Option<Template>,
    pub toolbox: Toolbox,
    pub audience: Audience,
    pub policy: Policy,
    /// How many cards at the beginning of the context box are always shown.
    pub n_pinned: i64,
    /// The documents that it may find.
    pub knowledge: Option<Shelf>,
    pub experience: Option<Shelf>,
    /// Set if this turn is a fork of another one.
    pub fork: Option<Fork>,
    /// What it may spend, as shown to the model.
    pub budget: Option<Budget>,
    /// The project's own framework text.
    pub framework: Option<Framework>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the cards with the instruction of the turn are missing, have expired or were deleted: {0:?}")]
    QueryGone(Vec<CardId>),
    #[error(
        "these cards were changed in the database after Waybill had written them, and no longer match their hashes, so the model was not asked: {0:?}; `waybill doctor --deep --hashes` lists all changed cards"
    )]
    Changed(Vec<CardId>),
    #[error(transparent)]
    Work(#[from] work::Error),
    #[error(transparent)]
    CardBox(#[from] card_box::Error),
    #[error(transparent)]
    Card(#[from] card::Error),
    #[error(transparent)]
    External(#[from] turn::Error),
    #[error("a block of context for the model, such as search results, cannot be stored as a card")]
    Invalid(#[from] Invalid),
}

impl Transient for Error {
    fn is_transient(&self) -> bool {
        match self {
            Error::External(error) => error.is_transient(),
            Error::Work(work::Error::Db(error))
            | Error::CardBox(card_box::Error::Db(error))
            | Error::Card(card::Error::Db(error)) => error.is_transient(),
            _ => false,
        }
    }
}

/// What a call is made of, and what is needed to continue after it.
#[derive(Clone, Debug)]
pub struct Gathered {
    pub materials: Materials,
    /// The session's memory, if this agent is shown its summary.
    pub messages_box_id: Option<BoxId>,
    /// The card that the session's blackboard names as its summary, even if that card is gone.
    pub compression_card_id: Option<CardId>,
    /// The session's todo list.
    pub todo: Option<Card>,
    /// What the deliverable must be.
    pub result_form: ResultForm,
    parent_agent_id: Option<AgentId>,
    /// When the boxes were read, and what the session pointed to then.
    hydrated_at: DateTime<Utc>,
    pointers: Option<Pointers>,
}

/// Reads what a turn may see, and asks the sources. `before` is what its last call was made of, plus what was written since, if this worker
/// did both. It is reused as long as reading again would give the same.
pub async fn gather(
    kernel: &Kernel,
    claimed: &Claimed,
    setting: &Setting,
    collector: &Collector,
    before: Option<Gathered>,
) -> Result<Gathered, Error> {
    let mut work = kernel.begin(claimed.fence.project_id()).await.map_err(work::Error::Db)?;
    let holds = match &before {
        Some(before) => {
            card_box::still_holds(&mut work, before.hydrated_at, before.materials.output, before.pointers).await?
        }
        None => None,
    };
    let (mut gathered, when) = match (before, holds) {
        (Some(mut before), Some(as_of)) => {
            before.materials.read_at = as_of;
            (before, When::EveryStep)
        }
        (before, _) => read(&mut work, claimed, setting, collector, before).await?,
    };
    drop(work); // nothing was written, and the sources may take their time
    gathered.collect(kernel, claimed, setting, collector, when).await?;
    gathered.materials.allow(&setting.audience);
    Ok(gathered)
}

/// Reads the boxes, and returns which sources must be asked.
async fn read(
    work: &mut UnitOfWork,
    claimed: &Claimed,
    setting: &Setting,
    collector: &Collector,
    before: Option<Gathered>,
) -> Result<(Gathered, When), Error> {
    let window = Window { pinned: setting.n_pinned, budget: setting.policy.budget, as_of: None };
    let also = Also {
        output_box_id: Some(claimed.output_box_id),
        card_ids: &claimed.query_card_ids,
        session_id: claimed.session_id,
    };
    let context_box_id = claimed.context_box_id;
    let (context, mut also) = card_box::hydrate_with(work, context_box_id, None, window, &also).await?;
    let placed = context.cards.iter().chain(&also.output).map(|placed| &placed.reading);
    let single = also.cards.iter().chain(&also.compression).chain(&also.todo).chain(&also.result_form);
    verify(placed.chain(single))?;
    let before = match before {
        Some(before) => Some(Before::of(before.materials)),
        None if also.output.is_empty() && setting.fork.is_none() => None,
        None => collected_before(work, claimed, setting.fork.as_ref()).await?,
    };
    let query = live(&claimed.query_card_ids, std::mem::take(&mut also.cards)).map_err(Error::QueryGone)?;
    let length = also.output.last().map_or(0, |last| last.place);
    let shows_summary = setting.audience.sees(&BlockKey::Compression);
    let compression_card_id = also.compression.as_ref().map(Reading::card_id);
    let pointers = claimed.session_id.zip(also.messages_box_id).map(|(session_id, messages_box_id)| Pointers {
        session_id,
        messages_box_id,
        todo_card_id: also.todo.as_ref().map(Reading::card_id),
        compression_card_id,
    });
    let parent_agent_id = parent(&context.cards, context_box_id);
    let result_form = also.result_form.and_then(Reading::into_live);
    let result_form =
        result_form.map_or(ResultForm::Any, |card| ResultForm::of(&card.metadata.card_type, card.content));
    let when = if before.is_some() { When::EveryStep } else { When::Begin };
    let Before { system_prompt, tools, blocks, framework_version } = before.unwrap_or_default();
    let materials = Materials {
        system_prompt,
        tools,
        blocks,
        session_summary: also.compression.and_then(Reading::into_live),
        read: spans(context_box_id, context.length, context.omitted),
        n_pinned: usize::try_from(setting.n_pinned).unwrap_or_default(),
        history: context.cards,
        query,
        steps: also.output,
        output: Span::prefix(claimed.output_box_id, length),
        framework_version: framework_version.unwrap_or_else(|| {
            setting.framework.as_ref().map_or(collector.framework_version(), Framework::version).to_owned()
        }),
        left_out: Vec::new(),
        read_at: context.as_of,
    };
    let gathered = Gathered {
        materials,
        messages_box_id: also.messages_box_id.filter(|_| shows_summary),
        compression_card_id,
        todo: also.todo.and_then(Reading::into_live),
        result_form,
        parent_agent_id,
        hydrated_at: context.as_of,
        pointers,
    };
    Ok((gathered, when))
}

/// What stays the same for all calls of a turn.
#[derive(Default)]
struct Before {
    system_prompt: Option<Card>,
    tools: Option<Card>,
    blocks: Vec<Collected>,
    framework_version: Option<String>,
}

impl Before {
    fn of(materials: Materials) -> Before {
        Before {
            system_prompt: materials.system_prompt,
            tools: materials.tools,
            blocks: materials.blocks,
            framework_version: Some(materials.framework_version),
        }
    }
}

/// Returns the blocks that an earlier call of the turn was shown, on whichever worker: they are collected once per turn (CX-3). `None` means
/// that there is no usable receipt.
async fn collected_before(
    work: &mut UnitOfWork,
    claimed: &Claimed,
    fork: Option<&Fork>,
) -> Result<Option<Before>, Error> {
    let own = receipt::find(work, claimed.fence.agent_turn_id(), None).await?;
    let last = match (own, fork) {
        (None, Some(fork)) if fork.is_same_profile() => {
            receipt::find(work, fork.source_turn_id, fork.source_step_id).await?
        }
        (own, _) => own,
    };
    let Some(last) = last else { return Ok(None) };
    let Ok(mut receipt) = serde_json::from_str::<Receipt>(last.receipt.get()) else { return Ok(None) };
    receipt.blocks.retain(|block| !block.every_step);
    shown(work, receipt).await
}

/// Returns the prompt, the tools and the blocks that a receipt names. `None` means that one of them is gone.
async fn shown(work: &mut UnitOfWork, receipt: Receipt) -> Result<Option<Before>, Error> {
    let Receipt { blocks, system_prompt_card_id, tools_card_id, framework_version, .. } = receipt;
    let named = [system_prompt_card_id, tools_card_id];
    let card_ids: Vec<CardId> =
        named.iter().flatten().copied().chain(blocks.iter().map(|block| block.card_id)).collect();
    let found = card::fetch(work, &card_ids, None).await?.found;
    verify(&found)?;
    let Ok(cards) = live(&card_ids, found) else { return Ok(None) };
    let mut cards = cards.into_iter();
    let [system_prompt, tools] = named.map(|card_id| card_id.and_then(|_| cards.next()));
    let block = |(block, card): (BlockRef, Card)| {
        let BlockRef { key, every_step, sources, .. } = block;
        Collected { key, card, every_step, sources }
    };
    let blocks = blocks.into_iter().zip(cards).map(block).collect();
    Ok(Some(Before { system_prompt, tools, blocks, framework_version: Some(framework_version) }))
}

/// Gathers again what the call of a receipt was made of, without asking any source. The server composed the receipt itself: it says which prompt and blocks were made for the
/// first call of a turn, and how much of the output box was read; a message that came since belongs to the next call. Everything else is read.
/// `None` means that the receipt cannot be that of the turn's next call.
pub(crate) async fn gather_again(
    kernel: &Kernel,
    claimed: &Claimed,
    setting: &Setting,
    collector: &Collector,
    receipt: &Receipt,
) -> Result<Option<Gathered>, Error> {
    let mut work = kernel.begin(claimed.fence.project_id()).await.map_err(work::Error::Db)?;
    let Some(said) = shown(&mut work, receipt.clone()).await? else { return Ok(None) };
    let (mut gathered, when) = read(&mut work, claimed, setting, collector, None).await?;
    drop(work);
    let (materials, upto) = (&mut gathered.materials, receipt.output.upto);
    let is_message =
        |placed: &Placed| placed.reading.live().is_some_and(|card| card.metadata.card_type == CardType::instruction());
    if upto > materials.output.upto || !materials.steps.iter().filter(|placed| placed.place > upto).all(is_message) {
        return Ok(None);
    }
    materials.steps.retain(|placed| placed.place <= upto);
    materials.output.upto = upto;
    materials.left_out = receipt.left_out.clone();
    if when == When::Begin {
        materials.system_prompt = said.system_prompt;
    }
    materials.blocks.extend(said.blocks.into_iter().filter(|block| when == When::Begin || block.every_step));
    let (prompt, tools) = gathered.say_who(claimed, setting)?;
    let cards = prompt.iter().chain(&tools).cloned().collect();
    let cards = store(kernel, claimed, cards, gathered.materials.read_at, false).await?;
    gathered.take_who(prompt.is_some(), tools.is_some(), cards);
    gathered.materials.allow(&setting.audience);
    Ok(Some(gathered))
}

impl Gathered {
    /// Returns the card that the session's blackboard names as its todo list, even if that card is gone.
    pub fn todo_card_id(&self) -> Option<CardId> {
        self.pointers.and_then(|pointers| pointers.todo_card_id)
    }

    /// Adds the cards that this worker's step wrote to the output box. No other worker writes there meanwhile.
    pub fn wrote(&mut self, cards: impl IntoIterator<Item = NewCard>) {
        let materials = &mut self.materials;
        for card in cards {
            let place = materials.output.upto + 1;
            let origin = Origin { box_id: materials.output.box_id, seq: place };
            let reading = Reading::Live(Box::new(card.into_card(materials.read_at)));
            materials.steps.push(Placed { place, origin, also: Vec::new(), reading });
            materials.output.upto = place;
        }
    }

    fn facts(&self, claimed: &Claimed, setting: &Setting) -> Facts<'_> {
        Facts {
            agent_id: claimed.fence.agent_id(),
            parent_agent_id: self.parent_agent_id,
            process: setting.audience.process,
            result_form: &self.result_form,
            context_box_id: claimed.context_box_id,
            output_box_id: claimed.output_box_id,
            budget: setting.budget,
        }
    }

    /// Makes the cards of the agent's prompt and of its tools, if the turn does not have them yet.
    fn say_who(&self, claimed: &Claimed, setting: &Setting) -> Result<(Option<NewCard>, Option<NewCard>), Error> {
        let facts = self.facts(claimed, setting);
        let prompt = setting.system_prompt_template.as_ref().filter(|_| self.materials.system_prompt.is_none());
        let prompt = prompt.map(|template| template.render(|slot| facts.fill(slot)));
        let tools = self.materials.tools.is_none().then(|| setting.toolbox.list(&self.result_form));
        let tools = tools.filter(|list| !list.is_empty()).map(|list| {
            let list = serde_json::to_value(&list).unwrap_or_default();
            Draft::new(CardType::tools(), Role::System, Content::Json(list)).seal()
        });
        let prompt = prompt.filter(|text| !text.trim().is_empty()).map(|text| rendered(&text));
        Ok((prompt.transpose()?, tools.transpose()?))
    }

    /// Takes the stored cards of the agent's prompt and of its tools, those of the two that were made.
    fn take_who(&mut self, has_prompt: bool, has_tools: bool, cards: Vec<Card>) {
        let (materials, mut cards) = (&mut self.materials, cards.into_iter());
        if has_prompt {
            materials.system_prompt = cards.next();
        }
        if has_tools {
            materials.tools = cards.next();
        }
    }

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
            audience: &setting.audience,
            facts: self.facts(claimed, setting),
            framework: setting.framework.as_ref(),
            query: &self.materials.query,
            todo: self.todo.as_ref(),
            knowledge: setting.knowledge.as_ref(),
            experience: setting.experience.as_ref(),
        };
        let (answers, left_out) = collector.collect(&asked, when).await;
        let (prompt, tools) = self.say_who(claimed, setting)?;
        let texts: Vec<NewCard> =
            answers.iter().map(|answer| rendered(&answer.block.text)).collect::<Result<_, _>>()?;
        let n_blocks = texts.len();
        let cards: Vec<NewCard> = texts.into_iter().chain(prompt.iter().chain(&tools).cloned()).collect();
        // The session's memory may be replaced before this turn writes.
        let remembered = [self.materials.session_summary.as_ref(), self.todo.as_ref()];
        let is_external = answers.iter().any(|answer| answer.block.is_external)
            || remembered.into_iter().flatten().any(|card| card.origin == waybill_core::card::Origin::External);
        let mut cards = store(kernel, claimed, cards, self.materials.read_at, is_external).await?;
        let others = cards.split_off(n_blocks);
        self.take_who(prompt.is_some(), tools.is_some(), others);
        let materials = &mut self.materials;
        let block = |(answer, card): (Answer, Card)| Collected {
            key: answer.key,
            card,
            every_step: answer.every_step,
            sources: answer.block.sources,
        };
        let blocks: Vec<Collected> = answers.into_iter().zip(cards).map(block).collect();
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

/// `sys.rendered_prompt`
fn rendered(text: &str) -> Result<NewCard, Invalid> {
    let text = json::readmit(text.to_owned());
    Draft::new(CardType::rendered_prompt(), Role::System, Content::Text(text)).seal()
}

/// Stores cards that only receipts refer to.
async fn store(
    kernel: &Kernel,
    claimed: &Claimed,
    cards: Vec<NewCard>,
    read_at: DateTime<Utc>,
    is_external: bool,
) -> Result<Vec<Card>, Error> {
    if cards.is_empty() {
        return Ok(Vec::new());
    }
    let mut work = kernel.begin(claimed.fence.project_id()).await.map_err(work::Error::Db)?;
    let card_ids = card::intern(&mut work, &cards).await?;
    if is_external {
        external::mark(&mut work, claimed.output_box_id).await?;
    }
    work.commit().await?;
    let stored = |(card, card_id): (NewCard, CardId)| Card { card_id, ..card.into_card(read_at) };
    Ok(cards.into_iter().zip(card_ids).map(stored).collect())
}

/// Refuses cards that someone has changed in the database: the model is asked with what was written, or not at all (CX-11).
pub(crate) fn verify<'a>(readings: impl IntoIterator<Item = &'a Reading>) -> Result<(), Error> {
    let changed = changed(readings.into_iter().filter_map(Reading::live));
    if changed.is_empty() { Ok(()) } else { Err(Error::Changed(changed)) }
}

/// Returns the cards in the order asked for; or, as an error, those that cannot be shown.
fn live(asked: &[CardId], found: Vec<Reading>) -> Result<Vec<Card>, Vec<CardId>> {
    let card = |card_id: &CardId| found.iter().filter_map(Reading::live).find(|card| card.card_id == *card_id).cloned();
    let gone: Vec<CardId> = asked.iter().filter(|card_id| card(card_id).is_none()).copied().collect();
    if gone.is_empty() { Ok(asked.iter().filter_map(card).collect()) } else { Err(gone) }
}

/// Returns the positions of a box that were read: all but the omitted ones.
fn spans(box_id: BoxId, length: i64, omitted: Option<Span>) -> Vec<Span> {
    let omitted = omitted.unwrap_or(Span { box_id, from: length + 1, upto: length });
    let spans = [Span::prefix(box_id, omitted.from - 1), Span { box_id, from: omitted.upto + 1, upto: length }];
    spans.into_iter().filter(|span| span.from <= span.upto).collect()
}

/// Returns the agent that handed the work over, from `meta.parent_pointer` in the context box itself, not from inherited cards.
fn parent(cards: &[Placed], context_box_id: BoxId) -> Option<AgentId> {
    let own = cards.iter().rev().filter(|placed| placed.origin.box_id == context_box_id);
    let pointers = own.filter_map(|placed| placed.reading.live());
    let mut pointers = pointers.filter(|card| card.metadata.card_type == CardType::parent_pointer());
    pointers.find_map(|card| match &card.content {
        Content::Json(value) => value["parent_agent_id"].as_str()?.parse().ok(),
        _ => None,
    })
}
