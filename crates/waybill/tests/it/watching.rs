//! The dashboard and the alerts use only metrics that exist, and each alert has a runbook.

use std::{collections::BTreeSet, fs};

use waybill_core::metric::{ALL, Kind};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns the names in a text that look like our metrics.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("waybill_")).collect()
}

fn is_counted(name: &str) -> bool {
    ALL.iter().any(|metric| {
        name == metric.name && metric.kind != Kind::Histogram
            || metric.kind == Kind::Histogram && name.strip_prefix(metric.name).is_some_and(|rest| rest == "_bucket")
    })
}

#[test]
fn what_is_shown_and_alerted_on_is_counted() {
    let mut shown = BTreeSet::new();
    for file in ["deploy/grafana/waybill.json", "deploy/prometheus/alerts.yaml"] {
        let text = fs::read_to_string(format!("{ROOT}/{file}")).unwrap();
        for name in names(&text) {
            assert!(is_counted(name), "{file}: there is no metric {name}");
            shown.insert(name.trim_end_matches("_bucket").to_owned());
        }
    }
    let unseen: Vec<&str> = ALL.iter().map(|metric| metric.name).filter(|name| !shown.contains(*name)).collect();
    assert_eq!(unseen, Vec::<&str>::new(), "these metrics are on no panel");
}

#[test]
fn every_alert_has_its_runbook_and_its_test() {
    let alerts = fs::read_to_string(format!("{ROOT}/deploy/prometheus/alerts.yaml")).unwrap();
    let tests = fs::read_to_string(format!("{ROOT}/deploy/prometheus/alerts_test.yaml")).unwrap();
    let operations = fs::read_to_string(format!("{ROOT}/docs/operations.md")).unwrap();
    let named: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(named.len() > 10, "{named:?}");
    for alert in named {
        assert!(operations.contains(&format!("### {alert}\n")), "docs/operations.md has no runbook for {alert}");
        let link = format!("docs/operations.md#{}", alert.to_lowercase());
        assert!(alerts.contains(&link), "{alert} does not name its runbook");
        assert!(
            tests.contains(&format!("        alertname: {alert}\n        exp_alerts:\n")),
            "{alert} is not seen to fire"
        );
    }
}
