//! `waybill import`: logs of other systems, from the file to what one can look at.

use serde_json::{Value, json};
use waybill_lab::model::Reply;

use crate::{
    cli::{json as printed, text},
    talk::House,
};

const LOGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/logs");

fn log(name: &str) -> String {
    format!("{LOGS}/{name}")
}

async fn house() -> House {
    House::open_with("openai_chat", json!({}), |_| Reply::say("never asked")).await
}

/// Returns the turns of a log, the oldest first.
fn turns(house: &House, log: &str) -> Vec<Value> {
    let label = format!("imported={log}");
    let mut turns = house.shown(&["turn", "list", "--all", "--label", &label, "--json"]).as_array().unwrap().clone();
    turns.sort_by_key(|turn| turn["agent_turn_id"].as_str().unwrap().to_owned());
    turns
}

fn field<'a>(turns: &'a [Value], name: &str) -> Vec<&'a Value> {
    turns.iter().map(|turn| &turn[name]).collect()
}

/// RC-10: each format becomes conversations with their times, whatever the order of the file, and a second import changes nothing.
#[tokio::test]
async fn logs_of_other_systems_are_put_on_record_once() {
    let house = house().await;
    let import = |files: &[&str], n_recorded: u64, n_turns: usize, n_unread: usize| {
        let files: Vec<String> = files.iter().map(|file| log(file)).collect();
        let arguments: Vec<&str> = ["import", "--json"].into_iter().chain(files.iter().map(String::as_str)).collect();
        let done = house.run(&arguments);
        assert_eq!(done.status.success(), n_unread == 0, "{done:?}");
        let said = printed(&done);
        assert_eq!((&said["recorded"], &said["known"]), (&json!(n_recorded), &json!(0)), "{said:#}");
        assert_eq!(said["turns"].as_array().unwrap().len(), n_turns, "{said:#}");
        assert_eq!(said["unread"].as_array().unwrap().len(), n_unread, "{said:#}");
        let again = printed(&house.run(&arguments));
        assert_eq!((&again["recorded"], &again["known"]), (&json!(0), &json!(n_recorded)), "{again:#}");
        said
    };

    let said = import(&["calls.jsonl"], 4, 3, 1);
    assert!(said["unread"][0]["at"].as_str().unwrap().ends_with("calls.jsonl:3"), "{said:#}");
    let found = turns(&house, "calls.jsonl");
    assert_eq!(field(&found, "profile_name"), [&json!("reporter"), &json!("claude-sonnet-5"), &json!("gpt-5-mini")]);
    assert_eq!(field(&found, "n_steps"), [&json!(2), &json!(1), &json!(1)]);
    assert_eq!(found[0]["title"], json!("How warm is it in Lyon?"));
    assert_eq!(found[0]["created_at"], json!("2026-10-01T08:00:00Z"));
    assert_eq!(found[0]["finished_at"], json!("2026-10-01T08:00:03.700Z"));
    assert_eq!(found[2]["title"], json!("Say hi to \"them\""));
    let first = found[0]["agent_turn_id"].as_str().unwrap();
    let seen = house.shown(&["context", "show", first, "--json"]);
    assert_eq!(seen["receipt"]["recorded"]["rests_on"], json!("import"), "{seen:#}");
    assert_eq!(seen["messages"].as_array().unwrap().last().unwrap()["content"], json!("21.5"));
    let shown = house.ok(&["turn", "show", first]);
    assert!(shown.contains("It is 21.5 degrees in Lyon.") && shown.contains("weather"), "{shown}");

    // A question that was asked again departs from the first one, tools that ran at once have both results, and a sub-agent is below who asked for it.
    import(&["claude-code"], 4, 3, 0);
    let found = turns(&house, "5f1c.jsonl");
    assert_eq!(field(&found, "n_steps"), [&json!(2), &json!(1)]);
    assert_eq!(field(&found, "title"), [&json!("Where is the port read?"), &json!("Where is the port read?")]);
    let main = found[0]["agent_turn_id"].as_str().unwrap();
    let seen = house.shown(&["context", "show", main, "--json"]);
    let roles: Vec<&Value> = seen["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, [&json!("user"), &json!("assistant"), &json!("tool"), &json!("tool")], "{seen:#}");
    let sub = turns(&house, "agent-7.jsonl");
    assert_eq!((sub.len(), &sub[0]["parent_agent_turn_id"]), (1, &json!(main)), "{sub:#?}");
    assert_eq!(sub[0]["profile_name"], json!("sub-agent 7"));

    import(&["langfuse.json"], 3, 2, 0);
    let found = turns(&house, "langfuse.json");
    assert_eq!(field(&found, "n_steps"), [&json!(2), &json!(1)]);
    assert_eq!((&found[0]["input_tokens"], &found[0]["microdollars"]), (&json!(100), &json!(1_200)));
    assert_eq!(found[1]["title"], json!("A poem."));

    import(&["helicone.jsonl"], 2, 1, 0);
    let found = turns(&house, "helicone.jsonl");
    assert_eq!((&found[0]["n_steps"], &found[0]["microdollars"]), (&json!(2), &json!(500)));

    let said = house.run(&["import", &log("calls.jsonl"), &log("helicone.jsonl")]);
    let said = text(&said.stdout);
    assert!(said.contains("Imported 0 calls from 2 files") && said.contains("Imported before: 6 calls."), "{said}");
    let missing = house.run(&["import", &log("nothing.jsonl")]);
    assert!(text(&missing.stderr).contains("nothing.jsonl cannot be read"), "{missing:?}");
    let empty = house.run(&["import", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    assert!(!empty.status.success() && text(&empty.stdout).contains("Not read"), "{empty:?}");
}

/// RC-3: what a project withholds is stored neither with the request nor with the answer.
#[tokio::test]
async fn what_a_project_withholds_is_not_stored() {
    let house = house().await;
    let settings = |withhold: Value| {
        let file = std::env::temp_dir().join(format!("waybill-withhold-{}.yaml", std::process::id()));
        std::fs::write(&file, json!({ "settings": { "withhold": withhold } }).to_string()).unwrap();
        let done = house.run(&["apply", "-f", file.to_str().unwrap()]);
        std::fs::remove_file(file).unwrap();
        done
    };
    let refused = settings(json!(["[0-9"]));
    assert!(text(&refused.stderr).contains("`withhold`"), "{refused:?}");
    let refused = settings(json!(["x*"]));
    assert!(text(&refused.stderr).contains("withhold nothing"), "{refused:?}");
    let applied = settings(json!([r"\b\d{2}\.\d\b", "Nice|Lyon"]));
    assert!(applied.status.success(), "{applied:?}");

    house.run(&["import", &log("calls.jsonl"), &log("helicone.jsonl")]);
    let mut seen = String::new();
    for turn in house.shown(&["turn", "list", "--all", "--json"]).as_array().unwrap() {
        let id = turn["agent_turn_id"].as_str().unwrap();
        seen += &house.ok(&["turn", "show", id, "--json"]);
        seen += &house.ok(&["context", "show", id, "--json"]);
        seen += &turn.to_string();
    }
    assert!(seen.contains("How warm is it in") && seen.contains("degrees in withheld"), "{seen}");
    for word in ["Lyon", "Nice", "21.5"] {
        assert!(!seen.contains(word), "{word}: {seen}");
    }
    let found = turns(&house, "helicone.jsonl");
    assert_eq!((found.len(), &found[0]["n_steps"]), (1, &json!(2)), "the conversation is found all the same");

    // Wherever it stands: in pieces of a stream, after a line break, inside arguments, as a number, as a name.
    let stream = ["{\"role\":\"assistant\",\"content\":\"It is 8\"}", "{\"content\":\"7.6 today\"}"]
        .map(|delta| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n"));
    let call =
        json!({ "id": "call_9", "type": "function", "function": { "name": "f", "arguments": "{\"x\":\"a\\n87.6\"}" } });
    let asked = json!([{ "role": "user", "content": "Read\n87.6\nplease" }, { "role": "assistant", "content": null, "tool_calls": [call] }]);
    let whole = json!({ "choices": [{ "index": 0, "message": { "role": "assistant", "content": "So\n87.6" }, "finish_reason": "stop" }] });
    let of = |seed: u64, answer: Value| {
        let request = json!({ "model": "m", "messages": asked, "seed": seed, "temperature": 87.6 });
        json!({ "request": request, "answer": answer, "session": "at 87.6", "agent": "for 87.6" }).to_string()
    };
    let file = std::env::temp_dir().join(format!("waybill-withheld-{}.jsonl", std::process::id()));
    std::fs::write(&file, [of(1, json!(stream.concat())), of(2, whole)].join("\n")).unwrap();
    let done = house.run(&["import", "--json", file.to_str().unwrap()]);
    std::fs::remove_file(file).unwrap();
    assert_eq!(printed(&done)["recorded"], json!(2), "{done:?}");
    let (n_rows, found) = house.t.search("87[.]6|7[.]6 today").await;
    assert!(n_rows > 0 && found.is_empty(), "{found:?}");
    assert!(!house.t.search("nwithheld").await.1.is_empty(), "the rest of the answer is there");
}

/// RC-10: what is odd in a log does not keep the rest of it out.
#[tokio::test]
async fn odd_logs_are_read_as_far_as_they_go() {
    let house = house().await;
    let folder = std::env::temp_dir().join(format!("waybill-odd-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(&folder, folder.join("loop")).unwrap();
    let asks = |n: u64, more: Value| {
        let mut line = json!({ "request": { "model": "m", "messages": [{ "role": "user", "content": format!("Question {n}") }] } });
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line.to_string()
    };
    let mut bytes = "\u{feff}".as_bytes().to_vec();
    for line in [
        asks(1, json!({ "at": 1_790_000_000 })),
        asks(2, json!({ "created_at": "2026-10-01 12:00:00+00" })),
        asks(3, json!({ "provider": "a\u{0}b", "session": "x\ny", "agent": "a".repeat(500) })),
        asks(4, json!({ "at": "yesterday" })),
        asks(5, json!({ "at": "9998-01-01T00:00:00Z" })),
    ] {
        bytes.extend(line.as_bytes());
        bytes.extend(b"\r\n");
    }
    let line = asks(6, json!({}));
    let place = bytes.len() + line.find("Question").unwrap();
    bytes.extend(line.as_bytes());
    bytes[place] = 0xff;
    std::fs::write(folder.join("a.jsonl"), bytes).unwrap();
    std::fs::write(folder.join("b.meta.json"), "{\"kind\":\"none\"}").unwrap();
    std::fs::write(folder.join("c.jsonl"), asks(7, json!({}))).unwrap();
    let done = house.run(&["import", "--json", folder.to_str().unwrap()]);
    std::fs::remove_dir_all(&folder).unwrap();
    let said = printed(&done);
    let unread: Vec<&str> = said["unread"].as_array().unwrap().iter().map(|one| one["at"].as_str().unwrap()).collect();
    assert!(unread.len() == 2 && unread[0].ends_with("a.jsonl:4") && unread[1].ends_with("a.jsonl:5"), "{said:#}");
    assert_eq!((&said["recorded"], &said["files_without_calls"]), (&json!(5), &json!(1)), "{said:#}");
    assert!(!done.status.success());
    let found = turns(&house, "a.jsonl");
    let times: Vec<&str> = found.iter().map(|turn| turn["created_at"].as_str().unwrap()).collect();
    assert!(times.contains(&"2026-09-21T14:13:20Z") && times.contains(&"2026-10-01T12:00:00Z"), "{times:?}");
    assert_eq!(found.len(), 4, "all have their label: {found:#?}");
}

/// One call of a conversation: at which second, what differs from the usual request, how many messages, and how many tokens were read and cached.
fn line(second: i64, differs: &Value, texts: &[&str], input: u64, cached: u64) -> String {
    let at = chrono::DateTime::from_timestamp(1_790_000_000 + second, 0).unwrap();
    let message =
        |(i, text): (usize, &&str)| json!({ "role": if i % 2 == 0 { "user" } else { "assistant" }, "content": text });
    let mut request = json!({
        "model": "claude-sonnet-5", "max_tokens": 100, "system": "Be brief.", "tools": [{ "name": "search", "input_schema": {} }],
        "messages": texts.iter().enumerate().map(message).collect::<Vec<Value>>(),
    });
    for (key, value) in differs.as_object().unwrap() {
        request[key] = value.clone();
    }
    let usage = json!({ "input_tokens": input - cached, "cache_read_input_tokens": cached, "output_tokens": 5 });
    let answer = json!({
        "id": format!("msg_{second}"), "type": "message", "role": "assistant", "model": request["model"], "stop_reason": "end_turn", "usage": usage,
        "content": [{ "type": "text", "text": format!("answer {}", texts.len()) }],
    });
    json!({ "at": at, "took_ms": 1_000, "session": "s", "agent": "clerk", "request": request, "answer": answer })
        .to_string()
}

fn failed(second: i64, differs: &Value, texts: &[&str]) -> String {
    let mut line: Value = serde_json::from_str(&line(second, differs, texts, 0, 0)).unwrap();
    line["status"] = json!(529);
    line["answer"] = json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } });
    line.to_string()
}

/// CX-14: what each call lost of the prompt cache is known, with the first thing that had changed, in tokens and in money.
#[tokio::test]
async fn what_broke_the_prompt_cache_is_known() {
    let house = house().await;
    let said = [
        "q1",
        "answer 1",
        "q2",
        "answer 3",
        "q3",
        "answer 5",
        "q4",
        "answer 7",
        "q5",
        "answer 9",
        "q6",
        "answer 11",
        "q7",
        "answer 13",
        "q8",
    ];
    let none = json!({});
    let cooler = json!({ "temperature": 0.1 });
    let other_tools = json!({ "temperature": 0.1, "tools": [{ "name": "fetch", "input_schema": {} }] });
    let other_system = json!({ "temperature": 0.1, "tools": other_tools["tools"], "system": "Be kind." });
    let mut other_model = other_system.clone();
    other_model["model"] = json!("claude-opus-5");
    let changed: Vec<&str> =
        ["q1", "answer 1", "Q2 is another one"].into_iter().chain(said[3..].iter().copied()).collect();
    let log = [
        line(0, &none, &said[..1], 5_000, 0),
        line(10, &none, &said[..3], 6_000, 4_500),
        line(20, &none, &said[..5], 7_000, 1_000),
        line(1_000, &none, &said[..7], 8_000, 0),
        line(1_010, &cooler, &said[..9], 9_000, 2_000),
        line(1_020, &other_tools, &said[..11], 10_000, 0),
        line(1_030, &other_system, &said[..13], 11_000, 3_000),
        failed(1_035, &other_model, &said),
        line(1_040, &other_model, &said, 12_000, 0),
        line(1_050, &other_model, &changed, 12_000, 2_000),
    ];
    let folder = std::env::temp_dir().join(format!("waybill-misses-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (log_file, prices) = (folder.join("log.jsonl"), folder.join("providers.yaml"));
    std::fs::write(&log_file, log.join("\n")).unwrap();
    let provider = json!({ "provider": {
        "name": "anthropic", "adapter": "anthropic_messages", "base_url": "http://127.0.0.1:1", "prices": {
            "claude-sonnet-5": { "input": 3.0, "cached": 0.3, "output": 15.0 },
        },
    } });
    std::fs::write(&prices, provider.to_string()).unwrap();
    let imported = house.shown(&["import", "--json", log_file.to_str().unwrap()]);
    assert_eq!((&imported["recorded"], imported["turns"].as_array().unwrap().len()), (&json!(10), 2), "{imported:#}");

    let prices = prices.to_str().unwrap();
    let found = house.shown(&["cache-misses", "--json", "--providers", prices]);
    let rows: Vec<(&str, u64, u64, &Value)> = found["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let number = |name: &str| row[name].as_u64().unwrap();
            (row["key"].as_str().unwrap_or("none"), number("n_calls"), number("lost"), &row["microdollars"])
        })
        .collect();
    let money = [json!(24_300), json!(18_900), json!(18_900), json!(16_200), json!(13_500)];
    assert_eq!(
        rows,
        [
            ("model", 1, 11_000, &Value::Null),
            ("message", 1, 10_000, &Value::Null),
            ("tools", 1, 9_000, &money[0]),
            ("idle", 1, 7_000, &money[1]),
            ("system", 1, 7_000, &money[2]),
            ("parameters", 1, 6_000, &money[3]),
            ("provider", 1, 5_000, &money[4]),
            ("none", 2, 0, &Value::Null),
        ],
        "{found:#}"
    );
    let message = found["largest"].as_array().unwrap().iter().find(|miss| miss["why"] == "message").unwrap();
    assert_eq!(message["message"], json!(4), "the system prompt is the first");
    let call =
        |turn: &str, step: &str| format!("{}/{}", message[turn].as_str().unwrap(), message[step].as_str().unwrap());
    let (left, right) = (call("previous_turn_id", "previous_step_id"), call("agent_turn_id", "step_id"));
    let diff = house.shown(&["context", "diff", &left, &right, "--json"]);
    assert_eq!(diff["first_break"]["message"], message["message"], "{diff:#}");

    let by = |by: &str| house.shown(&["cache-misses", "--by", by, "--json"])["rows"].clone();
    let conversations = by("conversation");
    assert_eq!(
        (conversations.as_array().unwrap().len(), &conversations[0]["n_calls"]),
        (1, &json!(9)),
        "{conversations:#}"
    );
    assert_eq!(by("profile")[0]["key"], json!("clerk"));
    assert_eq!(by("model").as_array().unwrap().len(), 2);
    assert_eq!(by("day")[0]["n_misses"], json!(7));
    let text = house.ok(&["cache-misses", "--providers", prices]);
    assert!(
        text.contains("message 4 changed") && text.contains("16 minutes later") && text.contains("$0.024300"),
        "{text}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}
