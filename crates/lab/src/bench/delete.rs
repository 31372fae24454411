//! How fast a project is deleted, with the guard of today and with the guard before it: a function that read each row as JSON.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sqlx::{AssertSqlSafe, Connection, FromRow, PgConnection};
use waybill_core::id::ProjectId;
use waybill_kernel::project;

use super::{
    fill::{self, CARDS_EACH},
    fresh_database, progress,
};
use crate::figure::{Bar, Figure};
use waybill_services::Private;

/// How many cards.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Cards of the four projects together. Two of them are deleted under each guard.
    pub cards: u64,
    /// The bar for rows/s with the guard of today ÷ with the one before.
    pub gain: Bar,
}

const DATABASE: &str = "waybill_delete";
const PROJECTS: u64 = 4;

pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let turns = options.cards / CARDS_EACH;
    let project_of = |turn: u64, _| (turn % PROJECTS) as usize;
    let projects = fill::fill(&private.server, DATABASE, turns, PROJECTS as usize, project_of).await?.projects;
    kernel.close().await;
    let mut owner = PgConnection::connect(&private.server.owner_url(DATABASE)).await?;
    let guards = Guard::all(&mut owner).await?;
    ensure!(!guards.is_empty(), "no trigger guards rows against deletion");
    sqlx::raw_sql(BEFORE).execute(&mut owner).await?;
    let (mut rows, mut times) = ([0, 0], [Duration::ZERO; 2]);
    for (n, project_id) in projects.into_iter().enumerate() {
        // By turns, so that machine noise affects both alike.
        let old = n % 2 == 0;
        for guard in &guards {
            guard.install(&mut owner, old).await?;
        }
        sqlx::raw_sql("checkpoint").execute(&mut admin).await?;
        let begun = Instant::now();
        rows[usize::from(old)] += delete(&mut owner, project_id).await?;
        times[usize::from(old)] += begun.elapsed();
    }
    let [now, before] = [0, 1].map(|way: usize| rows[way] as f64 / times[way].as_secs_f64());
    Ok(vec![
        Figure::new("cards of each project", (options.cards / PROJECTS) as f64, "cards", Bar::None),
        Figure::new("rows deleted a second", now, "rows/s", Bar::None),
        Figure::new("rows deleted a second with the guard before", before, "rows/s", Bar::None),
        Figure::new("rows/s ÷ with the guard before", now / before, "ratio", options.gain),
    ])
}

/// Deletes a project as `waybill project delete` does. Returns the number of rows.
async fn delete(owner: &mut PgConnection, project_id: ProjectId) -> Result<u64> {
    let bar = progress("rows deleted", 0);
    let deleted = project::delete(owner, project_id, |_, n| bar.inc(n)).await?;
    bar.finish_and_clear();
    let cards = deleted.get("cardbox.cards").context("the project had cards")?;
    ensure!(*cards > 0, "no card was deleted");
    Ok(deleted.values().sum())
}

/// The guard before: for every row a function that reads it as JSON to find its project.
const BEFORE: &str = "
  create schema before;
  create function before.refuse() returns trigger
  language plpgsql set search_path = pg_catalog, pg_temp as $$
  begin
    if tg_op = 'DELETE' and tg_level = 'ROW' and to_jsonb(old) ->> 'project_id' = current_setting('waybill.deleting', true) then
      return old;
    end if;
    raise exception '% of %.% is refused: %', lower(tg_op), tg_table_schema, tg_table_name, tg_argv[0]
      using errcode = 'WB010';
  end $$";

/// A trigger that refuses deletions, and its text.
#[derive(FromRow)]
struct Guard {
    table: String,
    name: String,
    /// As the migrations made it.
    text: String,
}

impl Guard {
    /// Returns the triggers that fire when a row or several are deleted. Those of partitions come with their parents.
    async fn all(owner: &mut PgConnection) -> Result<Vec<Guard>> {
        let guards = sqlx::query_as(
            r#"select t.tgrelid::regclass::text as "table", quote_ident(t.tgname) as name, pg_get_triggerdef(t.oid) as text
                 from pg_trigger t
                 join pg_class c on c.oid = t.tgrelid
                where not t.tgisinternal and t.tgparentid = 0 and t.tgtype & 8 <> 0
                  and c.relnamespace = any (array['cardbox', 'resource', 'state', 'parts']::regnamespace[])
                order by 1, 2"#,
        );
        Ok(guards.fetch_all(owner).await?)
    }

    /// Puts the guard before in its place, or the guard of today.
    async fn install(&self, owner: &mut PgConnection, old: bool) -> Result<()> {
        let Guard { table, name, text } = self;
        let create = if old {
            format!(
                "create trigger {name} before delete on {table} for each row execute function before.refuse('it is kept')"
            )
        } else {
            text.clone()
        };
        let sql = format!("drop trigger {name} on {table}; {create}");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(owner).await?;
        Ok(())
    }
}
