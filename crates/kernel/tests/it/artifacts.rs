//! HO-1, HO-5: bulk content in the index. The bytes are the object store's: here is what is said of them.

use serde_json::json;
use waybill_core::{
    artifact::{ArtifactHash, ArtifactPath, Pins, Stored},
    card::{CardType, Content, Draft, HandoffContent, NewCard, Role},
    id::{ToolCallId, UploadId},
};
use waybill_kernel::{
    artifact::{self, Error, Finish, Remove, Which},
    card, project, resource,
    work::UnitOfWork,
};
use waybill_testkit::{TestDb, fresh_db};

fn path(path: &str) -> ArtifactPath {
    path.parse().unwrap()
}

fn finish<'a>(upload_id: UploadId, path: &'a ArtifactPath, stored: &'a Stored) -> Finish<'a> {
    Finish { upload_id, path, media_type: "text/plain", author_id: Some("me"), stored }
}

pub(crate) async fn put(work: &mut UnitOfWork, at: &str, content: &[u8]) -> (UploadId, i32) {
    let (upload_id, stored, path) = (UploadId::new(), Stored::of(content), path(at));
    artifact::begin(work, upload_id).await.unwrap();
    (upload_id, artifact::finish(work, finish(upload_id, &path, &stored)).await.unwrap().version)
}

pub(crate) fn package(pins: &[(&str, ArtifactHash)]) -> NewCard {
    let artifacts: Pins = pins.iter().map(|(at, hash)| (path(at), *hash)).collect();
    let package = json!({ "version": "2.0" }).as_object().unwrap().clone();
    let content = Content::Handoff(HandoffContent { package, artifacts });
    Draft::new(CardType::handoff_package(), Role::User, content).seal().unwrap()
}

async fn db() -> TestDb {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    project::create(&mut work, "acme").await.unwrap();
    work.commit().await.unwrap();
    t
}

/// HO-1: content is stored once however often it is named; each path has its versions; the same again is none.
#[tokio::test]
async fn the_same_content_is_stored_once_and_versions_are_kept() {
    let t = db().await;
    let mut work = t.begin().await;
    for n in 0..50 {
        assert_eq!(put(&mut work, &format!("many/{n:02}.txt"), b"the same").await.1, 1);
    }
    assert_eq!(put(&mut work, "many/00.txt", b"the same").await.1, 1, "no new version");
    assert_eq!(put(&mut work, "many/00.txt", b"another").await.1, 2);
    assert_eq!(put(&mut work, "many/00.txt", b"the same").await.1, 3);
    work.commit().await.unwrap();
    assert_eq!(t.count("select count(*) from cardbox.blobs").await, 2);
    // Of the copies nothing is left but that they are to be deleted.
    assert_eq!(t.count("select count(*) from cardbox.uploads where condemned").await, 51);
    assert_eq!(t.count("select count(*) from cardbox.uploads where not condemned").await, 0);
    let mut work = t.begin().await;
    let bytes = artifact::usage(&mut work).await.unwrap().bytes;
    assert_eq!(bytes, 15);
    let versions = artifact::versions(&mut work, &path("many/00.txt"), None, 10).await.unwrap();
    assert_eq!(versions.iter().map(|one| one.version).collect::<Vec<_>>(), [3, 2, 1]);
    let earlier = artifact::versions(&mut work, &path("many/00.txt"), Some(3), 1).await.unwrap();
    assert_eq!(earlier.iter().map(|one| one.version).collect::<Vec<_>>(), [2]);
    let second = artifact::find(&mut work, &path("many/00.txt"), Which::Version(2)).await.unwrap().unwrap();
    assert_eq!(second.artifact.hash, ArtifactHash::of(b"another"));
    assert_eq!((second.artifact.size, second.artifact.n_tokens), (7, Some(1)));
    let listed = artifact::list(&mut work, "many/", "many/10.txt", 5).await.unwrap();
    let paths: Vec<&str> = listed.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(paths, ["many/11.txt", "many/12.txt", "many/13.txt", "many/14.txt", "many/15.txt"]);
    assert!(artifact::list(&mut work, "man/", "", 5).await.unwrap().is_empty());
    assert_eq!(artifact::list(&mut work, "", "", 1_000).await.unwrap().len(), 50);
}

/// HO-1: what was not finished is not there; once it is given up, it cannot be finished any more.
#[tokio::test]
async fn what_is_not_finished_is_not_there() {
    let t = db().await;
    let (late, stored, at) = (UploadId::new(), Stored::of(b"x"), path("a"));
    let mut work = t.begin().await;
    artifact::begin(&mut work, late).await.unwrap();
    work.commit().await.unwrap();
    assert!(artifact::list(&mut t.begin().await, "", "", 9).await.unwrap().is_empty());
    assert!(artifact::ended_uploads(&t.kernel, 9).await.unwrap().is_empty(), "it has a day");
    let mut work = t.begin().await;
    assert!(!artifact::condemn(&mut work, late).await.unwrap(), "while it may be finished, it is not condemned");
    drop(work);
    sqlx::query("update cardbox.uploads set expires_at = now()").execute(&mut t.admin().await).await.unwrap();
    assert_eq!(artifact::ended_uploads(&t.kernel, 9).await.unwrap(), [(t.project_id, late)]);
    let mut work = t.begin().await;
    assert!(artifact::condemn(&mut work, late).await.unwrap());
    work.commit().await.unwrap();
    let refused = artifact::finish(&mut t.begin().await, finish(late, &at, &stored)).await;
    assert!(matches!(refused, Err(Error::GivenUp)), "{refused:?}");
    let mut work = t.begin().await;
    artifact::forget(&mut work, late).await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(t.count("select count(*) from cardbox.uploads").await, 0);
    // One that was finished is finished again without a word.
    let mut work = t.begin().await;
    let (done, version) = put(&mut work, "a", b"x").await;
    let again = artifact::finish(&mut work, finish(done, &at, &stored)).await.unwrap();
    assert_eq!((again.version, again.changed), (version, false));
}

/// HO-1, HO-5: no card names what is not there, no matter who writes it; what it pins is what a reader gets.
#[tokio::test]
async fn a_card_names_only_what_is_there() {
    let t = db().await;
    let mut work = t.begin().await;
    put(&mut work, "a.txt", b"one").await;
    let (one, two) = (ArtifactHash::of(b"one"), ArtifactHash::of(b"two"));
    let good = package(&[("a.txt", one)]);
    card::insert(&mut work, std::slice::from_ref(&good)).await.unwrap();
    put(&mut work, "a.txt", b"two").await;
    work.commit().await.unwrap();
    let result = |pins: serde_json::Value| {
        let mut draft = Draft::tool_result(ToolCallId::new(), "success", json!("stored"));
        if let Content::ToolResult(result) = &mut draft.content {
            result.extra.insert("artifacts".to_owned(), pins);
        }
        draft.seal()
    };
    for bad in [
        package(&[("a.txt", ArtifactHash::of(b"three"))]),
        package(&[("a.txt", one), ("b.txt", one)]),
        result(json!({ "a.txt": ArtifactHash::of(b"three") })).unwrap(),
    ] {
        let refused = card::insert(&mut t.begin().await, std::slice::from_ref(&bad)).await.unwrap_err();
        assert!(format!("{refused:?}").contains("WB018"), "{refused:?}");
    }
    assert!(result(json!({ "a.txt": "no hash" })).is_err() && result(json!({ "../x": one })).is_err());
    let mut work = t.begin().await;
    card::insert(&mut work, &[result(json!({ "a.txt": two })).unwrap()]).await.unwrap();
    let pins = artifact::pinned(&mut work, &[good.card_id()]).await.unwrap();
    let found = artifact::find(&mut work, &path("a.txt"), Which::Pinned(pins[&path("a.txt")])).await.unwrap().unwrap();
    assert_eq!((found.artifact.version, found.stored.hash), (1, one), "the version that was handed over");
    assert_eq!(artifact::find_pinned(&mut work, &pins).await.unwrap()[0].artifact.version, 1);
}

/// HO-1: garbage is what was removed and no card speaks of: then the object goes, and the room it took is free.
#[tokio::test]
async fn what_a_card_speaks_of_is_not_collected() {
    let t = db().await;
    let mut work = t.begin().await;
    let (upload_id, _) = put(&mut work, "a.txt", b"one").await;
    put(&mut work, "copy.txt", b"one").await;
    let card = package(&[("a.txt", ArtifactHash::of(b"one"))]);
    card::insert(&mut work, std::slice::from_ref(&card)).await.unwrap();
    sqlx::query("delete from cardbox.uploads").execute(&mut *work).await.unwrap();
    assert_eq!(artifact::remove(&mut work, &path("a.txt"), Remove::All).await.unwrap(), 1);
    assert!(artifact::find(&mut work, &path("a.txt"), Which::Newest).await.unwrap().is_none());
    assert_eq!(artifact::collect(&mut work, 100).await.unwrap(), 0);
    let pinned = artifact::find(&mut work, &path("a.txt"), Which::Pinned(ArtifactHash::of(b"one"))).await.unwrap();
    assert_eq!(pinned.unwrap().upload_id, upload_id);
    card::delete(&mut work, &[card.card_id()], "over").await.unwrap();
    assert_eq!(artifact::collect(&mut work, 100).await.unwrap(), 1);
    let left: i64 = sqlx::query_scalar("select count(*) from cardbox.uploads").fetch_one(&mut *work).await.unwrap();
    assert_eq!((left, artifact::usage(&mut work).await.unwrap().bytes), (0, 3), "the copy still has it");
    artifact::remove(&mut work, &path("copy.txt"), Remove::All).await.unwrap();
    assert_eq!(artifact::collect(&mut work, 100).await.unwrap(), 1);
    let due: UploadId =
        sqlx::query_scalar("select upload_id from cardbox.uploads").fetch_one(&mut *work).await.unwrap();
    assert_eq!((due, artifact::usage(&mut work).await.unwrap().bytes), (upload_id, 0));
    // It stands at another version then.
    assert_eq!(put(&mut work, "copy.txt", b"two").await.1, 1);
    assert_eq!(put(&mut work, "copy.txt", b"three").await.1, 2);
    assert_eq!(artifact::remove(&mut work, &path("copy.txt"), Remove::Older).await.unwrap(), 1);
    assert_eq!(artifact::versions(&mut work, &path("copy.txt"), None, 9).await.unwrap().len(), 1);
}

/// HO-1: if one transaction names an artifact and another deletes it, one comes first, and the other sees it.
#[tokio::test]
async fn what_is_being_named_is_not_let_go_of() {
    let t = db().await;
    let mut work = t.begin().await;
    put(&mut work, "a.txt", b"one").await;
    put(&mut work, "b.txt", b"two").await;
    work.commit().await.unwrap();
    let (one, two) = (ArtifactHash::of(b"one"), ArtifactHash::of(b"two"));
    // Named, and not committed yet.
    let mut naming = t.begin().await;
    card::insert(&mut naming, &[package(&[("a.txt", one)])]).await.unwrap();
    let mut work = t.begin().await;
    artifact::remove(&mut work, &path("a.txt"), Remove::All).await.unwrap();
    artifact::remove(&mut work, &path("b.txt"), Remove::All).await.unwrap();
    assert_eq!(artifact::collect(&mut work, 100).await.unwrap(), 1, "b, and not a");
    naming.commit().await.unwrap();
    // Deleted, and not committed yet: a transaction that names it waits, and is refused.
    let kernel = t.kernel.clone();
    let project_id = t.project_id;
    let waiting = tokio::spawn(async move {
        let mut work = kernel.begin(project_id).await.unwrap();
        card::insert(&mut work, &[package(&[("b.txt", two)])]).await
    });
    t.until_blocked(1).await;
    work.commit().await.unwrap();
    assert!(format!("{:?}", waiting.await.unwrap()).contains("WB018"));
    assert_eq!(artifact::collect(&mut t.begin().await, 100).await.unwrap(), 0, "a is spoken of");
}

/// A project stores as much as it may.
#[tokio::test]
async fn more_than_the_quota_is_refused() {
    let t = db().await;
    let mut work = t.begin().await;
    let settings = serde_json::from_value(json!({ "settings": { "artifact_quota_bytes": 10 } })).unwrap();
    resource::apply(&mut work, &[settings]).await.unwrap();
    put(&mut work, "a", b"123456").await;
    work.commit().await.unwrap();
    let (upload_id, stored, at) = (UploadId::new(), Stored::of(b"12345"), path("b"));
    let mut work = t.begin().await;
    assert_eq!(artifact::begin(&mut work, upload_id).await.unwrap(), 4);
    let refused = artifact::finish(&mut work, finish(upload_id, &at, &stored)).await;
    assert!(matches!(&refused, Err(Error::Quota(said)) if said == "11 of 10 bytes"), "{refused:?}");
    drop(work);
    let mut work = t.begin().await;
    put(&mut work, "same", b"123456").await;
    put(&mut work, "b", b"1234").await;
    let refused = artifact::begin(&mut work, UploadId::new()).await;
    assert!(matches!(refused, Err(Error::Quota(_))), "{refused:?}");
}
