"""Packed weights in the cache: the same bits as without, and a miss for everything that is not exactly right."""

import fcntl
import mmap
import os
import re
import shutil
import struct
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import torch
from model_harness import MAX_MODEL_LEN, edit_config, logits_in_chunks, make_oracle

from engine_core.models import packed_weights_cache, packed_weights_file
from engine_core.models.checkpoint import Checkpoint
from engine_core.models.config import read_config
from engine_core.models.decoder import DecoderModel
from engine_core.models.identity import model_digest
from engine_core.models.loader import load_model
from ipc.errors import ConfigError
from kernels.ops import LinearSpec, PackedLinear, Quantization
from kernels.reference.linear import ReferenceLinear
from kernels.reference.ops import ReferenceOps

IDS = list(range(7, 20))
HEADER = struct.Struct("<8sIIQQ32s")


class PanelFormat:
    """The reference's panels as they are, as if packing were dear."""

    def __init__(self, version: str) -> None:
        self.version = version

    def tensors(self, weight: PackedLinear) -> dict[str, torch.Tensor]:
        assert isinstance(weight, ReferenceLinear)
        return {str(index): panel for index, panel in enumerate(weight.panels)}

    def restore(self, spec: LinearSpec, tensors: Mapping[str, torch.Tensor]) -> PackedLinear:
        panels = tuple(tensors[str(index)] for index in range(spec.segments) if str(index) in tensors)
        if len(panels) != len(tensors) or len(panels) != spec.segments:
            raise ValueError(f"{len(panels)} panels")
        return ReferenceLinear(panels, spec.num_outputs, spec.num_inputs, spec.dtype)


class KeepingOps(ReferenceOps):
    """The reference with a format."""

    def __init__(self, version: str = "1") -> None:
        super().__init__()
        self.packed_format = PanelFormat(version)


@pytest.fixture(autouse=True)
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of packed weights, not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "octavo" / "packed"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    # With biases of q, k and v, norms of heads nowhere, and a head of its own.
    make_oracle("Qwen2").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "model"))


@pytest.fixture
def num_opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The checkpoints that were read."""
    opened: list[Path] = []
    before = Checkpoint.__init__

    def init(self: Checkpoint, folder: Path) -> None:
        opened.append(folder)
        before(self, folder)

    monkeypatch.setattr(Checkpoint, "__init__", init)
    return opened


def load(folder: Path, ops: ReferenceOps | None = None, **changes: Any) -> DecoderModel:
    keywords: dict[str, Any] = {
        "dtype": torch.float32,
        "load_format": "auto",
        "seed": 0,
        "max_model_len": MAX_MODEL_LEN,
        "ops": ops or KeepingOps(),
        "device": torch.device("cpu"),
        "model_digest": model_digest(folder),
    }
    return load_model(folder, read_config(folder), **(keywords | changes))


def logits(model: DecoderModel) -> torch.Tensor:
    return logits_in_chunks(model, IDS, [len(IDS)])


def only(packed: Path) -> Path:
    (path,) = packed.iterdir()
    return path


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_second_start_reads_no_checkpoint_and_computes_the_same(
    tmp_path: Path, packed: Path, num_opened: list[Path], dtype: torch.dtype, is_tied: bool
) -> None:
    folder = tmp_path / "tied"
    make_oracle("Qwen2", tie_word_embeddings=is_tied).save_pretrained(folder)
    first = load(folder, dtype=dtype)
    assert len(num_opened) == 1
    second = load(folder, dtype=dtype)
    assert len(num_opened) == 1
    assert torch.equal(logits(second), logits(first))
    assert torch.equal(logits(load(folder, ReferenceOps(), dtype=dtype)), logits(first))
    assert only(packed).suffix == ".weights"
    assert packed.stat().st_mode & 0o077 == 0


def test_every_tensor_begins_at_a_page(folder: Path, packed: Path) -> None:
    load(folder)
    with only(packed).open("rb") as file:
        found = packed_weights_file.read(file, 2)
    assert found.data.data_ptr() % 4096 == 0
    assert {found.index.tensors[name].offset % 4096 for name in found.index.tensors} == {0}
    assert found.index.source == str(folder)
    size, index_bytes = only(packed).stat().st_size, HEADER.unpack(only(packed).read_bytes()[: HEADER.size])[2]
    assert size == -(-(HEADER.size + index_bytes) // 4096) * 4096 + found.index.num_bytes


@pytest.mark.parametrize("is_mapped", [False, True])
def test_mapped_or_copied_it_is_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch, is_mapped: bool) -> None:
    expected = logits(load(folder))
    asked: list[tuple[int, int]] = []

    def is_on_large_pages(data: torch.Tensor) -> bool:
        asked.append((data.data_ptr(), data.numel()))
        return is_mapped

    monkeypatch.setattr(packed_weights_file, "is_on_large_pages", is_on_large_pages)
    model = load(folder)
    ((start, size),) = asked
    assert (start <= model.embedding.data_ptr() < start + size) == is_mapped
    assert torch.equal(logits(model), expected)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no such kernel")
def test_large_pages_are_seen() -> None:
    size = 8 * 2**20
    small = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    small.madvise(mmap.MADV_NOHUGEPAGE)
    small.write(bytes(size))
    assert not packed_weights_file.is_on_large_pages(torch.frombuffer(small, dtype=torch.uint8))
    if Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().startswith(("[always]", "always [madvise]")):
        copy = packed_weights_file.copy_to_large_pages(torch.ones(size, dtype=torch.uint8))
        assert packed_weights_file.is_on_large_pages(copy)


def test_tensors_longer_than_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_weights_file, "LARGE_PAGE", 8192)
    monkeypatch.setattr(packed_weights_file, "CHUNK", 4096)
    sizes = (5000, 1, 8192, 0, 4096, 30_001)
    tensors = {str(size): torch.arange(size).to(torch.uint8) for size in sizes}
    index = packed_weights_file.make_index(("1", "2"), "model", tensors, {})
    with (tmp_path / "file").open("wb") as file:
        packed_weights_file.write(file, index, tensors)
    with (tmp_path / "file").open("rb", buffering=0) as file:
        found = packed_weights_file.read(file, 2)
    for name, tensor in tensors.items():
        restored = found.tensor(name)
        assert restored is not None
        assert torch.equal(restored, tensor)
        assert restored.numel() == 0 or restored.data_ptr() % 4096 == 0


def reseal(data: bytes, edit: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with another index that its header agrees with."""
    magic, version, index_bytes, size, checksum, _ = HEADER.unpack(data[: HEADER.size])
    index = msgspec.json.decode(data[HEADER.size : HEADER.size + index_bytes])
    edit(index)
    encoded = msgspec.json.encode(index)
    begin = -(-(HEADER.size + index_bytes) // 4096) * 4096
    assert begin - 4096 < HEADER.size + len(encoded) <= begin
    header = HEADER.pack(magic, version, len(encoded), size, checksum, sha256(encoded).digest())
    return (header + encoded).ljust(begin, b"\0") + data[begin:]


def change(data: bytes, position: int) -> bytes:
    edited = bytearray(data)
    edited[position] ^= 0x10
    return bytes(edited)


def edit_entry(data: bytes, name: str, **changes: Any) -> bytes:
    return reseal(data, lambda index: index["tensors"][name].update(changes))


DOWN = "model.layers.{}.mlp.down_proj.weight"
NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda data: b"", "cut short"),
        (lambda data: data[:40], "cut short"),
        (lambda data: data[:-4096], "size"),
        (lambda data: data + bytes(4096), "size"),
        (lambda data: change(data, 0), "no file of packed weights"),
        (lambda data: change(data, 8), "another version"),
        (lambda data: change(data, 12), "index is damaged"),
        (lambda data: change(data, HEADER.size + 100), "index is damaged"),
        (lambda data: change(data, -4096), "tensors are damaged"),
        (lambda data: change(data, len(data) // 2 // 4096 * 4096), "tensors are damaged"),
        (lambda data: reseal(data, lambda index: index.update(source=5)), "cannot be read"),
        (lambda data: reseal(data, lambda index: index.update(num_bytes=4096)), "size that its index says"),
        (lambda data: edit_entry(data, NORM, offset=-1), "outside"),
        (lambda data: edit_entry(data, NORM, offset=2**40), "outside"),
        (lambda data: edit_entry(data, NORM, offset=64), "outside"),
        (lambda data: edit_entry(data, NORM, dtype="int9"), "int9"),
        (lambda data: edit_entry(data, NORM, shape=[31]), r"model\.norm\.weight is .*\[31\], not .*\[32\]"),
        (lambda data: edit_entry(data, NORM, shape=[-32]), r"\[-32\]"),
        (lambda data: reseal(data, lambda index: index["tensors"].pop(NORM)), "there is no model.norm.weight"),
        (lambda data: reseal(data, lambda index: index["tensors"].pop(f"{DOWN.format(1)}:0")), "1 panels"),
        (lambda data: reseal(data, lambda index: index["facts"].pop(DOWN.format(1))), "is not packed as ref-f32 32 64"),
        (
            lambda data: reseal(data, lambda index: index["facts"][DOWN.format(1)].__setitem__(0, "r-f32")),
            "is not packed as ref-f32 32 64",
        ),
        (
            lambda data: reseal(data, lambda index: index["facts"][DOWN.format(1)].__setitem__(2, 63)),
            "is not packed as ref-f32 32 64",
        ),
    ],
)
def test_what_is_not_right_is_a_miss_and_written_again(
    folder: Path, packed: Path, num_opened: list[Path], edit: Callable[[bytes], bytes], reason: str
) -> None:
    expected = logits(load(folder))
    path = only(packed)
    data = path.read_bytes()
    path.write_bytes(edit(data))
    assert path.read_bytes() != data
    with structlog.testing.capture_logs() as lines:
        assert torch.equal(logits(load(folder)), expected)
    assert len(num_opened) == 2
    (warning,) = (line for line in lines if line["log_level"] == "warning")
    assert re.search(reason, warning["reason"])
    assert path.read_bytes() == data


def test_a_tensor_too_many_is_a_miss(folder: Path) -> None:
    digest = model_digest(folder)
    load(folder, model_digest=digest)
    edit_config(folder, num_hidden_layers=2)
    with structlog.testing.capture_logs() as lines, pytest.raises(ConfigError, match="no place for tensor"):
        load(folder, model_digest=digest)
    assert ["the model has no place for" in line["reason"] for line in lines] == [True]


def test_each_thing_that_decides_the_bytes_has_a_file_of_its_own(
    folder: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(folder)
    load(folder, dtype=torch.bfloat16)
    load(folder, KeepingOps("2"))
    edit_config(folder, num_hidden_layers=3, rope_theta=5000.0)
    load(folder)
    ops = KeepingOps()
    ops.name = "another"
    load(folder, ops)
    monkeypatch.setattr(packed_weights_cache, "version", lambda name: "9.9")
    load(folder)
    assert len(list(packed.iterdir())) == 6


def test_quantized_weights_have_a_file_of_their_own(folder: Path) -> None:
    paths = set()
    quantizations: tuple[Quantization | None, ...] = (None, "int8", "int4")
    for quantization in quantizations:
        cache = packed_weights_cache.PackedWeightsCache.find(
            folder, b"digest", KeepingOps(), torch.bfloat16, quantization
        )
        assert cache is not None
        paths.add(cache.path)
    assert len(paths) == 3


@pytest.mark.parametrize(
    "changes", [{"load_format": "dummy"}, {"ops": ReferenceOps()}, {"model_digest": None}], ids=["dummy", "ops", "none"]
)
def test_what_has_no_file(folder: Path, packed: Path, changes: dict[str, Any]) -> None:
    load(folder, **changes)
    assert not packed.exists()


def test_a_checkpoint_that_is_refused_leaves_nothing(folder: Path, packed: Path) -> None:
    edit_config(folder, num_hidden_layers=2)
    with pytest.raises(ConfigError, match="no place for tensor"):
        load(folder)
    assert not packed.exists()


def warnings_of(folder: Path) -> list[str]:
    with structlog.testing.capture_logs() as lines:
        load(folder)
    return [line["reason"] for line in lines if line["log_level"] == "warning"]


def test_a_full_disk(folder: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(folder)
    path = only(packed)
    needed = 2 * (path.stat().st_size - 4096 * (1 + HEADER.unpack(path.read_bytes()[: HEADER.size])[2] // 4096))
    path.unlink()
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
    (reason,) = warnings_of(folder)
    assert "free" in reason
    assert list(packed.iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed))
    assert warnings_of(folder) == []
    assert only(packed) == path


def test_a_folder_that_cannot_be_written(folder: Path, packed: Path) -> None:
    packed.parent.mkdir(parents=True)
    packed.write_text("a file, not a folder")
    (reason,) = warnings_of(folder)
    assert str(packed) in reason
    assert packed.read_text() == "a file, not a folder"


def test_a_user_without_a_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise OSError("no home folder")

    monkeypatch.setattr(packed_weights_cache, "cache_folder", no_home)
    assert warnings_of(folder) == ["no home folder"]


def test_a_write_that_fails_leaves_nothing(folder: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    (reason,) = warnings_of(folder)
    assert reason.startswith("No space left on device")
    assert list(packed.iterdir()) == []


def test_a_dead_writers_file_goes_and_a_live_ones_stays(folder: Path, packed: Path) -> None:
    packed.mkdir(parents=True)
    dead, live = packed / "a.b.tmp", packed / "c.d.tmp"
    dead.write_bytes(b"half")
    with live.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        load(folder)
        assert sorted(path.suffix for path in packed.iterdir()) == [".tmp", ".weights"]
        assert live.exists()


def test_two_writers_at_once(folder: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one starts and ends while the first one writes."""
    write = packed_weights_cache.write
    results = []

    def write_slowly(*arguments: Any) -> None:
        monkeypatch.setattr(packed_weights_cache, "write", write)
        results.append(logits(load(folder)))
        write(*arguments)

    monkeypatch.setattr(packed_weights_cache, "write", write_slowly)
    results.append(logits(load(folder)))
    results.append(logits(load(folder)))
    assert len(list(packed.iterdir())) == 1
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_use_is_seen(folder: Path, packed: Path) -> None:
    load(folder)
    os.utime(only(packed), (1, 1))
    load(folder)
    assert only(packed).stat().st_mtime > 1
