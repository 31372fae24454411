//! Rules of the workspace: which crate may use which, and which licences are allowed.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;
use spdx::{Expression, Licensee};

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--filter-platform=x86_64-unknown-linux-gnu"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// For each crate, the Waybill crates that it may use in its code, and those that it may also use in its tests.
const ARROWS: [(&str, &[&str], &[&str]); 14] = [
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
            "waybill-core",
            "waybill-context",
            "waybill-kernel",
            "waybill-orchestrator",
            "waybill-tool",
        ],
        &["waybill-bus", "waybill-testkit", "waybill-worker"],
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
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
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
