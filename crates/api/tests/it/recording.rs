//! The recorder: calls of agents elsewhere, forwarded and put on record.

use std::{io::Write, time::Duration};

use flate2::{Compression, write::GzEncoder};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::time::sleep;
use waybill_api::Config;
use waybill_core::{
    card::{CardType, Content, Draft, NewCard, Role},
    key::Scope,
};
use waybill_kernel::record::{self, Mark, RecordedCall};
use waybill_lab::model::{Asked, Fault, Pace, Reply, Server};
use waybill_testkit::recorded_call;
use waybill_tool::secret::Secrets;
use waybill_worker::model::{Models, Provider};

use crate::{House, bodies::Dice};

/// A house with a recorder in front of a model that repeats what it is told.
struct Studio {
    house: House,
    model: Server,
    key: String,
}

impl Studio {
    async fn open() -> Studio {
        Studio::with(|asked| Reply::say(format!("You said: {}", asked.last())).with_usage(10, 4, 2)).await
    }

    async fn with(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Studio {
        let model = Server::start(script).await.unwrap();
        let provider = |name: &str| Provider::recorded(name.parse().unwrap(), model.url());
        let models = Models::new(vec![provider("openai"), provider("anthropic")], Secrets::default());
        let house = House::open_with(Config { models, may_replay: true, ..Config::default() }).await;
        let key = house.key("recorder", Scope::Recorder).await;
        Studio { house, model, key }
    }

    /// Makes a request through the recorder.
    fn request(&self, path: &str, body: String) -> RequestBuilder {
        let url = format!("{}/record/acme/{path}", self.house.base);
        let request = self.house.http.post(url).header("x-waybill-key", &self.key);
        request.header("content-type", "application/json").header("authorization", "Bearer sk-client").body(body)
    }

    /// Sends messages of a chat, and returns what the model says.
    async fn chat(&self, messages: &[Value]) -> String {
        let body = json!({ "model": "m", "messages": messages }).to_string();
        let answer = self.request("openai/v1/chat/completions", body).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let answer: Value = answer.json().await.unwrap();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }

    /// Waits until this many calls are on record, and returns their turns, the oldest first.
    async fn recorded(&self, n_calls: u64) -> Vec<Value> {
        for _ in 0..200 {
            let mut turns = self.house.get("/turns?status=recorded").await["items"].as_array().unwrap().clone();
            if turns.iter().map(|turn| turn["n_steps"].as_u64().unwrap()).sum::<u64>() >= n_calls {
                turns.reverse();
                return turns;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("{n_calls} calls are not on record");
    }

    /// Returns the request of the first call of a turn, as the record gives it.
    async fn rendered(&self, turn: &str) -> String {
        let url = format!("{}/v1/projects/acme/turns/{turn}/context/request", self.house.base);
        let answer = self.house.http.get(url).bearer_auth(&self.house.admin).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        answer.text().await.unwrap()
    }

    /// Waits until a session is on record, and returns the id of its turn.
    async fn turn_of(&self, session: &str) -> String {
        for _ in 0..200 {
            let turns = self.house.get(&format!("/turns?label=session%3D{session}")).await;
            if let Some(turn) = turns["items"][0]["agent_turn_id"].as_str() {
                return turn.to_owned();
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("session {session} is not on record");
    }
}

fn said(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// RC-4, RC-5: a conversation is one turn, one that is changed departs from it, and each call gives the bytes that were sent.
#[tokio::test]
async fn conversations_are_chained_and_verify() {
    let studio = Studio::open().await;
    let mut messages = vec![said("system", "Be brief."), said("user", "Hello Zürich")];
    for n in 0..3 {
        let answer = studio.chat(&messages).await;
        studio.recorded(n + 1).await;
        messages.extend([said("assistant", &answer), said("user", &format!("More {n} \u{241b}"))]);
    }
    let turns = studio.recorded(3).await;
    assert_eq!((turns.len(), &turns[0]["n_steps"]), (1, &json!(3)), "{turns:#?}");
    assert_eq!((&turns[0]["title"], &turns[0]["profile_name"]), (&json!("Hello Zürich"), &json!("m")));
    assert_eq!(turns[0]["external"], json!(true));
    let turn = turns[0]["agent_turn_id"].as_str().unwrap();

    // An earlier message is changed: what is before it is shared.
    messages[3] = said("user", "Something else");
    studio.chat(&messages).await;
    let turns = studio.recorded(4).await;
    assert_eq!((turns.len(), &turns[1]["forked_from"]), (2, &json!(turn)));
    // The same request again is another turn of its own, unless the call had failed.
    studio.chat(&messages).await;
    let turns = studio.recorded(5).await;
    assert_eq!((turns.len(), &turns[2]["forked_from"]), (3, &Value::Null));

    for turn in &turns {
        let path = format!("/turns/{}/context", turn["agent_turn_id"].as_str().unwrap());
        let verified = studio.house.post(&format!("{path}/verify"), json!({})).await;
        for call in verified["items"].as_array().unwrap() {
            assert_eq!((&call["request"], &call["cards"]), (&json!("ok"), &json!("ok")), "{call:#}");
        }
        let seen = studio.house.get(&path).await;
        let shown = seen["messages"].as_array().unwrap();
        assert_eq!((&shown[0]["content"], &shown[0]["role"]), (&json!("Be brief."), &json!("system")));
        assert_eq!(seen["receipt"]["recorded"]["rests_on"], json!("bytes"));
    }
    // Nobody can claim a recorded turn, and the database says that all is in order.
    let broken = waybill_kernel::invariant::of_project(&studio.house.kernel, studio.house.t.project_id).await.unwrap();
    assert!(broken.is_empty(), "{broken:?}");
}

/// RC-4: a body that no client should write goes through unchanged, compressed or not, and what is on record gives its bytes. `WAYBILL_CASES=20000` is the
/// long run, of each format.
#[tokio::test]
async fn random_bodies_are_recorded_byte_for_byte() {
    const PATHS: [&str; 3] = ["openai/v1/chat/completions", "openai/v1/responses", "anthropic/v1/messages"];
    const AT_ONCE: u32 = 20;
    let n_cases: u32 = std::env::var("WAYBILL_CASES").map_or(20, |n| n.parse().unwrap());
    let studio = Studio::open().await;
    let mut checked = 0;
    for first in (0..n_cases).step_by(AT_ONCE as usize) {
        let sent: Vec<(usize, u32, String)> = (0..PATHS.len())
            .flat_map(|path| (first..n_cases.min(first + AT_ONCE)).map(move |seed| (path, seed)))
            .map(|(path, seed)| {
                let mut body = Dice::new(seed).body();
                if seed == 13 {
                    body += &" ".repeat(8_000_000);
                }
                (path, seed, body)
            })
            .collect();
        for (path, seed, body) in &sent {
            let request =
                studio.request(PATHS[*path], body.clone()).header("x-waybill-session", format!("{path}-{seed}"));
            let request = match seed % 3 {
                0 => request.header("content-encoding", "gzip").body(packed(body)),
                _ => request,
            };
            request.send().await.unwrap();
        }
        for (path, seed, body) in sent {
            let turn = studio.turn_of(&format!("{path}-{seed}")).await;
            let rendered = studio.rendered(&turn).await;
            assert!(rendered == body, "{}, seed {seed}: {rendered} instead of {body}", PATHS[path]);
            checked += 1;
        }
    }
    assert_eq!(checked, 3 * n_cases);
}

fn packed(body: &str) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(body.as_bytes()).unwrap();
    packer.finish().unwrap()
}

/// RC-1: a stream passes piece by piece, an error as it is, and what is no model call is not recorded.
#[tokio::test]
async fn what_passes_is_not_changed() {
    let studio = Studio::open().await;
    let body = json!({ "model": "m", "stream": true, "stream_options": { "include_usage": true }, "messages": [said("user", "Hi")] }).to_string();
    let direct = studio.house.http.post(format!("{}/chat/completions", studio.model.url())).body(body.clone());
    let direct = direct.send().await.unwrap().text().await.unwrap();
    let through = studio.request("openai/chat/completions", body).send().await.unwrap();
    assert!(through.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let through = through.text().await.unwrap();
    assert_eq!(direct.matches("data:").count(), through.matches("data:").count());
    let turns = studio.recorded(1).await;
    assert_eq!((&turns[0]["input_tokens"], &turns[0]["output_tokens"]), (&json!(10), &json!(2)));

    let missing = studio.request("openai/v1/nothing", "{}".into()).send().await.unwrap();
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    let garbage = studio.request("openai/v1/chat/completions", "{\"messages\": [".into()).send().await.unwrap();
    assert!(garbage.status().is_client_error());
    assert_eq!(studio.recorded(1).await.len(), 1);
}

/// RC-1: an offer to speak HTTP/2 is passed over; a WebSocket is refused.
#[tokio::test]
async fn only_websockets_are_refused() {
    let studio = Studio::open().await;
    let body = json!({ "model": "m", "messages": [said("user", "Hi")] }).to_string();
    let request = |upgrade: &str| {
        let request = studio.request("openai/v1/chat/completions", body.clone()).header("upgrade", upgrade);
        request.header("connection", "Upgrade, HTTP2-Settings").header("http2-settings", "AAMAAABk")
    };
    assert_eq!(request("h2c").send().await.unwrap().status(), StatusCode::OK);
    assert_eq!(request("websocket").send().await.unwrap().status(), StatusCode::NOT_IMPLEMENTED);
}

/// RC-2: a call is on record also if its client does not wait for the answer.
#[tokio::test]
async fn a_call_whose_client_gives_up_is_recorded() {
    let slow = Pace { before: Duration::from_secs(60), ..Pace::default() };
    let studio = Studio::with(move |_| Reply::say("late").paced(slow)).await;
    let body = json!({ "model": "m", "messages": [said("user", "Hi")] }).to_string();
    let request = studio.request("openai/v1/chat/completions", body).send();
    tokio::select! {
        answer = request => panic!("{answer:?}"),
        () = studio.model.until(|asked| !asked.is_empty()) => {}
    }
    let turns = studio.recorded(1).await;
    assert_eq!((turns.len(), &turns[0]["title"]), (1, &json!("Hi")));
}

/// RC-5: where the first message is another one each time, such as with a clock in it, the last answer says what a request goes on from.
#[tokio::test]
async fn a_clock_in_the_first_message_does_not_hide_the_conversation() {
    let studio = Studio::open().await;
    let mut messages = vec![said("system", "It is 10:00."), said("user", "Tell me how warm it is in Zürich today.")];
    let answer = studio.chat(&messages).await;
    studio.recorded(1).await;
    messages[0] = said("system", "It is 10:01.");
    messages.extend([said("assistant", &answer), said("user", "And tomorrow?")]);
    studio.chat(&messages).await;
    let turns = studio.recorded(2).await;
    assert_eq!((turns.len(), &turns[1]["forked_from"]), (2, &turns[0]["agent_turn_id"]), "{turns:#?}");
}

fn answer_card() -> NewCard {
    let content = Content::Json(json!({ "status": 200 }));
    Draft::new(CardType::wire_answer(), Role::Assistant, content).seal().unwrap()
}

/// RC-5: of conversations that are the same so far, a request goes on with the one whose answer it has, and what was written is found again.
#[tokio::test]
async fn a_request_goes_on_with_the_conversation_whose_answer_it_has() {
    let house = House::open().await;
    let mut work = house.kernel.begin(house.t.project_id).await.unwrap();
    let mut turns = Vec::new();
    for answer in [Some(3), Some(4)] {
        let (recording, call) = recorded_call(answer);
        let message = Draft::instruction("Hello").seal().unwrap();
        assert!(!record::is_written(&mut work, call.agent_turn_id, call.step_id).await.unwrap());
        assert!(record::begin(&mut work, &recording).await.unwrap());
        assert!(record::write(&mut work, &call, &[message], Some(&answer_card())).await.unwrap());
        assert!(record::is_written(&mut work, call.agent_turn_id, call.step_id).await.unwrap());
        assert!(!record::begin(&mut work, &recording).await.unwrap(), "it had begun");
        turns.push(call.agent_turn_id);
    }
    let mark = |n: u8| Mark::from_bytes([n; 16]);
    let mut goes_on = async |tail: u8, follows: Option<u8>| {
        let found = record::to_extend(&mut work, &[(mark(tail), follows.map(mark))], None).await.unwrap();
        found.map(|found| found.agent_turn_id)
    };
    assert_eq!(goes_on(2, Some(3)).await, Some(turns[0]));
    assert_eq!(goes_on(2, Some(4)).await, Some(turns[1]));
    assert_eq!(goes_on(2, Some(9)).await, Some(turns[1]), "else with the newest");
    assert_eq!(goes_on(2, None).await, None, "both were answered");
    assert_eq!(goes_on(3, Some(3)).await, None);
    let (recording, failed) = recorded_call(None);
    let failed = RecordedCall { tail: mark(5), ..failed };
    assert!(record::begin(&mut work, &recording).await.unwrap());
    assert!(record::write(&mut work, &failed, &[], Some(&answer_card())).await.unwrap());
    let found = record::to_extend(&mut work, &[(mark(5), None)], None).await.unwrap();
    assert_eq!(found.map(|found| found.agent_turn_id), Some(failed.agent_turn_id), "that call had failed");
    work.commit().await.unwrap();
}

/// RC-9: a sub-agent stands below the agent that asked for it, if the client says so or a tool call said what it begins with; and in no other session.
#[tokio::test]
async fn sub_agents_stand_below_the_agent_that_asked_for_them() {
    let task = "Find out how warm it is in Zürich, Oslo and Quito today.";
    let studio = Studio::with(move |asked| match asked.last() {
        "Plan it" => Reply::call("delegate", &json!({ "to": "helper", "task": { "text": format!(" {task}\n") } })),
        _ => Reply::say("Done."),
    })
    .await;
    let ask = async |says: &str, headers: &[(&'static str, &str)]| {
        let body = json!({ "model": "m", "messages": [said("system", says), said("user", says)] }).to_string();
        let request = studio.request("openai/v1/chat/completions", body);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        assert_eq!(request.send().await.unwrap().status(), StatusCode::OK);
    };
    ask("Plan it", &[("x-waybill-agent", "planner")]).await;
    studio.recorded(1).await;
    ask(task, &[("x-waybill-agent", "helper")]).await;
    ask(task, &[("x-waybill-session", "other")]).await;
    ask("Short", &[("x-waybill-agent", "scribe"), ("x-waybill-parent", "planner")]).await;
    ask("Something that no other agent has ever asked for, at length", &[]).await;
    let turns = studio.recorded(5).await;
    let planner = turns.iter().find(|turn| turn["profile_name"] == "planner").unwrap();
    let found: Vec<(&Value, &Value, &Value)> =
        turns.iter().map(|turn| (&turn["title"], &turn["parent_agent_turn_id"], &turn["labels"]["parent"])).collect();
    let of = |title: &str, n: usize| *found.iter().filter(|(found, ..)| *found == title).nth(n).unwrap();
    let id = &planner["agent_turn_id"];
    let helper = [of(task, 0), of(task, 1)];
    assert!(helper.iter().any(|(_, parent, how)| *parent == id && **how == json!("inferred")), "{found:#?}");
    assert!(helper.iter().any(|(_, parent, how)| parent.is_null() && how.is_null()), "{found:#?}");
    assert_eq!(of("Short", 0), (&json!("Short"), id, &json!("said by the client")));
    assert!(found.iter().filter(|(_, parent, _)| !parent.is_null()).count() == 2, "{found:#?}");
    let broken = waybill_kernel::invariant::of_project(&studio.house.kernel, studio.house.t.project_id).await.unwrap();
    assert!(broken.is_empty(), "{broken:?}");
}

/// RC-8: the n-th same request of a run gets the n-th recorded answer, as it was, and the provider is not asked.
#[tokio::test]
async fn a_run_is_replayed_answer_by_answer() {
    let studio = Studio::with(|asked| {
        let reply = Reply::say(format!("answer {} to {}", asked.n, asked.last()));
        match asked.last() {
            "fail" => reply.with_fault(Fault::Status { code: 429, retry_after: None, message: "slow down".to_owned() }),
            _ => reply,
        }
    })
    .await;
    let body = |says: &str, stream: bool| {
        json!({ "model": "m", "stream": stream, "messages": [said("system", "Be brief."), said("user", says)] })
            .to_string()
    };
    let ask = async |body: String, replay: Option<&str>| {
        let mut request = studio.request("openai/v1/chat/completions", body);
        if let Some(replay) = replay {
            request = request.header("x-waybill-replay", replay);
        }
        let answer = request.send().await.unwrap();
        let replayed = answer.headers().contains_key("x-waybill-replayed");
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        (answer.status().as_u16(), replayed, kind, answer.text().await.unwrap())
    };
    let bodies =
        [body("Hi", false), body("Hi", false), body("Hi", true), body("fail", false), body("Ho \u{241b}", true)];
    let mut recorded = Vec::new();
    for (n, body) in bodies.iter().enumerate() {
        recorded.push(ask(body.clone(), None).await);
        studio.recorded(n as u64 + 1).await;
    }
    assert_eq!(recorded[3].0, 429);
    let n_before = studio.model.n_asked();
    for run in ["strict; run=1", "strict; run=2", "new; run=3", "strict; in_time; run=4"] {
        for (body, recorded) in bodies.iter().zip(&recorded) {
            let (status, replayed, kind, text) = ask(body.clone(), Some(run)).await;
            assert_eq!((status, &kind, &text), (recorded.0, &recorded.2, &recorded.3), "{run}");
            assert!(replayed && !recorded.1);
        }
    }
    // The same once more, something else, and other bytes of the same.
    let refused = async |body: String| {
        let (status, _, _, text) = ask(body, Some("strict; run=1")).await;
        let problem: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &problem["code"]), (404, &json!("not_recorded")));
        // Where clients of models look for it.
        assert_eq!(problem["detail"], problem["error"]["message"]);
        problem["detail"].as_str().unwrap().to_owned()
    };
    let more = refused(bodies[0].clone()).await;
    assert!(more.contains("has had every recorded answer"), "{more}");
    let other = refused(body("Hi there", false)).await;
    assert!(other.contains(r#"in `messages[1].content`: "Hi" was recorded, and now it is "Hi there""#), "{other}");
    let spaced = refused(bodies[0].replacen(':', ": ", 1)).await;
    assert!(spaced.contains("only in spaces"), "{spaced}");
    let unknown =
        studio.request("openai/v1/nothing", String::new()).header("x-waybill-replay", "strict; run=9").send().await;
    assert_eq!(unknown.unwrap().status(), StatusCode::NOT_FOUND);
    // Another session has recorded nothing.
    let request = studio.request("openai/v1/chat/completions", bodies[0].clone());
    let request = request.header("x-waybill-replay", "strict; run=9").header("x-waybill-session", "mine");
    assert_eq!(request.send().await.unwrap().status(), StatusCode::NOT_FOUND);
    assert_eq!(studio.model.n_asked(), n_before, "the provider was not asked");

    // What is new is asked for, and then it is on record too.
    assert!(!ask(body("New", false), Some("new; run=5")).await.1);
    studio.recorded(bodies.len() as u64 + 1).await;
    assert!(ask(body("New", false), Some("new; run=6")).await.1);
    assert_eq!(studio.recorded(bodies.len() as u64 + 1).await.len(), studio.recorded(0).await.len());
}

/// RC-7: a key of the recorder can do nothing else, and no other key can record.
#[tokio::test]
async fn a_recorder_records_and_nothing_else() {
    let Studio { house, key, model: _model } = Studio::open().await;
    for path in ["/turns", "/agents", "/audit", "/now"] {
        let refused = house.refused(Method::GET, path, Some(&key), None).await;
        assert_eq!(refused, (403, "forbidden".to_owned()), "{path}");
    }
    let reader = house.key("reader", Scope::Reader).await;
    let post = async |place: &str, key: Option<&str>| {
        let mut request = house.http.post(format!("{}/record/{place}/v1/chat/completions", house.base)).body("{}");
        if let Some(key) = key {
            request = request.header("x-waybill-key", key);
        }
        let answer = request.send().await.unwrap();
        (
            answer.status().as_u16(),
            answer.json::<Value>().await.unwrap()["code"].as_str().unwrap_or_default().to_owned(),
        )
    };
    assert_eq!(post("acme/openai", Some(&reader)).await, (403, "forbidden".to_owned()));
    assert_eq!(post("acme/openai", None).await, (401, "unauthorized".to_owned()));
    assert_eq!(post("acme/openai", Some("wb_test_x")).await, (401, "unauthorized".to_owned()));
    assert_eq!(post("other/openai", Some(&key)).await, (404, "not_found".to_owned()));
    assert_eq!(post("acme/elsewhere", Some(&key)).await, (404, "not_found".to_owned()));
    // In the URL it stands in place of the project.
    let (status, _) = post(&format!("{key}/openai"), None).await;
    assert_eq!(status, 200);
}

/// RC-3: no credential of a client is anywhere in the database, also if the provider repeats everything that it was sent.
#[tokio::test]
async fn no_credential_is_stored() {
    let studio = Studio::with(|asked| Reply::say(format!("{:?} {}", asked.headers, asked.body))).await;
    let n = 25;
    for n in 0..n {
        let canary = |place: &str| format!("canary{n}{place}");
        let (mcp, header) = (canary("authorization"), canary("header"));
        let tool = json!({
            "type": "mcp", "server_label": "l", "server_url": format!("https://u:{}@example.com/?api_key={}", canary("userinfo"), canary("parameter")),
            "authorization": mcp, "headers": { "X-Key": header },
        });
        let responses = json!({ "model": "m", "input": [said("user", &format!("say {n}"))], "tools": [tool] });
        let servers = json!([{ "type": "url", "name": "s", "url": "https://example.com", "authorization_token": canary("token") }]);
        let messages = json!({ "model": "m", "max_tokens": 9, "messages": [said("user", &format!("say {n}"))], "mcp_servers": servers });
        for (path, body) in [("openai/v1/responses", responses), ("anthropic/v1/messages", messages)] {
            let query = format!("{path}?key={}&beta=true", canary("query"));
            let request = studio.request(&query, body.to_string()).header("x-api-key", canary("key"));
            let request = request.header("cookie", format!("session={}", canary("cookie")));
            let answer = request.header("api-key", canary("azure")).send().await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK, "{path}: {}", answer.text().await.unwrap());
        }
    }
    let turns = studio.recorded(2 * n).await;
    let (n_rows, found) = studio.house.t.search("canary|sk-client").await;
    assert!(found.is_empty(), "{found:?}");
    assert!(n_rows > 200, "the search looks at something");
    // The receipt says what it does not have, and claims no rendering.
    let receipts = studio.house.get(&format!("/turns/{}/receipts", turns[0]["agent_turn_id"].as_str().unwrap())).await;
    let withheld = receipts[0]["receipt"]["recorded"]["withheld"].as_array().unwrap();
    assert!(withheld.contains(&json!("tools[0].authorization")), "{withheld:?}");
    assert!(withheld.contains(&json!("tools[0].headers.X-Key")), "{withheld:?}");
}
