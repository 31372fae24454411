//! What was typed wrongly, and what to type instead.

use std::process::exit;

use anyhow::anyhow;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use waybill_core::id::{Name, ProjectId};
use waybill_kernel::{
    resource::{self, Kind},
    work::Kernel,
};

use crate::config::File;

/// Reads seconds, with or without a fraction. A century is enough for every one of them.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    const MOST: f64 = 3.2e9;
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=MOST).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds, such as 30 or 0.5".to_owned()),
    }
}

/// The exit code of a command that was called wrongly, as `clap` has it.
const WRONG: i32 = 2;

/// Prints why a command cannot be called like this, and ends the process. Also prints help, if that was asked for.
pub(crate) fn refuse(error: &clap::Error, file: &File) -> ! {
    let missing: &[String] = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(names))) => names.as_slice(),
        _ => &[],
    };
    let is_place =
        |name: &String| ["--database-url", "--project", "--owner-url"].iter().any(|flag| name.starts_with(flag));
    let said = if file.path.is_none() && !missing.is_empty() && missing.iter().all(is_place) {
        Some(format!(
            "no settings were found: there is no waybill.toml or .waybill/waybill.toml in this folder or above it. Run `waybill dev` here, change \
             to the folder where it runs, or set {}",
            missing.join(" and ")
        ))
    } else if std::env::args().any(|argument| argument == "--json") && error.use_stderr() {
        let text = error.render().to_string();
        let first = text.split("\n\n").next().unwrap_or_default();
        Some(first.strip_prefix("error: ").unwrap_or(first).split_whitespace().collect::<Vec<_>>().join(" "))
    } else {
        None
    };
    match said {
        Some(said) => {
            let as_json = std::env::args().any(|argument| argument == "--json");
            crate::output::error(&anyhow!(said), as_json);
            exit(WRONG)
        }
        None => error.exit(),
    }
}

/// Returns the error, or if the project has no such profile, one that names the profiles that it has.
pub(crate) async fn of_profile(
    kernel: &Kernel,
    project_id: ProjectId,
    profile: &Name,
    error: anyhow::Error,
) -> anyhow::Error {
    let Ok(mut work) = kernel.begin(project_id).await else { return error };
    let Ok(listed) = resource::list(&mut work).await else { return error };
    let profiles = listed.iter().filter(|listed| listed.kind == Kind::Profile);
    let names: Vec<&str> = profiles.map(|listed| listed.name.as_str()).collect();
    if names.contains(&profile.as_str()) {
        return error;
    }
    let nearest = names.iter().map(|name| (distance(name, profile.as_str()), *name)).min();
    let nearest = nearest.filter(|(n, _)| *n <= (profile.as_str().len() / 3).max(2));
    let hint = nearest.map(|(_, name)| format!(" Did you mean `{name}`?")).unwrap_or_default();
    let known = if names.is_empty() { "none: `waybill apply` adds them".to_owned() } else { names.join(", ") };
    anyhow!("there is no profile `{profile}` in this project.{hint} Its profiles are {known}")
}

/// Returns how many letters must be changed, added or removed to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, against) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *against);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_typed_wrongly_are_near() {
        assert_eq!(distance("editor", "editr"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
