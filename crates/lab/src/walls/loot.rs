//! What the victim has: the ids, fences and tokens that the attackers know, and the rows that must not change.

use std::collections::{BTreeMap, HashSet};

use anyhow::{Result, ensure};
use sqlx::{AssertSqlSafe, PgConnection, Row};
use waybill_core::id::ProjectId;
use waybill_kernel::audit;

/// Everything that the victim has, by its placeholder in a request.
#[derive(Debug)]
pub(crate) struct Loot {
    pub(crate) ids: BTreeMap<&'static str, Vec<String>>,
    /// Of turns that a worker holds: turn, agent, epoch, token.
    pub(crate) fences: Vec<[String; 4]>,
    /// Of calls that a worker holds: call, token.
    pub(crate) calls: Vec<[String; 2]>,
    /// Every id, to search for in answers.
    pub(super) all: HashSet<String>,
}

impl Loot {
    pub(crate) async fn of(admin: &mut PgConnection, project_id: ProjectId) -> Result<Loot> {
        let mut ids = BTreeMap::new();
        for (what, sql) in [
            ("{turn}", "select agent_turn_id::text from state.turns where project_id = $1"),
            ("{step}", "select step_id::text from state.agent_steps where project_id = $1"),
            ("{card}", "select card_id::text from cardbox.cards where project_id = $1"),
            ("{box}", "select box_id::text from cardbox.boxes where project_id = $1"),
            ("{batch}", "select batch_id::text from state.pmo_batches where project_id = $1"),
            ("{agent}", "select agent_id::text from resource.project_agents where project_id = $1"),
            ("{session}", "select session_id::text from state.blackboards where project_id = $1"),
            ("{key}", "select key_id::text from resource.api_keys where project_id = $1"),
            ("{audit}", "select audit_id::text from state.audit where project_id = $1"),
            ("{call}", "select tool_call_id::text from state.waiting_calls where project_id = $1"),
        ] {
            let found: Vec<String> = sqlx::query_scalar(sql).bind(project_id).fetch_all(&mut *admin).await?;
            ensure!(!found.is_empty(), "the victim has {what}");
            ids.insert(what, found);
        }
        let all = ids.values().flatten().cloned().collect();
        let fences = "select i.agent_turn_id::text, i.agent_id::text, i.turn_epoch::text, i.claim_token::text
                        from state.agent_inbox i where i.project_id = $1 and i.status = 'processing'";
        let fences = sqlx::query(fences).bind(project_id).fetch_all(&mut *admin).await?;
        let fences = fences.iter().map(|row| [row.get(0), row.get(1), row.get(2), row.get(3)]).collect();
        let calls = "select tool_call_id::text, claim_token::text from state.waiting_calls where project_id = $1 and status = 'processing'";
        let calls = sqlx::query(calls).bind(project_id).fetch_all(&mut *admin).await?;
        let calls = calls.iter().map(|row| [row.get(0), row.get(1)]).collect();
        Ok(Loot { ids, fences, calls, all })
    }
}

/// Returns the number of rows of a project, and a hash of them, for every table.
pub(crate) async fn books(admin: &mut PgConnection, project_id: ProjectId) -> Result<BTreeMap<String, (i64, String)>> {
    let tables = "select c.oid::regclass::text from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'project_id'
                   where c.relkind in ('r', 'p') and not c.relispartition
                     and c.relnamespace = any (array['cardbox', 'resource', 'state']::regnamespace[])";
    let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut *admin).await?;
    let mut books = BTreeMap::new();
    for table in tables {
        let sql = format!(
            "select count(*), coalesce(md5(string_agg(t::text, ',' order by t::text)), '') from {table} t where project_id = $1"
        );
        let sql = if table == "state.audit" { format!("{sql} and action <> '{}'", audit::REFUSED) } else { sql };
        books.insert(table, sqlx::query_as(AssertSqlSafe(sql)).bind(project_id).fetch_one(&mut *admin).await?);
    }
    Ok(books)
}
