//! Handing over (PM-4, PM-5, PM-12, SE-3): what is packed, by which right, and on which record.

use std::collections::{HashMap, HashSet};

use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Map, Value, json};
use waybill_core::{
    card::{CardType, NewCard, Reading, Role},
    card_box::Span,
    handover::Handover,
    id::{AgentId, BoxId, CardId, GrantId, ProjectId, SessionId, StepId, TurnId},
    turn::End,
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    blackboard::{self, Patch},
    card, card_box, grant,
    handover::{self, Error, Pack, Packed, Packing, pack_context},
    project, resource,
    turn::{self, DispatchRequest},
    work::{Kernel, UnitOfWork},
};
use waybill_testkit::{TestDb, fresh_db};

use crate::{
    cases, filled_box, held,
    turn_cost::Statements,
    turns::{House, LONG, ending, instruction, target},
};

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn handover(value: Value) -> Handover {
    serde_json::from_value(value).unwrap()
}

/// Profiles `a`, and `w`, which is shown no session.
async fn apply_profiles(work: &mut UnitOfWork) {
    for (name, process) in [("a", "react"), ("w", "mapreduce_worker")] {
        let profile = json!({ "profile": {
            "name": name, "worker_target": "llm", "system_prompt_template": "", "process": process,
            "llm_config": { "provider": "openai_chat", "model": "m" } } });
        resource::apply(work, &[serde_json::from_value(profile).unwrap()]).await.unwrap();
    }
}

async fn agents(work: &mut UnitOfWork, n: usize) -> Vec<AgentId> {
    let agents: Vec<AgentId> = (0..n).map(|_| AgentId::new()).collect();
    agent::create(work, &agents, &target("llm")).await.unwrap();
    agents
}

/// An output box of a turn of the agent, with new cards in it.
async fn output(work: &mut UnitOfWork, agent_id: AgentId, n: usize) -> (BoxId, Vec<CardId>) {
    let card = instruction("do it");
    let request = DispatchRequest::instructed(agent_id, card.card_id());
    turn::enqueue(work, std::slice::from_ref(&request), &[card]).await.unwrap();
    let cards = crate::instructions(n);
    card::insert(work, &cards).await.unwrap();
    card_box::append(work, request.output_box_id, &crate::ids(&cards)).await.unwrap();
    (request.output_box_id, crate::ids(&cards))
}

async fn pack_one(
    work: &mut UnitOfWork,
    source: Option<AgentId>,
    handover: &Handover,
    receiver: AgentId,
    arguments: Value,
) -> Result<Packed, Error> {
    let pack = Pack::new(receiver, TurnId::new(), object(arguments));
    Ok(pack_context(work, Packing::new("test", source, handover), &[pack]).await?.remove(0))
}

async fn read(work: &mut UnitOfWork, card_id: CardId) -> waybill_core::card::Card {
    let found = card::fetch(work, &[card_id], None).await.unwrap().found.remove(0);
    found.into_live().unwrap()
}

/// PM-4: the rules one by one, in their order.
#[tokio::test]
async fn arguments_become_cards_by_the_rules() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    apply_profiles(&mut work).await;
    let [source, receiver] = agents(&mut work, 2).await.try_into().unwrap();
    let rules = handover(json!({
        "target_profile_config": { "profile_name": "a" },
        "context_packing_config": { "pack_arguments": [
            { "arg_key": "task" },
            { "arg_key": "absent" },
            { "arg_key": "nothing" },
            { "arg_key": "fields", "as_card_type": "task.result_fields" },
            { "arg_key": "data", "as_card_type": "note.data", "card_metadata": { "role": "assistant", "tone": "dry" } },
            { "arg_key": "number" },
        ], "inherit_context": { "include_boxes_from_args": ["boxes"], "include_parent": true } },
    }));
    let (first, cards) = output(&mut work, source, 2).await;
    let (second, more) = output(&mut work, source, 1).await;
    let arguments = json!({
        "task": "look", "data": { "b": 1 }, "number": 7, "fields": [{ "name": "x", "description": "y" }], "nothing": null,
        "boxes": [first.to_string(), second.to_string(), first.to_string()], "ignored": "x",
    });
    let packed = pack_one(&mut work, Some(source), &rules, receiver, arguments.clone()).await.unwrap();
    let [task, fields, data, number, parent] = packed.attached_card_ids[..].try_into().unwrap();
    let expected: Vec<CardId> = [vec![task, fields, data, number], cards, more, vec![parent]].concat();
    assert_eq!(held(&mut work, packed.context_box_id).await, expected);
    assert_eq!(
        packed.query_card_ids,
        [task, number],
        "what the user asks; not the rules for the answer, nor data of others"
    );
    assert_eq!(packed.worker_target, target("llm"));
    let mut seen = Vec::new();
    for card_id in &packed.attached_card_ids {
        let card = read(&mut work, *card_id).await;
        assert_eq!(card.metadata.author_id.as_deref(), Some("test"));
        seen.push((
            card.metadata.card_type.to_string(),
            card.metadata.role,
            serde_json::to_value(&card.content).unwrap(),
        ));
    }
    assert_eq!(seen[0], ("task.instruction".into(), Role::User, json!("look")));
    assert_eq!(seen[1], ("task.result_fields".into(), Role::System, json!([{ "name": "x", "description": "y" }])));
    assert_eq!(seen[2], ("note.data".into(), Role::Assistant, json!({ "b": 1 })));
    assert_eq!(seen[3], ("task.instruction".into(), Role::User, json!("7")));
    assert_eq!(seen[4], ("meta.parent_pointer".into(), Role::System, json!({ "parent_agent_id": source })));
    assert_eq!(read(&mut work, data).await.metadata.extra["tone"], "dry");
    // The arguments come before the handover; without either there is no target.
    let named = json!({ "profile_name": "w", "task": "look" });
    let other = pack_one(&mut work, Some(source), &rules, receiver, named).await.unwrap();
    assert_ne!(other.target_profile_box_id, packed.target_profile_box_id);
    let no_target = handover(json!({}));
    let check = async |handover: &Handover, change: Value, code: &str| {
        let mut arguments = arguments.clone();
        arguments.as_object_mut().unwrap().extend(object(change.clone()));
        let mut work = t.begin().await;
        let outcome = pack_one(&mut work, Some(source), handover, receiver, arguments).await;
        let error = outcome.expect_err(&format!("{change} is {code}"));
        assert_eq!(error.code(), code, "{change}: {error}");
    };
    work.commit().await.unwrap();
    check(&no_target, json!({}), "bad_request").await;
    check(&rules, json!({ "profile_name": "nobody" }), "not_found").await;
    check(&rules, json!({ "profile_name": 3 }), "bad_request").await;
    check(&rules, json!({ "fields": "x" }), "bad_request").await;
    check(&rules, json!({ "fields": [{ "name": 1 }] }), "bad_request").await;
    check(&rules, json!({ "boxes": 3 }), "bad_request").await;
    check(&rules, json!({ "boxes": ["no id"] }), "bad_request").await;
    check(&rules, json!({ "boxes": BoxId::new().to_string() }), "not_found").await;
    check(&rules, json!({ "data": { "n": 9007199254740993_u64 } }), "bad_request").await;
    for kind in ["sys.profile", "task.deliverable"] {
        let never = handover(json!({
            "target_profile_config": { "profile_name": "a" },
            "context_packing_config": { "pack_arguments": [{ "arg_key": "task", "as_card_type": kind }] } }));
        check(&never, json!({}), "bad_request").await;
    }
    assert_eq!(t.count("select count(*) from state.refusals").await, 1, "what is not there is on record too");
}

/// PM-4, CX-7: a session that is named goes along as one range, on record; not for a process that is shown no session. Others do not get it.
#[tokio::test]
async fn a_session_goes_along_where_it_is_named() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    apply_profiles(&mut work).await;
    let receivers = agents(&mut work, 3).await;
    let (session_id, said) = session(&mut work, 3).await;
    let rules = Handover::instruction();
    let packs: Vec<Pack> = [("a", Some(session_id)), ("w", Some(session_id)), ("a", None)]
        .into_iter()
        .zip(&receivers)
        .map(|((profile, session_id), agent_id)| Pack {
            session_id,
            ..Pack::new(*agent_id, TurnId::new(), object(json!({ "profile_name": profile, "instruction": "go" })))
        })
        .collect();
    let packed = pack_context(&mut work, Packing::new("run", None, &rules), &packs).await.unwrap();
    let asked = |n: usize| packed[n].query_card_ids.clone();
    assert_eq!(held(&mut work, packed[0].context_box_id).await, [asked(0), said].concat());
    assert_eq!(held(&mut work, packed[1].context_box_id).await, asked(1));
    assert_eq!(held(&mut work, packed[2].context_box_id).await, asked(2));
    let unknown = Pack { session_id: Some(SessionId::new()), ..packs[0].clone() };
    let outcome = pack_context(&mut work, Packing::new("run", None, &rules), &[unknown]).await;
    assert!(matches!(outcome, Err(Error::NoSession(_))), "{outcome:?}");
    work.commit().await.unwrap();
    assert_eq!(t.count("select count(*) from state.handovers where rule = 'session' and n_cards = 3").await, 1);
}

async fn session(work: &mut UnitOfWork, n: usize) -> (SessionId, Vec<CardId>) {
    let session_id = SessionId::new();
    blackboard::open(work, None, &[session_id]).await.unwrap();
    let said = crate::instructions(n);
    card::insert(work, &said).await.unwrap();
    let patch = Patch::default().append(&crate::ids(&said));
    blackboard::patch(work, session_id, StepId::new(), &patch).await.unwrap();
    (session_id, crate::ids(&said))
}

/// SE-3: own, handed, granted, joined; how far; and no further. A grant that is revoked gives nothing more.
#[tokio::test]
async fn a_box_is_read_by_right() {
    let house = House::new().await;
    let mut work = house.t.begin().await;
    apply_profiles(&mut work).await;
    let [source, receiver, other] = agents(&mut work, 3).await.try_into().unwrap();
    let (box_id, cards) = output(&mut work, source, 2).await;
    work.commit().await.unwrap();
    let rules = Handover::instruction();
    let inherits = async |who: AgentId, box_id: BoxId| {
        let mut work = house.t.begin().await;
        let arguments = json!({ "profile_name": "a", "input_box_ids": box_id.to_string() });
        let packed = pack_one(&mut work, Some(who), &rules, other, arguments).await?;
        let cards = held(&mut work, packed.context_box_id).await;
        // Given up: what `other` would have been handed is not to count.
        drop(work);
        Ok::<usize, Error>(cards.len() - packed.attached_card_ids.len())
    };
    assert_eq!(inherits(source, box_id).await.unwrap(), 2, "its own");
    let refused = inherits(receiver, box_id).await;
    assert!(matches!(&refused, Err(Error::Forbidden(boxes)) if *boxes == [box_id]), "{refused:?}");
    let mut work = house.t.begin().await;
    let arguments = json!({ "profile_name": "a", "input_box_ids": box_id.to_string() });
    let handed = pack_one(&mut work, Some(source), &rules, receiver, arguments).await.unwrap();
    let more = crate::instructions(3);
    card::insert(&mut work, &more).await.unwrap();
    card_box::append(&mut work, box_id, &crate::ids(&more)).await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(inherits(receiver, box_id).await.unwrap(), 2, "as it was when it was handed");
    assert_eq!(inherits(receiver, handed.context_box_id).await.unwrap(), 3, "what it was packed, whole");
    assert_eq!(inherits(source, box_id).await.unwrap(), 5);
    assert!(inherits(other, box_id).await.is_err(), "handed to another agent");

    let give = async |upto| {
        let mut work = house.t.begin().await;
        let grant_id = grant::give(&mut work, other, box_id, upto, "ann", "for the review").await.unwrap();
        work.commit().await.unwrap();
        grant_id
    };
    let some = give(Some(4)).await;
    assert_eq!(inherits(other, box_id).await.unwrap(), 4);
    let all = give(None).await;
    assert_eq!(inherits(other, box_id).await.unwrap(), 5);
    for (grant_id, left) in [(all, Some(4)), (some, None)] {
        let mut work = house.t.begin().await;
        grant::revoke(&mut work, grant_id, "ann").await.unwrap();
        assert!(matches!(grant::revoke(&mut work, grant_id, "ann").await, Err(grant::Error::NotFound(_))));
        drop(work);
        let mut work = house.t.begin().await;
        grant::revoke(&mut work, grant_id, "ann").await.unwrap();
        work.commit().await.unwrap();
        assert_eq!(inherits(other, box_id).await.ok(), left);
    }
    let mut work = house.t.begin().await;
    assert!(matches!(grant::give(&mut work, other, BoxId::new(), None, "ann", "x").await, Err(grant::Error::NoBox(_))));
    let mut work = house.t.begin().await;
    let nobody = grant::give(&mut work, AgentId::new(), box_id, None, "ann", "x").await;
    assert!(matches!(nobody, Err(grant::Error::NoAgent(_))), "{nobody:?}");
    assert!(work.commit().await.is_err());
    let refused = grant::refusals(&mut house.t.begin().await, None, 100).await.unwrap();
    assert_eq!(
        refused.iter().map(|r| (r.agent_id, r.why.as_str())).collect::<Vec<_>>(),
        [(other, "forbidden"), (other, "forbidden"), (receiver, "forbidden")]
    );
    assert_eq!(cards.len(), 2);
}

/// PM-9, LESSONS: the parent may read what its children wrote, as far as they had written when they ended; no other agent may.
#[tokio::test]
async fn a_parent_reads_what_its_children_wrote() {
    let house = House::new().await;
    let mut work = house.t.begin().await;
    apply_profiles(&mut work).await;
    work.commit().await.unwrap();
    let family = house.family(2, false, LONG).await;
    let child = house.claim().await.unwrap();
    let sibling = house.claim().await.unwrap();
    let rules = Handover::instruction();
    let inherits = async |who: AgentId| {
        let mut work = house.t.begin().await;
        let arguments = json!({ "profile_name": "a", "input_box_ids": child.output_box_id.to_string() });
        let packed = pack_one(&mut work, Some(who), &rules, who, arguments).await?;
        Ok::<usize, Error>(held(&mut work, packed.context_box_id).await.len() - packed.attached_card_ids.len())
    };
    let parent = family.parent.agent_id();
    assert!(inherits(parent).await.is_err(), "not before it has ended");
    house.end_child(&child, End::Success).await;
    assert_eq!(inherits(parent).await.unwrap(), 2);
    let mut work = house.t.begin().await;
    filled_box(&mut work, 1).await;
    let late = crate::instructions(1);
    card::insert(&mut work, &late).await.unwrap();
    card_box::append(&mut work, child.output_box_id, &crate::ids(&late)).await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(inherits(parent).await.unwrap(), 2, "as far as it had written");
    assert!(inherits(sibling.fence.agent_id()).await.is_err());
}

/// PM-12: why a card is there, and who could see it, is one question.
#[tokio::test]
async fn every_card_can_say_why_it_is_there() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    apply_profiles(&mut work).await;
    let [source, receiver, third] = agents(&mut work, 3).await.try_into().unwrap();
    let (box_id, cards) = output(&mut work, source, 3).await;
    let rules = Handover::instruction();
    let send = async |work: &mut UnitOfWork, from: AgentId, to: AgentId, box_id: BoxId| {
        let arguments = json!({ "profile_name": "a", "instruction": "go", "input_box_ids": box_id.to_string() });
        let turn_id = TurnId::new();
        let pack = Pack::new(to, turn_id, object(arguments));
        let packed =
            pack_context(work, Packing::new("delegate_async", Some(from), &rules), &[pack]).await.unwrap().remove(0);
        let request = DispatchRequest { agent_turn_id: turn_id, ..DispatchRequest::new(to, packed.context_box_id) };
        turn::enqueue(work, &[request], &[]).await.unwrap();
        (turn_id, packed)
    };
    let (first, packed) = send(&mut work, source, receiver, box_id).await;
    // Handed on: what the receiver was packed goes to a third, instruction and all.
    let (second, _) = send(&mut work, receiver, third, packed.context_box_id).await;
    let grant_id = grant::give(&mut work, third, box_id, Some(1), "ann", "for the review").await.unwrap();
    grant::revoke(&mut work, grant_id, "ann").await.unwrap();
    work.commit().await.unwrap();

    let mut work = t.begin().await;
    let why = handover::why(&mut work, cards[1], first).await.unwrap();
    let [why] = why.try_into().unwrap();
    assert_eq!((why.box_id, why.place, why.rule.as_str()), (packed.context_box_id, 3, "box"));
    assert_eq!((why.arg_key.as_deref(), why.tool_suffix.as_deref()), (Some("input_box_ids"), Some("delegate_async")));
    assert_eq!((why.source_agent_id, why.source_box_id), (Some(source), Some(box_id)));
    assert_eq!((why.upto, why.via.as_deref()), (Some(3), Some("own")));
    let why = handover::why(&mut work, cards[1], second).await.unwrap().remove(0);
    assert_eq!((why.source_agent_id, why.source_box_id), (Some(receiver), Some(packed.context_box_id)));
    let asked = packed.query_card_ids[0];
    assert_eq!(handover::why(&mut work, asked, first).await.unwrap()[0].rule, "argument");
    assert_eq!(handover::why(&mut work, packed.attached_card_ids[1], first).await.unwrap()[0].rule, "parent");
    assert_eq!(handover::why(&mut work, asked, second).await.unwrap()[0].rule, "box");
    assert_eq!(handover::why(&mut work, CardId::new(), first).await.unwrap(), []);

    let held = card_box::holders(&mut work, cards[0], None, 100).await.unwrap();
    let seen = handover::sight(&mut work, &held).await.unwrap();
    let mut seen: Vec<(AgentId, &str)> = seen.iter().map(|sight| (sight.agent_id, sight.via.as_str())).collect();
    seen.sort();
    let mut expected = [(source, "own"), (receiver, "handed"), (third, "handed"), (third, "granted")];
    expected.sort();
    assert_eq!(seen, expected, "also by a grant that was revoked since");
    let held = card_box::holders(&mut work, cards[1], None, 100).await.unwrap();
    assert!(handover::sight(&mut work, &held).await.unwrap().iter().all(|sight| sight.via != "granted"));
}

/// PM-6: the question and what came of it join an agent's memory, once, by reference; many cards as one range. An agent that was made for a task
/// has no head when it is over, and remembers when it is addressed again.
#[tokio::test]
async fn an_agent_remembers_its_turns() {
    let house = House::new().await;
    let mut work = house.t.begin().await;
    let made = |agent_id| NewAgent::new(agent_id, target("llm"));
    let (stays, leaves) = (AgentId::new(), AgentId::new());
    agent::provision(&mut work, &[made(stays)], Stay::Long, None).await.unwrap();
    agent::provision(&mut work, &[made(leaves)], Stay::Ephemeral, Some(stays)).await.unwrap();
    work.commit().await.unwrap();
    let mut expected: HashMap<AgentId, Vec<CardId>> = HashMap::new();
    for (agent_id, n) in [(stays, 0), (leaves, 0), (stays, 100), (leaves, 1)] {
        let question = instruction("and?");
        let request = DispatchRequest::instructed(agent_id, question.card_id());
        house.enqueue_all(&[request], std::slice::from_ref(&question)).await.unwrap();
        let claimed = house.claim().await.unwrap();
        let mut end = ending(claimed.fence);
        let thoughts = (0..n).map(|n| crate::turns::thought(&format!("thought {n}"))).collect::<Vec<NewCard>>();
        end.cards = [thoughts, end.cards].concat();
        let remembered = expected.entry(agent_id).or_default();
        remembered.push(question.card_id());
        remembered.extend(crate::ids(&end.cards));
        let mut work = house.t.begin().await;
        turn::finish(&mut work, &[end]).await.unwrap();
        work.commit().await.unwrap();
        let head = agent::find(&mut house.t.begin().await, agent_id).await.unwrap();
        assert_eq!(head.is_some(), agent_id == stays, "{agent_id} after {n} thoughts");
    }
    assert!(house.t.count("select count(*) from state.identity_edges").await == 2);
    let mut work = house.t.begin().await;
    for _ in 0..2 {
        let memories = agent::memories(&mut work, &[stays, leaves]).await.unwrap();
        assert_eq!(memories.len(), 2);
        for memory in memories {
            assert_eq!(held(&mut work, memory.memory_box_id).await, expected[&memory.agent_id]);
        }
    }
    work.commit().await.unwrap();
    let ranges =
        "select count(*) from cardbox.box_entries e join resource.project_agents a on a.memory_box_id = e.box_id
                   where e.source_box_id is not null";
    assert_eq!(house.count(ranges).await, 1, "a hundred thoughts are one range");
    // It gets no work for a day: it is off the roster, and cannot be dispatched to.
    house.meddle("update resource.project_agents set retire_by = now() - interval '1 second' where ephemeral").await;
    assert_eq!(agent::retire(house.kernel(), 100).await.unwrap(), 1);
    assert_eq!(agent::retire(house.kernel(), 100).await.unwrap(), 0);
    let card = instruction("too late");
    let late = house.enqueue_all(&[DispatchRequest::instructed(leaves, card.card_id())], &[card]).await;
    assert!(matches!(late, Err(turn::Error::NotFound(_))), "{late:?}");
    assert_eq!(house.t.count("select count(*) from state.identity_edges where action = 'retired'").await, 1);
    assert_eq!(agent::without_head(&mut house.t.begin().await, 10).await.unwrap(), []);
}

/// What comes late for a turn of a retired agent is late, not lost state.
#[tokio::test]
async fn the_late_find_nobody_and_no_fault() {
    let house = House::new().await;
    let agent_id = AgentId::new();
    let made = NewAgent::new(agent_id, target("llm"));
    let mut work = house.t.begin().await;
    agent::provision(&mut work, &[made], Stay::Ephemeral, None).await.unwrap();
    work.commit().await.unwrap();
    let dispatched = house.enqueue(agent_id).await;
    let claimed = house.claim().await.unwrap();
    let step = crate::turns::calling(1, "tool", LONG, false);
    house.step(&claimed.fence, &step).await.unwrap();
    house.finish(claimed.fence).await.unwrap();
    assert!(agent::find(&mut house.t.begin().await, agent_id).await.unwrap().is_none());
    let late = house.report(&crate::turns::answer(step.calls[0].tool_call_id)).await.unwrap();
    assert_eq!(late.outcome, turn::ReportOutcome::Dropped);
    assert_eq!(house.stop(dispatched.agent_turn_id).await.unwrap(), turn::Stopped::Over);
    assert!(crate::turns::is_stale(&house.finish(claimed.fence).await), "with another deliverable");
    // One that is to start later keeps the head, and starts.
    let card = instruction("later");
    let later = DispatchRequest {
        not_before: Some(chrono::Utc::now() + LONG),
        ..DispatchRequest::instructed(agent_id, card.card_id())
    };
    house.enqueue_all(&[later], &[card]).await.unwrap();
    house.enqueue(agent_id).await;
    let claimed = house.claim().await.unwrap();
    house.finish(claimed.fence).await.unwrap();
    house.meddle("update state.agent_inbox set next_retry_at = now()").await;
    house.sweep().await;
    let claimed = house.claim().await.expect("it was released");
    house.finish(claimed.fence).await.unwrap();
    assert_eq!(house.count("select count(*) from state.agent_state_head").await, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Write { agent: usize, into: Option<usize>, count: usize },
    Pack(Attempt),
    Grant { agent: usize, which: usize, upto: Option<usize> },
    Revoke { which: usize },
}

/// Numbers name an agent or a box by their remainder.
#[derive(Clone, Debug)]
struct Attempt {
    /// The last is a person.
    source: usize,
    packs: Vec<(usize, Vec<usize>, bool, bool)>,
    one_by_name: bool,
    parent: bool,
    instruction: bool,
}

fn any_step() -> impl Strategy<Value = Step> {
    let n = || 0..1000_usize;
    let pack = (n(), prop::collection::vec(n(), 0..6), any::<bool>(), any::<bool>());
    let attempt = (n(), prop::collection::vec(pack, 1..4), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(source, packs, one_by_name, parent, instruction)| {
            Step::Pack(Attempt { source, packs, one_by_name, parent, instruction })
        },
    );
    prop_oneof![
        4 => (n(), prop::option::of(n()), 0..4_usize).prop_map(|(agent, into, count)| Step::Write { agent, into, count }),
        8 => attempt,
        1 => (n(), n(), prop::option::of(0..4_usize)).prop_map(|(agent, which, upto)| Step::Grant { agent, which, upto }),
        1 => n().prop_map(|which| Step::Revoke { which }),
    ]
}

const N_AGENTS: usize = 4;

/// Everything copied about: what each box holds, and how far each agent may read it.
struct Naive {
    agents: Vec<AgentId>,
    boxes: Vec<(BoxId, Vec<CardId>)>,
    owners: HashMap<BoxId, AgentId>,
    /// Those that grow.
    outputs: Vec<usize>,
    handed: HashMap<(AgentId, BoxId), usize>,
    grants: Vec<(GrantId, AgentId, BoxId, Option<usize>)>,
    session: (SessionId, BoxId, Vec<CardId>),
}

impl Naive {
    /// How many of a box's cards, in order. `None` means that it may not be read.
    fn right(&self, who: Option<AgentId>, which: usize) -> Option<usize> {
        let (box_id, cards) = &self.boxes[which];
        let Some(who) = who else { return Some(cards.len()) };
        let own = (self.owners.get(box_id) == Some(&who)).then_some(cards.len());
        let handed = self.handed.get(&(who, *box_id)).copied();
        let granted = self.grants.iter().filter(|(_, agent, granted, _)| *agent == who && granted == box_id);
        let granted = granted.map(|(.., upto)| upto.unwrap_or(cards.len()).min(cards.len())).max();
        own.max(handed).max(granted)
    }
}

async fn run(kernel: &Kernel, program: &[Step]) -> Result<(), TestCaseError> {
    let project_id = ProjectId::new();
    let mut work = kernel.begin(project_id).await.unwrap();
    project::create(&mut work, &format!("p-{project_id}")).await.unwrap();
    apply_profiles(&mut work).await;
    let (session_id, messages) = session(&mut work, 2).await;
    let board = blackboard::find(&mut work, session_id).await.unwrap().unwrap();
    let mut naive = Naive {
        agents: agents(&mut work, N_AGENTS).await,
        boxes: Vec::new(),
        owners: HashMap::new(),
        outputs: Vec::new(),
        handed: HashMap::new(),
        grants: Vec::new(),
        session: (session_id, board.messages_box_id, messages),
    };
    work.commit().await.unwrap();
    let mut n_refused = 0;
    for step in program {
        let mut work = kernel.begin(project_id).await.unwrap();
        match step {
            Step::Write { agent, into, count } => match into.filter(|_| !naive.outputs.is_empty()) {
                None => {
                    let agent_id = naive.agents[agent % N_AGENTS];
                    let (box_id, cards) = output(&mut work, agent_id, *count).await;
                    naive.owners.insert(box_id, agent_id);
                    naive.outputs.push(naive.boxes.len());
                    naive.boxes.push((box_id, cards));
                }
                Some(into) => {
                    let (box_id, cards) = &mut naive.boxes[naive.outputs[into % naive.outputs.len()]];
                    let new = crate::instructions(*count);
                    card::insert(&mut work, &new).await.unwrap();
                    card_box::append(&mut work, *box_id, &crate::ids(&new)).await.unwrap();
                    cards.extend(crate::ids(&new));
                }
            },
            Step::Grant { agent, which, upto } if !naive.outputs.is_empty() => {
                let box_id = naive.boxes[naive.outputs[which % naive.outputs.len()]].0;
                let agent_id = naive.agents[agent % N_AGENTS];
                let upto_place = upto.map(|upto| upto as i64);
                let grant_id = grant::give(&mut work, agent_id, box_id, upto_place, "ann", "so").await.unwrap();
                naive.grants.push((grant_id, agent_id, box_id, *upto));
            }
            Step::Revoke { which } if !naive.grants.is_empty() => {
                let (grant_id, ..) = naive.grants.remove(which % naive.grants.len());
                grant::revoke(&mut work, grant_id, "ann").await.unwrap();
            }
            Step::Pack(attempt) => {
                if !try_packing(&mut work, &mut naive, attempt, &mut n_refused).await? {
                    prop_assert!(work.commit().await.is_err(), "a refused unit of work cannot be committed");
                    continue;
                }
            }
            Step::Grant { .. } | Step::Revoke { .. } => {}
        }
        work.commit().await.unwrap();
    }
    let mut work = kernel.begin(project_id).await.unwrap();
    let recorded = grant::refusals(&mut work, None, 10_000).await.unwrap();
    prop_assert_eq!(recorded.len(), n_refused);
    Ok(())
}

/// What one pack is to lead to.
struct Expected {
    receiver: AgentId,
    /// The cards that it inherits, in their order.
    cards: Vec<CardId>,
    /// How much of which boxes its receiver is handed.
    handed: Vec<(BoxId, usize)>,
}

/// What an attempt is to lead to.
#[derive(Default)]
struct Foreseen {
    packs: Vec<Pack>,
    expected: Vec<Expected>,
    missing: HashSet<BoxId>,
    forbidden: HashSet<BoxId>,
    /// Whether an agent names a session that it is not in.
    is_outside: bool,
}

impl Attempt {
    fn is_in_session(&self) -> bool {
        self.packs.len().is_multiple_of(2)
    }
}

impl Naive {
    fn source(&self, attempt: &Attempt) -> Option<AgentId> {
        self.agents.get(attempt.source % (N_AGENTS + 1)).copied()
    }

    fn foresee(&self, attempt: &Attempt) -> Foreseen {
        let source = self.source(attempt);
        let unknown = BoxId::new();
        let of =
            |n: &usize| self.boxes.get(n % (self.boxes.len() + usize::from(n.is_multiple_of(50)))).map(|(id, _)| *id);
        let mut foreseen = Foreseen::default();
        for (receiver, named, with_session, worker) in &attempt.packs {
            let receiver = self.agents[receiver % N_AGENTS];
            let named: Vec<usize> = if self.boxes.is_empty() { Vec::new() } else { named.clone() };
            let ids: Vec<String> = named.iter().map(|n| of(n).unwrap_or(unknown).to_string()).collect();
            let mut arguments = object(json!({ "profile_name": if *worker { "w" } else { "a" } }));
            if attempt.instruction {
                arguments.insert("instruction".into(), "go".into());
            }
            match (&ids[..], attempt.one_by_name) {
                ([], _) => {}
                ([one], true) => drop(arguments.insert("input_box_ids".into(), json!(one))),
                (all, _) => drop(arguments.insert("input_box_ids".into(), json!(all))),
            }
            let mut cards: Vec<CardId> = Vec::new();
            let mut handed = Vec::new();
            for n in &named {
                let which = n % (self.boxes.len() + usize::from(n.is_multiple_of(50)));
                if which == self.boxes.len() {
                    foreseen.missing.insert(unknown);
                    continue;
                }
                match self.right(source, which) {
                    None => drop(foreseen.forbidden.insert(self.boxes[which].0)),
                    Some(upto) => {
                        cards.extend(&self.boxes[which].1[..upto]);
                        handed.push((self.boxes[which].0, upto));
                    }
                }
            }
            let (session_id, messages_box_id, messages) = &self.session;
            if *with_session && !worker {
                // An agent names the session that it is in, and no other.
                cards.extend(messages);
                handed.push((*messages_box_id, messages.len()));
                foreseen.is_outside |= source.is_some() && !attempt.is_in_session();
            }
            let mut seen = HashSet::new();
            cards.retain(|card_id| seen.insert(*card_id));
            foreseen.expected.push(Expected { receiver, cards, handed });
            let session_id = with_session.then_some(*session_id);
            foreseen.packs.push(Pack { session_id, ..Pack::new(receiver, TurnId::new(), arguments) });
        }
        foreseen
    }
}

/// Returns false if it was refused, as it should be.
async fn try_packing(
    work: &mut UnitOfWork,
    naive: &mut Naive,
    attempt: &Attempt,
    n_refused: &mut usize,
) -> Result<bool, TestCaseError> {
    let source = naive.source(attempt);
    let mut rules = Handover::instruction();
    rules.context_packing_config.inherit_context.include_parent = attempt.parent;
    let Foreseen { packs, expected, missing, forbidden, is_outside } = naive.foresee(attempt);
    let session_id = attempt.is_in_session().then_some(naive.session.0);
    let packing = Packing { session_id, ..Packing::new("test", source, &rules) };
    let outcome = pack_context(work, packing, &packs).await;
    // What arguments name is looked up first.
    if is_outside && missing.is_empty() && forbidden.is_empty() {
        prop_assert!(matches!(outcome, Err(Error::NoSession(_))), "{outcome:?}");
        return Ok(false);
    }
    if !missing.is_empty() || !forbidden.is_empty() {
        if source.is_some() {
            *n_refused += missing.len() + forbidden.len();
        }
        match outcome {
            Err(Error::Forbidden(boxes)) => {
                prop_assert_eq!(boxes.into_iter().collect::<HashSet<_>>(), forbidden);
            }
            Err(Error::NoBox(boxes)) if forbidden.is_empty() => {
                prop_assert_eq!(boxes.into_iter().collect::<HashSet<_>>(), missing);
            }
            other => prop_assert!(false, "{other:?}, and not {missing:?}, {forbidden:?}"),
        }
        return Ok(false);
    }
    let packed = outcome.map_err(|error| TestCaseError::fail(format!("{error}")))?;
    for (packed, expected) in packed.iter().zip(expected) {
        check_packed(work, naive, attempt, packed, expected).await?;
    }
    Ok(true)
}

/// Checks what one pack led to, and records it in the naive model.
async fn check_packed(
    work: &mut UnitOfWork,
    naive: &mut Naive,
    attempt: &Attempt,
    packed: &Packed,
    Expected { receiver, cards: inherited, handed }: Expected,
) -> Result<(), TestCaseError> {
    let source = naive.source(attempt);
    let n_asked = usize::from(attempt.instruction);
    let parent = attempt.parent && source.is_some();
    prop_assert_eq!(packed.attached_card_ids.len(), n_asked + usize::from(parent));
    prop_assert_eq!(&packed.query_card_ids[..], &packed.attached_card_ids[..n_asked]);
    let cards = [&packed.attached_card_ids[..n_asked], &inherited, &packed.attached_card_ids[n_asked..]].concat();
    let read = card_box::read(work, Span::whole(packed.context_box_id), None).await.unwrap();
    prop_assert_eq!(crate::card_ids(&read), cards.clone());
    for placed in &read {
        let own = placed.origin.box_id == packed.context_box_id;
        let card_type = match &placed.reading {
            Reading::Live(card) => card.metadata.card_type.clone(),
            Reading::Gone(_) => CardType::instruction(),
        };
        prop_assert!(!own || packed.attached_card_ids.contains(&placed.reading.card_id()), "{card_type}");
    }
    for (box_id, upto) in handed {
        // What an agent hands to itself gives it no right.
        if source != Some(receiver) {
            let known = naive.handed.entry((receiver, box_id)).or_default();
            *known = (*known).max(upto);
        }
    }
    naive.owners.insert(packed.context_box_id, receiver);
    naive.boxes.push((packed.context_box_id, cards));
    Ok(())
}

/// PM-4, PM-12, SE-3: the same cards, in the same order, and the same refusals, each on record. `WAYBILL_CASES=5000` is the long run.
#[test]
fn random_packings_agree_with_a_naive_one() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let t: TestDb = runtime.block_on(fresh_db());
    let config = ProptestConfig { cases: cases(300), failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config)
        .run(&prop::collection::vec(any_step(), 1..16), |program| runtime.block_on(run(&t.kernel, &program)));
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// SE-3: however it is tried, no agent inherits what it has no right to, and every attempt is on record. `WAYBILL_CASES=100000` is the long run.
#[tokio::test]
async fn nobody_inherits_without_a_right() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    apply_profiles(&mut work).await;
    let [victim, thief, accomplice] = agents(&mut work, 3).await.try_into().unwrap();
    let (secret, _) = output(&mut work, victim, 3).await;
    let (mine, _) = output(&mut work, thief, 1).await;
    let profile_box = {
        let rules = Handover::instruction();
        pack_one(&mut work, None, &rules, thief, json!({ "profile_name": "a" })).await.unwrap().target_profile_box_id
    };
    let arguments = json!({ "profile_name": "a", "input_box_ids": secret.to_string() });
    let context = pack_one(&mut work, Some(victim), &Handover::instruction(), victim, arguments).await.unwrap();
    let revoked = grant::give(&mut work, thief, secret, None, "ann", "a mistake").await.unwrap();
    grant::revoke(&mut work, revoked, "ann").await.unwrap();
    grant::give(&mut work, accomplice, secret, None, "ann", "a friend").await.unwrap();
    let (session_id, _) = session(&mut work, 1).await;
    let messages = blackboard::find(&mut work, session_id).await.unwrap().unwrap().messages_box_id;
    work.commit().await.unwrap();
    let mut other = t.kernel.begin(ProjectId::new()).await.unwrap();
    let (foreign, _) = filled_box(&mut other, 1).await;
    other.commit().await.unwrap();

    let n = cases(2_000) as usize;
    let targets = [secret, context.context_box_id, messages, profile_box, foreign, BoxId::new()];
    for attempt in 0..n {
        let wanted = targets[attempt % targets.len()].to_string();
        let boxes = match attempt / targets.len() % 4 {
            0 => json!(wanted),
            1 => json!([mine.to_string(), wanted]),
            2 => json!([wanted, mine.to_string(), wanted]),
            _ => json!([wanted]),
        };
        let mut rules = Handover::instruction();
        rules.context_packing_config.inherit_context.include_parent = attempt % 2 == 0;
        // For itself, for a friend who may, or with another's arguments beside it.
        let receiver = [thief, accomplice, victim][attempt % 3];
        let mut packs =
            vec![Pack::new(receiver, TurnId::new(), object(json!({ "profile_name": "a", "input_box_ids": boxes })))];
        if attempt % 5 == 0 {
            packs.insert(0, Pack::new(thief, TurnId::new(), object(json!({ "profile_name": "a" }))));
        }
        let mut work = t.begin().await;
        let outcome = pack_context(&mut work, Packing::new("theft", Some(thief), &rules), &packs).await;
        assert!(matches!(outcome, Err(Error::Forbidden(_) | Error::NoBox(_))), "attempt {attempt}: {outcome:?}");
        assert!(work.commit().await.is_err());
    }
    assert_eq!(t.count("select count(*) from state.refusals where tool_suffix = 'theft'").await, n as i64);
    assert_eq!(t.count("select count(*) from state.handovers where tool_suffix = 'theft'").await, 0);
}

/// DESIGN §4: a thousand packs are the statements of one.
#[tokio::test]
async fn a_thousand_packs_are_the_statements_of_one() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    apply_profiles(&mut work).await;
    let source = agents(&mut work, 1).await[0];
    let (box_id, _) = output(&mut work, source, 50).await;
    work.commit().await.unwrap();
    let rules = Handover::instruction();
    let rows = "select (select count(*) from cardbox.box_entries) + (select count(*) from state.handovers)
                     + (select count(*) from cardbox.boxes) + (select count(*) from cardbox.cards)";
    let mut written = Vec::new();
    for n in [1, 1_000] {
        let arguments = json!({ "profile_name": "a", "instruction": "go", "input_box_ids": box_id.to_string() });
        let packs: Vec<Pack> =
            (0..n).map(|_| Pack::new(AgentId::new(), TurnId::new(), object(arguments.clone()))).collect();
        let before = t.count(rows).await;
        let mut work = t.begin().await;
        let statements = Statements::default();
        let guard = tracing::subscriber::set_default(statements.clone());
        pack_context(&mut work, Packing::new("fork_join", Some(source), &rules), &packs).await.unwrap();
        drop(guard);
        let asked = statements.take().len();
        work.commit().await.unwrap();
        written.push((asked, (t.count(rows).await - before - 1) / n));
    }
    assert_eq!(written[0].0, written[1].0, "statements");
    assert!(written[0].0 <= 6, "{written:?}");
    // Instruction, history and pointer: a card of its own, three entries, three handovers, a box; the pointer's card is shared.
    assert_eq!(written[1].1, 8, "rows per pack");
}
