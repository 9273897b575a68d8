"""Model repositories of the Hugging Face hub as places: to publish a run, with a card for people."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twin_graph.errors import UsageError
from twin_graph.remote.places import Listed, as_os_errors

if TYPE_CHECKING:
    from collections.abc import Mapping


class Hub:
    """Implements `Place`. What is written is sent with the next head, in one commit of the repository.

    A commit names the one before it, and the hub refuses one whose predecessor is no longer the newest. So of any
    number who create a head, one succeeds.

    Args:
      repository: USER/NAME.
    """

    is_only_for_publishing = True

    def __init__(self, repository: str) -> None:
        self.url, self._repository = f"hf://{repository}", repository
        self._written: dict[str, bytes] = {}
        self._connected: Any = None

    @property
    def _api(self) -> Any:
        if self._connected is None:
            try:
                import huggingface_hub
            except ImportError as error:
                raise UsageError(
                    f"hf:// needs the extra `remote` ({error}): pip install 'twin-graph[remote]'"
                ) from None
            self._connected = huggingface_hub.HfApi(library_name="twin-graph")
        return self._connected

    def read(self, path: str, most: int) -> bytes:
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

        with as_os_errors(self.url), tempfile.TemporaryDirectory(prefix="twin-graph-") as folder:
            try:
                fetched = Path(self._api.hf_hub_download(self._repository, path, cache_dir=folder))
            except (EntryNotFoundError, RepositoryNotFoundError):
                raise FileNotFoundError(f"{self.url}/{path}") from None
            with fetched.open("rb") as file:
                return file.read(most + 1)

    def write(self, path: str, content: bytes) -> None:
        self._written[path] = content

    def create(self, path: str, content: bytes) -> None:
        from huggingface_hub import CommitOperationAdd

        with as_os_errors(self.url):
            self._api.create_repo(self._repository, exist_ok=True, repo_type="model")
            before = self._api.repo_info(self._repository).sha
            if path in self.objects(path.rpartition("/")[0]):
                raise FileExistsError(f"{self.url}/{path}")
            everything: Mapping[str, bytes] = {**self._written, path: content}
            self._api.create_commit(
                self._repository,
                [CommitOperationAdd(name, held) for name, held in everything.items()],
                commit_message=f"Add {path}",
                parent_commit=before,
            )
        self._written.clear()

    def objects(self, folder: str) -> dict[str, Listed]:
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

        with as_os_errors(self.url):
            try:
                found = list(self._api.list_repo_tree(self._repository, folder, recursive=True))
            except (EntryNotFoundError, RepositoryNotFoundError):
                return {}
        # Nothing is ever removed there: the history of the repository has it anyway.
        return {one.path: Listed(one.size, 0.0) for one in found if hasattr(one, "size")}

    def folders(self) -> list[str]:
        return []

    def remove(self, path: str) -> None:
        raise UsageError(f"{self.url}: nothing is removed from a repository's history ({path})")
