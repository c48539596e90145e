"""Where configs come from: files, bundled names, the Hugging Face cache and the hub. No network: the hub is a stub."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import gambrel
from gambrel.model import sources
from gambrel.model.sources import Found, ModelNotFound, bundled, bundled_names, find_config
from gambrel.types import GambrelError

if TYPE_CHECKING:
    from collections.abc import Iterator

LLAMA = {"model_type": "llama", "hidden_size": 4096}
QUANTIZED: dict[str, dict[str, Any]] = {
    "producer": {"name": "modelopt", "version": "0.33.1"},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write(path: Path, content: object) -> Path:
    """A file with text as it is, bytes as they are, anything else as JSON; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def entry(name: str, hub_id: str, *aliases: str) -> dict[str, Any]:
    source = {
        "title": f"config.json of {hub_id}",
        "url": f"https://huggingface.co/{hub_id}",
        "date": "2026-11-30",
    }
    return {"name": name, "hub_id": hub_id, "source": source, "aliases": list(aliases), "config": LLAMA}


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    folder = tmp_path / "bundle"
    write(folder / "llama-3-8b.json", entry("llama-3-8b", "meta-llama/Meta-Llama-3-8B", "llama3:8b", "Llama-3"))
    write(folder / "qwen3-0.6b.json", entry("qwen3-0.6b", "Qwen/Qwen3-0.6B", "qwen3-tiny"))
    write(folder / "Mixtral.json", entry("Mixtral", "mistralai/Mixtral-8x7B-v0.1"))
    return str(folder)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The library in this process, with an empty cache and no network; returns the cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def fails(name: str, *needles: str, bundle: str = "/nowhere", kind: type[GambrelError] = GambrelError) -> str:
    """The message with which find_config fails, in plain text of a few lines, each needle in it."""
    with pytest.raises(kind) as caught:
        find_config(name, bundle)
    message = str(caught.value)
    assert type(caught.value) is kind
    assert len(message.splitlines()) <= 9
    assert "Traceback" not in message
    message.encode()
    for needle in needles:
        assert needle in message, message
    return message


def not_found(name: str, *needles: str, bundle: str = "/nowhere") -> str:
    message = fails(name, *needles, bundle=bundle, kind=ModelNotFound)
    places = [line.strip().partition(":")[0] for line in message.splitlines()[1:5]]
    assert places == ["file", "bundled", "Hugging Face cache", "hub"]
    return message


# Files ----------------------------------------------------------------------------------------


def test_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny" / "config.json", LLAMA)
    assert find_config(str(path)) == Found("tiny", LLAMA, f"file {path}")


def test_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "tiny" / "config.json", LLAMA)
    assert find_config(f"{tmp_path}/tiny") == Found("tiny", LLAMA, f"file {tmp_path}/tiny/config.json")
    assert find_config(f"{tmp_path}/tiny/").name == "tiny"


def test_a_file_of_another_name(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.v2.json", LLAMA)
    write(tmp_path / "hf_quant_config.json", QUANTIZED)
    assert find_config(str(path)) == Found("mine.v2", LLAMA, f"file {path}")


def test_the_working_folder_and_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "config.json", LLAMA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_config(".").source == "file ./config.json"
    assert find_config("config.json").name == tmp_path.name
    assert find_config("~/config.json").source == f"file {tmp_path}/config.json"


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path / "config.json", b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert find_config(str(path)).config == LLAMA


def test_a_file_comes_before_a_bundled_name(tmp_path: Path, bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "llama-3-8b" / "config.json", {"model_type": "mine"})
    monkeypatch.chdir(tmp_path)
    assert find_config("llama-3-8b", bundle).source == "file llama-3-8b/config.json"


def test_a_folder_without_config_does_not_hide_a_bundled_name(
    tmp_path: Path, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "llama-3-8b" / "results.csv", "")
    monkeypatch.chdir(tmp_path)
    found = find_config("llama-3-8b", bundle)
    assert found.source.startswith("bundled: config.json of meta-llama/Meta-Llama-3-8B, ")
    assert found.source.endswith("; llama-3-8b has no config.json")


@pytest.mark.usefixtures("offline")
def test_a_folder_without_config_is_named_when_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "org" / "name" / "results.csv", "")
    monkeypatch.chdir(tmp_path)
    not_found("org/name", "file: org/name has no config.json; it holds results.csv")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ([], "it is empty"),
        (["notes.txt"], "it holds notes.txt"),
        (["a.gguf"], "it holds a.gguf (GGUF files need a config.json beside them"),
        (["a.gguf", "b.safetensors"], "(GGUF and safetensors files need a config.json"),
        (["pytorch_model.bin"], "(PyTorch weights files need a config.json"),
        ([f"{i}.txt" for i in range(9)], "it holds 0.txt, 1.txt, 2.txt, 3.txt, 4.txt, 5.txt and 3 more"),
        (["a\nb"], "it holds 'a\\nb'"),
    ],
)
def test_a_folder_without_config_says_what_it_holds(tmp_path: Path, files: list[str], told: str) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    for file in files:
        write(folder / file, "")
    not_found(str(folder), f"{folder} has no config.json; ", told)


@pytest.mark.parametrize(
    "name", ["./x", "../x/config.json", "~/nowhere/x", "x.json", "a/b/c", "/a/b", "org/name/", "a\\b", "/a/\0", "..."]
)
def test_no_such_file(name: str, tmp_path: Path, bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = not_found(name, "file: no such file", bundle=bundle)
    assert message.count("not asked, the name is a path") == 3


@pytest.mark.parametrize("name", ["llama-3-8b.json", "models/lama-3-8b.json", "./llama-3-8b/config.json"])
def test_no_such_file_but_a_bundled_name(
    name: str, bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    not_found(name, "file: no such file", "try: bundled is llama-3-8b", bundle=bundle)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"a": 1,\n "b" 2}', ["broken JSON in ", "line 2, column 6: Expecting ':' delimiter"]),
        ('{"a": 1', ["line 1, column 8"]),
        ("", ["line 1, column 1: the file is empty"]),
        (" \n", ["the file is empty"]),
        ("hello", ["line 1, column 1: Expecting value"]),
        ("[1]", ["holds a list; a config holds one object"]),
        ("null", ["holds null"]),
        ("true", ["holds true or false"]),
        ("3", ["holds a number"]),
        ('"x"', ["holds a string"]),
        ('{"a": {"b": 1, "c": 2, "b": 3}}', ["the key 'b' is there twice"]),
        ('{"a": 1, "a": 1}', ["the key 'a' is there twice"]),
        ('{"a": NaN}', ["NaN is not a finite number"]),
        ('{"a": Infinity}', ["Infinity is not a finite number"]),
        ('{"a": -Infinity}', ["-Infinity is not a finite number"]),
        ('{"a": 1e999}', ["1e999 is not a finite number"]),
        ('{"a": ' + "9" * 5000 + "}", ["4300 digits"]),
        ('{"a": "\\ud800"}', ["half of a surrogate pair"]),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", ["nested too deeply"]),
        ('{"a": ' + "[" * 80 + "]" * 80 + "}", ["nested too deeply"]),
        ('{"a": ' * 80 + "1" + "}" * 80, ["nested too deeply"]),
        (b"GGUF\x03\x00\x00\x00", ["is not UTF-8 text"]),
        (b'{"a": "\xff"}', ["is not UTF-8 text"]),
        ('{"a": 1}'.encode("utf-16"), ["is not UTF-8 text"]),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, content: object, told: list[str]) -> None:
    path = write(tmp_path / "config.json", content)
    fails(str(path), str(path), *told)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "config.json", "{}")
    os.truncate(path, 16 * 2**20)
    fails(str(path), "is not UTF-8 text")
    os.truncate(path, 16 * 2**20 + 1)
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("was read"))
    fails(str(path), f"{path} is over 16.0 MiB, too large for a config.json")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
def test_a_device_without_size_is_not_read_for_ever() -> None:
    fails("/dev/zero", "/dev/zero is over 16.0 MiB")


@pytest.mark.parametrize("file", ["model.gguf", "model-00001-of-00002.safetensors", "pytorch_model.bin", "a.PT"])
def test_a_file_of_weights(tmp_path: Path, file: str) -> None:
    fails(str(write(tmp_path / file, b"\x00")), file, "files hold no config; give the model's config.json")


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "config.json", LLAMA)
    monkeypatch.setattr(sources, "open", denied, raising=False)
    fails(str(path), f"cannot read {path}: Permission denied")


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", denied)
    fails(str(tmp_path), f"cannot read {tmp_path}: Permission denied")
    monkeypatch.setattr(os, "stat", denied)
    fails("./x/config.json", "cannot read ./x/config.json: Permission denied")


def test_a_config_that_is_a_folder_or_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "a" / "config.json").mkdir(parents=True)
    fails(str(tmp_path / "a"), "cannot read", "config.json: Is a directory")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").symlink_to(tmp_path / "gone")
    fails(str(tmp_path / "b"), "cannot read", "config.json: No such file")


def test_a_path_that_would_garble_a_terminal_is_quoted(tmp_path: Path) -> None:
    path = write(tmp_path / "a\x1b[31m" / "config.json", LLAMA)
    assert find_config(str(path)).source == f"file {str(path)!r}"
    not_found(str(tmp_path / "b\x1b[31m" / "\udcff"), "no model ")


# hf_quant_config.json -------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["x", "x/config.json"])
def test_a_modelopt_checkpoint(tmp_path: Path, argument: str) -> None:
    write(tmp_path / "x" / "config.json", LLAMA)
    write(tmp_path / "x" / "hf_quant_config.json", QUANTIZED)
    found = find_config(f"{tmp_path}/{argument}")
    assert found.config == {**LLAMA, "quantization_config": {"quant_method": "modelopt", **QUANTIZED["quantization"]}}
    assert found.source == f"file {tmp_path}/x/config.json and hf_quant_config.json beside it"


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_the_config_speaks_first(tmp_path: Path, key: str) -> None:
    config = {**LLAMA, key: {"quant_method": "fp8"}}
    write(tmp_path / "config.json", config)
    write(tmp_path / "hf_quant_config.json", QUANTIZED)
    assert find_config(str(tmp_path)) == Found(tmp_path.name, config, f"file {tmp_path}/config.json")


def test_a_null_says_nothing(tmp_path: Path) -> None:
    write(tmp_path / "config.json", {**LLAMA, "quantization_config": None})
    write(tmp_path / "hf_quant_config.json", QUANTIZED)
    assert find_config(str(tmp_path)).config["quantization_config"]["quant_algo"] == "FP8"


@pytest.mark.parametrize("content", [{"producer": {}}, {"quantization": None}, {"quantization": []}])
def test_a_broken_quantization(tmp_path: Path, content: object) -> None:
    write(tmp_path / "config.json", LLAMA)
    path = write(tmp_path / "hf_quant_config.json", content)
    fails(str(tmp_path), f'{path} has no object "quantization"')


def test_a_dangling_quantization_is_not_ignored(tmp_path: Path) -> None:
    write(tmp_path / "config.json", LLAMA)
    (tmp_path / "hf_quant_config.json").symlink_to(tmp_path / "gone")
    fails(str(tmp_path), "cannot read", "hf_quant_config.json")


# Bundled --------------------------------------------------------------------------------------


def test_a_bundled_name(bundle: str) -> None:
    source = "bundled: config.json of meta-llama/Meta-Llama-3-8B, https://huggingface.co/meta-llama/Meta-Llama-3-8B, "
    assert find_config("llama-3-8b", bundle) == Found("llama-3-8b", LLAMA, source + "2026-11-30")


@pytest.mark.parametrize("name", ["LLAMA-3-8B", "Llama-3-8b", "llama3:8b", "LLAMA3:8B", "llama-3"])
def test_bundled_names_and_aliases_in_any_case(bundle: str, name: str) -> None:
    assert find_config(name, bundle).name == "llama-3-8b"
    assert bundled(name, bundle)["name"] == "llama-3-8b"


@pytest.mark.parametrize("name", ["Mixtral", "mixtral", "MIXTRAL"])
def test_a_bundled_file_in_capitals(bundle: str, name: str) -> None:
    assert find_config(name, bundle).name == "Mixtral"


def test_an_exact_name_opens_one_file(bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def spy(path: str, *rest: Any) -> Any:
        opened.append(path)
        return open(path, *rest)

    monkeypatch.setattr(sources, "open", spy, raising=False)
    monkeypatch.setattr(os, "listdir", lambda *_: pytest.fail("scanned the folder"))
    find_config("llama-3-8b", bundle)
    assert opened == [os.path.join(bundle, "llama-3-8b.json")]


def test_a_name_cannot_leave_the_bundle(bundle: str, tmp_path: Path) -> None:
    write(tmp_path / "secret.json", entry("secret", "a/b"))
    with pytest.raises(ModelNotFound):
        bundled("../secret", bundle)


def test_bundled_names(bundle: str, tmp_path: Path) -> None:
    write(Path(bundle) / "README.md", "")
    write(Path(bundle) / ".hidden.json", "{}")
    assert bundled_names(bundle) == ["Mixtral", "llama-3-8b", "qwen3-0.6b"]
    assert bundled_names(str(tmp_path / "nowhere")) == []


def test_an_unknown_bundled_name(bundle: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        bundled("lama-3-8b", bundle)
    assert str(caught.value) == (
        "no model 'lama-3-8b'\n  bundled: none of the 3 names and their aliases\ntry: bundled is llama-3-8b"
    )


def test_a_broken_bundled_file(bundle: str) -> None:
    path = write(Path(bundle) / "broken.json", {"name": "broken"})
    fails("broken", f'{path} has no object "config"', bundle=bundle)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("lama-3-8b", "try: bundled is llama-3-8b"),
        ("someone/llama-3-8b", "try: bundled is llama-3-8b"),
        ("qwen-tiny", "try: bundled is qwen3-0.6b"),
        ("META-llama/meta-llama-3-8b", "try: the bundled name llama-3-8b has the same hub id"),
        (
            "meta-llama/Meta-Llama-3-8B@v1",
            "the bundled name llama-3-8b has the same hub id, meta-llama/Meta-Llama-3-8B\n",
        ),
    ],
)
def test_close_spellings_and_the_same_hub_id(bundle: str, name: str, told: str) -> None:
    not_found(name, "bundled: none of the 3 names", told, bundle=bundle)


@pytest.mark.usefixtures("offline")
def test_nothing_close(bundle: str) -> None:
    assert "bundled is" not in not_found("zzzzzz", bundle=bundle)


def test_the_bundle_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = bundled_names()
    for name in names:
        found = find_config(name)
        assert found.name == name
        assert found.source.startswith("bundled: ")


def test_a_bundled_name_leaves_the_library_alone(bundle: str) -> None:
    code = f"""
import sys
from gambrel.model.sources import find_config
find_config("llama-3-8b", {bundle!r})
late = {{"huggingface_hub", "requests", "httpx", "httpx2", "pathlib", "difflib", "importlib.resources", "numpy"}}
print(sorted(late & set(sys.modules)))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(gambrel.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# Model ids and the cache ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "org/name;ls",
        "$(ls)",
        "-x",
        "org/name@",
        "org/name@a b",
        "näme",
        "a\nb",
        "name\n",
        "x" * 300,
        "_x",
    ],
)
def test_what_is_no_model_id_goes_nowhere(name: str, bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_library", lambda: pytest.fail("imported the library"))
    message = not_found(name, bundle=bundle)
    assert message.count("one is org/name or org/name@revision") + message.count("is a path") >= 2


@pytest.mark.parametrize("revision", ["/etc", "..", "../../x", "a/../b", "a//b", "a/", "."])
def test_a_revision_is_no_way_out_of_the_cache(revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_library", lambda: pytest.fail("imported the library"))
    not_found(f"org/name@{revision}", "not asked")
    not_found(f"name@{revision}", "not asked")


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["foo--bar", "org/a..b", "org/name."])
def test_what_the_library_takes_for_no_model_id(name: str) -> None:
    not_found(name, "HFValidationError")


def cached(cache: Path, repo: str, revision: str = "main", **files: object) -> Path:
    folder = cache / f"models--{repo.replace('/', '--')}"
    write(folder / "refs" / revision, COMMIT)
    for file, content in files.items():
        write(folder / "snapshots" / COMMIT / f"{file}.json", content)
    return folder / "snapshots" / COMMIT


def test_the_cache(offline: Path) -> None:
    folder = cached(offline, "org/name", config=LLAMA)
    assert find_config("org/name") == Found("org/name", LLAMA, f"Hugging Face cache: {folder}/config.json")
    cached(offline, "alone", config=LLAMA)
    assert find_config("alone").name == "alone"


def test_the_cache_with_a_revision(offline: Path) -> None:
    cached(offline, "org/name", "refs/pr/1", config=LLAMA)
    assert find_config("org/name@refs/pr/1").name == "org/name@refs/pr/1"
    assert find_config(f"org/name@{COMMIT}").config == LLAMA
    not_found("org/name@v2", "no config.json of org/name, revision v2 in")
    not_found("org/name", "revision main in")


def test_the_cache_of_a_modelopt_checkpoint(offline: Path) -> None:
    cached(offline, "org/name", config=LLAMA, hf_quant_config=QUANTIZED)
    found = find_config("org/name")
    assert found.config["quantization_config"]["quant_method"] == "modelopt"
    assert found.source.endswith("config.json and hf_quant_config.json beside it")


def test_the_cache_comes_after_a_bundled_name(offline: Path, bundle: str) -> None:
    cached(offline, "llama-3-8b", config={"model_type": "other"})
    assert find_config("llama-3-8b", bundle).source.startswith("bundled: ")


def test_the_cache_knows_a_hub_id_that_is_bundled_too(offline: Path, bundle: str) -> None:
    cached(offline, "meta-llama/Meta-Llama-3-8B", config={"model_type": "other"})
    assert find_config("meta-llama/Meta-Llama-3-8B", bundle).source.startswith("Hugging Face cache: ")


def test_a_broken_file_in_the_cache_is_named(offline: Path) -> None:
    folder = cached(offline, "org/name", config='{"a": }')
    fails("org/name", f"broken JSON in {folder}/config.json, line 1, column 7")


def test_a_cache_that_cannot_be_read(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import file_download

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(offline))

    monkeypatch.setattr(file_download, "try_to_load_from_cache", denied)
    not_found("org/name", "Hugging Face cache: PermissionError: [Errno 13] Permission denied")


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = not_found("org/name", "cache: not asked, huggingface_hub cannot be imported")
    assert message.count("try: pip install huggingface_hub") == 1


def test_a_token_never_shows() -> None:
    error = ValueError("Illegal header value b'Bearer hf_secret\\x00' here\nmore")
    assert sources._detail(error) == "ValueError: Illegal header value b'Bearer …' here"
    assert sources._detail(ValueError("503 for http://me:secret@host/x")) == "ValueError: 503 for http://host/x"


@pytest.mark.usefixtures("offline")
def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/cache/models--org--name")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(sources, "_fetch", denied)
    not_found("org/name", "hub: cannot write the cache", "/cache/models--org--name", "try: set HF_HOME")


# The hub, a stub on this machine --------------------------------------------------------------


@dataclass
class Stub:
    """What the hub serves and what it was asked: answers by path, (status, headers, body)."""

    url: str = ""
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)

    def serve(self, path: str, content: object, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        etag = {"ETag": f'"{hashlib.sha1(body, usedforsecurity=False).hexdigest()}"', "X-Repo-Commit": COMMIT}
        self.answers[path] = (200, {**etag, **headers}, body)

    def refuse(self, path: str, status: int, code: str = "", message: str = "") -> None:
        told = {"X-Error-Code": code, "X-Error-Message": message}
        self.answers[path] = (status, {key: value for key, value in told.items() if value}, b"")


@pytest.fixture
def hub() -> Iterator[Stub]:
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            stub.asked.append((self.command, self.path, self.headers.get("Authorization")))
            missing = (404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b"")
            status, headers, body = stub.answers.get(self.path, missing)
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_GET = do_HEAD

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield stub
    server.shutdown()
    server.server_close()
    thread.join()


CONFIG = "/org/name/resolve/main/config.json"
ASK = """
import sys
from gambrel.model.sources import find_config
from gambrel.types import GambrelError
for name in sys.argv[2:]:
    try:
        found = find_config(name, sys.argv[1])
        print("found", found.name, found.config, found.source, sep="|")
    except GambrelError as error:
        print(type(error).__name__, error, sep="|")
"""


def ask(url: str, home: Path, *names: str, bundle: str = "/nowhere", **environment: str) -> str:
    """What a fresh process finds, for the library reads its environment when it is imported."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    clean |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "PYTHONPATH": str(Path(gambrel.__file__).parents[1])}
    clean |= {"HF_HUB_DISABLE_TELEMETRY": "1"}  # or it asks the hub for a list of agents first
    clean.pop("TRANSFORMERS_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", ASK, bundle, *(names or ["org/name"])],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=home,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "%|" not in done.stderr
    return done.stdout


def test_the_hub_and_then_its_cache(hub: Stub, tmp_path: Path) -> None:
    hub.serve(CONFIG, LLAMA)
    assert ask(hub.url, tmp_path) == f"found|org/name|{LLAMA}|hub: {hub.url}/org/name, revision main\n"
    asked = len(hub.asked)
    files = {path for _, path, _ in hub.asked}
    assert files == {CONFIG, CONFIG.replace("config.json", "hf_quant_config.json")}
    assert all(token is None for _, _, token in hub.asked)
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        again = ask("http://127.0.0.1:9", tmp_path, **environment)
        assert again.startswith(
            f"found|org/name|{LLAMA}|Hugging Face cache: {tmp_path}/hub/models--org--name/snapshots/"
        )
    assert len(hub.asked) == asked


def test_the_hub_with_a_revision(hub: Stub, tmp_path: Path) -> None:
    hub.serve("/org/name/resolve/refs%2Fpr%2F1/config.json", LLAMA)
    hub.refuse("/org/name/resolve/v9/config.json", 404, "RevisionNotFound")
    told = ask(hub.url, tmp_path, "org/name@refs/pr/1", "org/name@v9")
    assert f"found|org/name@refs/pr/1|{LLAMA}|hub: {hub.url}/org/name, revision refs/pr/1\n" in told
    assert "says HTTP 404, org/name has no revision v9" in told


def test_the_hub_with_a_modelopt_checkpoint(hub: Stub, tmp_path: Path) -> None:
    hub.serve(CONFIG, LLAMA)
    hub.serve(CONFIG.replace("config.json", "hf_quant_config.json"), QUANTIZED)
    for _ in range(2):
        told = ask(hub.url, tmp_path)
        assert "'quant_method': 'modelopt', 'quant_algo': 'FP8'" in told
        assert told.endswith("hf_quant_config.json beside it\n")


def test_the_token_is_sent_and_not_shown(hub: Stub, tmp_path: Path) -> None:
    hub.refuse(CONFIG, 401, message="Invalid credentials in Authorization header")
    hub.refuse("/org/gated/resolve/main/config.json", 403, "GatedRepo", "Access to model org/gated is restricted")
    told = ask(hub.url, tmp_path, "org/name", "org/gated", HF_TOKEN="hf_secret")
    assert {token for _, _, token in hub.asked} == {"Bearer hf_secret"}
    assert "says HTTP 401, it does not accept your token\ntry: 'hf auth login' once more, or another HF_TOKEN" in told
    assert "says HTTP 403, org/gated is gated" in told
    assert "hf_secret" not in told


def test_what_the_hub_refuses(hub: Stub, tmp_path: Path) -> None:
    for name, status, code in [
        ("missing", 404, "RepoNotFound"),
        ("plain", 404, ""),
        ("private", 401, "RepoNotFound"),
        ("gated", 401, "GatedRepo"),
        ("busy", 429, ""),
        ("down", 503, ""),
    ]:
        for file in ("config.json", "hf_quant_config.json"):
            hub.refuse(f"/org/{name}/resolve/main/{file}", status, code)
    names = ["missing", "plain", "private", "gated", "adapter", "busy", "down"]
    told = ask(hub.url, tmp_path, *(f"org/{name}" for name in names))
    messages = told.split("ModelNotFound|")[1:]
    assert len(messages) == len(names)
    login = "log in with 'hf auth login' or set HF_TOKEN\n"
    for message, needles in zip(
        messages,
        [
            ["says HTTP 404, there is no org/missing\n", "try: check the spelling\n"],
            ["says HTTP 404, there is no org/plain\n"],
            ["says HTTP 401, org/private does not exist, or is private or gated\n", "try: check the spelling; ", login],
            ["says HTTP 401, org/gated is gated\n", f"try: accept the licence at {hub.url}/org/gated, then {login}"],
            ["says HTTP 404, org/adapter has no config.json (adapters and GGUF repositories have none)\n"],
            ["says HTTP 429, ", "try: wait a while, or log in"],
            ["says HTTP 503, ", "try: wait a while\n"],
        ],
        strict=True,
    ):
        assert all(needle in message for needle in needles), message
        assert "file: no such file" in message
        assert "bundled: none of the 0 names" in message
        assert f"Hugging Face cache: no config.json of org/{message.split('org/')[1][:1]}" in message


def test_a_gated_model_that_is_bundled(hub: Stub, tmp_path: Path, bundle: str) -> None:
    name = "meta-llama/Meta-Llama-3-8B"
    for file in ("config.json", "hf_quant_config.json"):
        hub.refuse(f"/{name}/resolve/main/{file}", 401, "GatedRepo")
    told = ask(hub.url, tmp_path, name, bundle=bundle)
    assert "is gated" in told
    assert f"try: the bundled name llama-3-8b has the same hub id, {name}\n" in told


def test_offline_mode(hub: Stub, tmp_path: Path, bundle: str) -> None:
    hub.serve(CONFIG, LLAMA)
    told = ask(hub.url, tmp_path, "org/name", "llama-3-8b", bundle=bundle, HF_HUB_OFFLINE="1")
    assert "hub: not asked, HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set\ntry: the same without offline mode\n" in told
    assert "found|llama-3-8b|" in told
    assert hub.asked == []


def test_the_hub_sends_no_config(hub: Stub, tmp_path: Path) -> None:
    hub.serve(CONFIG, b'{"a": 1, "a": 2}')
    hub.serve("/org/large/resolve/main/config.json", b"", **{"Content-Length": str(16 * 2**20 + 1)})
    told = ask(hub.url, tmp_path, "org/name", "org/large")
    assert "GambrelError|" in told
    assert "config.json: the key 'a' is there twice in one object" in told
    assert "GambrelError|config.json of org/large is over 16.0 MiB" in told
    assert ("GET", "/org/large/resolve/main/config.json") not in {(method, path) for method, path, _ in hub.asked}


def test_a_server_that_is_no_hub(hub: Stub, tmp_path: Path) -> None:
    hub.answers[CONFIG] = (200, {"Content-Type": "text/html"}, b"<html>please log in to this wireless network</html>")
    told = ask(hub.url, tmp_path)
    assert f"hub: {hub.url} cannot be reached, or is no hub: " in told
    assert "try: check the network, the proxy and HF_ENDPOINT\n" in told


def test_no_server(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://me:secret@127.0.0.1:{closed.getsockname()[1]}"
        told = ask(url, tmp_path)
    assert f"hub: {url.replace('me:secret@', '')} cannot be reached, or is no hub: ConnectError" in told
    assert "try: check the network, the proxy and HF_ENDPOINT\n" in told
    assert "secret" not in told


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        told = ask(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path, HF_HUB_ETAG_TIMEOUT="1")
    assert "cannot be reached, or is no hub: ReadTimeout" in told


@pytest.mark.parametrize("environment", [{"HF_ENDPOINT": "localhost"}, {"HF_HUB_ETAG_TIMEOUT": "soon"}])
def test_a_broken_environment(tmp_path: Path, environment: dict[str, str]) -> None:
    told = ask("http://127.0.0.1:9", tmp_path, **environment)
    assert told.startswith("ModelNotFound|")
    assert "try: check the " in told
