use std::iter;

use super::{bodies::Dice, *};
use crate::kit::cases;

const KEY: [u8; 32] = [1; 32];

fn cut(adapter: Adapter, body: &str) -> Cut {
    super::cut(adapter, body.as_bytes(), &KEY, &[]).unwrap_or_else(|error| panic!("{error:?}: {body}"))
}

fn joined(cut: &Cut) -> String {
    join(&cut.skeleton, cut.system.as_deref(), cut.tools.as_deref(), &cut.messages).unwrap()
}

/// Cuts and joins, and returns the skeleton as it is stored.
#[track_caller]
fn check(adapter: Adapter, body: &str) -> String {
    let cut = cut(adapter, body);
    assert_eq!(joined(&cut), body);
    assert!(cut.withheld.is_empty(), "{:?}", cut.withheld);
    let stored = serde_json::to_string(&cut.skeleton).unwrap();
    assert_eq!(serde_json::from_str::<Skeleton>(&stored).unwrap(), cut.skeleton);
    stored
}

#[test]
fn a_body_is_cut_at_its_holes() {
    let body =
        r#"{"model":"m","stream":true,"system":"Be brief.","messages":[{"role":"user"},{}],"tools":[{"name":"f"}]}"#;
    let anthropic = cut(Adapter::AnthropicMessages, body);
    assert_eq!(anthropic.system.as_deref(), Some(r#""Be brief.""#));
    assert_eq!(anthropic.tools.as_deref(), Some(r#"[{"name":"f"}]"#));
    assert_eq!(anthropic.messages, [r#"{"role":"user"}"#, "{}"]);
    assert_eq!((anthropic.model.as_deref(), anthropic.is_stream), (Some("m"), true));
    assert_eq!(
        check(Adapter::AnthropicMessages, body),
        r#"["{\"model\":\"m\",\"stream\":true,\"system\":",{"hole":"system"},",\"messages\":[",{"hole":"messages"},"],\"tools\":",{"hole":"tools"},"}"]"#,
    );
    let chat = cut(Adapter::OpenaiChat, body);
    assert_eq!((chat.system, chat.messages.len()), (None, 2));
    let responses = cut(Adapter::OpenaiResponses, r#"{"instructions":[1],"input":[{}],"messages":[2]}"#);
    assert_eq!((responses.system.as_deref(), responses.messages), (Some("[1]"), vec!["{}".to_owned()]));
}

#[test]
fn the_text_between_messages_is_kept() {
    let hole = |body: &str| {
        let stored = check(Adapter::OpenaiChat, body);
        let start = stored.find(r#"{"hole":"messages""#).unwrap();
        stored[start + 18..start + stored[start..].find("},").unwrap()].to_owned()
    };
    assert_eq!(hole(r#"{"messages":[1,2,3]}"#), "");
    assert_eq!(hole(r#"{"messages":[1, 2, 3]}"#), r#","between":", ""#);
    assert_eq!(hole("{\"messages\":[ 1 ,\n2 ,\n3\t]}"), r#","between":" ,\n""#);
    assert_eq!(hole(r#"{"messages":[1,2, 3]}"#), r#","betweens":[",",", "]"#);
    // With one message, what will come between is guessed from the rest.
    assert_eq!(hole(r#"{"messages":[1]}"#), "");
    assert_eq!(hole(r#"{"messages": [1]}"#), r#","between":", ""#);
    assert_eq!(hole(r#"{"model":"m", "messages": [1]}"#), r#","between":", ""#);
    assert_eq!(hole("{\n  \"messages\": [\n    1\n  ]\n}"), r#","between":",\n    ""#);
    assert_eq!(hole("{\n  \"model\": 1,\n  \"messages\": []\n}"), "");
}

#[test]
fn odd_bodies_come_back_byte_for_byte() {
    for body in [
        "{}",
        " \t\r\n{ } \n",
        r#"{"messages":[]}"#,
        r#"{"messages":[ ]}"#,
        r#"{"messages":null,"tools":null,"system":null,"instructions":null,"input":null}"#,
        r#"{"messages":{"messages":[1]},"input":{"input":[1]}}"#,
        r#"{"messages":"messages","input":"\"input\":[1,2]"}"#,
        r#"{"messages":7,"tools":7,"system":7}"#,
        r#"{"messages":[1],"messages":[2],"messages":[3,4]}"#,
        r#"{"messages":[1],"messages":null}"#,
        r#"{"m\u0065ssages":[1,2],"\u0074ools":[],"syst\u0065m":"","i\u006eput":[]}"#,
        r#"{"messages":["\"messages\":[1,2]","]},{",{"messages":[1]}],"x":"\\"}"#,
        r#"{"messages":[{"content":"/* , */ // ],["},"// no comment"]}"#,
        r#"{"tools":[[[]]],"messages":[[],{},"",0,null,true,-1.5e-300]}"#,
        r#"{"messages":[1e999,123456789012345678901234567890.123456789,-0,0.0,1E+2]}"#,
        r#"{"messages":["\ud800","\udc00\ud800",{"\ud800":1}],"\udfff":"\udfff","model":"\ud800"}"#,
        "{\"messages\":[\"é😀\u{7f}\u{2028}\"],\"é\":\"\u{feff}\"}",
        r#"{"":"","":[],"messages":[""]}"#,
        r#"{"input":""}"#,
        r#"{ "input" : "x" , "instructions" : "y" }"#,
    ] {
        for adapter in Adapter::ALL {
            check(adapter, body);
        }
    }
}

#[test]
fn the_last_of_equal_keys_counts() {
    let body = r#"{"model":"a","messages":[1],"stream":true,"messages":[2],"model":"b","tools":[],"stream":false,"tools":null}"#;
    let cut = cut(Adapter::OpenaiChat, body);
    assert_eq!(
        (&*cut.messages, cut.tools, cut.model.as_deref(), cut.is_stream),
        (&["2".to_owned()][..], None, Some("b"), false)
    );
}

#[test]
fn an_input_of_text_is_one_message() {
    let responses = cut(Adapter::OpenaiResponses, r#"{"input":"a\"b"}"#);
    assert_eq!(responses.messages, [r#""a\"b""#]);
    let none: [&str; 0] = [];
    assert_eq!(join(&responses.skeleton, None, None, &none), Err(Misfit::Count { needed: 1, given: 0 }));
    assert_eq!(join(&responses.skeleton, None, None, &["1", "2"]), Err(Misfit::Count { needed: 1, given: 2 }));
    assert!(cut(Adapter::OpenaiChat, r#"{"messages":"x","input":"x"}"#).messages.is_empty());
}

#[test]
fn pieces_that_do_not_fit_are_refused() {
    let cut = cut(Adapter::AnthropicMessages, r#"{"system":1,"messages":[1,2, 3],"tools":2}"#);
    let none: [&str; 0] = [];
    let join = |system, tools, messages: &[&str]| join(&cut.skeleton, system, tools, messages);
    assert_eq!(join(None, Some("2"), &["1", "2", "3"]), Err(Misfit::Missing("system")));
    assert_eq!(join(Some("1"), None, &["1", "2", "3"]), Err(Misfit::Missing("tools")));
    assert_eq!(join(Some("1"), Some("2"), &["1"]), Err(Misfit::Count { needed: 3, given: 1 }));
    let bare = Skeleton(vec![Part::Text("{}".into())]);
    assert_eq!(super::join(&bare, Some("1"), None, &none), Err(Misfit::NoHole("system")));
    assert_eq!(super::join(&bare, None, Some("1"), &none), Err(Misfit::NoHole("tools")));
    assert_eq!(super::join(&bare, None, None, &["1"]), Err(Misfit::NoHole("messages")));
    assert_eq!(super::join(&bare, None, None, &none), Ok("{}".to_owned()));
}

#[test]
fn what_is_not_an_object_is_unreadable() {
    let refused = |body: &[u8]| super::cut(Adapter::OpenaiChat, body, &KEY, &[]).unwrap_err();
    for body in [
        "",
        " ",
        "{",
        "{} {}",
        "{\"a\":1,}",
        "\u{feff}{}",
        "{\"a\":\"\n\"}",
        "{'a':1}",
        "{\"a\":01}",
        "{\"a\":NaN}",
        "[1",
    ] {
        assert!(matches!(refused(body.as_bytes()), Unreadable::NotJson(_)), "{body}");
    }
    for body in ["[]", "1", "\"secret\"", "null", " true"] {
        assert!(matches!(refused(body.as_bytes()), Unreadable::NotAnObject), "{body}");
    }
    assert!(matches!(refused(b"{\"a\":\"\xff\"}"), Unreadable::NotUtf8(_)));
    assert!(matches!(refused(b"{\"a\":\"\xed\xa0\x80\"}"), Unreadable::NotUtf8(_)));
}

#[test]
fn what_the_provider_remembers_is_named() {
    let check =
        |adapter, body: &str, id: Option<&str>| assert_eq!(cut(adapter, body).rests_on.as_deref(), id, "{body}");
    let responses = |body, id| check(Adapter::OpenaiResponses, body, id);
    responses(r#"{"previous_response_id":"resp_1"}"#, Some("resp_1"));
    responses(r#"{"previous_response_id":null,"conversation":null}"#, None);
    responses(r#"{"conversation":"conv_1"}"#, Some("conv_1"));
    responses(r#"{"conversation":{"id":"conv_1"}}"#, Some("conv_1"));
    responses(r#"{"conversation":{"x":1}}"#, Some(r#"{"x":1}"#));
    responses(r#"{"prompt":{"id":"pmpt_1"}}"#, Some("pmpt_1"));
    responses(r#"{"input":[{"role":"user"},{"type":"item_reference","id":"msg_1"}]}"#, Some("msg_1"));
    responses(r#"{"input":[{"id":"msg_1"}]}"#, Some("msg_1"));
    responses(
        r#"{"input":[{"id":"msg_1","type":"message"},{"id":"x","role":"user"}],"previous_message_id":"x"}"#,
        None,
    );
    let anthropic = |body, id| check(Adapter::AnthropicMessages, body, id);
    anthropic(r#"{"thread":{"type":"continue","previous_message_id":"msg_1"}}"#, Some("msg_1"));
    anthropic(r#"{"thread":{"type":"create"}}"#, None);
    anthropic(r#"{"thread":"t"}"#, Some("t"));
    anthropic(r#"{"thread":{"type":"other"}}"#, Some(r#"{"type":"other"}"#));
    anthropic(r#"{"thread":null,"prompt":{"id":"x"},"messages":[{"id":"x"}]}"#, None);
}

#[test]
fn a_prompt_or_an_item_is_no_earlier_call() {
    let goes_on = |body: &str| cut(Adapter::OpenaiResponses, body).goes_on;
    for body in [
        r#"{"previous_response_id":"resp_1"}"#,
        r#"{"conversation":{"id":"conv_1"},"prompt":{"id":"p"}}"#,
        r#"{"thread":"t"}"#,
    ] {
        assert!(goes_on(body), "{body}");
    }
    for body in [r#"{"prompt":{"id":"pmpt_1"}}"#, r#"{"input":[{"type":"item_reference","id":"msg_1"}]}"#, "{}"] {
        assert!(!goes_on(body), "{body}");
    }
}

#[test]
fn deep_nesting_takes_no_stack() {
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}"), (r#"[{"a":["#, "]}]")] {
        let deep = format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
        for adapter in Adapter::ALL {
            let body =
                format!(r#"{{"x":{deep},"messages":[{deep},{deep}],"input":[{deep}],"tools":{deep},"system":{deep}}}"#);
            check(adapter, &body);
            let pattern = |text: &str| iter::once(0..text.len()).collect();
            super::cut(adapter, body.as_bytes(), &KEY, &[&pattern]).unwrap();
        }
        assert!(super::cut(Adapter::OpenaiChat, open.repeat(100_000).as_bytes(), &KEY, &[]).is_err());
    }
}

#[test]
fn long_lists_are_cut() {
    let message = r#"{"role":"user","content":"What is it?"}"#;
    for between in [",", ", "] {
        let body = format!(r#"{{"messages":[{}],"model":"m"}}"#, vec![message; 20_000].join(between));
        check(Adapter::OpenaiChat, &body);
        assert_eq!(cut(Adapter::OpenaiChat, &body).messages.len(), 20_000);
    }
}

/// A short body must not become many gigabytes of messages, members or replacements.
#[test]
fn very_long_lists_are_refused() {
    let zeros = vec!["0"; 20_001].join(",");
    let refused = |body: &str| super::cut(Adapter::OpenaiChat, body.as_bytes(), &KEY, &[]).unwrap_err();
    assert!(matches!(refused(&format!(r#"{{"messages":[{zeros}]}}"#)), Unreadable::TooMany));
    assert!(matches!(refused(&format!(r#"{{"tools":[{{"headers":[{zeros}]}}]}}"#)), Unreadable::TooMany));
    assert!(matches!(refused(&format!("{{{}}}", vec![r#""a":0"#; 20_001].join(","))), Unreadable::NotJson(_)));
    // Where they need not be taken apart, they stay as they are.
    check(Adapter::OpenaiChat, &format!(r#"{{"n":[{zeros}],"tools":[{zeros}],"messages":[[{zeros}]]}}"#));
}

/// The guarantee. `WAYBILL_CASES=20000` is the long run.
#[test]
fn random_bodies_come_back_byte_for_byte() {
    for adapter in Adapter::ALL {
        for seed in 0..cases(500) {
            let body = Dice::new(seed).body();
            let stored = cut(adapter, &body);
            assert!(joined(&stored) == body && stored.withheld.is_empty(), "{adapter:?}, seed {seed}: {body}");
            for piece in stored.messages.iter().chain(&stored.system).chain(&stored.tools) {
                assert!(
                    serde_json::from_str::<&RawValue>(piece).is_ok_and(|raw| raw.get() == piece),
                    "seed {seed}: {piece}"
                );
                view::view(adapter, piece);
                view::view_system(adapter, piece);
                view::tool_names(adapter, piece);
            }
            check(adapter, &body);
        }
    }
}

/// How clients write JSON: the text after `{` and `[`, between members, after a key, between elements, and before `]` and `}`.
const STYLES: [[&str; 7]; 5] = [
    ["", "", ",", ":", ",", "", ""],
    ["", "", ", ", ": ", ", ", "", ""],
    ["\n  ", "\n    ", ",\n  ", ": ", ",\n    ", "\n  ", "\n"],
    ["\n\t", "\n\t\t", ",\n\t", ": ", ",\n\t\t", "\n\t", "\n"],
    ["\r\n    ", "\r\n        ", ",\r\n    ", ": ", ",\r\n        ", "\r\n    ", "\r\n"],
];

/// What makes storing worth it: the next request of a conversation shares all that the last one had.
#[test]
fn only_what_was_added_is_new() {
    for adapter in Adapter::ALL {
        let name = if adapter == Adapter::OpenaiResponses { "input" } else { "messages" };
        for seed in 0..cases(500) {
            let mut dice = Dice::new(seed);
            let [open, first, member, colon, between, last, close] = STYLES[dice.below(STYLES.len())];
            let messages: Vec<String> = (0..3 + dice.below(6)).map(|_| dice.value(3)).collect();
            let (before, after) = (dice.value(2), dice.value(2));
            let body = |n: usize| {
                let list = messages[..n].join(between);
                let members = [
                    format!("\"a\"{colon}{before}"),
                    format!("\"{name}\"{colon}[{first}{list}{last}]"),
                    format!("\"tools\"{colon}{after}"),
                ];
                format!("{{{open}{}{close}}}", members.join(member))
            };
            let n = 1 + dice.below(messages.len() - 1);
            let (left, right) = (cut(adapter, &body(n)), cut(adapter, &body(messages.len())));
            assert_eq!(left.skeleton, right.skeleton, "{adapter:?}, seed {seed}");
            assert_eq!(left.messages, right.messages[..n], "{adapter:?}, seed {seed}");
            assert_eq!(left.tools, right.tools);
            assert_eq!(right.messages, messages);
            assert_eq!(
                join(&left.skeleton, None, right.tools.as_deref(), &right.messages).unwrap(),
                body(messages.len())
            );
        }
    }
}

/// A credential is in no piece, in whichever way it was written, and everything else stays.
#[test]
fn random_bodies_lose_only_their_credentials() {
    const SECRET: &str = "k-5ecre7/é";
    let pattern = |text: &str| text.match_indices(SECRET).map(|(at, found)| at..at + found.len()).collect();
    for adapter in Adapter::ALL {
        for seed in 0..cases(500) {
            let mut dice = Dice::new(seed);
            // A place for the secret, put between the characters of random strings.
            let body = dice.body().replace("word ", "@@").replace("// x", "@@");
            let mut secret = || {
                let escaped = |c: char| match dice.below(3) {
                    0 => format!("\\u{:04x}", u32::from(c)),
                    _ => c.to_string(),
                };
                SECRET.chars().map(escaped).collect::<String>()
            };
            let planted = body.split("@@").map(str::to_owned).reduce(|left, right| left + &secret() + &right).unwrap();
            let stored = super::cut(adapter, planted.as_bytes(), &KEY, &[&pattern]).unwrap();
            let hash = blake3::keyed_hash(&KEY, SECRET.as_bytes()).to_hex();
            let expected = body.replace("@@", &format!("withheld:{}", &hash[..32]));
            assert_eq!(joined(&stored), expected, "{adapter:?}, seed {seed}");
            assert_eq!(stored.withheld.is_empty(), body == expected);
        }
    }
}

/// The walk and the decoder are our own: they must agree with serde_json.
#[test]
fn random_bodies_are_read_as_serde_json_reads_them() {
    fn strings(raw: &str, seen: &mut Vec<String>) {
        if let Some(elements) = raw::elements(raw) {
            elements.into_iter().for_each(|element| strings(element, seen));
        } else if let Some(object) = Object::of(raw) {
            object.0.into_iter().for_each(|(_, value)| strings(value, seen));
        } else if !matches!(raw, "null" | "true" | "false") {
            seen.push(raw.to_owned());
        }
    }
    for seed in 0..cases(500) {
        let body = Dice::new(seed).body();
        let (mut walked, mut seen) = (Vec::new(), Vec::new());
        raw::walk(&body, None, |_, range| walked.push(body[range].to_owned()));
        strings(body.trim(), &mut seen);
        assert_eq!(walked, seen, "seed {seed}");
        for string in seen {
            if let Ok(text) = serde_json::from_str::<String>(&string) {
                assert_eq!(raw::text(&string).unwrap(), text);
            }
        }
    }
}
