//! CX-10 on a real database: while others append, when another turn is faster, and killed between any two statements.

use std::time::Duration;

use futures::future::BoxFuture;
use waybill_context::{compact::Summary, policy::Policy, unit::Message};
use waybill_core::{
    card::{NewCard, Role},
    id::SessionId,
    turn::Usage,
};
use waybill_kernel::{blackboard, card, turn};
use waybill_testkit::TestDb;
use waybill_worker::compact::{Compacted, Error, Summarised, Summariser, compact};

use crate::{COMPACTION, Claimed, Counting, Desk, Gathered, long, sealed, shown, tokens, tool_round};

/// A session that has talked at length, and a turn in it that has called tools at length.
async fn talk(desk: &mut Desk) -> (SessionId, Claimed) {
    desk.setting.policy = Policy { budget: tokens(1_000), ..desk.setting.policy };
    let session_id = desk.session().await;
    let said: Vec<NewCard> = (0..6)
        .map(|n| sealed(if n % 2 == 0 { Role::User } else { Role::Assistant }, &long(&format!("m{n}"), 60)))
        .collect();
    desk.remember(session_id, &said).await;
    let claimed = desk.ask(session_id, "q0 so?").await;
    desk.step(&claimed, &tool_round(&long("s1", 60), &long("r1", 60)), None).await;
    desk.step(&claimed, &tool_round(&long("s2", 60), &long("r2", 60)), None).await;
    (session_id, claimed)
}

impl Desk {
    async fn compact(&self, claimed: &Claimed, gathered: &mut Gathered) -> Result<Compacted, Error> {
        compact(self.kernel(), claimed, gathered, &self.setting.policy, COMPACTION, &Counting).await
    }

    /// Returns the beginnings of what is shown.
    fn firsts(&self, gathered: &Gathered) -> Vec<String> {
        let short = |line: &String| line.chars().take_while(|c| *c != '\n').take(60).collect::<String>();
        shown(gathered, &self.setting.policy).iter().map(short).map(|line| line.replace(" and so on", "")).collect()
    }
}

/// CX-10: between two steps, in place. The next turn of the session finds the summary and nothing twice.
#[tokio::test]
async fn a_running_turn_is_compacted_in_place() {
    let mut desk = Desk::new().await;
    let (session_id, claimed) = talk(&mut desk).await;
    let mut gathered = desk.gather(&claimed).await;
    let done = desk.compact(&claimed, &mut gathered).await.unwrap();
    assert_eq!((done.n_summaries, done.n_conflicts), (1, 0));
    let after = desk.firsts(&gathered);
    assert_eq!(after[..2], ["system: [m0 m1 m2 m3 m4 m5]".to_owned(), "user: q0 so?".to_owned()]);
    assert_eq!(after.len(), 6, "and the turn's own steps: {after:?}");
    // What compaction left in `gathered` is what a reader finds.
    assert_eq!(desk.firsts(&desk.gather(&claimed).await), after);

    // The turn goes on, and its own steps become too many.
    desk.step(&claimed, &tool_round(&long("s3", 100), &long("r3", 90)), None).await;
    let mut gathered = desk.gather(&claimed).await;
    let done = desk.compact(&claimed, &mut gathered).await.unwrap();
    assert_eq!(done.n_summaries, 1);
    let after = desk.firsts(&gathered);
    assert_eq!(after.len(), 4, "{after:?}");
    assert_eq!(after[1], "user: q0 so?");
    assert!(after[2].starts_with("assistant: s3") && after[3].starts_with("tool: r3"), "{after:?}");
    let block = &shown(&gathered, &desk.setting.policy)[0];
    assert_eq!(block, "system: [m0 m1 m2 m3 m4 m5]\n\n[s1 r1 s2 r2]");
    assert_eq!(desk.firsts(&desk.gather(&claimed).await), after);
    desk.finish(&claimed, "d0 done").await;

    // Seen by the next turn: the session's summary, and what came after. The turn's own summary was its own.
    let next = desk.ask(session_id, "q1 and now?").await;
    assert_eq!(
        desk.firsts(&desk.gather(&next).await),
        ["system: [m0 m1 m2 m3 m4 m5]", "user: q0 so?", "assistant: d0 done", "user: q1 and now?"]
    );
}

/// CX-10: others append while a turn summarises. None of their messages is lost, and nothing is shown twice.
#[tokio::test]
async fn others_append_meanwhile() {
    let mut desk = Desk::new().await;
    let (session_id, claimed) = talk(&mut desk).await;
    let mut gathered = desk.gather(&claimed).await;
    desk.remember(session_id, &[sealed(Role::User, "m6 by the way")]).await;
    desk.compact(&claimed, &mut gathered).await.unwrap();
    desk.finish(&claimed, "d0").await;
    let next = desk.ask(session_id, "q1").await;
    assert_eq!(
        desk.firsts(&desk.gather(&next).await),
        ["system: [m0 m1 m2 m3 m4 m5]", "user: m6 by the way", "user: q0 so?", "assistant: d0", "user: q1"]
    );
}

/// CX-9, CX-10: if two turns summarise the same session, one summary is written; the other turn uses it, and pays for no third.
#[tokio::test]
async fn of_two_summaries_one_is_used_by_both() {
    let mut desk = Desk::new().await;
    let (session_id, claimed) = talk(&mut desk).await;
    let other = desk.ask(session_id, "q9").await;
    let (mut ours, mut theirs) = (desk.gather(&claimed).await, desk.gather(&other).await);
    desk.setting.policy.budget = tokens(700);
    let first = desk.compact(&other, &mut theirs).await.unwrap();
    assert_eq!((first.n_summaries, first.n_conflicts), (1, 0));
    let second = desk.compact(&claimed, &mut ours).await.unwrap();
    assert_eq!(second.n_conflicts, 1);
    assert!(shown(&ours, &desk.setting.policy)[0].starts_with("system: [m0 m1 m2 m3 m4 m5]"));
}

/// A summary that came second was paid for: a step of its turn records the cost, and so does the budget.
#[tokio::test]
async fn a_summary_that_came_second_is_paid_for() {
    struct Paid;
    impl Summariser for Paid {
        fn summarise<'a>(
            &'a self,
            previous: Option<&'a str>,
            messages: &'a [Message<'a>],
        ) -> BoxFuture<'a, Result<Summarised, Box<dyn std::error::Error + Send + Sync>>> {
            let said = Counting.summarise(previous, messages);
            let usage = Usage { input_tokens: 70, output_tokens: 7, ..Usage::default() };
            Box::pin(async { said.await.map(|said| Summarised { usage: Some(usage), ..said }) })
        }
    }
    let mut desk = Desk::new().await;
    let (session_id, claimed) = talk(&mut desk).await;
    let other = desk.ask(session_id, "q9").await;
    let (mut ours, mut theirs) = (desk.gather(&claimed).await, desk.gather(&other).await);
    desk.setting.policy.budget = tokens(700);
    let policy = desk.setting.policy;
    compact(desk.kernel(), &other, &mut theirs, &policy, COMPACTION, &Paid).await.unwrap();
    let second = compact(desk.kernel(), &claimed, &mut ours, &policy, COMPACTION, &Paid).await.unwrap();
    assert_eq!(second.n_conflicts, 1);
    let paid = turn::steps(&mut desk.t.begin().await, claimed.fence.agent_turn_id()).await.unwrap();
    let paid = paid.iter().filter(|step| step.input_tokens == Some(70)).count();
    assert_eq!(paid, second.n_summaries + second.n_conflicts);
}

/// CX-10: the previous summary is an input of the next one, which covers everything that it covered.
#[tokio::test]
async fn a_session_is_compacted_again_and_again() {
    let mut desk = Desk::new().await;
    let (session_id, claimed) = talk(&mut desk).await;
    desk.compact(&claimed, &mut desk.gather(&claimed).await).await.unwrap();
    desk.finish(&claimed, &long("d0", 300)).await;
    let next = desk.ask(session_id, &long("q1", 350)).await;
    let mut gathered = desk.gather(&next).await;
    desk.compact(&next, &mut gathered).await.unwrap();
    let lines = desk.firsts(&gathered);
    assert_eq!(lines[0], "system: [[m0 m1 m2 m3 m4 m5] then q0 d0]");
    assert_eq!(lines.len(), 2);
    let summary = Summary::read(gathered.materials.session_summary.as_ref().unwrap()).unwrap();
    assert_eq!(summary.covers.spans().map(|span| (span.from, span.upto)).collect::<Vec<_>>(), [(1, 8)]);
    assert!(summary.previous_card_id.is_some());
}

/// An erased summary is made again from the messages, which are still there.
#[tokio::test]
async fn an_erased_summary_is_made_anew() {
    let mut desk = Desk::new().await;
    let (_, claimed) = talk(&mut desk).await;
    desk.compact(&claimed, &mut desk.gather(&claimed).await).await.unwrap();
    let gathered = desk.gather(&claimed).await;
    let erased = gathered.materials.session_summary.unwrap().card_id;
    card::erase(&mut desk.t.owner().await, desk.t.project_id, &[erased], "asked").await.unwrap();
    let mut gathered = desk.gather(&claimed).await;
    let done = desk.compact(&claimed, &mut gathered).await.unwrap();
    assert_eq!((done.n_summaries, done.n_conflicts), (1, 0));
    assert_eq!(desk.firsts(&gathered)[0], "system: [m0 m1 m2 m3 m4 m5]");
}

/// If a summariser fails, or writes more than it read, there is no summary, but the turn goes on.
#[tokio::test]
async fn a_summariser_that_fails_is_not_the_end() {
    struct Bad(Option<&'static str>);
    impl Summariser for Bad {
        fn summarise<'a>(
            &'a self,
            _: Option<&'a str>,
            _: &'a [Message<'a>],
        ) -> BoxFuture<'a, Result<Summarised, Box<dyn std::error::Error + Send + Sync>>> {
            let said = self.0.map(|text| Summarised { text: text.repeat(300), usage: None });
            let said = said.ok_or_else(|| "no model".into());
            Box::pin(async { said })
        }
    }
    let mut desk = Desk::new().await;
    let (_, claimed) = talk(&mut desk).await;
    for (bad, why) in [
        (Bad(None), "no model"),
        (Bad(Some("more words ")), "the summary is empty or not shorter"),
        (Bad(Some(" ")), "the summary is empty or not shorter"),
    ] {
        let mut gathered = desk.gather(&claimed).await;
        let before = desk.firsts(&gathered);
        let policy = desk.setting.policy;
        let done = compact(desk.kernel(), &claimed, &mut gathered, &policy, COMPACTION, &bad).await.unwrap();
        assert!(done.failure.as_ref().is_some_and(|failure| failure.starts_with(why)), "{done:?}");
        assert_eq!((done.n_summaries, desk.firsts(&gathered)), (0, before));
    }
}

/// L0-5: a worker that lost its turn writes no summary, neither for the turn nor for the session.
#[tokio::test]
async fn who_lost_its_turn_writes_no_summary() {
    let mut desk = Desk::new().await;
    let (session_id, claimed) = talk(&mut desk).await;
    let mut gathered = desk.gather(&claimed).await;
    desk.take_over().await;
    let outcome = desk.compact(&claimed, &mut gathered).await;
    assert!(matches!(outcome, Err(Error::Turn(turn::Error::Stale(_)))), "{outcome:?}");
    let board = blackboard::find(&mut desk.t.begin().await, session_id).await.unwrap().unwrap();
    assert_eq!(board.compression_card_id, None);
}

/// Returns everything that is shown while a session and a turn are compacted, by whichever worker has the turn at the time.
async fn course(desk: &mut Desk, killed_at: Option<&str>) -> Vec<Vec<String>> {
    let (session_id, mut claimed) = talk(desk).await;
    let mut seen = Vec::new();
    for round in 0..2 {
        if round == 1 {
            desk.step(&claimed, &tool_round(&long("s3", 100), &long("r3", 90)), None).await;
        }
        if let Some(mark) = killed_at {
            let before = desk.n_fired().await;
            desk.t.fail_at(Some(mark)).await;
            let mut gathered = desk.gather(&claimed).await;
            tokio::select! {
                outcome = desk.compact(&claimed, &mut gathered) => drop(outcome),
                () = desk.until_fired(before) => {}
            }
            desk.t.fail_at(None).await;
            drop(gathered);
            claimed = desk.take_over().await;
        }
        let mut gathered = desk.gather(&claimed).await;
        desk.compact(&claimed, &mut gathered).await.unwrap();
        seen.push(shown(&gathered, &desk.setting.policy));
        assert_eq!(shown(&desk.gather(&claimed).await, &desk.setting.policy), seen[round]);
    }
    desk.finish(&claimed, "d0 done").await;
    let next = desk.ask(session_id, "q1 and now?").await;
    seen.push(shown(&desk.gather(&next).await, &desk.setting.policy));
    desk.finish(&next, "d1").await;
    seen
}

impl Desk {
    async fn n_fired(&self) -> i64 {
        self.t.count("select case when is_called then last_value else 0 end from waybill.fired").await
    }

    async fn until_fired(&self, before: i64) {
        while self.n_fired().await == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Killed between any two statements of a patch or of a compaction, and taken over: the same messages as without it.
#[tokio::test]
async fn a_kill_at_any_statement_shows_nothing_twice_and_loses_nothing() {
    let mut desk = Desk::new().await;
    desk.t.arm_fail_points().await;
    let undisturbed = course(&mut desk, None).await;
    assert!(undisturbed[2].len() == 4 && undisturbed[0].len() == 6, "{undisturbed:?}");
    let marks: Vec<&str> = TestDb::fail_points()
        .into_iter()
        .filter(|mark| ["step.", "patch."].iter().any(|part| mark.starts_with(part)))
        .collect();
    assert!(marks.len() >= 10, "{marks:?}");
    for mark in marks {
        let before = desk.n_fired().await;
        let disturbed = course(&mut desk, Some(mark)).await;
        // A patch that replaces or forgets is not part of a compaction.
        assert!(desk.n_fired().await > before || mark == "patch.replaced", "no process came to {mark}");
        assert_eq!(disturbed, undisturbed, "killed at {mark}");
    }
}
