//! Tests of how raw messages are shown.

use Adapter::{AnthropicMessages as Anthropic, OpenaiChat as Chat, OpenaiResponses as Responses};

use super::*;

/// Writes a view in one line: role, text, `-> id=name(arguments)`, `<- id`, `(reasoning)`.
fn line(view: &View) -> String {
    let role = serde_json::to_value(view.role).unwrap();
    let mut line = format!("{}: {}", role.as_str().unwrap(), view.text);
    for Call { provider_call_id, tool_name, arguments } in &view.calls {
        line = format!("{line} -> {provider_call_id}={tool_name}({arguments})");
    }
    for id in &view.answers {
        line = format!("{line} <- {id}");
    }
    match &view.reasoning {
        Some(reasoning) => format!("{line} ({reasoning})"),
        None => line,
    }
}

#[track_caller]
fn check(adapter: Adapter, raw: &str, seen: &str) {
    assert_eq!(line(&view(adapter, raw)), seen);
}

#[test]
fn chat_messages() {
    check(Chat, r#"{"role":"system","content":"Be brief."}"#, "system: Be brief.");
    check(
        Chat,
        r#"{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#,
        "system: a\nb",
    );
    check(Chat, r#"{"content":"a\nb \u00e9 \ud800","role":"us\u0065r"}"#, "user: a\nb é \u{fffd}");
    check(
        Chat,
        r#"{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},{"id":"c2","type":"custom","custom":{"name":"g","input":"x"}}]}"#,
        r#"assistant:  -> c1=f({"a": 1}) -> c2=g(x) (hm)"#,
    );
    check(
        Chat,
        r#"{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}"#,
        "assistant:  -> =f({})",
    );
    check(Chat, r#"{"role":"assistant","content":null,"refusal":"No."}"#, "assistant: No.");
    check(Chat, r#"{"role":"tool","tool_call_id":"c1","content":"42"}"#, "tool: 42 <- c1");
    check(Chat, r#"{"role":"user","content":"old","content":"new"}"#, "user: new");
}

#[test]
fn parts_that_are_not_text() {
    check(
        Chat,
        r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/y.png"}},{"type":"image_url","image_url":{"url":"data:image\/png;base64,QUJDRA=="}},{"type":"input_audio","input_audio":{"data":"QUJD","format":"wav"}},{"type":"input_audio"},{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,QUJD"}},{"type":"file","file":{"file_id":"file-1"}},{"type":"file","file":{}}]}"#,
        "user: [image]\n[image image/png, 4 bytes]\n[audio wav, 3 bytes]\n[audio]\n[file a.pdf, 3 bytes]\n[file file-1]\n[file]",
    );
    check(
        Responses,
        r#"{"role":"user","content":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"data:image/png;base64,QUJD"},{"type":"input_image","file_id":"f"},{"type":"input_file","filename":"a.txt"}]}"#,
        "user: see\n[image image/png, 3 bytes]\n[image]\n[file a.txt]",
    );
    check(
        Anthropic,
        r#"{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/jpeg","data":"QUJDRA=="}},{"type":"image","source":{"type":"url","url":"https://x"}},{"type":"document","title":"T","source":{"type":"base64","media_type":"application/pdf","data":"QUJD"}},{"type":"document","source":{"type":"text","media_type":"text/plain","data":"words"}},{"type":"document","source":{"type":"content","content":[{"type":"text","text":"inner"}]}}]}"#,
        "user: [image image/jpeg, 4 bytes]\n[image]\n[document T application/pdf, 3 bytes]\n[document]\nwords\n[document]\ninner",
    );
}

#[test]
fn responses_items() {
    check(Responses, r#""Hello \"you\"""#, "user: Hello \"you\"");
    check(
        Responses,
        r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hi","annotations":[]}]}"#,
        "assistant: Hi",
    );
    check(
        Responses,
        r#"{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"}"#,
        "assistant:  -> c1=f({})",
    );
    check(Responses, r#"{"type":"custom_tool_call","call_id":"c1","name":"f","input":"x"}"#, "assistant:  -> c1=f(x)");
    check(Responses, r#"{"type":"function_call_output","call_id":"c1","output":"42"}"#, "tool: 42 <- c1");
    check(
        Responses,
        r#"{"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"a"},{"type":"input_image","file_id":"f"}]}"#,
        "tool: a\n[image] <- c1",
    );
    check(
        Responses,
        r#"{"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"x"}"#,
        "assistant:  (hm)",
    );
    check(Responses, r#"{"type":"reasoning","summary":[],"encrypted_content":"x"}"#, "assistant:  ([encrypted])");
    check(
        Responses,
        r#"{"type":"web_search_call","id":"w"}"#,
        r#"assistant: [web_search_call] {"type":"web_search_call","id":"w"}"#,
    );
    check(
        Responses,
        r#"{"type":"shell_call_output","call_id":"c"}"#,
        r#"tool: [shell_call_output] {"type":"shell_call_output","call_id":"c"} <- c"#,
    );
}

#[test]
fn anthropic_messages() {
    check(Anthropic, r#"{"role":"user","content":"Hi"}"#, "user: Hi");
    check(
        Anthropic,
        r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"redacted_thinking","data":"x"},{"type":"text","text":"Look."},{"type":"tool_use","id":"t1","name":"f","input":{"a" : 1.50}}]}"#,
        "assistant: Look. -> t1=f({\"a\" : 1.50}) (hm\n[redacted_thinking])",
    );
    check(
        Anthropic,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"a"},{"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"b"},{"type":"image","source":{"type":"url"}}]},{"type":"tool_result","tool_use_id":"t3"}]}"#,
        "tool: a\nb\n[image] <- t1 <- t2 <- t3",
    );
    check(
        Anthropic,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"a"},{"type":"text","text":"and?"}]}"#,
        "user: a\nand? <- t1",
    );
    check(
        Anthropic,
        r#"{"role":"assistant","content":[{"type":"server_tool_use","id":"s"}]}"#,
        r#"assistant: [server_tool_use] {"type":"server_tool_use","id":"s"}"#,
    );
}

#[test]
fn what_is_not_understood_is_shown_as_it_is() {
    for raw in [
        "null",
        "7",
        "[1, 2]",
        r#"{"role":"wizard","content":"x"}"#,
        r#"{"role":5}"#,
        r#"{"role":"assistant","audio":{"id":"a"}}"#,
        "not JSON",
        "",
        "[",
    ] {
        for adapter in [Chat, Anthropic] {
            check(adapter, raw, &format!("user: {raw}"));
        }
        view(Responses, raw);
        view_system(Responses, raw);
        assert_eq!(tool_names(Chat, raw).len(), usize::from(raw == "[1, 2]") * 2);
    }
    check(Chat, r#"{"role":"user","content":{"a":1}}"#, r#"user: {"a":1}"#);
    check(
        Chat,
        r#"{"role":"user","content":["a",7,{"text":"b"},{"type":"text"}]}"#,
        r#"user: a
7
{"text":"b"}
[text] {"type":"text"}"#,
    );
    check(
        Anthropic,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"tool_result","tool_use_id":"u"}]}]}"#,
        r#"tool: [tool_result] {"type":"tool_result","tool_use_id":"u"} <- t"#,
    );
}

#[test]
fn even_broken_text_is_shown() {
    for raw in
        ["{\"role\":", "\"abc\\\"", "{\"é\\é\"", "\"\\é\"x", "{,\"a\"", "\"\\\"", "\"", "\"\\u12\"", "\"\\ud83d\\u"]
    {
        for adapter in Adapter::ALL {
            assert!(!view(adapter, raw).text.is_empty() || raw == "\"\\\"", "{raw}");
            view_system(adapter, raw);
            tool_names(adapter, raw);
        }
    }
}

#[test]
fn data_is_never_shown() {
    let data = "QUJD".repeat(1_000);
    for raw in [
        format!(r#"{{"role":"user","content":[{{"type":"image","source":{{"type":"base64","data":"{data}"}}}}]}}"#),
        format!(r#"{{"role":"user","content":[{{"type":"hologram","of":[{{"data":"{data}"}}]}}]}}"#),
        format!(r#"{{"type":"image_generation_call","result":"{data}"}}"#),
        format!(r#"{{"type":"computer_call_output","output":{{"image_url":"data:image/png;base64,{data}"}}}}"#),
        format!(r#"{{"unknown":"data:image/png;base64,{data}"}}"#),
    ] {
        for adapter in Adapter::ALL {
            let seen = view(adapter, &raw).text;
            assert!(seen.len() < 200 && seen.contains("3000 bytes]"), "{seen}");
        }
    }
    let words = "many words ".repeat(100);
    let raw = format!(r#"{{"type":"note","text":"{words}"}}"#);
    assert!(view(Responses, &raw).text.contains(&words));
}

#[test]
fn deep_content_takes_no_stack() {
    let open = r#"{"role":"user","content":[{"type":"document","source":{"type":"content","content":["#;
    let block = r#"{"type":"document","source":{"type":"content","content":["#;
    let raw = format!("{open}{}{}]}}}}]}}", block.repeat(10_000), "]}}".repeat(10_000));
    assert!(view(Anthropic, &raw).text.starts_with("[document]\n[document]\n[document]\n[{"));
    for raw in ["[".repeat(10_000) + &"]".repeat(10_000), "{\"a\":".repeat(10_000) + "1" + &"}".repeat(10_000)] {
        assert_eq!(view(Chat, &raw).text, raw);
    }
}

#[test]
fn the_system_prompt() {
    assert_eq!(view_system(Anthropic, r#""Be\nbrief.""#), "Be\nbrief.");
    let blocks = r#"[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}]"#;
    assert_eq!(view_system(Anthropic, blocks), "a\nb");
    assert_eq!(view_system(Responses, r#"[{"role":"developer","content":"x"}]"#), "x");
    assert_eq!(view_system(Responses, "{}"), "{}");
}

#[test]
fn names_of_tools() {
    let chat = r#"[{"type":"function","function":{"name":"f"}},{"type":"custom","custom":{"name":"g"}},7,{}]"#;
    assert_eq!(tool_names(Chat, chat), ["f", "g", "?", "?"]);
    let responses = r#"[{"type":"function","name":"f"},{"type":"web_search"},{"type":"mcp","server_label":"docs"}]"#;
    assert_eq!(tool_names(Responses, responses), ["f", "web_search", "docs"]);
    let anthropic = r#"[{"name":"f","input_schema":{}},{"type":"mcp_toolset","mcp_server_name":"docs"},{"type":"bash_20250124","name":"bash"}]"#;
    assert_eq!(tool_names(Anthropic, anthropic), ["f", "docs", "bash"]);
}
