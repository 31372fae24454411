"""Where the server is, and how to reach it."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ConfigError


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
    #: Address of a proxy. If omitted, the environment's (`HTTPS_PROXY`, `NO_PROXY`).
    proxy: str | None = None
    #: File with certificates of your own certificate authority. If omitted, `SSL_CERT_FILE`, or those of the system.
    ca_file: str | None = None
    #: Headers for each request.
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def base(self) -> str:
        return f"{self.url}/v1/projects/{self.project}"

    def httpx(self) -> dict[str, Any]:
        """Returns what an HTTP client is made with."""
        headers = {"user-agent": f"waybill-python/{_version()}", **self.headers}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        made: dict[str, Any] = {"headers": headers, "timeout": self.timeout}
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
    if url is None:
        url, key, project = _from_dev(key, project)
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"the address of the API must begin with http:// or https://: {url!r}")
    if key is not None and not key.isascii():
        raise ConfigError("WAYBILL_API_KEY has characters that no key has: copy it again")
    return Config(url=url.rstrip("/"), key=key, project=project or "demo", **rest)


def _from_dev(key: str | None, project: str | None) -> tuple[str, str | None, str | None]:
    """Returns what `waybill dev` of this folder wrote, or the address that it uses by default."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        ready = folder / ".waybill" / "ready.json"
        if ready.is_file():
            said: dict[str, str] = json.loads(ready.read_text())
            kept = ready.with_name("key")
            if key is None and project in (None, said["project"]) and kept.is_file():
                key = kept.read_text().strip()
            return said["url"], key, project or said["project"]
    return "http://127.0.0.1:7070", key, project
