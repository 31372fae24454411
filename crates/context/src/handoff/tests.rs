#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use waybill_core::{
    artifact::ArtifactPath,
    card::{CardType, Content, Draft, HandoffContent, Role},
    handoff::HandoffType,
    tokens::Tokens,
};

use super::{
    load::{Part, load, search},
    plan::{Priority, plan, priorities},
    *,
};

fn type_named(name: &str) -> &'static HandoffType {
    built_in().iter().find(|known| known.name.as_str() == name).unwrap()
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Returns a package as in the design from which the types come.
fn init() -> Map<String, Value> {
    object(json!({
        "version": "2.0", "handoff_type": "init_to_execute", "timestamp": "2026-01-04T10:30:00",
        "user_requirement": "生成请假申请场景的评测样本",
        "design_artifacts": {
            "unified_scenario_design_path": "scenarios/leave_application/unified_scenario_design.yaml",
            "business_rules_path": "scenarios/leave_application/BusinessRules.md",
            "format_specifications_path": "scenarios/leave_application/format_specifications.json",
        },
    }))
}

fn execute(n_failures: usize) -> Map<String, Value> {
    let failure = |n: usize| {
        let priority = ["high", "medium", "low"][n % 3];
        json!({
            "sample_id": format!("BS_MT_{n:03}"), "sample_path": format!("samples/BS_MT_{n:03}.json"),
            "trace_path": format!("execution_traces/BS_MT_{n:03}_trace.json"),
            "evaluation_path": format!("evaluation_results/BS_MT_{n:03}_eval.json"),
            "attribution_path": format!("attribution_analysis/BS_MT_{n:03}_attribution.json"),
            "failure_type": "Layer1_BusinessRule", "conversation_turns": 8 + n % 5,
            "checkers_failed": ["leave_balance_deducted"], "priority": priority,
        })
    };
    object(json!({
        "version": "2.0", "handoff_type": "execute_to_init", "timestamp": "2026-01-04T15:30:00",
        "execution_output_dir": "scenarios/leave_application/execution_outputs/iteration_12",
        "trigger_reason": "Critical问题占比35%，超过30%阈值，自动修复无效",
        "iteration_summary": { "total_iterations": 12, "final_quality": 0.67, "total_samples": 27, "failed_samples": n_failures },
        "failure_samples_index": (0..n_failures).map(failure).collect::<Vec<_>>(),
        "layer1_problems_report_path": "layer1_problems_report.json",
        "modification_suggestions_summary": ["扣减余额", "容忍0.01天的浮点误差", "明确跨年度请假的余额计算规则"],
    }))
}

/// HO-3, HO-4, HO-5: the designed package is valid; one without a field, or with another version, is not.
#[test]
fn the_types_that_are_built_in_take_what_they_were_made_for() {
    for handoff_type in built_in() {
        check_type(handoff_type).unwrap();
    }
    assert_eq!(check_schema(type_named("init_to_execute"), &init()), []);
    assert_eq!(check_schema(type_named("execute_to_init"), &execute(2)), []);
    for (package, n_fields) in [(init(), 5), (execute(2), 9)] {
        let handoff_type = type_named(package["handoff_type"].as_str().unwrap());
        let required: Vec<&String> = package.keys().collect();
        assert_eq!(required.len(), n_fields);
        for key in required {
            let mut lacking = package.clone();
            lacking.remove(key);
            assert!(!check_schema(handoff_type, &lacking).is_empty(), "{key} is required");
        }
        for (key, value) in [("version", json!("1.0")), ("handoff_type", json!("other")), ("metadata", json!("text"))] {
            let mut wrong = package.clone();
            wrong.insert(key.to_owned(), value);
            assert_eq!(check_schema(handoff_type, &wrong)[0].at, format!("/{key}"));
        }
    }
    let mut many = execute(2);
    many.insert("modification_suggestions_summary".to_owned(), json!(["1", "2", "3", "4", "5", "6"]));
    assert_eq!(check_schema(type_named("execute_to_init"), &many).len(), 1, "at most 5");
    many.insert("modification_suggestions_summary".to_owned(), json!(["1", "2"]));
    assert_eq!(warnings(type_named("execute_to_init"), &many).len(), 1, "fewer than 3 warns");
    let mut entry = execute(1);
    entry["failure_samples_index"][0]["priority"] = json!("urgent");
    assert_eq!(check_schema(type_named("execute_to_init"), &entry)[0].at, "/failure_samples_index/0/priority");
}

/// HO-3: the schemas are published, each under its version. `UPDATE=1` writes them.
#[test]
fn the_schemas_are_published() {
    for handoff_type in built_in() {
        let file =
            format!("{}/../../docs/schemas/handoff-{VERSION}/{}.json", env!("CARGO_MANIFEST_DIR"), handoff_type.name);
        let schema = serde_json::to_string_pretty(&published(handoff_type)).unwrap() + "\n";
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, &schema).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), schema, "{file}: run with UPDATE=1");
    }
    let report = type_named("execute_to_init").gate.paths.iter().find_map(|rule| rule.schema.clone()).unwrap();
    let file =
        format!("{}/../../docs/schemas/handoff-{VERSION}/layer1_problems_report.json", env!("CARGO_MANIFEST_DIR"));
    let schema = serde_json::to_string_pretty(&Value::Object(report)).unwrap() + "\n";
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &schema).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), schema, "{file}: run with UPDATE=1");
}

/// HO-2: a package may be as long as allowed, and not longer; otherwise the advice says with numbers what to cut.
#[test]
fn a_package_is_short_or_is_told_what_to_cut() {
    let (to_execute, to_init) = (type_named("init_to_execute"), type_named("execute_to_init"));
    let (short, long) = (count(&init()), count(&execute(18)));
    assert!((50..=300).contains(&short.get()), "{short}");
    assert!((1_000..=5_000).contains(&long.get()), "{long}");
    assert_eq!((check_size(to_execute, &init()), check_size(to_init, &execute(18))), (None, None));
    let problem = check_size(to_init, &execute(500)).unwrap();
    let n_tokens = count(&execute(500));
    assert!(problem.problem.contains(&format!("the package has {n_tokens} tokens")), "{problem}");
    assert_eq!(problem.at, "/failure_samples_index");
    assert!(problem.advice.contains("500 entries") && problem.advice.contains("167 are high"), "{problem}");
    // The advice is right: what it keeps fits.
    let room: usize = problem.advice.split("keep the ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(room > 10 && check_size(to_init, &execute(room)).is_none(), "{room}");
    let mut wordy = init();
    assert!(warnings(to_execute, &wordy).is_empty());
    wordy.insert("design_rationale".to_owned(), json!("because ".repeat(400)));
    assert_eq!(check_size(to_execute, &wordy), None, "300 tokens are advice");
    assert!(warnings(to_execute, &wordy)[0].contains("about 300 are enough"));
    wordy.insert("design_rationale".to_owned(), json!("because ".repeat(1_400)));
    assert!(check_size(to_execute, &wordy).unwrap().advice.contains("store it as an artifact"));
}

/// HO-1, HO-5: everything that is named is found, relative to its folder; no path leads out of it.
#[test]
fn what_a_package_names_is_found() {
    let handoff_type = type_named("execute_to_init");
    let package = execute(2);
    let found = mentioned(handoff_type, &package);
    assert_eq!((found.artifacts.len(), found.folders.len(), found.problems.len()), (2 * 4 + 2, 1, 0));
    let folder: ArtifactPath = package["execution_output_dir"].as_str().unwrap().parse().unwrap();
    assert!(found.artifacts.iter().all(|named| named.path.is_within(&folder)));
    assert!(found.artifacts.iter().any(|named| named.path.name() == "failure_summary.json" && named.at.is_empty()));
    let mut hostile = execute(2);
    hostile["failure_samples_index"][0]["sample_path"] = json!("../../../secrets.json");
    hostile["failure_samples_index"][1]["trace_path"] = json!("/etc/passwd");
    let problems = mentioned(handoff_type, &hostile).problems;
    let at: Vec<&str> = problems.iter().map(|problem| problem.at.as_str()).collect();
    assert_eq!(at, ["/failure_samples_index/0/sample_path", "/failure_samples_index/1/trace_path"]);
    hostile.insert("execution_output_dir".to_owned(), json!("C:/windows"));
    assert!(mentioned(handoff_type, &hostile).artifacts.is_empty());
}

/// HO-6: the report has a schema, and all its problems are reported.
#[test]
fn a_report_is_as_it_must_be() {
    let handoff_type = type_named("execute_to_init");
    let package = execute(1);
    let found = mentioned(handoff_type, &package);
    let report = found.artifacts.iter().find(|named| named.schema.is_some()).unwrap();
    let good = json!({
        "report_version": "1.0", "generated_at": "2026-01-04T15:30:00", "iteration": 12, "total_samples": 27, "failed_samples": 18,
        "failure_rate": 0.67,
        "layer1_problems": [{
            "problem_id": "L1P_001", "problem_type": "BusinessRule_Unclear", "severity": "critical", "title": "余额扣减时机未明确",
            "description": "…", "affected_samples": ["BS_MT_001"], "affected_count": 9, "evidence_summary": "9个case",
            "typical_case_id": "BS_MT_001",
            "suggested_fix": { "target": "BusinessRules.md", "section": "##", "modification": "…", "rationale": "…" },
        }],
        "modification_priority": [{ "priority": 1, "problem_id": "L1P_001", "impact": "解决9个失败case", "estimated_improvement": "+33%" }],
    });
    let check =
        |report_says: &Value| check_content(report, "application/json", Some(report_says.to_string().as_bytes()));
    assert_eq!(check(&good), []);
    let mut bad = good.clone();
    bad["layer1_problems"][0]["severity"] = json!("terrible");
    bad["layer1_problems"][0].as_object_mut().unwrap().remove("suggested_fix");
    bad["modification_priority"] = json!([{ "priority": 0 }]);
    let problems = check(&bad);
    assert!(problems.len() >= 4, "{problems:?}");
    assert!(problems.iter().all(|problem| problem.check == Check::Gate));
    assert_eq!(check_content(report, "application/json", Some(b"no")).len(), 1);
}

/// HO-7: a type is data, with its gate; an invalid type is refused when it is applied.
#[test]
fn a_type_of_ones_own_is_data() {
    let handoff_type = |gate: Value| -> HandoffType {
        serde_json::from_value(json!({
            "name": "review", "max_tokens": 500, "gate": gate,
            "schema": { "type": "object", "required": ["draft"], "properties": { "draft": { "type": "string" } } },
        }))
        .unwrap()
    };
    let approval = json!({ "question": "Ship it?", "when": { "properties": { "final": { "const": true } }, "required": ["final"] } });
    let review = handoff_type(json!({ "paths": [{ "at": "/draft" }], "approval": approval }));
    check_type(&review).unwrap();
    let mut package = object(json!({
        "version": "2.0", "handoff_type": "review", "timestamp": "2026-01-04T15:30:00Z", "draft": "drafts/one.md", "mood": [1, null],
    }));
    assert_eq!(check_schema(&review, &package), []);
    assert_eq!(mentioned(&review, &package).artifacts[0].path.as_str(), "drafts/one.md");
    assert!(needs_approval(&review, &package).is_none());
    package.insert("final".to_owned(), json!(true));
    assert_eq!(needs_approval(&review, &package).unwrap().question, "Ship it?");
    for gate in [
        json!({ "paths": [{ "at": "draft" }] }),
        json!({ "paths": [{ "at": "/draft", "schema": { "type": 7 } }] }),
        json!({ "files": [{ "path": "../x" }] }),
        json!({ "warnings": [{ "unless": { "type": 7 }, "message": "m" }] }),
    ] {
        assert!(check_type(&handoff_type(gate.clone())).unwrap_err().contains("review"), "{gate}");
    }
}

/// HO-8: the most urgent first; the plan says what fits.
#[test]
fn a_plan_puts_the_urgent_first() {
    let package = execute(3);
    let priorities = priorities(type_named("execute_to_init"), &package);
    let of =
        |name: &str| priorities.iter().find(|(path, _)| path.name() == name).map(|(_, priority)| *priority).unwrap();
    assert_eq!(of("layer1_problems_report.json"), Priority::First);
    assert_eq!((of("BS_MT_000.json"), of("BS_MT_001_trace.json")), (Priority::High, Priority::Medium));
    assert_eq!(of("BS_MT_002_eval.json"), Priority::Low);
    let items = plan(priorities.into_iter().map(|(path, priority)| (path, priority, 100)), 650);
    assert!(items.windows(2).all(|two| two[0].priority <= two[1].priority && two[0].total + 100 == two[1].total));
    assert_eq!(items.iter().filter(|item| item.fits).count(), 6);
}

fn tokens(n: i32) -> Tokens {
    Tokens::new(n).unwrap()
}

/// HO-8: any part, in whole lines, with at most as many tokens as asked for.
#[test]
fn a_part_is_read() {
    let text: String = (1..=400).map(|n| format!("line {n} of the log\n")).collect();
    for (part, begins, ends) in [(Part::Head, "line 1 ", ""), (Part::Tail, "", "line 400 of the log\n")] {
        let read = load(&text, &part, tokens(100)).unwrap();
        assert!(read.text.starts_with(begins) && read.text.ends_with(ends) && read.text.ends_with('\n'), "{read:?}");
        assert!(read.n_tokens <= tokens(100) && read.n_tokens >= tokens(80), "{read:?}");
    }
    let lines = load(&text, &Part::Lines(10, 11), tokens(100)).unwrap();
    assert_eq!(lines.text, "line 10 of the log\nline 11 of the log\n");
    assert_eq!(lines.what, "lines 10–11 of 400");
    assert!(load(&text, &Part::Lines(401, 402), tokens(100)).unwrap_err().contains("400 lines"));
    let one_line = "余额 ".repeat(5_000);
    let cut = load(&one_line, &Part::Head, tokens(50)).unwrap();
    assert!(cut.n_tokens <= tokens(50) && cut.n_tokens > tokens(25), "a line that is too long is cut");
    let found = load(r#"{"a":[{"b":1},{"b":"x"}]}"#, &Part::JsonPath("$.a[*].b".into()), tokens(10)).unwrap();
    assert_eq!(found.text, "1\n\"x\"");
    assert!(load("{}", &Part::JsonPath("a b".into()), tokens(10)).unwrap_err().contains("JSONPath"));
    assert_eq!(search("eins\nZwei drei\nzwei", "ZWEI", 5), [(2, "Zwei drei".to_owned()), (3, "zwei".to_owned())]);
}

/// HO-8: of a long conversation, whole turns: its beginning and end, errors, tool calls, and the turns around a text.
#[test]
fn the_key_turns_of_a_conversation_are_read_whole() {
    let turn = |n: usize| match n {
        20 => json!({ "role": "assistant", "content": "let me see", "tool_calls": [{ "name": "update_balance" }] }),
        21 => json!({ "role": "tool", "content": "error: no such employee" }),
        33 => json!({ "role": "user", "content": "what about the carry-over of last year?" }),
        n => json!({ "role": "user", "content": format!("turn {n} {}", "blah ".repeat(30)) }),
    };
    let trace = json!({ "sample_id": "x", "conversation_history": (1..=60).map(turn).collect::<Vec<_>>() }).to_string();
    let read = load(&trace, &Part::KeyTurns { around: None }, tokens(400)).unwrap();
    assert_eq!(read.what, "6 key turns of 60");
    for wanted in ["#1 ", "#2 ", "#20 ", "#21 ", "#59 ", "#60 ", "… 17 turns left out …", "… 37 turns left out …"]
    {
        assert!(read.text.contains(wanted), "{wanted} of {}", read.text);
    }
    let around = load(&trace, &Part::KeyTurns { around: Some("Carry-Over".into()) }, tokens(120)).unwrap();
    assert!(
        around.text.contains("#33 ") && around.text.contains("#32 ") && around.n_tokens <= tokens(150),
        "{around:?}"
    );
    for line in around.text.lines().filter(|line| line.starts_with('#')) {
        let turn = line.split_once(' ').unwrap().1;
        assert!(serde_json::from_str::<Value>(turn).is_ok(), "a turn is whole: {line}");
    }
    assert!(load(&trace, &Part::KeyTurns { around: Some("nowhere".into()) }, tokens(100)).is_err());
    assert!(
        load("{\"a\":1}", &Part::KeyTurns { around: None }, tokens(100)).unwrap_err().contains("conversation_history")
    );
    let lines = "{\"role\":\"user\"}\n{\"role\":\"tool\",\"content\":\"failed\"}\n";
    assert_eq!(load(lines, &Part::KeyTurns { around: None }, tokens(100)).unwrap().what, "2 key turns of 2");
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-9_007_199_254_740_991_i64..=9_007_199_254_740_991).prop_map(Value::from),
        any::<f32>().prop_filter("JSON", |n| n.is_finite()).prop_map(|n| json!(f64::from(n))),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("\\PC{0,8}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

/// Adds an unknown field to every object, at every level.
fn scatter(value: &mut Value, unknown: &Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(|field| scatter(field, unknown));
            // Such an object holds only paths.
            if !fields.values().all(|field| field.as_str().is_some_and(|text| text.contains('/'))) {
                fields.insert("an unknown field ☃".to_owned(), unknown.clone());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| scatter(item, unknown)),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("WAYBILL_PACKAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000), ..ProptestConfig::default() })]

    /// HO-3: unknown fields are kept at every level: through the checks, into a card, out of it, and into the next one.
    #[test]
    fn what_nobody_knows_travels_along(unknown in anything(), is_init in any::<bool>(), n in 0_usize..4) {
        let mut package = Value::Object(if is_init { init() } else { execute(n) });
        scatter(&mut package, &unknown);
        let package = object(package);
        let handoff_type = type_named(package["handoff_type"].as_str().unwrap());
        prop_assert_eq!(check_schema(handoff_type, &package), vec![]);
        let content = HandoffContent { package: package.clone(), artifacts: Default::default() };
        let draft = Draft::new(CardType::handoff_package(), Role::User, Content::Handoff(content));
        let sealed = draft.seal();
        // Text that cannot be stored is refused, not changed.
        prop_assume!(sealed.is_ok());
        let mut sealed = sealed.unwrap();
        for _ in 0..2 {
            let read = Content::read_stored(&CardType::handoff_package(), sealed.content_json()).unwrap();
            let Content::Handoff(handoff) = &read else { panic!("{read:?}") };
            prop_assert_eq!(
                waybill_core::json::canonical(&handoff.package), waybill_core::json::canonical(&package), "byte for byte"
            );
            let said = sealed.content_json().to_owned();
            sealed = Draft::new(CardType::handoff_package(), Role::User, read).seal().unwrap();
            prop_assert_eq!(sealed.content_json(), said);
        }
    }
}
