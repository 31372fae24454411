//! Makes a project that has worked, and has work under way.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use waybill_artifact::{Artifacts, Put};
use waybill_context::framework::Framework;
use waybill_core::{
    id::{AgentId, Name, ProjectId, SessionId, TurnId},
    key::{ApiKey, Bounds, Scope},
    resource::Manifest,
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    audit, blackboard, call, handover, key, lease, project, resource,
    turn::{self, Claiming},
    work::{Kernel, UnitOfWork},
};
use waybill_orchestrator::{
    command,
    knowledge::{Applied, apply},
    launch::{Launch, launch},
};
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::{Config, Worker},
};

/// A text that is in everything that the victim writes.
pub(crate) const CANARY: &str = "canary-7f3a";

/// A project that has worked, and has work under way.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) project_id: ProjectId,
    pub(crate) slug: &'static str,
    pub(crate) keys: Vec<(Scope, String)>,
}

/// Makes a project, lets its team work, and leaves work under way.
pub(crate) async fn settle(
    kernel: &Kernel,
    artifacts: &Artifacts,
    slug: &'static str,
    is_victim: bool,
) -> Result<Settled> {
    let says = if is_victim { CANARY } else { "nothing much" };
    let own = if is_victim { CANARY } else { "own" };
    let mut work = kernel.begin(ProjectId::new()).await?;
    let project_id = work.project_id();
    project::create(&mut work, slug).await?;
    let applied = resource::apply(&mut work, &profiles(says, own)?).await?;
    audit::applied(&mut work, says, &applied).await?;
    let session_id = SessionId::new();
    blackboard::open(&mut work, Some("key:somebody-else"), &[session_id]).await?;
    let made = NewAgent::of(AgentId::new(), &handover::target(&mut work, &"lead".parse()?).await?);
    agent::provision(&mut work, std::slice::from_ref(&made), Stay::Long, None).await?;
    let keys = create_keys(&mut work, says).await?;
    work.commit().await?;

    let path = own.parse()?;
    artifacts.put_bytes(project_id, Put::new(&path), format!("we say {says}").into_bytes().into()).await?;
    let mut work = kernel.begin(project_id).await?;
    let applied = Applied { path: &path, title: says, text: &format!("we know {says} {own}"), is_external: false };
    apply(&mut work, applied, says).await?;
    work.commit().await?;

    // A run that has ended, in a session: a lead, a fork, a hand.
    let launched = start(kernel, project_id, "lead", says, Some(session_id)).await?;
    run_to_end(kernel, project_id, launched).await?;

    // One turn that a worker holds, one that waits for a call that a worker holds, and, for the victim only, one that is ready.
    for name in ["held", "stuck"] {
        start_and_hold(kernel, project_id, name, says).await?;
    }
    if is_victim {
        start(kernel, project_id, "held", says, None).await?;
    }
    Ok(Settled { project_id, slug, keys })
}

/// Returns the profiles of a project, one of them under the name `own`.
fn profiles(says: &str, own: &str) -> Result<Vec<Manifest>> {
    let profile = |name: &str, target: &str, script: Value, may: Value| {
        json!({ "profile": {
            "name": name, "worker_target": target, "system_prompt_template": format!("You say {says}."),
            "allowed_internal_tools": ["fork_join"], "delegation_policy": { "target_profiles": may },
            "llm_config": { "provider": "demo", "model": "demo", "params": { "script": script } },
        } })
    };
    let tasks = json!([{ "target_ref": "hand", "instruction": says, "target_strategy": "new" }]);
    let fork = json!([{ "say": says, "call": { "fork_join": { "tasks": tasks } } }, { "say": says }]);
    let documents = vec![
        profile("lead", "llm", fork.clone(), json!(["hand"])),
        profile("hand", "llm", json!([{ "say": says }]), json!([])),
        profile("held", "held", json!([]), json!([])),
        profile("stuck", "stuck", fork, json!(["hand"])),
        profile(own, "llm", json!([{ "say": says }]), json!([])),
    ];
    Ok(documents.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?)
}

/// Creates one key of every scope, and returns their texts.
async fn create_keys(work: &mut UnitOfWork, says: &str) -> Result<Vec<(Scope, String)>> {
    let mut keys = Vec::new();
    for (n, scope) in Scope::ALL.into_iter().enumerate() {
        let key = ApiKey::mint("test");
        let name: Name = format!("{says}-{n}").replace(' ', "-").parse()?;
        let bounds = Bounds {
            targets: ["llm", "held", "stuck", "slow", "python"]
                .map(|target| target.parse())
                .into_iter()
                .collect::<Result<_, _>>()?,
            ..Bounds::default()
        };
        key::create(work, &key, &name, scope, &bounds, None).await?;
        keys.push((scope, key.expose().to_owned()));
    }
    Ok(keys)
}

/// Runs a worker and an orchestrator until the turn has ended.
async fn run_to_end(kernel: &Kernel, project_id: ProjectId, launched: TurnId) -> Result<()> {
    let worker = Worker::new(
        kernel.clone(),
        Models::new(Vec::new(), Secrets::new(None, [])),
        Collector::new(Framework::builtin()),
    );
    let config = Config::new("llm".parse()?);
    let finished = async {
        loop {
            let found = turn::show(&mut kernel.begin(project_id).await?, &[launched]).await?;
            if found.first().is_some_and(|turn| !turn.status.is_open()) {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let commands = command::Config::default();
    let ran = async {
        tokio::select! {
            ran = finished => ran,
            _ = command::run(kernel, &commands) => anyhow::bail!("the orchestrator has ended"),
        }
    };
    let mut outcome = Ok(());
    worker.serve(&config, async { outcome = ran.await }).await;
    outcome
}

/// Starts a turn and claims it for an hour. The turn of `stuck` then waits for a call, which is claimed too.
async fn start_and_hold(kernel: &Kernel, project_id: ProjectId, name: &str, says: &str) -> Result<()> {
    let hour = Duration::from_secs(3600);
    start(kernel, project_id, name, says, None).await?;
    let target = name.parse()?;
    let worker_id = lease::start(kernel, &target, hour).await?;
    let mut work = kernel.begin(project_id).await?;
    let mut claiming = Claiming { lease: hour, ..Claiming::new(worker_id, target) };
    let claimed = turn::claim_in(&mut work, &mut claiming).await?;
    work.commit().await?;
    ensure!(claimed.len() == 1, "it can be claimed");
    if name == "stuck" {
        suspend(kernel, &claimed[0].fence, says).await?;
        let mut work = kernel.begin(project_id).await?;
        let held =
            call::claim_in(&mut work, &mut Claiming { lease: hour, ..Claiming::new(worker_id, "slow".parse()?) })
                .await?;
        work.commit().await?;
        ensure!(held.len() == 1, "its call can be claimed");
    }
    Ok(())
}

async fn suspend(kernel: &Kernel, fence: &waybill_core::turn::Fence, says: &str) -> Result<()> {
    use waybill_core::{
        card::{CallContent, CardType, Content, Draft, Role},
        id::{StepId, ToolCallId},
    };
    let tool_call_id = ToolCallId::new();
    let content = CallContent {
        tool_name: "slow".into(),
        arguments: json!({ "says": says }).to_string(),
        extra: Default::default(),
    };
    let draft = Draft::new(CardType::tool_call(), Role::Assistant, Content::ToolCall(content));
    let card = Draft { tool_call_id: Some(tool_call_id), ..draft }.seal()?;
    let call = turn::Call {
        tool_call_id,
        target: "slow".parse()?,
        tool_call_card_id: card.card_id(),
        timeout: Duration::from_secs(3600),
        once: false,
    };
    let step = turn::Step {
        step_id: StepId::new(),
        cards: vec![card],
        calls: vec![call],
        suspend: true,
        receipt: None,
        usage: None,
    };
    turn::step(&mut kernel.alone(fence.project_id()).await?, fence, &step).await?;
    Ok(())
}

async fn start(
    kernel: &Kernel,
    project_id: ProjectId,
    profile: &str,
    says: &str,
    session_id: Option<SessionId>,
) -> Result<TurnId> {
    let mut work = kernel.begin(project_id).await?;
    let launched = launch(&mut work, &Launch { session_id, ..Launch::new(profile.parse()?, says) }).await?;
    work.commit().await?;
    Ok(launched.agent_turn_id)
}
