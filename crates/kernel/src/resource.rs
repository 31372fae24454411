//! What a project has: profiles, tools, plans and settings, each a card under a name (PM-1).
//!
//! Applying the same again changes nothing: the card is known by its content. What changed becomes a new card and a new version; a turn
//! keeps the version that it was dispatched with.

use std::{collections::BTreeSet, num::NonZero};

use chrono::{DateTime, Utc};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::FromRow;
use waybill_core::{
    card::{CardType, Content, Draft, Invalid, NewCard, Reading, Role},
    handoff::HandoffType,
    id::{BoxId, CardId, Name, Target, TurnId},
    resource::{InternalTool, Manifest, Plan, Profile, Settings, Tool},
};

use crate::{
    card,
    work::{DbError, UnitOfWork, from_driver},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "profile `{profile}` uses tools that do not exist: {}. Apply the tools first, or together with the profile",
        .names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
    )]
    UnknownTools { profile: Name, names: Vec<Name> },
    #[error(
        "profile `{profile}` has the tool `{name}` in `must_end_with`, but may not call it: add it to `allowed_tools` or `allowed_internal_tools`"
    )]
    EndNotAllowed { profile: Name, name: Name },
    #[error("{kind} `{name}` is defined twice: use each name once")]
    Twice { kind: Kind, name: Name },
    #[error("there is no {kind} `{name}` in this project")]
    NotFound { kind: Kind, name: Name },
    #[error("{kind} `{name}` is not valid")]
    Invalid { kind: Kind, name: Name, source: Invalid },
    #[error(
        "{kind} `{name}` was written by another version of Waybill, and this version cannot read it: apply it again"
    )]
    Unreadable { kind: Kind, name: Name, source: serde_json::Error },
    #[error("the content of {kind} `{name}` has expired or was deleted: apply it again")]
    Gone { kind: Kind, name: Name },
    #[error("tool `{0}` is larger than 256 KiB: shorten its description and its schemas")]
    LargeTool(Name),
    #[error("tool `{name}` exists, and its target is `{target}`: use another name")]
    OtherTarget { name: Name, target: Target },
    #[error(
        "tool `{0}` was applied by an admin or a developer, and no key registered it: only they can change or remove it"
    )]
    NotRegistered(Name),
    #[error("profile `{profile}` may call tool `{name}`: remove it from `allowed_tools` of the profile first")]
    InUse { name: Name, profile: Name },
    #[error(
        "profile `{profile}` names profile `{name}`: remove it from `delegation_policy` and `summariser` of that profile first"
    )]
    ProfileInUse { name: Name, profile: Name },
    #[error("turn {turn} of profile `{name}` is open: wait for it, or stop it with `waybill turn stop {turn}`")]
    OpenTurn { name: Name, turn: TurnId },
    #[error("`max_open_turns` must be at most {MOST_OPEN_TURNS}")]
    TooManyOpen,
    #[error("the project does not exist: create it with `waybill project create`")]
    NoProject,
    #[error(transparent)]
    Card(#[from] card::Error),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// Kind of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, sqlx::Type, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum Kind {
    Tool,
    Profile,
    Plan,
    HandoffType,
    Settings,
}

impl Kind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Tool => "tool",
            Kind::Profile => "profile",
            Kind::Plan => "plan",
            Kind::HandoffType => "handoff_type",
            Kind::Settings => "settings",
        }
    }

    fn card_type(self) -> CardType {
        match self {
            Kind::Tool => CardType::tool(),
            Kind::Profile => CardType::profile(),
            Kind::Plan => CardType::plan(),
            Kind::HandoffType => CardType::handoff_type(),
            Kind::Settings => CardType::settings(),
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What applying a manifest does to the resource: it is created, changed, or unchanged because it was the same before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Created,
    Changed,
    Unchanged,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Applied {
    pub kind: Kind,
    pub name: Name,
    pub version: i32,
    pub change: Change,
}

fn kind_and_name(manifest: &Manifest) -> (Kind, Name) {
    match manifest {
        Manifest::Tool(tool) => (Kind::Tool, tool.name.clone()),
        Manifest::Profile(profile) => (Kind::Profile, profile.name.clone()),
        Manifest::Plan(plan) => (Kind::Plan, plan.name.clone()),
        Manifest::HandoffType(handoff_type) => (Kind::HandoffType, handoff_type.name.clone()),
        Manifest::Settings(_) => (Kind::Settings, settings_name()),
    }
}

/// Returns the name of the settings, of which there is one card per project.
fn settings_name() -> Name {
    "project".parse().expect("a word")
}

/// The most bytes of a tool: models read it with every call.
const MOST_TOOL: usize = 256 << 10;

pub(crate) fn seal(manifest: &Manifest) -> Result<NewCard, Error> {
    let (kind, name) = kind_and_name(manifest);
    let value = match manifest {
        Manifest::Tool(tool) => serde_json::to_value(tool),
        Manifest::Profile(profile) => serde_json::to_value(profile),
        Manifest::Plan(plan) => serde_json::to_value(plan),
        Manifest::HandoffType(handoff_type) => serde_json::to_value(handoff_type),
        Manifest::Settings(settings) => serde_json::to_value(settings),
    };
    let value = value.map_err(|source| Error::Unreadable { kind, name: name.clone(), source })?;
    if kind == Kind::Tool && value.to_string().len() > MOST_TOOL {
        return Err(Error::LargeTool(name));
    }
    let draft = Draft::new(kind.card_type(), Role::System, Content::Json(value));
    draft.seal().map_err(|source| Error::Invalid { kind, name, source })
}

/// Applies manifests, all or none, and returns what each did, in their order.
pub async fn apply(work: &mut UnitOfWork, manifests: &[Manifest]) -> Result<Vec<Applied>, Error> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = manifests.iter().map(kind_and_name).find(|named| !seen.insert(named.clone())) {
        return Err(Error::Twice { kind: twice.0, name: twice.1 });
    }
    let cards: Vec<NewCard> = manifests.iter().map(seal).collect::<Result<_, _>>()?;
    let card_ids = card::intern(work, &cards).await?;
    let mut applied = Vec::with_capacity(manifests.len());
    for (manifest, card_id) in manifests.iter().zip(card_ids) {
        let (kind, name) = kind_and_name(manifest);
        let version = match manifest {
            Manifest::Tool(tool) => put_tool(work, tool, card_id).await?,
            Manifest::Profile(profile) => put_profile(work, profile, card_id).await?,
            Manifest::Plan(plan) => put_plan(work, plan, card_id).await?,
            Manifest::HandoffType(handoff_type) => put_handoff_type(work, &handoff_type.name, card_id).await?,
            Manifest::Settings(settings) => put_settings(work, card_id, settings).await?,
        };
        let (version, change) = match version {
            Put { version, changed: false } => (version, Change::Unchanged),
            Put { version: 1, changed: true } => (1, Change::Created),
            Put { version, changed: true } => (version, Change::Changed),
        };
        applied.push(Applied { kind, name, version, change });
    }
    // Only now: the tools may have come with the profile, before it or behind it.
    for manifest in manifests {
        if let Manifest::Profile(profile) = manifest
            && let Err(error) = check_tools(work, profile).await
        {
            return Err(work.refuse(error));
        }
    }
    Ok(applied)
}

#[derive(FromRow)]
struct Put {
    version: i32,
    changed: bool,
}

async fn put_tool(work: &mut UnitOfWork, tool: &Tool, card_id: CardId) -> Result<Put, Error> {
    let project_id = work.project_id();
    let put = sqlx::query_as(
        "with put as (
           insert into resource.tools as t (project_id, name, tool_card_id, target)
           values ($1, $2, $3, $4)
               on conflict (project_id, name) do update
              set version = t.version + 1, tool_card_id = $3, target = $4, registered_by = null, updated_at = now()
            where t.tool_card_id is distinct from $3
        returning version
         ), kept as (
           update resource.tools t
              set registered_by = null
            where t.project_id = $1 and t.name = $2 and t.tool_card_id = $3 and t.registered_by is not null
         )
         select version, true as changed from put
          union all
         select version, false from resource.tools where project_id = $1 and name = $2 and not exists (select from put)",
    )
    .bind(project_id)
    .bind(&tool.name)
    .bind(card_id)
    .bind(&tool.target)
    .fetch_one(&mut **work)
    .await?;
    Ok(put)
}

async fn put_profile(work: &mut UnitOfWork, profile: &Profile, card_id: CardId) -> Result<Put, Error> {
    let project_id = work.project_id();
    let put = sqlx::query_as(
        "with put as (
           insert into resource.profiles as p (project_id, name, profile_card_id, profile_box_id, worker_target, tags)
           values ($1, $2, $3, $4, $5, $6)
               on conflict (project_id, name) do update
              set version = p.version + 1, profile_card_id = $3, profile_box_id = $4, worker_target = $5, tags = $6, updated_at = now()
            where p.profile_card_id <> $3
        returning version
         ), made as (
           insert into cardbox.boxes (project_id, box_id, length) select $1, $4, 1 from put
         ), entry as (
           insert into cardbox.box_entries (project_id, box_id, seq, card_id) select $1, $4, 1, $3 from put
         )
         select version, true as changed from put
          union all
         select version, false from resource.profiles where project_id = $1 and name = $2 and not exists (select from put)",
    )
    .bind(project_id)
    .bind(&profile.name)
    .bind(card_id)
    .bind(BoxId::new())
    .bind(&profile.worker_target)
    .bind(profile.tags.iter().map(Name::as_str).collect::<Vec<_>>())
    .fetch_one(&mut **work)
    .await?;
    Ok(put)
}

async fn put_plan(work: &mut UnitOfWork, plan: &Plan, card_id: CardId) -> Result<Put, Error> {
    let project_id = work.project_id();
    // Two at once would take the same version, and one of them fails on the key.
    let put = sqlx::query_as(
        "with last as (
           select version, plan_card_id
             from resource.plans
            where project_id = $1 and name = $2
            order by version desc
            limit 1
         ), put as (
           insert into resource.plans (project_id, name, version, plan_card_id)
           select $1, $2, coalesce((select version from last), 0) + 1, $3
            where $3 is distinct from (select plan_card_id from last)
        returning version
         )
         select version, true as changed from put
          union all
         select version, false from last where not exists (select from put)",
    )
    .bind(project_id)
    .bind(&plan.name)
    .bind(card_id)
    .fetch_one(&mut **work)
    .await?;
    Ok(put)
}

async fn put_handoff_type(work: &mut UnitOfWork, name: &Name, card_id: CardId) -> Result<Put, Error> {
    let project_id = work.project_id();
    let put = sqlx::query_as(
        "with put as (
           insert into resource.handoff_types as t (project_id, name, handoff_type_card_id)
           values ($1, $2, $3)
               on conflict (project_id, name) do update
              set version = t.version + 1, handoff_type_card_id = $3, updated_at = now()
            where t.handoff_type_card_id <> $3
        returning version
         )
         select version, true as changed from put
          union all
         select version, false from resource.handoff_types where project_id = $1 and name = $2 and not exists (select from put)",
    )
    .bind(project_id)
    .bind(name)
    .bind(card_id)
    .fetch_one(&mut **work)
    .await?;
    Ok(put)
}

/// The most that a project's settings may allow, where they name a number.
pub const MOST_OPEN_TURNS: u32 = 100_000;

async fn put_settings(work: &mut UnitOfWork, card_id: CardId, settings: &Settings) -> Result<Put, Error> {
    let project_id = work.project_id();
    if settings.max_open_turns.is_some_and(|most| most.get() > MOST_OPEN_TURNS) {
        return Err(work.refuse(Error::TooManyOpen));
    }
    let number = |most: Option<NonZero<u32>>| most.map(|most| i32::try_from(most.get()).unwrap_or(i32::MAX));
    let money = settings.max_microdollars_per_month.map(|most| i64::try_from(most.get()).unwrap_or(i64::MAX));
    let put: Option<Put> = sqlx::query_as(
        "with old as (
           select settings_card_id, settings_version from resource.projects where project_id = $1 for no key update
         ), put as (
           update resource.projects p
              set settings_card_id = $2, settings_version = p.settings_version + 1, settings_at = now(),
                  max_open_turns = $3, max_running_turns = $4, max_microdollars = $5
             from old
            where p.project_id = $1 and old.settings_card_id is distinct from $2
        returning p.settings_version
         )
         select coalesce((select settings_version from put), old.settings_version) as version, exists (select from put) as changed from old",
    )
    .bind(project_id)
    .bind(card_id)
    .bind(number(settings.max_open_turns))
    .bind(number(settings.max_running_turns))
    .bind(money)
    .fetch_optional(&mut **work)
    .await?;
    put.ok_or(Error::NoProject)
}

async fn check_tools(work: &mut UnitOfWork, profile: &Profile) -> Result<(), Error> {
    let project_id = work.project_id();
    let wanted: Vec<&str> = profile.allowed_tools.iter().map(Name::as_str).collect();
    let known: Vec<Name> = sqlx::query_scalar(
        "select asked.name
               from unnest($2::text[]) as asked (name)
              where exists (select from resource.tools t
                             where t.project_id = $1 and t.name = asked.name and t.tool_card_id is not null
                            offset 0)",
    )
    .bind(project_id)
    .bind(&wanted)
    .fetch_all(&mut **work)
    .await?;
    let unknown: Vec<Name> = profile.allowed_tools.iter().filter(|name| !known.contains(name)).cloned().collect();
    if !unknown.is_empty() {
        return Err(Error::UnknownTools { profile: profile.name.clone(), names: unknown });
    }
    let internal: BTreeSet<&str> =
        profile.allowed_internal_tools.iter().map(|tool| InternalTool::as_str(*tool)).collect();
    let may_call = |name: &&Name| profile.allowed_tools.contains(*name) || internal.contains(name.as_str());
    match profile.must_end_with.iter().find(|name| !may_call(name)) {
        Some(name) => Err(Error::EndNotAllowed { profile: profile.name.clone(), name: name.clone() }),
        None => Ok(()),
    }
}

/// A resource of the project, in its newest version.
#[derive(Clone, Debug, Serialize, FromRow, utoipa::ToSchema)]
#[schema(as = Resource)]
pub struct Listed {
    pub kind: Kind,
    pub name: Name,
    pub version: i32,
    pub card_id: CardId,
    pub worker_target: Option<Target>,
    pub updated_at: DateTime<Utc>,
}

/// Lists everything that the project has, by kind and name.
pub async fn list(work: &mut UnitOfWork) -> Result<Vec<Listed>, Error> {
    let project_id = work.project_id();
    let listed = sqlx::query_as(
        "select 'profile' as kind, name, version, profile_card_id as card_id, worker_target::text, updated_at
           from resource.profiles where project_id = $1
          union all
         select 'tool', name, version, tool_card_id, target::text, updated_at
           from resource.tools where project_id = $1 and tool_card_id is not null
          union all
         select 'handoff_type', name, version, handoff_type_card_id, null, updated_at
           from resource.handoff_types where project_id = $1
          union all
         select 'plan', p.name, p.version, p.plan_card_id, null, p.created_at
           from (select distinct on (name) * from resource.plans where project_id = $1 order by name, version desc) p
          union all
         select 'settings', 'project', settings_version, settings_card_id, null, settings_at
           from resource.projects where project_id = $1 and settings_card_id is not null
          order by kind, name",
    )
    .bind(project_id)
    .fetch_all(&mut **work)
    .await?;
    Ok(listed)
}

/// A profile, and the box that a turn is dispatched with.
#[derive(Clone, Debug)]
pub struct Found {
    pub profile: Profile,
    pub version: i32,
    pub profile_box_id: BoxId,
}

/// Looks up a profile.
pub async fn profile(work: &mut UnitOfWork, name: &Name) -> Result<Found, Error> {
    let project_id = work.project_id();
    let row: Option<(i32, CardId, BoxId)> = sqlx::query_as(
        "select version, profile_card_id, profile_box_id from resource.profiles where project_id = $1 and name = $2",
    )
    .bind(project_id)
    .bind(name)
    .fetch_optional(&mut **work)
    .await?;
    let (version, card_id, profile_box_id) =
        row.ok_or_else(|| Error::NotFound { kind: Kind::Profile, name: name.clone() })?;
    Ok(Found { profile: read(work, Kind::Profile, name, card_id).await?, version, profile_box_id })
}

/// Looks up a tool.
pub async fn tool(work: &mut UnitOfWork, name: &Name) -> Result<Tool, Error> {
    let project_id = work.project_id();
    let card_id: Option<CardId> = sqlx::query_scalar(
        "select tool_card_id from resource.tools where project_id = $1 and name = $2 and tool_card_id is not null",
    )
    .bind(project_id)
    .bind(name)
    .fetch_optional(&mut **work)
    .await?;
    read(work, Kind::Tool, name, card_id.ok_or_else(|| Error::NotFound { kind: Kind::Tool, name: name.clone() })?).await
}

/// Looks up a plan: this version, or the newest.
pub async fn plan(work: &mut UnitOfWork, name: &Name, version: Option<i32>) -> Result<(i32, Plan), Error> {
    let project_id = work.project_id();
    let row: Option<(i32, CardId)> = sqlx::query_as(
        "select version, plan_card_id
           from resource.plans
          where project_id = $1 and name = $2 and ($3::int is null or version = $3)
          order by version desc
          limit 1",
    )
    .bind(project_id)
    .bind(name)
    .bind(version)
    .fetch_optional(&mut **work)
    .await?;
    let (version, card_id) = row.ok_or_else(|| Error::NotFound { kind: Kind::Plan, name: name.clone() })?;
    Ok((version, read(work, Kind::Plan, name, card_id).await?))
}

/// Lists the plans of a project by name, each with its newest version: the first hundred.
pub async fn plans(work: &mut UnitOfWork) -> Result<Vec<(Name, i32)>, Error> {
    let project_id = work.project_id();
    let plans = sqlx::query_as(
        "with recursive names as (
           (select p.name from resource.plans p where p.project_id = $1 order by p.name limit 1)
           union all
           select n.name
             from names m
            cross join lateral (
                  select p.name from resource.plans p where p.project_id = $1 and p.name > m.name order by p.name limit 1) n
         )
         select n.name, v.version
           from (select name from names limit 100) n
          cross join lateral (
                select p.version from resource.plans p where p.project_id = $1 and p.name = n.name order by p.version desc limit 1) v
          order by n.name",
    )
    .bind(project_id)
    .fetch_all(&mut **work)
    .await?;
    Ok(plans)
}

/// Looks up a type of packages. `None` means that the project has none of this name; it may be a built-in one.
pub async fn handoff_type(work: &mut UnitOfWork, name: &Name) -> Result<Option<HandoffType>, Error> {
    let project_id = work.project_id();
    let card_id: Option<CardId> = sqlx::query_scalar(
        "select handoff_type_card_id from resource.handoff_types where project_id = $1 and name = $2",
    )
    .bind(project_id)
    .bind(name)
    .fetch_optional(&mut **work)
    .await?;
    match card_id {
        Some(card_id) => Ok(Some(read(work, Kind::HandoffType, name, card_id).await?)),
        None => Ok(None),
    }
}

/// Returns the project's settings: those that were applied, or the defaults.
pub async fn settings(work: &mut UnitOfWork) -> Result<Settings, Error> {
    let project_id = work.project_id();
    let card_id: Option<Option<CardId>> =
        sqlx::query_scalar("select settings_card_id from resource.projects where project_id = $1")
            .bind(project_id)
            .fetch_optional(&mut **work)
            .await?;
    match card_id.flatten() {
        Some(card_id) => read(work, Kind::Settings, &settings_name(), card_id).await,
        None => Ok(Settings::default()),
    }
}

async fn read<T: DeserializeOwned>(
    work: &mut UnitOfWork,
    kind: Kind,
    name: &Name,
    card_id: CardId,
) -> Result<T, Error> {
    let found = card::fetch(work, &[card_id], None).await?.found.pop().and_then(Reading::into_live);
    let card = found.ok_or_else(|| Error::Gone { kind, name: name.clone() })?;
    card.read_as().map_err(|source| Error::Unreadable { kind, name: name.clone(), source })
}
