"""Where a model's config comes from: a file, a bundled name, the local Hugging Face cache, the hub; in this order.

Only JSON is read and nothing in it is run. A bundled name costs one small file: the others stay closed, and
huggingface_hub is imported only for its cache and the hub.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace

from gambrel.types import GambrelError, one_line
from gambrel.units import BINARY, binary
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType
    from typing import Any

#: The folder of bundled configs, one <name>.json each.
BUNDLE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "models")
#: Largest config that is read; the largest published ones are below 1 MiB [byte].
LIMIT_BYTES = 16 * BINARY["Mi"]
#: Deepest nesting that is read; published configs have four levels.
LIMIT_DEPTH = 64

CONFIG = "config.json"
QUANTIZATION = "hf_quant_config.json"
#: Longest model id, and how many files of a folder a message names.
LONGEST, NAMED = 256, 6
#: What people point at instead of a config, by ending.
WEIGHTS = {
    ".gguf": "GGUF",
    ".safetensors": "safetensors",
    ".bin": "PyTorch weights",
    ".pt": "PyTorch weights",
    ".pth": "PyTorch weights",
}
BARE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?", re.ASCII)
LOGIN = "log in with 'hf auth login' or set HF_TOKEN"


class ModelNotFound(GambrelError):
    """No place has the model; the message names the places, what happened at each and what to do."""


@frozen
class Found:
    """A config and where it is from.

    name: for people. config: the object in config.json. source: one line that says which file, from where.
    """

    name: str
    config: dict[str, Any]
    source: str


@frozen
class _Miss:
    """Why a place does not have the model. advice: what to do about it. note: said even if another place has it."""

    why: str
    advice: str = ""
    note: str = ""


def find_config(name: str, bundle: str = BUNDLE) -> Found:
    """The config of a model given by path, bundled name or alias, or hub id (org/name or org/name@revision).

    Raises ModelNotFound with what happened at each place, and GambrelError for a file that is there but is no config.
    """
    looks = {"file": _from_file, "bundled": _from_bundle, "Hugging Face cache": _from_cache, "hub": _from_hub}
    misses: dict[str, _Miss] = {}
    for place, look in looks.items():
        found = look(name, bundle)
        if isinstance(found, Found):
            notes = "".join(f"; {miss.note}" for miss in misses.values() if miss.note)
            return replace(found, source=found.source + notes)
        misses[place] = found
    raise _not_found(name, misses)


def bundled_names(bundle: str = BUNDLE) -> list[str]:
    """The bundled names in order; no file is opened."""
    try:
        files = os.listdir(bundle)
    except OSError:
        return []
    return sorted(file.removesuffix(".json") for file in files if file.endswith(".json") and file[0] != ".")


def bundled(name: str, bundle: str = BUNDLE) -> dict[str, Any]:
    """The bundled entry with this name or alias, in any case: name, hub_id, source, aliases and config.

    Raises ModelNotFound with the closest spellings.
    """
    entry = _entry_named(name, bundle)
    if entry is None:
        raise _not_found(name, {"bundled": _no_such_name(name, bundle)})
    return entry


def _not_found(name: str, misses: dict[str, _Miss]) -> ModelNotFound:
    lines = [f"no model {name!r}", *(f"  {place}: {miss.why}" for place, miss in misses.items())]
    return ModelNotFound("\n".join([*lines, *(f"try: {miss.advice}" for miss in misses.values() if miss.advice)]))


# Files ----------------------------------------------------------------------------------------


def _from_file(name: str, _bundle: str) -> Found | _Miss:
    """A file, or a folder with a config.json; a folder without one does not hide a model of its name."""
    path = os.path.expanduser(name)
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return _Miss("no such file or folder")
    except OSError as error:
        if _is_path(name):
            raise GambrelError(f"cannot read {_plain(path)}: {error.strerror}") from None
        return _Miss(f"{error.strerror}")
    if os.path.isdir(path):
        inside = os.path.join(path, CONFIG)
        if not os.path.lexists(inside):
            return _Miss(f"{_plain(path)} has no {CONFIG}; {_holds(path)}", note=f"{_plain(path)} has no {CONFIG}")
        path = inside
    beside = os.path.join(os.path.dirname(path), QUANTIZATION) if os.path.basename(path) == CONFIG else None
    config, also = _read_config(path, beside if beside and os.path.lexists(beside) else None)
    return Found(_stem(path), config, f"file {_plain(path)}{also}")


def _holds(folder: str) -> str:
    """What a folder holds instead of a config.json."""
    try:
        files = sorted(os.listdir(folder))
    except OSError as error:
        raise GambrelError(f"cannot read {_plain(folder)}: {error.strerror}") from None
    if not files:
        return "it is empty"
    kinds = sorted({WEIGHTS[e] for e in (os.path.splitext(file)[1].lower() for file in files) if e in WEIGHTS})
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    text = f"it holds {', '.join(map(_plain, files[:NAMED]))}{more}"
    return (
        f"{text} ({' and '.join(kinds)} files need a {CONFIG} beside them; --checkpoint then reads their headers)"
        if kinds
        else text
    )


def _stem(path: str) -> str:
    """A name for the model in a file: the file's, or its folder's where the file is just config.json."""
    path = os.path.abspath(path)
    if os.path.basename(path) == CONFIG:
        return os.path.basename(os.path.dirname(path)) or "config"
    return os.path.splitext(os.path.basename(path))[0]


def _is_path(name: str) -> bool:
    """Whether an argument can only be a path: ./x, ~/x, x.json, a/b/c; but org/name is a model id."""
    if name.startswith((".", "~", os.sep)) or name.lower().endswith(".json"):
        return True
    return ("/" in name or "\\" in name) and _parse_id(name) is None


def _read_config(path: str, quantization_path: str | None) -> tuple[dict[str, Any], str]:
    """A config with its hf_quant_config.json merged in where it says nothing itself, and what to add to the source.

    NVIDIA modelopt checkpoints keep their formats in that file, under "quantization".
    """
    config = read_object(path)
    told = any(config.get(key) is not None for key in ("quantization_config", "compression_config"))
    if quantization_path is None or told:
        return config, ""
    quantization = read_object(quantization_path).get("quantization")
    if not isinstance(quantization, dict):
        raise GambrelError(f'{_plain(quantization_path)} has no object "quantization"')
    merged = {**config, "quantization_config": {"quant_method": "modelopt", **quantization}}
    return merged, f" and {QUANTIZATION} beside it"


def read_object(path: str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises GambrelError that names the file, and the line where there is one: unreadable, over 16 MiB, not UTF-8, broken
    JSON, no object, nested too deeply, a key that is there twice, a number that is not finite.
    """
    text, where = _read_text(path), _plain(path)
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)
        _check_text(text, value)
    except json.JSONDecodeError as error:
        what = error.msg if text.strip() else "the file is empty"
        raise GambrelError(f"broken JSON in {where}, line {error.lineno}, column {error.colno}: {what}") from None
    except RecursionError:
        raise GambrelError(f"{where} is nested too deeply for a config") from None
    except ValueError as error:
        raise GambrelError(f"{where}: {error}") from None
    if not isinstance(value, dict):
        raise GambrelError(f"{where} holds {_kind(value)}; a config holds one object")
    return value


def _read_text(path: str) -> str:
    where = _plain(path)
    weights = WEIGHTS.get(os.path.splitext(path)[1].lower())
    if weights:
        raise GambrelError(
            f"{where}: {weights} files hold no config; give the model's {CONFIG} or its folder, "
            "and --checkpoint to read their headers"
        )
    try:
        with open(path, "rb") as file:
            too_large = os.fstat(file.fileno()).st_size > LIMIT_BYTES
            data = b"" if too_large else file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise GambrelError(f"cannot read {where}: {error.strerror}") from None
    if too_large or len(data) > LIMIT_BYTES:
        raise _too_large(where)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise GambrelError(f"{where} is not UTF-8 text; a {CONFIG} is")
    return text


def _too_large(where: str) -> GambrelError:
    return GambrelError(f"{where} is over {binary(LIMIT_BYTES)}, too large for a {CONFIG}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object, unless it has a key twice: a parser would keep the last one in silence."""
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key!r} is there twice in one object")
        table[key] = value
    return table


def _finite(text: str) -> float:
    value = float(text)
    if not abs(value) < float("inf"):
        raise ValueError(f"{text} is not a finite number")
    return value


def _check_text(text: str, value: Any) -> None:
    """Refuse what the parser lets through and what would break later: half of a surrogate pair, deep nesting."""
    if "\\ud" in text.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a string has half of a surrogate pair") from None
    level = [value]
    for _ in range(LIMIT_DEPTH):
        level = [child for item in level for child in _children(item)]
    if level:
        raise RecursionError


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", bool: "true or false", type(None): "null"}.get(type(value), "a number")


def _plain(text: str) -> str:
    """A path as it is, or quoted where it has characters that would garble a terminal."""
    return text if text.isprintable() else repr(text)


# Bundled --------------------------------------------------------------------------------------


def _from_bundle(name: str, bundle: str) -> Found | _Miss:
    if _is_path(name):
        return replace(_no_such_name(_stem(name), bundle), why="not asked, the name is a path")
    entry = _entry_named(name, bundle)
    if entry is None:
        return _no_such_name(name, bundle)
    source = entry.get("source") or {}
    title = source.get("title") or f"{CONFIG} of {entry.get('hub_id')}"
    told = ", ".join(str(part) for part in (title, source.get("url"), source.get("date")) if part)
    return Found(entry["name"], entry["config"], f"bundled: {told}")


def _entry_named(name: str, bundle: str) -> dict[str, Any] | None:
    """The entry whose file has the name, else the one that has it as an alias. An exact name opens one file."""
    if BARE_NAME.fullmatch(name):
        for stem in (name, name.lower()):
            if os.path.isfile(os.path.join(bundle, f"{stem}.json")):
                return _entry(stem, bundle)
    wanted, names = name.casefold(), bundled_names(bundle)
    for stem in names:
        if stem.casefold() == wanted:
            return _entry(stem, bundle)
    entries = (_entry(stem, bundle) for stem in names)
    return next((e for e in entries if any(alias.casefold() == wanted for alias in e["aliases"])), None)


def _entry(stem: str, bundle: str) -> dict[str, Any]:
    path = os.path.join(bundle, f"{stem}.json")
    entry = {"name": stem, "aliases": [], **read_object(path)}
    if not isinstance(entry.get("config"), dict):
        raise GambrelError(f'{_plain(path)} has no object "config"')
    return entry


def _no_such_name(name: str, bundle: str) -> _Miss:
    """Says which bundled model has the same hub id, or else which are spelled much the same."""
    import difflib

    entries = [_entry(stem, bundle) for stem in bundled_names(bundle)]
    why = f"none of the {len(entries)} names and their aliases"
    hub_id = name.partition("@")[0].casefold()
    twins = [entry["name"] for entry in entries if str(entry.get("hub_id")).casefold() == hub_id]
    if twins:
        return _Miss(why, f"the bundled name {twins[0]} has the same hub id, {name.partition('@')[0]}")
    spelled = {word.casefold(): entry["name"] for entry in entries for word in (*entry["aliases"], entry["name"])}
    words = (hub_id, hub_id.rpartition("/")[2])
    exact = [word for word in words if word in spelled]
    close = exact or next(filter(None, (difflib.get_close_matches(word, spelled) for word in words)), [])
    names = list(dict.fromkeys(spelled[word] for word in close))
    return _Miss(why, f"bundled is {' or '.join(names)}" if names else "")


# Hugging Face ---------------------------------------------------------------------------------


def _parse_id(name: str) -> tuple[str, str] | None:
    """Repository and revision of org/name@revision; None for what is no model id, such as a path out of the cache."""
    if len(name) > LONGEST or not MODEL_ID.fullmatch(name):
        return None
    repo, _, revision = name.partition("@")
    if any(part in ("", ".", "..") for part in (revision or "main").split("/")):
        return None
    return repo, revision or "main"


def _ask(name: str) -> tuple[str, str] | _Miss:
    if _is_path(name):
        return _Miss("not asked, the name is a path")
    return _parse_id(name) or _Miss("not asked, that is no model id; one is org/name or org/name@revision")


def _library() -> ModuleType | _Miss:
    """huggingface_hub with the parts of it that are used here, imported for the first time."""
    try:
        import huggingface_hub
        from huggingface_hub import constants, file_download, utils  # noqa: F401  (they load on first use)
    except ImportError as error:
        return _Miss(f"not asked, huggingface_hub cannot be imported ({error})", "pip install huggingface_hub")
    except Exception as error:  # it parses its environment variables when imported
        return _Miss(f"not asked, huggingface_hub cannot be imported ({_detail(error)})", "check the HF_ variables")
    return huggingface_hub


def _from_cache(name: str, _bundle: str) -> Found | _Miss:
    """The cache of huggingface_hub; nobody is asked whether a hf_quant_config.json should be there too."""
    asked = _ask(name)
    if isinstance(asked, _Miss):
        return asked
    library = _library()
    if isinstance(library, _Miss):
        return library
    repo, revision = asked
    try:
        look = library.file_download.try_to_load_from_cache
        cached, beside = (look(repo, file, revision=revision) for file in (CONFIG, QUANTIZATION))
    except Exception as error:  # OSError, or the library's own idea of a repository's name
        return _Miss(_detail(error))
    if not isinstance(cached, str):
        return _Miss(f"no {CONFIG} of {repo}, revision {revision} in {_plain(library.constants.HF_HUB_CACHE)}")
    config, also = _read_config(cached, beside if isinstance(beside, str) else None)
    return Found(name, config, f"Hugging Face cache: {_plain(cached)}{also}")


def _from_hub(name: str, _bundle: str) -> Found | _Miss:
    """The hub, or the mirror that HF_ENDPOINT names; what is fetched stays in the cache."""
    asked = _ask(name)
    if isinstance(asked, _Miss):
        return asked
    library = _library()
    if isinstance(library, _Miss):
        return replace(library, advice="")
    if library.constants.HF_HUB_OFFLINE:
        return _Miss("not asked, HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set", "the same without offline mode")
    repo, revision = asked
    endpoint = re.sub(r"//[^/@]*@", "//", library.constants.ENDPOINT)
    try:
        # The optional file first: a config in the cache then means that this one was looked for.
        beside = _fetch_if_there(library, repo, QUANTIZATION, revision)
        path = _fetch(library, repo, CONFIG, revision)
    except GambrelError:
        raise
    except Exception as error:  # the classes change with the library's HTTP client: requests, httpx, httpx2
        return _explain(error, repo, revision, endpoint)
    config, also = _read_config(path, beside)
    return Found(name, config, f"hub: {endpoint}/{repo}, revision {revision}{also}")


def _fetch(library: ModuleType, repo: str, file: str, revision: str) -> str:
    """Download one file to the cache, its size checked before; returns its path.

    The size is asked for without retries. hf_hub_download alone would repeat that request for minutes, at 60 s each,
    where the network swallows it.
    """
    timeout = library.constants.HF_HUB_ETAG_TIMEOUT
    url = library.file_download.hf_hub_url(repo, file, revision=revision)
    size = library.file_download.get_hf_file_metadata(url, timeout=timeout).size
    if size is not None and size > LIMIT_BYTES:
        raise _too_large(f"{file} of {repo}")
    bar = "huggingface_hub.http_get"
    hide = library.constants.HF_HUB_DISABLE_PROGRESS_BARS is None and not library.utils.are_progress_bars_disabled(bar)
    if hide:
        library.utils.disable_progress_bars(bar)
    try:
        return str(library.file_download.hf_hub_download(repo, file, revision=revision, etag_timeout=timeout))
    finally:
        if hide:
            library.utils.enable_progress_bars(bar)


def _fetch_if_there(library: ModuleType, repo: str, file: str, revision: str) -> str | None:
    try:
        return _fetch(library, repo, file, revision)
    except Exception as error:
        if _status(error) == 404:
            return None
        raise


def _status(error: BaseException) -> int | None:
    """The HTTP status behind an error of the library."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _explain(error: Exception, repo: str, revision: str, endpoint: str) -> _Miss:
    """What a failure at the hub means and what to do, by the names of its classes and its HTTP status."""
    names, status = {kind.__name__ for kind in type(error).__mro__}, _status(error)
    if "HFValidationError" in names:
        return _Miss(_detail(error))
    if status is None and isinstance(error, OSError) and error.filename is not None:
        return _Miss(f"cannot write the cache: {_detail(error)}", "set HF_HOME to a folder that you can write")
    if status is None:
        why = f"{endpoint} cannot be reached, or is no hub: {_detail(error.__cause__ or error)}"
        return _Miss(why, "check the network, the proxy and HF_ENDPOINT")
    told = f"{endpoint} says HTTP {status}, "
    if status in (401, 403):
        return _refusal(error, names, told, repo, f"{endpoint}/{repo}")
    if "RevisionNotFoundError" in names:
        return _Miss(f"{told}{repo} has no revision {revision}")
    if "EntryNotFoundError" in names:
        return _Miss(f"{told}{repo} has no {CONFIG} (adapters and GGUF repositories have none)")
    if status == 404:
        return _Miss(f"{told}there is no {repo}", "check the spelling")
    return _Miss(f"{told}{_detail(error)}", f"wait a while, or {LOGIN}" if status == 429 else "wait a while")


def _refusal(error: Exception, names: set[str], told: str, repo: str, page: str) -> _Miss:
    """401 and 403: the hub says so of a gated repository, of a private one, and of one that does not exist."""
    if "GatedRepoError" in names:
        return _Miss(f"{told}{repo} is gated", f"accept the licence at {page}, then {LOGIN}")
    if "Invalid credentials" in str(error):
        return _Miss(f"{told}it does not accept your token", "'hf auth login' once more, or another HF_TOKEN")
    why = f"{told}{repo} does not exist, or is private or gated"
    return _Miss(why, f"check the spelling; accept the licence at {page} if it has one, then {LOGIN}")


def _detail(error: BaseException) -> str:
    """An error in one line, without the token in a header and the password in an address that it quotes."""
    text = re.sub(r"//[^/@\s]*@", "//", re.sub(r"Bearer[^'\"]*", "Bearer …", one_line(error)))
    return _plain(text[:240])
