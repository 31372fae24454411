//! Subjects: `waybill.v1.{project}.{channel}.{cmd|evt|str}.{agent|sys|tool|user}.{target}.{suffix}` (L0-9).
//!
//! They consist of ids and tokens only. Neither can contain a dot or a wildcard, so no name can reroute a message.
//!
//! | signal | subject after `waybill.v1` |
//! |---|---|
//! | doorbell | `{project}.public.cmd.agent.{target}.wakeup`, `….cmd.tool.{target}.wakeup`, `….cmd.sys.pmo.wakeup` |
//! | chunk | `{project}.{channel}.str.agent.{agent}.chunk` |
//! | event | `{project}.{channel}.evt.agent.{agent}.task`, `….step`, `….state` |
//!
//! Doorbells are always on the channel `public`: the sender neither knows nor needs the channel of the turn.

use std::str::FromStr;

use waybill_core::{
    bus::{Bell, Chunk, Door, Event, EventKind},
    id::{AgentId, Channel, ProjectId},
};

/// Matches every event of every project: the subjects of the event stream.
pub const EVENTS: &str = "waybill.v1.*.*.evt.>";

/// A parsed subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Bell(Bell),
    Chunk { project_id: ProjectId, channel: Channel, agent_id: AgentId },
    Event { project_id: ProjectId, channel: Channel, agent_id: AgentId, event: EventKind },
}

/// The text is not a subject that Waybill uses.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not a NATS subject of Waybill: expected {expected}")]
pub struct Malformed {
    text: String,
    expected: &'static str,
}

/// Returns the subject of a bell.
pub fn bell(bell: &Bell) -> String {
    format!("waybill.v1.{}.{}.{}", bell.project_id, Channel::default(), wakeup(&bell.door))
}

/// Returns the subject of a chunk.
pub fn chunk(chunk: &Chunk) -> String {
    format!("waybill.v1.{}.{}.str.agent.{}.chunk", chunk.project_id, chunk.channel, chunk.agent_id)
}

/// Returns the subject of an event.
pub fn event(event: &Event) -> String {
    let Event { project_id, channel, agent_id, event, .. } = event;
    format!("waybill.v1.{project_id}.{channel}.evt.agent.{agent_id}.{}", event.as_str())
}

/// Returns the pattern for the bells of a door, of any project.
pub fn bells(door: &Door) -> String {
    format!("waybill.v1.*.*.{}", wakeup(door))
}

/// Returns the pattern for the chunks of an agent, on any channel.
pub fn chunks(project_id: ProjectId, agent_id: AgentId) -> String {
    format!("waybill.v1.{project_id}.*.str.agent.{agent_id}.chunk")
}

/// Parses a subject. Only the spelling that is used here is accepted: another spelling is another subject.
pub fn parse(text: &str) -> Result<Subject, Malformed> {
    let malformed = |expected| Malformed { text: text.to_owned(), expected };
    let tokens: Vec<&str> = text.split('.').collect();
    let &["waybill", "v1", project, channel, class, kind, target, suffix] = tokens.as_slice() else {
        return Err(malformed("waybill.v1.{project}.{channel}.{cmd|evt|str}.{agent|sys|tool|user}.{target}.{suffix}"));
    };
    let project_id = read(project).ok_or_else(|| malformed("a project id as the third token"))?;
    let channel: Channel = read(channel).ok_or_else(|| malformed("a channel as the fourth token"))?;
    let a_target = || read(target).ok_or_else(|| malformed("a target as the seventh token"));
    let an_agent = || read(target).ok_or_else(|| malformed("an agent id as the seventh token"));
    let subject = match (class, kind, target, suffix) {
        ("cmd", "agent", _, "wakeup") => Subject::Bell(Bell { project_id, door: Door::Agent(a_target()?) }),
        ("cmd", "tool", _, "wakeup") => Subject::Bell(Bell { project_id, door: Door::Tool(a_target()?) }),
        ("cmd", "sys", "pmo", "wakeup") => Subject::Bell(Bell { project_id, door: Door::Orchestrator }),
        ("cmd", ..) => {
            return Err(malformed("cmd.agent.{target}.wakeup, cmd.tool.{target}.wakeup or cmd.sys.pmo.wakeup"));
        }
        ("str", "agent", _, "chunk") => Subject::Chunk { project_id, channel: channel.clone(), agent_id: an_agent()? },
        ("str", ..) => return Err(malformed("str.agent.{agent}.chunk")),
        ("evt", "agent", _, suffix) => {
            let event = [EventKind::Task, EventKind::Step, EventKind::State]
                .into_iter()
                .find(|event| event.as_str() == suffix)
                .ok_or_else(|| malformed("task, step or state as the last token"))?;
            Subject::Event { project_id, channel: channel.clone(), agent_id: an_agent()?, event }
        }
        ("evt", ..) => return Err(malformed("evt.agent.{agent}.{task|step|state}")),
        _ => return Err(malformed("cmd, evt or str as the fifth token")),
    };
    if matches!(subject, Subject::Bell(_)) && channel != Channel::default() {
        return Err(malformed("the channel `public`, which all doorbells use"));
    }
    Ok(subject)
}

fn wakeup(door: &Door) -> String {
    match door {
        Door::Agent(target) => format!("cmd.agent.{target}.wakeup"),
        Door::Tool(target) => format!("cmd.tool.{target}.wakeup"),
        Door::Orchestrator => "cmd.sys.pmo.wakeup".to_owned(),
    }
}

/// Parses a token. A UUID can be spelt in several ways, but a subject only in one.
fn read<T: FromStr + ToString>(token: &str) -> Option<T> {
    token.parse().ok().filter(|id: &T| id.to_string() == token)
}

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use waybill_core::id::{EventId, TurnId};

    use super::*;

    const ID: &str = "019a84f2-6c1e-7cc3-98c4-dc0c0c07398f";

    fn an_event(event: EventKind) -> Event {
        let agent_turn_id = TurnId::new();
        Event {
            project_id: ID.parse().unwrap(),
            channel: "team-7".parse().unwrap(),
            agent_id: ID.parse().unwrap(),
            agent_turn_id,
            root_turn_id: agent_turn_id,
            event,
            event_id: EventId::new(),
            outbox_seq: 1,
            status: "success".to_owned(),
            turn_epoch: None,
            step_id: None,
            card_id: None,
            trace_id: None,
            traceparent: None,
            tracestate: None,
            created_at: Utc::now(),
        }
    }

    /// L0-9
    #[test]
    fn a_subject_reads_back_as_what_it_was_built_from() {
        let project_id: ProjectId = ID.parse().unwrap();
        for (door, text) in [
            (Door::Agent("llm".parse().unwrap()), format!("waybill.v1.{ID}.public.cmd.agent.llm.wakeup")),
            (Door::Tool("web_search".parse().unwrap()), format!("waybill.v1.{ID}.public.cmd.tool.web_search.wakeup")),
            (Door::Orchestrator, format!("waybill.v1.{ID}.public.cmd.sys.pmo.wakeup")),
        ] {
            let rung = Bell { project_id, door };
            assert_eq!(bell(&rung), text);
            assert_eq!(parse(&text).unwrap(), Subject::Bell(rung));
        }

        let channel: Channel = "team-7".parse().unwrap();
        let agent_id: AgentId = ID.parse().unwrap();
        let sent = Chunk { project_id, channel: channel.clone(), agent_id, content: vec![] };
        assert_eq!(chunk(&sent), format!("waybill.v1.{ID}.team-7.str.agent.{ID}.chunk"));
        assert_eq!(parse(&chunk(&sent)).unwrap(), Subject::Chunk { project_id, channel: channel.clone(), agent_id });

        for kind in [EventKind::Task, EventKind::Step, EventKind::State] {
            let text = event(&an_event(kind));
            assert_eq!(text, format!("waybill.v1.{ID}.team-7.evt.agent.{ID}.{}", kind.as_str()));
            let channel = channel.clone();
            assert_eq!(parse(&text).unwrap(), Subject::Event { project_id, channel, agent_id, event: kind });
        }
    }

    /// L0-9
    #[test]
    fn a_subject_with_a_wrong_token_is_refused() {
        #[track_caller]
        fn check(text: &str, expected: &str) {
            let error = parse(&text.replace("ID", ID)).unwrap_err().to_string();
            assert!(error.contains(&format!("expected {expected}")), "{error}");
        }
        check("waybill.v2.ID.public.cmd.sys.pmo.wakeup", "waybill.v1.");
        check("waybill.v1.ID.public.cmd.sys.pmo", "waybill.v1.");
        check("waybill.v1.ID.public.cmd.sys.pmo.wakeup.now", "waybill.v1.");
        check("waybill.v1.p1.public.cmd.sys.pmo.wakeup", "a project id");
        check("waybill.v1.{ID}.public.cmd.sys.pmo.wakeup", "a project id"); // a UUID in braces is one, but no token
        check("waybill.v1.*.public.cmd.sys.pmo.wakeup", "a project id");
        check("waybill.v1.ID.Public.cmd.sys.pmo.wakeup", "a channel");
        check("waybill.v1.ID.team.cmd.sys.pmo.wakeup", "the channel `public`");
        check("waybill.v1.ID.public.cmd.agent.*.wakeup", "a target");
        check("waybill.v1.ID.public.cmd.sys.boss.wakeup", "cmd.agent.{target}.wakeup");
        check("waybill.v1.ID.public.cmd.user.llm.wakeup", "cmd.agent.{target}.wakeup");
        check("waybill.v1.ID.public.str.agent.llm.chunk", "an agent id");
        check("waybill.v1.ID.public.str.agent.ID.task", "str.agent.{agent}.chunk");
        check("waybill.v1.ID.public.evt.agent.ID.chunk", "task, step or state");
        check("waybill.v1.ID.public.evt.tool.ID.task", "evt.agent.{agent}");
        check("waybill.v1.ID.public.log.agent.ID.task", "cmd, evt or str");
    }

    /// L0-9
    #[test]
    fn what_is_listened_to_matches_what_is_sent() {
        #[track_caller]
        fn check(pattern: &str, subject: &str, matches: bool) {
            let (pattern, subject): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), subject.split('.').collect());
            let (head, open) = match pattern.split_last() {
                Some((&">", head)) => (head, true),
                _ => (&pattern[..], false),
            };
            let fits = if open { subject.len() > head.len() } else { subject.len() == head.len() };
            let same = head.iter().zip(&subject).all(|(want, have)| *want == "*" || want == have);
            assert_eq!(fits && same, matches, "{pattern:?} {subject:?}");
        }
        let project_id = ProjectId::new();
        let (llm, tool) = (Door::Agent("llm".parse().unwrap()), Door::Tool("llm".parse().unwrap()));
        let rung = bell(&Bell { project_id, door: llm.clone() });
        check(&bells(&llm), &rung, true);
        check(&bells(&tool), &rung, false);
        check(&bells(&Door::Orchestrator), &rung, false);
        check(EVENTS, &rung, false);

        let agent_id = AgentId::new();
        let sent = chunk(&Chunk { project_id, channel: Channel::default(), agent_id, content: vec![] });
        check(&chunks(project_id, agent_id), &sent, true);
        check(&chunks(project_id, AgentId::new()), &sent, false);
        check(EVENTS, &sent, false);
        check(EVENTS, &event(&an_event(EventKind::Step)), true);
    }
}
