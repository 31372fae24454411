//! CB-1 … CB-6, CB-10, CB-11: cards.

use chrono::{TimeDelta, Utc};
use serde_json::json;
use waybill_core::{
    card::{CallContent, CardType, Content, Draft, Field, Gone, Reading, ResultContent, Role, ToolCall},
    id::{CardId, StepId, ToolCallId, TraceId},
};
use waybill_kernel::card;
use waybill_testkit::fresh_db;

use crate::{ids, instructions, is_live};

fn one_of_each_type() -> Vec<Draft> {
    let arguments = r#"{"q": "café", "n": 1.50}"#.to_owned();
    let mut call = Draft::new(
        CardType::tool_call(),
        Role::Assistant,
        Content::ToolCall(CallContent {
            tool_name: "search".into(),
            arguments: arguments.clone(),
            extra: Default::default(),
        }),
    );
    let tool_call_id = ToolCallId::new();
    call.tool_calls.push(ToolCall {
        tool_call_id,
        tool_name: "search".into(),
        arguments,
        provider_call_id: Some("call_0".into()),
    });
    let mut result = Draft::new(
        CardType::tool_result(),
        Role::Tool,
        Content::ToolResult(ResultContent {
            status: "success".into(),
            result: json!([1, 2.5]),
            extra: Default::default(),
        }),
    );
    result.tool_call_id = Some(tool_call_id);
    let field = Field { name: "answer".into(), description: "one line".into(), extra: Default::default() };
    let json = |card_type, role, value| Draft::new(card_type, role, Content::Json(value));
    let handoff = json!({"package": {"version": "2.0", "x": [1.5]}, "artifacts": {}});
    let handoff = Content::read(&CardType::handoff_package(), handoff).unwrap();
    vec![
        Draft::instruction("Summarise the report. 请总结这份报告 \0 ␛"),
        Draft::new(CardType::thought(), Role::Assistant, Content::Text("First the headings.".into())),
        call,
        result,
        json(CardType::deliverable(), Role::Assistant, json!({"summary": "short", "output": "long"})),
        json(CardType::parent_pointer(), Role::System, json!({"parent_agent_id": "a-1"})),
        Draft::new(CardType::result_fields(), Role::System, Content::Fields(vec![field])),
        json(CardType::compression(), Role::System, json!({"summary": "…"})),
        json(CardType::todo(), Role::System, json!([{"do": "this"}])),
        Draft::new(CardType::handoff_package(), Role::User, handoff),
        json("acme.weather".parse().unwrap(), Role::User, json!({"t": 21})),
    ]
}

/// CB-1, CB-2, CB-5, CB-6
#[tokio::test]
async fn every_type_of_card_comes_back_as_it_was_written() {
    let t = fresh_db().await;
    let mut drafts = one_of_each_type();
    drafts[0].metadata.author_id = Some("user-1".into());
    drafts[0].metadata.trace_id = Some(TraceId::from_bytes([7; 16]));
    drafts[0].metadata.step_id = Some(StepId::new());
    drafts[0].metadata.extra.insert("mood".into(), json!("calm"));
    let cards: Vec<_> = drafts.iter().map(|draft| draft.clone().seal().unwrap()).collect();
    let mut work = t.begin().await;
    card::insert(&mut work, &cards).await.unwrap();
    let batch = card::fetch(&mut work, &ids(&cards), None).await.unwrap();
    work.commit().await.unwrap();

    assert_eq!(batch.found.len(), drafts.len());
    for (reading, (draft, sealed)) in batch.found.iter().zip(drafts.iter().zip(&cards)) {
        let Reading::Live(card) = reading else { panic!("{reading:?}") };
        assert_eq!(card.content, draft.content);
        assert_eq!(card.metadata, draft.metadata);
        assert_eq!(card.tool_calls, draft.tool_calls);
        assert_eq!(card.tool_call_id, draft.tool_call_id);
        assert_eq!((card.hash, card.n_tokens), (sealed.hash(), sealed.n_tokens()));
        assert!(card.verifies());
    }
}

/// CB-2: what a reader gets has the names of the specification, and `metadata` is never `meta`.
#[tokio::test]
async fn a_card_on_the_wire_has_the_fields_of_the_specification() {
    let t = fresh_db().await;
    let mut draft = Draft::instruction("x");
    draft.ttl_seconds = Some(60);
    let card = draft.seal().unwrap();
    let mut work = t.begin().await;
    card::insert(&mut work, std::slice::from_ref(&card)).await.unwrap();
    let batch = card::fetch(&mut work, &[card.card_id()], None).await.unwrap();
    let wire = serde_json::to_value(&batch.found[0]).unwrap();
    let mut keys: Vec<&str> = wire.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "card_id",
            "content",
            "created_at",
            "expires_at",
            "hash",
            "metadata",
            "n_tokens",
            "origin",
            "salt",
            "state",
            "ttl_seconds"
        ]
    );
    assert_eq!(wire["metadata"], json!({"type": "task.instruction", "role": "user"}));
}

/// CB-3, CB-4: a replay carries the same id and changes nothing.
#[tokio::test]
async fn writing_a_card_again_changes_nothing() {
    let t = fresh_db().await;
    let cards = instructions(3);
    let mut work = t.begin().await;
    card::insert(&mut work, &cards).await.unwrap();
    let before = card::fetch(&mut work, &ids(&cards), None).await.unwrap().found;
    card::insert(&mut work, &cards).await.unwrap();
    card::insert(&mut work, &[cards.clone(), instructions(1)].concat()).await.unwrap();
    // A client that lost the answer sends its card again, and it is sealed again, with another salt.
    let mut again = Draft::instruction("instruction 0");
    again.card_id = cards[0].card_id();
    let again = again.seal().unwrap();
    assert_ne!(again.hash(), cards[0].hash());
    card::insert(&mut work, std::slice::from_ref(&again)).await.unwrap();
    assert_eq!(card::fetch(&mut work, &ids(&cards), None).await.unwrap().found, before);
}

/// CB-3
#[tokio::test]
async fn the_same_id_with_other_content_is_a_conflict() {
    let t = fresh_db().await;
    let first = Draft::instruction("one");
    let mut second = Draft::instruction("two");
    second.card_id = first.card_id;
    let mut work = t.begin().await;
    card::insert(&mut work, &[first.clone().seal().unwrap()]).await.unwrap();
    let outcome = card::insert(&mut work, &[second.seal().unwrap()]).await;
    assert!(matches!(outcome, Err(card::Error::Conflict(id)) if id == first.card_id), "{outcome:?}");
}

/// CB-3: of eight writers of one id, one wins; the others learn that theirs is another card.
#[tokio::test]
async fn racing_writers_of_one_id_agree_on_one_card() {
    let t = fresh_db().await;
    let card_id = CardId::new();
    let writers = (0..8).map(async |i| {
        let mut draft = Draft::instruction(&format!("writer {}", i % 2));
        draft.card_id = card_id;
        let mut work = t.begin().await;
        card::insert(&mut work, &[draft.seal().unwrap()]).await?;
        work.commit().await.unwrap();
        Ok::<_, card::Error>(i % 2)
    });
    let outcomes = futures::future::join_all(writers).await;
    let winners: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
    assert_eq!(winners.len(), 4, "{outcomes:?}");
    assert!(winners.windows(2).all(|pair| pair[0] == pair[1]), "{outcomes:?}");
}

/// CB-3: no matter which role asks. The service lacks the privilege; the owner and the administrator meet the trigger.
#[tokio::test]
async fn the_database_refuses_to_change_or_remove_a_card() {
    let t = fresh_db().await;
    let cards = instructions(1);
    let mut work = t.begin().await;
    card::insert(&mut work, &cards).await.unwrap();
    work.commit().await.unwrap();

    let attempts = [
        "update cardbox.cards set content = '\"other\"'",
        "update cardbox.cards set content = null, erased_at = now(), erased_reason = 'x'",
        "update cardbox.cards set hash = decode(repeat('00', 32), 'hex')",
        "update cardbox.cards set salt = null",
        "update cardbox.cards set salt = decode(repeat('00', 16), 'hex')",
        "update cardbox.cards set role = 'system'",
        "update cardbox.cards set n_tokens = 1",
        "update cardbox.cards set created_at = now()",
        "update cardbox.cards set tool_calls = '[]'",
        "update cardbox.cards set metadata = '{}'",
        "delete from cardbox.cards",
        "truncate cardbox.cards",
    ];
    let set = format!("set waybill.project = '{}'", t.project_id);
    for (who, code) in [("service", "42501"), ("owner", "WB010"), ("admin", "WB010")] {
        for attempt in attempts {
            let outcome = match who {
                "service" => sqlx::query(attempt).execute(&mut *t.begin().await).await,
                _ => {
                    let mut connection = if who == "owner" { t.owner().await } else { t.admin().await };
                    sqlx::query(sqlx::AssertSqlSafe(set.clone())).execute(&mut connection).await.unwrap();
                    sqlx::query(attempt).execute(&mut connection).await
                }
            };
            let error = outcome.expect_err(attempt);
            assert_eq!(error.as_database_error().unwrap().code().unwrap(), code, "{who}: {attempt}: {error}");
        }
    }
    let mut work = t.begin().await;
    let found = card::fetch(&mut work, &ids(&cards), None).await.unwrap().found;
    assert!(matches!(&found[0], Reading::Live(card) if card.verifies()));
}

/// CB-5: if an administrator gets round the triggers all the same, the hash shows it.
#[tokio::test]
async fn a_tampered_card_does_not_verify() {
    let t = fresh_db().await;
    let cards = instructions(1);
    let mut work = t.begin().await;
    card::insert(&mut work, &cards).await.unwrap();
    work.commit().await.unwrap();
    let mut admin = t.admin().await;
    sqlx::query("alter table cardbox.cards disable trigger user").execute(&mut admin).await.unwrap();
    sqlx::query("update cardbox.cards set content = '\"other\"'").execute(&mut admin).await.unwrap();
    let found = card::fetch(&mut t.begin().await, &ids(&cards), None).await.unwrap().found;
    assert!(matches!(&found[0], Reading::Live(card) if !card.verifies()));
}

/// CB-6: `sys.*` cards exist once per project and content, and only so.
#[tokio::test]
async fn system_cards_exist_once_per_project_and_content() {
    let t = fresh_db().await;
    let prompt = || {
        let content = Content::Text("You are …".into());
        Draft::new(CardType::rendered_prompt(), Role::System, content).seal().unwrap()
    };
    let mut work = t.begin().await;
    let refused = card::insert(&mut work, &[prompt()]).await;
    assert!(matches!(refused, Err(card::Error::Shared(..))), "{refused:?}");
    let (first, second) = (prompt(), prompt());
    assert_eq!(card::intern(&mut work, std::slice::from_ref(&first)).await.unwrap(), [first.card_id()]);
    assert_eq!(card::intern(&mut work, &[second.clone(), first.clone()]).await.unwrap(), [first.card_id(); 2]);
    work.commit().await.unwrap();

    let mut elsewhere = t.kernel.begin(waybill_core::id::ProjectId::new()).await.unwrap();
    assert_eq!(card::intern(&mut elsewhere, std::slice::from_ref(&second)).await.unwrap(), [second.card_id()]);

    // A deleted one no longer counts: the same content is a new card.
    let mut work = t.begin().await;
    card::delete(&mut work, &[first.card_id()], "outdated").await.unwrap();
    let third = prompt();
    assert_eq!(card::intern(&mut work, std::slice::from_ref(&third)).await.unwrap(), [third.card_id()]);
    card::delete(&mut work, &[third.card_id()], "outdated too").await.unwrap();
    let replayed = card::intern(&mut work, &[third]).await;
    assert!(matches!(replayed, Err(card::Error::Ended(_))), "{replayed:?}");
}

/// Nothing that was refused is half written: what came before it cannot be committed either.
#[tokio::test]
async fn a_refusal_keeps_the_unit_of_work_from_being_committed() {
    let t = fresh_db().await;
    let cards = instructions(1);
    let mut work = t.begin().await;
    card::insert(&mut work, &cards).await.unwrap();
    work.commit().await.unwrap();

    let mut work = t.begin().await;
    let outcome = card::delete(&mut work, &[cards[0].card_id(), CardId::new()], "half").await;
    assert!(matches!(outcome, Err(card::Error::NotFound(_))), "{outcome:?}");
    assert!(matches!(work.commit().await, Err(waybill_kernel::work::Error::Refused)));

    // PostgreSQL itself would answer this commit with a quiet rollback.
    let mut work = t.begin().await;
    let more = instructions(1);
    card::insert(&mut work, &more).await.unwrap();
    assert!(sqlx::query("select 1 / 0").execute(&mut *work).await.is_err());
    assert!(matches!(work.commit().await, Err(waybill_kernel::work::Error::Db(_))));

    let mut work = t.begin().await;
    assert!(is_live(&card::fetch(&mut work, &ids(&cards), None).await.unwrap().found[0]));
    assert_eq!(card::fetch(&mut work, &ids(&more), None).await.unwrap().missing, ids(&more));
}

/// A value as deep as may be stored can be read back, also inside a result; a deeper one is refused.
#[tokio::test]
async fn what_is_stored_can_be_read_back_however_deep() {
    let t = fresh_db().await;
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let result = |levels| {
        let content = ResultContent { status: "success".into(), result: nested(levels), extra: Default::default() };
        let mut draft = Draft::new(CardType::tool_result(), Role::Tool, Content::ToolResult(content));
        draft.tool_call_id = Some(ToolCallId::new());
        draft.seal()
    };
    let deepest = result(waybill_core::json::MAX_DEPTH - 1).unwrap();
    let mut work = t.begin().await;
    card::insert(&mut work, std::slice::from_ref(&deepest)).await.unwrap();
    let found = card::fetch(&mut work, &[deepest.card_id()], None).await.unwrap().found;
    assert!(matches!(&found[0], Reading::Live(card) if card.verifies()));
    assert!(result(waybill_core::json::MAX_DEPTH).unwrap_err().to_string().contains("nested more than"));
}

/// CB-6: eight writers of one prompt get one id.
#[tokio::test]
async fn racing_writers_of_one_content_get_one_id() {
    let t = fresh_db().await;
    let writers = (0..8).map(async |_| {
        let draft = Draft::new(CardType::tools(), Role::System, Content::Json(json!({"tools": []})));
        let mut work = t.begin().await;
        let ids = card::intern(&mut work, &[draft.seal().unwrap()]).await.unwrap();
        work.commit().await.unwrap();
        ids[0]
    });
    let ids = futures::future::join_all(writers).await;
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{ids:?}");
}

/// CB-10
#[tokio::test]
async fn a_batch_read_keeps_the_order_drops_repeats_and_names_what_is_missing() {
    let t = fresh_db().await;
    let cards = instructions(3);
    let [a, b, c] = ids(&cards)[..] else { unreachable!() };
    let unknown = CardId::new();
    let mut work = t.begin().await;
    card::insert(&mut work, &cards).await.unwrap();
    let batch = card::fetch(&mut work, &[c, unknown, a, c, b, unknown], None).await.unwrap();
    assert_eq!(batch.found.iter().map(Reading::card_id).collect::<Vec<_>>(), [c, a, b]);
    assert_eq!(batch.missing, [unknown]);
}

/// CB-11
#[tokio::test]
async fn an_ended_card_answers_with_a_tombstone() {
    let t = fresh_db().await;
    let mut draft = Draft::instruction("short-lived");
    draft.ttl_seconds = Some(60);
    let (short, doomed) = (draft.seal().unwrap(), Draft::instruction("doomed").seal().unwrap());
    let asked = [short.card_id(), doomed.card_id()];
    let mut work = t.begin().await;
    card::insert(&mut work, &[short.clone(), doomed.clone()]).await.unwrap();
    assert!(card::fetch(&mut work, &asked, None).await.unwrap().found.iter().all(is_live));
    card::delete(&mut work, &[doomed.card_id()], "sent by mistake").await.unwrap();
    card::delete(&mut work, &[doomed.card_id()], "another reason").await.unwrap();

    let later = Utc::now() + TimeDelta::seconds(3600);
    let found = card::fetch(&mut work, &asked, Some(later)).await.unwrap().found;
    let [Reading::Gone(expired), Reading::Gone(deleted)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((expired.hash, &expired.why), (short.hash(), &Gone::Expired));
    assert_eq!((deleted.hash, &deleted.why), (doomed.hash(), &Gone::Deleted("sent by mistake".into())));
    let wire = serde_json::to_value(&found[1]).unwrap();
    assert_eq!((&wire["why"], &wire["reason"]), (&json!("deleted"), &json!("sent by mistake")));

    // As of an hour ago neither had ended: a receipt renders the same again.
    let earlier = Utc::now() - TimeDelta::seconds(3600);
    assert!(card::fetch(&mut work, &asked, Some(earlier)).await.unwrap().found.iter().all(is_live));
}

/// CB-11: an end may be set once, by the database's clock.
#[tokio::test]
async fn an_end_is_set_once() {
    let t = fresh_db().await;
    let cards = instructions(2);
    let [a, b] = ids(&cards)[..] else { unreachable!() };
    let mut work = t.begin().await;
    card::insert(&mut work, &cards).await.unwrap();
    card::expire(&mut work, &[a], 60).await.unwrap();
    work.commit().await.unwrap();
    let mut work = t.begin().await;
    let outcome = card::expire(&mut work, &[a, b], 90).await;
    assert!(matches!(&outcome, Err(card::Error::EndIsSet(refused)) if refused == &[a]), "{outcome:?}");
    let unknown = CardId::new();
    let outcome = card::expire(&mut work, &[unknown], 60).await;
    assert!(matches!(&outcome, Err(card::Error::NotFound(ids)) if ids == &[unknown]), "{outcome:?}");
    drop(work);

    // Not even round the kernel: the service may set these columns, the trigger lets it do so once.
    let mut work = t.begin().await;
    let again = sqlx::query("update cardbox.cards set expires_at = now() + interval '1 year' where card_id = $1")
        .bind(a)
        .execute(&mut *work)
        .await;
    assert_eq!(again.unwrap_err().as_database_error().unwrap().code().unwrap(), "WB010");
    let mut work = t.begin().await;
    let ttl_alone =
        sqlx::query("update cardbox.cards set ttl_seconds = 5 where card_id = $1").bind(b).execute(&mut *work).await;
    assert_eq!(ttl_alone.unwrap_err().as_database_error().unwrap().code().unwrap(), "WB010");
}

/// L0-18: time is the database's. The service cannot write another.
#[tokio::test]
async fn the_time_of_a_card_is_the_databases() {
    let t = fresh_db().await;
    let cards = instructions(1);
    let mut work = t.begin().await;
    card::insert(&mut work, &cards).await.unwrap();
    let now: chrono::DateTime<Utc> = sqlx::query_scalar("select now()").fetch_one(&mut *work).await.unwrap();
    let found = card::fetch(&mut work, &ids(&cards), None).await.unwrap().found;
    assert!(matches!(&found[0], Reading::Live(card) if card.created_at == now));
    let forged = sqlx::query(
        "insert into cardbox.cards (project_id, card_id, created_at, n_tokens, type, role, hash, content)
         values ($1, $2, 'yesterday', 1, 'x', 'user', decode(repeat('00', 32), 'hex'), '1')",
    )
    .bind(t.project_id)
    .bind(CardId::new())
    .execute(&mut *work)
    .await;
    assert_eq!(forged.unwrap_err().as_database_error().unwrap().code().unwrap(), "42501");
}
