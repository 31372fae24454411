//! RT-4, RT-5, RT-6: random programs of turns, forks, batches and sessions in two projects, with walks that are broken off. What is left of
//! the one is whole, and of the other nothing has changed.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use proptest::{prelude::*, test_runner::TestRunner};
use sqlx::{AssertSqlSafe, PgConnection};
use waybill_core::{
    card::{CallContent, CardType, Content, Draft, Role},
    card_box::Span,
    id::{AgentId, BoxId, ProjectId, SessionId, StepId, ToolCallId, TurnId},
    turn::Fence,
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    batch,
    blackboard::{self, Patch},
    call, card_box,
    fork::{self, Fork},
    invariant, session, turn,
    turn::{Call, Claiming, DispatchRequest, Ending, Step},
};

use crate::{
    cases,
    retain::{Horizon, portion, settle, start},
    turns::{House, LONG, answer, ending, instruction, target},
};

/// Numbers name an agent, a turn, a session or a time by their remainder, so that every program makes sense.
#[derive(Clone, Debug)]
enum Action {
    Agent { stay: usize },
    Session,
    Turn { agent: usize, session: Option<usize>, inherits: Option<usize>, calls: usize, does_again: Option<usize> },
    Patch,
    Family { turn: usize, n: usize },
    End { turn: usize },
    EndSession { session: usize },
    Retire,
    Walk { content: usize, record: usize, portions: usize, most: i32, breaks_off: bool },
}

fn any_action() -> impl Strategy<Value = Action> {
    let n = || 0..1000_usize;
    let maybe = || prop::option::weighted(0.4, 0..1000_usize);
    prop_oneof![
        2 => n().prop_map(|stay| Action::Agent { stay }),
        1 => Just(Action::Session),
        8 => (n(), maybe(), maybe(), 0..3_usize, prop::option::weighted(0.15, 0..1000_usize)).prop_map(
            |(agent, session, inherits, calls, does_again)| Action::Turn { agent, session, inherits, calls, does_again }
        ),
        2 => Just(Action::Patch),
        3 => (n(), 1..4_usize).prop_map(|(turn, n)| Action::Family { turn, n }),
        8 => n().prop_map(|turn| Action::End { turn }),
        1 => n().prop_map(|session| Action::EndSession { session }),
        1 => Just(Action::Retire),
        2 => (n(), n(), 1..12_usize, 1..9_i32, any::<bool>()).prop_map(|(content, record, portions, most, breaks_off)| {
            Action::Walk { content, record, portions, most, breaks_off }
        }),
    ]
}

/// One project, and what a program has done in it.
struct Place<'h> {
    house: &'h House,
    project_id: ProjectId,
    agents: Vec<AgentId>,
    sessions: Vec<SessionId>,
    /// Turns that run, by their id.
    running: BTreeMap<TurnId, (Fence, Option<SessionId>)>,
    /// When each action was over.
    times: Vec<DateTime<Utc>>,
}

/// What a turn can be seen to have been, while it is there.
#[derive(sqlx::FromRow)]
struct Ended {
    agent_turn_id: TurnId,
    output_box_id: BoxId,
}

impl Place<'_> {
    fn agent(&self, n: usize) -> AgentId {
        self.agents[n % self.agents.len()]
    }

    /// The turns that have ended and are still there, the oldest first.
    async fn ended(&self) -> Vec<Ended> {
        let mut work = self.house.kernel().begin(self.project_id).await.unwrap();
        sqlx::query_as(
            "select agent_turn_id, output_box_id from state.turns where project_id = $1 and status <> 'open' order by agent_turn_id",
        )
        .bind(self.project_id)
        .fetch_all(&mut *work)
        .await
        .unwrap()
    }

    /// Claims all that is ready.
    async fn claim(&mut self) {
        let mut claiming = Claiming { most: 100, ..Claiming::new(self.house.worker, target("llm")) };
        let claimed = turn::claim(self.house.kernel(), &mut claiming).await.unwrap();
        for claimed in claimed.into_iter().filter(|claimed| claimed.fence.project_id() == self.project_id) {
            self.running.insert(claimed.fence.agent_turn_id(), (claimed.fence, claimed.session_id));
        }
    }

    async fn make_agent(&mut self, stay: usize) {
        let made = NewAgent::new(AgentId::new(), target("llm"));
        self.agents.push(made.agent_id);
        let stay = [Stay::Plain, Stay::Long, Stay::Ephemeral][stay % 3];
        let mut work = self.house.kernel().begin(self.project_id).await.unwrap();
        agent::provision(&mut work, &[made], stay, None).await.unwrap();
        work.commit().await.unwrap();
    }

    async fn make_turn(
        &mut self,
        agent_id: AgentId,
        session: Option<usize>,
        inherits: Option<usize>,
        does_again: Option<usize>,
    ) -> TurnId {
        let card = instruction("do it");
        let session_id = session.filter(|_| !self.sessions.is_empty()).map(|n| self.sessions[n % self.sessions.len()]);
        let request = DispatchRequest { session_id, ..DispatchRequest::instructed(agent_id, card.card_id()) };
        let ended = self.ended().await;
        let pick = |n: Option<usize>| n.filter(|_| !ended.is_empty()).map(|n| &ended[n % ended.len()]);
        let mut work = self.house.kernel().begin(self.project_id).await.unwrap();
        turn::enqueue(&mut work, std::slice::from_ref(&request), &[card]).await.unwrap();
        if let Some(source) = pick(inherits) {
            card_box::inherit(&mut work, request.context_box_id, Span::whole(source.output_box_id)).await.unwrap();
        }
        if let Some(session_id) = session_id {
            let board = blackboard::find(&mut work, session_id).await.unwrap().unwrap();
            card_box::inherit(&mut work, request.context_box_id, Span::whole(board.messages_box_id)).await.unwrap();
        }
        if let Some(source) = pick(does_again) {
            let fork = Fork {
                source_turn_id: source.agent_turn_id,
                source_step_id: None,
                live_tools: false,
                change: serde_json::json!({}),
            };
            fork::record(&mut work, request.agent_turn_id, &fork).await.unwrap();
        }
        work.commit().await.unwrap();
        self.claim().await;
        request.agent_turn_id
    }

    /// Writes a step with calls, which the turn waits for.
    async fn call(&mut self, turn_id: TurnId, n: usize, name: &str) -> Option<Vec<ToolCallId>> {
        let (fence, _) = self.running.get(&turn_id).copied()?;
        let mut step = Step {
            step_id: StepId::new(),
            cards: Vec::new(),
            calls: Vec::new(),
            suspend: true,
            receipt: Some("{}".into()),
            usage: None,
        };
        for _ in 0..n {
            let content = CallContent { tool_name: "look".into(), arguments: "{}".into(), extra: Default::default() };
            let tool_call_id = ToolCallId::new();
            let draft = Draft::new(CardType::tool_call(), Role::Assistant, Content::ToolCall(content));
            let card = Draft { tool_call_id: Some(tool_call_id), ..draft }.seal().unwrap();
            let (target, tool_call_card_id) = (target(name), card.card_id());
            step.calls.push(Call { tool_call_id, target, tool_call_card_id, timeout: LONG, once: false });
            step.cards.push(card);
        }
        self.house.step(&fence, &step).await.unwrap();
        self.running.remove(&turn_id);
        Some(step.calls.iter().map(|call| call.tool_call_id).collect())
    }

    /// A running turn asks for a fork of `n` children.
    async fn make_family(&mut self, turn: usize, n: usize) {
        let Some(parent) = self.running.keys().nth(turn % self.running.len().max(1)).copied() else { return };
        let project_id = self.project_id;
        let Some(calls) = self.call(parent, 1, "sys-pmo").await else { return };
        let mut claiming = Claiming { most: 100, ..Claiming::new(self.house.worker, target("sys-pmo")) };
        let claimed = call::claim(self.house.kernel(), &mut claiming).await.unwrap();
        let call = claimed.into_iter().find(|call| call.tool_call_id == calls[0]).expect("it is ready");
        let card = instruction("a part of it");
        let mut children = Vec::new();
        for _ in 0..n {
            self.make_agent(2).await;
            let agent_id = self.agents[self.agents.len() - 1];
            children.push(DispatchRequest::instructed(agent_id, card.card_id()));
        }
        let fork = crate::turns::fork(&children, false, LONG);
        for (task_index, child) in children.iter_mut().enumerate() {
            child.batch_id = Some(fork.batch_id);
            child.task_index = Some(task_index as i32);
            child.parent_agent_turn_id = Some(parent);
            child.recursion_depth = 1;
        }
        let mut alone = self.house.kernel().alone(project_id).await.unwrap();
        batch::open(&mut alone, call.tool_call_id, call.claim_token, &fork).await.unwrap();
        turn::enqueue(&mut alone, &children, &[card]).await.unwrap();
        assert!(batch::dispatched(&mut alone, call.tool_call_id, call.claim_token).await.unwrap());
        self.claim().await;
    }

    async fn end(&mut self, turn: usize) {
        let Some(turn_id) = self.running.keys().nth(turn % self.running.len().max(1)).copied() else { return };
        let Some((fence, _)) = self.running.remove(&turn_id) else { return };
        let mut work = self.house.kernel().begin(self.project_id).await.unwrap();
        let end = Ending { receipt: Some("{}".into()), ..ending(fence) };
        turn::finish(&mut work, &[end]).await.unwrap();
        work.commit().await.unwrap();
        self.claim().await;
    }

    /// A running turn of a session writes a todo list.
    async fn patch(&mut self) {
        let talks = self.running.values().copied().find(|(_, session)| session.is_some());
        let Some((fence, Some(session_id))) = talks else { return };
        let content = Content::Json(serde_json::json!({ "text": "x" }));
        let card = Draft::new(CardType::todo(), Role::System, content).seal().unwrap();
        let (step_id, cards) = (StepId::new(), vec![crate::turns::thought("so")]);
        let step = Step { step_id, cards, calls: Vec::new(), suspend: false, receipt: None, usage: None };
        self.house.step(&fence, &step).await.unwrap();
        let mut work = self.house.kernel().begin(self.project_id).await.unwrap();
        let board = blackboard::find(&mut work, session_id).await.unwrap().unwrap();
        let patch = Patch::default().todo(card, board.todo_card_id);
        blackboard::patch(&mut work, session_id, step_id, &patch).await.unwrap();
        work.commit().await.unwrap();
    }

    async fn act(&mut self, action: &Action) {
        match *action {
            Action::Agent { stay } => self.make_agent(stay).await,
            Action::Session => {
                let session_id = SessionId::new();
                let mut work = self.house.kernel().begin(self.project_id).await.unwrap();
                blackboard::open(&mut work, None, &[session_id]).await.unwrap();
                work.commit().await.unwrap();
                self.sessions.push(session_id);
            }
            Action::Turn { agent, session, inherits, calls, does_again } => {
                let agent_id = self.agent(agent);
                let turn_id = self.make_turn(agent_id, session, inherits, does_again).await;
                if calls > 0
                    && let Some(called) = self.call(turn_id, calls, "tool").await
                {
                    for tool_call_id in called {
                        let mut alone = self.house.kernel().alone(self.project_id).await.unwrap();
                        turn::report(&mut alone, &answer(tool_call_id)).await.unwrap();
                    }
                    self.claim().await;
                }
            }
            Action::Patch => self.patch().await,
            Action::Family { turn, n } => self.make_family(turn, n).await,
            Action::End { turn } => self.end(turn).await,
            Action::EndSession { session } if !self.sessions.is_empty() => {
                let session_id = self.sessions.swap_remove(session % self.sessions.len());
                let mut work = self.house.kernel().begin(self.project_id).await.unwrap();
                session::end(&mut work, session_id).await.unwrap();
                work.commit().await.unwrap();
            }
            Action::Retire => {
                let mut admin = self.house.t.admin().await;
                let due = "update resource.project_agents set retire_by = now() - interval '1 second' where ephemeral and project_id = $1";
                sqlx::query(due).bind(self.project_id).execute(&mut admin).await.unwrap();
                agent::retire(self.house.kernel(), 1000).await.unwrap();
                self.agents.clear();
                self.make_agent(1).await;
            }
            Action::EndSession { .. } | Action::Walk { .. } => {}
        }
        let now = sqlx::query_scalar("select clock_timestamp()").fetch_one(self.house.kernel().pool()).await;
        self.times.push(now.unwrap());
    }

    /// Walks for a while, and perhaps dies in the middle of a portion.
    async fn walk(&self, content: usize, record: usize, portions: usize, most: i32, breaks_off: bool) {
        let time = |n: usize| self.times.get(n % (self.times.len() + 1)).copied().or(Horizon::all().content);
        let (one, other) = (time(content), time(record));
        let horizon = Horizon { content: one.max(other), record: one.min(other) };
        let mut owner = self.house.t.owner().await;
        let mut place = start();
        for _ in 0..portions {
            if place.0.is_some() {
                place = portion(&mut owner, self.project_id, horizon, &place, most).await.0;
            }
        }
        if breaks_off && place.0.is_some() {
            sqlx::raw_sql("begin").execute(&mut owner).await.unwrap();
            portion(&mut owner, self.project_id, horizon, &place, most).await;
        }
        // Gone without a word: what the last portion did is undone.
        drop(owner);
    }
}

/// What must lead somewhere, as questions that name what does not. `$1` is the project. A turn may be given what was erased before it began.
const REFERENCES: [&str; 14] = [
    "select 'what a box holds', e.box_id from cardbox.box_entries e
      where e.project_id = $1
        and (not exists (select from cardbox.boxes b where b.project_id = $1 and b.box_id = e.box_id)
             or e.card_id is not null and not exists (select from cardbox.cards c where c.project_id = $1 and c.card_id = e.card_id)
             or e.source_box_id is not null
                and not exists (select from cardbox.boxes b where b.project_id = $1 and b.box_id = e.source_box_id and b.length >= e.to_seq))",
    "select 'the boxes of a turn', t.agent_turn_id from state.turns t
      where t.project_id = $1
        and 2 <> (select count(*) from cardbox.boxes b where b.project_id = $1 and b.box_id in (t.context_box_id, t.output_box_id))",
    "select 'the turn of a box', b.box_id from cardbox.boxes b
      where b.project_id = $1 and b.agent_turn_id is not null
        and not exists (select from state.turns t where t.project_id = $1 and t.agent_turn_id = b.agent_turn_id)",
    "select 'the parent of a turn', t.agent_turn_id from state.turns t
      where t.project_id = $1 and t.parent_agent_turn_id is not null
        and not exists (select from state.turns p where p.project_id = $1 and p.agent_turn_id = t.parent_agent_turn_id)",
    "select 'the agent or session of a turn', t.agent_turn_id from state.turns t
      where t.project_id = $1
        and (not exists (select from resource.project_agents a where a.project_id = $1 and a.agent_id = t.agent_id)
             or t.session_id is not null
                and not exists (select from state.blackboards s where s.project_id = $1 and s.session_id = t.session_id))",
    "select 'a card of a turn', t.agent_turn_id
       from state.turns t cross join unnest(t.query_card_ids || t.steer_card_ids || t.deliverable_card_id) as u (card_id)
      where t.project_id = $1 and u.card_id is not null
        and not exists (select from cardbox.cards c where c.project_id = $1 and c.card_id = u.card_id)",
    "select 'a turn of a fork', f.agent_turn_id from state.forks f
      where f.project_id = $1
        and 2 <> (select count(*) from state.turns t where t.project_id = $1 and t.agent_turn_id in (f.agent_turn_id, f.source_turn_id))",
    "select 'the turn of history', h.id
       from (select s.agent_turn_id, s.step_id as id from state.agent_steps s where s.project_id = $1
              union all
             select r.agent_turn_id, r.step_id from state.receipts r where r.project_id = $1
              union all
             select o.agent_turn_id, o.event_id from state.outbox o where o.project_id = $1
              union all
             select q.agent_turn_id, q.tool_call_id from state.requests q where q.project_id = $1
              union all
             select e.agent_turn_id, e.correlation_id from state.execution_edges e where e.project_id = $1
              union all
             select b.parent_agent_turn_id, b.batch_id from state.pmo_batches b where b.project_id = $1) h
      where not exists (select from state.turns t where t.project_id = $1 and t.agent_turn_id = h.agent_turn_id)",
    "select 'the batch of a task', k.batch_id from state.pmo_batch_tasks k
      where k.project_id = $1 and not exists (select from state.pmo_batches b where b.project_id = $1 and b.batch_id = k.batch_id)",
    "select 'the step of a patch', p.step_id from state.patches p
      where p.project_id = $1 and not exists (select from state.agent_steps s where s.project_id = $1 and s.step_id = p.step_id)",
    "select 'what a session goes by', s.session_id from state.blackboards s
      where s.project_id = $1
        and (s.todo_card_id is not null and not exists (select from cardbox.cards c where c.project_id = $1 and c.card_id = s.todo_card_id)
             or 2 <> (select count(*) from cardbox.boxes b
                       where b.project_id = $1 and b.box_id in (s.messages_box_id, s.mapreduce_results_box_id)))",
    "select 'the memory of an agent', a.agent_id from resource.project_agents a
      where a.project_id = $1 and a.memory_box_id is not null
        and not exists (select from cardbox.boxes b where b.project_id = $1 and b.box_id = a.memory_box_id)",
    "select 'a card that nothing names', c.card_id from cardbox.cards c
      where c.project_id = $1
        and not exists (select from cardbox.box_entries e where e.project_id = $1 and e.card_id = c.card_id)
        and not exists (select from state.blackboards s where s.project_id = $1 and s.todo_card_id = c.card_id)
        and not exists (select from state.patches p where p.project_id = $1 and p.patch::text like '%' || c.card_id || '%')",
    "select 'content that an open turn reads', t.agent_turn_id
       from state.turns t
      cross join lateral (values (t.context_box_id), (t.output_box_id)) as u (box_id)
       join cardbox.boxes b on b.project_id = $1 and b.box_id = u.box_id
      cross join lateral cardbox.places($1, b.box_id, 1, b.length) p
       join cardbox.cards c on c.project_id = $1 and c.card_id = p.card_id
      where t.project_id = $1 and t.status = 'open' and c.erased_at > t.created_at",
];

/// A digest of all rows of a project.
async fn digest(admin: &mut PgConnection, project_id: ProjectId) -> BTreeMap<String, String> {
    let tables: Vec<String> = sqlx::query_scalar(
        "select c.oid::regclass::text
           from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'project_id'
          where c.relkind in ('r', 'p') and c.relnamespace = any (array['cardbox', 'resource', 'state']::regnamespace[])",
    )
    .fetch_all(&mut *admin)
    .await
    .unwrap();
    let mut digests = BTreeMap::new();
    for table in tables {
        let sql = format!(
            "select md5(coalesce(string_agg(t::text, '|' order by t::text), '')) from {table} t where project_id = $1"
        );
        let digest = sqlx::query_scalar(AssertSqlSafe(sql)).bind(project_id).fetch_one(&mut *admin).await.unwrap();
        digests.insert(table, digest);
    }
    digests
}

/// Checks that what is left of a project is whole.
async fn check(house: &House, admin: &mut PgConnection, project_id: ProjectId) -> Result<(), TestCaseError> {
    let broken = invariant::of_project(house.kernel(), project_id).await.unwrap();
    prop_assert!(broken.is_empty(), "{broken:?}");
    for sql in REFERENCES {
        let lost: Option<(String, uuid::Uuid)> =
            sqlx::query_as(sql).bind(project_id).fetch_optional(&mut *admin).await.unwrap();
        prop_assert!(lost.is_none(), "{lost:?}");
    }
    Ok(())
}

async fn run(house: &House, programs: &[Vec<Action>; 2]) -> Result<(), TestCaseError> {
    let mut admin = house.t.admin().await;
    let mut places = Vec::new();
    for program in programs {
        let mut place = Place {
            house,
            project_id: ProjectId::new(),
            agents: Vec::new(),
            sessions: Vec::new(),
            running: BTreeMap::new(),
            times: Vec::new(),
        };
        place.make_agent(0).await;
        let other = places.first().map(|other: &Place<'_>| other.project_id);
        for action in program {
            place.act(action).await;
            if let (Some(other), Action::Walk { content, record, portions, most, breaks_off }) = (other, action) {
                let before = digest(&mut admin, other).await;
                place.walk(*content, *record, *portions, *most, *breaks_off).await;
                check(house, &mut admin, place.project_id).await?;
                prop_assert_eq!(digest(&mut admin, other).await, before, "the other project");
            }
        }
        places.push(place);
    }
    let [one, other] = [&places[0], &places[1]];
    let before = digest(&mut admin, one.project_id).await;
    settle(&mut house.t.owner().await, other.project_id, Horizon::all()).await;
    check(house, &mut admin, other.project_id).await?;
    prop_assert_eq!(digest(&mut admin, one.project_id).await, before);
    Ok(())
}

/// RT-4, RT-5, RT-6
#[test]
fn walks_leave_what_is_whole_and_touch_no_other_project() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let house = runtime.block_on(House::new());
    let config = ProptestConfig { cases: cases(20), failure_persistence: None, ..ProptestConfig::default() };
    let program = || prop::collection::vec(any_action(), 1..30);
    let outcome = TestRunner::new(config)
        .run(&(program(), program()), |(one, other)| runtime.block_on(run(&house, &[one, other])));
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
