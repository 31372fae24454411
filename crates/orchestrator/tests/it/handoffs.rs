//! HO-1 … HO-9: packages that are sent, and people who are asked.

use serde_json::{Value, json};
use waybill_artifact::{Artifacts, Put, Store};
use waybill_core::{
    artifact::ArtifactPath,
    card::Content,
    id::UploadId,
    request::{Decided, Decision, Kind},
    turn::End,
};
use waybill_kernel::{artifact::Which, card_box, handover, request, resource};
use waybill_orchestrator::{
    command::{Answer, handlers},
    handoff,
    launch::{Launch, launch},
};

use crate::commands::Team;

const FOLDER: &str = "scenarios/leave/execution_outputs/iteration_1";

/// A team with an object store, and a run whose samples failed.
struct Desk {
    team: Team,
    artifacts: Artifacts,
    folder: std::path::PathBuf,
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn path(path: &str) -> ArtifactPath {
    path.parse().unwrap()
}

fn report() -> Value {
    json!({
        "report_version": "1.0", "generated_at": "2026-01-04T15:30:00", "iteration": 1, "total_samples": 27, "failed_samples": 2,
        "layer1_problems": [], "modification_priority": [],
    })
}

impl Desk {
    async fn new() -> Desk {
        let mut team = Team::new().await;
        let folder = std::env::temp_dir().join(format!("waybill-handoffs-{}", UploadId::new()));
        let artifacts = Artifacts::new(team.t.kernel.clone(), Store::in_folder(&folder).unwrap());
        team.handlers = handlers(Some(artifacts.clone()));
        Desk { team, artifacts, folder }
    }

    async fn put(&self, at: &str, content: impl Into<String>) {
        let (path, content) = (path(at), content.into().into_bytes());
        self.artifacts.put_bytes(self.team.t.project_id, Put::new(&path), content.into()).await.unwrap();
    }

    /// Everything that a run leaves behind.
    async fn persist(&self, samples: &[&str]) {
        for sample in samples {
            for (folder, suffix) in [
                ("samples", ""),
                ("execution_traces", "_trace"),
                ("evaluation_results", "_eval"),
                ("attribution_analysis", "_attribution"),
            ] {
                self.put(
                    &format!("{FOLDER}/{folder}/{sample}{suffix}.json"),
                    json!({ "of": sample, "in": folder }).to_string(),
                )
                .await;
            }
        }
        self.put(&format!("{FOLDER}/failure_summary.json"), "{}").await;
        self.put(&format!("{FOLDER}/layer1_problems_report.json"), report().to_string()).await;
    }

    async fn apply(&self, manifest: Value) {
        let mut work = self.team.t.begin().await;
        resource::apply(&mut work, &[serde_json::from_value(manifest).unwrap()]).await.unwrap();
        work.commit().await.unwrap();
    }
}

fn package(samples: &[&str]) -> Value {
    let failure = |sample: &&str| {
        json!({
            "sample_id": sample, "sample_path": format!("samples/{sample}.json"), "trace_path": format!("execution_traces/{sample}_trace.json"),
            "evaluation_path": format!("evaluation_results/{sample}_eval.json"),
            "attribution_path": format!("attribution_analysis/{sample}_attribution.json"), "failure_type": "Layer1_BusinessRule",
            "conversation_turns": 8, "checkers_failed": ["leave_balance_deducted"], "priority": "high",
        })
    };
    json!({
        "version": "2.0", "handoff_type": "execute_to_init", "timestamp": "2026-01-04T15:30:00", "execution_output_dir": FOLDER,
        "trigger_reason": "too many", "iteration_summary": { "total_samples": 27 },
        "failure_samples_index": samples.iter().map(failure).collect::<Vec<_>>(),
        "layer1_problems_report_path": "layer1_problems_report.json",
        "modification_suggestions_summary": ["one", "two", "three"], "of nobody's knowing": { "a": [1, null] },
    })
}

fn sending(package: &Value) -> Value {
    json!({ "target_ref": "helper", "package": package })
}

/// HO-1, HO-5, HO-9: what was stored is handed over as a card like any other, in the version that was there when it was sent.
#[tokio::test]
async fn a_package_is_handed_over_with_what_it_names() {
    let desk = Desk::new().await;
    let team = &desk.team;
    desk.persist(&["A", "B"]).await;
    desk.put(&format!("{FOLDER}/samples/C.json"), "{}").await;
    let turn = team.lead().await;
    let told = team.answered(&turn, "send_handoff", sending(&package(&["A", "B"]))).await;
    assert_eq!(
        (told["status"].as_str(), told["result"]["status"].as_str()),
        (Some("success"), Some("accepted")),
        "{told}"
    );
    assert!(told["result"]["n_tokens"].as_i64().unwrap() > 200);
    desk.put(&format!("{FOLDER}/failure_summary.json"), "{\"changed\":true}").await;
    let child = loop {
        let claimed = team.claim().await.unwrap();
        if claimed.fence.agent_turn_id() != turn.fence.agent_turn_id() {
            break claimed;
        }
        team.finish(&claimed, End::Success, Content::Text("sent".into())).await;
    };
    let cards = team.cards(child.context_box_id).await;
    let handed = cards.iter().find(|card| card.metadata.card_type.as_str() == "handoff.package").unwrap();
    let Content::Handoff(handoff) = &handed.content else { panic!("{handed:?}") };
    assert_eq!(Value::Object(handoff.package.clone()), package(&["A", "B"]), "all of it, also the unknown field");
    assert_eq!(
        handoff.artifacts.len(),
        2 * 4 + 2 + 1,
        "what it names, what its type wants, what else the folder holds"
    );
    assert!(handed.verifies() && handed.metadata.author_id.as_deref() == Some("send_handoff"));
    let summary = path(&format!("{FOLDER}/failure_summary.json"));
    let pinned =
        desk.artifacts.find(team.t.project_id, &summary, Which::Pinned(handoff.artifacts[&summary])).await.unwrap();
    assert_eq!((pinned.artifact.version, pinned.stored.size), (1, 2), "what was there when it was sent");
    assert!(
        cards
            .iter()
            .any(|card| matches!(&card.content, Content::Text(text) if text.contains("`execute_to_init` package")))
    );
    // A card like any other: who could see it is on record, and it can be handed on by its box.
    let mut work = team.t.begin().await;
    let held = card_box::holders(&mut work, handed.card_id, None, 10).await.unwrap();
    let seen = handover::sight(&mut work, &held).await.unwrap();
    drop(work);
    assert!(seen.iter().any(|seen| seen.agent_id == child.fence.agent_id()));
    team.finish(&child, End::Success, Content::Text("read".into())).await;
}

/// HO-9, SE: an agent hands over what it was handed, what it wrote and what its profile names; of anything else it learns nothing.
#[tokio::test]
async fn nobody_hands_over_what_they_may_not_read() {
    let desk = Desk::new().await;
    let team = &desk.team;
    desk.apply(json!({ "handoff_type": {
        "name": "note", "schema": { "type": "object" }, "gate": { "paths": [{ "at": "/note" }], "folders": [{ "at": "/folder" }] },
    } }))
    .await;
    for at in ["scenarios/open.md", "secret/one.md", "secret/two.md"] {
        desk.put(at, "of another").await;
    }
    let note = |more: Value| {
        let mut note = json!({ "version": "2.0", "handoff_type": "note", "timestamp": "2026-01-04T15:30:00" });
        note.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        note
    };
    let turn = team.lead().await;
    let told = team.answered(&turn, "send_handoff", sending(&note(json!({ "note": "secret/one.md" })))).await;
    let absent = told["result"]["error"]["message"].as_str().unwrap().to_owned();
    let (again, _) = team.resumed(&turn).await;
    let told = team.answered(&again, "send_handoff", sending(&note(json!({ "note": "secret/none.md" })))).await;
    let never = told["result"]["error"]["message"].as_str().unwrap();
    assert_eq!(absent.replace("one", "none"), never, "as what is not there");
    let (again, _) = team.resumed(&turn).await;
    let told = team
        .answered(&again, "send_handoff", sending(&note(json!({ "folder": "secret", "note": "scenarios/open.md" }))))
        .await;
    assert_eq!(told["status"], "success", "{told}");
    assert_eq!(
        team.count("select count(*) from cardbox.pins where path <> 'scenarios/open.md'").await,
        0,
        "of a folder, what it may read"
    );
    // A person may hand it over; an agent that was handed it may hand it on.
    let package = note(json!({ "note": "secret/one.md" }));
    let verdict =
        handoff::check(&team.t.kernel, &desk.artifacts, team.t.project_id, package.as_object().unwrap(), None)
            .await
            .unwrap();
    let content = verdict.content(package.as_object().unwrap()).unwrap();
    let mut work = team.t.begin().await;
    let wanted = Launch { package: Some(content), ..Launch::new("helper".parse().unwrap(), "read it") };
    let launched = launch(&mut work, &wanted).await.unwrap();
    work.commit().await.unwrap();
    let helper = loop {
        let claimed = team.claim().await.unwrap();
        if claimed.fence.agent_turn_id() == launched.agent_turn_id {
            break claimed;
        }
        team.finish(&claimed, End::Success, Content::Text("well".into())).await;
    };
    let told = team.answered(&helper, "send_handoff", sending(&package)).await;
    assert_eq!(told["status"], "success", "{told}");
}

/// HO-1, HO-2, HO-5, HO-6: all problems are reported at once, and nothing is sent.
#[tokio::test]
async fn all_that_is_wrong_is_told_at_once() {
    let desk = Desk::new().await;
    let team = &desk.team;
    desk.persist(&["A"]).await;
    let mut report = report();
    report["layer1_problems"] = json!([{ "problem_id": "L1P_001", "severity": "terrible" }]);
    desk.put(&format!("{FOLDER}/layer1_problems_report.json"), report.to_string()).await;
    let mut package = package(&["A", "B"]);
    package["failure_samples_index"][0]["trace_path"] = json!("../../../../elsewhere.json");
    package["failure_samples_index"][0]["priority"] = json!("urgent");
    package["trigger_reason"] = json!("because ".repeat(5_000));
    let turn = team.lead().await;
    let told = team.answered(&turn, "send_handoff", sending(&package)).await;
    assert_eq!(told["result"]["error"]["code"], "invalid_package", "{told}");
    let said = told["result"]["error"]["message"].as_str().unwrap();
    let order = [
        "/failure_samples_index/0/priority",
        "/failure_samples_index/0/trace_path",
        "samples/B.json",
        "terrible",
        "at most 5000",
    ];
    let places: Vec<usize> =
        order.iter().map(|part| said.find(part).unwrap_or_else(|| panic!("{part} of {said}"))).collect();
    assert!(places.is_sorted(), "schema, paths, gate, size: {said}");
    assert_eq!(team.count("select count(*) from cardbox.cards where type = 'handoff.package'").await, 0);
    // A file that was tampered with, or lost, is not handed over either.
    let victim = desk
        .artifacts
        .find(team.t.project_id, &path(&format!("{FOLDER}/samples/A.json")), Which::Newest)
        .await
        .unwrap();
    let id = victim.upload_id.simple();
    let object = desk.folder.join(team.t.project_id.simple()).join(&id[30..]).join(&id);
    std::fs::write(&object, "{\"of\":\"X\",\"in\":\"samples\"}").unwrap();
    desk.put(&format!("{FOLDER}/layer1_problems_report.json"), self::report().to_string()).await;
    let (again, _) = team.resumed(&turn).await;
    let told = team.answered(&again, "send_handoff", sending(&self::package(&["A"]))).await;
    assert!(
        told["result"]["error"]["message"].as_str().unwrap().contains("the hash of its bytes from 0 on does not match"),
        "{told}"
    );
    std::fs::remove_file(&object).unwrap();
    let (again, _) = team.resumed(&turn).await;
    let told = team.answered(&again, "send_handoff", sending(&self::package(&["A"]))).await;
    assert!(
        told["result"]["error"]["message"].as_str().unwrap().contains("is missing from the object store"),
        "{told}"
    );
}

fn review() -> Value {
    json!({ "handoff_type": {
        "name": "review", "schema": { "type": "object", "required": ["draft"], "properties": { "draft": { "type": "string" } } },
        "gate": { "paths": [{ "at": "/draft" }], "approval": { "question": "May this go out?", "deadline_seconds": 600 } },
    } })
}

fn draft() -> Value {
    json!({ "version": "2.0", "handoff_type": "review", "timestamp": "2026-01-04T15:30:00", "draft": "drafts/draft.md" })
}

/// HO-7: a type of the project's own, with a gate that asks: the call waits, and goes on or not as a person decides.
#[tokio::test]
async fn a_gate_may_ask_for_a_persons_approval() {
    let desk = Desk::new().await;
    let team = &desk.team;
    desk.apply(review()).await;
    desk.put("drafts/draft.md", "# Draft").await;
    for (decision, allowed) in [(Decision::Approved, true), (Decision::Rejected, false), (Decision::Expired, false)] {
        let turn = team.lead().await;
        let call = team.ask(&turn, "send_handoff", sending(&draft())).await;
        assert!(matches!(team.deliver(&call).await.unwrap(), Answer::Asking(_)));
        assert!(team.claim_call().await.is_none(), "only a person is asked");
        let mut work = team.t.begin().await;
        let open = request::open(&mut work, 10).await.unwrap();
        assert_eq!((open.len(), open[0].tool_call_id, open[0].request.kind), (1, call.tool_call_id, Kind::Approval));
        assert_eq!((open[0].request.about.clone(), open[0].profile_name.as_deref()), (draft(), Some("lead")));
        if decision == Decision::Expired {
            drop(work);
            team.meddle("update state.waiting_calls set deadline_at = now() where status = 'asking'").await;
            team.sweep().await;
        } else {
            let decided = Decided { note: Some("as it is".into()), ..Decided::new(decision, "cli:me") };
            let unfit = Decided { answer: json!("?"), ..Decided::new(Decision::Answered, "cli:me") };
            let refused = request::decide_as(&mut team.t.begin().await, call.tool_call_id, &unfit).await;
            assert!(refused.unwrap_err().to_string().contains("approve or reject"));
            request::decide_as(&mut work, call.tool_call_id, &decided).await.unwrap();
            work.commit().await.unwrap();
            let twice = request::decide_as(&mut team.t.begin().await, call.tool_call_id, &decided).await;
            assert!(matches!(twice, Err(request::Refused::Gone(_))), "{twice:?}");
        }
        let back = team.claim_call().await.expect("it is its handler's again");
        let Answer::Answered(_) = team.deliver(&back).await.unwrap() else { panic!("it is answered") };
        let told = loop {
            let claimed = team.claim().await.unwrap();
            let is_turn = claimed.fence.agent_turn_id() == turn.fence.agent_turn_id();
            let told = team.cards(claimed.output_box_id).await.pop();
            team.finish(&claimed, End::Success, Content::Text("well".into())).await;
            if is_turn {
                break serde_json::to_value(told.unwrap().content).unwrap();
            }
        };
        assert_eq!(told["status"] == "success", allowed, "{decision:?}: {told}");
        if !allowed {
            assert_eq!(told["result"]["error"]["code"], "not_approved", "{told}");
        }
        while let Some(child) = team.claim().await {
            team.finish(&child, End::Success, Content::Text("well".into())).await;
        }
    }
    let cards = team.count("select count(*) from cardbox.cards where type = 'request.decision'").await;
    let events = team.count("select count(*) from state.outbox where event = 'request'").await;
    let audit = team.count("select count(*) from state.audit where action = 'request.decide'").await;
    assert_eq!((cards, events, audit), (3, 6, 2));
    assert_eq!(team.count("select count(*) from cardbox.cards where type = 'handoff.package'").await, 1);
}

/// A question waits for an answer in words; if none comes, the default applies.
#[tokio::test]
async fn a_question_is_answered_by_a_person_or_by_its_deadline() {
    let desk = Desk::new().await;
    let team = &desk.team;
    let question = |more: Value| {
        let mut question = json!({ "question": "Which year?" });
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        question
    };
    for (asked, answer, status, told) in [
        (question(json!({})), Some(json!({ "year": 2026 })), "success", json!({ "year": 2026 })),
        (question(json!({ "default": "this one" })), None, "success", json!("this one")),
        (question(json!({})), None, "timeout", Value::Null),
    ] {
        let turn = team.lead().await;
        let call = team.ask(&turn, "ask_person", asked).await;
        assert!(matches!(team.deliver(&call).await.unwrap(), Answer::Asking(_)));
        match answer {
            Some(answer) => {
                let decided = Decided { answer, ..Decided::new(Decision::Answered, "key:me") };
                let mut work = team.t.begin().await;
                request::decide_as(&mut work, call.tool_call_id, &decided).await.unwrap();
                work.commit().await.unwrap();
            }
            None => {
                team.meddle("update state.waiting_calls set deadline_at = now() where status = 'asking'").await;
                team.sweep().await;
            }
        }
        let back = team.claim_call().await.expect("it is its handler's again");
        team.deliver(&back).await.unwrap();
        let (again, said) = team.resumed(&turn).await;
        assert_eq!((said["status"].as_str(), &said["result"]["answer"]), (Some(status), &told), "{said}");
        team.finish(&again, End::Success, Content::Text("well".into())).await;
    }
    team.refused("lead", "ask_person", json!({ "question": "?", "deadline_seconds": 0 }), "bad_request").await;
    team.refused("lead", "ask_person", json!({ "question": "?", "kind": "approval", "default": 7 }), "bad_request")
        .await;
    // If the turn that waits is stopped, its question is withdrawn.
    let turn = team.lead().await;
    let call = team.ask(&turn, "ask_person", question(json!({}))).await;
    team.deliver(&call).await.unwrap();
    let mut work = team.t.begin().await;
    waybill_kernel::turn::stop(&mut work, turn.fence.agent_turn_id(), "enough").await.unwrap();
    work.commit().await.unwrap();
    assert!(request::open(&mut team.t.begin().await, 10).await.unwrap().is_empty(), "no person is asked any more");
}
