//! What the API and the command line stand on: keys, claims within a project, lists and trees, and the end of a project.

use std::time::Duration;

use waybill_core::{
    id::{ProjectId, TurnId},
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{
    audit, call, key, lease, project,
    turn::{self, Claiming, DispatchRequest, Filter, Listing, Stretch},
};

use crate::turns::{House, LONG};

/// SE-1
#[tokio::test]
async fn a_key_is_found_by_itself_and_by_nothing_like_it() {
    let house = House::new().await;
    let mut work = house.t.begin().await;
    project::create(&mut work, "mine").await.unwrap();
    let made = ApiKey::mint("test");
    key::create(&mut work, &made, &"ci".parse().unwrap(), Scope::Reader, &Bounds::default(), None).await.unwrap();
    work.commit().await.unwrap();
    let holder = key::find(house.kernel(), &made).await.unwrap().unwrap();
    assert_eq!((holder.project_id, holder.slug.as_str(), holder.scope), (house.t.project_id, "mine", Scope::Reader));
    // The id of one, with the secret of another.
    let other = ApiKey::mint("test");
    assert_eq!(key::find(house.kernel(), &other).await.unwrap(), None);
    let parts: Vec<&str> = made.expose().split('_').collect();
    let forged = format!("wb_test_{}_{}", parts[2], other.expose().split('_').nth(3).unwrap());
    // The checksum is no secret: a caller can compute one.
    let forged: ApiKey = format!("{forged}_{}", waybill_core::key::checksum(&forged)).parse().unwrap();
    assert_eq!(forged.key_id(), made.key_id());
    assert_eq!(key::find(house.kernel(), &forged).await.unwrap(), None);
    // Revoked, it stays revoked.
    let mut work = house.t.begin().await;
    key::revoke(&mut work, made.key_id(), Duration::ZERO).await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(key::find(house.kernel(), &made).await.unwrap(), None);
    let mut work = house.t.begin().await;
    let again = key::revoke(&mut work, made.key_id(), Duration::ZERO).await;
    assert!(matches!(again, Err(key::Error::NotFound(_))), "{again:?}");
    let back = sqlx::query("update resource.api_keys set revoked_at = null").execute(&mut *house.t.begin().await).await;
    assert!(back.is_err());
}

/// SE-2: in a project's own transaction, a claim sees that project alone.
#[tokio::test]
async fn a_claim_within_a_project_takes_nothing_of_another() {
    let house = House::new().await;
    house.enqueue(house.agent().await).await;
    let lease_of = async |name: &str| lease::start(house.kernel(), &name.parse().unwrap(), LONG).await.unwrap();
    let worker = lease_of("llm").await;
    let mut claiming = Claiming { most: 10, ..Claiming::new(worker, "llm".parse().unwrap()) };
    let mut other = house.kernel().begin(ProjectId::new()).await.unwrap();
    assert!(turn::claim_in(&mut other, &mut claiming).await.unwrap().is_empty());
    assert!(call::claim_in(&mut other, &mut claiming).await.unwrap().is_empty());
    drop(other);
    let mut own = house.t.begin().await;
    let claimed = turn::claim_in(&mut own, &mut claiming).await.unwrap();
    own.commit().await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].fence.project_id(), house.t.project_id);
}

#[tokio::test]
async fn turns_are_listed_and_their_tree_is_drawn() {
    let house = House::new().await;
    let root = house.enqueue(house.agent().await).await.agent_turn_id;
    let mut work = house.t.begin().await;
    let cards = crate::instructions(3);
    for card in &cards {
        let request = DispatchRequest {
            parent_agent_turn_id: Some(root),
            ..DispatchRequest::instructed(house.agent().await, card.card_id())
        };
        turn::enqueue(&mut work, &[request], std::slice::from_ref(card)).await.unwrap();
    }
    work.commit().await.unwrap();
    let mut work = house.t.begin().await;
    let all = Listing { most: 10, ..Listing::default() };
    let listing = Listing { filter: Filter { roots: true, ..Filter::default() }, ..all.clone() };
    let roots = turn::list(&mut work, &listing).await.unwrap().turns;
    assert_eq!(roots.len(), 1);
    let tree = turn::tree(&mut work, roots[0].agent_turn_id, 100).await.unwrap();
    assert_eq!(tree.len(), 4);
    assert_eq!(tree[0], roots[0]);
    assert!(tree[1..].iter().all(|child| child.parent_agent_turn_id == Some(roots[0].agent_turn_id)));
    assert!(tree[1..].is_sorted_by_key(|child| child.agent_turn_id), "each level by id");
    assert_eq!(turn::tree(&mut work, roots[0].agent_turn_id, 3).await.unwrap(), tree[..3], "the same turns first");
    assert_eq!(roots[0].n_below, Some(3));
    let filter = Filter { open: true, ..Filter::default() };
    let open = turn::list(&mut work, &Listing { filter, ..all.clone() }).await.unwrap().turns;
    assert_eq!(open.len(), 4);
    let first = turn::list(&mut work, &Listing { most: 2, ..all.clone() }).await.unwrap();
    assert_eq!(first.next, first.turns.last().map(|turn| turn.agent_turn_id));
    let second = turn::list(&mut work, &Listing { before: first.next, ..all }).await.unwrap();
    assert_eq!((first.turns.len(), second.turns.len(), second.next), (2, 2, None));
    // UI-9: a page looks at no more turns than it may, and says how far it came.
    let (found, looked_to): (Vec<TurnId>, Option<TurnId>) =
        sqlx::query_as(r#"select turn_ids, looked_to from state.list_turns($1, '{"status": "failed"}', $2, $3, 2, 3)"#)
            .bind(house.t.project_id)
            .bind(TurnId::nil())
            .bind(TurnId::max())
            .fetch_one(&mut *work)
            .await
            .unwrap();
    assert_eq!((found, looked_to), (vec![], Some(second.turns[0].agent_turn_id)));
    assert!(turn::tree(&mut work, TurnId::new(), 100).await.unwrap().is_empty());
    let edges = turn::edges(&mut work, tree[1].agent_turn_id).await.unwrap();
    assert_eq!(edges[0].primitive, "enqueue");

    // The events of a turn, from any event on.
    drop(work);
    let child = house.claim().await.unwrap();
    let mut work = house.t.begin().await;
    turn::finish(&mut work, &[crate::turns::ending(child.fence)]).await.unwrap();
    work.commit().await.unwrap();
    let turn_id = child.fence.agent_turn_id();
    let from = |after| Stretch { after, upto: i64::MAX, most: 10 };
    let told = turn::events_of(&mut house.t.begin().await, &[turn_id], from(0)).await.unwrap();
    let last = told.last().unwrap();
    assert_eq!((last.status.as_str(), last.root_turn_id), ("success", tree[0].agent_turn_id));
    assert_eq!(turn::events_of(&mut house.t.begin().await, &[turn_id], from(last.outbox_seq)).await.unwrap(), []);
    // The same of the whole project, and of the tree turn by turn.
    let all = turn::events(&mut house.t.begin().await, from(0)).await.unwrap();
    assert!(told.iter().all(|one| all.contains(one)), "{all:?}");
    let below = turn::below(&mut house.t.begin().await, tree[0].agent_turn_id, None, 10).await.unwrap();
    assert_eq!(below, tree[1..].iter().map(|child| child.agent_turn_id).collect::<Vec<_>>());
}

/// A project ends with all it has, portion by portion, and nothing of another's is touched.
#[tokio::test]
async fn a_project_is_deleted_for_good() {
    let house = House::new().await;
    house.family(2, false, LONG).await;
    let mut work = house.t.begin().await;
    project::create(&mut work, "mine").await.unwrap();
    audit::record(&mut work, "me", "did", "this", &serde_json::json!({})).await.unwrap();
    work.commit().await.unwrap();
    let other = ProjectId::new();
    let mut work = house.kernel().begin(other).await.unwrap();
    project::create(&mut work, "other").await.unwrap();
    waybill_kernel::card::insert(&mut work, &crate::instructions(3)).await.unwrap();
    work.commit().await.unwrap();

    // The service itself cannot, whatever it says.
    let mut work = house.t.begin().await;
    let sql = format!("set local waybill.deleting = '{}'; delete from cardbox.cards", house.t.project_id);
    assert!(sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *work).await.is_err());
    drop(work);

    let many = "insert into cardbox.boxes (project_id, box_id)
                select p.project_id, gen_random_uuid() from resource.projects p, generate_series(1, 45000)";
    house.meddle(many).await;
    // Neither does the owner delete rows of another project than the one that is named.
    let mut owner = house.t.owner().await;
    let sql = format!(
        "begin; set local waybill.project = '{other}'; set local waybill.deleting = '{}'; delete from cardbox.cards",
        house.t.project_id
    );
    let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut owner).await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().unwrap(), "WB010");
    sqlx::raw_sql("rollback").execute(&mut owner).await.unwrap();

    let mut portions = Vec::new();
    let progress = |table: &str, n: u64| portions.extend((table == "cardbox.boxes").then_some(n));
    let deleted = project::delete(&mut owner, house.t.project_id, progress).await.unwrap();
    assert!(deleted["cardbox.cards"] > 0 && deleted["resource.projects"] == 1, "{deleted:?}");
    assert!(portions.len() == 3 && portions.iter().all(|n| *n <= 20_001), "{portions:?}");
    let again = project::delete(&mut owner, house.t.project_id, |_, _| ()).await.unwrap();
    assert!(again.is_empty(), "{again:?}");
    let mut admin = house.t.admin().await;
    let tables: Vec<String> = sqlx::query_scalar(
        "select c.oid::regclass::text from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'project_id'
          where c.relkind = 'r' and c.relnamespace::regnamespace::text in ('cardbox', 'resource', 'state', 'parts')",
    )
    .fetch_all(&mut admin)
    .await
    .unwrap();
    for table in tables {
        let sql = format!("select count(*) from {table} where project_id = '{}'", house.t.project_id);
        let left: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut admin).await.unwrap();
        assert_eq!(left, 0, "{table}");
    }
    assert_eq!(house.t.count("select count(*) from cardbox.cards").await, 3);
    assert_eq!(project::find(house.kernel(), "other").await.unwrap(), other);
}
