//! The PostgreSQL of `waybill dev`: which one a data folder gets, and what `waybill version` says of it. `.ci/inside` runs the one inside the binary.

use std::{fs, path::PathBuf};

use crate::cli::{json, text, waybill};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("waybill-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

/// PG-2: a data folder that no server here can read is left as it is, and the message says which version it needs and how to move the data.
#[test]
fn a_folder_of_another_version_is_refused_and_kept() {
    let folder = folder("version");
    let data = folder.join("postgres/data");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("PG_VERSION"), "14\n").unwrap();
    let dev = ["dev", "--data", folder.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let refused = waybill(&dev, &[]);
    assert!(!refused.status.success(), "{refused:?}");
    let said = text(&refused.stderr);
    for part in ["was made by PostgreSQL 14", "Nothing was changed", "postgresql-14", "pg_dump", "WAYBILL_POSTGRES_BIN"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(fs::read_dir(&data).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(data.join("PG_VERSION")).unwrap(), "14\n");
    fs::remove_dir_all(folder).unwrap();
}

/// PG-1: `waybill version` names the PostgreSQL inside the program, or says that there is none.
#[test]
fn version_names_the_postgresql_inside() {
    let version = json(&waybill(&["version", "--json"], &[]));
    assert!(version["schema"].as_i64().unwrap() > 0, "{version}");
    let said = text(&waybill(&["version"], &[]).stdout);
    assert!(said.starts_with("waybill ") && said.contains("PostgreSQL inside: "), "{said}");
    match version["postgres"]["version"].as_str() {
        Some(inside) => assert!(said.contains(inside), "{said}"),
        None => assert!(said.contains("none"), "{said}"),
    }
}
