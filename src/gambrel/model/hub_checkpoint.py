"""The headers of a checkpoint on the hub, by ranged reads: some 100 kB a file instead of its gigabytes."""

from __future__ import annotations

import os

from gambrel.model.checkpoint import (
    INDEX,
    SINGLE,
    Checkpoint,
    CheckpointError,
    indexed,
    parse_header,
    quantization_of,
    shown,
    weight_map,
)
from gambrel.model.sources import (
    BUNDLE,
    _ask,
    _entry_named,
    _explain,
    _fetch,
    _library,
    _Miss,
    _status,
    read_object,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any, TypeVar

    from gambrel.model.checkpoint import Part

    T = TypeVar("T")

#: Headers asked for at a time.
AT_ONCE = 8


def read_hub(name: str, config: Mapping[str, Any] | None = None) -> Checkpoint:
    """The tensors of a model on the hub, or the mirror that HF_ENDPOINT names, without downloading any.

    name: a hub id (org/name or org/name@revision), or a bundled name, which stands for its hub id. config: the model's,
    for its quantisation. Raises CheckpointError with what to do.
    """
    repo, revision = _address(name)
    library = _library()
    if isinstance(library, _Miss):
        raise CheckpointError(f"the hub was {library.why}; try: {library.advice}")
    if library.constants.HF_HUB_OFFLINE:
        raise CheckpointError("the hub was not asked, HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set")
    hub = _Hub(library, repo, revision)
    source = f"hub: headers of {repo}, revision {revision}"
    quantization = quantization_of(config or {})
    single = hub.header(SINGLE)
    if single is not None:
        return Checkpoint(single[0], source, metadata=single[1], quantization=quantization)
    places = weight_map(read_object(hub.index()), f"{INDEX} of {repo}")
    found = indexed(places, hub.headers(sorted(set(places.values()))), source)
    return Checkpoint(found.tensors, source, "safetensors", found.metadata, quantization, found.notes)


def _address(name: str) -> tuple[str, str]:
    if not os.path.exists(os.path.expanduser(name)):
        entry = _entry_named(name, BUNDLE)
        asked = _ask(str(entry["hub_id"]) if entry else name)
        if not isinstance(asked, _Miss):
            return asked
    raise CheckpointError(f"--checkpoint hub needs a hub id or a bundled name as the model; {shown(name)} is none")


class _Hub:
    """One repository: asks for headers and turns what goes wrong into one line."""

    def __init__(self, library: ModuleType, repo: str, revision: str) -> None:
        self.library, self.repo, self.revision = library, repo, revision
        self.api = library.HfApi()

    def header(self, file: str) -> Part | None:
        """Tensors and metadata of one file; None where there is no such file."""

        def ask() -> Part:
            found = self.api.parse_safetensors_file_metadata(self.repo, file, revision=self.revision)
            entries = {name: vars(entry) for name, entry in found.tensors.items()}
            return parse_header({"__metadata__": found.metadata or {}, **entries}, f"{file} of {self.repo}")

        return self._asked(ask, file)

    def headers(self, files: list[str]) -> dict[str, Part]:
        """The headers of all shards, some at a time."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(AT_ONCE) as pool:
            parts = dict(zip(files, pool.map(self.header, files), strict=True))
        found = {file: part for file, part in parts.items() if part is not None}
        for file in files:
            if file not in found:
                raise CheckpointError(f"{INDEX} of {self.repo} names {shown(file)}, which is not there")
        return found

    def index(self) -> str:
        """The path of the downloaded index."""
        path = self._asked(lambda: _fetch(self.library, self.repo, INDEX, self.revision), INDEX)
        if path is None:
            raise CheckpointError(f"{self.repo}, revision {self.revision}, has no {SINGLE} and no {INDEX}")
        return path

    def _asked(self, ask: Callable[[], T], file: str) -> T | None:
        try:
            return ask()
        except CheckpointError:
            raise
        except Exception as error:  # the classes change with the library's HTTP client, as in sources
            names = {kind.__name__ for kind in type(error).__mro__}
            if _status(error) == 404 and "EntryNotFoundError" in names:
                return None
            if "SafetensorsParsingError" in names or isinstance(error, (TypeError, ValueError, AttributeError)):
                text = " ".join(str(error).split())
                raise CheckpointError(f"{shown(file)} of {self.repo} has a broken header: {shown(text)}") from None
            miss = _explain(error, self.repo, self.revision, self.library.constants.ENDPOINT)
            raise CheckpointError(f"{miss.why}; try: {miss.advice}" if miss.advice else miss.why) from None
