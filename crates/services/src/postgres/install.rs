//! Finds or installs PostgreSQL, and runs its programs without root's rights.

use std::{
    env,
    fs::{self, File},
    io::Write as _,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::inside::Inside;

/// The oldest major version that the kernel works with.
const OLDEST: u32 = 15;

/// Where PostgreSQL is installed beside other versions, as folder and the name in it before the version: Debian, Fedora, Homebrew.
const PLACES: [(&str, &str); 4] = [
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql-"),
    ("/opt/homebrew/opt", "postgresql@"),
    ("/usr/local/opt", "postgresql@"),
];

/// Returns the folder of PostgreSQL's programs, for tests and tools: the one that `WAYBILL_POSTGRES_BIN` names, or the newest installed one.
/// Installs PostgreSQL if there is none.
pub fn binaries() -> Result<PathBuf> {
    if let Some(found) = given().or_else(newest) {
        return Ok(found);
    }
    install_debian("postgresql-15")?;
    newest().ok_or_else(|| anyhow!("postgresql-15 was installed, but it does not contain the program postgres"))
}

/// Returns the programs for a data folder that `waybill dev` is about to make: those inside this program, or the newest installed ones.
pub(super) fn for_new_data() -> Result<PathBuf> {
    if let Some(bin) = given() {
        return Ok(bin);
    }
    if let Some(inside) = Inside::find()? {
        return inside.programs();
    }
    newest().context(
        "PostgreSQL 15 or newer is not installed: on Debian or Ubuntu `apt-get install postgresql`, on Fedora `dnf install \
         postgresql-server`, on macOS `brew install postgresql@17`; or name a server with `--database-url`",
    )
}

/// Returns the programs for an existing data folder: only a server of the same major version can read it.
pub(super) fn for_data(data: &Path) -> Result<PathBuf> {
    let path = data.join("PG_VERSION");
    let made_by = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let made_by: u32 = made_by.trim().parse().with_context(|| format!("{} names no version", path.display()))?;
    let mut found = Vec::new();
    let candidates: Box<dyn Iterator<Item = (u32, PathBuf)>> = match given() {
        Some(bin) => Box::new(major_of(&bin).map(|major| (major, bin)).into_iter()),
        None => Box::new(installed().chain(on_path())),
    };
    for (major, bin) in candidates {
        if major == made_by {
            return Ok(bin);
        }
        found.push(format!("{major} in {}", bin.display()));
    }
    if let Some(inside) = Inside::find()?
        && given().is_none()
    {
        if inside.major()? == made_by {
            return inside.programs();
        }
        found.push(format!("{} inside this program", inside.version));
    }
    let found = if found.is_empty() { "there is no other".to_owned() } else { format!("found: {}", found.join(", ")) };
    bail!(
        "the data in {} was made by PostgreSQL {made_by}, and only a server of that version can read it ({found}). Nothing was changed. \
         Install PostgreSQL {made_by} (on Debian: apt-get install postgresql-{made_by}) or name the folder of its programs in {GIVEN}; to move \
         the data to another version with pg_dump, see \"Another version of PostgreSQL\" in docs/operations.md; to begin without the data, use \
         another folder",
        data.display()
    )
}

/// Names the folder of the programs to use instead of those that are found.
const GIVEN: &str = "WAYBILL_POSTGRES_BIN";

pub(super) fn given() -> Option<PathBuf> {
    env::var_os(GIVEN).filter(|bin| !bin.is_empty()).map(PathBuf::from)
}

fn newest() -> Option<PathBuf> {
    let newest = installed().max_by_key(|(major, _)| *major);
    newest.or_else(|| on_path().find(|(major, _)| *major >= OLDEST)).map(|(_, bin)| bin)
}

/// Returns what is installed in the usual places, as major version and folder of the programs.
fn installed() -> impl Iterator<Item = (u32, PathBuf)> {
    let named = |(place, before): (&'static str, &'static str)| {
        let entries = fs::read_dir(place).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let major = entry.file_name().to_str()?.strip_prefix(before)?.parse::<u32>().ok()?;
            Some((major, entry.path().join("bin")))
        })
    };
    PLACES.into_iter().flat_map(named).filter(|(major, bin)| *major >= OLDEST && is_whole(bin))
}

/// Returns what is installed on the PATH.
fn on_path() -> impl Iterator<Item = (u32, PathBuf)> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).filter(|bin| is_whole(bin)).collect();
    folders.into_iter().filter_map(|bin| Some((major_of(&bin)?, bin)))
}

fn is_whole(bin: &Path) -> bool {
    bin.join("postgres").exists() && bin.join("initdb").exists()
}

/// Asks a server for its major version: it says `postgres (PostgreSQL) 18.6`.
fn major_of(bin: &Path) -> Option<u32> {
    let answer = Command::new(bin.join("postgres")).arg("--version").output().ok()?;
    let version = String::from_utf8(answer.stdout).ok()?;
    let number = version.split_whitespace().nth(2)?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Installs a Debian package where we are root; otherwise says what is missing.
pub fn install_debian(package: &str) -> Result<()> {
    let can = rustix::process::geteuid().is_root() && Path::new("/usr/bin/apt-get").exists();
    ensure!(
        can,
        "{package} is missing: install it (on Debian: apt-get install {package}), or set DATABASE_URL to use a PostgreSQL that is there"
    );
    // Debian would start a server of its own beside ours.
    fs::create_dir_all("/etc/postgresql-common/createcluster.d")?;
    let mut settings = File::create("/etc/postgresql-common/createcluster.d/waybill.conf")?;
    settings.write_all(b"create_main_cluster = false\n")?;
    // One process at a time: apt-get refuses to run beside another. The lock ends with the file.
    settings.lock()?;
    for arguments in [&["update", "-q"][..], &["install", "-q", "-y", "--no-install-recommends", package]] {
        let run = Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").output()?;
        if !run.status.success() {
            bail!("apt-get {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&run.stderr));
        }
    }
    Ok(())
}

pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Returns the user to run a server as, because the servers refuse root. `None` means that we are not root.
pub(super) fn unprivileged() -> Result<Option<User>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd")?;
    let find = |name: &str| {
        let line = passwd.lines().find(|line| line.starts_with(&format!("{name}:")))?;
        let mut ids = line.split(':').skip(2).map(str::parse::<u32>);
        Some(User { uid: ids.next()?.ok()?, gid: ids.next()?.ok()? })
    };
    let user = find("postgres").or_else(|| find("nobody"));
    user.map(Some).ok_or_else(|| anyhow!("PostgreSQL does not run as root: create a user `postgres` to run it as"))
}

/// Returns a command that runs without root's rights, as the owner of this folder: the account that made the data is the one that can read it.
pub(super) fn as_owner(program: &Path, folder: &Path) -> Result<Command> {
    let mut command = as_unprivileged(program)?;
    let owner = fs::metadata(folder)?;
    if rustix::process::geteuid().is_root() && owner.uid() != 0 {
        command.uid(owner.uid()).gid(owner.gid());
    }
    Ok(command)
}

/// Returns a command that runs without root's rights.
pub fn as_unprivileged(program: &Path) -> Result<Command> {
    let mut command = Command::new(program);
    command.current_dir("/");
    if let Some(user) = unprivileged()? {
        command.uid(user.uid).gid(user.gid);
    }
    Ok(command)
}
