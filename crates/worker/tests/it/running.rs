//! WK-1 … WK-7: turns, run from their first step to their last against a scripted model.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use waybill_context::todo::Todo;
use waybill_core::{
    card::Draft,
    id::SessionId,
    turn::{Fence, Limits},
};
use waybill_kernel::{
    blackboard, card,
    turn::{self, Attempts, Loss, Reclaimed},
};
use waybill_lab::model::{Asked, Pace, Reply};

use crate::shop::{ADAPTERS, LEASE, Shop, n_said, thought};

/// WK-1, WK-2, WK-5, CX-8: text without calls is the deliverable, on every provider and however it is cut into pieces; what it used is on
/// record, and the request can be rendered again.
#[tokio::test]
async fn text_is_the_deliverable() {
    for (adapter, chunk) in ADAPTERS.into_iter().zip([0, 7, 3]) {
        let shop = Shop::new(move |asked: &Asked| {
            assert_eq!(n_said(asked, "How long?"), 1);
            assert_eq!(n_said(asked, "You bake bread."), 1);
            let pace = Pace { chunk, pieces: 9, ..Pace::default() };
            Reply::say("Half an hour: 水 é.").with_reasoning("Dough.").with_usage(1_000, 400, 20).paced(pace)
        })
        .await;
        shop.profile(adapter, json!({})).await;
        let hand = shop.hire();
        let turn_id = shop.ask("How long?").await;
        assert_eq!(shop.ended(turn_id).await, ("success".into(), json!("Half an hour: 水 é.")), "{adapter}");
        let output = shop.output(turn_id).await;
        let types: Vec<&str> = output.iter().map(|(card_type, _)| card_type.as_str()).collect();
        assert_eq!(types, ["agent.reasoning", "task.deliverable"], "{adapter}");
        let steps = shop.steps(turn_id).await;
        let step = &steps[0];
        assert_eq!((steps.len(), step.model.as_deref(), step.provider.as_deref()), (1, Some("m"), Some(adapter)));
        assert_eq!((step.input_tokens, step.cached_tokens, step.output_tokens), (Some(1_000), Some(400), Some(20)));
        assert_eq!(step.microdollars, Some(600 * 2 + 200 + 200), "{adapter}");
        assert_eq!((step.n_asked, step.asked_again), (Some(1), Some(false)));
        assert_eq!(shop.verify(turn_id).await, 1);
        assert_eq!(shop.server.n_asked(), 1);
        hand.end().await;
    }
}

/// WK-7: turns that end at the same time end in one transaction. One that was taken from the worker meanwhile does not end with them, and does
/// not keep them from ending.
#[tokio::test]
async fn turns_end_together_and_a_lost_one_alone() {
    const TURNS: usize = 24;
    let pace = Pace { before: Duration::from_secs(2), ..Pace::default() };
    let mut shop = Shop::new(move |_: &Asked| Reply::say("done").paced(pace)).await;
    shop.provider(json!({ "silence_seconds": 20 }));
    shop.profile(ADAPTERS[0], json!({})).await;
    let mut turns = Vec::new();
    for _ in 0..TURNS {
        turns.push(shop.ask("How long?").await);
    }
    let hand = shop.hire();
    while shop.server.n_asked() < TURNS {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut work = shop.t.begin().await;
    let fence: Fence = sqlx::query_as(
        "select project_id, agent_id, active_agent_turn_id as agent_turn_id, turn_epoch, claim_token
           from state.agent_state_head where active_agent_turn_id = $1",
    )
    .bind(turns[TURNS / 2])
    .fetch_one(&mut *work)
    .await
    .unwrap();
    let loss = Loss::Attempt { error: "lost".into(), backoff: Duration::ZERO };
    assert_eq!(turn::reclaim(&mut work, &fence, &loss, Attempts::default()).await.unwrap(), Reclaimed::Armed);
    work.commit().await.unwrap();
    for turn_id in &turns {
        assert_eq!(shop.ended(*turn_id).await, ("success".into(), json!("done")));
        assert_eq!(shop.output(*turn_id).await.len(), 1, "it delivers once");
    }
    assert_eq!(shop.server.n_asked(), TURNS + 1, "the lost one was taken up again");
    // Turns of one transaction have the same time.
    let ends = shop.t.count("select count(distinct finished_at) from state.turns").await;
    assert!(ends < TURNS as i64, "each turn ended alone");
    hand.end().await;
}

/// WK-7: an end that the database refuses fails alone: those that were to be written with it are written, and its turn is tried again.
#[tokio::test]
async fn an_end_that_is_refused_fails_alone() {
    const TURNS: usize = 16;
    let mut shop = Shop::new(|asked: &Asked| {
        let before = if n_said(asked, "How wide?") > 0 { 1_300 } else { 1_000 };
        Reply::say("done").paced(Pace { before: Duration::from_millis(before), ..Pace::default() })
    })
    .await;
    shop.provider(json!({ "silence_seconds": 20 }));
    shop.profile(ADAPTERS[0], json!({})).await;
    let mut turns = Vec::new();
    for _ in 1..TURNS {
        turns.push(shop.ask("How long?").await);
    }
    let poisoned = shop.ask("How wide?").await;
    let hand = shop.hire();
    while shop.server.n_asked() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The first two ends are slow, so that the others wait and are written together. One of these is refused twice: with them, and alone.
    let poison = format!(
        "create sequence public.ends; create sequence public.refused;
         grant usage on sequence public.ends, public.refused to public;
         create function public.poison() returns trigger language plpgsql as $$ begin
           if new.status <> 'open' and new.agent_turn_id = '{poisoned}' then
             if nextval('public.refused') <= 2 then raise check_violation using message = 'poisoned'; end if;
           elsif new.status <> 'open' and nextval('public.ends') <= 2 then
             perform pg_sleep(1);
           end if;
           return new;
         end $$;
         create trigger poison before update on state.turns for each row execute function public.poison();"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(poison)).execute(&mut shop.t.admin().await).await.unwrap();
    for turn_id in turns.iter().chain([&poisoned]) {
        assert_eq!(shop.ended(*turn_id).await, ("success".into(), json!("done")));
        assert_eq!(shop.output(*turn_id).await.len(), 1, "it delivers once");
    }
    // Refused twice in one attempt: so it was in a group, and alone after that. No other turn was tried again.
    assert_eq!(shop.server.n_asked(), TURNS + 1);
    hand.end().await;
}

/// WK-2, WK-3, CX-8, CX-13: a call has its card and leaves with its step; its answer is read in the next one, and what the turn wrote too.
/// What the model thought goes back to it.
#[tokio::test]
async fn calls_leave_and_their_answers_are_read() {
    for adapter in ADAPTERS {
        let shop = Shop::new(|asked: &Asked| {
            assert_eq!(n_said(asked, "Where is flour?"), 1);
            if asked.results().next().is_none() {
                let pace = Pace { chunk: 11, pieces: 5, ..Pace::default() };
                let reply =
                    Reply::call("search", &json!({ "q": "flour é" })).and_call("search", &json!({ "q": "mill" }));
                return Reply { text: "Let me look.".into(), ..reply }.with_reasoning("Two places.").paced(pace);
            }
            let thought = asked.body.to_string().contains("Two places.");
            let results: Vec<&str> = asked.results().map(|said| said.text.as_str()).collect();
            Reply::say(format!("{} thought {thought}", results.join(" and ")))
        })
        .await;
        shop.tool("search", json!({})).await;
        shop.profile(adapter, json!({ "allowed_tools": ["search"] })).await;
        let hand = shop.hire();
        let turn_id = shop.ask("Where is flour?").await;
        let first = shop.answer("success", json!("in the mill"), json!({})).await;
        let second = shop.answer("failed", json!("closed"), json!({})).await;
        assert_eq!(first["arguments"].as_str().unwrap(), r#"{"q":"flour é"}"#);
        assert_eq!(second["arguments"].as_str().unwrap(), r#"{"q":"mill"}"#);
        // Sealed thoughts are only for their provider; the script sees the text where it goes in the open.
        let (status, said) = shop.ended(turn_id).await;
        assert_eq!(status, "success");
        assert_eq!(said, json!("in the mill and failed: closed thought true"), "{adapter}");
        let output = shop.output(turn_id).await;
        let types: Vec<&str> = output.iter().map(|(card_type, _)| card_type.as_str()).collect();
        let expected = [
            "agent.reasoning",
            "agent.thought",
            "tool.call",
            "tool.call",
            "tool.result",
            "tool.result",
            "task.deliverable",
        ];
        assert_eq!(types, expected, "{adapter}");
        assert_eq!(shop.verify(turn_id).await, 2);
        assert_eq!(shop.server.n_asked(), 2);
        hand.end().await;
    }
}

/// WK-3: a call that the profile does not allow is not sent, whatever the model says; the model gets the reason, and continues.
#[tokio::test]
async fn what_is_not_allowed_does_not_leave() {
    let shop = Shop::new(|asked: &Asked| match asked.results().count() {
        0 => Reply::call("secret", &json!({ "q": "x" })).and_call("search", &json!({ "q": 7 })),
        _ => Reply::say(asked.results().map(|said| said.text.clone()).collect::<Vec<_>>().join("|")),
    })
    .await;
    shop.tool("search", json!({})).await;
    shop.tool("secret", json!({})).await;
    shop.profile("openai_chat", json!({ "allowed_tools": ["search"] })).await;
    let _hand = shop.hire();
    let turn_id = shop.ask("Try.").await;
    let (status, said) = shop.ended(turn_id).await;
    assert_eq!(status, "success");
    let said = said.as_str().unwrap();
    assert!(said.contains("you have no tool `secret`") && said.contains("/q"), "{said}");
    assert_eq!(shop.t.count("select count(*) from state.execution_edges where primitive = 'command'").await, 0);
}

/// WK-4: a result is held to the fields that were asked for, ends the turn, and does so once.
#[tokio::test]
async fn a_result_ends_the_turn_once() {
    let shop = Shop::new(|asked: &Asked| match (asked.last(), asked.results().count()) {
        (last, 0) if last.contains("End your work") => Reply::call("submit_result", &json!({ "answer": 1 })),
        (_, 0) => Reply::say("I am done."),
        _ => Reply::call("submit_result", &json!({ "answer": "bread" }))
            .and_call("submit_result", &json!({ "answer": "cake" })),
    })
    .await;
    let more = json!({ "allowed_internal_tools": ["submit_result"], "must_end_with": ["submit_result"] });
    shop.profile("anthropic_messages", more).await;
    let fields = json!([{ "name": "answer", "description": "one word", "type": "string" }]);
    let fields = waybill_core::card::Content::read(&waybill_core::card::CardType::result_fields(), fields).unwrap();
    let fields = Draft::new(waybill_core::card::CardType::result_fields(), waybill_core::card::Role::System, fields);
    let _hand = shop.hire();
    let turn_id = shop.ask_with("What is it?", &[fields.seal().unwrap()], None, None).await;
    assert_eq!(shop.ended(turn_id).await, ("success".into(), json!({ "answer": "bread" })));
    let output = shop.output(turn_id).await;
    let results: Vec<&Value> = output.iter().filter(|(t, _)| t == "tool.result").map(|(_, content)| content).collect();
    assert_eq!(results[0]["status"], "failed", "it was no string");
    assert_eq!((&results[1]["status"], &results[2]["status"]), (&json!("success"), &json!("failed")));
    assert_eq!(output.iter().filter(|(card_type, _)| card_type == "task.deliverable").count(), 1);
    assert_eq!(shop.verify(turn_id).await, 3);
}

/// WK-4: a result is held to its schema, which the model is shown, although the profile does not mention `submit_result`.
#[tokio::test]
async fn a_result_fits_its_schema() {
    let schema = json!({
        "type": "object", "required": ["items"], "additionalProperties": false,
        "properties": { "items": { "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/item" } } },
        "$defs": { "item": { "type": "object", "required": ["name"], "properties": { "name": { "type": "string" } } } },
    });
    let shop = Shop::new(|asked: &Asked| match (asked.last(), asked.results().count()) {
        (last, 0) if last.contains("End your work") => {
            Reply::call("submit_result", &json!({ "items": [{ "name": "bread" }, { "name": 7 }] }))
        }
        (_, 0) => Reply::say("Bread."),
        _ => Reply::call("submit_result", &json!({ "items": [{ "name": "bread" }] })),
    })
    .await;
    shop.profile("openai_chat", json!({})).await;
    let content = waybill_core::card::Content::Json(schema);
    let card = Draft::new(waybill_core::card::CardType::result_schema(), waybill_core::card::Role::System, content);
    let _hand = shop.hire();
    let turn_id = shop.ask_with("What is there?", &[card.seal().unwrap()], None, None).await;
    assert_eq!(shop.ended(turn_id).await, ("success".into(), json!({ "items": [{ "name": "bread" }] })));
    let output = shop.output(turn_id).await;
    let results: Vec<&Value> = output.iter().filter(|(t, _)| t == "tool.result").map(|(_, content)| content).collect();
    assert_eq!((&results[0]["status"], &results[1]["status"]), (&json!("failed"), &json!("success")));
    assert!(results[0]["result"].as_str().unwrap().contains("/items/1/name"), "{}", results[0]);
    assert_eq!(shop.verify(turn_id).await, 3);
}

/// WK-4: a turn that never ends as it must fails.
#[tokio::test]
async fn who_does_not_end_as_it_must_is_given_up() {
    let shop = Shop::new(|_: &Asked| Reply::say("Done!")).await;
    let more = json!({ "allowed_internal_tools": ["submit_result"], "must_end_with": ["submit_result"] });
    shop.profile("openai_chat", more).await;
    let _hand = shop.hire();
    let turn_id = shop.ask("What is it?").await;
    let (status, said) = shop.ended(turn_id).await;
    assert_eq!((status.as_str(), &said["reason"]), ("failed", &json!("did_not_end")));
    assert_eq!(shop.server.n_asked(), 4);
}

/// WK-3: `after_execution` of the tool, and what its result says instead.
#[tokio::test]
async fn what_follows_a_call_is_the_tools_to_say() {
    let asked = |asked: &Asked| match asked.results().count() {
        0 => Reply::call("order", &json!({ "q": "bread" })),
        _ => Reply::say("went on"),
    };
    for (extra, delivered) in
        [(json!({}), json!({ "order": 7 })), (json!({ "after_execution": "suspend" }), json!("went on"))]
    {
        let shop = Shop::new(asked).await;
        shop.tool("order", json!({ "after_execution": "terminate", "effect": "once" })).await;
        shop.profile("openai_responses", json!({ "allowed_tools": ["order"] })).await;
        let _hand = shop.hire();
        let turn_id = shop.ask("Order bread.").await;
        shop.answer("success", json!({ "order": 7 }), extra).await;
        assert_eq!(shop.ended(turn_id).await, ("success".into(), delivered));
    }
}

/// The session's todo list is the model's to change, and it sees it next time.
#[tokio::test]
async fn the_todo_list_is_changed_with_the_step() {
    let shop = Shop::new(|asked: &Asked| match asked.results().count() {
        0 => Reply::call("update_todo", &json!({ "changes": [{ "change": "add", "text": "knead" }] }))
            .and_call("update_todo", &json!({ "changes": [{ "change": "update", "item_id": 9 }] }))
            .and_call("update_todo", &json!({ "changes": [{ "change": "add", "text": "bake" }] })),
        _ => Reply::say(asked.results().map(|said| said.text.clone()).collect::<Vec<_>>().join("|")),
    })
    .await;
    shop.profile("openai_chat", json!({ "allowed_internal_tools": ["update_todo"] })).await;
    let session_id = SessionId::new();
    let mut work = shop.t.begin().await;
    blackboard::open(&mut work, None, &[session_id]).await.unwrap();
    work.commit().await.unwrap();
    let _hand = shop.hire();
    let turn_id = shop.ask_with("Plan.", &[], Some(session_id), None).await;
    let (_, said) = shop.ended(turn_id).await;
    assert!(said.as_str().unwrap().contains("no item 9"), "{said}");
    let mut work = shop.t.begin().await;
    let board = blackboard::find(&mut work, session_id).await.unwrap().unwrap();
    let list = card::fetch(&mut work, &[board.todo_card_id.unwrap()], None).await.unwrap().found.remove(0);
    let list = Todo::read(&list.into_live().unwrap()).unwrap();
    assert_eq!(list.items().iter().map(|item| item.text.as_str()).collect::<Vec<_>>(), ["knead", "bake"]);
    drop(work);
    // Without a session there is none.
    let alone = shop.ask("Plan.").await;
    assert!(shop.ended(alone).await.1.as_str().unwrap().contains("does not belong to a session"));
}

/// L0-17: a call that takes many leases is neither taken from its worker nor repeated.
#[tokio::test]
async fn a_long_call_is_not_reclaimed() {
    let mut shop = Shop::new(|_: &Asked| {
        let between = LEASE * 2;
        Reply::say("slow and steady").paced(Pace { before: LEASE * 4, between, pieces: 9, ..Pace::default() })
    })
    .await
    .hasty();
    shop.provider(json!({ "silence_seconds": 30 }));
    shop.profile("openai_chat", json!({})).await;
    let _hand = shop.hire();
    let begun = Instant::now();
    let turn_id = shop.ask("Think long.").await;
    assert_eq!(shop.ended(turn_id).await.1, json!("slow and steady"));
    assert!(begun.elapsed() > LEASE * 20, "{:?}", begun.elapsed());
    assert_eq!((shop.server.n_asked(), shop.steps(turn_id).await[0].asked_again), (1, Some(false)));
    assert_eq!(shop.t.count("select max(turn_epoch) from state.turns").await, 1);
}

/// WK-6: if a turn is stopped in the middle of a stream, the call is dropped at once and the turn delivers.
#[tokio::test]
async fn a_stop_ends_the_call_it_comes_in() {
    for adapter in ADAPTERS {
        let shop = Shop::new(|_: &Asked| {
            Reply::say("word ".repeat(500)).paced(Pace {
                between: Duration::from_millis(200),
                pieces: 200,
                ..Pace::default()
            })
        })
        .await;
        shop.profile(adapter, json!({})).await;
        let _hand = shop.hire();
        let turn_id = shop.ask("Talk for ever.").await;
        while shop.server.n_asked() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut work = shop.t.begin().await;
        turn::stop(&mut work, turn_id, "enough talk").await.unwrap();
        work.commit().await.unwrap();
        let asked = Instant::now();
        let (status, said) = shop.ended(turn_id).await;
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        assert_eq!((status.as_str(), &said["reason"]), ("canceled", &json!("enough talk")));
        shop.server.until(|entries| entries[0].hung_up).await;
        assert_eq!(shop.server.n_asked(), 1);
    }
}

/// WK-7, L0-17, CX-8: a worker dies while the model answers; another asks again under the same key, which is counted, and no card is doubled.
/// What was answered and written before is not asked for again.
#[tokio::test]
async fn a_turn_is_gone_on_with_from_its_cards() {
    let n = Arc::new(AtomicUsize::new(0));
    let asked_for = n.clone();
    let shop = Shop::new(move |asked: &Asked| {
        assert_eq!(n_said(asked, "Where is flour?"), 1);
        if asked.results().next().is_none() {
            return Reply::call("search", &json!({ "q": "flour" }));
        }
        // The first request for this never gets the end of its answer.
        let slow = asked_for.fetch_add(1, Ordering::SeqCst) == 0;
        let between = if slow { Duration::from_secs(60) } else { Duration::ZERO };
        Reply::say("in the mill").paced(Pace { between, pieces: 3, ..Pace::default() })
    })
    .await
    .hasty();
    shop.tool("search", json!({})).await;
    shop.profile("openai_chat", json!({ "allowed_tools": ["search"] })).await;
    let first = shop.hire();
    let turn_id = shop.ask("Where is flour?").await;
    shop.answer("success", json!("mill"), json!({})).await;
    while n.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    shop.kill(first);
    let killed = Instant::now();
    let _second = shop.hire();
    assert_eq!(shop.ended(turn_id).await, ("success".into(), json!("in the mill")));
    assert!(killed.elapsed() < LEASE * 2 + Duration::from_secs(2), "{:?}", killed.elapsed());
    let ledger = shop.server.ledger();
    let keys: Vec<&str> = ledger.iter().map(|entry| entry.key.as_deref().unwrap()).collect();
    assert_eq!(keys.len(), 3);
    assert_ne!(keys[0], keys[1], "another call has another key");
    assert_eq!(keys[1], keys[2], "the same call has the same key on every worker");
    assert_eq!(shop.server.repeats(), 0, "nothing that was answered was asked for again");
    let again: Vec<Option<bool>> = shop.steps(turn_id).await.iter().map(|step| step.asked_again).collect();
    assert_eq!(again, [Some(false), Some(true)]);
    let output = shop.output(turn_id).await;
    let types: Vec<&str> = output.iter().map(|(card_type, _)| card_type.as_str()).collect();
    assert_eq!(types, ["tool.call", "tool.result", "task.deliverable"]);
    assert_eq!(shop.verify(turn_id).await, 2);
}

/// A worker that is asked to stop completes its step, and gives the turn to another worker at once.
#[tokio::test]
async fn a_worker_leaves_in_good_order() {
    let shop = Shop::new(|asked: &Asked| match asked.results().count() {
        0 => Reply::call("update_todo", &json!({ "changes": [] })).paced(Pace { before: LEASE, ..Pace::default() }),
        _ => Reply::say("done"),
    })
    .await;
    shop.profile("openai_chat", json!({ "allowed_internal_tools": ["update_todo"] })).await;
    let first = shop.hire();
    let turn_id = shop.ask("Go.").await;
    while shop.server.n_asked() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first.end().await;
    assert_eq!(shop.steps(turn_id).await.len(), 1, "its step was written");
    let _second = shop.hire();
    assert_eq!(shop.ended(turn_id).await.1, json!("done"));
    assert_eq!(shop.server.repeats(), 0);
}

/// Limits: a warning before the end, then the end, and no step more.
#[tokio::test]
async fn a_turn_spends_no_more_than_it_may() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let warned = seen.clone();
    let shop = Shop::new(move |asked: &Asked| {
        warned.lock().unwrap().push(n_said(asked, "Bring your work to its end now."));
        Reply::call("update_todo", &json!({ "changes": [{}] })).with_usage(900, 0, 100)
    })
    .await;
    shop.profile("openai_chat", json!({ "allowed_internal_tools": ["update_todo"] })).await;
    let _hand = shop.hire();
    let limited = |limits: Limits| shop.ask_with("Go on for ever.", &[], None, Some(limits));
    let steps = limited(Limits { steps: Some(5), ..Limits::default() }).await;
    let (status, said) = shop.ended(steps).await;
    assert_eq!((status.as_str(), &said["reason"]), ("failed", &json!("limit_reached")));
    assert!(said["message"].as_str().unwrap().contains("steps"));
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [0, 0, 0, 1, 1], "warned once, with two steps left");
    let tokens = limited(Limits { tokens: Some(4_900), ..Limits::default() }).await;
    assert!(shop.ended(tokens).await.1["message"].as_str().unwrap().contains("tokens"));
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()).len(), 5, "one step over, no more");
    let few = limited(Limits { tokens: Some(50), ..Limits::default() }).await;
    assert!(shop.ended(few).await.1["message"].as_str().unwrap().contains("tokens"));
    assert_eq!(seen.lock().unwrap().len(), 0, "what the request alone would spend is not sent");
    let money = limited(Limits { microdollars: Some(5_000), ..Limits::default() }).await;
    assert!(shop.ended(money).await.1["message"].as_str().unwrap().contains("microdollars"));
    assert_eq!(seen.lock().unwrap().len(), 2, "a step is 2,800");
    assert_eq!(shop.t.count("select count(*) from state.budgets").await, 0);
}

/// A money limit cannot work if the price of a model is unknown: the turn ends before it pays, whichever of its models has no price.
#[tokio::test]
async fn a_turn_with_a_limit_of_money_asks_no_model_without_a_price() {
    let shop = Shop::new(|_: &Asked| Reply::say("done").with_usage(900, 0, 100)).await;
    let money = || Some(Limits { microdollars: Some(5_000), ..Limits::default() });
    let llm = |model: &str| json!({ "provider": "openai_chat", "model": model });
    let _hand = shop.hire();
    let priced = json!({ "provider": "openai_chat", "model": "m" });
    for (llm_config, more) in [
        (llm("free"), json!({})),
        (json!({ "provider": "openai_chat", "model": "m", "fallbacks": [llm("free")] }), json!({})),
        (
            priced.clone(),
            json!({ "summariser": "s", "memory": { "compaction": { "at_percent": 60, "keep": 300, "least": 100 } } }),
        ),
    ] {
        let summariser = json!({
            "name": "s", "worker_target": "llm", "system_prompt_template": "Sum up.", "llm_config": llm("free"),
        });
        shop.apply(&[json!({ "profile": summariser })]).await;
        let mut profile = json!({ "llm_config": llm_config });
        profile.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        shop.profile("openai_chat", profile).await;
        let turn_id = shop.ask_with("Go.", &[], None, money()).await;
        let (status, said) = shop.ended(turn_id).await;
        assert_eq!((status.as_str(), &said["reason"]), ("failed", &json!("no_price")), "{said}");
        assert!(said["message"].as_str().unwrap().contains("`free`"), "{said}");
        assert_eq!(shop.server.n_asked(), 0, "nothing was paid");
    }
    // Without the limit no price is needed; and with a price the limit works.
    shop.profile("openai_chat", json!({ "llm_config": llm("free") })).await;
    assert_eq!(shop.ended(shop.ask("Go.").await).await.0, "success");
    shop.profile("openai_chat", json!({ "llm_config": priced })).await;
    let turn_id = shop.ask_with("Go.", &[], None, money()).await;
    assert_eq!(shop.ended(turn_id).await.0, "success");
}

/// What is paid for summaries that are not used is on steps and in the budget, and they are not asked for with every step.
#[tokio::test]
async fn summaries_that_gain_nothing_are_paid_for_and_few() {
    for useless in [String::new(), "and so on and on ".repeat(2_000)] {
        let shop = Shop::new(move |asked: &Asked| {
            if n_said(asked, "You keep the memory of an agent") > 0 {
                return Reply::say(useless.clone()).with_usage(700, 0, 30);
            }
            let page = asked.messages.iter().filter_map(|said| said.text.strip_prefix("Page ")).next_back();
            let n = page.and_then(|page| page.split(' ').next()?.parse::<usize>().ok()).unwrap_or_default();
            if n == 20 {
                return Reply::say("done").with_usage(500, 0, 20);
            }
            let reply = Reply::call("update_todo", &json!({ "changes": [{}] })).with_usage(500, 0, 20);
            Reply { text: format!("Page {} {}", n + 1, "is about flour. ".repeat(15)), ..reply }
        })
        .await;
        let memory = json!({ "order": "cache_first", "budget": 4_000, "n_pinned": 0,
            "compaction": { "at_percent": 30, "keep": 300, "least": 100 } });
        shop.profile("openai_chat", json!({ "allowed_internal_tools": ["update_todo"], "memory": memory })).await;
        let _hand = shop.hire();
        let limits = Limits { tokens: Some(100_000), ..Limits::default() };
        let turn_id = shop.ask_with("Write twenty pages.", &[], None, Some(limits)).await;
        let (status, said) = shop.ended(turn_id).await;
        assert_eq!(status, "success", "{said}");
        let summaries = shop.server.ledger().iter().filter(|entry| entry.n_tokens == 730).count();
        assert!((2..=5).contains(&summaries), "{summaries} summaries of {} calls", shop.server.n_asked());
        let steps = shop.steps(turn_id).await;
        let on_steps: i32 = steps.iter().map(|step| step.input_tokens.unwrap() + step.output_tokens.unwrap()).sum();
        let paid: u64 = shop.server.ledger().iter().map(|entry| entry.n_tokens).sum();
        assert_eq!(u64::try_from(on_steps).unwrap(), paid);
        assert_eq!(steps.len(), shop.server.n_asked(), "each call is a step");
    }
}

/// A turn whose time is over ends in the middle of its call, and says so.
#[tokio::test]
async fn a_turn_takes_no_longer_than_it_may() {
    let shop = Shop::new(|_: &Asked| {
        Reply::say("slow ".repeat(100)).paced(Pace {
            between: Duration::from_millis(300),
            pieces: 100,
            ..Pace::default()
        })
    })
    .await;
    shop.profile("openai_chat", json!({})).await;
    let _hand = shop.hire();
    let turn_id = shop.ask_with("Go.", &[], None, Some(Limits { seconds: Some(1), ..Limits::default() })).await;
    let begun = Instant::now();
    assert_eq!(shop.ended(turn_id).await.0, "timeout");
    assert!(begun.elapsed() < Duration::from_secs(3));
}

/// CX-10, CX-11, NX-1: a turn that was crashed, resumed and compacted by the model itself: each of its calls renders again to the same bytes.
#[tokio::test]
async fn every_call_of_a_troubled_turn_can_be_had_again() {
    let hung = Arc::new(AtomicUsize::new(0));
    let hangs = hung.clone();
    let shop = Shop::new(move |asked: &Asked| {
        if n_said(asked, "You keep the memory of an agent") > 0 {
            return Reply::say("They talked about flour.");
        }
        let n = asked.messages.iter().filter(|said| !said.calls.is_empty()).count();
        if asked.results().count() + n == 0 && hangs.fetch_add(1, Ordering::SeqCst) == 0 {
            return Reply::say("never").paced(Pace { between: Duration::from_secs(60), ..Pace::default() });
        }
        match asked.last().contains("round 5") {
            true => Reply::say("done"),
            false => {
                let reply = Reply::call("search", &json!({ "q": "flour" }));
                Reply { text: "Let me look. ".repeat(60), ..reply }
            }
        }
    })
    .await
    .hasty();
    shop.tool("search", json!({})).await;
    let memory = json!({ "order": "cache_first", "budget": 2_500, "n_pinned": 0,
        "compaction": { "at_percent": 60, "keep": 300, "least": 100 } });
    shop.profile("openai_chat", json!({ "allowed_tools": ["search"], "memory": memory })).await;
    let history: Vec<_> = (0..8).map(|n| thought(&format!("{n} {}", "and so on ".repeat(40)))).collect();
    let first = shop.hire();
    let turn_id = shop.ask_with("Where is flour?", &history, None, None).await;
    while hung.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    shop.kill(first);
    let _second = shop.hire();
    for round in 1..=5 {
        shop.answer("success", json!(format!("round {round} {}", "of bread ".repeat(80))), json!({})).await;
    }
    assert_eq!(shop.ended(turn_id).await, ("success".into(), json!("done")));
    let output = shop.output(turn_id).await;
    let summaries = output.iter().filter(|(card_type, _)| card_type == "context.compression").count();
    assert!(summaries >= 1, "{output:?}");
    assert_eq!(shop.verify(turn_id).await, 6);
    assert!(shop.steps(turn_id).await.iter().any(|step| step.asked_again == Some(true)));
}

/// `provider: demo` follows the script in its profile.
#[tokio::test]
async fn a_newcomer_needs_no_key() {
    let shop = Shop::new(|_: &Asked| Reply::say("never asked")).await;
    shop.tool("search", json!({})).await;
    let script =
        json!([{ "say": "Looking.", "call": { "search": { "q": "{{query}}" } } }, { "say": "I found {{result}}." }]);
    let llm = json!({ "provider": "demo", "model": "demo", "params": { "script": script } });
    shop.profile("demo", json!({ "allowed_tools": ["search"], "llm_config": llm })).await;
    let _hand = shop.hire();
    let turn_id = shop.ask("flour").await;
    assert_eq!(shop.answer("success", json!("a mill"), json!({})).await["arguments"], r#"{"q":"flour"}"#);
    assert_eq!(shop.ended(turn_id).await.1, json!("I found a mill."));
    assert_eq!((shop.server.n_asked(), shop.verify(turn_id).await), (0, 2));
}

/// WK-5: Anthropic is asked to explain cache misses, and the explanation is kept with the step. No model sees that: the request renders again
/// without it.
#[tokio::test]
async fn why_the_cache_was_missed_is_kept() {
    let mut shop = Shop::new(|asked: &Asked| {
        let previous = &asked.body["diagnostics"]["previous_message_id"];
        let is_first = asked.results().next().is_none();
        assert_eq!(previous.as_str().is_some_and(|id| id.starts_with("msg_")), !is_first, "{previous}");
        let reason = json!({ "type": "tools_changed", "cache_missed_input_tokens": 1_200 });
        let reply = if is_first { Reply::call("list_artifacts", &json!({})) } else { Reply::say("done") };
        Reply { cache_miss: Some(reason), ..reply }
    })
    .await;
    shop.provider(json!({ "cache_diagnostics": true }));
    shop.profile("anthropic_messages", json!({ "allowed_internal_tools": ["list_artifacts"] })).await;
    let hand = shop.hire();
    let turn_id = shop.ask("begin").await;
    assert_eq!(shop.ended(turn_id).await.0, "success");
    let steps = shop.steps(turn_id).await;
    assert_eq!((steps.len(), &steps[0].cache_miss), (2, &None), "there was none before");
    assert_eq!(steps[1].cache_miss.as_ref().unwrap()["type"], "tools_changed");
    assert_eq!(shop.verify(turn_id).await, 2);
    hand.end().await;
}

/// PM-1: an agent reads the project's plans, where its profile says so.
#[tokio::test]
async fn an_agent_reads_a_plan() {
    let (shop, calls) = Shop::scripted().await;
    let plan = |text: &str| json!({ "plan": { "name": "launch", "document": text } });
    shop.apply(&[plan("first this")]).await;
    shop.apply(&[plan("then that")]).await;
    *calls.lock().unwrap() = vec![
        ("read_plan", json!({})),
        ("read_plan", json!({ "name": "launch" })),
        ("read_plan", json!({ "name": "launch", "version": 1 })),
        ("read_plan", json!({ "name": "other" })),
    ];
    shop.profile("openai_chat", json!({ "allowed_internal_tools": ["read_plan"] })).await;
    let hand = shop.hire();
    let turn_id = shop.ask("begin").await;
    assert_eq!(shop.ended(turn_id).await.0, "success");
    let output = shop.output(turn_id).await;
    let results: Vec<String> = output
        .iter()
        .filter(|(card_type, _)| card_type == "tool.result")
        .map(|(_, content)| content.to_string())
        .collect();
    assert!(results[0].contains("launch (version 2)"), "{results:?}");
    assert!(results[1].contains("then that") && results[2].contains("first this"), "{results:?}");
    assert!(results[3].contains("failed") && results[3].contains("other"), "{results:?}");
    hand.end().await;
}

/// WK-3: a model sees to which agents it may hand work, and what each is for: those that its profile names, and those with one of its tags.
#[tokio::test]
async fn a_model_is_told_whom_it_may_delegate_to() {
    let shop = Shop::new(|asked: &Asked| {
        let tools = asked.body["tools"].to_string();
        assert!(tools.contains("You may hand work to:\\n- b: Bakes bread.\\n- c"), "{tools}");
        assert!(!tools.contains("- d"), "{tools}");
        Reply::say("done")
    })
    .await;
    let other = |name: &str, description: &str, tags: Value| {
        json!({ "profile": {
            "name": name, "description": description, "tags": tags, "worker_target": "llm", "system_prompt_template": "You bake.",
            "llm_config": { "provider": "openai_chat", "model": "m" },
        } })
    };
    let others =
        [other("b", " Bakes\n bread. ", json!([])), other("c", "", json!(["cook"])), other("d", "No.", json!(["cat"]))];
    shop.apply(&others).await;
    let policy = json!({ "target_profiles": ["b", "missing"], "target_tags": ["cook", "waiter"] });
    shop.profile("openai_chat", json!({ "allowed_internal_tools": ["delegate_async"], "delegation_policy": policy }))
        .await;
    let hand = shop.hire();
    let turn_id = shop.ask("begin").await;
    assert_eq!(shop.ended(turn_id).await.0, "success");
    hand.end().await;
}
