//! Settings. In order of precedence: a flag, `WAYBILL_…` in the environment, a line of one TOML file, the built-in default.
//!
//! A setting has one name: `--nats-url`, `WAYBILL_NATS_URL`, `nats_url = "…"`. The file can set exactly the flags that the environment can set.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use anyhow::{Context, Result, bail};
use clap::{Arg, Command};
use serde::Serialize;

use crate::connect::uid;

const PREFIX: &str = "WAYBILL_";
/// The file that `waybill dev` writes into its data folder.
const OF_DEV: &str = ".waybill/waybill.toml";
const FILE: &str = "waybill.toml";
/// The file beside the settings file that `waybill dev` locks while it runs.
pub(crate) const LOCK_OF_DEV: &str = "dev.lock";

/// The settings file that this process has read, and the URL of the database in it.
static DATABASE: OnceLock<(PathBuf, String)> = OnceLock::new();

/// The settings file and its values.
#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) path: Option<PathBuf>,
    values: BTreeMap<String, String>,
}

impl File {
    /// Reads the file that `WAYBILL_CONFIG` names, or else the nearest `waybill.toml` or `.waybill/waybill.toml` in this folder or one above.
    pub(crate) fn find() -> Result<File> {
        let named = env::var_os("WAYBILL_CONFIG").map(PathBuf::from);
        let here = env::current_dir().context("the current folder cannot be found: change to a folder that exists")?;
        let nearest =
            || here.ancestors().flat_map(|folder| [folder.join(FILE), folder.join(OF_DEV)]).find(|path| path.is_file());
        if let Some(path) = named {
            return File::read(path);
        }
        match nearest() {
            Some(path) => {
                is_ours(&path)?;
                File::read(path)
            }
            None => Ok(File::default()),
        }
    }

    fn read(path: PathBuf) -> Result<File> {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let table: toml::Table =
            toml::from_str(&text).with_context(|| format!("{} is not valid TOML", path.display()))?;
        let mut values = BTreeMap::new();
        for (key, value) in table {
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(number) => number.to_string(),
                toml::Value::Boolean(said) => said.to_string(),
                _ => bail!("{}: the value of `{key}` must be a string, a number, true or false", path.display()),
            };
            values.insert(key, value);
        }
        if let (Some(url), Ok(path)) = (values.get("database_url"), std::path::absolute(&path)) {
            // Only the first file counts. A process reads one.
            let _ = DATABASE.set((path, url.clone()));
        }
        Ok(File { path: Some(path), values })
    }

    /// Makes the values of the file the defaults of the flags. A line that is not a setting is an error.
    pub(crate) fn apply(&self, command: Command) -> Result<Command> {
        let known = settings(&command);
        if let Some(unknown) = self.values.keys().find(|key| !known.contains_key(*key)) {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            let path = self.path.as_deref().unwrap_or(Path::new(FILE));
            bail!("{}: there is no setting `{unknown}`. The settings are {}", path.display(), names.join(", "));
        }
        Ok(self.applied(command))
    }

    fn applied(&self, command: Command) -> Command {
        let command = command.mut_args(|arg| match key(&arg).and_then(|key| self.values.get(&key)) {
            // Leaked on purpose: there are only a few values, and they are needed until the process ends.
            Some(value) => arg.default_value(&*value.clone().leak()).required(false).hide_default_value(true),
            None => arg,
        });
        command.mut_subcommands(|subcommand| self.applied(subcommand))
    }
}

/// Returns the data folder of the `waybill dev` that wrote this URL into the settings file. `None` means that the URL is from elsewhere.
pub(crate) fn dev_folder(database_url: &str) -> Option<PathBuf> {
    let (path, url) = DATABASE.get()?;
    let folder = path.parent()?;
    (url == database_url && folder.join(LOCK_OF_DEV).is_file()).then(|| folder.to_owned())
}

/// Checks that a settings file can be trusted, because it names programs to start and where secrets go. A file that was found, not named, must
/// belong to this account or to root, and other accounts must not be able to write it.
fn is_ours(path: &Path) -> Result<()> {
    let file = fs::metadata(path)?;
    let is_owned = file.uid() == 0 || uid() == Some(file.uid());
    if !is_owned || file.mode() & 0o002 != 0 {
        let path = path.display();
        bail!(
            "{path} is not used, because it belongs to another account or every account may write to it: \
             change its owner or mode, or name it in WAYBILL_CONFIG"
        );
    }
    Ok(())
}

/// Returns the name of the setting that an argument sets, if it is a setting.
fn key(arg: &Arg) -> Option<String> {
    let name = arg.get_env()?.to_str()?.strip_prefix(PREFIX)?;
    Some(name.to_ascii_lowercase())
}

/// Returns all settings, each with its help text and whether its value is a secret.
fn settings(command: &Command) -> BTreeMap<String, (String, bool)> {
    let mut found = BTreeMap::new();
    for arg in command.get_arguments() {
        if let Some(key) = key(arg) {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            found.insert(key, (help, arg.is_hide_env_values_set()));
        }
    }
    for subcommand in command.get_subcommands() {
        found.extend(settings(subcommand));
    }
    found
}

/// A setting, and where its value came from.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    pub(crate) setting: String,
    /// `None` means that it is not set. The value of a secret is not shown.
    pub(crate) value: Option<String>,
    /// `environment`, the path of the file, or `built in`.
    pub(crate) from: String,
    pub(crate) help: String,
}

/// Returns every setting with its current value.
pub(crate) fn show(command: &Command, file: &File) -> Vec<Shown> {
    let settings = settings(command).into_iter();
    settings
        .map(|(setting, (help, is_secret))| {
            let in_environment = env::var(format!("{PREFIX}{}", setting.to_ascii_uppercase())).ok();
            let in_file = file.values.get(&setting).cloned();
            let (value, from) = match (in_environment, in_file) {
                (Some(value), _) => (Some(value), "environment".to_owned()),
                (None, Some(value)) => {
                    (Some(value), file.path.as_deref().unwrap_or(Path::new(FILE)).display().to_string())
                }
                (None, None) => (None, "built in".to_owned()),
            };
            let value = value.map(|value| if is_secret { "(set, not shown)".to_owned() } else { value });
            Shown { setting, value, from, help }
        })
        .collect()
}
