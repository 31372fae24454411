//! The object store.

use std::{ops::Range, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::{
    Stream, StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use object_store::{
    ObjectStore, ObjectStoreExt, buffered::BufWriter, local::LocalFileSystem, parse_url_opts, path::Path,
};
use tokio::{io::AsyncWriteExt, sync::Semaphore};
use url::Url;
use waybill_core::{
    artifact::{PIECE, Stored},
    id::{ProjectId, UploadId},
};

use crate::measure::Measure;

/// Bytes in one part of an upload (the smallest part that S3 accepts), bytes in one fetch, and how many of either run at once.
const SENT: usize = 5 << 20;
const FETCHED: u64 = PIECE;
const AT_ONCE: usize = 2;
/// Uploads at a time. Each may keep its beginning in memory until its tokens are counted.
const UPLOADS: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{url:?} is not the URL of an object store: write file:///FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
    )]
    Url { url: String, source: Option<object_store::Error> },
    #[error("the folder of the object store cannot be used: check that this account may create, read and write it")]
    Folder(#[source] std::io::Error),
    #[error("the content is larger than the {0} bytes that may be stored")]
    TooLarge(u64),
    #[error("the content could not be read to its end: send it again")]
    Content(#[source] std::io::Error),
    #[error("object {0} is missing from the object store")]
    Missing(Key),
    #[error("object {key} in the object store is damaged: {why}")]
    Corrupt { key: Key, why: String },
    #[error("the object store refused the request or cannot be reached")]
    Store(#[from] object_store::Error),
}

/// The key of the object that one upload wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub project_id: ProjectId,
    pub upload_id: UploadId,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The last digits are random, so they spread the objects over folders.
        let id = self.upload_id.simple();
        write!(f, "{}/{}/{id}", self.project_id.simple(), &id[30..])
    }
}

/// An object store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    /// The folder, if the store is one.
    folder: Option<PathBuf>,
    uploads: Arc<Semaphore>,
}

impl Store {
    /// Opens a store by its URL or its folder, with the credentials of the environment.
    pub fn at(place: &str) -> Result<Store, Error> {
        match place.contains("://") {
            true => Store::open(place, std::env::vars()),
            false => Store::in_folder(place),
        }
    }

    /// Opens a store by its URL. `options` hold credentials and settings under the names that the provider's own tools use: `AWS_ACCESS_KEY_ID`, …
    pub fn open(url: &str, options: impl IntoIterator<Item = (String, String)>) -> Result<Store, Error> {
        let wrong = |source| Error::Url { url: url.to_owned(), source };
        let parsed = Url::parse(url).map_err(|_| wrong(None))?;
        if parsed.scheme() == "file" {
            return Store::in_folder(parsed.to_file_path().map_err(|()| wrong(None))?);
        }
        if !["s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "https"].contains(&parsed.scheme()) {
            return Err(wrong(None));
        }
        let (objects, prefix) = parse_url_opts(&parsed, options).map_err(|source| wrong(Some(source)))?;
        let uploads = Arc::new(Semaphore::new(UPLOADS));
        Ok(Store { objects: objects.into(), prefix, folder: None, uploads })
    }

    /// Opens a store in a folder, which is created if it does not exist. Content is on disk before it counts as stored.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Result<Store, Error> {
        let folder = folder.into();
        std::fs::create_dir_all(&folder).map_err(Error::Folder)?;
        let folder = folder.canonicalize().map_err(Error::Folder)?;
        let objects = LocalFileSystem::new_with_prefix(&folder)?.with_fsync(true);
        let uploads = Arc::new(Semaphore::new(UPLOADS));
        Ok(Store { objects: Arc::new(objects), prefix: Path::default(), folder: Some(folder), uploads })
    }

    /// Writes the content of one upload, at most `most` bytes. Content that does not end properly leaves no object.
    pub async fn write(
        &self,
        key: Key,
        content: impl Stream<Item = std::io::Result<Bytes>>,
        most: u64,
    ) -> Result<Stored, Error> {
        self.refuse_links(key).await?;
        let path = self.path(key);
        let _place = self.uploads.acquire().await.map_err(|error| Error::Content(std::io::Error::other(error)))?;
        let mut writer = BufWriter::with_capacity(self.objects.clone(), path, SENT).with_max_concurrency(AT_ONCE);
        let mut measure = Measure::default();
        let written = async {
            let mut content = std::pin::pin!(content);
            while let Some(bytes) = content.next().await {
                let bytes = bytes.map_err(Error::Content)?;
                if measure.size() + bytes.len() as u64 > most {
                    return Err(Error::TooLarge(most));
                }
                measure.update(&bytes);
                writer.put(bytes).await?;
            }
            writer.shutdown().await.map_err(|error| match error.downcast::<object_store::Error>() {
                Ok(error) => Error::Store(error),
                Err(error) => Error::Content(error),
            })
        }
        .await;
        if let Err(error) = written {
            if let Err(left) = writer.abort().await {
                tracing::debug!(%key, %left, "an upload could not be aborted; it is swept later");
            }
            return Err(error);
        }
        // Counting tokens takes as long as everything else together.
        let measured = tokio::task::spawn_blocking(move || measure.finish()).await;
        measured.map_err(|error| Error::Content(std::io::Error::other(error)))
    }

    /// Checks whether an object exists with its full size.
    pub async fn has(&self, key: Key, stored: &Stored) -> Result<bool, Error> {
        self.refuse_links(key).await?;
        match self.objects.head(&self.path(key)).await {
            Ok(found) => Ok(found.size == stored.size),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a part of what was stored. Each piece is verified before any of it is returned.
    pub fn read(&self, key: Key, stored: &Stored, range: Range<u64>) -> BoxStream<'static, Result<Bytes, Error>> {
        let (start, end) = (range.start.min(stored.size), range.end.min(stored.size));
        if start >= end {
            return stream::empty().boxed();
        }
        let first = start / PIECE * PIECE;
        let portions: Vec<Range<u64>> = (first..end)
            .step_by(usize_of(FETCHED))
            .map(|from| from..(from + FETCHED).min(stored.size).min(end.div_ceil(PIECE) * PIECE))
            .collect();
        let (store, stored) = (self.clone(), Arc::new(stored.clone()));
        stream::iter(portions)
            .map(move |portion| {
                let (store, stored) = (store.clone(), stored.clone());
                async move {
                    let bytes = store.fetch(key, portion.clone()).await?;
                    verify(key, &stored, portion.start, &bytes)?;
                    let skip = start.saturating_sub(portion.start);
                    let take = end.min(portion.end) - portion.start;
                    Ok(bytes.slice(usize_of(skip)..usize_of(take)))
                }
            })
            .buffered(AT_ONCE)
            .boxed()
    }

    /// Reads a part into memory.
    pub async fn read_whole(&self, key: Key, stored: &Stored, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let mut whole = Vec::new();
        let mut content = self.read(key, stored, range);
        while let Some(bytes) = content.try_next().await? {
            whole.extend_from_slice(&bytes);
        }
        Ok(whole)
    }

    async fn fetch(&self, key: Key, portion: Range<u64>) -> Result<Bytes, Error> {
        self.refuse_links(key).await?;
        match self.objects.get_range(&self.path(key), portion).await {
            Ok(bytes) => Ok(bytes),
            Err(object_store::Error::NotFound { .. }) => Err(Error::Missing(key)),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes what an upload wrote or began to write. An object that does not exist counts as deleted.
    pub async fn delete(&self, key: Key) -> Result<(), Error> {
        self.refuse_links(key).await?;
        if let Some(folder) = &self.folder {
            // The partial file of a process that was killed.
            let begun = folder.join(format!("{key}#1"));
            match tokio::fs::remove_file(begun).await {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Error::Folder(error)),
                _ => {}
            }
        }
        match self.objects.delete(&self.path(key)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes everything that a project has stored. Returns the number of objects.
    pub async fn delete_project(&self, project_id: ProjectId) -> Result<u64, Error> {
        let below = self.prefix.clone().join(project_id.simple());
        let found = self.objects.list(Some(&below)).map_ok(|found| found.location).boxed();
        let n = self.objects.delete_stream(found).try_fold(0, |n, _| async move { Ok(n + 1) }).await?;
        if let Some(folder) = &self.folder {
            match tokio::fs::remove_dir_all(folder.join(project_id.simple())).await {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Error::Folder(error)),
                _ => {}
            }
        }
        Ok(n)
    }

    /// Counts the objects of a project, including those of unfinished uploads.
    pub async fn count(&self, project_id: ProjectId) -> Result<i64, Error> {
        if let Some(folder) = &self.folder {
            let (mut n, mut left) = (0, vec![folder.join(project_id.simple())]);
            while let Some(folder) = left.pop() {
                let Ok(mut entries) = tokio::fs::read_dir(&folder).await else { continue };
                while let Some(entry) = entries.next_entry().await.map_err(Error::Folder)? {
                    match entry.file_type().await.map_err(Error::Folder)?.is_dir() {
                        true => left.push(entry.path()),
                        false => n += 1,
                    }
                }
            }
            return Ok(n);
        }
        let below = self.prefix.clone().join(project_id.simple());
        Ok(self.objects.list(Some(&below)).try_fold(0, |n, _| async move { Ok(n + 1) }).await?)
    }

    fn path(&self, key: Key) -> Path {
        key.to_string().split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Refuses symbolic links in the folder of a store, because they could lead out of it.
    async fn refuse_links(&self, key: Key) -> Result<(), Error> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let mut place = folder.clone();
        for part in key.to_string().split('/') {
            place.push(part);
            match tokio::fs::symlink_metadata(&place).await {
                Ok(found) if found.is_symlink() => {
                    return Err(Error::Corrupt { key, why: "it is, or lies below, a symbolic link".to_owned() });
                }
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(Error::Folder(error)),
            }
        }
        Ok(())
    }
}

/// Verifies the pieces of `bytes` against their hashes. `from` is where a piece begins.
fn verify(key: Key, stored: &Stored, from: u64, bytes: &Bytes) -> Result<(), Error> {
    let first = usize_of(from / PIECE);
    for (n, piece) in bytes.chunks(usize_of(PIECE)).enumerate() {
        let at = (first + n) * 32;
        if stored.pieces.get(at..at + 32) != Some(blake3::hash(piece).as_bytes().as_slice()) {
            let why = format!("the hash of its bytes from {} on does not match", (first + n) as u64 * PIECE);
            return Err(Error::Corrupt { key, why });
        }
    }
    Ok(())
}

fn usize_of(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(bytes: Vec<u8>) -> impl Stream<Item = std::io::Result<Bytes>> {
        stream::iter(bytes.chunks(100_000).map(|part| Ok(Bytes::copy_from_slice(part))).collect::<Vec<_>>())
    }

    fn key() -> Key {
        Key { project_id: ProjectId::new(), upload_id: UploadId::new() }
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Folder {
            Folder(std::env::temp_dir().join(format!("waybill-artifact-{}", UploadId::new())))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[tokio::test]
    async fn any_part_reads_back_and_nothing_that_was_changed_does() {
        let folder = Folder::new();
        let store = Store::open(&format!("file://{}", folder.0.display()), []).unwrap();
        let bytes: Vec<u8> = (0..20 * PIECE + 12_345).map(|n| (n * 31 % 251) as u8).collect();
        let key = key();
        let stored = store.write(key, content(bytes.clone()), u64::MAX).await.unwrap();
        assert_eq!(stored.size, bytes.len() as u64);
        let len = bytes.len() as u64;
        for range in [0..len, 0..1, len - 1..len, PIECE - 1..PIECE + 1, 3 * PIECE..9 * PIECE + 7, len..len + 5, 5..5] {
            let read = store.read_whole(key, &stored, range.clone()).await.unwrap();
            let (from, to) = (usize_of(range.start.min(len)), usize_of(range.end.min(len)));
            assert_eq!(read, bytes[from..to], "{range:?}");
        }
        // One byte of the last piece: the others still read.
        let place = store.folder.as_ref().unwrap().join(key.to_string());
        let mut changed = bytes.clone();
        *changed.last_mut().unwrap() ^= 1;
        std::fs::write(&place, changed).unwrap();
        assert!(store.read_whole(key, &stored, 0..PIECE).await.is_ok());
        assert!(matches!(store.read_whole(key, &stored, 0..len).await, Err(Error::Corrupt { .. })));
        store.delete(key).await.unwrap();
        store.delete(key).await.unwrap();
        assert!(!store.has(key, &stored).await.unwrap());
        assert!(matches!(store.read_whole(key, &stored, 0..1).await, Err(Error::Missing(_))));
    }

    #[tokio::test]
    async fn what_does_not_come_to_its_end_is_not_there() {
        let folder = Folder::new();
        let store = Store::in_folder(&folder.0).unwrap();
        let (too_large, broken) = (key(), key());
        let write = store.write(too_large, content(vec![1; 30 << 20]), 20 << 20).await;
        assert!(matches!(write, Err(Error::TooLarge(_))));
        let breaks = stream::iter([Ok(Bytes::from(vec![1; 10 << 20])), Err(std::io::ErrorKind::BrokenPipe.into())]);
        assert!(matches!(store.write(broken, breaks, u64::MAX).await, Err(Error::Content(_))));
        let left = store.objects.list(None).try_collect::<Vec<_>>().await.unwrap();
        assert!(left.is_empty(), "{left:?}");
    }

    /// HO: a symbolic link in the folder is not followed.
    #[tokio::test]
    async fn a_link_in_the_folder_is_not_followed() {
        let (folder, outside) = (Folder::new(), Folder::new());
        let store = Store::in_folder(&folder.0).unwrap();
        std::fs::create_dir_all(&outside.0).unwrap();
        let secret = outside.0.join("secret");
        std::fs::write(&secret, "secret").unwrap();
        let (key, stored) = (key(), Stored::of(b"secret"));
        // The object itself, and the folder of its project.
        let place = store.folder.as_ref().unwrap().join(key.to_string());
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&secret, &place).unwrap();
        assert!(matches!(store.read_whole(key, &stored, 0..6).await, Err(Error::Corrupt { .. })));
        assert!(matches!(store.write(key, content(vec![1]), 9).await, Err(Error::Corrupt { .. })));
        assert!(matches!(store.delete(key).await, Err(Error::Corrupt { .. })));
        let project = store.folder.as_ref().unwrap().join(key.project_id.simple());
        std::fs::remove_dir_all(&project).unwrap();
        std::os::unix::fs::symlink(&outside.0, &project).unwrap();
        assert!(matches!(store.write(key, content(vec![1]), 9).await, Err(Error::Corrupt { .. })));
        assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
        assert_eq!(std::fs::read_dir(&outside.0).unwrap().count(), 1);
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        rustls::crypto::ring::default_provider().install_default().unwrap();
        for url in ["artifacts", "memory:///", "ftp://x/y", "s3://", "http://somewhere/x"] {
            assert!(matches!(Store::open(url, []), Err(Error::Url { .. })), "{url}");
        }
        assert!(Store::open("s3://bucket/prefix", [("AWS_REGION".to_owned(), "x".to_owned())]).is_ok());
    }
}
