//! Rules of the workspace: which crate may use which, and which licences are allowed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use spdx::{Expression, Licensee};

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--filter-platform=x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// For each crate, the Waybill crates that it may use in its code, and those that it may also use in its tests.
const ARROWS: [(&str, &[&str], &[&str]); 15] = [
    ("waybill-console", &[], &[]),
    ("waybill-core", &[], &[]),
    ("waybill-kernel", &["waybill-core"], &["waybill-services", "waybill-testkit"]),
    ("waybill-context", &["waybill-core"], &[]),
    ("waybill-bus", &["waybill-core"], &["waybill-services"]),
    ("waybill-artifact", &["waybill-core", "waybill-kernel"], &[]),
    (
        "waybill-orchestrator",
        &["waybill-artifact", "waybill-context", "waybill-core", "waybill-kernel"],
        &["waybill-bus", "waybill-services", "waybill-testkit"],
    ),
    ("waybill-tool", &["waybill-artifact", "waybill-core", "waybill-context", "waybill-kernel"], &[]),
    (
        "waybill-worker",
        &["waybill-artifact", "waybill-core", "waybill-context", "waybill-kernel", "waybill-tool"],
        &["waybill-bus", "waybill-lab", "waybill-orchestrator", "waybill-testkit"],
    ),
    (
        "waybill-api",
        &[
            "waybill-artifact",
            "waybill-console",
            "waybill-core",
            "waybill-context",
            "waybill-kernel",
            "waybill-orchestrator",
            "waybill-tool",
            "waybill-worker",
        ],
        &["waybill-bus", "waybill-lab", "waybill-testkit"],
    ),
    (
        "waybill-lab",
        &[
            "waybill-api",
            "waybill-artifact",
            "waybill-core",
            "waybill-bus",
            "waybill-context",
            "waybill-kernel",
            "waybill-orchestrator",
            "waybill-services",
            "waybill-tool",
            "waybill-worker",
        ],
        &[],
    ),
    ("waybill-model", &["waybill-lab"], &[]),
    ("waybill-services", &["waybill-core"], &[]),
    ("waybill-testkit", &["waybill-core", "waybill-kernel", "waybill-services"], &[]),
    (
        "waybill",
        &[
            "waybill-api",
            "waybill-artifact",
            "waybill-core",
            "waybill-context",
            "waybill-bus",
            "waybill-kernel",
            "waybill-orchestrator",
            "waybill-services",
            "waybill-tool",
            "waybill-worker",
        ],
        &["waybill-lab", "waybill-testkit"],
    ),
];

/// The crates that may use an engine directly. `core` has codecs for its types behind a feature; `lab` has baselines.
const ENGINES: [(&str, &[&str]); 4] = [
    ("async-nats", &["waybill-bus"]),
    ("object_store", &["waybill-artifact"]),
    ("sqlx", &["waybill-core", "waybill-kernel", "waybill-lab", "waybill-services", "waybill-testkit"]),
    (
        "tokio",
        &[
            "waybill-api",
            "waybill-artifact",
            "waybill-bus",
            "waybill-kernel",
            "waybill-orchestrator",
            "waybill-tool",
            "waybill-worker",
            "waybill-lab",
            "waybill-services",
            "waybill-testkit",
            "waybill",
        ],
    ),
];

/// STYLE.md, section 1: an arrow points down, never sideways or up.
#[test]
fn every_arrow_points_the_right_way() {
    let metadata = metadata();
    let members: BTreeSet<&str> =
        metadata["workspace_members"].as_array().unwrap().iter().map(|m| m.as_str().unwrap()).collect();
    let mut seen = BTreeSet::new();
    for package in metadata["packages"].as_array().unwrap() {
        if !members.contains(package["id"].as_str().unwrap()) {
            continue;
        }
        let name = package["name"].as_str().unwrap();
        seen.insert(name.to_owned());
        let Some((_, built, tested)) = ARROWS.iter().find(|(member, ..)| *member == name) else {
            panic!("{name} is new: say in ARROWS which crates it may use");
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let to = dependency["name"].as_str().unwrap();
            let in_tests = dependency["kind"] == "dev";
            if to == "waybill" || to.starts_with("waybill-") {
                let allowed = built.contains(&to) || in_tests && tested.contains(&to);
                assert!(allowed, "{name} must not use {to} ({})", dependency["kind"]);
            }
            if let Some((_, knowers)) = ENGINES.iter().find(|(engine, _)| *engine == to) {
                assert!(in_tests || knowers.contains(&name), "{name} must not know {to}");
            }
        }
    }
    assert_eq!(seen, ARROWS.iter().map(|(name, ..)| (*name).to_owned()).collect());
}

/// CX-2: composing is pure. None of its dependencies uses a database, a network or an async runtime.
#[test]
fn the_composer_reaches_nothing() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "-p", "waybill-context", "-e", "normal", "--prefix", "none", "--format", "{p}"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains("waybill-core") && crates.len() > 10, "{crates:?}");
    for reach in
        ["tokio", "mio", "socket2", "sqlx", "sqlx-core", "async-nats", "hyper", "reqwest", "rustls", "futures-executor"]
    {
        assert!(!crates.contains(reach), "waybill-context must not reach {reach}");
    }
}

const LICENCES: [&str; 11] = [
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "CC0-1.0",
    "0BSD",
    "Unlicense",
    "MIT-0",
];

/// One crypto provider (ring), one TLS stack, no unmaintained crates.
const BANNED: [&str; 6] = ["aws-lc-rs", "aws-lc-sys", "openssl", "openssl-sys", "native-tls", "ring-compat"];

#[test]
fn every_dependency_has_a_permissive_licence_and_none_is_banned() {
    let allowed: Vec<Licensee> = LICENCES.iter().map(|licence| Licensee::parse(licence).unwrap()).collect();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "the list is whole: {}", packages.len());
    for package in packages {
        let name = package["name"].as_str().unwrap();
        assert!(!BANNED.contains(&name), "{name} is banned");
        let licence = package["license"].as_str().unwrap_or_else(|| panic!("{name} names no licence"));
        let expression = Expression::parse_mode(licence, spdx::ParseMode::LAX).unwrap();
        let fits = expression.evaluate(|requirement| allowed.iter().any(|licensee| licensee.satisfies(requirement)));
        assert!(fits, "{name}: {licence}");
    }
}

#[test]
fn the_toolchain_is_the_version_the_manifest_names() {
    let toolchain = include_str!("../../../../rust-toolchain.toml");
    let manifest = include_str!("../../../../Cargo.toml");
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(toolchain.contains(&format!("channel = \"{version}.")), "{version}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the Rust files below a folder, in order.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            found.extend(rust_files(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
    found
}

/// STYLE.md, section 2: no source file is too long to read in one go, and none has a result within a result. Clippy counts lines and arguments of
/// functions.
#[test]
fn files_are_short() {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let files: Vec<(PathBuf, String)> = crates
        .flat_map(|folder| rust_files(&folder))
        .map(|file| (file.clone(), fs::read_to_string(&file).unwrap()))
        .collect();
    let mut lengths: Vec<usize> = files.iter().map(|(_, text)| text.lines().count()).collect();
    lengths.sort_unstable();
    for (file, text) in &files {
        let file = file.display();
        assert!(text.lines().count() <= 600, "{file} is longer than 600 lines: split it by subject");
        assert!(!text.contains("Result<Result<"), "{file} has a result within a result: give the outcomes a type");
    }
    let p90 = lengths[lengths.len() * 9 / 10];
    assert!(p90 <= 400, "one file in ten is longer than {p90} lines");
}

/// ARCHITECTURE.md lists every source file with the first sentence of its head. `UPDATE=1` writes the lists.
#[test]
fn the_code_map_is_current() {
    let path = root().join("ARCHITECTURE.md");
    let before = fs::read_to_string(&path).unwrap();
    let mut after = String::new();
    let mut listed = BTreeSet::new();
    let mut skips = false;
    for line in before.lines() {
        if let Some(name) = line.strip_prefix("<!-- files of ").and_then(|rest| rest.strip_suffix(" -->")) {
            after.push_str(&format!("{line}\n\n{}\n<!-- end -->\n", map_of(name)));
            listed.insert(name.to_owned());
            skips = true;
        } else if line == "<!-- end -->" {
            skips = false;
        } else if !skips {
            after.push_str(&format!("{line}\n"));
        }
    }
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let crates: BTreeSet<String> =
        crates.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(listed, crates);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &after).unwrap();
    }
    assert!(after == fs::read_to_string(&path).unwrap(), "the code map is out of date: run this test with UPDATE=1");
}

/// Returns one line for each file of a crate.
fn map_of(name: &str) -> String {
    let folder = root().join("crates").join(name).join("src");
    let files = rust_files(&folder);
    let ships =
        |file: &&PathBuf| file.components().all(|part| part.as_os_str() != "tests") && !file.ends_with("tests.rs");
    let line = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        let head: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
        let head: Vec<&str> = head.into_iter().take_while(|line| !line.is_empty() && !line.starts_with('*')).collect();
        let head = head.join(" ");
        assert!(!head.is_empty(), "{} has no head: begin it with `//!` and what is in it", file.display());
        let sentence = head.split_once(". ").map_or(head.as_str(), |(first, _)| first).trim_end_matches('.');
        format!("* `{}`: {sentence}.\n", file.strip_prefix(&folder).unwrap().display())
    };
    files.iter().filter(ships).map(line).collect()
}
