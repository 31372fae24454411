//! CB-7, CB-8, CB-12, NX-5: boxes.

use chrono::{TimeDelta, Utc};
use waybill_core::{
    card::Draft,
    card_box::Span,
    id::{BoxId, CardId, ProjectId},
    tokens::Tokens,
};
use waybill_kernel::{
    card,
    card_box::{self, Holding, Window},
};
use waybill_testkit::fresh_db;

use crate::{card_ids, filled_box, held, ids, instructions};

fn window(pinned: i64, budget: i32) -> Window {
    Window { pinned, budget: Tokens::new(budget).unwrap(), as_of: None }
}

/// CB-7
#[tokio::test]
async fn many_boxes_hold_one_card_by_reference() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (a, cards) = filled_box(&mut work, 3).await;
    let b = BoxId::new();
    card_box::create(&mut work, &[b]).await.unwrap();
    card_box::append(&mut work, b, &cards).await.unwrap();
    assert_eq!(held(&mut work, a).await, held(&mut work, b).await);
    let stored: i64 = sqlx::query_scalar("select count(*) from cardbox.cards").fetch_one(&mut *work).await.unwrap();
    assert_eq!(stored, 3);
}

/// CB-7: the first place wins.
#[tokio::test]
async fn a_card_appears_once_when_a_box_is_read() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (source, cards) = filled_box(&mut work, 3).await;
    let [a, b, c] = cards[..] else { unreachable!() };
    let (box_id, own) = filled_box(&mut work, 1).await;
    let length = card_box::append(&mut work, box_id, &[b, b, own[0]]).await.unwrap();
    assert_eq!(length, 4);
    card_box::inherit(&mut work, box_id, Span::whole(source)).await.unwrap();
    let read = card_box::read(&mut work, Span::whole(box_id), None).await.unwrap();
    let places: Vec<_> = read.iter().map(|placed| (placed.place, placed.reading.card_id())).collect();
    assert_eq!(places, [(1, own[0]), (2, b), (5, a), (7, c)]);
}

/// CB-8
#[tokio::test]
async fn a_prefix_is_a_snapshot_for_ever() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (source, _) = filled_box(&mut work, 5).await;
    let (box_id, _) = filled_box(&mut work, 2).await;
    card_box::inherit(&mut work, box_id, Span::whole(source)).await.unwrap();
    for upto in 0..=7 {
        let before = card_box::read(&mut work, Span::prefix(box_id, upto), None).await.unwrap();
        assert_eq!(before.len() as i64, upto, "inside a range too");
        let more = instructions(1);
        card::insert(&mut work, &more).await.unwrap();
        card_box::append(&mut work, box_id, &ids(&more)).await.unwrap();
        card_box::append(&mut work, source, &ids(&more)).await.unwrap();
        assert_eq!(card_box::read(&mut work, Span::prefix(box_id, upto), None).await.unwrap(), before);
    }
}

/// CB-8: no matter which role asks.
#[tokio::test]
async fn the_database_refuses_to_rewrite_a_box() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (box_id, _) = filled_box(&mut work, 3).await;
    work.commit().await.unwrap();
    let attempts = [
        "update cardbox.boxes set length = length - 1",
        "update cardbox.boxes set box_id = gen_random_uuid()",
        "delete from cardbox.boxes",
        "truncate cardbox.boxes",
        "update cardbox.box_entries set card_id = gen_random_uuid()",
        "delete from cardbox.box_entries",
        "truncate cardbox.box_entries",
    ];
    for attempt in attempts {
        let mut admin = t.admin().await;
        let error = sqlx::query(attempt).execute(&mut admin).await.expect_err(attempt);
        assert_eq!(error.as_database_error().unwrap().code().unwrap(), "WB010", "{attempt}: {error}");
        let error = sqlx::query(attempt).execute(&mut *t.begin().await).await.expect_err(attempt);
        let code = error.as_database_error().unwrap().code().unwrap().into_owned();
        assert!(["WB010", "42501"].contains(&code.as_str()), "{attempt}: {error}");
    }
    assert_eq!(held(&mut t.begin().await, box_id).await.len(), 3);
}

/// Nothing is half done: a card or box that is not there refuses the whole append.
#[tokio::test]
async fn a_refused_append_writes_nothing() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (box_id, cards) = filled_box(&mut work, 2).await;
    let unknown = CardId::new();
    let outcome = card_box::append(&mut work, box_id, &[cards[0], unknown]).await;
    assert!(matches!(&outcome, Err(card_box::Error::CardsNotFound(ids)) if ids == &[unknown]), "{outcome:?}");
    let nowhere = BoxId::new();
    let outcome = card_box::append(&mut work, nowhere, &cards).await;
    assert!(matches!(outcome, Err(card_box::Error::NotFound(id)) if id == nowhere), "{outcome:?}");
    let outcome = card_box::inherit(&mut work, nowhere, Span::whole(box_id)).await;
    assert!(matches!(outcome, Err(card_box::Error::NotFound(id)) if id == nowhere), "{outcome:?}");
    let outcome = card_box::inherit(&mut work, box_id, Span::whole(nowhere)).await;
    assert!(matches!(outcome, Err(card_box::Error::NotFound(id)) if id == nowhere), "{outcome:?}");
    let outcome = card_box::create_from(&mut work, &[BoxId::new()], Span::whole(nowhere)).await;
    assert!(matches!(outcome, Err(card_box::Error::NotFound(id)) if id == nowhere), "{outcome:?}");
    let outcome = card_box::read(&mut work, Span { box_id, from: 0, upto: 2 }, None).await;
    assert!(matches!(outcome, Err(card_box::Error::Span(_))), "{outcome:?}");
    work.commit().await.unwrap();
    let mut work = t.begin().await;
    let entries: i64 =
        sqlx::query_scalar("select count(*) from cardbox.box_entries").fetch_one(&mut *work).await.unwrap();
    assert_eq!(entries, 2);
    assert_eq!(card_box::find(&mut work, &[box_id]).await.unwrap().found[0].length, 2);
}

/// Ranges of ranges are flattened to one level, and what is held already is left out.
#[tokio::test]
async fn inheriting_flattens_and_trims() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (a, a_cards) = filled_box(&mut work, 4).await;
    let (b, b_cards) = filled_box(&mut work, 1).await;
    card_box::inherit(&mut work, b, Span { box_id: a, from: 2, upto: 3 }).await.unwrap();
    let (c, c_cards) = filled_box(&mut work, 1).await;
    assert_eq!(card_box::inherit(&mut work, c, Span::whole(b)).await.unwrap(), 4);
    assert_eq!(card_box::inherit(&mut work, c, Span::whole(a)).await.unwrap(), 6, "two of four are held already");
    assert_eq!(card_box::inherit(&mut work, c, Span::whole(a)).await.unwrap(), 6, "nothing new");
    assert_eq!(card_box::inherit(&mut work, c, Span::whole(c)).await.unwrap(), 6, "nothing of its own");
    let expected = [c_cards[0], b_cards[0], a_cards[1], a_cards[2], a_cards[0], a_cards[3]];
    assert_eq!(held(&mut work, c).await, expected);
    let deep: i64 = sqlx::query_scalar(
        "select count(*)
           from cardbox.box_entries r
           join cardbox.box_entries e on e.project_id = r.project_id and e.box_id = r.source_box_id
                                     and e.seq between r.from_seq and r.to_seq
          where r.source_box_id is not null and e.card_id is null",
    )
    .fetch_one(&mut *work)
    .await
    .unwrap();
    assert_eq!(deep, 0, "a range points at plain cards");
}

/// NX-5: a history of any size, handed to any number of children, is two rows each.
#[tokio::test]
async fn a_thousand_children_cost_two_rows_each() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (source, cards) = filled_box(&mut work, 500).await;
    let rows = "select (select count(*) from cardbox.boxes) + (select count(*) from cardbox.box_entries)";
    let before: i64 = sqlx::query_scalar(rows).fetch_one(&mut *work).await.unwrap();
    let children: Vec<BoxId> = (0..1000).map(|_| BoxId::new()).collect();
    card_box::create_from(&mut work, &children, Span::whole(source)).await.unwrap();
    let after: i64 = sqlx::query_scalar(rows).fetch_one(&mut *work).await.unwrap();
    assert_eq!(after - before, 2000);
    assert_eq!(held(&mut work, children[999]).await, cards);
}

/// A source of many runs is flattened once, then inherited as one.
#[tokio::test]
async fn a_fragmented_source_is_shared_as_one_run() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let patchwork = BoxId::new();
    card_box::create(&mut work, &[patchwork]).await.unwrap();
    for _ in 0..card_box::MOST_RUNS {
        let (source, _) = filled_box(&mut work, 3).await;
        card_box::inherit(&mut work, patchwork, Span::whole(source)).await.unwrap();
    }
    let shared = card_box::share(&mut work, Span::whole(patchwork)).await.unwrap();
    assert_eq!(shared.box_id, patchwork, "few runs are inherited as they are");
    let (last, _) = filled_box(&mut work, 3).await;
    card_box::inherit(&mut work, patchwork, Span::whole(last)).await.unwrap();
    let shared = card_box::share(&mut work, Span { box_id: patchwork, from: 2, upto: i64::MAX }).await.unwrap();
    assert_ne!(shared.box_id, patchwork);
    let expected = held(&mut work, patchwork).await.split_off(1);
    let child = BoxId::new();
    card_box::create_from(&mut work, &[child], shared).await.unwrap();
    assert_eq!(held(&mut work, child).await, expected);
    let entries: i64 = sqlx::query_scalar("select count(*) from cardbox.box_entries where box_id = $1")
        .bind(child)
        .fetch_one(&mut *work)
        .await
        .unwrap();
    assert_eq!(entries, 1);
}

/// L0-18: order is the sequence. Eight writers, no gap, no tie, and a reader never sees a hole.
#[tokio::test]
async fn concurrent_appends_keep_a_total_order_without_gaps() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (box_id, _) = filled_box(&mut work, 1).await;
    let cards = instructions(160);
    card::insert(&mut work, &cards).await.unwrap();
    work.commit().await.unwrap();
    let writers = cards.chunks(20).map(async |mine| {
        let mut places = Vec::new();
        for pair in mine.chunks(2) {
            let mut work = t.begin().await;
            places.push(card_box::append(&mut work, box_id, &ids(pair)).await.unwrap());
            work.commit().await.unwrap();
        }
        assert!(places.is_sorted(), "a writer's own cards keep their order");
    });
    let reader = async {
        let mut seen = 0;
        while seen < 161 {
            let read = card_box::read(&mut t.begin().await, Span::whole(box_id), None).await.unwrap();
            let places: Vec<i64> = read.iter().map(|placed| placed.place).collect();
            assert_eq!(places, (1..=places.len() as i64).collect::<Vec<_>>(), "no hole at any moment");
            assert!(places.len() >= seen, "a box only grows");
            seen = places.len();
        }
    };
    futures::future::join(futures::future::join_all(writers), reader).await;
}

/// CB-9, CB-12: the turn sees the head and the newest tail of its own box, within the budget, and nothing else.
#[tokio::test]
async fn hydration_reads_the_head_and_the_newest_tail() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    filled_box(&mut work, 5).await; // exists in the project, and no turn has the box
    let (source, inherited) = filled_box(&mut work, 300).await;
    let (box_id, own) = filled_box(&mut work, 2).await;
    card_box::inherit(&mut work, box_id, Span::whole(source)).await.unwrap();
    let each = Draft::instruction("instruction 0").seal().unwrap().n_tokens().get();

    let all = card_box::hydrate(&mut work, box_id, None, window(1, i32::MAX)).await.unwrap();
    assert_eq!(card_ids(&all.cards), [&own[..], &inherited[..]].concat());
    assert_eq!((all.length, all.omitted), (302, None));

    let some = card_box::hydrate(&mut work, box_id, None, window(1, each * 4)).await.unwrap();
    assert_eq!(card_ids(&some.cards), [own[0], inherited[297], inherited[298], inherited[299]]);
    assert_eq!(some.omitted, Some(Span { box_id, from: 2, upto: 299 }));

    let prefix = card_box::hydrate(&mut work, box_id, Some(10), window(0, each * 2)).await.unwrap();
    assert_eq!(card_ids(&prefix.cards), inherited[6..8]);

    let pins_stay = card_box::hydrate(&mut work, box_id, None, window(3, 0)).await.unwrap();
    assert_eq!(card_ids(&pins_stay.cards), [own[0], own[1], inherited[0]]);

    let empty = BoxId::new();
    card_box::create(&mut work, &[empty]).await.unwrap();
    let nothing = card_box::hydrate(&mut work, empty, None, window(3, 100)).await.unwrap();
    assert!(nothing.cards.is_empty() && nothing.omitted.is_none());
    let unknown = card_box::hydrate(&mut work, BoxId::new(), None, window(3, 100)).await;
    assert!(matches!(unknown, Err(card_box::Error::NotFound(_))));
}

/// CB-11: what has ended is not hydrated, costs no budget, and is named.
#[tokio::test]
async fn ended_cards_are_not_hydrated() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (box_id, cards) = filled_box(&mut work, 5).await;
    card::expire(&mut work, &[cards[4]], 60).await.unwrap();
    card::delete(&mut work, &[cards[3]], "wrong").await.unwrap();
    let each = Draft::instruction("instruction 0").seal().unwrap().n_tokens().get();
    let later = Window { as_of: Some(Utc::now() + TimeDelta::hours(1)), ..window(0, each * 2) };
    let hydrated = card_box::hydrate(&mut work, box_id, None, later).await.unwrap();
    let live: Vec<_> = hydrated.cards.iter().map(|placed| crate::is_live(&placed.reading)).collect();
    assert_eq!(card_ids(&hydrated.cards), cards[1..]);
    assert_eq!(live, [true, true, false, false]);
    assert_eq!(hydrated.as_of.timestamp_micros(), later.as_of.unwrap().timestamp_micros());
}

/// CB-11: a delete that was committed before the statement counts, however long the reader's transaction has been open.
#[tokio::test]
async fn a_committed_delete_is_honoured_in_a_transaction_that_began_before_it() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (box_id, cards) = filled_box(&mut work, 1).await;
    work.commit().await.unwrap();
    let mut reader = t.begin().await;
    let mut writer = t.begin().await;
    card::delete(&mut writer, &cards, "wrong").await.unwrap();
    writer.commit().await.unwrap();
    assert!(card_box::hydrate(&mut reader, box_id, None, window(0, 100)).await.unwrap().cards.is_empty());
    let read = card_box::read(&mut reader, Span::whole(box_id), None).await.unwrap();
    assert!(!crate::is_live(&read[0].reading));
    assert!(!crate::is_live(&card::fetch(&mut reader, &cards, None).await.unwrap().found[0]));
}

/// CB-7, CB-9: a repeat takes nothing from the budget, in the tail or of the head.
#[tokio::test]
async fn repeats_cost_nothing() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (box_id, cards) = filled_box(&mut work, 10).await;
    for repeated in [9, 9, 9, 0] {
        card_box::append(&mut work, box_id, &[cards[repeated]]).await.unwrap();
    }
    let each = Draft::instruction("instruction 0").seal().unwrap().n_tokens().get();
    let hydrated = card_box::hydrate(&mut work, box_id, None, window(1, each * 10)).await.unwrap();
    assert_eq!(card_ids(&hydrated.cards), cards);
    assert_eq!(hydrated.omitted, None);
}

/// However odd the numbers, no panic and no overflow.
#[tokio::test]
async fn extreme_positions_are_empty_spans() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (source, _) = filled_box(&mut work, 3).await;
    let (box_id, _) = filled_box(&mut work, 1).await;
    card_box::inherit(&mut work, box_id, Span::whole(source)).await.unwrap();
    for (from, upto) in [(1, i64::MIN), (i64::MAX, i64::MAX), (i64::MAX, i64::MIN), (9, 3)] {
        let span = Span { box_id, from, upto };
        assert!(card_box::read(&mut work, span, None).await.unwrap().is_empty(), "{span:?}");
        assert_eq!(card_box::inherit(&mut work, source, span).await.unwrap(), 3, "{span:?}");
        let child = BoxId::new();
        card_box::create_from(&mut work, &[child], span).await.unwrap();
        assert!(held(&mut work, child).await.is_empty(), "{span:?}");
        card_box::share(&mut work, span).await.unwrap();
    }
    for (upto, pinned) in [(-5, 2), (i64::MIN, i64::MIN), (i64::MAX, i64::MAX), (2, -3)] {
        let hydrated = card_box::hydrate(&mut work, box_id, Some(upto), window(pinned, 1000)).await.unwrap();
        assert_eq!(hydrated.length, upto.clamp(0, 4));
        assert_eq!(hydrated.cards.len() as i64, hydrated.length);
        assert_eq!(hydrated.omitted, None);
    }
}

/// Which boxes hold this card, directly or by range.
#[tokio::test]
async fn a_card_knows_where_it_is_held() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (source, cards) = filled_box(&mut work, 4).await;
    let (by_range, _) = filled_box(&mut work, 2).await;
    card_box::inherit(&mut work, by_range, Span { box_id: source, from: 3, upto: 4 }).await.unwrap();
    let (elsewhere, _) = filled_box(&mut work, 1).await;
    let holdings = card_box::holdings(&mut work, cards[2], None, 10).await.unwrap();
    assert_eq!(holdings, [Holding { box_id: source, place: 3 }, Holding { box_id: by_range, place: 3 }]);
    let rest = card_box::holdings(&mut work, cards[2], Some(holdings[0]), 10).await.unwrap();
    assert_eq!(rest, holdings[1..]);
    assert_eq!(card_box::holdings(&mut work, cards[1], None, 10).await.unwrap().len(), 1);
    assert!(!holdings.iter().any(|holding| holding.box_id == elsewhere));
}

/// CB-10
#[tokio::test]
async fn boxes_are_looked_up_in_the_order_asked_for() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (a, _) = filled_box(&mut work, 1).await;
    let (b, _) = filled_box(&mut work, 2).await;
    let unknown = BoxId::new();
    let batch = card_box::find(&mut work, &[b, unknown, a, b]).await.unwrap();
    assert_eq!(batch.found.iter().map(|found| (found.box_id, found.length)).collect::<Vec<_>>(), [(b, 2), (a, 1)]);
    assert_eq!(batch.missing, [unknown]);
    work.commit().await.unwrap();
    let mut elsewhere = t.kernel.begin(ProjectId::new()).await.unwrap();
    assert_eq!(card_box::find(&mut elsewhere, &[a]).await.unwrap().missing, [a]);
}
