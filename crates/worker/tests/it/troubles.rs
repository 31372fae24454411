//! Faults of providers, and how turns handle them.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use waybill_lab::model::{Asked, Fault, Reply};

use crate::shop::{ADAPTERS, Shop};

/// The first two answers have this fault, the third has none.
async fn after_two(adapter: &str, fault: Fault) -> (String, serde_json::Value, Vec<Option<i16>>, BTreeSet<String>) {
    let n = Arc::new(AtomicUsize::new(0));
    let shop = Shop::new(move |_: &Asked| {
        let reply = Reply::say("bread at last");
        if n.fetch_add(1, Ordering::SeqCst) < 2 { reply.with_fault(fault.clone()) } else { reply }
    })
    .await;
    shop.profile(adapter, json!({})).await;
    let _hand = shop.hire();
    let turn_id = shop.ask("Bread?").await;
    let (status, said) = shop.ended(turn_id).await;
    let asked = shop.steps(turn_id).await.iter().map(|step| step.n_asked).collect();
    let keys = shop.server.ledger().into_iter().filter_map(|entry| entry.key).collect();
    (status, said, asked, keys)
}

/// Errors before and inside the stream, cut and silent connections, garbage: asked again under the same key, and nothing of it is left.
#[tokio::test]
async fn what_passes_is_waited_out() {
    let status = |code, retry_after| Fault::Status { code, retry_after, message: "try later".into() };
    let faults = [
        status(429, Some(1)),
        status(500, None),
        status(529, None),
        Fault::ErrorInStream { after_events: 2, message: "overloaded".into() },
        Fault::CutOff { after_events: 3 },
        Fault::HalfOpen { after_events: 2 },
        Fault::NotJson { after_events: 1 },
    ];
    let runs = faults.iter().enumerate().map(|(n, fault)| after_two(ADAPTERS[n % 3], fault.clone()));
    for ((status, said, asked, keys), fault) in futures::future::join_all(runs).await.into_iter().zip(&faults) {
        assert_eq!((status.as_str(), &said), ("success", &json!("bread at last")), "{fault:?}");
        assert_eq!(asked, [Some(3)], "{fault:?}");
        assert_eq!(keys.len(), 1, "{fault:?}");
    }
}

/// A permanent error is not retried: the turn ends, and says why.
#[tokio::test]
async fn what_does_not_pass_ends_the_turn() {
    for (adapter, code) in ADAPTERS.into_iter().zip([401, 400, 404]) {
        let shop = Shop::new(move |_: &Asked| {
            Reply::say("").with_fault(Fault::Status { code, retry_after: None, message: "no such thing".into() })
        })
        .await;
        shop.profile(adapter, json!({})).await;
        let _hand = shop.hire();
        let (status, said) = shop.ended(shop.ask("Bread?").await).await;
        assert_eq!((status.as_str(), &said["reason"]), ("failed", &json!("model_refused")));
        let message = said["message"].as_str().unwrap();
        assert!(message.contains(&code.to_string()) && message.contains("no such thing"), "{message}");
        assert_eq!(shop.server.n_asked(), 1);
    }
    let shop = Shop::new(|_: &Asked| Reply::say("")).await;
    shop.profile("nobody", json!({})).await;
    let _hand = shop.hire();
    let (status, said) = shop.ended(shop.ask("Bread?").await).await;
    assert_eq!(status, "failed");
    assert!(said["message"].as_str().unwrap().contains("no provider `nobody`"), "{said}");
}

/// Another model stands in, of another provider and format; the receipt is of the one that answered.
#[tokio::test]
async fn another_model_stands_in() {
    let shop = Shop::new(|asked: &Asked| match asked.model.as_str() {
        "m" => Reply::say("").with_fault(Fault::Status { code: 404, retry_after: None, message: "gone".into() }),
        _ => Reply::say("from the other"),
    })
    .await;
    let llm = json!({ "provider": "openai_chat", "model": "m",
        "fallbacks": [{ "provider": "anthropic_messages", "model": "other", "params": { "max_tokens": 100 } }] });
    shop.profile("openai_chat", json!({ "llm_config": llm })).await;
    let _hand = shop.hire();
    let turn_id = shop.ask("Bread?").await;
    assert_eq!(shop.ended(turn_id).await.1, json!("from the other"));
    let steps = shop.steps(turn_id).await;
    let used = (steps[0].provider.as_deref(), steps[0].model.as_deref());
    assert_eq!(used, (Some("anthropic_messages"), Some("other")));
    assert_eq!(shop.verify(turn_id).await, 1);
}

/// If no model answers, there are several attempts, each after a longer pause; then the turn ends with a deliverable.
#[tokio::test]
async fn a_turn_that_nobody_answers_is_given_up() {
    let mut shop = Shop::new(|_: &Asked| {
        Reply::say("").with_fault(Fault::Status { code: 503, retry_after: Some(0), message: "down".into() })
    })
    .await;
    shop.provider(json!({ "max_attempts": 2 }));
    shop.profile("openai_chat", json!({})).await;
    let _hand = shop.hire();
    let (status, said) = shop.ended(shop.ask("Bread?").await).await;
    assert_eq!(status, "failed");
    assert!(said["reason"].as_str().unwrap().contains("503"), "{said}");
    assert_eq!(shop.server.n_asked(), 6, "twice in each of three attempts");
}

/// So many at once and no more.
#[tokio::test]
async fn a_provider_is_asked_by_so_many_at_once() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (inside, peak) = (now.clone(), most.clone());
    let mut shop = Shop::new(move |_: &Asked| {
        peak.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Reply::say("ok").paced(waybill_lab::model::Pace { before: Duration::from_millis(50), ..Default::default() })
    })
    .await;
    shop.server.on_answered(move |_| {
        now.fetch_sub(1, Ordering::SeqCst);
    });
    shop.provider(json!({ "most_at_once": 2 }));
    shop.profile("openai_chat", json!({})).await;
    let _hand = shop.hire();
    let mut turns = Vec::new();
    for _ in 0..12 {
        turns.push(shop.ask("Bread?").await);
    }
    for turn_id in turns {
        shop.ended(turn_id).await;
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

/// SE-4: a hundred keys, in profiles and headers, sent to a server that echoes all of them in errors and in text: none is in the database.
#[tokio::test]
async fn keys_stay_where_they_are() {
    let said = Arc::new(Mutex::new(BTreeSet::new()));
    let heard = said.clone();
    let mut shop = Shop::new(move |asked: &Asked| {
        let canaries: Vec<String> =
            asked.headers.iter().map(|(_, value)| value.clone()).filter(|value| value.contains("canary")).collect();
        heard.lock().unwrap().extend(canaries.iter().map(|value| value.replace("Bearer ", "")));
        let echo = canaries.join(" ");
        match asked.n % 4 {
            0 => Reply::say("").with_fault(Fault::Status {
                code: 401,
                retry_after: None,
                message: format!("bad key {echo}"),
            }),
            1 => Reply::say("").with_fault(Fault::ErrorInStream { after_events: 1, message: echo }),
            2 => Reply::call(&format!("t_{}", asked.n), &json!({ "key": echo })),
            _ => Reply::say(format!("you sent {echo}")).with_reasoning(echo),
        }
    })
    .await;
    let secret = |n: usize| (format!("WAYBILL_SECRET_S{n}"), format!("canary-{n:03}-{}", "x".repeat(20)));
    shop.secrets((0..100).map(secret));
    let headers = |from: usize| -> serde_json::Map<String, serde_json::Value> {
        (from..from + 8).map(|n| (format!("x-{n}"), json!({ "secret": format!("s{n}") }))).collect()
    };
    let mut turns = Vec::new();
    for round in 0..11 {
        let key = format!("s{}", round * 9 + 8);
        shop.provider(json!({ "headers": headers(round * 9), "max_attempts": 1, "secrets": [key] }));
        let hand = shop.hire();
        let llm = json!({ "provider": ADAPTERS[round % 3], "model": "m", "api_key": { "secret": key } });
        shop.profile("", json!({ "llm_config": llm })).await;
        for _ in 0..4 {
            let turn_id = shop.ask("Echo.").await;
            turns.push(shop.ended(turn_id).await);
        }
        hand.end().await;
    }
    // SE-4: a profile does not send a secret of the operator's that is for something else.
    let hand = shop.hire();
    let llm = json!({ "provider": ADAPTERS[0], "model": "m", "api_key": { "secret": "s99" } });
    shop.profile("", json!({ "llm_config": llm })).await;
    let turn_id = shop.ask("Echo.").await;
    let (status, why) = shop.ended(turn_id).await;
    assert!(
        status == "failed" && why.to_string().contains("the project may not use the secret `s99`"),
        "{status} {why}"
    );
    hand.end().await;
    assert!(said.lock().unwrap().iter().all(|said| !said.contains("canary-099")));
    let said = said.lock().unwrap().len();
    assert!(said >= 99, "the keys were really sent: {said}");
    assert!(turns.iter().any(|(_, said)| said.to_string().contains("[secret]")), "and really echoed");
    let mut admin = shop.t.admin().await;
    let tables: Vec<String> = sqlx::query_scalar(
        "select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
          where n.nspname in ('cardbox', 'resource', 'state') and c.relkind in ('r', 'p')",
    )
    .fetch_all(&mut admin)
    .await
    .unwrap();
    for table in tables {
        let sql = format!("select count(*) from {table} t where t::text like '%canary%'");
        let found: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut admin).await.unwrap();
        assert_eq!(found, 0, "{table}");
    }
}
