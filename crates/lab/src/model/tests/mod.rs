mod client;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use self::client::{Client, Got};
use super::{Asked, Fault, Format, Pace, Reply, Rules, Server, fault::GARBAGE};

const FORMATS: [(Format, &str); 3] = [
    (Format::OpenaiChat, "/chat/completions"),
    (Format::OpenaiResponses, "/responses"),
    (Format::AnthropicMessages, "/messages"),
];

async fn ask(path: &str, stream: bool, reply: Reply) -> Got {
    let server = Server::start(move |_: &Asked| reply.clone()).await.unwrap();
    Client::connect(&server).await.ask(path, stream).await
}

fn long_reply() -> Reply {
    Reply::say("Grüße, 世界!")
        .with_reasoning("höm, 思")
        .and_call("add", &json!({"a": 17, "b": "ünf"}))
        .and_call("look", &json!({"at": ["x", "y"]}))
        .with_usage(100, 60, 9)
}

/// Returns what a client reads from the deltas: reasoning, text, and `name(arguments)` of each call.
fn reassembled(format: Format, events: &[Value]) -> Vec<String> {
    let mut heard = vec![String::new(), String::new()];
    let mut hear = |at: usize, text: &Value| {
        heard.resize(heard.len().max(at + 1), String::new());
        heard[at] += text.as_str().unwrap_or_default();
    };
    for event in events {
        let (delta, index) = (&event["delta"], event["output_index"].as_u64().or(event["index"].as_u64()).unwrap_or(0));
        match (format, event["type"].as_str().unwrap_or_default()) {
            (Format::OpenaiChat, _) => {
                let delta = &event["choices"][0]["delta"];
                hear(0, &delta["reasoning_content"]);
                hear(1, &delta["content"]);
                if let Some(call) = delta["tool_calls"].get(0) {
                    let at = 2 + call["index"].as_u64().unwrap() as usize;
                    hear(at, &call["function"]["name"]);
                    hear(at, &call["function"]["arguments"]);
                }
            }
            (_, "response.output_item.added") => hear(index as usize, &event["item"]["name"]),
            (Format::OpenaiResponses, kind) if kind.ends_with(".delta") => hear(index as usize, delta),
            (_, "content_block_start") => hear(index as usize, &event["content_block"]["name"]),
            (_, "content_block_delta") => {
                ["thinking", "text", "partial_json"].iter().for_each(|key| hear(index as usize, &delta[key]));
            }
            _ => {}
        }
    }
    heard
}

#[tokio::test]
async fn each_format_streams_reasoning_text_and_parallel_calls() {
    for (format, path) in FORMATS {
        let got = ask(path, true, long_reply()).await;
        let events = got.events();
        let said = ["höm, 思", "Grüße, 世界!", r#"add{"a":17,"b":"ünf"}"#, r#"look{"at":["x","y"]}"#];
        assert_eq!(reassembled(format, &events), said, "{format:?}");
        let end = &events[events.len() - 2..];
        let (finish, cached) = match format {
            Format::OpenaiChat => {
                assert!(got.body.ends_with("data: [DONE]\n\n"));
                (&end[0]["choices"][0]["finish_reason"], &end[1]["usage"]["prompt_tokens_details"]["cached_tokens"])
            }
            Format::OpenaiResponses => {
                assert!(events.iter().enumerate().all(|(n, event)| event["sequence_number"] == n));
                assert_eq!(end[1]["response"]["output"].as_array().unwrap().len(), 4);
                (&end[1]["type"], &end[1]["response"]["usage"]["input_tokens_details"]["cached_tokens"])
            }
            Format::AnthropicMessages => {
                assert_eq!(events[0]["message"]["usage"]["input_tokens"], 40, "without what was cached");
                (&end[0]["delta"]["stop_reason"], &events[0]["message"]["usage"]["cache_read_input_tokens"])
            }
        };
        assert!(["tool_calls", "response.completed", "tool_use"].contains(&finish.as_str().unwrap()), "{finish}");
        assert_eq!(cached, 60, "{format:?}");
    }
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_is_one_body() {
    for ((_, path), (text, call, finish)) in FORMATS.into_iter().zip([
        ("/choices/0/message/content", "/choices/0/message/tool_calls/1/function/name", "/choices/0/finish_reason"),
        ("/output/1/content/0/text", "/output/3/name", "/incomplete_details/reason"),
        ("/content/1/text", "/content/3/name", "/stop_reason"),
    ]) {
        let got = ask(path, false, Reply { cut_at_limit: true, ..long_reply() }).await;
        let body: Value = serde_json::from_str(&got.body).unwrap();
        assert_eq!(body.pointer(text).unwrap(), "Grüße, 世界!");
        assert_eq!(body.pointer(call).unwrap(), "look");
        let finish = body.pointer(finish).unwrap().as_str().unwrap();
        assert!(["length", "max_output_tokens", "max_tokens"].contains(&finish), "{finish}");
    }
}

#[tokio::test]
async fn chunks_of_any_size_carry_the_same_bytes_on_one_connection() {
    let sizes = [0, 1, 7, 100_000];
    let script = move |asked: &Asked| long_reply().paced(Pace { chunk: sizes[asked.n % 4], ..Pace::default() });
    let server = Server::start(script).await.unwrap();
    let mut client = Client::connect(&server).await;
    for stream in [true, false] {
        let mut bodies = Vec::new();
        for _ in sizes {
            let got = client.ask("/messages", stream).await;
            assert!(got.is_whole);
            let id = got.body.split_once("\"msg_").unwrap().1.split('"').next().unwrap();
            bodies.push(got.body.replace(id, "ID"));
        }
        assert!(bodies.iter().all(|body| *body == bodies[0]));
    }
    assert_eq!(server.n_asked(), 8);
    assert!(server.ledger().iter().all(|entry| entry.answered_at.is_some()));
}

#[tokio::test]
async fn an_error_is_said_in_the_words_of_its_provider() {
    for ((_, path), (busy, failed)) in FORMATS.into_iter().zip([
        ("\"code\":\"rate_limit_exceeded\"", "data: {\"error\":"),
        ("\"code\":\"rate_limit_exceeded\"", "event: response.failed\n"),
        ("\"type\":\"rate_limit_error\"", "event: error\n"),
    ]) {
        let fault = Fault::Status { code: 429, retry_after: Some(3), message: "slow down".into() };
        let got = ask(path, true, long_reply().with_fault(fault)).await;
        assert_eq!(got.code, 429);
        assert!(got.head.contains("\r\nretry-after: 3\r\n"));
        assert!(got.body.contains(busy) && got.body.contains("slow down"), "{}", got.body);

        let fault = Fault::ErrorInStream { after_events: 3, message: "overheated".into() };
        let got = ask(path, true, long_reply().with_fault(fault.clone())).await;
        assert!(got.is_whole && got.body.contains(failed) && got.body.contains("overheated"), "{}", got.body);
        assert_eq!(got.events().len(), 4);
        assert_eq!(ask(path, false, long_reply().with_fault(fault)).await.code, 500);
    }
}

#[tokio::test]
async fn an_answer_breaks_where_it_is_told_to() {
    for (_, path) in FORMATS {
        let cut = long_reply().with_fault(Fault::CutOff { after_events: 3 });
        let got = ask(path, true, cut.clone()).await;
        assert!(!got.is_whole);
        assert_eq!(got.events().len(), 3);
        assert!(!ask(path, false, cut).await.is_whole);

        let garbled = long_reply().with_fault(Fault::NotJson { after_events: 1 });
        let got = ask(path, true, garbled.clone()).await;
        assert!(got.is_whole);
        assert_eq!(got.body.split("\n\n").nth(1).unwrap(), GARBAGE.trim_end());
        assert!(serde_json::from_str::<Value>(&ask(path, false, garbled).await.body).is_err());
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_is_noted() {
    let hour = Duration::from_secs(3600);
    for reply in [
        long_reply().paced(Pace { before: hour, ..Pace::default() }),
        long_reply().paced(Pace { between: hour, ..Pace::default() }),
        long_reply().with_fault(Fault::HalfOpen { after_events: 2 }),
    ] {
        let has_begun = reply.pace.before.is_zero();
        let server = Server::start(move |_: &Asked| reply.clone()).await.unwrap();
        let mut client = Client::connect(&server).await;
        client.send("/responses", "key", &json!({"stream": true})).await;
        server.until(|ledger| ledger.len() == 1).await;
        if has_begun {
            client.0.read_line(&mut String::new()).await.unwrap();
        }
        assert!(!server.ledger()[0].hung_up);
        drop(client);
        server.until(|ledger| ledger[0].hung_up).await;
        assert!(server.ledger()[0].answered_at.is_none());
    }
}

#[tokio::test]
async fn only_a_key_that_was_answered_whole_is_a_repeat() {
    let script =
        |asked: &Asked| Reply { fault: (asked.n == 0).then_some(Fault::CutOff { after_events: 1 }), ..long_reply() };
    let server = Server::start(script).await.unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (asked, answered) = (heard.clone(), heard.clone());
    server.on_asked(move |entry| asked.lock().unwrap().push(format!("asked {}", entry.n)));
    server.on_answered(move |entry| answered.lock().unwrap().push(format!("answered {}", entry.n)));
    for repeats in [0, 0, 1, 2] {
        Client::connect(&server).await.ask("/chat/completions", true).await;
        assert_eq!(server.repeats(), repeats);
    }
    server.until(|ledger| ledger.len() == 4).await;
    drop(server);
    assert_eq!(heard.lock().unwrap()[..4], ["asked 0", "asked 1", "answered 1", "asked 2"]);
}

#[tokio::test]
async fn a_conversation_reads_alike_in_every_format() {
    let bodies = [
        json!({"tools": [{"type": "function", "function": {"name": "add"}}], "messages": [
            {"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "1+1?"}]},
            {"role": "assistant", "content": "hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"}]}),
        json!({"tools": [{"type": "function", "name": "add"}], "instructions": "be brief", "input": [
            {"role": "user", "content": "1+1?"}, {"type": "reasoning", "id": "r", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"a\":1}"},
            {"type": "function_call_output", "call_id": "c1", "output": "2"}]}),
        json!({"tools": [{"name": "add"}], "system": [{"type": "text", "text": "be brief"}], "messages": [
            {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "…", "signature": ""}, {"type": "text", "text": "hm"},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]}]}),
    ];
    let read = Arc::new(Mutex::new(Vec::new()));
    let reading = read.clone();
    let script = move |asked: &Asked| {
        assert_eq!((asked.tools.join(" ").as_str(), asked.results().count(), asked.last()), ("add", 1, "2"));
        reading.lock().unwrap().push(asked.messages.clone());
        Reply::say("two")
    };
    let server = Server::start(script).await.unwrap();
    let mut client = Client::connect(&server).await;
    for ((_, path), body) in FORMATS.iter().zip(&bodies) {
        client.send(path, "key", body).await;
        assert_eq!(client.receive().await.code, 200);
    }
    let read = read.lock().unwrap();
    assert_eq!(read[0].len(), 4);
    assert_eq!(read[0], read[1]);
    assert_eq!(read[0], read[2]);
}

#[tokio::test]
async fn the_first_rule_that_fits_answers() {
    let rules = json!([
        {"contains": "hello", "times": 1, "reply": {"text": "first"}},
        {"model": "other", "reply": {"text": "never"}},
        {"n_results": 0, "n_asked": 1, "reply": {
            "calls": [{"name": "f", "arguments": {"x": 1}}], "usage": {"n_input": 5}, "pace": {"chunk": 7, "before_ms": 1}}},
        {"n_asked": 2, "reply": {"fault": {"status": {"code": 503, "message": "later"}}}},
    ]);
    let server = Server::start(serde_json::from_value::<Rules>(rules).unwrap()).await.unwrap();
    let mut client = Client::connect(&server).await;
    for (code, part) in
        [(200, "first"), (200, r#"{\"x\":1}"#), (503, "later"), (400, "no rule for request 3: model \\\"m\\\"")]
    {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
        client.send("/chat/completions", "key", &body).await;
        let got = client.receive().await;
        assert_eq!(got.code, code);
        assert!(got.body.contains(part), "{}", got.body);
    }
    client.0.write_all(b"GET /ledger HTTP/1.1\r\n\r\n").await.unwrap();
    let ledger: Value = serde_json::from_str(&client.receive().await.body).unwrap();
    assert_eq!(
        (&ledger["n_asked"], &ledger["repeats"], &ledger["entries"][3]["hung_up"]),
        (&json!(4), &json!(3), &json!(false))
    );
    assert!(serde_json::from_value::<Rules>(json!([{"reply": {"txt": "unknown"}}])).is_err());
}
