//! `waybill init`: makes a project folder with a team, a tool in Python, a test and a README.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::json;

use crate::output;

/// The files, from `examples/first-team`.
const FILES: [(&str, &str); 4] = [
    ("README.md", include_str!("../../../../examples/first-team/README.md")),
    ("team.yaml", include_str!("../../../../examples/first-team/team.yaml")),
    ("tool.py", include_str!("../../../../examples/first-team/tool.py")),
    ("test_tool.py", include_str!("../../../../examples/first-team/test_tool.py")),
];

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The folder to write to. It is created if it does not exist. If omitted, the current folder.
    #[arg(default_value = ".")]
    folder: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, as_json: bool) -> Result<ExitCode> {
    let folder = &arguments.folder;
    let there: Vec<&str> =
        FILES.iter().map(|(name, _)| *name).filter(|name| folder.join(name).symlink_metadata().is_ok()).collect();
    ensure!(
        there.is_empty(),
        "{} already has {}: nothing was written. Name another folder, as in `waybill init my-team`",
        folder.display(),
        there.join(", ")
    );
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, text) in FILES {
        let path = folder.join(name);
        let written = File::create_new(&path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let names = FILES.map(|(name, _)| name);
    if as_json {
        output::json(&json!({ "folder": folder, "files": names }))?;
    } else {
        println!("wrote {} to {}", names.join(", "), folder.display());
        println!("\nNext, in that folder:\n");
        println!(
            "  waybill dev                                    # in one terminal, unless it runs already; it stays"
        );
        println!("  python3 tool.py                                # in another; it answers the calls of the tool");
        println!("  waybill apply -f team.yaml                     # in a third");
        println!("  waybill run lead \"How many apples are left?\"\n");
    }
    Ok(ExitCode::SUCCESS)
}
