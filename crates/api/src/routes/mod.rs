//! All routes, by topic.

use std::sync::Arc;

use utoipa_axum::{router::OpenApiRouter, routes};

use crate::Api;

pub(crate) use watch::{StreamEvent, TokenEvent};

mod artifact;
mod blast;
mod card;
mod context;
mod fork;
mod grant;
mod graph;
mod handoff;
mod holding;
mod knowledge;
mod listing;
mod login;
mod now;
mod project;
mod resource;
mod retention;
mod session;
mod spend;
mod start;
mod tool;
mod turn;
mod watch;
mod watch_tree;
mod worker;

/// Returns the routes that name no project.
pub(crate) fn outside() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(resource::show_me))
        .routes(routes!(login::log_in, login::show_login, login::log_out))
        .routes(routes!(login::begin_login))
        .routes(routes!(login::finish_login))
        .routes(routes!(project::create_project, project::list_projects))
}

/// Returns all routes below `/v1/projects/{project}`.
pub(crate) fn all() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(turn::start_turn, listing::list_turns))
        .routes(routes!(start::start_turns))
        .routes(routes!(turn::show_turn))
        .routes(routes!(turn::show_tree))
        .routes(routes!(turn::list_edges))
        .routes(routes!(spend::show_budget))
        .routes(routes!(spend::show_spend))
        .routes(routes!(spend::show_cache_misses))
        .routes(routes!(graph::show_graph))
        .routes(routes!(graph::show_timeline))
        .routes(routes!(now::show_now))
        .routes(routes!(now::find))
        .routes(routes!(turn::stop_turn))
        .routes(routes!(fork::fork_turn))
        .routes(routes!(fork::start_forks, fork::list_forks))
        .routes(routes!(fork::compare_forks))
        .routes(routes!(watch::watch_turn))
        .routes(routes!(watch::watch_project))
        .routes(routes!(turn::show_batch))
        .routes(routes!(session::open_session, session::list_sessions))
        .routes(routes!(session::show_session, session::describe_session, session::forget_session))
        .routes(routes!(session::end_session))
        .routes(routes!(session::list_messages))
        .routes(routes!(session::list_session_turns))
        .routes(routes!(session::list_changes))
        .routes(routes!(context::list_receipts))
        .routes(routes!(context::seen::show_context))
        .routes(routes!(context::seen::list_context_messages))
        .routes(routes!(context::seen::show_context_request))
        .routes(routes!(context::check::lint_context))
        .routes(routes!(context::check::verify_context))
        .routes(routes!(context::compare::diff_contexts))
        .routes(routes!(context::compare::list_context_chain))
        .routes(routes!(context::why_card))
        .routes(routes!(card::show_card, card::delete_card))
        .routes(routes!(card::expire_card))
        .routes(routes!(card::show_cards))
        .routes(routes!(blast::show_blast))
        .routes(routes!(holding::list_sight))
        .routes(routes!(holding::list_holdings))
        .routes(routes!(holding::list_card_calls))
        .routes(routes!(card::show_box))
        .routes(routes!(card::show_boxes))
        .routes(routes!(card::list_cards))
        .routes(routes!(holding::list_entries))
        .routes(routes!(holding::list_heirs))
        .routes(routes!(holding::list_handovers))
        .routes(routes!(grant::list_grants, grant::give_grant))
        .routes(routes!(grant::revoke_grant))
        .routes(routes!(grant::list_refusals))
        .routes(routes!(artifact::put_artifact, artifact::list_artifacts, artifact::remove_artifact))
        .routes(routes!(artifact::list_versions))
        .routes(routes!(artifact::read_artifact))
        .routes(routes!(handoff::check_handoff))
        .routes(routes!(handoff::send_handoff))
        .routes(routes!(handoff::show_schema))
        .routes(routes!(handoff::list_requests))
        .routes(routes!(handoff::show_request, handoff::decide_request))
        .routes(routes!(knowledge::apply_document, knowledge::list_documents, knowledge::remove_document))
        .routes(routes!(knowledge::search_knowledge))
        .routes(routes!(knowledge::publish_turn))
        .routes(routes!(resource::show_project))
        .routes(routes!(resource::apply_resources, resource::list_resources))
        .routes(routes!(resource::show_profile, resource::remove_profile))
        .routes(routes!(tool::show_tool, tool::register_tool, tool::remove_tool))
        .routes(routes!(resource::show_plan))
        .routes(routes!(resource::show_settings))
        .routes(routes!(retention::show_retention, retention::set_retention))
        .routes(routes!(retention::plan_retention))
        .routes(routes!(retention::place_hold, retention::lift_hold))
        .routes(routes!(resource::list_agents, resource::provision_agent))
        .routes(routes!(resource::show_agent))
        .routes(routes!(resource::list_keys, resource::create_key))
        .routes(routes!(resource::revoke_key))
        .routes(routes!(resource::list_audit))
        .routes(routes!(worker::claim::claim_turns))
        .routes(routes!(worker::lease::keep_lease))
        .routes(routes!(worker::lease::leave))
        .routes(routes!(worker::compose::compose_turn))
        .routes(routes!(worker::compose::answer_turn))
        .routes(routes!(worker::step::write_step))
        .routes(routes!(worker::token::send_tokens))
        .routes(routes!(worker::finish::finish_turn))
        .routes(routes!(worker::finish::give_back_turn))
        .routes(routes!(worker::call::claim_calls))
        .routes(routes!(worker::call::report_call))
}
