//! What an agent may call: which tools it is shown, and how its calls are handled (WK-3, WK-4). A tool that is not allowed is refused here,
//! whatever the model was shown.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use waybill_context::{schema::Schema, todo::Change, wire};
use waybill_core::{
    bus::PMO,
    card::{Content, ResultContent, ResultForm},
    error::causes,
    id::{Name, Target},
    json,
    resource::{AfterExecution, Effect, InternalTool, Profile, Tool},
};

use crate::{knowledge::USUAL, model::ModelToolCall};
use waybill_kernel::{knowledge::Kind, turn::Delegate};
use waybill_tool::check::{compile, fits, matches};

pub mod artifact;
mod ours;

/// How long the orchestrator may take to start with a command. Once its batch is open, the batch's own deadline applies instead.
const COMMAND: Duration = Duration::from_secs(3600);

/// Everything that an agent may call.
#[derive(Clone, Debug, Default)]
pub struct Toolbox {
    tools: Arc<[Tool]>,
    ours: Vec<InternalTool>,
    must_end_with: Vec<String>,
    delegates: Vec<Delegate>,
}

/// The compiled parameters of tools, by the tool's name.
type Schemas = HashMap<String, Result<Schema, String>>;

/// How a call is handled.
#[derive(Clone, Debug, PartialEq)]
pub enum Disposition {
    /// It is not made; the model gets the reason.
    Refused(String),
    /// It ends the turn with this.
    Submits(Content),
    /// It changes the session's todo list.
    Todo(Vec<Change>),
    /// It reads or writes artifacts; answered at once.
    Artifact(artifact::Request),
    /// It searches the project's documents or its published results.
    Knowledge { kind: Kind, question: String, most: usize },
    /// It reads a plan of the project, or lists the plans if no name is given.
    Plan { name: Option<Name>, version: Option<i32> },
    /// It is sent to the service that answers calls of this target.
    Leaves { target: Target, timeout: Duration, once: bool },
}

impl Toolbox {
    /// Makes the toolbox of a profile. `tools` are the project's current ones.
    pub fn new(profile: &Profile, tools: &[Tool]) -> Toolbox {
        let allowed = tools.iter().filter(|tool| profile.allowed_tools.contains(&tool.name));
        Toolbox {
            tools: allowed.cloned().collect(),
            ours: profile.allowed_internal_tools.iter().copied().collect(),
            must_end_with: profile.must_end_with.iter().map(ToString::to_string).collect(),
            delegates: Vec::new(),
        }
    }

    /// Sets the agents to which this one may hand work: they are listed where a tool takes such a name.
    #[must_use]
    pub fn with_delegates(self, delegates: Vec<Delegate>) -> Toolbox {
        Toolbox { delegates, ..self }
    }

    /// Returns the tools as the model is shown them. `form` is what the result must be.
    pub fn list(&self, form: &ResultForm) -> Vec<wire::Tool> {
        let theirs = self.tools.iter().map(|tool| wire::Tool {
            tool_name: tool.name.to_string(),
            description: tool.description.clone(),
            parameters: Value::Object(tool.parameters.clone()),
        });
        let ours = self.ours(form).filter_map(|tool| ours::definition(tool, form, &self.delegates));
        ours.chain(theirs).collect()
    }

    /// Returns Waybill's own tools. A result that must fit a schema can always be submitted, whatever the profile allows.
    fn ours(&self, form: &ResultForm) -> impl Iterator<Item = InternalTool> {
        let submit = InternalTool::SubmitResult;
        let must_submit = form.schema().is_some() && !self.ours.contains(&submit);
        self.ours.iter().copied().chain(must_submit.then_some(submit))
    }

    /// Returns the tools with one of which the turn must end, if any. A result that must fit a schema is submitted.
    pub fn must_end_with(&self, form: &ResultForm) -> Option<String> {
        let submit = InternalTool::SubmitResult.as_str();
        let mut names: Vec<&str> = self.must_end_with.iter().map(String::as_str).collect();
        if form.schema().is_some() && !names.contains(&submit) {
            names.push(submit);
        }
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Decides how each call is handled. The schema of a tool is compiled once, however often the tool is called.
    pub fn sort(&self, calls: &[ModelToolCall], form: &ResultForm) -> Vec<Disposition> {
        let mut schemas = Schemas::new();
        calls.iter().map(|call| self.check(call, form, &mut schemas).unwrap_or_else(Disposition::Refused)).collect()
    }

    fn check(&self, call: &ModelToolCall, form: &ResultForm, schemas: &mut Schemas) -> Result<Disposition, String> {
        let name = call.tool_name.as_str();
        let internal = self.ours(form).find(|tool| tool.as_str() == name);
        // A project's tool cannot replace one of Waybill's own.
        let tool = self.tools.iter().find(|tool| tool.name.as_str() == name && internal.is_none());
        if tool.is_none() && internal.is_none() {
            let mut names: Vec<&str> = self.ours(form).map(|tool| tool.as_str()).collect();
            names.extend(self.tools.iter().map(|tool| tool.name.as_str()));
            return Err(format!("you have no tool `{name}`: your tools are {names:?}"));
        }
        let arguments = match json::parse(call.arguments.as_bytes()) {
            Ok(Value::Object(arguments)) => arguments,
            Ok(_) => return Err(format!("the arguments of `{name}` must be a JSON object")),
            Err(error) => return Err(invalid(name, &causes(&error))),
        };
        let arguments = Value::Object(arguments);
        let mut check = |parameters: &dyn Fn() -> Option<Map<String, Value>>| {
            let compiled = || compile(&parameters().ok_or("it is declared nowhere")?);
            let schema = schemas.entry(name.to_owned()).or_insert_with(compiled);
            let outcome = schema.as_ref().map_err(Clone::clone).and_then(|schema| matches(schema, &arguments));
            outcome.map_err(|why| invalid(name, &why))
        };
        if let Some(tool) = tool {
            check(&|| Some(tool.parameters.clone()))?;
            let timeout = Duration::from_secs(tool.timeout_seconds.into());
            return Ok(Disposition::Leaves { target: tool.target.clone(), timeout, once: tool.effect == Effect::Once });
        }
        let Some(internal) = internal else { return Err(format!("you have no tool `{name}`")) };
        check(&|| ours::definition(internal, form, &self.delegates)?.parameters.as_object().cloned())?;
        Ok(match internal {
            InternalTool::SubmitResult => Disposition::Submits(submitted(arguments, form)),
            InternalTool::UpdateTodo => Disposition::Todo(read(name, arguments["changes"].clone())?),
            InternalTool::ListArtifacts => {
                Disposition::Artifact(artifact::Request::List { prefix: said(&arguments, "prefix") })
            }
            InternalTool::PlanReading => {
                let paths = arguments.get("paths").cloned().unwrap_or_else(|| json!([]));
                Disposition::Artifact(artifact::Request::Plan { paths: read(name, paths)? })
            }
            InternalTool::ReadArtifact => {
                let reading: artifact::Reading = read(name, arguments)?;
                Disposition::Artifact(reading.request().map_err(|why| invalid(name, &why))?)
            }
            InternalTool::SearchArtifacts => {
                let (text, prefix) = (said(&arguments, "text"), said(&arguments, "prefix"));
                Disposition::Artifact(artifact::Request::Search { text, prefix })
            }
            InternalTool::WriteArtifact => {
                let media_type = arguments["media_type"].as_str().map(str::to_owned);
                let (path, content) = (read(name, arguments["path"].clone())?, said(&arguments, "content"));
                Disposition::Artifact(artifact::Request::Write { path, content, media_type })
            }
            InternalTool::SearchKnowledge => Disposition::Knowledge {
                kind: arguments.get("kind").cloned().map_or(Ok(Kind::Knowledge), |kind| read(name, kind))?,
                question: said(&arguments, "question"),
                most: arguments["most"].as_u64().map_or(USUAL, |most| usize::try_from(most).unwrap_or(USUAL)),
            },
            InternalTool::ReadPlan => Disposition::Plan {
                name: arguments.get("name").cloned().map(|text| read(name, text)).transpose()?,
                version: arguments.get("version").cloned().map(|version| read(name, version)).transpose()?,
            },
            // A retry is safe: a handler recognises a call that it has already acted on.
            _ => Disposition::Leaves { target: PMO.parse().map_err(|_| "no target")?, timeout: COMMAND, once: false },
        })
    }

    /// Checks whether the result of a call ends the turn: as the result itself says, else as the tool says, else if the turn must end with it.
    /// A result that does not fit the schema of the turn does not end it.
    pub fn ends_with(&self, tool_name: &str, result: &ResultContent, form: &ResultForm) -> bool {
        self.would_end(tool_name, result) && form.schema().is_none_or(|schema| fits(schema, &result.result).is_ok())
    }

    fn would_end(&self, tool_name: &str, result: &ResultContent) -> bool {
        match result.extra.get("after_execution").and_then(Value::as_str) {
            Some("terminate") => return true,
            Some("suspend") => return false,
            _ => {}
        }
        let tool = self.tools.iter().find(|tool| tool.name.as_str() == tool_name);
        tool.is_some_and(|tool| tool.after_execution == AfterExecution::Terminate)
            || result.is_success() && self.must_end_with.iter().any(|name| name == tool_name)
    }
}

fn read<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| invalid(name, &error.to_string()))
}

fn invalid(name: &str, why: &str) -> String {
    format!("the arguments of `{name}` are not valid: {why}")
}

/// Returns a text argument. If omitted, it is empty.
fn said(arguments: &Value, key: &str) -> String {
    arguments[key].as_str().unwrap_or_default().to_owned()
}

/// Returns what was submitted: the object that was asked for, else the result.
fn submitted(arguments: Value, form: &ResultForm) -> Content {
    let result = if *form == ResultForm::Any { arguments["result"].clone() } else { arguments };
    match result {
        Value::String(text) => Content::Text(text),
        other => Content::Json(other),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use waybill_core::card::Field;

    use super::*;

    fn toolbox() -> Toolbox {
        let tool = |name: &str, more: Value| {
            let mut tool = json!({
                "name": name, "description": "d", "target": "web",
                "parameters": { "type": "object", "properties": { "q": { "type": "string" } }, "required": ["q"] },
            });
            tool.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<Tool>(tool).unwrap()
        };
        let profile: Profile = serde_json::from_value(json!({
            "name": "a", "worker_target": "llm", "system_prompt_template": "p",
            "allowed_tools": ["search", "hang_up"], "allowed_internal_tools": ["submit_result", "fork_join", "update_todo"],
            "must_end_with": ["submit_result", "search"], "llm_config": { "provider": "demo", "model": "demo" },
        }))
        .unwrap();
        let tools = [
            tool("search", json!({ "effect": "pure", "result": { "type": "array" } })),
            tool("hang_up", json!({ "after_execution": "terminate" })),
            tool("secret", json!({})),
        ];
        Toolbox::new(&profile, &tools)
    }

    fn sort(name: &str, arguments: &str, form: &ResultForm) -> Disposition {
        let call = ModelToolCall { provider_call_id: "c".into(), tool_name: name.into(), arguments: arguments.into() };
        toolbox().sort(&[call], form).remove(0)
    }

    fn refused(name: &str, arguments: &str) -> String {
        match sort(name, arguments, &ResultForm::Any) {
            Disposition::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    /// WK-3: a tool that the profile does not allow is refused when it is called, and so is a call with wrong arguments.
    #[test]
    fn only_what_is_allowed_and_well_said_leaves() {
        assert!(refused("secret", r#"{"q":"x"}"#).contains("you have no tool `secret`"));
        assert!(refused("made_up", "{}").contains("search"), "the refusal lists the tools");
        assert!(refused("search", "{").contains("the arguments of `search`"));
        assert!(refused("search", "[]").contains("object"));
        assert!(refused("search", r#"{"q":1}"#).contains("/q"));
        assert!(refused("fork_join", r#"{"tasks":[{"instruction":"x"}]}"#).contains("target_ref"));
        let free = |name: &str, arguments: &str| sort(name, arguments, &ResultForm::Any);
        let (pure, once) = (free("search", r#"{"q":"x"}"#), free("hang_up", r#"{"q":"x"}"#));
        assert!(matches!(pure, Disposition::Leaves { once: false, .. }));
        assert!(matches!(once, Disposition::Leaves { once: true, .. }), "a tool without `effect` counts as `once`");
        let fork = free("fork_join", r#"{"tasks":[{"target_ref":"a","instruction":"x"}]}"#);
        assert!(matches!(fork, Disposition::Leaves { target, once: false, .. } if target.as_str() == PMO));
    }

    /// WK-3, HO-8: an artifact is read in bounded parts, and each of several calls is decided by itself.
    #[test]
    fn a_reading_is_bounded() {
        let toolbox = Toolbox { ours: vec![InternalTool::ReadArtifact], ..Toolbox::default() };
        let call = |most: i64| ModelToolCall {
            provider_call_id: "c".into(),
            tool_name: "read_artifact".into(),
            arguments: json!({ "path": "a/b.md", "part": "head", "max_tokens": most }).to_string(),
        };
        let sorted = toolbox.sort(&[100_001, 100_000, i64::from(i32::MAX), 0].map(call), &ResultForm::Any);
        let allowed: Vec<bool> = sorted.iter().map(|one| matches!(one, Disposition::Artifact(_))).collect();
        assert_eq!(allowed, [false, true, false, false], "{sorted:?}");
    }

    /// WK-4: checked against the fields that the result must have.
    #[test]
    fn a_result_has_the_fields_that_were_asked_for() {
        let field = |name: &str, extra: Value| Field {
            name: name.into(),
            description: "d".into(),
            extra: extra.as_object().unwrap().clone(),
        };
        let fields = vec![field("answer", json!({})), field("score", json!({ "type": "number" }))];
        let fields = ResultForm::Fields(fields);
        let submits = |arguments: &str| sort("submit_result", arguments, &fields);
        assert_eq!(
            submits(r#"{"answer":"x","score":1}"#),
            Disposition::Submits(Content::Json(json!({ "answer": "x", "score": 1 })))
        );
        for wrong in [r#"{"answer":"x"}"#, r#"{"answer":"x","score":"1"}"#, r#"{"answer":"x","score":1,"more":2}"#] {
            assert!(matches!(submits(wrong), Disposition::Refused(_)), "{wrong}");
        }
        assert_eq!(
            sort("submit_result", r#"{"result":"done"}"#, &ResultForm::Any),
            Disposition::Submits(Content::Text("done".into()))
        );
    }

    /// WK-4: a result that has a schema is submitted and fits it, whatever the profile says about `submit_result`.
    #[test]
    fn a_result_fits_the_schema_that_was_given() {
        let schema = json!({
            "type": "object", "required": ["answer"], "additionalProperties": false,
            "properties": { "answer": { "$ref": "#/$defs/word" } },
            "$defs": { "word": { "type": "string", "maxLength": 5 } },
        });
        let form = ResultForm::Schema(schema.as_object().unwrap().clone());
        let call = |arguments: &str| ModelToolCall {
            provider_call_id: "c".into(),
            tool_name: "submit_result".into(),
            arguments: arguments.into(),
        };
        for toolbox in [toolbox(), Toolbox::default()] {
            assert!(toolbox.list(&form).iter().any(|tool| tool.parameters == schema), "the model sees the schema");
            assert!(toolbox.must_end_with(&form).unwrap().contains("submit_result"));
            let sort = |arguments: &str| toolbox.sort(&[call(arguments)], &form).remove(0);
            assert_eq!(
                sort(r#"{"answer":"bread"}"#),
                Disposition::Submits(Content::Json(json!({ "answer": "bread" })))
            );
            for (wrong, said) in
                [(r#"{"answer":"too long"}"#, "/answer"), ("{}", "answer"), (r#"{"answer":1}"#, "/answer")]
            {
                let Disposition::Refused(why) = sort(wrong) else { panic!("{wrong}") };
                assert!(why.contains(said), "{why}");
            }
        }
        assert_eq!(Toolbox::default().must_end_with(&ResultForm::Any), None);
        let ends = |result: Value| {
            let result = ResultContent { status: "success".into(), result, extra: serde_json::Map::new() };
            toolbox().ends_with("hang_up", &result, &form)
        };
        assert!(ends(json!({ "answer": "bread" })) && !ends(json!("bread")));
    }

    /// WK-3: the tool says whether the turn ends, and its result may override that.
    #[test]
    fn a_result_ends_the_turn_where_it_should() {
        let ends = |tool: &str, status: &str, extra: Value| {
            let extra = extra.as_object().unwrap().clone();
            let result = ResultContent { status: status.into(), result: json!(1), extra };
            toolbox().ends_with(tool, &result, &ResultForm::Any)
        };
        assert!(ends("hang_up", "failed", json!({})));
        assert!(!ends("hang_up", "success", json!({ "after_execution": "suspend" })));
        assert!(ends("fork_join", "success", json!({ "after_execution": "terminate" })));
        assert!(ends("search", "success", json!({})), "the turn must end with it");
        assert!(!ends("search", "failed", json!({})));
        assert!(!ends("fork_join", "success", json!({})));
    }
}
