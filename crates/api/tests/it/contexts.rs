//! What a model saw, over HTTP: the bytes themselves, where each message came from, and how calls differ.

use std::{io::Read, time::Duration};

use reqwest::{
    Response, StatusCode,
    header::{
        ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, RANGE, VARY,
    },
};
use serde_json::{Value, json};
use waybill_context::framework::Framework;
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::{Config, Worker},
};

use crate::{House, profile};

impl House {
    /// Runs a turn of a profile that looks at its todo list first, and then answers: two model calls.
    pub(crate) async fn thought(&self, instruction: &str) -> String {
        let mut thinker = profile("thinker", "llm");
        thinker["profile"]["allowed_internal_tools"] = json!(["update_todo"]);
        let todo = json!({ "update_todo": { "changes": [{ "change": "add", "text": "knead" }] } });
        thinker["profile"]["llm_config"]["params"] =
            json!({ "script": [{ "say": "Let me look.", "call": todo }, { "say": "You said {{query}}" }] });
        self.post("/resources", json!({ "manifests": [thinker] })).await;
        let started = self.post("/turns", json!({ "profile_name": "thinker", "instruction": instruction })).await;
        let turn_id = started["agent_turn_id"].as_str().unwrap().to_owned();
        let models = Models::new(Vec::new(), Secrets::new(None, []));
        let worker = Worker::new(self.kernel.clone(), models, Collector::new(Framework::builtin()));
        let path = format!("/turns/{turn_id}");
        let over = async {
            while self.get(&path).await["turn"]["status"] == "open" {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        worker.serve(&Config::new("llm".parse().unwrap()), over).await;
        turn_id
    }

    /// Reads a path as the admin, with one more header.
    async fn fetch(&self, path: &str, header: Option<(reqwest::header::HeaderName, &str)>) -> Response {
        let mut request = self.http.get(format!("{}/v1/projects/acme{path}", self.base)).bearer_auth(&self.admin);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        request.send().await.unwrap()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// UI-6, CX-11: a client can verify the hash of every request, because it gets the bytes that were sent.
#[tokio::test]
async fn the_bytes_of_a_request_have_the_hash_of_their_receipt() {
    let house = House::open().await;
    let turn_id = house.thought("good morning").await;
    let receipts = house.get(&format!("/turns/{turn_id}/receipts")).await;
    assert_eq!(receipts.as_array().unwrap().len(), 2, "{receipts}");
    for call in receipts.as_array().unwrap() {
        let path = format!("/turns/{turn_id}/context/request?step_id={}", text(&call["step_id"]));
        let answer = house.fetch(&path, None).await;
        let hash = text(&call["receipt"]["request_hash"]).to_owned();
        let tag = format!("\"{hash}\"");
        assert_eq!((answer.status(), answer.headers()[ETAG].to_str().unwrap()), (StatusCode::OK, tag.as_str()));
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(answer.headers()[CACHE_CONTROL], "private, no-cache");
        let bytes = answer.bytes().await.unwrap();
        assert_eq!(blake3::hash(&bytes).to_hex().as_str(), hash);
        assert!(String::from_utf8_lossy(&bytes).contains("good morning"));

        let known = house.fetch(&path, Some((IF_NONE_MATCH, &tag))).await;
        assert_eq!((known.status(), known.headers()[ETAG].to_str().unwrap()), (StatusCode::NOT_MODIFIED, tag.as_str()));
        assert!(known.bytes().await.unwrap().is_empty());
        let other = house.fetch(&path, Some((IF_NONE_MATCH, "\"another\""))).await;
        assert_eq!(other.status(), StatusCode::OK);

        let part = house.fetch(&path, Some((RANGE, "bytes=2-9"))).await;
        let said = format!("bytes 2-9/{}", bytes.len());
        assert_eq!(
            (part.status(), part.headers()[CONTENT_RANGE].to_str().unwrap()),
            (StatusCode::PARTIAL_CONTENT, &*said)
        );
        assert_eq!(part.bytes().await.unwrap(), bytes.slice(2..10));
        let beyond = house.fetch(&path, Some((RANGE, "bytes=99999999-"))).await;
        assert_eq!(beyond.status(), StatusCode::RANGE_NOT_SATISFIABLE);
    }
    let last = house.fetch(&format!("/turns/{turn_id}/context/request"), None).await;
    assert_eq!(last.headers()[ETAG].to_str().unwrap(), format!("{}", receipts[1]["receipt"]["request_hash"]));
}

/// UI-6, CX-11: every message has its layer, its tokens and its cards. A long context can be read in pages.
#[tokio::test]
async fn every_message_says_where_it_came_from() {
    let house = House::open().await;
    let turn_id = house.thought("good morning").await;
    let seen = house.get(&format!("/turns/{turn_id}/context")).await;
    let messages = seen["messages"].as_array().unwrap();
    assert_eq!(seen["receipt"]["n_messages"], messages.len());
    assert!(seen["budget"].as_i64() >= seen["receipt"]["n_tokens"].as_i64(), "{seen}");
    assert_eq!(seen["tools"]["names"], json!(["update_todo"]));
    assert_eq!(seen["tools"]["card_id"], seen["receipt"]["tools_card_id"]);
    for (message, n) in messages.iter().zip(1..) {
        assert_eq!(message["n"], n);
        assert_eq!(message["chars"], text(&message["content"]).chars().count(), "{message}");
        for source in message["sources"].as_array().unwrap() {
            let card = house.get(&format!("/cards/{}", text(&source["card_id"]))).await;
            assert_eq!((&card["hash"], &card["origin"]), (&source["hash"], &source["origin"]), "{message}");
        }
    }
    let layers: Vec<&str> = messages.iter().map(|message| text(&message["layer"])).collect();
    assert_eq!(
        (layers[0], layers.iter().filter(|layer| **layer == "query").count()),
        ("system_prompt", 1),
        "{layers:?}"
    );
    let called = messages.iter().find(|message| message["tool_calls"].is_array()).unwrap();
    assert_eq!((&called["layer"], &called["tool_calls"][0]["tool_name"]), (&json!("steps"), &json!("update_todo")));
    let answered = messages.iter().find(|message| message["tool_call_id"].is_string()).unwrap();
    assert_eq!(answered["tool_call_id"], called["tool_calls"][0]["tool_call_id"]);

    let outline = house.get(&format!("/turns/{turn_id}/context?bodies=false")).await;
    let mut bare = seen.clone();
    for message in bare["messages"].as_array_mut().unwrap() {
        let fields = message.as_object_mut().unwrap();
        ["content", "tool_calls", "reasoning"].iter().for_each(|field| drop(fields.remove(*field)));
    }
    assert_eq!(outline, bare);
    let (mut paged, mut after) = (Vec::new(), String::new());
    loop {
        let page = house.get(&format!("/turns/{turn_id}/context/messages?most=2{after}")).await;
        paged.extend(page["items"].as_array().unwrap().clone());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(&paged, messages);

    // A client that has the answer is sent no second one.
    for path in ["receipts", "context", "context/messages"] {
        let path = format!("/turns/{turn_id}/{path}");
        let first = house.fetch(&path, None).await;
        assert_eq!(first.headers()[CACHE_CONTROL], "private, no-cache", "{path}");
        let tag = first.headers()[ETAG].to_str().unwrap().to_owned();
        let again = house.fetch(&path, Some((IF_NONE_MATCH, &tag))).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
    }
}

/// UI-6, NX-2: two calls are compared message by message, with what the provider had cached.
#[tokio::test]
async fn two_calls_are_compared_message_by_message() {
    let house = House::open().await;
    let turn_id = house.thought("good morning").await;
    let receipts = house.get(&format!("/turns/{turn_id}/receipts")).await;
    let [first, second] = [0, 1].map(|n| text(&receipts[n]["step_id"]).to_owned());
    let diff = format!("/context/diff?left={turn_id}&left_step_id={first}&right={turn_id}&right_step_id={second}");
    let diff = house.get(&diff).await;
    let ops = diff["ops"].as_array().unwrap();
    let n_same = ops.iter().filter(|op| op["op"] == "same").count();
    assert!(n_same > 0 && n_same as u64 >= diff["same_messages"].as_u64().unwrap(), "{diff}");
    let added: Vec<&Value> = ops.iter().filter(|op| op["op"] == "only_right").collect();
    assert!(added.len() >= 2 && added[0].get("left").is_none(), "the call and its result: {diff}");
    assert!(ops.iter().all(|op| op["tokens"].is_u64()), "{diff}");
    let steps = house.get(&format!("/turns/{turn_id}")).await["steps"].clone();
    let cached = |step_id: &str| {
        let step = steps.as_array().unwrap().iter().find(|step| step["step_id"] == step_id).unwrap();
        step["cached_tokens"].clone()
    };
    assert_eq!((&diff["left_cached"], &diff["right_cached"]), (&cached(&first), &cached(&second)));
    assert!(diff["layers"]["steps"]["right"].as_u64() > diff["layers"]["steps"]["left"].as_u64(), "{diff}");
}

/// UI-6, NX-2: each call of a turn is compared with the one before it, in pages.
#[tokio::test]
async fn the_calls_of_a_turn_are_a_chain() {
    let house = House::open().await;
    let turn_id = house.thought("good morning").await;
    let receipts = house.get(&format!("/turns/{turn_id}/receipts")).await;
    let path = format!("/turns/{turn_id}/context/chain");
    let chain = house.get(&path).await;
    let links = chain["items"].as_array().unwrap();
    assert_eq!((links.len(), &chain["next"]), (2, &Value::Null), "{chain}");
    for (link, call) in links.iter().zip(receipts.as_array().unwrap()) {
        assert_eq!((&link["step_id"], &link["n_tokens"]), (&call["step_id"], &call["receipt"]["n_tokens"]));
    }
    let first = &links[0];
    assert_eq!(
        (&first["cause"], &first["same_tokens"], &first["break"]),
        (&json!("first_call"), &json!(null), &json!(null))
    );
    let second = &links[1];
    let step = |n: usize| text(&receipts[n]["step_id"]).to_owned();
    let diff =
        format!("/context/diff?left={turn_id}&left_step_id={}&right={turn_id}&right_step_id={}", step(0), step(1));
    let diff = house.get(&diff).await;
    assert_eq!(second["same_tokens"], diff["same_tokens"], "{chain}");
    assert!(second["gap_seconds"].as_f64().is_some_and(|gap| (0.0..60.0).contains(&gap)), "{chain}");
    match diff["first_break"].as_object() {
        None => assert_eq!((&second["break"], &second["cause"]), (&Value::Null, &Value::Null)),
        Some(place) => {
            assert_eq!((&second["break"]["message"], &second["cause"]), (&place["message"], &json!("prefix_broke")))
        }
    }
    let page = house.get(&format!("{path}?most=1")).await;
    assert_eq!((&page["items"][0], &page["next"]), (first, &first["step_id"]));
    let rest = house.get(&format!("{path}?after={}", text(&page["next"]))).await;
    assert_eq!((&rest["items"], &rest["next"]), (&json!([second]), &Value::Null), "the call before a page counts too");
    let refused = house.refused(reqwest::Method::GET, &format!("{path}?most=201"), Some(&house.admin), None).await;
    assert_eq!(refused, (400, "invalid".to_owned()));
}

/// UI-7: an answer that a client has is not sent again. Large JSON is compressed for clients that accept it; small answers and event streams are not.
#[tokio::test]
async fn large_answers_are_compressed_for_clients_that_accept_it() {
    let house = House::open().await;
    let turn_id = house.thought("good morning").await;
    let path = format!("/turns/{turn_id}/context");
    let plain = house.fetch(&path, None).await;
    assert!(!plain.headers().contains_key(CONTENT_ENCODING) && plain.headers()[VARY] == "accept-encoding");
    let tag = plain.headers()[ETAG].to_str().unwrap().to_owned();
    let plain = plain.bytes().await.unwrap();
    let packed = house.fetch(&path, Some((ACCEPT_ENCODING, "br, gzip"))).await;
    assert_eq!(packed.headers()[CONTENT_ENCODING], "gzip");
    assert_eq!(packed.headers()[ETAG].to_str().unwrap(), format!("W/{tag}"));
    let packed = packed.bytes().await.unwrap();
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut unpacked).unwrap();
    assert!(packed.len() < plain.len() && unpacked == plain, "{} of {}", packed.len(), plain.len());
    let known = house.fetch(&path, Some((IF_NONE_MATCH, &format!("W/{tag}")))).await;
    assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
    for path in [String::new(), format!("/turns/{turn_id}/events")] {
        let sent = house.fetch(&path, Some((ACCEPT_ENCODING, "gzip"))).await;
        assert!(sent.status() == StatusCode::OK && !sent.headers().contains_key(CONTENT_ENCODING), "{path}");
    }
    // A card can be kept as well, until it ends.
    let shown = house.get(&format!("/turns/{turn_id}")).await;
    let card = format!("/cards/{}", text(&shown["turn"]["deliverable_card_id"]));
    let tag = house.fetch(&card, None).await.headers()[ETAG].to_str().unwrap().to_owned();
    assert_eq!(house.fetch(&card, Some((IF_NONE_MATCH, &tag))).await.status(), StatusCode::NOT_MODIFIED);
    let deleted = house.ask(reqwest::Method::DELETE, &format!("{card}?reason=x"), Some(&house.admin), None).await;
    assert_eq!(deleted.0, 200);
    assert_eq!(house.fetch(&card, Some((IF_NONE_MATCH, &tag))).await.status(), StatusCode::OK);
}
