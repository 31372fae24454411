//! `docs/api.md` lists every operation, and says by which operations the needs of clients are met.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use serde_json::Value;
use waybill_core::key::Scope;

use crate::{
    document::{Operation, document, operations},
    examples::{Example, stored},
};

const BEGIN: &str = "<!-- operations, made by a test -->";
const END: &str = "<!-- end -->";
/// What every path of a project begins with.
const BASE: &str = "/v1/projects/{project}/";

fn page() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md")
}

/// UI-8: the page lists what the document has. `UPDATE=1` writes the list.
#[test]
fn docs_api_lists_every_operation() {
    let (document, stored) = (document(), stored());
    if std::env::var_os("UPDATE").is_some() {
        write(&document, &stored);
    }
    let is_current = made(&document, &stored) == fs::read_to_string(page()).unwrap();
    assert!(is_current, "the list of operations is out of date: run `UPDATE=1 cargo nextest run docs_api`");
}

pub(crate) fn write(document: &Value, examples: &BTreeMap<String, Example>) {
    fs::write(page(), made(document, examples)).unwrap();
}

/// Returns the page with a new list.
fn made(document: &Value, examples: &BTreeMap<String, Example>) -> String {
    let page = fs::read_to_string(page()).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the list begins");
    let (_, after) = rest.split_once(END).expect("the list ends");
    let mut list = String::new();
    for tag in document["tags"].as_array().unwrap() {
        let of_tag = |one: &&Operation| one.said["tags"][0] == tag["name"];
        let all = operations(document);
        let rows: String = all.iter().filter(of_tag).map(|one| row(one, examples.get(&one.name))).collect();
        let (name, said) = (tag["name"].as_str().unwrap(), tag["description"].as_str().unwrap());
        list.push_str(&format!(
            "### {name}\n\n{said}\n\n| operation | | scopes | example |\n| --- | --- | --- | --- |\n{rows}\n"
        ));
    }
    format!("{before}{BEGIN}\n\n{list}{END}{after}")
}

fn row(operation: &Operation, example: Option<&Example>) -> String {
    let path = operation.path.strip_prefix(BASE).unwrap_or(&operation.path);
    let summary = operation.said["summary"].as_str().unwrap().replace('|', "\\|");
    let (scopes, example) = example.map(|example| (scopes(&example.scopes), sample(example))).unwrap_or_default();
    format!("| `{} {path}` | {summary} | {scopes} | {example} |\n", operation.method)
}

/// Names scopes. An admin may do everything.
fn scopes(scopes: &[String]) -> String {
    match scopes {
        [_] => "admin".to_owned(),
        all if all.len() == Scope::ALL.len() => "all".to_owned(),
        some => some.iter().filter(|scope| *scope != "admin").cloned().collect::<Vec<_>>().join(", "),
    }
}

/// Shows the beginning of a request, or of the answer if the request has no body.
fn sample(Example { request, response, .. }: &Example) -> String {
    const MOST: usize = 90;
    let shown = if request.is_null() { response } else { request };
    let shown = match shown {
        Value::String(text) => text.replace('\n', " "),
        value => value.to_string(),
    };
    let parts = shown.split('"').map(|part| match part.parse::<uuid::Uuid>() {
        Ok(_) => format!("{}…", &part[..8]),
        Err(_) => part.to_owned(),
    });
    let shown = parts.collect::<Vec<_>>().join("\"").replace('|', "\\|").replace('`', "'");
    let cut: String = shown.chars().take(MOST).collect();
    let more = if cut.len() < shown.len() { "…" } else { "" };
    format!("`{}{more}`", cut.trim_end())
}

/// UI-8: each need of the console and of SDKs is met by operations that exist, or the page says why it is not.
#[test]
fn docs_api_meets_what_clients_need_with_operations_that_exist() {
    let shape = |path: &str| -> String {
        let parts = path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part });
        parts.collect::<Vec<_>>().join("/")
    };
    let document = document();
    let known: BTreeSet<String> =
        operations(&document).iter().map(|one| format!("{} {}", one.method, shape(&one.path))).collect();
    let page = fs::read_to_string(page()).unwrap();
    let (_, section) = page.split_once("## What clients need\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    let mut wrong = Vec::new();
    for row in &rows {
        let (_, met) = row.trim_matches('|').split_once(" | ").unwrap();
        let spans = met.split('`').skip(1).step_by(2);
        let named: Vec<(&str, &str)> = spans.filter_map(|span| span.split_once(' ')).collect();
        if named.is_empty() && met.trim().len() < 20 {
            wrong.push(format!("{row}: name an operation, or say why there is none"));
        }
        for (method, path) in named {
            let path = path.split('?').next().unwrap();
            let path = if path.starts_with('/') { path.to_owned() } else { format!("{BASE}{path}") };
            if !known.contains(&format!("{method} {}", shape(&path))) {
                wrong.push(format!("{method} {path}: there is no such operation"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(rows.len(), 35, "each need is a row");
}
