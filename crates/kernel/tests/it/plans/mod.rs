//! No statement's plan may depend on how large a project is, on how many there are, or on how fresh the statistics are:
//! docs/decisions/0018-plans-that-do-not-depend-on-statistics.md.

pub(crate) mod extract;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use waybill_testkit::{TestDb, fresh_db};

use extract::Statement;

/// What the planner is made to believe of every table: how many rows it has, and how many projects (negative: as a part of the rows).
/// `None` means nothing: the tables are empty and were never analysed.
const BELIEFS: [(&str, Option<(i32, i32)>); 4] = [
    ("empty", None),
    ("one project", Some((1_000_000, 1))),
    ("one project of a million rows among ten thousand of one", Some((1_010_000, 10_001))),
    ("stale: projects of one row each", Some((1_010_000, -1))),
];

/// Columns that say nothing of a portion: an index that is entered by these alone is read as far as a project, a target or a shard goes.
const COARSE: [&str; 5] = ["project_id", "worker_target", "target", "shard", "status"];

/// Tables with a row for each process or shard.
const SMALL: [&str; 4] = ["worker_leases", "relay_shards", "sweep_clock", "queue_marks"];

/// Where more than a portion is meant to be read, or where what is read is a portion that the rules below cannot know: the file or function, what
/// it reads so, and why that is right.
const MEANT: [(&str, &str, &str); 51] = [
    ("agent.rs", "project_agents_pkey", "pages of the roster, without those that are retired"),
    ("artifact.rs", "artifacts_pkey", "from path to path, one row each"),
    ("card_box/inherit.rs", "join", "the ranges of two boxes; a box of many ranges is flattened"),
    ("cardbox.collect", "artifacts_removed", "a portion of what was removed"),
    ("cardbox.remove_turn", "quarantine_pkey", "an operator empties it"),
    ("check.rs", "join", "the catalogue"),
    ("handover/trace.rs", "join", "the places of one card, for people"),
    ("key.rs", "api_keys_by_id", "pages, for people; keys are few"),
    ("knowledge.rs", "documents_pkey", "the next document to embed"),
    ("now.rs", "profiles_pkey", "a project's definitions, up to a thousand"),
    ("now.rs", "tools_pkey", "a project's definitions, up to a thousand"),
    ("quarantine.rs", "quarantine_pkey", "an operator empties it"),
    ("request.rs", "requests_pkey", "pages of decided requests, without the few that are asked again"),
    ("resource.rs", "handoff_types_pkey", "a project's definitions, all of them"),
    ("resource.rs", "plans_pkey", "a project's definitions, all of them"),
    ("resource.rs", "profiles_pkey", "a project's definitions, all of them"),
    ("resource.rs", "tools_pkey", "a project's definitions, all of them"),
    ("resource.search_words", "chunks_by_word", "by words that carry the project's mark"),
    ("resource.search_words", "documents_", "how many chunks there are, summed over the documents"),
    ("resource.search_words", "join", "the folders of one search"),
    ("retention.rs", "agent_inbox_pkey", "the oldest open turn, when history is dropped"),
    ("scheduler.agents_to_retire", "agents_to_retire", "a portion in the order of time"),
    ("scheduler.busiest", "agent_inbox_pkey", "a report over live turns"),
    ("scheduler.claim_calls", "calls_ready", "the first of a queue"),
    ("scheduler.claim_many", "inbox_ready", "the first of a queue"),
    ("scheduler.due_turns", "inbox_due", "a portion in the order of time"),
    ("scheduler.forget_browser_sessions", "browser_sessions_ended", "a portion in the order of time"),
    ("scheduler.forget_keys", "idempotency_ended", "a portion in the order of time"),
    ("scheduler.hold_shards", "outbox_", "whether there is one"),
    ("scheduler.late_turns", "inbox_ready", "a report over live turns"),
    ("scheduler.list_quarantine", "seq scan of quarantine", "a list for people"),
    ("scheduler.mark_published", "join", "sixteen shards"),
    ("scheduler.oldest_unpublished", "outbox_", "what is not published yet, when history is dropped"),
    ("scheduler.outbox_lag", "outbox_", "what is not published yet, counted up to a hundred thousand"),
    ("scheduler.overdue_batches", "batches_due", "a portion in the order of time"),
    ("scheduler.overdue_calls", "calls_due", "a portion in the order of time"),
    ("scheduler.projects_on_hold", "retention_held", "the projects under a hold, when history is dropped"),
    ("scheduler.publish_to", "quarantine", "an operator empties it"),
    ("scheduler.refuse_event", "outbox_", "what is being published again, once for each refused agent"),
    ("scheduler.stopping_batches", "batches_stopping", "a portion of those that stop"),
    ("scheduler.unpublished", "outbox_", "the first of a shard, without what is in quarantine"),
    ("scheduler.vitals", "", "a report over live rows"),
    ("short.rs", "", "the newest of a kind, up to a number, for people"),
    ("spend.rs", "agent_steps_", "what a project has spent in a span of time, up to a border that is found first"),
    ("state.mark_queue", "", "what a long look found, once in five hundred places"),
    ("state.next_ready", "inbox_ready", "the first of a queue"),
    ("state.reached_boxes", "agent_inbox_pkey", "the turns that are open, for a portion of a walk"),
    ("state.reached_cards", "agent_inbox_pkey", "the turns that are open, for a portion of a walk"),
    ("state.room", "inbox_in_flight", "those that run, as far as a project may have any"),
    ("turn/resources.rs", "profiles_pkey", "the first 256 profiles by name, where a profile delegates by tag"),
    ("vitals.rs", "agent_steps_", "an operator asks what a project has spent since a time"),
];

#[tokio::test]
async fn no_plan_depends_on_a_projects_size() {
    let t = fresh_db().await;
    let statements = extract::all(&t).await;
    assert!(statements.len() >= 500, "the walk finds them: {}", statements.len());
    let indexes = Indexes::read(&t).await;
    let mut wrong = BTreeMap::<String, BTreeSet<&str>>::new();
    let mut unread = BTreeSet::new();
    let mut unused: BTreeSet<usize> = (0..MEANT.len()).collect();
    for (belief, numbers) in BELIEFS {
        if let Some((tuples, projects)) = numbers {
            believe(&t, tuples, projects).await;
        }
        let mut session = extract::session(&t).await;
        for (n, statement) in statements.iter().enumerate() {
            let plans = plans(&mut session, n, statement).await.unwrap_or_else(|error| {
                unread.insert(error);
                Vec::new()
            });
            for plan in plans {
                for found in indexes.judge(&plan) {
                    let meant =
                        MEANT.iter().position(|(place, what, _)| statement.place == *place && found.starts_with(what));
                    match meant {
                        Some(meant) => drop(unused.remove(&meant)),
                        None => {
                            let line = format!("{}: {found}\n    {}", statement.place, squeezed(&statement.sql));
                            wrong.entry(line).or_default().insert(belief);
                        }
                    }
                }
            }
        }
    }
    assert!(unread.is_empty(), "cannot be planned: {unread:#?}");
    let wrong: Vec<String> = wrong.into_iter().map(|(line, when)| format!("{line}\n    where: {when:?}")).collect();
    assert!(wrong.is_empty(), "{} scans are not bounded by their portion:\n{}", wrong.len(), wrong.join("\n"));
    let unused: Vec<_> = unused.into_iter().map(|n| MEANT[n]).collect();
    assert!(unused.is_empty(), "no statement does this any more: {unused:?}");
}

/// The rules themselves: a statement that joins by project is found out.
#[tokio::test]
async fn a_join_by_project_is_found_out() {
    let t = fresh_db().await;
    let indexes = Indexes::read(&t).await;
    believe(&t, 1_010_000, -1).await;
    let mut session = extract::session(&t).await;
    let version: i32 =
        sqlx::query_scalar("select current_setting('server_version_num')::int4").fetch_one(&mut session).await.unwrap();
    // Since 17, PostgreSQL looks every element of an array up in the index, whatever it believes of the project.
    let is_looked_up = version >= 170_000;
    let ways = [
        ("update state.agent_state_head h set n_queued = 0 from unnest($2::uuid[]) as a (agent_id)
           where h.project_id = $1 and h.agent_id = a.agent_id", false),
        ("select * from state.agent_state_head h where h.project_id = $1 and h.agent_id = any ($2)", is_looked_up),
        ("select * from unnest($2::uuid[]) as a (agent_id)
           where not exists (select from state.agent_state_head h where h.project_id = $1 and h.agent_id = a.agent_id)", false),
        ("select h.* from unnest($2::uuid[]) as a (agent_id)
           cross join lateral (select h.* from state.agent_state_head h where h.project_id = $1 and h.agent_id = a.agent_id offset 0) h", true),
    ];
    for (n, (sql, is_bounded)) in ways.into_iter().enumerate() {
        let plan = plans(&mut session, n, &Statement::of_the_service("here", sql)).await.unwrap().remove(0);
        assert_eq!(indexes.judge(&plan).is_empty(), is_bounded, "{sql}\n{plan:#}");
    }
}

/// Its generic plan under each role that may run it.
async fn plans(session: &mut PgConnection, n: usize, statement: &Statement) -> Result<Vec<Value>, String> {
    let mut plans = Vec::new();
    let mut last = None;
    for role in &statement.roles {
        let types =
            if statement.types.is_empty() { String::new() } else { format!("({})", statement.types.join(", ")) };
        let prepare = format!("reset role; set role {role}; prepare s{n} {types} as {}", statement.sql);
        let explained = async {
            sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *session).await?;
            // Of an id without a partition every partition would be pruned, and its plan not be seen: this one has one.
            let present = format!("'{}'", uuid::Uuid::now_v7());
            let value = |kind: &String| if kind == "uuid" { present.as_str() } else { "null" };
            let kinds: Vec<String> =
                sqlx::query_scalar("select unnest(parameter_types)::text from pg_prepared_statements where name = $1")
                    .bind(format!("s{n}"))
                    .fetch_all(&mut *session)
                    .await?;
            let values: Vec<&str> = kinds.iter().map(value).collect();
            let values = if values.is_empty() { String::new() } else { format!("({})", values.join(", ")) };
            let explain = format!("explain (format json, verbose) execute s{n} {values}");
            let explained = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_one(&mut *session).await;
            sqlx::raw_sql(AssertSqlSafe(format!("deallocate s{n}"))).execute(&mut *session).await?;
            explained
        };
        match explained.await {
            Ok(row) => {
                plans.push(row.get::<Value, _>(0)[0]["Plan"].clone());
            }
            Err(error) => last = Some(error),
        }
    }
    if plans.is_empty() {
        Err(format!("{}: {last:?}\n    {}", statement.place, squeezed(&statement.sql)))
    } else {
        Ok(plans)
    }
}

/// Fills every table where it is empty, one large project and a few small ones, and writes the numbers that the planner goes by.
async fn believe(t: &TestDb, tuples: i32, projects: i32) {
    let mut admin = t.admin().await;
    // Autovacuum would write other numbers at any moment.
    let alone = "do $$ declare t regclass; begin
        for t in select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
                  where n.nspname in ('state', 'cardbox', 'resource', 'parts') and c.relkind = 'r' loop
          execute format('alter table %s set (autovacuum_enabled = false)', t);
        end loop; end $$";
    sqlx::raw_sql(alone).execute(&mut admin).await.unwrap();
    sqlx::raw_sql(include_str!("fill.sql")).execute(&mut admin).await.unwrap();
    sqlx::raw_sql("analyze").execute(&mut admin).await.unwrap();
    let numbers = format!(
        "update pg_class c set reltuples = {tuples}, relallvisible = case when {projects} > 1 then relpages else 0 end
           from pg_namespace n
          where n.oid = c.relnamespace and n.nspname in ('state', 'cardbox', 'resource', 'parts') and c.relkind in ('r', 'i')
            and c.reltuples > 100;
         update pg_statistic s
            set stadistinct = {projects}, stakind1 = 0, stakind2 = 0, stakind3 = 0, stakind4 = 0, stakind5 = 0,
                stanumbers1 = null, stanumbers2 = null, stanumbers3 = null, stavalues1 = null, stavalues2 = null, stavalues3 = null
           from pg_attribute a
          where a.attrelid = s.starelid and a.attnum = s.staattnum and a.attname = 'project_id';"
    );
    sqlx::raw_sql(AssertSqlSafe(numbers)).execute(&mut admin).await.unwrap();
}

struct Index {
    columns: Vec<String>,
    is_unique: bool,
}

struct Indexes(BTreeMap<String, Index>);

impl Indexes {
    async fn read(t: &TestDb) -> Indexes {
        let rows: Vec<(String, bool, Vec<String>)> = sqlx::query_as(
            "select c.relname::text, i.indisunique,
                    array(select coalesce(a.attname::text, '') from unnest(i.indkey::int[]) with ordinality as k (n, place)
                            left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.n and k.n > 0
                           order by k.place)
               from pg_index i
               join pg_class c on c.oid = i.indexrelid
               join pg_namespace n on n.oid = c.relnamespace
              where n.nspname in ('state', 'cardbox', 'resource', 'parts')",
        )
        .fetch_all(&mut t.admin().await)
        .await
        .unwrap();
        let index = |(name, is_unique, columns)| (name, Index { columns, is_unique });
        Indexes(rows.into_iter().map(index).collect())
    }

    /// What a plan reads beyond its portion: the index, or `join` for a join of two sets that compares each with each.
    fn judge(&self, plan: &Value) -> Vec<String> {
        let mut found = Vec::new();
        self.walk(plan, false, &mut found);
        found
    }

    /// `paged`: read in order, until a limit is reached.
    fn walk(&self, node: &Value, paged: bool, found: &mut Vec<String>) {
        let text = |key: &str| node[key].as_str().unwrap_or_default();
        let is_ours = ["state", "cardbox", "resource", "parts"].contains(&text("Schema"));
        let kind = text("Node Type");
        match kind {
            "Seq Scan"
                if is_ours && !SMALL.contains(&text("Relation Name")) && !text("Relation Name").ends_with("_seq") =>
            {
                found.push(format!("seq scan of {}", text("Relation Name")));
            }
            "Hash Join" | "Merge Join" => found.push(format!("join: {kind}")),
            "Nested Loop" if text("Join Filter").contains(" = ") => {
                found.push(format!("join: {}", text("Join Filter")))
            }
            "Index Scan" | "Index Only Scan" | "Bitmap Index Scan" => {
                if let Some(index) = self.0.get(text("Index Name")) {
                    let is_small = SMALL.iter().any(|table| text("Index Name").starts_with(table));
                    let is_page = paged && text("Filter").is_empty();
                    if !is_small && !is_page && !index.pins(text("Index Cond")) {
                        found.push(format!("{}: {} {}", text("Index Name"), text("Index Cond"), text("Filter")));
                    }
                }
            }
            _ => {}
        }
        self.unserved(node, found);
        // What stands between a limit and the scan that it ends.
        let passes =
            ["Limit", "LockRows", "Result", "Subquery Scan", "Append", "Merge Append", "Nested Loop"].contains(&kind);
        for child in node["Plans"].as_array().into_iter().flatten() {
            let is_driven = child["Parent Relationship"] != "Inner" && child["Parent Relationship"] != "SubPlan";
            self.walk(child, kind == "Limit" || paged && passes && is_driven, found);
        }
    }
}

impl Indexes {
    /// A bound on a column of the index that is used, but tried on each row: under row security PostgreSQL gives an index only what is compared
    /// with a plain value. `seq <= w.lo - 1` could fail on a row of another project and show it; `seq <= w.hi` cannot.
    fn unserved(&self, node: &Value, found: &mut Vec<String>) {
        let child = &node["Plans"][0];
        let scan = if node["Node Type"] == "Bitmap Heap Scan" { child } else { node };
        let Some(index) = scan["Index Name"].as_str().and_then(|name| self.0.get(name)) else { return };
        let (served, tried) =
            (scan["Index Cond"].as_str().unwrap_or_default(), node["Filter"].as_str().unwrap_or_default());
        // `$2 is null or …` is no bound, and of `= any (…)` the planner may choose.
        if tried.contains(" OR ") {
            return;
        }
        for column in &index.columns {
            let column = format!("{}.{column}", node["Alias"].as_str().unwrap_or_default());
            if let Some(bound) = bounds(tried, &column).difference(&bounds(served, &column)).next() {
                let name = scan["Index Name"].as_str().unwrap_or_default();
                found.push(format!("{name}: the index does not serve `{column} {bound}`: {served} {tried}"));
            }
        }
    }
}

/// In which ways a condition bounds a column: `=`, `<` or `>`.
fn bounds(condition: &str, column: &str) -> BTreeSet<char> {
    let bare = condition.replace(['(', ')'], " ");
    let words: Vec<&str> = bare.split_whitespace().collect();
    let signs = words.windows(3).filter(|three| three[0] == column && three[2] != "ANY").map(|three| three[1]);
    signs.filter(|sign| ["=", "<", "<=", ">", ">="].contains(sign)).filter_map(|sign| sign.chars().next()).collect()
}

impl Index {
    /// Whether the condition enters the index by a key that means a portion: its first columns, one of them not coarse; or all of a unique one.
    fn pins(&self, condition: &str) -> bool {
        let is_equal = |column: &&String| {
            let bare = condition.replace(['(', ')'], " ");
            let words: Vec<&str> = bare.split_whitespace().collect();
            words.windows(2).any(|pair| {
                let name = pair[0].split("::").next().unwrap_or_default();
                pair[1] == "=" && name.rsplit('.').next() == Some(column.as_str())
            }) || words.windows(3).any(|three| {
                // A domain is compared as its base type: `target ::text =`.
                three[0].rsplit('.').next() == Some(column.as_str()) && three[1].starts_with("::") && three[2] == "="
            })
        };
        let pinned: Vec<&String> = self.columns.iter().take_while(is_equal).collect();
        let is_whole = self.is_unique && pinned.len() == self.columns.len();
        is_whole || pinned.iter().any(|column| !COARSE.contains(&column.as_str()))
    }
}

fn squeezed(sql: &str) -> String {
    let words: Vec<&str> = sql.split_whitespace().collect();
    words.join(" ").chars().take(240).collect()
}
