//! What a box costs, and that it does not grow with its history (CB-9, NX-5).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result};
use sqlx::{Connection, FromRow, PgConnection, Row};
use waybill_core::{
    card::{CardType, Draft, NewCard, Role},
    card_box::Span,
    id::{BoxId, CardId, ProjectId},
    tokens::Tokens,
};
use waybill_kernel::{
    card::{self, ReadingRow},
    card_box::{self, Window},
    work::{Kernel, UnitOfWork},
};

use super::{CARD_TOKENS, draft, fresh_database, median, new_card, progress, ratio};
use crate::figure::{Bar, Figure};
use waybill_services::{Private, Server};

/// How many cards, and how many samples.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Cards in the database, all of them in the largest box.
    pub cards: i64,
    /// How often each operation is measured.
    pub samples: u64,
}

const BATCH: usize = 100;
const FAN_OUT: usize = 1_000;
const FILL_STEP: i64 = 100_000;

struct Bench {
    options: Options,
    kernel: Kernel,
    project_id: ProjectId,
    /// A connection without row security, triggers or the service's settings: the bare database.
    admin: PgConnection,
    figures: Vec<Figure>,
}

/// Measures everything, on a private server with durability on, or the one named by `DATABASE_URL`.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let mut bench = Bench::prepare(options, &private.server).await?;
    let ten = bench.fill("box of 10", 10).await?;
    let thousand = bench.fill("box of 1,000", 1_000).await?;
    let ten_thousand = bench.fill("box of 10,000", 10_000.min(options.cards)).await?;
    let largest = bench.fill("largest box", options.cards).await?;
    bench.settle().await?;
    bench.sizes().await?;
    bench.append(largest).await?;
    bench.inherit(ten, largest).await?;
    bench.inherit_ranges().await?;
    bench.fan_out(ten, ten_thousand).await?;
    bench.read(ten_thousand).await?;
    bench.hydrate(thousand, largest).await?;
    bench.insert().await?;
    Ok(bench.figures)
}

impl Bench {
    async fn prepare(options: Options, server: &Server) -> Result<Bench> {
        let (kernel, admin) = fresh_database(server, "waybill_bench").await?;
        Ok(Bench { options, kernel, project_id: ProjectId::new(), admin, figures: Vec::new() })
    }

    fn report(&mut self, figure: &str, value: f64, unit: &'static str, bar: Bar) {
        self.figures.push(Figure::new(figure, value, unit, bar));
    }

    async fn begin(&self) -> Result<UnitOfWork> {
        Ok(self.kernel.begin(self.project_id).await?)
    }

    /// Makes a box of `n` new cards, bypassing the kernel: it is set-up, and is not measured.
    async fn fill(&mut self, what: &str, n: i64) -> Result<BoxId> {
        let box_id = BoxId::new();
        let bar = progress(what, n as u64);
        for from in (1..=n).step_by(FILL_STEP as usize) {
            let upto = n.min(from + FILL_STEP - 1);
            sqlx::query(
                "with made as (
                   insert into cardbox.cards (project_id, card_id, n_tokens, type, role, hash, salt, content)
                   select $1, (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
                               || '7' || substr(noise, 1, 3) || '8' || substr(noise, 4, 15))::uuid,
                          $5, 'agent.thought', 'assistant', decode(noise || noise, 'hex'), decode(noise, 'hex'), to_json(repeat(noise, 21))
                     from (select md5(random()::text || place) as noise from generate_series($3, $4) place) n
                returning card_id
                 ), grown as (
                   insert into cardbox.boxes (project_id, box_id, length) values ($1, $2, $4)
                       on conflict (project_id, box_id) do update set length = excluded.length
                 )
                 insert into cardbox.box_entries (project_id, box_id, seq, card_id)
                 select $1, $2, $3 - 1 + row_number() over (), card_id from made",
            )
            .bind(self.project_id)
            .bind(box_id)
            .bind(from)
            .bind(upto)
            .bind(CARD_TOKENS)
            .execute(&mut self.admin)
            .await?;
            bar.inc((upto - from + 1) as u64);
        }
        bar.finish_and_clear();
        Ok(box_id)
    }

    /// Brings the database into the state of one that has been running for a while: vacuumed, analysed, on disk.
    async fn settle(&mut self) -> Result<()> {
        let bar = progress("vacuum, analyse, checkpoint", 2);
        sqlx::query("vacuum analyze").execute(&mut self.admin).await?;
        bar.inc(1);
        sqlx::query("checkpoint").execute(&mut self.admin).await?;
        bar.finish_and_clear();
        Ok(())
    }

    async fn sizes(&mut self) -> Result<()> {
        let sizes = sqlx::query(
            "select (select count(*) from cardbox.cards) as cards,
                    (select count(*) from cardbox.box_entries) as entries,
                    pg_table_size('cardbox.cards') as cards_table, pg_indexes_size('cardbox.cards') as cards_indexes,
                    pg_table_size('cardbox.box_entries') as entries_table,
                    pg_indexes_size('cardbox.box_entries') as entries_indexes",
        )
        .fetch_one(&mut self.admin)
        .await?;
        let get = |name: &str| sizes.get::<i64, _>(name) as f64;
        let (cards, entries) = (get("cards"), get("entries"));
        self.report("cards in the database", cards, "cards", Bar::None);
        self.report("table bytes per card", get("cards_table") / cards, "bytes", Bar::None);
        self.report("index bytes per card", get("cards_indexes") / cards, "bytes", Bar::None);
        self.report("table bytes per entry", get("entries_table") / entries, "bytes", Bar::None);
        self.report("index bytes per entry", get("entries_indexes") / entries, "bytes", Bar::None);
        Ok(())
    }

    async fn append(&mut self, largest: BoxId) -> Result<()> {
        let samples = self.options.samples;
        // Each sample has its own box of ten, so that it stays a box of ten.
        let mut small = Vec::new();
        let mut work = self.begin().await?;
        for _ in 0..samples * 2 {
            let box_id = BoxId::new();
            let cards: Vec<NewCard> = (0..10).map(|_| new_thought()).collect();
            card::insert(&mut work, &cards).await?;
            card_box::create(&mut work, &[box_id]).await?;
            card_box::append(&mut work, box_id, &cards.iter().map(NewCard::card_id).collect::<Vec<_>>()).await?;
            small.push(box_id);
        }
        work.commit().await?;
        let next = AtomicUsize::new(0);
        let append = async |box_id: BoxId| {
            let card = new_thought();
            let mut work = self.begin().await?;
            card::insert(&mut work, std::slice::from_ref(&card)).await?;
            card_box::append(&mut work, box_id, &[card.card_id()]).await?;
            Ok(work.commit().await?)
        };
        let of_small = || small[next.fetch_add(1, Relaxed) % small.len()];
        let time = ratio("append", samples, async || append(largest).await, async || append(of_small()).await).await?;

        let (mut wal_large, mut wal_small) = (Vec::new(), Vec::new());
        let mut watch = PgConnection::connect_with(&self.kernel.pool().connect_options()).await?;
        for _ in 0..samples.min(100) {
            let before = wal_position(&mut watch).await?;
            append(largest).await?;
            let between = wal_position(&mut watch).await?;
            append(of_small()).await?;
            wal_large.push(between - before);
            wal_small.push(wal_position(&mut watch).await? - between);
        }
        let (wal_large, wal_small) = (median(wal_large), median(wal_small));
        self.report("append: p50 at the largest box ÷ p50 at 10 cards", time, "ratio", Bar::AtMost(1.2));
        self.report(
            "append: WAL at the largest box ÷ WAL at 10 cards",
            wal_large / wal_small,
            "ratio",
            Bar::AtMost(1.1),
        );
        self.report(
            "append: WAL at 10 cards ÷ WAL at the largest box",
            wal_small / wal_large,
            "ratio",
            Bar::AtMost(1.1),
        );
        self.report("append: WAL per card", wal_large, "bytes", Bar::None);
        Ok(())
    }

    async fn inherit(&mut self, ten: BoxId, largest: BoxId) -> Result<()> {
        let inherit = async |source| self.create_from(1, Span::whole(source)).await;
        let samples = self.options.samples;
        let time = ratio("inherit", samples, async || inherit(largest).await, async || inherit(ten).await).await?;
        let rows = self.rows_of(1, Span::whole(largest)).await? - self.rows_of(1, Span::whole(ten)).await?;
        self.report("inherit: p50 of the largest box ÷ p50 of 10 cards", time, "ratio", Bar::AtMost(1.2));
        self.report("inherit: rows of the largest box − rows of 10 cards", rows, "rows", Bar::AtMost(0.0));
        Ok(())
    }

    async fn create_from(&self, n: usize, source: Span) -> Result<()> {
        let heirs: Vec<BoxId> = (0..n).map(|_| BoxId::new()).collect();
        let mut work = self.begin().await?;
        card_box::create_from(&mut work, &heirs, source).await?;
        Ok(work.commit().await?)
    }

    /// Returns how many rows it takes to make boxes that inherit.
    async fn rows_of(&self, n: usize, source: Span) -> Result<f64> {
        let heirs: Vec<BoxId> = (0..n).map(|_| BoxId::new()).collect();
        let mut work = self.begin().await?;
        let before = rows_written(&mut work).await?;
        card_box::create_from(&mut work, &heirs, source).await?;
        let after = rows_written(&mut work).await?;
        Ok((after - before) as f64)
    }

    /// Makes a box that holds `runs` ranges of ten cards each.
    async fn patchwork(&self, runs: usize) -> Result<BoxId> {
        let patchwork = BoxId::new();
        let mut work = self.begin().await?;
        card_box::create(&mut work, &[patchwork]).await?;
        for _ in 0..runs {
            let source = BoxId::new();
            let cards: Vec<NewCard> = (0..10).map(|_| new_thought()).collect();
            card::insert(&mut work, &cards).await?;
            card_box::create(&mut work, &[source]).await?;
            card_box::append(&mut work, source, &cards.iter().map(NewCard::card_id).collect::<Vec<_>>()).await?;
            card_box::inherit(&mut work, patchwork, Span::whole(source)).await?;
        }
        work.commit().await?;
        Ok(patchwork)
    }

    async fn inherit_ranges(&mut self) -> Result<()> {
        let (one, hundred) = (self.patchwork(1).await?, self.patchwork(100).await?);
        let samples = self.options.samples;
        let inherit = async |source| self.create_from(1, Span::whole(source)).await;
        let single =
            ratio("inherit ranges", samples, async || inherit(hundred).await, async || inherit(one).await).await?;

        let plain = self.fill("box of 1,000", 1_000).await?;
        let mut work = self.begin().await?;
        let shared = card_box::share(&mut work, Span::whole(hundred)).await?;
        work.commit().await?;
        let fan_out = async |source| self.create_from(FAN_OUT, source).await;
        let many = ratio(
            "fan out from ranges",
            fan_out_samples(samples),
            async || fan_out(shared).await,
            async || fan_out(Span::whole(plain)).await,
        )
        .await?;
        self.report("inherit: p50 of 100 ranges ÷ p50 of 1 range", single, "ratio", Bar::AtMost(6.0));
        self.report("fan-out of 1,000: from 100 ranges, shared ÷ from a plain box", many, "ratio", Bar::AtMost(1.5));
        Ok(())
    }

    async fn fan_out(&mut self, ten: BoxId, ten_thousand: BoxId) -> Result<()> {
        let fan_out = async |source| self.create_from(FAN_OUT, Span::whole(source)).await;
        let samples = fan_out_samples(self.options.samples);
        let time = ratio("fan out", samples, async || fan_out(ten_thousand).await, async || fan_out(ten).await).await?;
        let rows = self.rows_of(FAN_OUT, Span::whole(ten_thousand)).await?;
        self.report("fan-out of 1,000: rows written for 10,000 cards", rows, "rows", Bar::AtMost(2_000.0));
        self.report("fan-out of 1,000: p50 for 10,000 cards ÷ p50 for 10", time, "ratio", Bar::AtMost(1.3));
        Ok(())
    }

    async fn read(&mut self, ten_thousand: BoxId) -> Result<()> {
        let (project_id, kernel) = (self.project_id, &self.kernel);
        let admin = tokio::sync::Mutex::new(&mut self.admin);
        let through_kernel = async || {
            let mut work = kernel.begin(project_id).await?;
            card_box::read(&mut work, Span::whole(ten_thousand), None).await?;
            Ok(work.commit().await?)
        };
        let bare = async || {
            let mut admin = admin.lock().await;
            let mut tx = admin.begin().await?;
            let rows = sqlx::query(
                "select e.seq, c.card_id, c.type, c.role, c.author_id, c.hash, c.salt, c.n_tokens, c.tool_call_id, c.trace_id,
                        c.step_id, c.parent_step_id, c.ttl_seconds, c.expires_at, c.created_at,
                        c.content, c.tool_calls, c.metadata,
                        false as is_external, null::timestamptz as gone_at, null::text as gone_why, null::text as gone_reason
                   from cardbox.box_entries e
                   join cardbox.cards c on c.project_id = e.project_id and c.card_id = e.card_id
                  where e.project_id = $1 and e.box_id = $2
                  order by e.seq",
            )
            .bind(project_id)
            .bind(ten_thousand)
            .fetch_all(&mut *tx)
            .await?;
            let read = rows.iter().map(|row| Ok((row.try_get::<i64, _>("seq")?, ReadingRow::from_row(row)?.0)));
            let read: Vec<_> = read.collect::<sqlx::Result<_>>()?;
            std::hint::black_box(read);
            Ok(tx.commit().await?)
        };
        let samples = fan_out_samples(self.options.samples);
        let time = ratio("read", samples, through_kernel, bare).await?;
        self.report("read 10,000 cards: through the kernel ÷ bare join", time, "ratio", Bar::AtMost(1.3));
        Ok(())
    }

    async fn hydrate(&mut self, thousand: BoxId, largest: BoxId) -> Result<()> {
        let window = Window { pinned: 2, budget: Tokens::new(40_000).context("positive")?, as_of: None };
        let hydrate = async |box_id| {
            let mut work = self.begin().await?;
            card_box::hydrate(&mut work, box_id, None, window).await?;
            Ok(work.commit().await?)
        };
        let samples = self.options.samples;
        let time = ratio("hydrate", samples, async || hydrate(largest).await, async || hydrate(thousand).await).await?;
        self.report("hydrate 40K tokens: p50 of the largest box ÷ p50 of 1,000 cards", time, "ratio", Bar::AtMost(1.3));
        Ok(())
    }

    async fn insert(&mut self) -> Result<()> {
        sqlx::raw_sql(
            "create schema bench;
             create table bench.bare_cards (like cardbox.cards including defaults including constraints);
             alter table bench.bare_cards drop column hash, drop column salt, add primary key (project_id, card_id)",
        )
        .execute(&mut self.admin)
        .await?;
        let (project_id, kernel) = (self.project_id, &self.kernel);
        let admin = tokio::sync::Mutex::new(&mut self.admin);
        let through_kernel = async || {
            let cards: Vec<NewCard> = (0..BATCH).map(|_| new_thought()).collect();
            let mut work = kernel.begin(project_id).await?;
            card::insert(&mut work, &cards).await?;
            Ok(work.commit().await?)
        };
        let counting = async || {
            let cards: Vec<NewCard> = (0..BATCH).map(|_| draft_thought().seal()).collect::<Result<_, _>>()?;
            let mut work = kernel.begin(project_id).await?;
            card::insert(&mut work, &cards).await?;
            Ok(work.commit().await?)
        };
        let bare = async || {
            let drafts: Vec<Draft> = (0..BATCH).map(|_| draft_thought()).collect();
            let contents: Vec<String> =
                drafts.iter().map(|draft| serde_json::to_string(&draft.content)).collect::<Result<_, _>>()?;
            let ids: Vec<CardId> = drafts.iter().map(|draft| draft.card_id).collect();
            let types: Vec<&str> = drafts.iter().map(|draft| draft.metadata.card_type.as_str()).collect();
            let roles: Vec<Role> = drafts.iter().map(|draft| draft.metadata.role).collect();
            let mut admin = admin.lock().await;
            let mut tx = admin.begin().await?;
            sqlx::query(
                "insert into bench.bare_cards (project_id, card_id, n_tokens, type, role, content)
                 select $1, card_id, $2, type, role, content::json
                   from unnest($3::uuid[], $4::text[], $5::text[], $6::text[]) as card (card_id, type, role, content)",
            )
            .bind(project_id)
            .bind(CARD_TOKENS)
            .bind(ids)
            .bind(types)
            .bind(roles)
            .bind(contents)
            .execute(&mut *tx)
            .await?;
            Ok(tx.commit().await?)
        };
        let samples = self.options.samples;
        let speed = ratio("insert", samples * 2, &bare, through_kernel).await?;
        let speed_counting = ratio("insert, counting tokens", samples, &bare, counting).await?;
        self.report("insert of 100 cards: cards/s through the kernel ÷ bare insert", speed, "ratio", Bar::AtLeast(0.6));
        self.report("insert of 100 cards, their tokens counted too ÷ bare insert", speed_counting, "ratio", Bar::None);
        Ok(())
    }
}

/// Returns the number of samples for long operations, which need fewer.
fn fan_out_samples(samples: u64) -> u64 {
    (samples / 8).max(41)
}

fn draft_thought() -> Draft {
    draft(CardType::thought(), Role::Assistant)
}

fn new_thought() -> NewCard {
    new_card(CardType::thought(), Role::Assistant)
}

/// Returns the rows that this connection has written and not reported yet: useful only as a difference.
async fn rows_written(work: &mut UnitOfWork) -> Result<i64> {
    let rows = sqlx::query_scalar(
        "select coalesce(sum(n_tup_ins + n_tup_upd), 0)::bigint
           from pg_stat_xact_user_tables where schemaname = 'cardbox'",
    );
    Ok(rows.fetch_one(&mut **work).await?)
}

async fn wal_position(watch: &mut PgConnection) -> Result<f64> {
    let bytes: i64 =
        sqlx::query_scalar("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").fetch_one(watch).await?;
    Ok(bytes as f64)
}
