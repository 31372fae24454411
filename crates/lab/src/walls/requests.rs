//! The requests of an attack, with placeholders for what belongs to the victim.

use reqwest::Method;
use serde_json::{Value, json};

/// The paths of reads, with placeholders for the victim's ids.
pub(super) const READS: [&str; 72] = [
    "/",
    "/turns/{turn}",
    "/turns/{turn}?wait_seconds=0.1",
    "/turns/{turn}/tree",
    "/turns/{turn}/edges",
    "/turns/{turn}/budget",
    "/spend?by=agent",
    "/spend?by=session",
    "/cache-misses?by=conversation",
    "/turns/{turn}/graph",
    "/turns/{turn}/timeline?tree=true",
    "/now",
    "/find?q={turn}",
    "/find?q={card}",
    "/find?q={call}",
    "/find?q={name}",
    "/turns/{turn}/events",
    "/turns/{turn}/forks",
    "/forks/compare?turns={turn},{turn}",
    "/events?root={turn}",
    "/events?tokens={turn}",
    "/turns/{turn}/receipts",
    "/turns/{turn}/context",
    "/turns/{turn}/context?step_id={step}",
    "/turns/{turn}/context?bodies=false",
    "/turns/{turn}/context/messages",
    "/turns/{turn}/context/request",
    "/turns/{turn}/context/request?step_id={step}",
    "/turns/{turn}/context/lint",
    "/turns/{turn}/context/lint?step_id={step}",
    "/turns/{turn}/context/chain",
    "/turns/{turn}/context/chain?after={step}",
    "/turns/{turn}/why/{card}",
    "/context/diff?left={turn}&right={turn}",
    "/batches/{batch}",
    "/boxes/{box}",
    "/boxes/{box}/cards",
    "/boxes/{box}/entries",
    "/boxes/{box}/heirs",
    "/turns/{turn}/handovers",
    "/cards/{card}",
    "/cards/{card}/blast",
    "/cards/{card}/sight",
    "/cards/{card}/holdings",
    "/cards/{card}/calls",
    "/grants?agent_id={agent}",
    "/refusals",
    "/agents/{agent}",
    "/turns?after={turn}",
    "/turns?open=true&after={turn}",
    "/turns?agent={agent}",
    "/turns?session={session}",
    "/turns?forked_from={turn}",
    "/agents?after={agent}",
    "/keys?after={key}",
    "/audit?after={audit}",
    "/profiles/{name}",
    "/tools/{name}",
    "/resources",
    "/settings",
    "/retention",
    "/retention/plan?content_months=1",
    "/artifacts",
    "/artifacts?prefix={name}",
    "/artifacts/versions?path={name}",
    "/artifacts/content?path={name}",
    "/handoff-types/{name}/schema",
    "/requests",
    "/requests?state=decided",
    "/requests/{call}",
    "/knowledge?kind=knowledge",
    "/knowledge?kind=knowledge&after={name}",
];

/// Returns the writes, with placeholders for the ids of the victim.
pub(super) fn writes() -> Vec<(Method, &'static str, Value)> {
    let fence = json!({ "agent_id": "{fence_agent}", "turn_epoch": "{epoch}", "claim_token": "{token}" });
    let card = json!({ "card_id": "{fresh}", "type": "agent.thought", "role": "assistant", "content": "x" });
    let deliverable = json!({ "card_id": "{fresh}", "type": "task.deliverable", "role": "assistant", "content": "x" });
    let claim = json!({ "worker": "w", "target": "llm", "most": 10 });
    let with_target = |target: &str| {
        let mut claim = claim.clone();
        claim["target"] = target.into();
        claim
    };
    vec![
        (Method::POST, "/cards/batch", json!({ "card_ids": ["{card}", "{card}"] })),
        (Method::POST, "/cards/{card}/expire", json!({ "ttl_seconds": 60 })),
        (Method::DELETE, "/cards/{card}?reason=x", Value::Null),
        (Method::POST, "/boxes/batch", json!({ "box_ids": ["{box}"] })),
        (Method::POST, "/turns", json!({ "profile_name": "hand", "instruction": "x", "agent_id": "{agent}" })),
        (Method::POST, "/turns", json!({ "profile_name": "{name}", "instruction": "x" })),
        (
            Method::POST,
            "/turns/batch",
            json!({ "starts": [
                { "key": "{fresh}", "start": { "profile_name": "hand", "instruction": "x", "agent_id": "{agent}" } },
                { "key": "{fresh}", "start": { "profile_name": "{name}", "instruction": "x", "context_box_ids": ["{box}"] } },
            ] }),
        ),
        (Method::POST, "/agents", json!({ "profile_name": "{name}" })),
        (Method::POST, "/turns/{turn}/stop", json!({ "reason": "x" })),
        (Method::POST, "/turns/{turn}/fork", json!({})),
        (Method::POST, "/turns/{turn}/fork", json!({ "cards": [{ "card_id": "{card}", "content": "x" }] })),
        (Method::POST, "/turns/{turn}/context/verify", json!({})),
        (Method::POST, "/turns/{turn}/context/verify", json!({ "step_id": "{step}" })),
        (Method::POST, "/turns/{turn}/forks", json!({ "variants": [{}, {}] })),
        (Method::DELETE, "/tools/{name}", Value::Null),
        (Method::DELETE, "/profiles/{name}", Value::Null),
        (Method::PUT, "/retention", json!({ "content_months": 1 })),
        (Method::PUT, "/retention/hold", json!({ "reason": "x" })),
        (Method::DELETE, "/retention/hold?reason=x", Value::Null),
        (Method::DELETE, "/keys/{key}", Value::Null),
        (Method::POST, "/grants", json!({ "agent_id": "{agent}", "box_id": "{box}", "reason": "x" })),
        (Method::DELETE, "/artifacts?path={name}", Value::Null),
        (Method::DELETE, "/knowledge?kind=knowledge&path={name}", Value::Null),
        (Method::POST, "/knowledge/search", json!({ "question": "{name}", "folders": ["{name}"] })),
        (Method::POST, "/turns/{turn}/publish", json!({ "path": "{name}" })),
        (Method::POST, "/requests/{call}", json!({ "decision": "approved" })),
        (Method::POST, "/handoffs", package("{name}")),
        (Method::POST, "/turns/{fence_turn}/steps", json!({ "fence": fence, "step_id": "{fresh}", "cards": [card] })),
        (
            Method::POST,
            "/turns/{fence_turn}/tokens",
            json!({ "fence": fence, "step_id": "{fresh}", "attempt": 1, "text": "x" }),
        ),
        (
            Method::POST,
            "/turns/{fence_turn}/finish",
            json!({ "fence": fence, "status": "success", "cards": [deliverable] }),
        ),
        (Method::POST, "/turns/{fence_turn}/compose", json!({ "fence": fence })),
        (
            Method::POST,
            "/turns/{fence_turn}/answer",
            json!({ "fence": fence, "step_id": "{fresh}", "request_hash": "0".repeat(64), "response": "" }),
        ),
        (Method::POST, "/turns/{fence_turn}/give-back", json!({ "fence": fence, "error": "x" })),
        (
            Method::POST,
            "/calls/{held_call}/report",
            json!({ "worker": "w", "claim_token": "{call_token}", "card_id": "{fresh}", "status": "success", "result": 1 }),
        ),
        (Method::POST, "/worker/claim", with_target("held")),
        (Method::POST, "/calls/claim", with_target("slow")),
        (Method::POST, "/worker/heartbeat", json!({ "worker": "w" })),
        (Method::POST, "/worker/leave", json!({ "worker": "w" })),
    ]
}

/// Returns a handoff package that names an artifact.
pub(crate) fn package(path: &str) -> Value {
    json!({ "profile_name": "hand", "package": {
        "version": "2.0", "handoff_type": "init_to_execute", "timestamp": "2026-01-04T10:30:00", "user_requirement": "x",
        "design_artifacts": { "x": path },
    } })
}
