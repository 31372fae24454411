//! The properties that must hold in every state.

use stateright::Property;

use super::{State, System};
use crate::{
    db::{CallStatus, Inbox, Progress, Status, TURNS},
    protocol::Fence,
};

pub(super) fn all() -> Vec<Property<System>> {
    vec![
        Property::always("a stale write is never accepted", |_, state: &State| !state.stale_write),
        Property::always("a turn has one owner", |system: &System, state: &State| {
            let holds = |fence: Fence| fence.holds(&state.db.heads[system.protocol.plan.agent(fence.turn) as usize]);
            let [one, other] = &state.workers;
            one.owns.iter().flatten().all(|fence| !other.owns.contains(&Some(*fence)) || !holds(*fence))
        }),
        Property::always("epochs only grow", |_, state: &State| !state.epoch_shrank),
        Property::always("at most one deliverable and one event per turn, together", |_, state: &State| {
            state.db.turns.iter().all(|turn| turn.deliverables <= 1 && turn.events == turn.deliverables)
        }),
        Property::always("terminal means delivered", |_, state: &State| {
            state.db.turns.iter().all(|turn| (turn.progress == Progress::Terminal) == (turn.deliverables > 0))
        }),
        Property::always("an agent is idle if and only if it has no turn", |_, state: &State| {
            state.db.heads.iter().all(|head| (head.status == Status::Idle) == (head.turn as usize >= TURNS))
        }),
        Property::always("no turn waits on an idle agent", |system: &System, state: &State| {
            let plan = &system.protocol.plan;
            (0..TURNS as u8).all(|turn| {
                let idle = state.db.heads[plan.agent(turn) as usize].status == Status::Idle;
                !(idle && state.db.inbox[turn as usize].status == Inbox::Queued)
            })
        }),
        Property::always("turns of an agent are taken in order", |system: &System, state: &State| {
            let plan = &system.protocol.plan;
            state.db.heads.iter().enumerate().filter(|(_, head)| head.status != Status::Idle).all(|(agent, head)| {
                let taken = state.db.inbox[head.turn as usize].seq;
                (0..TURNS).all(|turn| {
                    let row = state.db.inbox[turn];
                    plan.agent_of[turn] as usize != agent || row.status != Inbox::Queued || row.seq > taken
                })
            })
        }),
        Property::always("a result is applied once", |_, state: &State| {
            state.db.calls.iter().all(|call| call.applied <= 1)
        }),
        Property::always("a batch closes once", |_, state: &State| state.db.batch.closed <= 1),
        Property::always("a closed batch has reported", |system: &System, state: &State| {
            let status = state.db.calls[0].status;
            let told = if system.protocol.plan.resumes { status != CallStatus::Awaiting } else { !status.is_open() };
            state.db.batch.closed == 0 || told
        }),
        Property::always("no turn is ready before the mark of its queue", |_, state: &State| {
            state.db.inbox.iter().all(|row| row.status != Inbox::Pending || row.place >= state.db.mark.upto)
        }),
        Property::always("no deadlock", |_, state: &State| !state.deadlocked()),
        Property::always("from here everything that was accepted can end", |system: &System, state: &State| {
            system.settles(state)
        }),
    ]
}
