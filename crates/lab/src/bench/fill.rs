//! Projects as they are after a year of turns, written by COPY: rows in the form in which the product leaves them.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;
use waybill_core::id::{BoxId, ProjectId};

use super::{CARD_TOKENS, progress};
use waybill_services::Server;

/// Cards of each turn: one in its context, the others in its output box.
pub(super) const CARDS_EACH: u64 = 6;
/// What a turn takes on disk, with its six cards, indexes, and a share of its agent. Rounded up.
pub(super) const BYTES_EACH: u64 = 10_000;
/// Turns that are sent at a time: some 25 MB of cards.
const PORTION: u64 = 5_000;
/// Turns after which the server may reuse its log: otherwise that would take as much of the disk as the rows.
const LOGGED: u64 = 100_000;
const TURNS_PER_AGENT: u64 = 50;
/// Boxes of the first project that are returned, at most.
const SOME: usize = 1_000;

/// What was written.
pub(super) struct Filled {
    pub projects: Vec<ProjectId>,
    /// Some output boxes of the first project, spread over the year.
    pub boxes: Vec<BoxId>,
}

/// Writes the turns of the past year in the order of time. `project_of` says which project turn n belongs to, given n and some noise; of a project
/// of fewer turns, few agents have them all.
pub(super) async fn fill(
    server: &Server,
    database: &str,
    turns: u64,
    projects: usize,
    project_of: impl Fn(u64, u64) -> usize,
) -> Result<Filled> {
    make_weeks(server, database).await?;
    let mut admin = PgConnection::connect(&server.admin_url(database)).await?;
    // Without triggers: what they would write is what is written here.
    sqlx::raw_sql("set session_replication_role = replica").execute(&mut admin).await?;
    let mut writer = Writer::new(turns, projects, &project_of);
    writer.roster().send(&mut admin).await?;
    let bar = progress("turns of a year", turns);
    let mut said = 0;
    for from in (0..turns).step_by(PORTION as usize) {
        let upto = turns.min(from + PORTION);
        for n in from..upto {
            writer.turn(n);
        }
        writer.rows.send(&mut admin).await?;
        if upto.is_multiple_of(LOGGED) {
            sqlx::raw_sql("checkpoint").execute(&mut admin).await?;
        }
        bar.inc(upto - from);
        // A bar shows only on a terminal.
        if bar.is_hidden() && upto * 20 / turns > said {
            said = upto * 20 / turns;
            eprintln!("{database}: {upto} of {turns} turns written");
        }
    }
    bar.finish_and_clear();
    eprintln!("{database}: vacuum, analyze, checkpoint");
    sqlx::raw_sql("vacuum analyze").execute(&mut admin).await?;
    sqlx::raw_sql("checkpoint").execute(&mut admin).await?;
    Ok(Filled { projects: writer.projects, boxes: writer.boxes })
}

/// Makes the partitions that history had in the past year, as the owner.
async fn make_weeks(server: &Server, database: &str) -> Result<()> {
    let mut owner = PgConnection::connect(&server.owner_url(database)).await?;
    let sql = "select state.make_partition(m.parent, m.week, least(m.week + interval '7 days', m.oldest))
                 from (select h.parent, w.week, p.oldest
                         from state.history() h
                        cross join lateral (select min(p.starts_at) as oldest from state.partitions(h.parent) p) p
                        cross join generate_series(date_trunc('week', now() - interval '1 year', 'UTC'), now(), interval '7 days') as w (week)
                        where w.week < p.oldest
                       offset 0) m";
    sqlx::raw_sql(sql).execute(&mut owner).await?;
    Ok(())
}

/// A table that is written, and the columns. Columns that are not named have their defaults, as in the product.
type Table = (usize, &'static str, &'static str);

const PROJECTS: Table = (0, "resource.projects", "project_id, slug");
const AGENTS: Table = (1, "resource.project_agents", "project_id, agent_id, worker_target");
const HEADS: Table = (2, "state.agent_state_head", "project_id, agent_id, worker_target, turn_epoch, claim_token");
const CARDS: Table = (3, "cardbox.cards", "project_id, card_id, created_at, n_tokens, type, role, hash, salt, content");
const BOXES: Table = (4, "cardbox.boxes", "project_id, box_id, length, created_at, agent_id, agent_turn_id");
const ENTRIES: Table = (5, "cardbox.box_entries", "project_id, box_id, seq, card_id");
const TURNS: Table = (
    6,
    "state.turns",
    "project_id, agent_turn_id, agent_id, status, context_box_id, output_box_id, query_card_ids, created_at, dispatched_epoch, finished_at,
     deliverable_card_id, turn_epoch, claim_token, root_turn_id",
);
const STEPS: Table = (
    7,
    "state.agent_steps",
    "project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq, created_at",
);
const EVENTS: Table = (
    8,
    "state.outbox",
    "project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch, step_id, card_id, created_at, published_at",
);
const TABLES: [Table; 9] = [PROJECTS, AGENTS, HEADS, CARDS, BOXES, ENTRIES, TURNS, STEPS, EVENTS];

/// Rows that are not sent yet, in the text form of COPY, by table.
#[derive(Default)]
struct Rows([String; 9]);

impl Rows {
    async fn send(&mut self, admin: &mut PgConnection) -> Result<()> {
        for (n, table, columns) in TABLES {
            let rows = &mut self.0[n];
            if rows.is_empty() {
                continue;
            }
            let mut copy = admin.copy_in_raw(&format!("copy {table} ({columns}) from stdin")).await?;
            copy.send(rows.as_bytes()).await?;
            copy.finish().await.with_context(|| format!("cannot fill {table}"))?;
            rows.clear();
        }
        Ok(())
    }
}

/// Appends one row. The values hold no tab and no line end; a backslash is written twice.
macro_rules! row {
    ($rows:expr, $table:expr, $($arg:tt)*) => {
        writeln!($rows.0[$table.0], $($arg)*).expect("a string takes everything")
    };
}

struct Writer<'a, F> {
    rows: Rows,
    noise: Noise,
    turns: u64,
    begun_at: DateTime<Utc>,
    project_of: &'a F,
    projects: Vec<ProjectId>,
    agents: Vec<Vec<Uuid>>,
    boxes: Vec<BoxId>,
}

impl<'a, F: Fn(u64, u64) -> usize> Writer<'a, F> {
    fn new(turns: u64, projects: usize, project_of: &'a F) -> Writer<'a, F> {
        let projects = (0..projects).map(|_| ProjectId::new()).collect();
        let begun_at = Utc::now() - TimeDelta::days(365);
        let (rows, noise) = (Rows::default(), Noise(1));
        Writer { rows, noise, turns, begun_at, project_of, projects, agents: Vec::new(), boxes: Vec::new() }
    }

    /// Writes the projects and their agents, one for every fifty turns.
    fn roster(&mut self) -> &mut Rows {
        // A sample tells how the turns are shared out.
        const SAMPLE: u64 = 100_000;
        let mut shares = vec![0_u64; self.projects.len()];
        for n in 0..SAMPLE {
            shares[(self.project_of)(n, mixed(n))] += 1;
        }
        for (n, project_id) in self.projects.iter().enumerate() {
            row!(self.rows, PROJECTS, "{project_id}\tyear-{n}");
            let n_agents = (shares[n] * self.turns / SAMPLE / TURNS_PER_AGENT).max(1);
            let minted = self.begun_at.timestamp_millis().unsigned_abs();
            let agents: Vec<Uuid> = (0..n_agents).map(|_| self.noise.id(minted)).collect();
            for agent_id in &agents {
                row!(self.rows, AGENTS, "{project_id}\t{agent_id}\tllm");
                row!(self.rows, HEADS, "{project_id}\t{agent_id}\tllm\t1\t{}", self.noise.token());
            }
            self.agents.push(agents);
        }
        &mut self.rows
    }

    /// Writes turn n, which ended with its first step.
    fn turn(&mut self, n: u64) {
        let at = self.begun_at + TimeDelta::milliseconds((n as f64 / self.turns as f64 * 365.0 * 86_400_000.0) as i64);
        let (time, minted) = (at.to_rfc3339(), at.timestamp_millis().unsigned_abs());
        let chosen = mixed(n);
        let place = (self.project_of)(n, chosen);
        let (project_id, agents) = (self.projects[place], &self.agents[place]);
        let agent_id = agents[(chosen >> 32) as usize % agents.len()];
        let [turn_id, context_id, output_id, step_id] = [(); 4].map(|()| self.noise.id(minted));
        let (token, n_output) = (self.noise.token(), CARDS_EACH - 1);
        let (rows, mut instruction, mut card_id) = (&mut self.rows, Uuid::nil(), Uuid::nil());
        for seq in 0..CARDS_EACH {
            card_id = self.noise.id(minted);
            let (kind, role) = match seq {
                0 => ("task.instruction", "user"),
                _ if seq == n_output => ("task.deliverable", "assistant"),
                _ => ("agent.thought", "assistant"),
            };
            let [a, b] = [self.noise.id(minted), self.noise.id(minted)].map(|id| id.simple().to_string());
            let content = b.repeat(21);
            row!(
                rows,
                CARDS,
                "{project_id}\t{card_id}\t{time}\t{CARD_TOKENS}\t{kind}\t{role}\t\\\\x{a}{b}\t\\\\x{a}\t\"{content}\""
            );
            let (box_id, seq) = if seq == 0 { (context_id, 1) } else { (output_id, seq) };
            row!(rows, ENTRIES, "{project_id}\t{box_id}\t{seq}\t{card_id}");
            if instruction.is_nil() {
                instruction = card_id;
            }
        }
        row!(rows, BOXES, "{project_id}\t{output_id}\t{n_output}\t{time}\t{agent_id}\t{turn_id}");
        row!(rows, BOXES, "{project_id}\t{context_id}\t1\t{time}\t{agent_id}\t{turn_id}");
        row!(
            rows,
            TURNS,
            "{project_id}\t{turn_id}\t{agent_id}\tsuccess\t{context_id}\t{output_id}\t{{{instruction}}}\t{time}\t1\t{time}\t{card_id}\t1\t{token}\t{turn_id}"
        );
        row!(
            rows,
            STEPS,
            "{project_id}\t{turn_id}\t{step_id}\t{agent_id}\t1\t{token}\tfinished\t1\t{n_output}\t{time}"
        );
        row!(
            rows,
            EVENTS,
            "{project_id}\t{turn_id}\ttask\t{turn_id}\t{agent_id}\tsuccess\t1\t{step_id}\t{card_id}\t{time}\t{time}"
        );
        let every = (self.turns / SOME as u64).max(1);
        if place == 0 && self.boxes.len() < SOME && n / every >= self.boxes.len() as u64 {
            self.boxes.extend(output_id.to_string().parse::<BoxId>());
        }
    }
}

/// splitmix64: noise that is the same in every run.
fn mixed(n: u64) -> u64 {
    let mixed = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        mixed(self.0)
    }

    /// Returns a v7 id of this time. Those of one millisecond ascend, as the kernel's do.
    fn id(&mut self, minted: u64) -> Uuid {
        let random = self.next() >> 2;
        let count = self.0 & 0xfff;
        let high = (u128::from(minted) << 16) | 0x7000 | u128::from(count);
        Uuid::from_u128((high << 64) | (1 << 63) | u128::from(random))
    }

    fn token(&mut self) -> u64 {
        self.next() >> 28
    }
}
