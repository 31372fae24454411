//! The ways that content from outside takes through a project, each with its stages.

use serde_json::{Value, json};
use waybill_core::id::AgentId;

use self::Stage::{Fork, Know, Pays, Publish, Put, Run};

/// One stage of a way.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// An artifact is stored: path, media type, whether it came from outside.
    Put(String, &'static str, bool),
    /// A document is applied: path, title, whether it came from outside.
    Know(String, &'static str, bool),
    /// A turn follows a plan to its end.
    Run(Vec<Value>, How),
    /// What the last turn delivered is published.
    Publish(String),
    /// The last turn is forked under a profile that pays.
    Fork,
    /// The last stage: a turn follows a plan. It, or an agent that it asks, pays.
    Pays(Vec<Value>, How),
}

/// How a turn is started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct How {
    pub(super) profile: Option<&'static str>,
    pub(super) external: bool,
    /// In the session of this way.
    pub(super) in_session: bool,
    /// By the agent of this way, which remembers.
    pub(super) by_agent: bool,
    /// Sees what the last turn wrote.
    pub(super) sees_last: bool,
}

pub(super) const PLAIN: How =
    How { profile: None, external: false, in_session: false, by_agent: false, sees_last: false };
const IN_SESSION: How = How { in_session: true, ..PLAIN };
const BY_AGENT: How = How { by_agent: true, ..PLAIN };
const SHOWN: How = How { profile: Some("shown"), ..PLAIN };

pub(super) fn call(tool: &str, arguments: Value) -> Value {
    json!({ "tool": tool, "arguments": arguments })
}

/// Returns a word that is unique to this way: a search for it finds only content of this way.
pub(super) fn word(n: usize) -> String {
    format!("quince{n}x")
}

pub(super) fn plan(n: usize, steps: &[Value]) -> String {
    format!("PLAN {} about {}", json!(steps), word(n))
}

/// A name and the stages.
type Named = (&'static str, Vec<Stage>);

/// Returns the ways, each with its name. `n` identifies the way's payments; `agent` is an agent that remembers.
pub(super) fn ways(n: usize, agent: AgentId) -> Vec<Named> {
    let way = Way { n, agent };
    let ways = [way.answers(), way.artifacts(), way.documents(), way.agents(), way.memory(), way.handovers()];
    ways.into_iter().flatten().collect()
}

/// What the stages of one way have in common.
struct Way {
    n: usize,
    agent: AgentId,
}

impl Way {
    fn taint(&self) -> Value {
        call("http_do", json!({ "n": self.n, "mode": "ok" }))
    }

    fn pay(&self) -> Value {
        call("pay", json!({ "n": self.n }))
    }

    fn path(&self, name: &str) -> String {
        format!("w{}/{name}", self.n)
    }

    fn read(&self, name: &str) -> Value {
        call("read_artifact", json!({ "path": self.path(name), "part": "whole" }))
    }

    fn write(&self, name: &str) -> Value {
        call("write_artifact", json!({ "path": self.path(name), "content": word(self.n) }))
    }

    fn list(&self) -> Value {
        call("list_artifacts", json!({ "prefix": self.path("") }))
    }

    /// Stores an artifact that came from outside.
    fn outside(&self) -> Stage {
        Put(self.path("mail.txt"), "text/plain", true)
    }

    fn search(&self, kind: &str) -> Value {
        call("search_knowledge", json!({ "question": word(self.n), "kind": kind }))
    }

    fn todo(&self) -> Value {
        call("update_todo", json!({ "changes": [{ "change": "add", "text": word(self.n) }] }))
    }

    fn child(&self, steps: &[Value]) -> Value {
        json!({ "target_ref": "reader", "instruction": plan(self.n, steps) })
    }

    fn fork(&self, tasks: &[Value]) -> Value {
        call("fork_join", json!({ "tasks": tasks }))
    }

    fn delegate(&self, steps: &[Value], wait: bool) -> Value {
        call("delegate_async", json!({ "target_ref": "reader", "instruction": plan(self.n, steps), "wait": wait }))
    }

    fn ask(&self, steps: &[Value], history: bool) -> Value {
        let question = plan(self.n, steps);
        call("ask_expert", json!({ "expert_profile": "reader", "question": question, "include_history": history }))
    }

    /// Delegates to the agent that remembers, or to a clone of it.
    fn existing(&self, strategy: &str, steps: &[Value]) -> Value {
        let instruction = plan(self.n, steps);
        let arguments = json!({ "target_strategy": strategy, "target_ref": self.agent, "instruction": instruction });
        call("delegate_async", arguments)
    }

    fn package(&self, name: &str, steps: &[Value]) -> Value {
        let package = json!({
            "version": "2.0", "handoff_type": "init_to_execute", "timestamp": "2026-01-04T10:30:00", "user_requirement": word(self.n),
            "design_artifacts": { "rules": self.path(name) },
        });
        call("send_handoff", json!({ "target_ref": "reader", "package": package, "instruction": plan(self.n, steps) }))
    }

    /// Returns the ways of an answer of a tool, and of a start from outside.
    fn answers(&self) -> Vec<Named> {
        vec![
            ("an answer of an HTTP tool", vec![Pays(vec![self.taint(), self.pay()], PLAIN)]),
            (
                "an answer of an MCP server",
                vec![Pays(vec![call("mcp_do", json!({ "n": self.n, "mode": "ok" })), self.pay()], PLAIN)],
            ),
            (
                "an answer so large that it became an artifact",
                vec![Pays(vec![call("http_do", json!({ "n": self.n, "mode": "large" })), self.pay()], PLAIN)],
            ),
            ("a start from outside", vec![Pays(vec![self.pay()], How { external: true, ..PLAIN })]),
            (
                "a start from outside in a session",
                vec![Run(vec![], How { external: true, ..IN_SESSION }), Pays(vec![self.pay()], IN_SESSION)],
            ),
        ]
    }

    /// Returns the ways through artifacts.
    fn artifacts(&self) -> Vec<Named> {
        vec![
            ("an artifact that is read", vec![self.outside(), Pays(vec![self.read("mail.txt"), self.pay()], PLAIN)]),
            ("the name of an artifact in a list", vec![self.outside(), Pays(vec![self.list(), self.pay()], PLAIN)]),
            (
                "a line of an artifact that is found",
                vec![
                    self.outside(),
                    Pays(
                        vec![
                            call("search_artifacts", json!({ "text": word(self.n), "prefix": self.path("") })),
                            self.pay(),
                        ],
                        PLAIN,
                    ),
                ],
            ),
            (
                "an artifact in a plan of what to read",
                vec![
                    self.outside(),
                    Pays(vec![call("plan_reading", json!({ "paths": [self.path("mail.txt")] })), self.pay()], PLAIN),
                ],
            ),
            (
                "the beginning of an artifact",
                vec![
                    self.outside(),
                    Pays(
                        vec![
                            call("read_artifact", json!({ "path": self.path("mail.txt"), "part": "head" })),
                            self.pay(),
                        ],
                        PLAIN,
                    ),
                ],
            ),
            (
                "the same bytes stored again",
                vec![
                    self.outside(),
                    Put(self.path("mail.txt"), "text/plain", false),
                    Pays(vec![self.read("mail.txt"), self.pay()], PLAIN),
                ],
            ),
            (
                "the same bytes stored again as another type",
                vec![
                    self.outside(),
                    Put(self.path("mail.txt"), "text/markdown", false),
                    Pays(vec![self.read("mail.txt"), self.pay()], PLAIN),
                ],
            ),
            (
                "an artifact of a turn that saw it",
                vec![
                    Run(vec![self.taint(), self.write("a.txt")], PLAIN),
                    Pays(vec![self.read("a.txt"), self.pay()], PLAIN),
                ],
            ),
            (
                "a copy of an artifact of a turn that saw it",
                vec![
                    Run(vec![self.taint(), self.write("a.txt")], PLAIN),
                    Run(vec![self.read("a.txt"), self.write("b.txt")], PLAIN),
                    Pays(vec![self.read("b.txt"), self.pay()], PLAIN),
                ],
            ),
            (
                "the name of an artifact of a turn that saw it",
                vec![Run(vec![self.taint(), self.write("a.txt")], PLAIN), Pays(vec![self.list(), self.pay()], PLAIN)],
            ),
        ]
    }

    /// Returns the ways through documents and published deliverables.
    fn documents(&self) -> Vec<Named> {
        vec![
            (
                "a document that is found",
                vec![Know(self.path("d"), "t", true), Pays(vec![self.search("knowledge"), self.pay()], PLAIN)],
            ),
            (
                "a document that is shown without being asked for",
                vec![Know(self.path("d"), "t", true), Pays(vec![self.pay()], SHOWN)],
            ),
            (
                "the same document applied again",
                vec![
                    Know(self.path("d"), "t", true),
                    Know(self.path("d"), "t", false),
                    Pays(vec![self.search("knowledge"), self.pay()], PLAIN),
                ],
            ),
            (
                "the same document under another title",
                vec![
                    Know(self.path("d"), "t", true),
                    Know(self.path("d"), "u", false),
                    Pays(vec![self.search("knowledge"), self.pay()], PLAIN),
                ],
            ),
            (
                "a deliverable that was published",
                vec![
                    Run(vec![self.taint()], PLAIN),
                    Publish(self.path("e")),
                    Pays(vec![self.search("experience"), self.pay()], PLAIN),
                ],
            ),
            (
                "a published deliverable that is shown without being asked for",
                vec![Run(vec![self.taint()], PLAIN), Publish(self.path("e")), Pays(vec![self.pay()], SHOWN)],
            ),
        ]
    }

    /// Returns the ways through children, delegates, principals and experts.
    fn agents(&self) -> Vec<Named> {
        vec![
            ("a child's result", vec![Pays(vec![self.fork(&[self.child(&[self.taint()])]), self.pay()], PLAIN)]),
            (
                "one of many children's results",
                vec![Pays(
                    vec![self.fork(&[self.child(&[]), self.child(&[self.taint()]), self.child(&[])]), self.pay()],
                    PLAIN,
                )],
            ),
            (
                "a grandchild's result",
                vec![Pays(
                    vec![self.fork(&[self.child(&[self.fork(&[self.child(&[self.taint()])])])]), self.pay()],
                    PLAIN,
                )],
            ),
            (
                "a child that is instructed to pay",
                vec![Pays(vec![self.taint(), self.fork(&[self.child(&[self.pay()])])], PLAIN)],
            ),
            (
                "a delegate that is instructed to pay",
                vec![Pays(vec![self.taint(), self.delegate(&[self.pay()], false)], PLAIN)],
            ),
            ("a delegate's result", vec![Pays(vec![self.delegate(&[self.taint()], true), self.pay()], PLAIN)]),
            (
                "a principal that is launched",
                vec![Pays(
                    vec![
                        self.taint(),
                        call(
                            "launch_principal",
                            json!({ "profile_name": "reader", "instruction": plan(self.n, &[self.pay()]) }),
                        ),
                    ],
                    PLAIN,
                )],
            ),
            ("an expert's answer", vec![Pays(vec![self.ask(&[self.taint()], false), self.pay()], PLAIN)]),
            ("an expert that is asked", vec![Pays(vec![self.taint(), self.ask(&[self.pay()], false)], PLAIN)]),
            (
                "an expert that sees the work so far",
                vec![Pays(vec![self.taint(), self.ask(&[self.pay()], true)], PLAIN)],
            ),
        ]
    }

    /// Returns the ways through sessions and through agents that remember.
    fn memory(&self) -> Vec<Named> {
        vec![
            (
                "what was said in a session",
                vec![Run(vec![self.taint()], IN_SESSION), Pays(vec![self.pay()], IN_SESSION)],
            ),
            (
                "the todo list of a session",
                vec![Run(vec![self.taint(), self.todo()], IN_SESSION), Pays(vec![self.pay()], IN_SESSION)],
            ),
            (
                "a summary of a session",
                vec![
                    Run(vec![self.taint(), self.taint(), self.taint()], IN_SESSION),
                    Run(vec![], How { profile: Some("small"), ..IN_SESSION }),
                    Pays(vec![self.pay()], How { profile: Some("small"), ..IN_SESSION }),
                ],
            ),
            ("what an agent remembers", vec![Run(vec![self.taint()], BY_AGENT), Pays(vec![self.pay()], BY_AGENT)]),
            (
                "an agent that remembers, asked by another",
                vec![Run(vec![self.taint()], BY_AGENT), Pays(vec![self.existing("reuse", &[self.pay()])], PLAIN)],
            ),
            (
                "a clone of an agent that remembers",
                vec![Run(vec![self.taint()], BY_AGENT), Pays(vec![self.existing("clone", &[self.pay()])], PLAIN)],
            ),
        ]
    }

    /// Returns the ways through boxes, forks and packages.
    fn handovers(&self) -> Vec<Named> {
        vec![
            (
                "the box of another turn",
                vec![Run(vec![self.taint()], PLAIN), Pays(vec![self.pay()], How { sees_last: true, ..PLAIN })],
            ),
            (
                "a fork, under another profile, of a turn that came from outside",
                vec![
                    Run(vec![call("own_do", json!({ "n": self.n, "mode": "ok" }))], How { external: true, ..PLAIN }),
                    Fork,
                ],
            ),
            (
                "a package of a turn that saw it",
                vec![
                    Put(self.path("rules.md"), "text/markdown", false),
                    Pays(vec![self.taint(), self.package("rules.md", &[self.pay()])], PLAIN),
                ],
            ),
            (
                "a package that names an artifact from outside",
                vec![
                    Put(self.path("rules.md"), "text/markdown", true),
                    Pays(vec![self.package("rules.md", &[self.pay()])], PLAIN),
                ],
            ),
        ]
    }
}
