//! Tests of which credentials are withheld.

use super::*;
use crate::record::{cut, join};

const KEY: [u8; 32] = [7; 32];

/// Withholds from a body, and shows each replacement as `#`.
fn hide(adapter: Adapter, body: &str, patterns: &[&Pattern<'_>]) -> (String, String) {
    let cut = cut(adapter, body.as_bytes(), &KEY, patterns).unwrap();
    let joined = join(&cut.skeleton, cut.system.as_deref(), cut.tools.as_deref(), &cut.messages).unwrap();
    serde_json::from_str::<&serde_json::value::RawValue>(&joined).unwrap();
    let mut parts = joined.split("withheld:");
    let mut shown = parts.next().unwrap().to_owned();
    for part in parts {
        assert!(part[..32].bytes().all(|byte| byte.is_ascii_hexdigit()), "{part}");
        shown = shown + "#" + &part[32..];
    }
    (shown, cut.withheld.join(" "))
}

#[track_caller]
fn check(adapter: Adapter, body: &str, shown: &str, paths: &str) {
    assert_eq!(hide(adapter, body, &[]), (shown.to_owned(), paths.to_owned()));
}

#[test]
fn tokens_of_mcp_servers_are_withheld() {
    check(
        Adapter::OpenaiResponses,
        r#"{"tools":[{"name":"f"},{"type":"mcp", "authorization" : "s","server_label":"s"}],"input":"s"}"#,
        r##"{"tools":[{"name":"f"},{"type":"mcp", "authorization" : "#","server_label":"s"}],"input":"s"}"##,
        "tools[1].authorization",
    );
    check(
        Adapter::OpenaiChat,
        r#"{"tools":[{"headers":{"X-Key":"s","n":12,"l":["s",true,null],"":"s","e":""}}],"metadata":{"api_key":"k"}}"#,
        r##"{"tools":[{"headers":{"X-Key":"#","n":"#","l":["#",true,null],"":"#","e":""}}],"metadata":{"api_key":"k"}}"##,
        r#"tools[0].headers.X-Key tools[0].headers.n tools[0].headers.l[0] tools[0].headers[""]"#,
    );
    check(
        Adapter::AnthropicMessages,
        r#"{"mcp_servers":[{"authorization_token":"s"},{"authorization_token":null,"name":"authorization_token"}]}"#,
        r##"{"mcp_servers":[{"authorization_token":"#"},{"authorization_token":null,"name":"authorization_token"}]}"##,
        "mcp_servers[0].authorization_token",
    );
    check(
        Adapter::OpenaiResponses,
        r#"{"input":[{"type":"additional_tools","tools":[{"headers":{"k":"s"},"name":"s"}]},{"authorization":"s"}]}"#,
        r##"{"input":[{"type":"additional_tools","tools":[{"headers":{"k":"#"},"name":"s"}]},{"authorization":"s"}]}"##,
        "input[0].tools[0].headers.k",
    );
}

#[test]
fn other_credentials_are_withheld() {
    check(
        Adapter::OpenaiResponses,
        r#"{"tools":[{"container":{"network_policy":{"domain_secrets":[{"domain":"d","name":"n","value":"s"}]}}}]}"#,
        r##"{"tools":[{"container":{"network_policy":{"domain_secrets":[{"domain":"d","name":"n","value":"#"}]}}}]}"##,
        "tools[0].container.network_policy.domain_secrets[0].value",
    );
    check(
        Adapter::OpenaiChat,
        r#"{"data_sources":[{"parameters":{"index":"i","authentication":{"type":"api_key","key":"s"}}}],"api_key":"s"}"#,
        r##"{"data_sources":[{"parameters":{"index":"i","authentication":{"type":"api_key","key":"#"}}}],"api_key":"#"}"##,
        "data_sources[0].parameters.authentication.key api_key",
    );
}

#[test]
fn every_rule_finds_its_credential() {
    for adapter in Adapter::ALL {
        for rule in rules(adapter) {
            let body = rule.path.iter().rev().fold(r#""https://s@h""#.to_owned(), |inner, step| match *step {
                "*" => format!("[0,{inner}]"),
                key => format!(r#"{{"x":"y","{key}":{inner}}}"#),
            });
            let shown = body.replace(
                if rule.what == What::Url { "s@" } else { "https://s@h" },
                if rule.what == What::Url { "#@" } else { "#" },
            );
            let path = rule.path.join(".").replace(".*", "[1]");
            check(adapter, &body, &shown, &path);
        }
    }
}

/// A schema may well have a property of that name.
#[test]
fn what_only_looks_like_a_credential_stays() {
    for body in [
        r#"{"tools":[{"parameters":{"properties":{"authorization":{"description":"s"},"headers":{"type":"s"}}}}]}"#,
        r#"{"tools":[{"function":{"name":"authorization","parameters":{"headers":{"a":"s"}}}}]}"#,
        r#"{"messages":[{"role":"user","content":"\"authorization\":\"s\""}],"metadata":{"authorization":"s"}}"#,
        r#"{"tools":[{"input_schema":{"default":{"authorization_token":"s"}}}],"user":"s","prompt_cache_key":"s"}"#,
    ] {
        for adapter in Adapter::ALL {
            check(adapter, body, body, "");
        }
    }
}

#[test]
fn the_same_credential_gives_the_same_replacement() {
    let tools = |body: &str, key| cut(Adapter::OpenaiResponses, body.as_bytes(), key, &[]).unwrap().tools.unwrap();
    let plain = tools(r#"{"tools":[{"authorization":"sécret"}]}"#, &KEY);
    let hash = blake3::keyed_hash(&KEY, "sécret".as_bytes()).to_hex();
    assert_eq!(plain, format!(r#"[{{"authorization":"withheld:{}"}}]"#, &hash[..32]));
    assert_eq!(plain, tools(r#"{"tools":[{"authorization":"s\u00e9cr\u0065t"}]}"#, &KEY));
    assert_ne!(plain, tools(r#"{"tools":[{"authorization":"secret"}]}"#, &KEY));
    assert_ne!(plain, tools(r#"{"tools":[{"authorization":"sécret"}]}"#, &[8; 32]));
    let half = tools(r#"{"tools":[{"authorization":"\ud800"}]}"#, &KEY);
    assert!(half.contains(&blake3::keyed_hash(&KEY, br"\ud800").to_hex()[..32]), "{half}");
}

#[test]
fn no_way_to_write_a_key_hides_it() {
    check(
        Adapter::OpenaiResponses,
        r#"{"tools":[{"authorization":"a"}],"t\u006fols":[{"authoriz\u0061tion":"a","authorization":"b"}],"tools":[]}"#,
        r##"{"tools":[{"authorization":"#"}],"t\u006fols":[{"authoriz\u0061tion":"#","authorization":"#"}],"tools":[]}"##,
        "tools[0].authorization tools[0].authorization tools[0].authorization",
    );
}

#[test]
fn urls_keep_all_but_their_credentials() {
    for (url, shown) in [
        ("https://user:pass@host:1/mcp?a=1", "https://#@host:1/mcp?a=1"),
        ("https://token@host", "https://#@host"),
        ("user:pass@host/a//b", "#@host/a//b"),
        ("//user:pass@host/a", "//#@host/a"),
        ("https:///user:pass@host", "https:///#@host"),
        ("https:\\\\\\\\user:pass@host", "https:\\\\\\\\#@host"),
        ("https://a@b:c@host/x@y?e=f@g", "https://#@host/x@y?e=f@g"),
        ("https://host/p?api_key=1&keyed=2&KEY=3&x=key", "https://host/p?api_key=#&keyed=2&KEY=#&x=key"),
        (
            "https://host/p?X-Amz-Signature=1&accessToken=2;sig=3#token=4",
            "https://host/p?X-Amz-Signature=#&accessToken=#;sig=##token=#",
        ),
        ("https://host/p?token=&secret", "https://host/p?token=&secret"),
        ("https:\\/\\/u:\\u0070@host\\/?tok\\u0065n=a\\/b\\n&b=c", "https:\\/\\/#@host\\/?tok\\u0065n=#&b=c"),
        ("https://host/mcp", "https://host/mcp"),
        ("", ""),
        ("//", "//"),
        ("?", "?"),
    ] {
        let body = |url: &str| format!(r#"{{"mcp_servers":[{{"url":"{url}"}}]}}"#);
        let path = if url == shown { "" } else { "mcp_servers[0].url" };
        check(Adapter::AnthropicMessages, &body(url), &body(shown), path);
    }
}

fn words(word: &str) -> impl Fn(&str) -> Vec<Range<usize>> {
    move |text| text.match_indices(word).map(|(at, found)| at..at + found.len()).collect()
}

#[test]
fn patterns_are_looked_for_in_every_string() {
    let body =
        r#"{"model":"s-1","messages":[{"role":"user","content":["a\ns-1 s\u002d1","\"s-1\ud800é"]}],"n":1,"s-1":{}}"#;
    let shown = r##"{"model":"#","messages":[{"role":"user","content":["a\n# #","\"#\ud800é"]}],"n":1,"s-1":{}}"##;
    let paths = "model messages[0].content[0] messages[0].content[1]";
    assert_eq!(hide(Adapter::OpenaiChat, body, &[&words("s-1")]), (shown.to_owned(), paths.to_owned()));
    let cut = cut(Adapter::OpenaiChat, body.as_bytes(), &KEY, &[&words("s-1")]).unwrap();
    assert!(cut.model.unwrap().starts_with("withheld:"));
}

#[test]
fn a_pattern_may_answer_anything() {
    let body = r#"{"a":"é\u00e9\ud83d\ude00x"}"#;
    let answers: [(&[(usize, usize)], &str); 7] = [
        (&[(0, 0), (3, 3), (99, 200)], body),
        (&[(5, 2)], body),
        (&[(0, 2)], r##"{"a":"#\u00e9\ud83d\ude00x"}"##),
        (&[(1, 3)], r##"{"a":"#\ud83d\ude00x"}"##),
        (&[(5, 6)], r##"{"a":"é\u00e9#x"}"##),
        (&[(8, 99), (2, 4)], r##"{"a":"é#\ud83d\ude00#"}"##),
        (&[(0, 5), (3, 9), (1, 2)], r##"{"a":"#"}"##),
    ];
    for (ranges, shown) in answers {
        let pattern = |_: &str| ranges.iter().map(|(start, end)| *start..*end).collect();
        assert_eq!(hide(Adapter::OpenaiChat, body, &[&pattern]).0, shown);
    }
}

/// What is withheld from a request can be looked for in its answer.
#[test]
fn credentials_can_be_listed() {
    let body =
        br#"{"tools":[{"authorization":"s\u00e9cret","server_url":"https://u:p@host/?key=k&a=b"}],"api_key":12}"#;
    assert_eq!(credentials(Adapter::OpenaiResponses, body), ["sécret", "u:p", "k", "12"]);
    for body in [&b"{"[..], b"[]", b"\xff", b"{}"] {
        assert!(credentials(Adapter::OpenaiResponses, body).is_empty());
    }
}

#[test]
fn very_many_paths_are_not_all_named() {
    let all = vec![r#""s""#; 1_000].join(",");
    let body = format!(r#"{{"extra_headers":[{all}]}}"#);
    let cut = cut(Adapter::OpenaiChat, body.as_bytes(), &KEY, &[]).unwrap();
    assert_eq!((cut.withheld.len(), cut.withheld[256].as_str()), (257, "…"));
}

#[test]
fn a_very_long_url_is_withheld_whole() {
    let url = format!("https://host/?{}", "a=b&".repeat(20_000));
    let body = |url: &str| format!(r#"{{"mcp_servers":[{{"url":"{url}"}}]}}"#);
    check(Adapter::AnthropicMessages, &body(&url), &body("#"), "mcp_servers[0].url");
}

#[test]
fn paths_are_short() {
    let deep = format!(r#"{{"{}":{}"x"{}}}"#, "k".repeat(100), r#"{"a b":["#.repeat(2_000), "]}".repeat(2_000));
    let (_, path) = hide(Adapter::OpenaiChat, &deep, &[&words("x")]);
    assert!(path.starts_with(&format!(r#"{}…["a b"][0]["a b"]"#, "k".repeat(64))), "{path}");
    assert!(path.len() < 300 && path.ends_with('…'), "{path}");
}
