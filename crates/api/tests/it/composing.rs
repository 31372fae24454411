//! WK-9: a worker that has nothing but HTTP and a model. The server composes what it sends, and takes what the model answered.

use std::time::Duration;

use reqwest::{Method, StatusCode, header::CONTENT_TYPE};
use serde_json::{Value, json};
use waybill_api::Config;
use waybill_core::{
    id::{CardId, TurnId},
    key::{Bounds, Scope},
};
use waybill_kernel::{sweep, turn};
use waybill_lab::model::{Asked, Reply, Server};
use waybill_orchestrator::replay;
use waybill_tool::secret::Secrets;
use waybill_worker::model::{Models, Provider};

use crate::{House, bulk::Shelf, profile};

const ADAPTERS: [(&str, &str); 3] =
    [("openai_chat", "chat/completions"), ("openai_responses", "responses"), ("anthropic_messages", "messages")];

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// A house, and a model that looks at the plans, then adds, then answers.
struct Office {
    house: House,
    key: String,
    server: Server,
}

impl Office {
    async fn open() -> Office {
        let script = |asked: &Asked| {
            let reply = match asked.messages.iter().filter(|said| said.result_of.is_some()).count() {
                0 => Reply::say("Let me look.").and_call("read_plan", &json!({})),
                1 => Reply::call("add", &json!({ "a": 1 })),
                _ => Reply::say("It is 2."),
            };
            reply.with_reasoning("Numbers.").with_usage(100, 40, 7)
        };
        let server = Server::start(script).await.unwrap();
        let provider = |(adapter, _): (&str, &str)| {
            let price = json!({ "input": 2.0, "cached": 0.5, "output": 10.0 });
            let provider = json!({
                "name": adapter, "adapter": adapter, "base_url": server.url(), "prices": { "m": price },
            });
            serde_json::from_value::<Provider>(provider).unwrap()
        };
        let models = Models::new(ADAPTERS.map(provider).into(), Secrets::default());
        let house = House::open_with(Config { models, ..Config::default() }).await;
        let key = house.key("w", Scope::Worker).await;
        Office { house, key, server }
    }

    /// Starts a turn of a profile for this adapter, with further fields.
    async fn start(&self, adapter: &str, more: Value) -> String {
        let mut profile = json!({
            "name": "adder", "worker_target": "python", "system_prompt_template": "You add.",
            "allowed_tools": ["add"], "allowed_internal_tools": ["read_plan"],
            "llm_config": { "provider": adapter, "model": "m" },
        });
        profile.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let parameters = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] });
        let tool = json!({
            "name": "add", "description": "Adds.", "target": "sums", "effect": "pure", "parameters": parameters,
        });
        self.house.post("/resources", json!({ "manifests": [{ "tool": tool }, { "profile": profile }] })).await;
        let start = json!({ "profile_name": "adder", "instruction": "What is 1 + 1?" });
        text(&self.house.post("/turns", start).await["agent_turn_id"]).to_owned()
    }

    fn hand<'a>(&'a self, name: &'a str) -> Hand<'a> {
        Hand { office: self, name }
    }

    /// Answers the next call of the tool.
    async fn add(&self) {
        let claim = json!({ "worker": "tool", "target": "sums", "wait_seconds": 5, "lease_seconds": 60 });
        let call = self.ask("/calls/claim", claim).await.1["calls"][0].clone();
        let report = json!({
            "worker": "tool", "claim_token": call["claim_token"], "card_id": CardId::new(), "status": "success",
            "result": 2,
        });
        let (status, reported) = self.ask(&format!("/calls/{}/report", text(&call["tool_call_id"])), report).await;
        assert_eq!(status, 200, "{reported}");
    }

    async fn ask(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.house.ask(Method::POST, path, Some(&self.key), Some(body)).await
    }

    async fn receipts(&self, turn_id: &str) -> Vec<Value> {
        self.house.get(&format!("/turns/{turn_id}/receipts")).await.as_array().unwrap().clone()
    }

    /// Returns the types of the cards that a turn wrote, and how many steps it took.
    async fn written(&self, turn_id: &str) -> (Vec<String>, usize) {
        let shown = self.house.get(&format!("/turns/{turn_id}")).await;
        let cards = self.house.get(&format!("/boxes/{}/cards", text(&shown["turn"]["output_box_id"]))).await;
        let kind = |card: &Value| text(&card["reading"]["metadata"]["type"]).to_owned();
        (cards["items"].as_array().unwrap().iter().map(kind).collect(), shown["steps"].as_array().unwrap().len())
    }

    /// Checks that every call of a turn can be rendered again to the bytes of its receipt.
    async fn verify(&self, turn_id: &str) {
        for call in self.receipts(turn_id).await {
            let path = format!("/turns/{turn_id}/context/request?step_id={}", text(&call["step_id"]));
            let request = self.house.http.get(format!("{}/v1/projects/acme{path}", self.house.base));
            let bytes = request.bearer_auth(&self.house.admin).send().await.unwrap().bytes().await.unwrap();
            assert_eq!(blake3::hash(&bytes).to_hex().as_str(), text(&call["receipt"]["request_hash"]));
            assert_eq!(call["receipt"]["reported"], true, "{call}");
            let mut work = self.house.kernel.begin(self.house.t.project_id).await.unwrap();
            let step_id = Some(text(&call["step_id"]).parse().unwrap());
            let again = replay::replay(&mut work, turn_id.parse().unwrap(), step_id).await.unwrap();
            assert!(again.request == bytes);
        }
    }

    /// Lets the lease of a worker end, and its turn be free for another.
    async fn lose(&self, name: &str) {
        self.ask("/worker/leave", json!({ "worker": name })).await;
        for _ in 0..3 {
            let config = sweep::Config { lease: Duration::ZERO, ..sweep::Config::default() };
            sweep::tick(&self.house.kernel, &config).await.unwrap();
        }
    }
}

/// A worker: what a program in any language would do.
#[derive(Clone, Copy)]
struct Hand<'a> {
    office: &'a Office,
    name: &'a str,
}

impl Hand<'_> {
    async fn claim(&self) -> Value {
        let claim = json!({ "worker": self.name, "target": "python", "wait_seconds": 10, "lease_seconds": 60 });
        let claimed = self.office.ask("/worker/claim", claim).await.1;
        claimed["turns"].get(0).unwrap_or_else(|| panic!("{claimed}")).clone()
    }

    async fn compose(&self, turn: &Value) -> Value {
        let path = format!("/turns/{}/compose", text(&turn["agent_turn_id"]));
        let (status, composed) = self.office.ask(&path, json!({ "fence": turn["fence"] })).await;
        assert_eq!(status, 200, "{composed}");
        composed
    }

    /// Sends exactly the bytes that were composed, and returns the answer as it came.
    async fn call(&self, composed: &Value) -> Value {
        let request = text(&composed["request"]);
        assert_eq!(blake3::hash(request.as_bytes()).to_hex().as_str(), text(&composed["request_hash"]));
        let (_, path) = ADAPTERS.iter().find(|(adapter, _)| composed["adapter"] == *adapter).unwrap();
        let sent = self.office.house.http.post(format!("{}/{path}", self.office.server.url()));
        let response = sent.header(CONTENT_TYPE, "application/json").body(request.to_owned()).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let is_stream = response.headers()[CONTENT_TYPE].to_str().unwrap().starts_with("text/event-stream");
        let body = response.text().await.unwrap();
        if is_stream { Value::String(body) } else { serde_json::from_str(&body).unwrap() }
    }

    async fn answer(&self, turn: &Value, composed: &Value, response: &Value) -> (StatusCode, Value) {
        let [step_id, receipt, seal] = ["step_id", "receipt", "seal"].map(|key| &composed[key]);
        self.say(turn, json!({ "step_id": step_id, "receipt": receipt, "seal": seal, "response": response })).await
    }

    async fn say(&self, turn: &Value, mut answer: Value) -> (StatusCode, Value) {
        answer["fence"] = turn["fence"].clone();
        self.office.ask(&format!("/turns/{}/answer", text(&turn["agent_turn_id"])), answer).await
    }

    /// Composes, calls and answers once, and returns what comes next.
    async fn step(&self, turn: &Value) -> String {
        let composed = self.compose(turn).await;
        assert_eq!(composed["next"], "ask", "{composed}");
        let response = self.call(&composed).await;
        let (status, taken) = self.answer(turn, &composed, &response).await;
        assert_eq!((status.as_u16(), &taken["duplicate"]), (200, &json!(false)), "{taken}");
        assert_eq!(taken["step_id"], composed["step_id"]);
        text(&taken["next"]).to_owned()
    }

    /// Runs a turn that it holds to its end.
    async fn run(&self, mut turn: Value) {
        loop {
            match self.step(&turn).await.as_str() {
                "again" => {}
                "suspended" => {
                    self.office.add().await;
                    turn = self.claim().await;
                }
                "ended" => return,
                next => panic!("{next}"),
            }
        }
    }
}

const WRITTEN: [&str; 9] = [
    "agent.reasoning",
    "agent.thought",
    "tool.call",
    "tool.result",
    "agent.reasoning",
    "tool.call",
    "tool.result",
    "agent.reasoning",
    "task.deliverable",
];

/// WK-9, CX-11, NX-2, NX-6: a turn that a worker ran over HTTP has receipts. It can be shown, compared, rendered again and forked, in every format,
/// streamed or not.
#[tokio::test]
async fn a_turn_that_was_run_over_http_has_receipts() {
    let office = Office::open().await;
    let hand = office.hand("w1");
    for (adapter, _) in ADAPTERS {
        for stream in [true, false] {
            let llm = json!({ "provider": adapter, "model": "m", "params": { "stream": stream } });
            let turn_id = office.start(adapter, json!({ "llm_config": llm })).await;
            hand.run(hand.claim().await).await;
            let shown = office.house.get(&format!("/turns/{turn_id}")).await;
            assert_eq!((&shown["turn"]["status"], &shown["deliverable"]), (&json!("success"), &json!("It is 2.")));
            for step in shown["steps"].as_array().unwrap() {
                let said = [&step["provider"], &step["model"], &step["input_tokens"], &step["cached_tokens"]];
                assert_eq!(said, [&json!(adapter), &json!("m"), &json!(100), &json!(40)], "{step}");
                assert_eq!((&step["microdollars"], &step["reported"]), (&json!(60 * 2 + 20 + 70), &json!(true)));
            }
            let (cards, n_steps) = office.written(&turn_id).await;
            assert_eq!((cards.as_slice(), n_steps), (WRITTEN.map(str::to_owned).as_slice(), 3), "{adapter} {stream}");
            office.verify(&turn_id).await;
            let receipts = office.receipts(&turn_id).await;
            let [first, second] = [0, 1].map(|n| text(&receipts[n]["step_id"]).to_owned());
            let seen = office.house.get(&format!("/turns/{turn_id}/context?step_id={second}")).await;
            assert_eq!(seen["receipt"], receipts[1]["receipt"]);
            assert!(seen["messages"].to_string().contains("the project has no plans"), "{seen}");
            let diff =
                format!("/context/diff?left={turn_id}&left_step_id={first}&right={turn_id}&right_step_id={second}");
            let diff = office.house.get(&diff).await;
            let ops = diff["ops"].as_array().unwrap();
            assert!(ops.iter().any(|op| op["op"] == "same") && ops.iter().any(|op| op["op"] == "only_right"), "{diff}");

            // Its fork is run the same way, with the results that were recorded.
            let forked = office.house.post(&format!("/turns/{turn_id}/fork"), json!({})).await;
            let turn = hand.claim().await;
            assert_eq!(turn["agent_turn_id"], forked["agent_turn_id"]);
            while hand.step(&turn).await == "again" {}
            let fork_id = text(&forked["agent_turn_id"]);
            assert_eq!(office.house.get(&format!("/turns/{fork_id}")).await["deliverable"], "It is 2.");
            office.verify(fork_id).await;
        }
    }
}

/// WK-9: an answer is written once, and only for a request that the server composed.
#[tokio::test]
async fn only_what_was_composed_is_answered_and_once() {
    let office = Office::open().await;
    let hand = office.hand("w1");
    // Another turn of the same profile, for its receipt.
    office.start("openai_chat", json!({})).await;
    let other_turn = hand.claim().await;
    let other = hand.compose(&other_turn).await;
    assert_eq!(hand.compose(&other_turn).await["receipt"]["request_hash"], other["receipt"]["request_hash"]);

    let turn_id = office.start("openai_chat", json!({})).await;
    let turn = hand.claim().await;
    let first = hand.compose(&turn).await;
    let response = hand.call(&first).await;
    assert_eq!(hand.answer(&turn, &first, &response).await.1["next"], "again");
    let again = hand.answer(&turn, &first, &response).await.1;
    assert_eq!((&again["next"], &again["duplicate"]), (&json!("again"), &json!(true)), "sent again, it is known");

    let second = hand.compose(&turn).await;
    let twin = hand.compose(&turn).await;
    assert_eq!((&twin["request_hash"], twin["seal"] == second["seal"]), (&second["request_hash"], false));
    let response = hand.call(&second).await;
    let before = office.written(&turn_id).await;
    let changed = |place: &str, key: &str, value: Value| {
        let mut receipt = second["receipt"].clone();
        receipt.pointer_mut(place).unwrap()[key] = value;
        json!({ "receipt": receipt })
    };
    let forged = [
        json!({ "request_hash": "0".repeat(64) }),
        json!({ "receipt": second["receipt"], "request_hash": "0".repeat(64) }),
        json!({ "request_hash": first["request_hash"] }),
        json!({ "receipt": first["receipt"] }),
        json!({ "receipt": first["receipt"], "seal": first["seal"] }),
        json!({ "receipt": other["receipt"] }),
        json!({ "receipt": other["receipt"], "seal": other["seal"] }),
        json!({ "receipt": second["receipt"], "seal": "0".repeat(64) }),
        json!({ "receipt": twin["receipt"], "seal": twin["seal"] }),
        json!({ "receipt": { "request_hash": second["request_hash"] } }),
        changed("", "request_hash", first["request_hash"].clone()),
        changed("", "n_tokens", json!(1)),
        changed("", "blocks", json!([])),
        changed("", "left_out", json!([{ "key": "knowledge", "why": "failed" }])),
        changed("", "system_prompt_card_id", turn["query_card_ids"][0].clone()),
        changed("/output", "upto", json!(0)),
        changed("/params", "temperature", json!(0.5)),
        changed("", "read_at", json!("2100-01-01T00:00:00Z")),
    ];
    for mut said in forged {
        said["step_id"] = second["step_id"].clone();
        said["response"] = response.clone();
        if said.get("seal").is_none() {
            said["seal"] = second["seal"].clone();
        }
        let (status, problem) = hand.say(&turn, said.clone()).await;
        assert_eq!((status.as_u16(), &problem["code"]), (409, &json!("receipt_mismatch")), "{said}");
    }
    for bad in [json!("data: {}\n\n"), json!({ "error": {} }), json!(1)] {
        let (status, problem) = hand.answer(&turn, &second, &bad).await;
        assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("unreadable_response")), "{problem}");
    }
    let unsealed = json!({ "step_id": second["step_id"], "receipt": second["receipt"], "response": response });
    assert_eq!(hand.say(&turn, unsealed).await.1["code"], "invalid");
    let nothing = hand.say(&turn, json!({ "step_id": second["step_id"], "response": response })).await;
    assert_eq!((nothing.0.as_u16(), &nothing.1["code"]), (400, &json!("invalid")));
    assert_eq!(office.written(&turn_id).await, before, "nothing was written");

    // The hash alone is enough while nothing has changed.
    let said = json!({ "step_id": second["step_id"], "request_hash": second["request_hash"], "response": response });
    assert_eq!(hand.say(&turn, said.clone()).await.1["next"], "suspended");
    let again = hand.say(&turn, said).await.1;
    assert_eq!((&again["next"], &again["duplicate"]), (&json!("suspended"), &json!(true)));
    office.add().await;
    let turn = hand.claim().await;
    let third = hand.compose(&turn).await;
    let response = hand.call(&third).await;
    // Sent twice at the same time.
    let (one, two) = tokio::join!(hand.answer(&turn, &third, &response), hand.answer(&turn, &third, &response));
    assert_eq!((&one.1["next"], &two.1["next"]), (&json!("ended"), &json!("ended")), "{one:?} {two:?}");
    assert_eq!(office.written(&turn_id).await, (WRITTEN.map(str::to_owned).to_vec(), 3));
    office.verify(&turn_id).await;
    let over = hand.office.ask(&format!("/turns/{turn_id}/compose"), json!({ "fence": turn["fence"] })).await;
    assert_eq!(over.1["code"], "stale");
}

/// WK-7, WK-9: a worker that is lost at any point loses at most the answer that it had not sent. Another one goes on, and nothing is written twice.
#[tokio::test]
async fn a_worker_may_be_lost_at_any_point() {
    let office = Office::open().await;
    for (n, lost_at) in ["claimed", "composed", "called", "answered"].into_iter().enumerate() {
        let (one, two) = (format!("one-{n}"), format!("two-{n}"));
        let (one, two) = (office.hand(&one), office.hand(&two));
        let asked_before = office.server.n_asked();
        let turn_id = office.start("anthropic_messages", json!({})).await;
        let turn = one.claim().await;
        let mut made = None;
        if lost_at != "claimed" {
            let composed = one.compose(&turn).await;
            let response = if lost_at == "composed" { Value::Null } else { one.call(&composed).await };
            if lost_at == "answered" {
                assert_eq!(one.answer(&turn, &composed, &response).await.1["next"], "again");
            }
            made = Some((composed, response));
        }
        office.lose(one.name).await;
        let taken_over = two.claim().await;
        assert_eq!(taken_over["agent_turn_id"], json!(turn_id), "{lost_at}");
        // It does not know yet, and comes back.
        if let Some((composed, response)) = &made {
            let (status, late) = one.answer(&turn, composed, response).await;
            match lost_at {
                "answered" => assert_eq!((&late["next"], &late["duplicate"]), (&json!("again"), &json!(true))),
                _ => assert_eq!((status.as_u16(), &late["code"]), (409, &json!("stale")), "{lost_at}: {late}"),
            }
        }
        let late = office.ask(&format!("/turns/{turn_id}/compose"), json!({ "fence": turn["fence"] })).await;
        assert_eq!(late.1["code"], "stale", "{lost_at}");
        two.run(taken_over).await;
        let (cards, n_steps) = office.written(&turn_id).await;
        assert_eq!((cards.as_slice(), n_steps), (WRITTEN.map(str::to_owned).as_slice(), 3), "{lost_at}");
        let asked = office.server.n_asked() - asked_before;
        assert_eq!(asked, if lost_at == "called" { 4 } else { 3 }, "{lost_at}");
        office.verify(&turn_id).await;
    }
}

/// WK-9: an answer is not lost because the turn got a message, or because time has passed, while the model worked. The next request has the message.
#[tokio::test]
async fn an_answer_that_took_its_time_is_written() {
    let office = Office::open().await;
    let hand = office.hand("w1");
    let turn_id = office.start("openai_chat", json!({ "limits": { "seconds": 1000, "steps": 10 } })).await;
    let turn = hand.claim().await;
    let composed = hand.compose(&turn).await;
    assert!(text(&composed["request"]).contains("seconds for this"), "{composed}");
    assert_eq!(composed["left"]["steps"], 10);
    assert!(composed["left"]["seconds"].as_f64().is_some_and(|left| (900.0..=1000.0).contains(&left)), "{composed}");
    let response = hand.call(&composed).await;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let message = turn::message("Hurry.").unwrap();
    let mut work = office.house.kernel.begin(office.house.t.project_id).await.unwrap();
    turn::steer(&mut work, turn_id.parse::<TurnId>().unwrap(), &message).await.unwrap();
    work.commit().await.unwrap();
    let by_hash =
        json!({ "step_id": composed["step_id"], "request_hash": composed["request_hash"], "response": response });
    assert_eq!(hand.say(&turn, by_hash).await.1["code"], "receipt_mismatch");
    assert_eq!(hand.answer(&turn, &composed, &response).await.1["next"], "again");
    let next = hand.compose(&turn).await;
    assert!(text(&next["request"]).contains("Hurry.") && !text(&composed["request"]).contains("Hurry."));
    assert_eq!(next["left"]["steps"], 9);
    hand.run(turn).await;
    office.verify(&turn_id).await;
}

/// WK-9: of two answers to one request, under two step ids at the same time, one is written.
#[tokio::test]
async fn a_request_is_answered_once() {
    let office = Office::open().await;
    let hand = office.hand("w1");
    let turn_id = office.start("openai_chat", json!({})).await;
    let turn = hand.claim().await;
    let (one, two) = (hand.compose(&turn).await, hand.compose(&turn).await);
    assert_eq!(one["request_hash"], two["request_hash"]);
    let response = hand.call(&one).await;
    let (first, second) = tokio::join!(hand.answer(&turn, &one, &response), hand.answer(&turn, &two, &response));
    let (taken, refused) = if first.0 == 200 { (first, second) } else { (second, first) };
    assert_eq!(taken.1["next"], "again", "{taken:?}");
    assert_eq!((refused.0.as_u16(), &refused.1["code"]), (409, &json!("receipt_mismatch")), "{refused:?}");
    assert_eq!(office.written(&turn_id).await.1, 1);
    office.verify(&turn_id).await;
}

/// WK-6, WK-9: an answer to a turn that was stopped meanwhile ends the turn.
#[tokio::test]
async fn an_answer_after_a_stop_is_not_written() {
    let office = Office::open().await;
    let hand = office.hand("w1");
    let turn_id = office.start("openai_chat", json!({})).await;
    let turn = hand.claim().await;
    let composed = hand.compose(&turn).await;
    let response = hand.call(&composed).await;
    office.house.post(&format!("/turns/{turn_id}/stop"), json!({ "reason": "enough" })).await;
    assert_eq!(hand.answer(&turn, &composed, &response).await.1["next"], "ended");
    let shown = office.house.get(&format!("/turns/{turn_id}")).await;
    assert_eq!((&shown["turn"]["status"], shown["steps"].as_array().map(Vec::len)), (&json!("canceled"), Some(0)));
}

/// WK-6, WK-8, WK-9: where nothing is to be asked any more, the turn is ended as Waybill's own worker ends it; what cannot be composed is refused.
#[tokio::test]
async fn composing_ends_what_is_to_end_and_says_what_is_missing() {
    let office = Office::open().await;
    let hand = office.hand("w1");
    let turn_id = office.start("openai_chat", json!({})).await;
    let turn = hand.claim().await;
    let compose = format!("/turns/{turn_id}/compose");
    let other = office.ask(&compose, json!({ "fence": turn["fence"], "fallback": 1 })).await;
    assert_eq!((other.0.as_u16(), &other.1["code"]), (400, &json!("invalid")), "the profile has no fallback");
    office.house.post(&format!("/turns/{turn_id}/stop"), json!({ "reason": "enough" })).await;
    assert_eq!(hand.compose(&turn).await, json!({ "next": "ended", "status": "canceled" }));

    let turn_id = office.start("openai_chat", json!({ "limits": { "steps": 1 } })).await;
    let turn = hand.claim().await;
    assert_eq!(hand.step(&turn).await, "again");
    assert_eq!(hand.compose(&turn).await, json!({ "next": "ended", "status": "failed" }));
    let shown = office.house.get(&format!("/turns/{turn_id}")).await;
    assert_eq!(shown["deliverable"]["reason"], "limit_reached", "{shown}");

    let fallbacks = json!([{ "provider": "openai_chat", "model": "m" }]);
    let llm = json!({ "provider": "elsewhere", "model": "m", "fallbacks": fallbacks });
    let turn_id = office.start("elsewhere", json!({ "llm_config": llm })).await;
    let turn = hand.claim().await;
    let compose = format!("/turns/{turn_id}/compose");
    let unknown = office.ask(&compose, json!({ "fence": turn["fence"] })).await;
    assert_eq!((unknown.0.as_u16(), &unknown.1["code"]), (422, &json!("no_provider")), "{}", unknown.1);
    let known = office.ask(&compose, json!({ "fence": turn["fence"], "fallback": 1 })).await.1;
    assert_eq!((&known["next"], &known["provider"]), (&json!("ask"), &json!("openai_chat")));
    let thief = office.house.key("thief", Scope::Worker).await;
    let stolen = Some(json!({ "fence": turn["fence"] }));
    let refused = office.house.refused(Method::POST, &compose, Some(&thief), stolen).await;
    assert_eq!(refused, (409, "stale".to_owned()), "another key's worker holds it");
}

/// SE-7, WK-9: tool calls that the server answers for a worker do not reach artifacts that its key may not reach.
#[tokio::test]
async fn a_bound_key_stays_bound_in_tool_calls() {
    let office = Office::open().await;
    let bounds =
        Bounds { targets: vec!["python".parse().unwrap()], paths: vec!["mine".parse().unwrap()], ..Bounds::default() };
    let key = office.house.key_for("bound", Scope::Worker, bounds).await;
    let tools = json!({ "allowed_internal_tools": ["list_artifacts", "read_artifact"], "readable_artifacts": ["all"] });
    let turn_id = office.start("openai_chat", tools).await;
    let ask = async |path: &str, body: Value| office.house.ask(Method::POST, path, Some(&key), Some(body)).await.1;
    let claim = json!({ "worker": "b", "target": "python", "wait_seconds": 5, "lease_seconds": 60 });
    let turn = ask("/worker/claim", claim).await["turns"][0].clone();
    let composed = ask(&format!("/turns/{turn_id}/compose"), json!({ "fence": turn["fence"] })).await;
    let call = |id: &str, name: &str, arguments: Value| json!({ "id": id, "function": { "name": name, "arguments": arguments.to_string() } });
    let calls = [
        call("1", "list_artifacts", json!({})),
        call("2", "read_artifact", json!({ "path": "all/secret.md", "part": "whole" })),
    ];
    let response = json!({ "choices": [{ "message": { "tool_calls": calls }, "finish_reason": "tool_calls" }] });
    let said = json!({
        "fence": turn["fence"], "step_id": composed["step_id"], "receipt": composed["receipt"],
        "seal": composed["seal"], "response": response,
    });
    assert_eq!(ask(&format!("/turns/{turn_id}/answer"), said).await["next"], "again");
    let cards = office.house.get(&format!("/boxes/{}/cards", text(&turn["output_box_id"]))).await;
    let cards = cards["items"].as_array().unwrap();
    let results: Vec<&Value> = cards.iter().map(|card| &card["reading"]["content"]).collect();
    for result in results.iter().filter(|content| content.get("result").is_some()) {
        assert!(result["status"] == "failed" && text(&result["result"]).contains("below its `paths`"), "{result}");
    }
    assert_eq!(results.len(), 4, "two calls and their results");
}

/// SE-5, WK-9: an artifact that a reported answer stores has the worker's key as its author, and counts as content from outside.
#[tokio::test]
async fn what_a_reported_answer_stores_is_the_word_of_the_worker() {
    let provider = json!({ "name": "elsewhere", "adapter": "openai_chat", "base_url": "http://127.0.0.1:1" });
    let models = Models::new(vec![serde_json::from_value::<Provider>(provider).unwrap()], Secrets::default());
    let shelf = Shelf::open_with(Config { models, ..Config::default() }).await;
    let house = &shelf.house;
    let bounds =
        Bounds { targets: vec!["python".parse().unwrap()], paths: vec!["out".parse().unwrap()], ..Bounds::default() };
    let key = house.key_for("bound", Scope::Worker, bounds).await;
    let mut hand = profile("hand", "python");
    hand["profile"]["allowed_internal_tools"] = json!(["write_artifact"]);
    hand["profile"]["writable_artifacts"] = json!(["out"]);
    hand["profile"]["llm_config"] = json!({ "provider": "elsewhere", "model": "m" });
    house.post("/resources", json!({ "manifests": [hand] })).await;
    house.post("/turns", json!({ "profile_name": "hand", "instruction": "Write." })).await;
    let ask = async |path: &str, body: Value| house.ask(Method::POST, path, Some(&key), Some(body)).await.1;
    let claim = json!({ "worker": "b", "target": "python", "wait_seconds": 5, "lease_seconds": 60 });
    let turn = ask("/worker/claim", claim).await["turns"][0].clone();
    let path = format!("/turns/{}", text(&turn["agent_turn_id"]));
    let composed = ask(&format!("{path}/compose"), json!({ "fence": turn["fence"] })).await;
    let arguments = json!({ "path": "out/a.md", "content": "x" }).to_string();
    let call = json!({ "id": "1", "function": { "name": "write_artifact", "arguments": arguments } });
    let response = json!({ "choices": [{ "message": { "tool_calls": [call] }, "finish_reason": "tool_calls" }] });
    let said = json!({
        "fence": turn["fence"], "step_id": composed["step_id"], "receipt": composed["receipt"],
        "seal": composed["seal"], "response": response,
    });
    let taken = ask(&format!("{path}/answer"), said).await;
    assert_eq!(taken["next"], "again", "{taken}");
    let stored = "select count(*) from cardbox.artifacts where author_id = 'key:bound' and is_external";
    assert_eq!(house.t.count(stored).await, 1);
}
