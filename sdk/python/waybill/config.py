"""Where the server is, and how to reach it."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from .errors import ConfigError

ROOT = 0
#: Where `waybill dev` is, unless it is started with another address.
DEFAULT = "http://127.0.0.1:7070"


@dataclass(frozen=True)
class Config:
    """Settings of a client. `Waybill(url=…, key=…)` makes one."""

    url: str
    key: str | None = field(repr=False)
    project: str
    #: Seconds that one attempt may take.
    timeout: float = 60.0
    #: Seconds for which a request is sent again, while that may help.
    patience: float = 60.0
    #: Address of a proxy, which may have a password. If omitted, the environment's (`HTTPS_PROXY`, `NO_PROXY`).
    proxy: str | None = field(default=None, repr=False)
    #: File with certificates of your own certificate authority. If omitted, `SSL_CERT_FILE`, or those of the system.
    ca_file: str | None = None
    #: Headers for each request.
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    #: Whether the address is the default: no setting and no folder names another.
    is_default: bool = False

    @property
    def base(self) -> str:
        return f"{self.url}/v1/projects/{quote(self.project, safe='')}"

    def httpx(self) -> dict[str, Any]:
        """Returns what an HTTP client is made with."""
        import httpx2

        headers = {"user-agent": f"waybill-python/{_version()}", **self.headers}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        # As many connections as the program has requests under way: one that waits for a turn must not keep others from being sent.
        made: dict[str, Any] = {"headers": headers, "timeout": self.timeout, "limits": httpx2.Limits(max_keepalive_connections=20)}
        if self.proxy:
            made["proxy"] = self.proxy
        if ca_file := self.ca_file or os.environ.get("SSL_CERT_FILE"):
            made["verify"] = ssl.create_default_context(cafile=ca_file)
        return made


def _version() -> str:
    from . import __version__

    return __version__


def find(url: str | None, key: str | None, project: str | None, **rest: Any) -> Config:
    """Completes settings from WAYBILL_API_URL, WAYBILL_API_KEY and WAYBILL_PROJECT, or else from the folder `.waybill` of `waybill dev`."""
    url = url or os.environ.get("WAYBILL_API_URL")
    key = key or os.environ.get("WAYBILL_API_KEY")
    project = project or os.environ.get("WAYBILL_PROJECT")
    is_default = False
    if url is None:
        url, key, project = _from_dev(key, project)
        is_default = url is None
    url = url or DEFAULT
    _check(url)
    key = key and key.strip()
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError("WAYBILL_API_KEY has characters that no key has: copy it again")
    if project in (".", ".."):
        raise ConfigError(f"WAYBILL_PROJECT is no name of a project: {project!r}")
    return Config(url=url.rstrip("/"), key=key or None, project=project or "demo", is_default=is_default, **rest)


def _check(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"the address of the API must begin with http:// or https://: {url!r}")
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigError(f"the address of the API is not valid: {url!r}: {error}") from None
    if not is_whole:
        raise ConfigError(f"the address of the API names no host: {url!r}")
    if "@" in parts.netloc:
        raise ConfigError("the address of the API must have no password: it would replace the key, and be shown in logs")


def _from_dev(key: str | None, project: str | None) -> tuple[str | None, str | None, str | None]:
    """Returns what `waybill dev` of this folder wrote. Without such a folder, the address is None."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        ready = folder / ".waybill" / "ready.json"
        if ready.is_file():
            if key is not None and hasattr(os, "getuid") and ready.stat().st_uid not in (os.getuid(), ROOT):
                raise ConfigError(f"{ready} belongs to another user, who would get your key: set WAYBILL_API_URL")
            said: dict[str, str] = json.loads(ready.read_text())
            kept = ready.with_name("key")
            if key is None and project in (None, said["project"]) and kept.is_file():
                key = kept.read_text().strip()
            return said["url"], key, project or said["project"]
    return None, key, project
