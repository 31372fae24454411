//! All routes, by topic.

use std::sync::Arc;

use utoipa_axum::{router::OpenApiRouter, routes};

use crate::Api;

pub(crate) use watch::{Watchers, look_around};

mod artifact;
mod card;
mod context;
mod handoff;
mod knowledge;
mod resource;
mod session;
mod turn;
mod watch;
mod worker;

/// Returns all routes below `/v1/projects/{project}`.
pub(crate) fn all() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(turn::start_turn, turn::list_turns))
        .routes(routes!(turn::show_turn))
        .routes(routes!(turn::show_tree))
        .routes(routes!(turn::list_edges))
        .routes(routes!(turn::stop_turn))
        .routes(routes!(turn::fork_turn))
        .routes(routes!(watch::watch_turn))
        .routes(routes!(turn::show_batch))
        .routes(routes!(session::open_session, session::list_sessions))
        .routes(routes!(session::show_session, session::describe_session, session::forget_session))
        .routes(routes!(session::end_session))
        .routes(routes!(session::list_messages))
        .routes(routes!(session::list_session_turns))
        .routes(routes!(session::list_changes))
        .routes(routes!(context::list_receipts))
        .routes(routes!(context::show_context))
        .routes(routes!(context::diff_contexts))
        .routes(routes!(context::why_card))
        .routes(routes!(card::show_card, card::delete_card))
        .routes(routes!(card::expire_card))
        .routes(routes!(card::show_cards))
        .routes(routes!(card::show_box))
        .routes(routes!(card::show_boxes))
        .routes(routes!(card::list_cards))
        .routes(routes!(artifact::put_artifact, artifact::list_artifacts, artifact::remove_artifact))
        .routes(routes!(artifact::list_versions))
        .routes(routes!(artifact::read_artifact))
        .routes(routes!(handoff::check_handoff))
        .routes(routes!(handoff::send_handoff))
        .routes(routes!(handoff::show_schema))
        .routes(routes!(handoff::list_requests))
        .routes(routes!(handoff::decide_request))
        .routes(routes!(knowledge::apply_document, knowledge::list_documents, knowledge::remove_document))
        .routes(routes!(knowledge::search_knowledge))
        .routes(routes!(knowledge::publish_turn))
        .routes(routes!(resource::show_project))
        .routes(routes!(resource::apply_resources, resource::list_resources))
        .routes(routes!(resource::show_profile))
        .routes(routes!(resource::show_tool))
        .routes(routes!(resource::show_plan))
        .routes(routes!(resource::show_settings))
        .routes(routes!(resource::list_agents, resource::provision_agent))
        .routes(routes!(resource::show_agent))
        .routes(routes!(resource::list_keys, resource::create_key))
        .routes(routes!(resource::revoke_key))
        .routes(routes!(resource::list_audit))
        .routes(routes!(worker::claim::claim_turns))
        .routes(routes!(worker::lease::keep_lease))
        .routes(routes!(worker::lease::leave))
        .routes(routes!(worker::step::write_step))
        .routes(routes!(worker::finish::finish_turn))
        .routes(routes!(worker::finish::give_back_turn))
        .routes(routes!(worker::call::claim_calls))
        .routes(routes!(worker::call::report_call))
}
