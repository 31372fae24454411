//! Finds or installs PostgreSQL, and runs its programs without root's rights.

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, anyhow, bail, ensure};

/// Returns the newest installed binaries of PostgreSQL 15 or later.
pub fn binaries() -> Result<PathBuf> {
    if let Some(found) = installed() {
        return Ok(found);
    }
    install_debian("postgresql-15")?;
    installed().ok_or_else(|| anyhow!("postgresql-15 was installed, but it does not contain the program postgres"))
}

pub(super) fn installed() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok().into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin"))))
        .filter(|(version, bin)| *version >= 15 && bin.join("postgres").exists() && bin.join("initdb").exists())
        .max_by_key(|(version, _)| *version);
    let on_path = || env::split_paths(&env::var_os("PATH")?).find(|bin| bin.join("postgres").exists());
    newest.map(|(_, bin)| bin).or_else(on_path)
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
    fs::write("/etc/postgresql-common/createcluster.d/waybill.conf", "create_main_cluster = false\n")?;
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

/// Returns a command that runs without root's rights.
pub fn as_unprivileged(program: &Path) -> Result<Command> {
    let mut command = Command::new(program);
    command.current_dir("/");
    if let Some(user) = unprivileged()? {
        command.uid(user.uid).gid(user.gid);
    }
    Ok(command)
}
