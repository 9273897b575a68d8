"""URLs of remotes. They name a place, and nothing else: no user, no password, no options."""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

from twin_graph.errors import UsageError
from twin_graph.remote.hub import Hub
from twin_graph.remote.sftp import Sftp
from twin_graph.remote.storage import BUCKETS, Bucket, Folder

if TYPE_CHECKING:
    from twin_graph.remote.places import Place

_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9]*)://(?P<rest>.*)", re.DOTALL)
_ADVICE = (
    "give file:///FOLDER, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, sftp://HOST/FOLDER or, to publish, hf://USER/NAME"
)


def is_url(text: str) -> bool:
    """Whether a person means a remote by it, and no folder here."""
    return _URL.match(text) is not None


def place_at(url: str) -> Place:
    """The place at a URL; nothing is reached yet. Raises `UsageError` if there can be none."""
    match = _URL.fullmatch(url)
    if match is None:
        raise UsageError(f"{url!r} is no URL of a remote; {_ADVICE}")
    protocol, rest = match["protocol"], match["rest"].rstrip("/")
    if protocol not in ("file", "hf", "sftp", *BUCKETS):
        raise UsageError(f"{protocol}:// is none of the protocols of remotes; {_ADVICE}")
    parts = rest.split("/")
    if "@" in parts[0] or "?" in rest or "#" in rest or "::" in rest:
        raise UsageError(
            f"{protocol}://... has more than a place in it: leave out names, passwords, options and chains. "
            "Credentials are found where the storage's own tools look for them"
        )
    if protocol == "file":
        rest = urllib.parse.unquote(rest)
        parts = rest.split("/")
    patterns = "" if protocol == "file" else "*[]"
    if not rest or re.search(r"[\x00-\x1f\x7f\\]", rest) or {*patterns} & {*rest}:
        raise UsageError(f"{url!r} is no place for a remote; {_ADVICE}")
    if {".", ".."} & {*parts} or "" in parts[1:]:
        raise UsageError(f"{url!r} is no place for a remote; {_ADVICE}")
    if protocol == "file":
        if parts[0]:
            raise UsageError(f"{url}: write three slashes before an absolute path, as in file:///mnt/runs/pong")
        return Folder(Path(rest))
    if protocol == "hf":
        if len(parts) != 2:
            raise UsageError(f"{url}: write the repository as hf://USER/NAME")
        return Hub(rest)
    if protocol == "sftp":
        host, _, inside = rest.partition("/")
        if not (inside and re.fullmatch(r"[A-Za-z0-9_.-]+(:[0-9]{1,5})?", host)):
            raise UsageError(f"{url}: write it as sftp://HOST/FOLDER, with HOST as for ssh and an absolute path")
        return Sftp(host, f"/{inside}")
    return Bucket(protocol, rest)
