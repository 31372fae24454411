//! `waybill lint` on samples with one defect each, and on clean ones.

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::Value;

fn samples() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../context/samples")
}

fn lint(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    command.arg("lint").args(arguments);
    command
}

/// The name of a sample says what is wrong with it. Lint must find exactly that.
#[test]
fn each_sample_has_the_defect_of_its_name() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(samples()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 15, "{files:?}");
    for file in &files {
        let rule = file.file_stem().unwrap().to_str().unwrap().split('-').next().unwrap();
        let output = lint(&["--json", file.to_str().unwrap()]).output().unwrap();
        let lines: Vec<Value> =
            String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let found: Vec<&str> = lines.iter().map(|line| line["rule"].as_str().unwrap()).collect();
        let expected: &[&str] = if rule == "clean" { &[] } else { &[rule] };
        assert_eq!(found, expected, "{}", file.display());
        assert_eq!(output.status.success(), rule == "clean");
    }
    let all = lint(&[samples().to_str().unwrap()]).output().unwrap();
    let text = String::from_utf8(all.stdout).unwrap();
    for rule in waybill_context::lint::Rule::ALL {
        assert!(text.contains(&rule.to_string()), "{rule} has a sample");
    }
}

#[test]
fn standard_input_is_read_and_nonsense_is_named() {
    let mut child = lint(&["-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(br#"[{"role":"user","content":""}]"#).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("empty_content"));
    let missing = lint(&["nowhere.json"]).output().unwrap();
    assert!(String::from_utf8(missing.stderr).unwrap().contains("nowhere.json cannot be read"));
}
