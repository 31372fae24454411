//! CX-4, CX-5, CX-6, CX-7: sources, and what happens to their blocks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use waybill_context::{
    framework::{Facts, Framework},
    layer::{BlockKey, Layer},
    policy::Audience,
    todo::{Change, Todo},
};
use waybill_core::{
    card::{CardType, Content, Draft, Field, NewCard, ResultForm, Role},
    id::{AgentId, BoxId, ProjectId, StepId},
    resource::Process,
    template::Template,
};
use waybill_kernel::blackboard::{self, Patch};
use waybill_worker::collect::{Asked, Block, Collector, Failure, RegisterError, Source, When};

use crate::{Desk, sealed};

/// A source that answers, fails or hangs.
#[derive(Clone)]
enum Fake {
    Says(&'static str),
    Counts(Arc<AtomicUsize>),
    Fails,
    Panics,
    Sleeps,
}

impl Source for Fake {
    fn collect<'a>(&'a self, _: &'a Asked<'a>) -> BoxFuture<'a, Result<Option<Block>, Failure>> {
        Box::pin(async move {
            match self {
                Fake::Says(text) => Ok(Some((*text).to_owned().into())),
                Fake::Counts(n) => Ok(Some(format!("asked {}", n.fetch_add(1, Ordering::Relaxed) + 1).into())),
                Fake::Fails => Err("no index".into()),
                Fake::Panics => panic!("a source with a bug"),
                Fake::Sleeps => {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                    Ok(None)
                }
            }
        })
    }

    fn every_step(&self) -> bool {
        matches!(self, Fake::Counts(_))
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(50)
    }
}

fn collector(sources: &[(&str, Fake)]) -> Collector {
    let mut collector = Collector::new(Framework::builtin());
    for (name, source) in sources {
        collector.register(name, Arc::new(source.clone())).unwrap();
    }
    collector
}

fn asked(audience: &Audience) -> Asked<'_> {
    let facts = Facts {
        agent_id: AgentId::nil(),
        parent_agent_id: None,
        process: audience.process,
        result_form: &ResultForm::Any,
        context_box_id: BoxId::nil(),
        output_box_id: BoxId::nil(),
        budget: None,
    };
    Asked {
        facts,
        framework: None,
        knowledge: None,
        experience: None,
        project_id: ProjectId::new(),
        agent_id: AgentId::new(),
        session_id: None,
        audience,
        query: &[],
        todo: None,
    }
}

/// CX-4: if a source fails, only its block is missing: the turn goes on, and other sources lose no time.
#[tokio::test]
async fn a_source_that_fails_is_left_out_and_said_to_be() {
    let collector = collector(&[
        ("knowledge__context", Fake::Says("water boils at 100 °C")),
        ("experience__context", Fake::Fails),
        ("a__context", Fake::Panics),
        ("b__context", Fake::Sleeps),
        ("c__context", Fake::Says("  ")),
    ]);
    let audience = Audience::of(Process::React);
    let begun = std::time::Instant::now();
    let (answers, left_out) = collector.collect(&asked(&audience), When::Begin).await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    let keys: Vec<&str> = answers.iter().map(|answer| answer.key.as_str()).collect();
    assert_eq!(keys, ["framework__context", "knowledge__context", "turn__context"]);
    let left: Vec<(&str, &str)> = left_out.iter().map(|left| (left.key.as_str(), left.why.as_str())).collect();
    assert_eq!(
        left,
        [
            ("experience__context", "no index"),
            ("a__context", "the source panicked"),
            ("b__context", "the source did not respond within 50ms")
        ]
    );
}

/// CX-4: keys have their suffix; only compaction writes the summary.
#[tokio::test]
async fn a_key_is_checked_when_it_is_registered() {
    let mut collector = Collector::new(Framework::builtin());
    let source = || Arc::new(Fake::Says("x"));
    assert!(matches!(collector.register("knowledge", source()), Err(RegisterError::Key(_))));
    assert!(matches!(collector.register("compression__context", source()), Err(RegisterError::Compression(_))));
    collector.register("weather__context", source()).unwrap();
}

/// CX-7: a source is not asked for a block that is not shown; on demand means on demand.
#[tokio::test]
async fn nobody_is_asked_in_vain() {
    let n = Arc::new(AtomicUsize::new(0));
    let collector = collector(&[("knowledge__context", Fake::Counts(n.clone()))]);
    let mut audience = Audience::of(Process::MapreduceWorker);
    let (answers, _) = collector.collect(&asked(&audience), When::Begin).await;
    assert_eq!((answers.len(), n.load(Ordering::Relaxed)), (2, 0));
    audience.demands.insert(BlockKey::Knowledge);
    collector.collect(&asked(&audience), When::Begin).await;
    assert_eq!(n.load(Ordering::Relaxed), 1);
    audience.enable_share_context = false;
    collector.collect(&asked(&audience), When::Begin).await;
    assert_eq!(n.load(Ordering::Relaxed), 1);
}

/// CX-3, CX-5, CX-6: blocks are collected once per turn, or for every step; what was shown is a card that no box holds.
#[tokio::test]
async fn what_was_shown_is_kept_for_receipts_and_not_remembered() {
    let mut desk = Desk::new().await;
    let n = Arc::new(AtomicUsize::new(0));
    desk.collector = collector(&[
        ("knowledge__context", Fake::Says("secret of the trade")),
        ("clock__context", Fake::Counts(n)),
        ("experience__context", Fake::Fails),
    ]);
    desk.setting.system_prompt_template = Some(Template::parse("You bake.").unwrap());
    let session_id = desk.session().await;
    let todo = Todo::default().changed(&[Change::Replace { texts: vec!["knead".into()] }]).unwrap();
    let patch = Patch::default().todo(todo.draft().seal().unwrap(), None);
    let mut alone = desk.kernel().alone(desk.t.project_id).await.unwrap();
    blackboard::patch(&mut alone, session_id, StepId::new(), &patch).await.unwrap();
    drop(alone);
    let claimed = desk.ask(session_id, "What now?").await;

    let mut gathered = desk.gather(&claimed).await;
    let texts = |gathered: &crate::Gathered| -> Vec<(String, String)> {
        let composed = gathered.materials.compose(&desk.setting.policy).unwrap();
        composed.messages.iter().map(|m| (m.layer.to_string(), m.content.to_string())).collect()
    };
    let begin = texts(&gathered);
    let layers: Vec<&str> = begin.iter().map(|(layer, _)| layer.as_str()).collect();
    assert_eq!(
        layers,
        ["system_prompt", "framework__context", "knowledge__context", "todo__context", "clock__context", "query"]
    );
    assert_eq!((begin[3].1.as_str(), begin[4].1.as_str()), ("- [ ] 1 knead", "asked 1"));
    gathered.collect(desk.kernel(), &claimed, &desk.setting, &desk.collector, When::EveryStep).await.unwrap();
    assert_eq!(gathered.materials.blocks.len(), 5, "each block once");
    let next = texts(&gathered);
    assert_eq!(next[4].1, "asked 2");
    assert_eq!((&next[..4], &next[5..]), (&begin[..4], &begin[5..]));
    let call = gathered.materials.call(&desk.config()).unwrap();
    assert_eq!(call.receipt.left_out[0].key, BlockKey::Experience);
    assert!(call.composed.messages.iter().any(|message| message.layer == Layer::SystemPrompt));

    // All of it is there for the receipt, and no box holds any of it.
    let again = desk.gather(&claimed).await;
    let same = |key: &BlockKey| {
        let id = |gathered: &crate::Gathered| {
            gathered.materials.blocks.iter().find(|block| block.key == *key).map(|block| block.card.card_id)
        };
        assert!(id(&gathered).is_some());
        assert_eq!(id(&gathered), id(&again), "one card, however often it is shown");
    };
    [BlockKey::Framework, BlockKey::Knowledge, BlockKey::Todo].iter().for_each(same);
    let held = "select count(*) from cardbox.box_entries e
           join cardbox.cards c on c.project_id = e.project_id and c.card_id = e.card_id
          where c.type like 'sys.%'";
    assert_eq!(desk.t.count(held).await, 0);
    desk.step(&claimed, &[sealed(Role::Assistant, "bake it")], None).await;
    desk.finish(&claimed, "baked").await;
    let mut work = desk.t.begin().await;
    let board = blackboard::find(&mut work, session_id).await.unwrap().unwrap();
    let memory = waybill_kernel::card_box::find(&mut work, &[board.messages_box_id]).await.unwrap();
    assert_eq!(memory.found[0].length, 2, "the question and the answer");
}

/// CX-3: blocks are collected once per turn, whichever worker runs it: a turn that another worker takes over shows the same blocks.
#[tokio::test]
async fn a_turn_that_is_taken_over_shows_the_same_blocks() {
    let mut desk = Desk::new().await;
    let session_id = desk.session().await;
    desk.collector = collector(&[("knowledge__context", Fake::Says("as of Monday")), ("a__context", Fake::Fails)]);
    let claimed = desk.ask(session_id, "What do we know?").await;
    let first = desk.gather(&claimed).await.materials.call(&desk.config()).unwrap().into_owned();
    let receipt = serde_json::to_string(&first.receipt).unwrap();
    desk.step(&claimed, &[sealed(Role::Assistant, "thinking")], Some(receipt)).await;
    desk.collector = collector(&[
        ("knowledge__context", Fake::Says("as of Tuesday")),
        ("clock__context", Fake::Counts(Arc::default())),
    ]);
    let claimed = desk.take_over().await;
    let second = desk.gather(&claimed).await.materials.call(&desk.config()).unwrap().into_owned();
    let said = |call: &waybill_context::call::Call<'_>| String::from_utf8(call.request.clone()).unwrap();
    assert!(said(&second).contains("as of Monday") && said(&second).contains("asked 1"), "{}", said(&second));
    let found = waybill_context::diff::diff(&first, &second);
    assert!(found.only_left.is_empty(), "{found:?}");
}

/// PM-4: the fields of the result are at the head of the context, and are shown however long the history is. Inherited fields belong to
/// another task.
#[tokio::test]
async fn the_contract_is_the_turns_own() {
    let mut desk = Desk::new().await;
    desk.setting.policy.budget = crate::tokens(600);
    let session_id = desk.session().await;
    let fields = |name: &str| {
        let field = Field { name: name.into(), description: "in\n- one: line".into(), extra: Default::default() };
        Draft::new(CardType::result_fields(), Role::System, Content::Fields(vec![field])).seal().unwrap()
    };
    let long: Vec<NewCard> = (0..40).map(|n| sealed(Role::User, &crate::long(&format!("m{n}"), 60))).collect();
    desk.remember(session_id, &[fields("theirs")]).await;
    desk.remember(session_id, &long).await;
    let claimed = desk.ask_with(session_id, "go", &[fields("ours")]).await;
    let gathered = desk.gather(&claimed).await;
    let composed = gathered.materials.compose(&desk.setting.policy).unwrap();
    let text = composed.messages.last().unwrap().content.to_string();
    assert!(text.contains("these fields:\n- ours: in - one: line\n</turn__context>\n\ngo"), "{text}");
}
