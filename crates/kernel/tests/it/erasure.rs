//! CB-13: the one way content goes.

use serde_json::json;
use waybill_core::{
    card::{CardType, Content, Draft, Gone, Reading, Role},
    card_box::Span,
    id::{CardId, StepId},
};
use waybill_kernel::{card, card_box};
use waybill_testkit::fresh_db;

use crate::{card_ids, filled_box, held};

/// CB-13: content is gone; id, hash, lineage and the reason stay, and the audit names who and when.
#[tokio::test]
async fn an_erasure_destroys_content_and_leaves_its_record() {
    let t = fresh_db().await;
    let mut draft = Draft::instruction("my address is 5 Elm Street");
    draft.metadata.step_id = Some(StepId::new());
    draft.metadata.extra.insert("note".into(), json!("5 Elm Street"));
    let step_id = draft.metadata.step_id;
    let personal = draft.seal().unwrap();
    let mut work = t.begin().await;
    let (box_id, _) = filled_box(&mut work, 1).await;
    card::insert(&mut work, std::slice::from_ref(&personal)).await.unwrap();
    card_box::append(&mut work, box_id, &[personal.card_id()]).await.unwrap();
    work.commit().await.unwrap();

    let erased = card::erase(&mut t.owner().await, t.project_id, &[personal.card_id()], "request 17").await.unwrap();
    assert_eq!((erased[0].card_id, erased[0].hash), (personal.card_id(), personal.hash()));

    let mut work = t.begin().await;
    let read = card_box::read(&mut work, Span::whole(box_id), None).await.unwrap();
    assert_eq!(read.len(), 2, "it still stands where it stood");
    let Reading::Gone(tombstone) = &read[1].reading else { panic!("{read:?}") };
    assert_eq!((tombstone.hash, &tombstone.why), (personal.hash(), &Gone::Erased("request 17".into())));
    let long_ago = chrono::Utc::now() - chrono::TimeDelta::days(1);
    let then = card_box::read(&mut work, Span::whole(box_id), Some(long_ago)).await.unwrap();
    assert!(matches!(then[1].reading, Reading::Gone(_)), "erased is erased, as of any time");

    let row: String = sqlx::query_scalar("select to_json(c)::text from cardbox.cards c where card_id = $1")
        .bind(personal.card_id())
        .fetch_one(&mut *work)
        .await
        .unwrap();
    assert!(!row.contains("Elm"), "{row}");
    assert!(row.contains("\"salt\":null"), "a guess could be compared with the hash: {row}");
    assert!(row.contains(&step_id.unwrap().to_string()), "lineage stays: {row}");
    let (reason, by): (String, String) =
        sqlx::query_as("select reason, erased_by from cardbox.erasures where card_id = $1")
            .bind(personal.card_id())
            .fetch_one(&mut *work)
            .await
            .unwrap();
    assert_eq!((reason.as_str(), by.as_str()), ("request 17", t.server.owner()));
}

/// CB-13: asked for again, it answers as the first time; what is unknown is said; a reason is needed.
#[tokio::test]
async fn an_erasure_is_idempotent_and_needs_a_reason() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (box_id, cards) = filled_box(&mut work, 2).await;
    work.commit().await.unwrap();
    let mut owner = t.owner().await;
    let first = card::erase(&mut owner, t.project_id, &cards[..1], "one").await.unwrap();
    assert_eq!(card::erase(&mut owner, t.project_id, &cards[..1], "two").await.unwrap(), first);
    let unknown = CardId::new();
    let outcome = card::erase(&mut owner, t.project_id, &[unknown], "one").await;
    assert!(matches!(&outcome, Err(card::Error::NotFound(ids)) if ids == &[unknown]), "{outcome:?}");
    assert!(card::erase(&mut owner, t.project_id, &cards[1..], "").await.is_err());
    // One mistyped id: nothing is erased.
    let outcome = card::erase(&mut owner, t.project_id, &[cards[1], unknown], "one").await;
    assert!(matches!(&outcome, Err(card::Error::NotFound(ids)) if ids == &[unknown]), "{outcome:?}");
    let found = card::fetch(&mut t.begin().await, &cards[1..], None).await.unwrap().found;
    assert!(crate::is_live(&found[0]));
    assert_eq!(held(&mut t.begin().await, box_id).await, cards);
}

/// CB-13: beyond the service's rights; and no role can remove the record.
#[tokio::test]
async fn the_service_cannot_erase_and_nobody_can_hide_it() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (box_id, cards) = filled_box(&mut work, 1).await;
    work.commit().await.unwrap();
    let mut work = t.begin().await;
    let outcome = card::erase(&mut work, t.project_id, &cards, "no right to").await;
    assert!(
        matches!(&outcome, Err(card::Error::Db(error)) if error.to_string().contains("permission denied")),
        "{outcome:?}"
    );
    drop(work);
    card::erase(&mut t.owner().await, t.project_id, &cards, "ordered").await.unwrap();
    let mut admin = t.admin().await;
    for attempt in
        ["delete from cardbox.erasures", "update cardbox.erasures set reason = 'x'", "truncate cardbox.erasures"]
    {
        let error = sqlx::query(attempt).execute(&mut admin).await.expect_err(attempt);
        assert_eq!(error.as_database_error().unwrap().code().unwrap(), "WB010", "{attempt}");
    }
    // Nor can a role write a record of what was not erased.
    let forged = format!(
        "begin; set local role waybill_eraser; set local waybill.project = '{}';
         insert into cardbox.erasures values ('{}', '{}', '', 'forged', 'me', now())",
        t.project_id,
        t.project_id,
        CardId::new()
    );
    let error = sqlx::raw_sql(sqlx::AssertSqlSafe(forged)).execute(&mut admin).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "WB010");
    sqlx::raw_sql("rollback").execute(&mut admin).await.unwrap();
    // Even as the role that owns the function, content goes only together with its record.
    let mut work = t.begin().await;
    let (_, more) = filled_box(&mut work, 1).await;
    work.commit().await.unwrap();
    let as_eraser = format!(
        "begin; set local role waybill_eraser; set local waybill.project = '{}';
         update cardbox.cards set salt = null, content = null, erased_at = now(), erased_reason = 'by hand' where card_id = '{}'; commit",
        t.project_id, more[0]
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(as_eraser)).execute(&mut admin).await.unwrap();
    let records: i64 = sqlx::query_scalar("select count(*) from cardbox.erasures where reason = 'by hand'")
        .fetch_one(&mut admin)
        .await
        .unwrap();
    assert_eq!(records, 1);
    assert_eq!(card_ids(&card_box::read(&mut t.begin().await, Span::whole(box_id), None).await.unwrap()), cards);
}

/// CB-5, CB-13: what a card says cannot be found by trying hashes: equal content has another hash in each card, and a card that has ended shows
/// no salt.
#[tokio::test]
async fn a_guess_cannot_be_compared_with_a_hash() {
    let t = fresh_db().await;
    let [one, two] = [(); 2].map(|()| Draft::instruction("yes").seal().unwrap());
    assert_ne!(one.hash(), two.hash());
    let mut work = t.begin().await;
    card::insert(&mut work, &[one.clone(), two]).await.unwrap();
    card::delete(&mut work, &[one.card_id()], "x").await.unwrap();
    let found = card::fetch(&mut work, &[one.card_id()], None).await.unwrap().found;
    assert!(matches!(&found[0], Reading::Gone(tombstone) if tombstone.hash == one.hash()), "{found:?}");
    let hidden: bool = sqlx::query_scalar("select salt is null from cardbox.reading($1, $2, statement_timestamp())")
        .bind(t.project_id)
        .bind(one.card_id())
        .fetch_one(&mut *work)
        .await
        .unwrap();
    assert!(hidden);
}

/// An erased prompt may be written again: it is a new card.
#[tokio::test]
async fn erased_content_can_be_written_anew() {
    let t = fresh_db().await;
    let prompt = || Draft::new(CardType::rendered_prompt(), Role::System, Content::Text("p".into())).seal().unwrap();
    let (first, second) = (prompt(), prompt());
    let mut work = t.begin().await;
    card::intern(&mut work, std::slice::from_ref(&first)).await.unwrap();
    work.commit().await.unwrap();
    card::erase(&mut t.owner().await, t.project_id, &[first.card_id()], "x").await.unwrap();
    let ids = card::intern(&mut t.begin().await, std::slice::from_ref(&second)).await.unwrap();
    assert_eq!(ids, [second.card_id()]);
}
