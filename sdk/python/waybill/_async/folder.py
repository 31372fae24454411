"""What a project stores by path: artifacts, and documents that agents can find."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .. import models
    from .operations import AsyncOperations


class AsyncArtifacts:
    """Files by path. New content becomes a new version."""

    def __init__(self, api: AsyncOperations) -> None:
        self._api = api

    async def put(self, path: str, content: str | bytes, *, media_type: str | None = None, external: bool | None = None) -> models.Artifact:
        """Stores content. It counts as content from outside unless `external` is False."""
        kind = media_type or mimetypes.guess_type(path)[0] or ("text/plain" if isinstance(content, str) else "application/octet-stream")
        return await self._api.put_artifact(content, path=path, media_type=kind, external=external)

    async def get(self, path: str, version: int | None = None) -> bytes:
        return await self._api.read_artifact(path=path, version=version)

    async def text(self, path: str, version: int | None = None) -> str:
        return (await self.get(path, version)).decode()

    async def list(self, prefix: str | None = None) -> Sequence[models.Artifact]:
        found: list[models.Artifact] = []
        after: str | None = None
        while True:
            page = await self._api.list_artifacts(prefix=prefix, after=after, most=1000)
            found += page.items
            after = page.next
            if after is None:
                return found

    async def remove(self, path: str, *, older: bool = False) -> int:
        """Removes an artifact, or only its older versions. Returns how many versions were removed."""
        return (await self._api.remove_artifact(path=path, older=older)).n_removed


class AsyncKnowledge:
    """Documents in Markdown or plain text, which agents can search."""

    def __init__(self, api: AsyncOperations) -> None:
        self._api = api

    async def put(self, path: str, text: str, *, title: str | None = None, external: bool | None = None) -> models.AppliedDocument:
        return await self._api.apply_document(text, path=path, title=title, external=external)

    async def search(self, question: str, folders: Sequence[str], *, most: int | None = None, kind: str | None = None) -> list[models.FoundChunk]:
        """Returns passages that fit a question, best first. `kind` is `knowledge` or `experience`."""
        said = {"question": question, "folders": list(folders), "most": most, "kind": kind}
        return await self._api.search_knowledge({name: value for name, value in said.items() if value is not None})

    async def list(self, kind: str = "knowledge") -> Sequence[models.Document]:
        return (await self._api.list_documents(kind=kind, most=1000)).items

    async def remove(self, path: str, kind: str = "knowledge") -> None:
        await self._api.remove_document(kind=kind, path=path)
