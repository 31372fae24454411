//! What a project does now, and finding a thing by what a person has of it.

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use waybill_core::artifact::ArtifactPath;
use waybill_kernel::{
    artifact, find,
    now::{self, Now},
    work::UnitOfWork,
};

use crate::{Api, caller::Caller, problem::Problem, request::Query};

/// The most things that one search finds, and the most of each kind.
const MOST: usize = 20;
const MOST_OF_KIND: i64 = 5;
const LONGEST: usize = 200;

/// Show what the project does now: what runs, what waits and for whom, what became of the last hour's turns, and which workers are alive.
#[utoipa::path(get, path = "/now", tag = "turns", responses((status = 200, body = Now)))]
pub(crate) async fn show_now(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<Now>, Problem> {
    caller.may_audit()?;
    Ok(Json(now::read(&mut caller.begin(&api).await?).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct FindParams {
    /// What to look for: an id, at least the first 8 digits of one, the hash of an artifact or of a card that is shared by content, or the beginning
    /// of the path of an artifact.
    #[param(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    q: String,
}

/// A thing that was found.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FoundThing {
    kind: find::Kind,
    /// Its id, or the path of an artifact.
    id: String,
    /// What people know it by: the first line of an instruction, the title of a session, the type of a card, the profile of an agent, or the name of
    /// the tool that was called. `null` if there is nothing.
    title: Option<String>,
    /// Its path below `/v1/projects/PROJECT`.
    href: String,
}

/// Find a turn, card, box, session, agent, batch, tool call or artifact by its id, the beginning of its id, its hash or its path.
///
/// Up to 20 things are returned, and up to 5 of each kind. The id of a trace that Waybill began is the id of its root turn. Steps are not found by
/// their id: look at their turn.
#[utoipa::path(
    get, path = "/find", tag = "turns", params(FindParams),
    responses((status = 200, body = Vec<FoundThing>)),
)]
pub(crate) async fn find(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(FindParams { q }): Query<FindParams>,
) -> Result<Json<Vec<FoundThing>>, Problem> {
    caller.may_read()?;
    if !(1..=LONGEST).contains(&q.chars().count()) || q.contains(char::is_control) {
        return Err(Problem::invalid("`q` must have 1 to 200 characters, and no control characters"));
    }
    let mut work = caller.begin(&api).await?;
    let mut found = Vec::new();
    if let Some(range) = find::ids_from(&q) {
        let owner = caller.owner();
        let ids = find::by_id(&mut work, range, owner.as_deref(), MOST_OF_KIND).await?;
        found.extend(ids.into_iter().map(thing));
    }
    for path in paths(&mut work, &q, &mut found).await? {
        let is_open = path.parse::<ArtifactPath>().is_ok_and(|path| caller.may_touch(&path).is_ok());
        if is_open {
            found.push(at_path(path));
        }
    }
    found.truncate(MOST);
    Ok(Json(found))
}

/// Returns the paths of artifacts that have this hash, or that begin with this text. A card that has the hash is added to what was found.
async fn paths(work: &mut UnitOfWork, text: &str, found: &mut Vec<FoundThing>) -> Result<Vec<String>, Problem> {
    if let Some(hash) = hash(text) {
        found.extend(find::card_by_hash(work, &hash).await?.map(thing));
        return Ok(find::paths_by_hash(work, &hash, MOST_OF_KIND).await?);
    }
    let listed = artifact::list(work, text, "", MOST_OF_KIND).await?;
    Ok(listed.into_iter().map(|artifact| artifact.path.to_string()).collect())
}

/// Reads 64 hex digits.
fn hash(text: &str) -> Option<Vec<u8>> {
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..32).map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).ok()).collect()
}

fn thing(found: find::Found) -> FoundThing {
    use find::Kind;
    let id = found.id.to_string();
    let href = match found.kind {
        Kind::Turn => format!("/turns/{id}"),
        Kind::Card => format!("/cards/{id}"),
        Kind::Box => format!("/boxes/{id}"),
        Kind::Session => format!("/sessions/{id}"),
        Kind::Agent => format!("/agents/{id}"),
        Kind::Batch => format!("/batches/{id}"),
        Kind::Call => format!("/turns/{}/edges", found.agent_turn_id.map(|turn| turn.to_string()).unwrap_or_default()),
        Kind::Artifact => format!("/artifacts/versions?path={id}"),
    };
    FoundThing { kind: found.kind, id, title: found.title, href }
}

fn at_path(path: String) -> FoundThing {
    // Only what a query takes as it is stays as it is.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let coded: String =
        path.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect();
    let href = format!("/artifacts/versions?path={coded}");
    FoundThing { kind: find::Kind::Artifact, id: path, title: None, href }
}
