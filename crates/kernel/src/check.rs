//! Whether a database is safe to serve from. Asked at every start, and by `waybill doctor`.

use std::fmt::Display;

use futures::future::join_all;
use serde::Serialize;

use crate::{
    migrate, quarantine, retention,
    work::{DbError, Kernel},
};

/// The functions that may cross projects, as `schema.name`. A test holds the database to exactly these.
pub const CROSSING_PROJECTS: [&str; 45] = [
    "scheduler.abandoned_calls",
    "scheduler.abandoned_turns",
    "scheduler.agents_to_retire",
    "scheduler.busiest",
    "scheduler.claim",
    "scheduler.claim_calls",
    "scheduler.claim_many",
    "scheduler.due_turns",
    "scheduler.end_browser_session",
    "scheduler.end_missing_leases",
    "scheduler.end_worker",
    "scheduler.ended_uploads",
    "scheduler.events_after",
    "scheduler.find_browser_session",
    "scheduler.find_key",
    "scheduler.find_project",
    "scheduler.forget_browser_sessions",
    "scheduler.forget_keys",
    "scheduler.forget_marks",
    "scheduler.held_calls",
    "scheduler.held_turns",
    "scheduler.hold_shards",
    "scheduler.keep_lease",
    "scheduler.lapse_leases",
    "scheduler.late_turns",
    "scheduler.list_projects",
    "scheduler.list_quarantine",
    "scheduler.mark_published",
    "scheduler.oldest_unpublished",
    "scheduler.outbox_lag",
    "scheduler.overdue_batches",
    "scheduler.overdue_calls",
    "scheduler.projects_on_hold",
    "scheduler.projects_to_retain",
    "scheduler.publish_to",
    "scheduler.ready_doors",
    "scheduler.refuse_event",
    "scheduler.renew_lease",
    "scheduler.serving",
    "scheduler.silent_turns",
    "scheduler.stopping_batches",
    "scheduler.unpublished",
    "scheduler.vitals",
    "scheduler.workers",
    "scheduler.workers_without_lease",
];

/// The functions that see a project's documents without its row policy. Each sees only the project of the unit of work.
const SEARCHING: [&str; 2] = ["resource.search_meaning", "resource.search_words"];

/// The login of the API and of commands: the only one that reaches keys and the audit.
pub const SERVICE: &str = "waybill_service";

/// The logins that processes use: the API and commands, orchestrators, workers.
pub const LOGINS: [&str; 3] = [SERVICE, "waybill_orchestrator", "waybill_worker"];

const OLDEST_SERVER: i32 = 150_000;

/// One question and its answer.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub check: &'static str,
    pub ok: bool,
    /// What was found.
    pub found: String,
    /// What to do about it; empty where all is well.
    pub advice: &'static str,
}

/// The database is not safe to serve from.
#[derive(Debug, thiserror::Error)]
#[error("the database failed these checks: {}", list(.0))]
pub struct Unfit(pub Vec<Check>);

fn list(failed: &[Check]) -> String {
    let lines = failed.iter().map(|check| format!("{}: {}. {}", check.check, check.found, check.advice));
    lines.collect::<Vec<_>>().join("; ")
}

/// Returns the login of the kernel's connections.
pub async fn login(kernel: &Kernel) -> Result<String, DbError> {
    Ok(sqlx::query_scalar("select session_user::text").fetch_one(&mut *kernel.lease().await?).await?)
}

/// Returns an error if a check fails: the process then refuses to serve.
pub async fn fit_to_serve(kernel: &Kernel) -> Result<(), Unfit> {
    let mut failed: Vec<Check> = run(kernel).await.into_iter().filter(|check| !check.ok).collect();
    // Without the right login or the right schema the later checks fail too, and say nothing new.
    if let Some(first) = failed.iter().position(|check| ["role", "migrations"].contains(&check.check)) {
        failed.truncate(first + 1);
    }
    if failed.is_empty() { Ok(()) } else { Err(Unfit(failed)) }
}

/// Runs all checks, in the order in which a person would fix them.
pub async fn run(kernel: &Kernel) -> Vec<Check> {
    vec![
        checked("server version", server_version(kernel).await, "Use PostgreSQL 15 or newer."),
        checked(
            "pooler",
            answers_are_our_own(kernel).await,
            "Connect directly or in session mode, or through PgBouncer 1.21 or newer with max_prepared_statements > 0.",
        ),
        checked(
            "transactions",
            transactions_are_ours(kernel).await,
            "Connect to the primary server, which accepts writes; undo `alter role … set default_transaction_isolation` for this database.",
        ),
        checked(
            "role",
            role_owns_nothing(kernel).await,
            "Log in as waybill_service, waybill_orchestrator or waybill_worker (the URL of the owner is for `waybill migrate` only); see \
             docs/operations.md.",
        ),
        checked("migrations", migrations_are_current(kernel).await, "Run `waybill migrate` with this version."),
        checked(
            "walls",
            walls_stand(kernel).await,
            "Compare with docs/schema.sql and undo every change that `waybill migrate` did not create.",
        ),
        checked(
            "crossing projects",
            crossing_is_closed(kernel).await,
            "Remove functions and grants of waybill_scheduler and waybill_librarian that `waybill migrate` did not create.",
        ),
    ]
}

/// Checks whether the oldest transaction is visible, whichever role holds it. Not needed to serve; an alert depends on it.
pub async fn statistics(kernel: &Kernel) -> Check {
    let asked = sqlx::query_scalar("select pg_has_role('waybill_scheduler', 'pg_read_all_stats', 'usage')");
    let seen: sqlx::Result<bool> = async { asked.fetch_one(&mut *kernel.lease().await?).await }.await;
    let (found, advice) = match seen {
        Ok(true) => ("transactions of all roles are visible".to_owned(), ""),
        Ok(false) => (
            "only transactions of Waybill's own roles are visible".to_owned(),
            "As a superuser: grant pg_read_all_stats to waybill_scheduler",
        ),
        Err(error) => (format!("the query failed: {error}"), ""),
    };
    Check { check: "statistics", ok: true, found, advice }
}

/// Checks which roles other than owners of databases are members of Waybill's roles, and of which roles those are members: a member can do what
/// the role can. Not checked at every start, since an administrator may be at work.
pub async fn memberships(kernel: &Kernel) -> Check {
    let asked = sqlx::query_scalar(
        "select m.rolname || ' belongs to ' || r.rolname
           from pg_auth_members a
           join pg_roles r on r.oid = a.roleid
           join pg_roles m on m.oid = a.member
         cross join (select $1 || array['waybill_common', 'waybill_scheduler', 'waybill_eraser', 'waybill_remover', 'waybill_librarian']) as ours (names)
          where (r.rolname = any (ours.names) or m.rolname = any (ours.names))
            and not exists (select from pg_database d where d.datdba = a.member)
            and (r.rolname, m.rolname) <> ('pg_read_all_stats', 'waybill_scheduler')
            and not (r.rolname = 'waybill_common' and m.rolname = any ($1))
          order by 1",
    )
    .bind(&LOGINS[..]);
    let found: sqlx::Result<Vec<String>> = async { asked.fetch_all(&mut *kernel.lease().await?).await }.await;
    let answer = found.map(|found| match found.is_empty() {
        true => Answer::Right("only owners of databases belong to Waybill's roles".to_owned()),
        false => Answer::Wrong(found.join(", ")),
    });
    checked("role memberships", answer, "If this is not intended, run `revoke ROLE from MEMBER`.")
}

/// Checks whether history has partitions for the week to come. Without one for the present, no turn can be written.
pub async fn partitions(kernel: &Kernel) -> Check {
    const CHECK: &str = "history partitions";
    const LEAST_DAYS: i64 = 7;
    let answer = retention::history(kernel).await.map(|history| {
        let found = format!("one per {}, made for {} days ahead", history.step.as_str(), history.days_ahead);
        if history.days_ahead >= LEAST_DAYS { Answer::Right(found) } else { Answer::Wrong(found) }
    });
    checked(CHECK, answer, "Run `waybill admin extend-partitions`, and keep a `waybill orchestrator` running.")
}

/// Checks whether anything waits in quarantine for an operator. Not needed to serve.
pub async fn quarantined(kernel: &Kernel) -> Check {
    const CHECK: &str = "quarantine";
    const MOST: i32 = 10_000;
    let may_read = "select has_function_privilege('scheduler.list_quarantine(integer)', 'execute')";
    let may_read: sqlx::Result<bool> =
        async { sqlx::query_scalar(may_read).fetch_one(&mut *kernel.lease().await?).await }.await;
    if matches!(may_read, Ok(false)) {
        return Check { check: CHECK, ok: true, found: "not visible to this login".to_owned(), advice: "" };
    }
    let rows = match quarantine::list(kernel, MOST).await {
        Ok(rows) => rows,
        Err(error) => {
            return Check { check: CHECK, ok: false, found: format!("the query failed: {error}"), advice: "" };
        }
    };
    let rows: Vec<_> = rows.iter().filter(|row| row.quarantined_at.is_some()).collect();
    let n_events = rows.iter().filter(|row| row.sweep == quarantine::EVENTS).count();
    let found = format!("{} rows of sweeps, events of {n_events} agents", rows.len() - n_events);
    let advice = match rows.is_empty() {
        true => "",
        false => "See `waybill admin quarantine list`, fix the cause, then `waybill admin quarantine retry`.",
    };
    Check { check: CHECK, ok: rows.is_empty(), found, advice }
}

/// What a check found.
enum Answer {
    Right(String),
    Wrong(String),
}

fn checked(check: &'static str, answer: Result<Answer, impl Display>, advice: &'static str) -> Check {
    match answer {
        Ok(Answer::Right(found)) => Check { check, ok: true, found, advice: "" },
        Ok(Answer::Wrong(found)) => Check { check, ok: false, found, advice },
        Err(error) => Check { check, ok: false, found: format!("the query failed: {error}"), advice },
    }
}

async fn server_version(kernel: &Kernel) -> sqlx::Result<Answer> {
    let (number, text): (i32, String) =
        sqlx::query_as("select current_setting('server_version_num')::int, current_setting('server_version')")
            .fetch_one(&mut *kernel.lease().await?)
            .await?;
    Ok(if number >= OLDEST_SERVER { Answer::Right(text) } else { Answer::Wrong(text) })
}

/// Behind a transaction pooler that does not track prepared statements, one client's statement is answered with
/// another's text, without an error. Sending two texts in alternation on all connections at once reveals that.
async fn answers_are_our_own(kernel: &Kernel) -> sqlx::Result<Answer> {
    const ROUNDS: i32 = 40;
    let asked = (0..kernel.connections().most.min(8)).map(async |_| {
        let mut wrong = 0;
        for round in 0..ROUNDS {
            let left = sqlx::query_scalar("select 'left ' || $1::int4").bind(round);
            let right = sqlx::query_scalar("select 'right ' || $1::int4").bind(round);
            let left: sqlx::Result<String> = async { left.fetch_one(&mut *kernel.lease().await?).await }.await;
            let right: sqlx::Result<String> = async { right.fetch_one(&mut *kernel.lease().await?).await }.await;
            wrong += i32::from(!left.is_ok_and(|answer| answer == format!("left {round}")));
            wrong += i32::from(!right.is_ok_and(|answer| answer == format!("right {round}")));
        }
        wrong
    });
    let answered = join_all(asked).await;
    let total = answered.len() as i32 * ROUNDS * 2;
    let wrong: i32 = answered.into_iter().sum();
    Ok(if wrong == 0 {
        Answer::Right(format!("{total} test queries, each with the right answer"))
    } else {
        Answer::Wrong(format!("{wrong} of {total} test queries failed or got the answer to another query"))
    })
}

/// The protocol relies on what a statement sees after it waited for a lock; and a read-only server is of no use.
async fn transactions_are_ours(kernel: &Kernel) -> sqlx::Result<Answer> {
    let (isolation, is_read_only): (String, bool) = sqlx::query_as(
        "select current_setting('transaction_isolation'), current_setting('transaction_read_only')::boolean",
    )
    .fetch_one(&mut *kernel.lease().await?)
    .await?;
    let found = format!("{isolation}, {}", if is_read_only { "read only" } else { "read write" });
    Ok(if isolation == "read committed" && !is_read_only { Answer::Right(found) } else { Answer::Wrong(found) })
}

async fn role_owns_nothing(kernel: &Kernel) -> sqlx::Result<Answer> {
    let (session, current, powers): (String, String, Vec<String>) = sqlx::query_as(
        "select session_user::text, current_user::text, array(
                select 'a superuser' from pg_roles where rolname in (session_user, current_user) and rolsuper
                union all
                select 'exempt from row security'
                  from pg_roles where rolname in (session_user, current_user) and rolbypassrls and not rolsuper
                union all
                select 'a member of ' || rolname
                  from pg_roles
                 where (rolname in ('waybill_scheduler', 'waybill_eraser', 'waybill_remover', 'waybill_librarian') or rolname = any ($1) and rolname <> session_user)
                   and (pg_has_role(session_user, oid, 'member') or pg_has_role(current_user, oid, 'member'))
                union all
                select 'owner of ' || c.oid::regclass
                  from pg_class c join pg_namespace n on n.oid = c.relnamespace
                 where n.nspname in ('cardbox', 'resource', 'state', 'scheduler', 'parts', 'waybill') and c.relkind in ('r', 'p')
                   and (pg_has_role(session_user, c.relowner, 'member') or pg_has_role(current_user, c.relowner, 'member')))",
    )
    .bind(&LOGINS[..])
    .fetch_one(&mut *kernel.lease().await?)
    .await?;
    Ok(match powers.first() {
        // Its settings (timeouts, plans) belong to the login and are not inherited by members.
        None if !LOGINS.contains(&session.as_str()) || current != session => {
            Answer::Wrong(format!("logged in as {session}"))
        }
        None => Answer::Right(format!("{current} owns nothing")),
        Some(first) if powers.len() == 1 => Answer::Wrong(format!("{session} is {first}")),
        Some(first) => Answer::Wrong(format!("{session} is {first} and {} more", powers.len() - 1)),
    })
}

async fn migrations_are_current(kernel: &Kernel) -> sqlx::Result<Answer> {
    let newest = migrate::newest();
    Ok(match schema(kernel).await? {
        None => Answer::Wrong("the database was never migrated, or only by an older version".to_owned()),
        Some(Schema { version, .. }) if version == newest => Answer::Right(format!("at version {version}")),
        Some(Schema { version, oldest, .. }) if version > newest && oldest <= newest => Answer::Right(format!(
            "at version {version}, which supports processes of version {oldest} and newer; this one is {newest}"
        )),
        Some(Schema { version, .. }) => Answer::Wrong(format!("at version {version}, but this program needs {newest}")),
    })
}

/// What a migrated database says of itself.
#[derive(sqlx::FromRow)]
struct Schema {
    version: i64,
    /// The oldest version whose processes it serves.
    oldest: i64,
    /// The digest of its walls.
    walls: String,
}

async fn schema(kernel: &Kernel) -> sqlx::Result<Option<Schema>> {
    let exists: bool = sqlx::query_scalar("select to_regclass('waybill.schema') is not null")
        .fetch_one(&mut *kernel.lease().await?)
        .await?;
    if !exists {
        return Ok(None);
    }
    sqlx::query_as("select version, oldest, walls from waybill.schema")
        .fetch_optional(&mut *kernel.lease().await?)
        .await
}

/// Row security, policies, guards, grants and functions, as one digest of the catalog. A door that was
/// opened by hand, wherever it is, changes it.
pub const WALLS: &str = "ffbc90aaed3816c0c8dbd15cda347066";

async fn walls_stand(kernel: &Kernel) -> Result<Answer, DbError> {
    let found = walls(&mut *kernel.lease().await?).await?;
    // The digest of a newer schema was recorded by the version that migrated it.
    let expected = match schema(kernel).await? {
        Some(schema) if schema.version > migrate::newest() => schema.walls,
        _ => WALLS.to_owned(),
    };
    Ok(if found == expected {
        Answer::Right("row security, policies, guards and grants are as migrated".to_owned())
    } else {
        Answer::Wrong(format!("row security, policies, guards or grants were changed by hand ({found})"))
    })
}

/// Returns the digest of a database's walls.
#[doc(hidden)]
pub async fn walls<'e>(executor: impl sqlx::PgExecutor<'e>) -> Result<String, DbError> {
    let digest = sqlx::query_scalar(
        "with ours as (
           select oid, nspname from pg_namespace where nspname in ('cardbox', 'resource', 'state', 'scheduler')
         ), fact (fact) as (
           select format('table %s %s %s', c.oid::regclass, c.relrowsecurity, c.relforcerowsecurity)
             from pg_class c join ours on ours.oid = c.relnamespace
            where c.relkind in ('r', 'p')
            union all
           select format('view %s %s', c.oid::regclass, c.reloptions)
             from pg_class c join ours on ours.oid = c.relnamespace
            where c.relkind = 'v'
            union all
           select format('policy %s %s %s %s %s %s', polrelid::regclass, polname, polcmd,
                         array(select r::regrole::text from unnest(polroles) r order by 1),
                         pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid))
             from pg_policy join pg_class c on c.oid = polrelid join ours on ours.oid = c.relnamespace
            union all
           select format('trigger %s %s', pg_get_triggerdef(t.oid), t.tgenabled)
             from pg_trigger t join pg_class c on c.oid = t.tgrelid join ours on ours.oid = c.relnamespace
            where not t.tgisinternal
            union all
           select format('grant %s %s %s', c.oid::regclass, a.grantee, a.privilege_type)
             from pg_class c join ours on ours.oid = c.relnamespace
            cross join lateral (select grantee::regrole::text, privilege_type from aclexplode(c.relacl)
                                 where grantee <> c.relowner) a
            union all
           select format('grant %s.%s %s %s', c.oid::regclass, t.attname, a.grantee, a.privilege_type)
             from pg_attribute t join pg_class c on c.oid = t.attrelid join ours on ours.oid = c.relnamespace
            cross join lateral (select grantee::regrole::text, privilege_type from aclexplode(t.attacl)) a
            union all
           select format('grant on a partition %s', c.oid::regclass)
             from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where n.nspname = 'parts' and c.relkind = 'r' and c.relacl is not null
            union all
           select format('function %s.%s %s %s %s %s', ours.nspname, p.proname, md5(p.prosrc), p.prosecdef, p.proconfig,
                         array(select case when grantee = n.nspowner then 'owner' else grantee::regrole::text end
                                 from aclexplode(p.proacl) order by 1))
             from pg_proc p join ours on ours.oid = p.pronamespace join pg_namespace n on n.oid = ours.oid
         )
         select md5(string_agg(fact, chr(10) order by fact collate ucs_basic)) from fact",
    )
    .fetch_one(executor)
    .await?;
    Ok(digest)
}

async fn crossing_is_closed(kernel: &Kernel) -> sqlx::Result<Answer> {
    if schema(kernel).await?.is_some_and(|schema| schema.version > migrate::newest()) {
        return Ok(Answer::Right(
            "not compared, because the schema is newer than this program; the check `walls` covers it".to_owned(),
        ));
    }
    for (role, known) in [("waybill_scheduler", &CROSSING_PROJECTS[..]), ("waybill_librarian", &SEARCHING[..])] {
        let functions: Vec<String> = sqlx::query_scalar(
            "select n.nspname || '.' || p.proname
               from pg_proc p join pg_namespace n on n.oid = p.pronamespace
              where p.proowner = to_regrole($1)
              order by 1",
        )
        .bind(role)
        .fetch_all(&mut *kernel.lease().await?)
        .await?;
        if functions != known {
            return Ok(Answer::Wrong(format!("{role} owns [{}]", functions.join(", "))));
        }
    }
    Ok(Answer::Right(format!("{} known functions", CROSSING_PROJECTS.len() + SEARCHING.len())))
}
