//! Artifacts: combines the kernel's index with the bytes in the object store.

use std::ops::Range;

use bytes::Bytes;
use futures::{
    Stream, TryStreamExt,
    stream::{self, BoxStream},
};
use waybill_core::{
    artifact::{ArtifactPath, media_type_of},
    id::{ProjectId, UploadId},
};
use waybill_kernel::{
    artifact::{self, Artifact, Finish, Found, Which},
    external,
    retry::{Transient, retry},
    turn,
    work::Kernel,
};

use crate::{Key, Store, store};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no artifact {0}")]
    NotFound(ArtifactPath),
    #[error("{0:?} is not a media type: write one such as `application/json`")]
    MediaType(String),
    #[error(transparent)]
    Index(#[from] artifact::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl From<turn::Error> for Error {
    fn from(error: turn::Error) -> Error {
        Error::Index(artifact::Error::Db(error))
    }
}

impl Transient for Error {
    fn is_transient(&self) -> bool {
        matches!(self, Error::Index(artifact::Error::Db(error)) if error.is_transient())
    }
}

/// What to store at a path.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    pub path: &'a ArtifactPath,
    /// `None` means that it follows from the name.
    pub media_type: Option<&'a str>,
    pub author_id: Option<&'a str>,
    /// Whether it came from outside, or is written by a turn that has seen content from outside.
    pub is_external: bool,
}

impl<'a> Put<'a> {
    pub fn new(path: &'a ArtifactPath) -> Put<'a> {
        Put { path, media_type: None, author_id: None, is_external: false }
    }
}

/// The artifacts of all projects. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Artifacts {
    kernel: Kernel,
    store: Store,
}

impl Artifacts {
    pub fn new(kernel: Kernel, store: Store) -> Artifacts {
        Artifacts { kernel, store }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Streams content to a path. It appears there completely or not at all. The same content as before makes no new version.
    pub async fn put(
        &self,
        project_id: ProjectId,
        put: Put<'_>,
        content: impl Stream<Item = std::io::Result<Bytes>>,
    ) -> Result<Artifact, Error> {
        if let Some(media_type) = put.media_type
            && !is_media_type(media_type)
        {
            return Err(Error::MediaType(media_type.chars().take(100).collect()));
        }
        let key = Key { project_id, upload_id: UploadId::new() };
        let mut work = self.begin(project_id).await?;
        let left = artifact::begin(&mut work, key.upload_id).await?;
        work.commit().await.map_err(turn::Error::from)?;
        let stored = match self.store.write(key, content, left).await {
            Ok(stored) => stored,
            Err(error) => {
                self.give_up(key).await;
                return Err(error.into());
            }
        };
        let media_type = put.media_type.unwrap_or_else(|| media_type_of(put.path, stored.n_tokens.is_some()));
        let Put { path, author_id, .. } = put;
        let finish = Finish { upload_id: key.upload_id, path, media_type, author_id, stored: &stored };
        // A retry is safe: it is written only once.
        let written = retry(|| Box::pin(self.finish(project_id, finish, put.is_external))).await;
        if written.is_err() {
            self.give_up(key).await;
        }
        let found = self.find(project_id, path, Which::Version(written?.version)).await?;
        Ok(found.artifact)
    }

    /// Stores content that is already in memory. See [`Artifacts::put`].
    pub async fn put_bytes(&self, project_id: ProjectId, put: Put<'_>, content: Bytes) -> Result<Artifact, Error> {
        self.put(project_id, put, stream::iter([Ok(content)])).await
    }

    async fn finish(
        &self,
        project_id: ProjectId,
        finish: Finish<'_>,
        is_external: bool,
    ) -> Result<artifact::Put, Error> {
        let mut work = self.begin(project_id).await?;
        if is_external {
            external::label(&mut work, true).await?;
        }
        let put = artifact::finish(&mut work, finish).await?;
        work.commit().await.map_err(turn::Error::from)?;
        Ok(put)
    }

    /// Marks an upload as given up, so that it is swept soon. If that fails, it is swept later.
    async fn give_up(&self, key: Key) {
        let given_up = async {
            let mut work = self.begin(key.project_id).await?;
            artifact::give_up(&mut work, key.upload_id).await?;
            work.commit().await.map_err(turn::Error::from)?;
            Ok::<_, Error>(())
        };
        if let Err(error) = given_up.await {
            tracing::debug!(%key, %error, "an upload was not given up; it is swept later");
        }
    }

    /// Looks up an artifact.
    pub async fn find(&self, project_id: ProjectId, path: &ArtifactPath, which: Which) -> Result<Found, Error> {
        let found = artifact::find(&mut self.begin(project_id).await?, path, which).await?;
        found.ok_or_else(|| Error::NotFound(path.clone()))
    }

    /// Streams a part of an artifact, verified.
    pub fn read(
        &self,
        project_id: ProjectId,
        found: &Found,
        range: Range<u64>,
    ) -> BoxStream<'static, Result<Bytes, store::Error>> {
        self.store.read(key(project_id, found), &found.stored, range)
    }

    /// Reads a part of an artifact into memory, verified.
    pub async fn read_whole(&self, project_id: ProjectId, found: &Found, range: Range<u64>) -> Result<Vec<u8>, Error> {
        Ok(self.store.read_whole(key(project_id, found), &found.stored, range).await?)
    }

    /// Checks whether the content is there as it was stored. Up to `most` bytes it is read completely; larger content is checked by its size, its
    /// beginning and its end.
    pub async fn verify(&self, project_id: ProjectId, found: &Found, most: u64) -> Result<(), Error> {
        let key = key(project_id, found);
        if !self.store.has(key, &found.stored).await? {
            return Err(store::Error::Missing(key).into());
        }
        let size = found.stored.size;
        let (head, tail) = if size <= most { (0..size, size..size) } else { (0..1, size - 1..size) };
        for range in [head, tail] {
            let mut content = self.store.read(key, &found.stored, range);
            while content.try_next().await?.is_some() {}
        }
        Ok(())
    }

    /// Deletes objects that nothing refers to. Returns how many.
    pub async fn sweep(&self, most: i32) -> Result<u64, Error> {
        let mut swept = 0;
        for (project_id, upload_id) in artifact::ended_uploads(&self.kernel, most).await? {
            let mut work = self.begin(project_id).await?;
            let is_ours = artifact::condemn(&mut work, upload_id).await?;
            work.commit().await.map_err(turn::Error::from)?;
            if !is_ours {
                continue;
            }
            // Only after that commit: nothing can refer to it any more.
            self.store.delete(Key { project_id, upload_id }).await?;
            let mut work = self.begin(project_id).await?;
            artifact::forget(&mut work, upload_id).await?;
            work.commit().await.map_err(turn::Error::from)?;
            swept += 1;
        }
        Ok(swept)
    }

    async fn begin(&self, project_id: ProjectId) -> Result<waybill_kernel::work::UnitOfWork, Error> {
        Ok(self.kernel.begin(project_id).await.map_err(turn::Error::from)?)
    }
}

fn key(project_id: ProjectId, found: &Found) -> Key {
    Key { project_id, upload_id: found.upload_id }
}

fn is_media_type(text: &str) -> bool {
    let is_token = |token: &str| {
        !token.is_empty() && token.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    text.len() <= 127 && text.split_once('/').is_some_and(|(kind, of_it)| is_token(kind) && is_token(of_it))
}
