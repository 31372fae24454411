//! `waybill chat`: a conversation in the terminal. Each line is a turn of one session. A line that is typed while a turn runs steers it.
//!
//! The conversation is the session: `--session` continues it later, from any machine that reaches the database.

use std::{
    io::{IsTerminal, Write as _},
    process::{ExitCode, exit},
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use futures::StreamExt;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines, Stdin},
    time::sleep,
};
use waybill_core::{
    card::{Content, Reading},
    card_box::Span,
    id::{AgentId, Name, ProjectId, SessionId, ToolCallId, TurnId},
    request::{Decided, Decision, Kind},
    tokens,
};
use waybill_kernel::{
    card_box,
    request::{self, Open},
    resource, session, turn,
    work::Kernel,
};
use waybill_orchestrator::launch::{DispatchResult, DispatchStatus, Launch, WhileRunning, launch};
use waybill_services::interrupted;

use crate::{
    connect::{self, Bus, Place},
    follow,
    live::Live,
    named::{Named, find_some},
    output, story, usage,
};

const LOOK: Duration = Duration::from_millis(150);
/// How many earlier messages are shown when a session is continued.
const RECALLED: i64 = 6;
const HELP: &str = "\
/exit        leave; the session stays
/todo        show the todo list
/next TEXT   while a turn runs: queue TEXT as the next turn, instead of steering the running one
/stop        stop the running turn";

/// A conversation with an agent.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The profile of the agent to talk to.
    profile: Name,
    /// Continue this session; @last is the newest. If omitted, a new one is opened.
    #[arg(long)]
    session: Option<Named<SessionId>>,
    /// Talk to this existing agent, which has a memory. If omitted, a new agent is created for each turn.
    #[arg(long)]
    agent: Option<Named<AgentId>>,
    #[command(flatten)]
    live: Live,
    #[command(flatten)]
    bus: Bus,
    #[command(flatten)]
    place: Place,
}

struct Chat {
    kernel: Kernel,
    project_id: ProjectId,
    profile: Name,
    agent: Option<AgentId>,
    session_id: SessionId,
    live: Live,
    lines: Lines<BufReader<Stdin>>,
    is_terminal: bool,
    /// The turn that is followed.
    running: Option<TurnId>,
}

pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode> {
    let nats = arguments.bus.connect().await?;
    let (kernel, project_id) = arguments.place.open().await?;
    let kernel = connect::on_bus(kernel, nats.as_ref());
    let mut work = connect::begin(&kernel, project_id).await?;
    if let Err(error @ resource::Error::NotFound { .. }) = resource::profile(&mut work, &arguments.profile).await {
        drop(work);
        return Err(usage::of_profile(&kernel, project_id, &arguments.profile, error.into()).await);
    }
    let session_id = find_some(arguments.session.as_ref(), &mut work).await?.unwrap_or_else(SessionId::new);
    let agent = find_some(arguments.agent.as_ref(), &mut work).await?;
    let session = session::enter(&mut work, session_id, None).await?;
    let from = (session.n_messages - RECALLED).max(0) + 1;
    let last = Span { box_id: session.messages_box_id, from, upto: session.n_messages };
    let before = card_box::read(&mut work, last, None).await?;
    work.commit().await?;
    println!("session {session_id}   /help lists the commands");
    for placed in &before {
        if let Reading::Live(card) = &placed.reading {
            let is_ours = card.metadata.role == waybill_core::card::Role::User;
            let who = if is_ours { "you" } else { arguments.profile.as_str() };
            println!("{who}> {}", output::printable(&output::short(&output::content(Some(&card.content)), 300)));
        }
    }
    let mut chat = Chat {
        kernel,
        project_id,
        profile: arguments.profile,
        agent,
        session_id,
        live: arguments.live,
        lines: BufReader::new(tokio::io::stdin()).lines(),
        is_terminal: std::io::stdin().is_terminal(),
        running: None,
    };
    let is_interrupted = tokio::select! {
        talked = chat.talk() => {
            talked?;
            false
        }
        heard = interrupted() => {
            heard?;
            true
        }
    };
    if let Some(turn_id) = chat.running {
        println!("\n{}", follow::goes_on(turn_id));
    }
    println!("\nto continue: waybill chat {} --session {session_id}", chat.profile);
    if is_interrupted {
        // A line of the terminal is still being read, and that cannot be given up.
        exit(follow::INTERRUPTED.into());
    }
    Ok(ExitCode::SUCCESS)
}

impl Chat {
    async fn talk(&mut self) -> Result<()> {
        // A turn that still runs from an earlier chat is followed to its end first.
        let running = session::open_turns(&mut self.kernel.begin(self.project_id).await?, self.session_id)
            .await?
            .into_iter()
            .next();
        if let Some(running) = running
            && !self.follow(running.agent_id, running.agent_turn_id).await?
        {
            return Ok(());
        }
        loop {
            self.prompt("you> ");
            let Some(line) = self.lines.next_line().await? else { return Ok(()) };
            match line.trim() {
                "" => {}
                "/exit" | "/quit" => return Ok(()),
                text if self.helps(text).await? => {}
                text if text.starts_with('/') => println!("unknown command {text}: /help lists the commands"),
                text => {
                    let DispatchResult { agent_id, agent_turn_id, .. } = match self.say(text, WhileRunning::Start).await
                    {
                        Ok(started) => started,
                        // An error of one line does not end the conversation.
                        Err(error) => {
                            println!("  (not sent: {})", output::printable(&format!("{error:#}")));
                            continue;
                        }
                    };
                    if !self.follow(agent_id, agent_turn_id).await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Runs a command that is allowed at any time. Returns false if the line is not such a command.
    async fn helps(&self, line: &str) -> Result<bool> {
        match line {
            "/help" => println!("{HELP}"),
            "/todo" => self.todo().await?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn prompt(&self, text: &str) {
        if self.is_terminal {
            print!("{}", output::printable(text));
            let _ = std::io::stdout().flush();
        }
    }

    async fn say(&self, text: &str, while_running: WhileRunning) -> Result<DispatchResult> {
        let wanted = Launch {
            agent_id: self.agent,
            session_id: Some(self.session_id),
            while_running,
            ..Launch::new(self.profile.clone(), text)
        };
        tokens::open();
        let mut work = self.kernel.begin(self.project_id).await?;
        let dispatched = match launch(&mut work, &wanted).await {
            Ok(dispatched) => dispatched,
            Err(error) => {
                drop(work);
                return Err(usage::of_profile(&self.kernel, self.project_id, &self.profile, error.into()).await);
            }
        };
        work.commit().await?;
        Ok(dispatched)
    }

    async fn todo(&self) -> Result<()> {
        let mut work = self.kernel.begin(self.project_id).await?;
        let session = session::find(&mut work, self.session_id, None).await?;
        let card_ids: Vec<_> = session.todo_card_id.into_iter().collect();
        let found = waybill_kernel::card::fetch(&mut work, &card_ids, None).await?.found;
        match found.first().and_then(Reading::live) {
            Some(card) => println!("{}", output::printable(&waybill_context::todo::Todo::read(card)?.render())),
            None => println!("there is no todo list yet"),
        }
        Ok(())
    }

    /// Shows a turn until it has ended: its text, its calls, its questions to people. Lines that are typed meanwhile go to it.
    /// Returns false if the person leaves; the turn continues.
    async fn follow(&mut self, agent_id: AgentId, first: TurnId) -> Result<bool> {
        self.running = Some(first);
        let (kernel, project_id) = (self.kernel.clone(), self.project_id);
        let mut pieces = self.live.pieces(&kernel, project_id, agent_id, first);
        let (mut turn_id, mut shown) = (first, Shown { who: self.profile.to_string(), ..Shown::default() });
        let mut then: Vec<TurnId> = Vec::new();
        let mut input_ended = false;
        loop {
            tokio::select! {
                Some(piece) = pieces.next() => {
                    if !shown.open_line {
                        // Show earlier calls and results before the new text.
                        shown.look(&kernel, project_id, turn_id).await?;
                    }
                    shown.piece(turn_id, &piece);
                }
                line = self.lines.next_line(), if !input_ended => match line? {
                    Some(line) => if let Some(next) = self.hear(line.trim(), turn_id, &mut shown).await? {
                        then.push(next);
                    } else if shown.leaving {
                        return Ok(false);
                    },
                    None => input_ended = true,
                },
                () = sleep(LOOK) => {
                    if !shown.look(&kernel, project_id, turn_id).await? {
                        continue;
                    }
                    if then.is_empty() {
                        self.running = None;
                        return Ok(true);
                    }
                    turn_id = then.remove(0);
                    self.running = Some(turn_id);
                    pieces = self.live.pieces(&kernel, project_id, agent_id, turn_id);
                    shown = Shown { who: self.profile.to_string(), ..Shown::default() };
                }
            }
        }
    }

    /// Handles a line that is typed while a turn runs. Returns the turn that it starts, if it starts one.
    async fn hear(&self, line: &str, turn_id: TurnId, shown: &mut Shown) -> Result<Option<TurnId>> {
        if ["/exit", "/quit"].contains(&line) {
            shown.leaving = true;
            return Ok(None);
        }
        if line.is_empty() || self.helps(line).await? {
            return Ok(None);
        }
        if line == "/stop" {
            let mut work = self.kernel.begin(self.project_id).await?;
            turn::stop(&mut work, turn_id, "the person stopped it").await?;
            work.commit().await?;
            return Ok(None);
        }
        if let Some(open) = shown.asking.take() {
            shown.answered = Some(open.tool_call_id);
            self.decide(&open, line).await?;
            return Ok(None);
        }
        if line == "/next" {
            println!("  (type the text after it: /next TEXT)");
            return Ok(None);
        }
        if let Some(text) = line.strip_prefix("/next ") {
            let queued = self.say(text, WhileRunning::Queue).await?;
            println!("  (queued as the next turn)");
            return Ok(Some(queued.agent_turn_id));
        }
        let said = self.say(line, WhileRunning::Steer).await?;
        if said.status == DispatchStatus::Steered {
            println!("  (the agent sees this at its next step)");
            return Ok(None);
        }
        Ok(Some(said.agent_turn_id))
    }

    async fn decide(&self, open: &Open, line: &str) -> Result<()> {
        let yes = ["y", "yes", "ok"].contains(&line.to_lowercase().as_str());
        let (decision, answer) = match open.request.kind {
            Kind::Approval if yes => (Decision::Approved, Value::Null),
            Kind::Approval => (Decision::Rejected, Value::Null),
            Kind::Question => (Decision::Answered, Value::from(line)),
        };
        let note = (decision == Decision::Rejected && !["n", "no"].contains(&line)).then(|| line.to_owned());
        let decided = Decided { answer, note, ..Decided::new(decision, connect::actor()) };
        let mut work = self.kernel.begin(self.project_id).await?;
        match request::decide_as(&mut work, open.tool_call_id, &decided).await {
            Ok(_) => {
                work.commit().await?;
                println!("  ({})", decision.as_str());
            }
            Err(error) => println!("  ({})", output::printable(&error.to_string())),
        }
        Ok(())
    }
}

/// What was already shown of a turn.
#[derive(Default)]
struct Shown {
    /// The name that is printed before the agent's text.
    who: String,
    /// How far its output box was shown.
    upto: i64,
    /// Streamed text was printed and its line is not finished.
    open_line: bool,
    /// The text that was streamed, so that it is not printed again when its card is written.
    streamed: String,
    lost: i32,
    /// The open request to the person.
    asking: Option<Open>,
    leaving: bool,
    asked: Option<ToolCallId>,
    answered: Option<ToolCallId>,
}

impl Shown {
    /// Prints a piece of streamed text.
    fn piece(&mut self, turn_id: TurnId, piece: &[u8]) {
        let Ok(piece) = serde_json::from_slice::<Value>(piece) else { return };
        if piece["agent_turn_id"] != turn_id.to_string() {
            return;
        }
        if let Some(text) = piece["text"].as_str() {
            if !self.open_line {
                print!("{}> ", self.who);
            }
            print!("{}", output::printable(text));
            let _ = std::io::stdout().flush();
            self.streamed.push_str(text);
            self.open_line = true;
        }
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.open_line) {
            println!();
        }
    }

    /// Prints what is new since the last look. Returns true if the turn has ended.
    async fn look(&mut self, kernel: &Kernel, project_id: ProjectId, turn_id: TurnId) -> Result<bool> {
        let mut work = connect::begin(kernel, project_id).await?;
        let Some(summary) = turn::show(&mut work, &[turn_id]).await?.pop() else { return Ok(true) };
        for placed in story::written(&mut work, &summary, self.upto).await? {
            self.upto = placed.place;
            if let Reading::Live(card) = &placed.reading {
                self.card(&card.content, card.metadata.card_type.as_str());
            }
        }
        let lost = summary.n_lost_leases.unwrap_or_default();
        if lost > self.lost {
            self.end_line();
            println!("  (its worker was lost; another one continues)");
        }
        self.lost = lost;
        let tree = turn::tree(&mut work, turn_id, 1_000).await?;
        let open = request::open(&mut work, 100).await?;
        let mut ours = open.into_iter().filter(|open| tree.iter().any(|turn| turn.agent_turn_id == open.agent_turn_id));
        // A request that was answered here may still be listed for a moment.
        self.asking = ours.next().filter(|open| self.answered != Some(open.tool_call_id));
        if let Some(open) = self.asking.clone()
            && self.asked != Some(open.tool_call_id)
        {
            self.asked = Some(open.tool_call_id);
            self.end_line();
            let how = if open.request.kind == Kind::Approval { "  [y/n]" } else { "" };
            println!("  ? {}{how}", output::printable(&open.request.question));
            if !open.request.about.is_null() {
                let about = output::short(&open.request.about.to_string(), 400);
                println!("    {}", output::printable(&about));
            }
        }
        Ok(!summary.status.is_open())
    }

    fn card(&mut self, content: &Content, kind: &str) {
        match content {
            Content::ToolCall(call) => {
                self.end_line();
                let call = format!("{}({})", call.tool_name, output::short(&call.arguments, 120));
                println!("  · {}", output::printable(&call));
            }
            Content::ToolResult(result) => {
                self.end_line();
                let text = match &result.result {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let said = format!("{}: {}", result.status, output::short(&text, 100));
                println!("    {}", output::printable(&said));
            }
            content if kind == "task.deliverable" || kind == "agent.thought" => {
                let text = output::content(Some(content));
                let was_streamed = std::mem::take(&mut self.streamed).trim() == text.trim();
                self.end_line();
                if !was_streamed {
                    println!("{}> {}", self.who, output::printable(&text));
                }
            }
            _ => {}
        }
    }
}
