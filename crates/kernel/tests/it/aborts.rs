//! A connection that dies between any two statements of any transition: no lost turn, no second deliverable, no stuck agent.

use std::time::Duration;

use waybill_core::{
    artifact::{ArtifactPath, Stored},
    card::{CardType, Content, Draft, NewCard, Role},
    card_box::Span,
    id::{AgentId, BoxId, ProjectId, SessionId, StepId, ToolCallId, TurnId, UploadId},
    request::{Decided, Decision, Request},
    turn::{ClaimToken, Fence},
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    artifact,
    batch::{self, Fork, JoinsAs},
    blackboard::{self, Patch},
    call, lease, request, sweep, turn,
    turn::{Attempts, Claimed, Claiming, DispatchRequest, Error, Loss, Report, Step, Stepped},
    work::Kernel,
};
use waybill_testkit::TestDb;

use crate::{
    batches::Plan,
    cases,
    turns::{House, LONG, answer, calling, ending, fork, instruction, target},
};

/// What must hold when all is over, as questions with the answer 0.
const INVARIANTS: [(&str, &str); 16] = [
    (
        "artifacts without content, content without an artifact, and objects that are not to be deleted",
        "select (select count(*) from cardbox.artifacts a
                  where not exists (select from cardbox.blobs b where b.project_id = a.project_id and b.hash = a.hash))
              + (select count(*) from cardbox.blobs) + (select count(*) from cardbox.uploads where not condemned)",
    ),
    ("turns without an end", "select count(*) from state.turns where status = 'open'"),
    ("inbox rows left", "select count(*) from state.agent_inbox"),
    ("agents not idle", "select count(*) from state.agent_state_head where status <> 'idle' or n_queued <> 0"),
    ("calls left", "select count(*) from state.waiting_calls"),
    ("batches open", "select count(*) from state.pmo_batches where status = 'open'"),
    ("tasks open", "select count(*) from state.pmo_batch_tasks where status = 'open'"),
    (
        "deliverables that are not once in their output box",
        "select count(*) from state.turns t
          where 1 <> (select count(*) from cardbox.box_entries e
                       where e.project_id = t.project_id and e.box_id = t.output_box_id and e.card_id = t.deliverable_card_id)",
    ),
    (
        "turns with another number of deliverables than one",
        "select count(*) from state.turns t
          where 1 <> (select count(*) from cardbox.box_entries e
                        join cardbox.cards c on c.project_id = e.project_id and c.card_id = e.card_id
                       where e.project_id = t.project_id and e.box_id = t.output_box_id and c.type = 'task.deliverable')",
    ),
    (
        "turns with another number of task events than one",
        "select count(*) from state.turns t
          where 1 <> (select count(*) from state.outbox o
                       where o.project_id = t.project_id and o.agent_turn_id = t.agent_turn_id and o.event = 'task')",
    ),
    (
        "calls answered more or less than once",
        "select count(*) from state.execution_edges c
          where c.primitive = 'command'
            and 1 <> (select count(*) from cardbox.box_entries e
                        join cardbox.cards r on r.project_id = e.project_id and r.card_id = e.card_id
                       where r.project_id = c.project_id and r.tool_call_id = c.correlation_id and r.type = 'tool.result')
            and not exists (select from state.turns t where t.project_id = c.project_id and t.agent_turn_id = c.agent_turn_id
                                                        and t.status <> 'success')",
    ),
    (
        "turns whose question or answer is not once in the session's memory",
        "select count(*) from state.turns t
           join state.blackboards b on b.project_id = t.project_id and b.session_id = t.session_id
          where 2 <> (select count(*) from cardbox.box_entries e
                       where e.project_id = t.project_id and e.box_id = b.messages_box_id
                         and e.card_id = any (t.query_card_ids || t.deliverable_card_id))",
    ),
    (
        "sessions that do not remember the parent's step",
        "select count(*) from state.blackboards b
           join cardbox.boxes r on r.project_id = b.project_id and r.box_id = b.mapreduce_results_box_id
          where b.todo_card_id is null or b.compression_card_id is null
             or not exists (select from state.receipts c where c.project_id = b.project_id)
             or r.length = 0
             or r.length <> (select count(*) from cardbox.box_entries e
                               join cardbox.box_entries m on m.project_id = e.project_id and m.card_id = e.card_id
                                                         and m.box_id = b.messages_box_id
                              where e.project_id = b.project_id and e.box_id = r.box_id)",
    ),
    (
        "agents that were here for their turns and still have a head, or were not retired",
        "select (select count(*) from state.agent_state_head where ephemeral)
              + (select count(*) from resource.project_agents where retire_by < now() and retired_at is null)",
    ),
    (
        "memories that do not hold each question and what came of it once",
        "select count(*) from resource.project_agents a
           join cardbox.boxes b on b.project_id = a.project_id and b.box_id = a.memory_box_id
          where b.length <> (select coalesce(sum(o.length), 0) + count(distinct t.query_card_ids[1])
                               from state.turns t
                               join cardbox.boxes o on o.project_id = t.project_id and o.box_id = t.output_box_id
                              where t.project_id = a.project_id and t.agent_id = a.agent_id and t.session_id is null)",
    ),
    (
        "boxes whose length is not what they hold",
        "select count(*) from cardbox.boxes b
          where b.length <> (select count(*) from cardbox.box_entries e where e.project_id = b.project_id and e.box_id = b.box_id)",
    ),
];

fn short_lived(agent_id: AgentId) -> NewAgent {
    NewAgent::new(agent_id, target("llm"))
}

/// A patch with every verb that a step may use.
fn remembering(step: &Step, messages_box_id: BoxId) -> Patch {
    let card_ids: Vec<_> = step.cards.iter().map(NewCard::card_id).collect();
    let card = |card_type| {
        let content = serde_json::json!({ "text": "", "covers": [] });
        Draft::new(card_type, Role::System, Content::Json(content)).seal().unwrap()
    };
    Patch::default()
        .append(&card_ids)
        .reset(BoxId::new())
        .results(&card_ids)
        .todo(card(CardType::todo()), None)
        .compression(card(CardType::compression()), None, messages_box_id)
}

/// The error of a patch that no other writer conflicts with.
fn lost(error: blackboard::Error) -> Error {
    match error {
        blackboard::Error::Db(error) | blackboard::Error::TryAgain(error) => Error::from(error),
        other => panic!("{other:?}"),
    }
}

/// Does something until it is known to be done, as every caller must: what ended in an error may have happened.
async fn surely<T>(mut attempt: impl AsyncFnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 0..1000 {
        match attempt().await {
            Err(Error::Db(_) | Error::TryAgain(_) | Error::Work(_)) => {
                tokio::time::sleep(Duration::from_millis(2)).await
            }
            known => return known,
        }
    }
    panic!("{:?}", attempt().await.err());
}

/// One small world in a project of its own: a parent that calls a tool and forks two children, a turn queued behind it, one for
/// later, one to be stopped, two plain ones, one that fails for good; workers and tools that are lost, and a head that is.
/// All of them in one session, whose blackboard is patched beside a step.
struct World<'h> {
    house: &'h House,
    turns: Vec<DispatchRequest>,
    card: NewCard,
    session_id: SessionId,
    /// Its first memory, and the one that takes its place.
    messages: (BoxId, BoxId),
    /// The message that a turn gets while it waits.
    told: NewCard,
}

impl<'h> World<'h> {
    async fn new(house: &'h House) -> World<'h> {
        let agents = house.agents(7).await;
        let card = instruction("do it");
        let of = |n: &usize| DispatchRequest::instructed(agents[*n], card.card_id());
        let mut turns: Vec<DispatchRequest> = [0, 0, 1, 2, 3, 4, 5, 6].iter().map(of).collect();
        turns[2].not_before = Some(chrono::Utc::now() + LONG);
        let forker = AgentId::new();
        let session_id = SessionId::new();
        let mut work = house.t.begin().await;
        agent::create(&mut work, &[forker], &target("forks")).await.unwrap();
        blackboard::open(&mut work, None, &[session_id]).await.unwrap();
        let board = blackboard::find(&mut work, session_id).await.unwrap().unwrap();
        work.commit().await.unwrap();
        turns.push(DispatchRequest::instructed(forker, card.card_id()));
        turns.iter_mut().for_each(|turn| turn.session_id = Some(session_id));
        let told = turn::message("and hurry").unwrap();
        World { house, turns, card, told, session_id, messages: (board.messages_box_id, BoxId::new()) }
    }

    fn project_id(&self) -> ProjectId {
        self.house.t.project_id
    }

    fn kernel(&self) -> &Kernel {
        self.house.kernel()
    }

    /// Runs all workers and handlers until all turns have ended.
    async fn run(&self) {
        let card = std::slice::from_ref(&self.card);
        for turn in &self.turns[..5] {
            surely(async || self.house.enqueue_all(std::slice::from_ref(turn), card).await).await.unwrap();
        }
        surely(async || {
            let mut alone = self.kernel().alone(self.project_id()).await?;
            turn::steer(&mut alone, self.turns[1].agent_turn_id, &self.told).await
        })
        .await
        .unwrap();
        let ((old, new), step_id) = (self.messages, StepId::new());
        let anew = Patch::default().replace(new, &[self.card.card_id()], Span::prefix(old, 0));
        surely(async || {
            let mut alone = self.kernel().alone(self.project_id()).await?;
            blackboard::patch(&mut alone, self.session_id, step_id, &anew).await.map_err(lost)
        })
        .await
        .unwrap();
        surely(async || self.house.enqueue_all(&self.turns[5..8], card).await).await.unwrap();
        surely(async || self.house.stop_once(self.turns[3].agent_turn_id).await).await.unwrap();
        self.store_and_remove().await;
        self.remember_and_retire().await;
        self.lose_a_head().await;
        self.lose_a_worker().await;
        match self.abandon_a_fork().await {
            Ok(()) | Err(Error::Stale(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
        let mut tool_lost = false;
        for round in 0..400 {
            let work = async {
                let most = if round % 2 == 0 { 4 } else { 1 };
                for kind in ["llm", "forks"] {
                    let mut claiming = Claiming { most, ..Claiming::new(self.house.worker, target(kind)) };
                    let claimed = turn::claim(self.kernel(), &mut claiming).await?;
                    self.work(&claimed).await?;
                }
                if !tool_lost
                    && self.house.count("select count(*) from state.waiting_calls where target = 'tool'").await > 0
                {
                    tool_lost = true;
                    let tool = surely(async || lease::start(self.kernel(), &target("tool"), LONG).await).await?;
                    let _ = call::claim(self.kernel(), &mut Claiming::new(tool, target("tool"))).await;
                    surely(async || lease::end(self.kernel(), tool).await).await?;
                }
                sweep::tick(self.kernel(), &sweep::Config { lease: Duration::ZERO, ..Default::default() }).await?;
                self.answer().await?;
                for call in self.calls("sys-pmo").await? {
                    self.fork(call).await?;
                }
                Ok::<(), Error>(())
            };
            // A process that loses its connection, or its turn, gives up; another goes on.
            match work.await {
                Ok(()) | Err(Error::Db(_) | Error::Stale(_) | Error::TryAgain(_) | Error::Work(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
            let left = "select (select count(*) from state.turns where status = 'open')
                             + (select count(*) from state.pmo_batches where status = 'open' or stopping)";
            if self.house.count(left).await == 0 {
                return;
            }
            self.house
                .meddle("update state.agent_inbox set next_retry_at = now() where next_retry_at is not null")
                .await;
            // What a worker had claimed and given up is taken from it, as if it had died.
            self.house.meddle("update state.agent_inbox set silent_by = now() where status = 'processing'").await;
        }
        panic!("it does not come to an end");
    }

    /// Calls of the tool are answered once people have decided about them.
    async fn answer(&self) -> Result<(), Error> {
        let mut claiming = Claiming { most: 2, ..Claiming::new(self.house.worker, target("tool")) };
        for call in call::claim(self.kernel(), &mut claiming).await? {
            let mut work = self.kernel().begin(self.project_id()).await?;
            let asked = call::asked(&mut work, &call).await?;
            drop(work);
            if asked.is_some_and(|asked| asked.decided.is_some()) {
                let report = Report { claim_token: Some(call.claim_token), ..answer(call.tool_call_id) };
                surely(async || self.house.report(&report).await).await?;
                continue;
            }
            let question = serde_json::json!({ "kind": "approval", "question": "May I?", "deadline_seconds": 600 });
            let question: Request = serde_json::from_value(question).unwrap();
            surely(async || {
                request::ask(&mut self.kernel().alone(self.project_id()).await?, &call, &question).await.map(|_| ())
            })
            .await?;
        }
        let open = request::open(&mut self.kernel().begin(self.project_id()).await?, 10).await?;
        for open in open {
            let decided = Decided::new(Decision::Approved, "somebody");
            surely(async || {
                request::decide(&mut self.kernel().alone(self.project_id()).await?, open.tool_call_id, &decided).await
            })
            .await?;
        }
        Ok(())
    }

    /// Content under two paths, and then under none.
    async fn store_and_remove(&self) {
        let (stored, paths) = (Stored::of(b"bulk"), ["a", "b"].map(|path| path.parse::<ArtifactPath>().unwrap()));
        let known = |error: artifact::Error| match error {
            artifact::Error::Db(error) => error,
            other => panic!("{other:?}"),
        };
        for path in &paths {
            let upload_id = UploadId::new();
            surely(async || {
                let mut work = self.kernel().begin(self.project_id()).await?;
                artifact::begin(&mut work, upload_id).await.map_err(known)?;
                Ok(work.commit().await?)
            })
            .await
            .unwrap();
            let finish =
                artifact::Finish { upload_id, path, media_type: "text/plain", author_id: None, stored: &stored };
            surely(async || {
                let mut work = self.kernel().begin(self.project_id()).await?;
                artifact::finish(&mut work, finish).await.map_err(known)?;
                Ok(work.commit().await?)
            })
            .await
            .unwrap();
        }
        surely(async || {
            let mut work = self.kernel().begin(self.project_id()).await?;
            for path in &paths {
                artifact::remove(&mut work, path, artifact::Remove::All).await.map_err(known)?;
            }
            artifact::collect(&mut work, 10).await.map_err(known)?;
            Ok(work.commit().await?)
        })
        .await
        .unwrap();
    }

    /// Lets one agent remember from now on, and retires one that got no work.
    async fn remember_and_retire(&self) {
        let gone = short_lived(AgentId::new());
        surely(async || {
            let mut work = self.kernel().begin(self.project_id()).await?;
            agent::memories(&mut work, &[self.turns[5].agent_id]).await?;
            agent::provision(&mut work, std::slice::from_ref(&gone), Stay::Ephemeral, None).await?;
            Ok(work.commit().await?)
        })
        .await
        .unwrap();
        let sql = format!(
            "delete from state.agent_state_head where agent_id = '{id}';
             update resource.project_agents set retire_by = now() where agent_id = '{id}'",
            id = gone.agent_id
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut self.house.t.admin().await).await.unwrap();
        surely(async || agent::retire(self.kernel(), 10).await).await.unwrap();
    }

    async fn lose_a_head(&self) {
        let agent_id = self.turns[4].agent_id;
        let sql = format!("delete from state.agent_state_head where agent_id = '{agent_id}'");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut self.house.t.admin().await).await.unwrap();
        surely(async || agent::rebuild(&mut self.kernel().alone(self.project_id()).await?, agent_id).await)
            .await
            .unwrap();
    }

    /// Takes a turn, and is never heard of again.
    async fn lose_a_worker(&self) {
        let worker = surely(async || lease::start(self.kernel(), &target("llm"), LONG).await).await.unwrap();
        surely(async || turn::claim(self.kernel(), &mut Claiming::new(worker, target("llm"))).await).await.unwrap();
        surely(async || lease::end(self.kernel(), worker).await).await.unwrap();
    }

    async fn calls(&self, name: &str) -> Result<Vec<(ToolCallId, ClaimToken)>, Error> {
        let mut claiming = Claiming { most: 2, ..Claiming::new(self.house.worker, target(name)) };
        let claimed = call::claim(self.kernel(), &mut claiming).await?;
        Ok(claimed.into_iter().map(|call| (call.tool_call_id, call.claim_token)).collect())
    }

    /// What a turn does next follows from what it has written. Those that end, end together.
    async fn work(&self, claimed: &[Claimed]) -> Result<(), Error> {
        let mut endings = Vec::new();
        for claimed in claimed {
            let fence = &claimed.fence;
            if fence.agent_turn_id() == self.turns[7].agent_turn_id {
                let loss = Loss::Attempt { error: "no".into(), backoff: Duration::ZERO };
                let mut work = self.kernel().begin(self.project_id()).await?;
                turn::reclaim(&mut work, fence, &loss, Attempts { max_attempts: 1, ..Default::default() }).await?;
                work.commit().await?;
                continue;
            }
            if fence.agent_turn_id() == self.turns[0].agent_turn_id {
                let mut work = self.kernel().begin(self.project_id()).await?;
                let written = crate::held(&mut work, claimed.output_box_id).await.len();
                drop(work);
                // Resumed, or taken over, it waits for what is left, which may be nothing.
                let mut step = calling(usize::from(written == 0), "tool", LONG, true);
                if written == 0 {
                    let forks = calling(1, "sys-pmo", LONG, true);
                    step.cards.extend(forks.cards);
                    step.calls.extend(forks.calls);
                }
                step.receipt = Some("{}".into());
                let patch = (written == 0).then(|| remembering(&step, self.messages.1));
                if surely(async || self.step(fence, &step, patch.as_ref()).await).await?.suspended {
                    continue;
                }
            }
            endings.push(ending(*fence));
        }
        surely(async || {
            let mut work = self.kernel().begin(self.project_id()).await?;
            turn::finish(&mut work, &endings).await?;
            Ok(work.commit().await?)
        })
        .await
    }

    /// A step, and what the session remembers of it, in one.
    async fn step(&self, fence: &Fence, step: &Step, patch: Option<&Patch>) -> Result<Stepped, Error> {
        let mut work = self.kernel().begin(self.project_id()).await?;
        let stepped = turn::step(&mut work, fence, step).await?;
        if let Some(patch) = patch {
            let patched = blackboard::patch(&mut work, self.session_id, step.step_id, patch).await.map_err(lost)?;
            assert_eq!(patched.duplicate, stepped.duplicate, "a step and its patch are written together");
        }
        work.commit().await?;
        Ok(stepped)
    }

    /// A fork whose parent is stopped: what was never dispatched is settled.
    async fn abandon_a_fork(&self) -> Result<(), Error> {
        let turn = &self.turns[8];
        surely(async || self.house.enqueue_all(std::slice::from_ref(turn), std::slice::from_ref(&self.card)).await)
            .await?;
        let mut claiming = Claiming::new(self.house.worker, target("forks"));
        let claimed = surely(async || turn::claim(self.kernel(), &mut claiming).await).await?;
        let Some(claimed) = claimed.into_iter().find(|c| c.fence.agent_turn_id() == turn.agent_turn_id) else {
            return Ok(()); // claimed, and the answer was lost: a sweep gives it to another process
        };
        let step = calling(1, "sys-other", LONG, true);
        surely(async || self.house.step(&claimed.fence, &step).await).await?;
        let mut claiming = Claiming::new(self.house.worker, target("sys-other"));
        for call in surely(async || call::claim(self.kernel(), &mut claiming).await).await? {
            let task = DispatchRequest::instructed(self.turns[4].agent_id, self.card.card_id());
            let fork = fork(&[task], false, LONG);
            surely(async || {
                let mut alone = self.kernel().alone(self.project_id()).await?;
                batch::open(&mut alone, call.tool_call_id, call.claim_token, &fork).await
            })
            .await?;
        }
        surely(async || self.house.stop_once(turn.agent_turn_id).await).await
    }

    /// The handler of the fork: batch and children in one transaction, so that one that dies leaves both or neither. The end of the children
    /// gives the call back, and a second batch, of one task that cannot be dispatched, answers it.
    async fn fork(&self, (tool_call_id, token): (ToolCallId, ClaimToken)) -> Result<(), Error> {
        let mut work = self.kernel().begin(self.project_id()).await?;
        let batches = batch::of_call(&mut work, tool_call_id).await?;
        let stage = batches.iter().filter(|batch| batch.status != batch::Status::Open).count() as i16;
        drop(work);
        let Plan { fork, children, card } = self.house.plan_fork(if stage == 0 { 2 } else { 1 }, false, LONG);
        let joins_as = if stage == 0 { JoinsAs::Resume } else { JoinsAs::List };
        let fork = Fork { stage, joins_as, ..fork };
        let made: Vec<NewAgent> = children.iter().map(|child| child.agent_id).map(short_lived).collect();
        surely(async || {
            let mut work = self.kernel().begin(self.project_id()).await?;
            let opened = batch::open(&mut work, tool_call_id, token, &fork).await?;
            if !opened.duplicate && stage == 0 {
                agent::provision(&mut work, &made, Stay::Ephemeral, None).await?;
                turn::enqueue(&mut work, &children, std::slice::from_ref(&card)).await?;
            } else if !opened.duplicate {
                batch::fail_tasks(&mut work, opened.batch_id, &[0], "busy").await?;
            }
            batch::dispatched(&mut work, tool_call_id, token).await?;
            Ok(work.commit().await?)
        })
        .await
    }
}

impl House {
    async fn stop_once(&self, turn_id: TurnId) -> Result<(), Error> {
        let mut work = self.kernel().begin(self.t.project_id).await?;
        turn::stop(&mut work, turn_id, "enough").await?;
        Ok(work.commit().await?)
    }

    async fn n_fired(&self) -> i64 {
        self.count("select case when is_called then last_value else 0 end from waybill.fired").await
    }
}

#[tokio::test]
async fn an_abort_at_any_statement_leaves_nothing_undone() {
    abort_at_marks(0).await;
}

#[tokio::test]
async fn an_abort_at_any_other_statement_leaves_nothing_undone() {
    abort_at_marks(1).await;
}

/// Every second mark: a process that comes there loses its connection, a few times; then none does. `WAYBILL_CASES=20` is the long run.
async fn abort_at_marks(half: usize) {
    let mut house = House::new().await;
    house.t.arm_fail_points().await;
    let (mut marks, mut n_worlds) = (TestDb::fail_points(), 0);
    assert!(marks.len() >= 71, "{}", marks.len());
    marks.insert(0, "nowhere");
    for mark in marks.into_iter().skip(half).step_by(2) {
        for _ in 0..cases(2) {
            lease::renew::<TurnId>(house.kernel(), house.worker, LONG).await.unwrap();
            house.t.project_id = ProjectId::new();
            let world = World::new(&house).await;
            let before = house.n_fired().await;
            house.t.fail_at(Some(mark)).await;
            {
                let run = world.run();
                tokio::pin!(run);
                let aborted = async {
                    while house.n_fired().await < before + 2 {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                };
                tokio::select! {
                    () = &mut run => {}
                    () = aborted => {
                        house.t.fail_at(None).await;
                        run.await;
                    }
                }
            }
            assert!(house.n_fired().await > before || mark == "nowhere", "no process came to {mark}");
            n_worlds += 1;
            for (what, sql) in INVARIANTS {
                assert_eq!(house.count(sql).await, 0, "{what}, after {mark}");
            }
            let turns = house.count("select count(*) from state.turns").await;
            assert_eq!(turns, n_worlds * 11, "nine turns and two children, after {mark}");
        }
    }
}
