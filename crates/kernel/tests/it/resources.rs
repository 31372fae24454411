//! PM-1: profiles, tools, plans and settings, each a card under a name.

use serde_json::{Value, json};
use waybill_core::{
    card_box::Span,
    id::Name,
    resource::{Manifest, Settings},
};
use waybill_kernel::{
    card_box, project,
    resource::{self, Applied, Change, Error},
};
use waybill_testkit::{TestDb, fresh_db};

fn manifest(value: Value) -> Manifest {
    serde_json::from_value(value).unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn tool(text: &str, description: &str) -> Manifest {
    manifest(json!({ "tool": { "name": text, "description": description, "target": "web" } }))
}

fn profile(text: &str, more: Value) -> Manifest {
    let mut profile = json!({
        "name": text, "worker_target": "llm", "system_prompt_template": "You are {{agent_id}}.",
        "llm_config": { "provider": "openai_chat", "model": "m" },
    });
    profile.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    manifest(json!({ "profile": profile }))
}

async fn apply(t: &TestDb, manifests: &[Manifest]) -> Result<Vec<Applied>, Error> {
    let mut work = t.begin().await;
    let applied = resource::apply(&mut work, manifests).await?;
    work.commit().await.unwrap();
    Ok(applied)
}

fn changes(applied: &[Applied]) -> Vec<(i32, Change)> {
    applied.iter().map(|applied| (applied.version, applied.change)).collect()
}

/// Applying twice changes nothing; what changed becomes a new card, and a turn that has the old box keeps what it had.
#[tokio::test]
async fn what_changed_becomes_a_new_version() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    project::create(&mut work, "acme").await.unwrap();
    work.commit().await.unwrap();
    let settings = manifest(json!({ "settings": { "enable_share_context": false } }));
    let plan = |text: &str| manifest(json!({ "plan": { "name": "rules", "document": [text] } }));
    // A profile may stand before its tools.
    let all = [profile("a", json!({ "allowed_tools": ["look"] })), tool("look", "x"), plan("one"), settings];
    assert_eq!(changes(&apply(&t, &all).await.unwrap()), [(1, Change::Created); 4]);
    let unchanged = apply(&t, &all).await.unwrap();
    assert!(unchanged.iter().all(|applied| applied.change == Change::Unchanged), "{unchanged:?}");

    let before = resource::profile(&mut t.begin().await, &name("a")).await.unwrap();
    let changed = [profile("a", json!({ "tags": ["quick"] })), tool("look", "y"), plan("two")];
    assert_eq!(changes(&apply(&t, &changed).await.unwrap()), [(2, Change::Changed); 3]);
    let mut work = t.begin().await;
    let after = resource::profile(&mut work, &name("a")).await.unwrap();
    assert_ne!(after.profile_box_id, before.profile_box_id);
    assert!(after.profile.tags.contains(&name("quick")) && after.profile.allowed_tools.is_empty());
    for found in [&before, &after] {
        let held = card_box::read(&mut work, Span::whole(found.profile_box_id), None).await.unwrap();
        assert_eq!(held.len(), 1, "one version, for ever");
    }
    assert_eq!(resource::tool(&mut work, &name("look")).await.unwrap().description, "y");
    assert_eq!(resource::plan(&mut work, &name("rules"), None).await.unwrap().1.document, json!(["two"]));
    assert_eq!(resource::plan(&mut work, &name("rules"), Some(1)).await.unwrap().1.document, json!(["one"]));
    assert!(!resource::settings(&mut work).await.unwrap().enable_share_context);
    let listed = resource::list(&mut work).await.unwrap();
    assert_eq!(
        listed.iter().map(|row| (row.kind.as_str(), row.name.as_str(), row.version)).collect::<Vec<_>>(),
        [("plan", "rules", 2), ("profile", "a", 2), ("settings", "project", 1), ("tool", "look", 2)]
    );
    // Back to what it was is a change too, and settings count their changes like the rest.
    assert_eq!(changes(&apply(&t, &all[..1]).await.unwrap()), [(3, Change::Changed)]);
    for (version, shares) in [(2, true), (3, false)] {
        let settings = manifest(json!({ "settings": { "enable_share_context": shares } }));
        assert_eq!(changes(&apply(&t, &[settings]).await.unwrap()), [(version, Change::Changed)]);
    }
}

/// What does not fit together is refused as a whole, by name.
#[tokio::test]
async fn what_does_not_fit_together_is_refused() {
    let t = fresh_db().await;
    let refused = async |manifests: &[Manifest]| apply(&t, manifests).await.unwrap_err().to_string();
    let said = refused(&[tool("fetch", "x"), profile("a", json!({ "allowed_tools": ["fetch", "look"] }))]).await;
    assert!(said.contains("profile `a`") && said.contains("look") && !said.contains("fetch"), "{said}");
    let said = refused(&[profile("a", json!({ "must_end_with": ["submit_result"] }))]).await;
    assert!(said.contains("the tool `submit_result` in `must_end_with`"), "{said}");
    let fits = profile("b", json!({ "must_end_with": ["submit_result"], "allowed_internal_tools": ["submit_result"] }));
    apply(&t, std::slice::from_ref(&fits)).await.unwrap();
    assert!(refused(&[fits.clone(), fits]).await.contains("profile `b` is defined twice"));
    assert!(refused(&[manifest(json!({ "settings": {} }))]).await.contains("waybill project create"));
    let mut work = t.begin().await;
    assert_eq!(resource::list(&mut work).await.unwrap().len(), 1, "nothing of what was refused");
    assert!(matches!(resource::profile(&mut work, &name("a")).await, Err(Error::NotFound { .. })));
    assert_eq!(resource::settings(&mut work).await.unwrap(), Settings::default());
}

/// SE-4, PM-1: a key is named, not written; an unknown field is not ignored.
#[test]
fn a_manifest_is_read_strictly() {
    let read = |value: Value| serde_json::from_value::<Manifest>(value).unwrap_err().to_string();
    let with = |more: Value| {
        let mut llm = json!({ "provider": "p", "model": "m" });
        llm.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "profile": { "name": "a", "worker_target": "llm", "system_prompt_template": "x", "llm_config": llm } })
    };
    let key = read(with(json!({ "api_key": "sk-123" })));
    assert!(key.contains("do not write a secret into a manifest") && !key.contains("sk-123"), "{key}");
    assert!(read(with(json!({ "api_kee": {} }))).contains("unknown field `api_kee`"));
    let template = json!({ "profile": { "name": "a", "worker_target": "llm", "system_prompt_template": "{{you}}",
                                        "llm_config": { "provider": "p", "model": "m" } } });
    assert!(read(template).contains("`{{you}}` is not a known slot"));
}
