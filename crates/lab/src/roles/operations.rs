//! Every operation of the API, with a request for it and the scopes that have it.

use serde_json::{Value, json};
use waybill_core::key::Scope::{self, Approver, Auditor, Developer, Operator, Reader, Tool, Worker};

use crate::walls::requests::package;

/// One operation, requested on something that belongs to the team.
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    /// The scopes that have this operation.
    pub(crate) may: &'static [Scope],
    /// Whether those scopes are refused too, because the key is bound to something else or another worker holds the turn or call.
    pub(super) bound: bool,
    pub(super) path: &'static str,
    pub(super) body: Value,
}

const READ: &[Scope] = &[Operator, Worker, Reader, Developer];
const RECORD: &[Scope] = &[Operator, Worker, Reader, Developer, Auditor];
const ACT: &[Scope] = &[Operator];

/// Returns an operation that every key may use if its scope has it.
fn op(name: &'static str, may: &'static [Scope], path: &'static str, body: Value) -> Operation {
    Operation { name, may, bound: false, path, body }
}

/// Returns an operation that is also refused to the scopes that have it.
fn bound(name: &'static str, may: &'static [Scope], path: &'static str, body: Value) -> Operation {
    Operation { name, may, bound: true, path, body }
}

/// Returns every operation of the OpenAPI document with a request for it. Artifact paths are the team's; no key here is bound to them.
pub(crate) fn operations() -> Vec<Operation> {
    [turns(), sessions(), contexts(), documents(), resources(), workers()].into_iter().flatten().collect()
}

fn turns() -> Vec<Operation> {
    let start = |more: Value| {
        let mut body = json!({ "profile_name": "hand", "instruction": "x" });
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        body
    };
    vec![
        op("list_turns", RECORD, "/turns", Value::Null),
        bound("start_turn", ACT, "/turns", start(json!({}))),
        bound("start_turn", ACT, "/turns", start(json!({ "agent_id": "{agent}" }))),
        bound(
            "start_turns",
            ACT,
            "/turns/batch",
            json!({ "starts": [{ "key": "{fresh}", "start": start(json!({})) }] }),
        ),
        op("show_turn", READ, "/turns/{turn}", Value::Null),
        op("show_tree", RECORD, "/turns/{turn}/tree", Value::Null),
        op("list_edges", RECORD, "/turns/{turn}/edges", Value::Null),
        op("show_budget", RECORD, "/turns/{turn}/budget", Value::Null),
        op("show_spend", RECORD, "/spend", Value::Null),
        op("show_cache_misses", RECORD, "/cache-misses", Value::Null),
        op("show_graph", RECORD, "/turns/{turn}/graph", Value::Null),
        op("show_timeline", RECORD, "/turns/{turn}/timeline", Value::Null),
        op("show_now", RECORD, "/now", Value::Null),
        op("find", READ, "/find?q={turn}", Value::Null),
        op("stop_turn", ACT, "/turns/{turn}/stop", json!({ "reason": "x" })),
        bound("fork_turn", ACT, "/turns/{turn}/fork", json!({})),
        bound(
            "fork_turn",
            ACT,
            "/turns/{turn}/fork",
            json!({ "live_tools": true, "profile_patch": { "limits": null } }),
        ),
        bound(
            "fork_turn",
            ACT,
            "/turns/{turn}/fork",
            json!({ "profile_name": "mine", "profile_patch": { "allowed_tools": ["slow"] } }),
        ),
        bound("start_forks", ACT, "/turns/{turn}/forks", json!({ "variants": [{}] })),
        op("list_forks", READ, "/turns/{turn}/forks", Value::Null),
        op("compare_forks", READ, "/forks/compare?turns={turn},{turn}", Value::Null),
        op("watch_turn", READ, "/turns/{turn}/events", Value::Null),
        op("watch_project", READ, "/events?root={turn}", Value::Null),
        op("show_batch", READ, "/batches/{batch}", Value::Null),
    ]
}

fn sessions() -> Vec<Operation> {
    vec![
        op("open_session", ACT, "/sessions", json!({})),
        op("list_sessions", READ, "/sessions", Value::Null),
        bound("show_session", READ, "/sessions/{session}", Value::Null),
        bound("describe_session", ACT, "/sessions/{session}", json!({ "title": "x" })),
        bound("forget_session", ACT, "/sessions/{session}", Value::Null),
        bound("end_session", ACT, "/sessions/{session}/end", Value::Null),
        bound("list_messages", READ, "/sessions/{session}/messages", Value::Null),
        bound("list_session_turns", READ, "/sessions/{session}/turns", Value::Null),
        bound("list_changes", READ, "/sessions/{session}/changes", Value::Null),
    ]
}

/// Returns the operations on receipts, contexts, cards and boxes.
fn contexts() -> Vec<Operation> {
    vec![
        op("list_receipts", READ, "/turns/{turn}/receipts", Value::Null),
        op("show_context", READ, "/turns/{turn}/context", Value::Null),
        op("list_context_messages", READ, "/turns/{turn}/context/messages", Value::Null),
        op("show_context_request", READ, "/turns/{turn}/context/request", Value::Null),
        op("lint_context", READ, "/turns/{turn}/context/lint", Value::Null),
        op("verify_context", READ, "/turns/{turn}/context/verify", json!({})),
        op("diff_contexts", READ, "/context/diff?left={turn}&right={turn}", Value::Null),
        op("list_context_chain", READ, "/turns/{turn}/context/chain", Value::Null),
        op("why_card", READ, "/turns/{turn}/why/{card}", Value::Null),
        op("show_card", READ, "/cards/{card}", Value::Null),
        op("show_cards", READ, "/cards/batch", json!({ "card_ids": ["{card}"] })),
        op("expire_card", &[], "/cards/{card}/expire", json!({ "ttl_seconds": 60 })),
        op("delete_card", &[], "/cards/{card}?reason=x", Value::Null),
        op("show_box", READ, "/boxes/{box}", Value::Null),
        op("show_boxes", READ, "/boxes/batch", json!({ "box_ids": ["{box}"] })),
        op("list_cards", READ, "/boxes/{box}/cards", Value::Null),
        op("show_blast", READ, "/cards/{card}/blast", Value::Null),
        op("list_sight", READ, "/cards/{card}/sight", Value::Null),
        op("list_holdings", READ, "/cards/{card}/holdings", Value::Null),
        op("list_card_calls", READ, "/cards/{card}/calls", Value::Null),
        op("list_entries", READ, "/boxes/{box}/entries", Value::Null),
        op("list_heirs", READ, "/boxes/{box}/heirs", Value::Null),
        op("list_handovers", READ, "/turns/{turn}/handovers", Value::Null),
        op("list_grants", RECORD, "/grants", Value::Null),
        op("give_grant", &[], "/grants", json!({ "agent_id": "{agent}", "box_id": "{box}", "reason": "x" })),
        op("revoke_grant", &[], "/grants/{fresh}", Value::Null),
        op("list_refusals", RECORD, "/refusals", Value::Null),
    ]
}

/// Returns the operations on artifacts, handoffs, requests and knowledge.
fn documents() -> Vec<Operation> {
    vec![
        bound("put_artifact", &[Operator, Worker, Tool], "/artifacts?path={name}", json!("other words")),
        bound("list_artifacts", READ, "/artifacts", Value::Null),
        bound("remove_artifact", ACT, "/artifacts?path={name}", Value::Null),
        bound("list_versions", READ, "/artifacts/versions?path={name}", Value::Null),
        bound(
            "read_artifact",
            &[Operator, Worker, Reader, Developer, Tool],
            "/artifacts/content?path={name}",
            Value::Null,
        ),
        op("check_handoff", &[Operator, Worker], "/handoffs/check", json!({ "package": package("{name}")["package"] })),
        bound("send_handoff", ACT, "/handoffs", package("{name}")),
        op("show_schema", READ, "/handoff-types/init_to_execute/schema", Value::Null),
        op("list_requests", &[Operator, Worker, Reader, Developer, Approver], "/requests", Value::Null),
        op("show_request", &[Operator, Worker, Reader, Developer, Approver], "/requests/{call}", Value::Null),
        op("decide_request", &[Operator, Approver], "/requests/{call}", json!({ "decision": "approved" })),
        op("apply_document", ACT, "/knowledge?path={name}", json!("other words")),
        op("list_documents", READ, "/knowledge?kind=knowledge", Value::Null),
        op("remove_document", ACT, "/knowledge?kind=knowledge&path={name}", Value::Null),
        op("search_knowledge", READ, "/knowledge/search", json!({ "question": "{name}", "folders": ["{name}"] })),
        op("publish_turn", ACT, "/turns/{turn}/publish", json!({ "path": "{name}" })),
    ]
}

/// Returns the operations on the project: its resources, agents, keys and audit.
fn resources() -> Vec<Operation> {
    let profile = json!({ "profile": { "name": "lead", "worker_target": "llm", "system_prompt_template": "x",
        "llm_config": { "provider": "demo", "model": "demo" } } });
    let tool = |name: &str, target: &str| json!({ "tool": { "name": name, "description": "d", "target": target } });
    let apply = |manifest: Value| json!({ "manifests": [manifest] });
    vec![
        op("show_me", &Scope::ALL, "/", Value::Null),
        op("log_in", &Scope::ALL, "/", Value::Null),
        op("show_login", &Scope::ALL, "/", Value::Null),
        op("log_out", &Scope::ALL, "/", Value::Null),
        op("begin_login", &Scope::ALL, "/", Value::Null),
        op("finish_login", &Scope::ALL, "/", Value::Null),
        op("show_project", &Scope::ALL, "/", Value::Null),
        op("create_project", &[], "/../../projects", json!({ "slug": "{fresh}", "with_key": true })),
        op("list_projects", &[], "/../../projects", Value::Null),
        bound("apply_resources", &[Developer], "/resources", apply(json!({ "settings": {} }))),
        bound("apply_resources", &[Developer], "/resources", apply(profile)),
        bound("apply_resources", &[Developer], "/resources", apply(tool("slow", "mine"))),
        bound("apply_resources", &[Developer], "/resources", apply(tool("fresh", "slow"))),
        op("list_resources", RECORD, "/resources", Value::Null),
        op("show_profile", READ, "/profiles/lead", Value::Null),
        op("show_tool", &[Operator, Worker, Tool, Reader, Developer], "/tools/slow", Value::Null),
        bound("register_tool", &[Tool, Developer], "/tools/slow", tool("slow", "mine")["tool"].clone()),
        bound("register_tool", &[Tool, Developer], "/tools/fresh", tool("fresh", "slow")["tool"].clone()),
        bound("remove_profile", &[Developer], "/profiles/lead", Value::Null),
        bound("remove_tool", &[Tool, Developer], "/tools/slow", Value::Null),
        bound("remove_tool", &[Tool, Developer], "/tools/slow", Value::Null),
        op("show_plan", READ, "/plans/plan", Value::Null),
        op("show_settings", READ, "/settings", Value::Null),
        op("show_retention", &[Auditor], "/retention", Value::Null),
        op("set_retention", &[], "/retention", json!({ "content_months": 1, "record_months": 1 })),
        op("plan_retention", &[Auditor], "/retention/plan", Value::Null),
        op("place_hold", &[], "/retention/hold", json!({ "reason": "x" })),
        op("lift_hold", &[], "/retention/hold?reason=x", Value::Null),
        op("list_agents", RECORD, "/agents", Value::Null),
        bound("provision_agent", ACT, "/agents", json!({ "profile_name": "hand" })),
        op("show_agent", RECORD, "/agents/{agent}", Value::Null),
        op("list_keys", &[Auditor], "/keys", Value::Null),
        op("create_key", &[], "/keys", json!({ "name": "mine", "scope": "admin" })),
        op("revoke_key", &[], "/keys/{key}", Value::Null),
        op("list_audit", &[Auditor], "/audit", Value::Null),
    ]
}

/// Returns the operations of workers and tools, on turns and calls that another worker holds.
fn workers() -> Vec<Operation> {
    let fence = json!({ "agent_id": "{fence_agent}", "turn_epoch": "{epoch}", "claim_token": "{token}" });
    let guess = json!({ "agent_id": "{fence_agent}", "turn_epoch": "{epoch}", "claim_token": "1" });
    let card = json!({ "card_id": "{fresh}", "type": "agent.thought", "role": "assistant", "content": "x" });
    let deliverable = json!({ "card_id": "{fresh}", "type": "task.deliverable", "role": "assistant", "content": "x" });
    let ending =
        |fence: &Value| json!({ "fence": fence, "status": "success", "cards": [deliverable], "saw_external": true });
    let said = json!({ "choices": [{ "message": { "content": "x" }, "finish_reason": "stop" }] });
    let hash = "0".repeat(64);
    let answered =
        |fence: &Value| json!({ "fence": fence, "step_id": "{fresh}", "request_hash": hash, "response": said });
    let piece = |fence: &Value| json!({ "fence": fence, "step_id": "{fresh}", "attempt": 1, "text": "x" });
    let claim = |target: &str| json!({ "worker": "w", "target": target });
    let report =
        json!({ "worker": "w", "claim_token": "{call_token}", "card_id": "{fresh}", "status": "success", "result": 1 });
    vec![
        bound("claim_turns", &[Worker], "/worker/claim", claim("held")),
        bound("claim_turns", &[Worker], "/worker/claim", claim("pmo")),
        bound("keep_lease", &[Worker, Tool], "/worker/heartbeat", json!({ "worker": "w" })),
        op("leave", &[Worker, Tool], "/worker/leave", json!({ "worker": "w" })),
        bound(
            "write_step",
            &[Worker],
            "/turns/{fence_turn}/steps",
            json!({ "fence": fence, "step_id": "{fresh}", "cards": [card], "saw_external": true }),
        ),
        bound(
            "write_step",
            &[Worker],
            "/turns/{fence_turn}/steps",
            json!({ "fence": guess, "step_id": "{fresh}", "saw_external": true }),
        ),
        bound("send_tokens", &[Worker], "/turns/{fence_turn}/tokens", piece(&fence)),
        bound("send_tokens", &[Worker], "/turns/{fence_turn}/tokens", piece(&guess)),
        bound("finish_turn", &[Worker], "/turns/{fence_turn}/finish", ending(&fence)),
        bound("finish_turn", &[Worker], "/turns/{fence_turn}/finish", ending(&guess)),
        bound("compose_turn", &[Worker], "/turns/{fence_turn}/compose", json!({ "fence": fence })),
        bound("compose_turn", &[Worker], "/turns/{fence_turn}/compose", json!({ "fence": guess })),
        bound("answer_turn", &[Worker], "/turns/{fence_turn}/answer", answered(&fence)),
        bound("answer_turn", &[Worker], "/turns/{fence_turn}/answer", answered(&guess)),
        bound("give_back_turn", &[Worker], "/turns/{fence_turn}/give-back", json!({ "fence": fence, "error": "x" })),
        bound("claim_calls", &[Worker, Tool], "/calls/claim", claim("slow")),
        bound("claim_calls", &[Worker, Tool], "/calls/claim", claim("pmo")),
        bound("claim_calls", &[Worker, Tool], "/calls/claim", claim("tools")),
        bound("report_call", &[Worker, Tool], "/calls/{held_call}/report", report),
    ]
}
