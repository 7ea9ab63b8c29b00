"""Images are read as they were stored, and files that are none are refused in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data.image_opening import open_images
from tersor.workloads.data.images import ImageBatch, augmented
from tersor.workloads.data.synthetic_images import SyntheticImages
from tersor.workloads.models.alexnet import AlexNet
from tersor.workloads.models.resnet import ResNet


def pixels(count: int, seed: int = 0) -> np.ndarray:
    """Return images as files of arrays have them, [count, 32, 32, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


def filtered(images: np.ndarray) -> np.ndarray:
    """Return planes whose sums along both axes are green and the differences to it."""
    planes = images.transpose(3, 0, 1, 2).astype(np.int64)
    planes = np.stack([planes[1], planes[0] - planes[1], planes[2] - planes[1]])
    rows = np.diff(planes, axis=-2, prepend=0)
    return (np.diff(rows, axis=-1, prepend=0) % 256).astype(np.uint8)


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    labels = np.arange(6, dtype=np.uint8)
    known = {
        "x_train": pixels(6), "y_train": labels, "x_test": pixels(4, 1), "y_test": labels[:4],
    }  # fmt: skip
    return {name: x for name, x in {**known, **changes}.items() if x is not None}


def write_batch(path, images: np.ndarray, labels: np.ndarray) -> None:
    records = [
        bytes([y]) + x.transpose(2, 0, 1).tobytes() for x, y in zip(images, labels, strict=True)
    ]
    path.write_bytes(b"".join(records))


@pytest.mark.parametrize("nested", [False, True])
def test_binary_batches_are_read_in_their_order(tmp_path, nested) -> None:
    folder = tmp_path / "cifar-10-batches-bin" if nested else tmp_path
    folder.mkdir(exist_ok=True)
    images, labels = pixels(7), np.array([3, 1, 4, 1, 5, 9, 2], np.uint8)
    write_batch(folder / "data_batch_1.bin", images[:3], labels[:3])
    write_batch(folder / "data_batch_2.bin", images[3:5], labels[3:5])
    write_batch(folder / "test_batch.bin", images[5:], labels[5:])
    source = open_images(tmp_path)
    assert (source.images("train") == images[:5].transpose(0, 3, 1, 2)).all()
    assert (source.images("test") == images[5:].transpose(0, 3, 1, 2)).all()
    assert source.labels("train").tolist() == [3, 1, 4, 1, 5]
    assert source.labels("test").tolist() == [9, 2]
    assert source.name.endswith(", 5 + 2")


@pytest.mark.parametrize("is_filtered", [False, True])
def test_an_npz_file_gives_the_images_it_was_made_of(tmp_path, monkeypatch, is_filtered) -> None:
    known = arrays()
    wanted = known["x_train"]
    if is_filtered:
        for name in ("x_train", "x_test"):
            known[f"{name}_filtered"] = filtered(known.pop(name))
    np.savez(tmp_path / "cifar10_20k5k.npz", **known)
    monkeypatch.setenv("TERSOR_DATA", str(tmp_path))
    source = open_images("cifar10")
    assert (source.images("train") == wanted.transpose(0, 3, 1, 2)).all()
    assert source.images("train").flags.c_contiguous
    assert source.labels("test").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": None}, r"needs the arrays y_train uint8\[N\], and x_train uint8"),
        ({"y_test": np.zeros(4, np.int32)}, "needs the arrays y_test"),
        ({"x_test": pixels(4)[:, :31]}, "needs the arrays y_test"),
        ({"y_train": np.zeros(5, np.uint8)}, "train has 6 images and 5 labels"),
        ({"y_train": np.full(6, 10, np.uint8)}, "has a label 10; labels are 0 to 9"),
    ],
)
def test_another_npz_file_is_refused(tmp_path, changes, words) -> None:
    np.savez(tmp_path / "images.npz", **arrays(**changes))
    with pytest.raises(SpecError, match=words):
        open_images(tmp_path / "images.npz")


def test_damaged_files_are_refused(tmp_path) -> None:
    np.savez(tmp_path / "images.npz", **arrays())
    whole = (tmp_path / "images.npz").read_bytes()
    (tmp_path / "images.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptDataError, match=r"is damaged, or no \.npz file"):
        open_images(tmp_path / "images.npz")
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (tmp_path / name).write_bytes(bytes(3072))
    with pytest.raises(CorruptDataError, match="3072 bytes, which are no whole images of 3073"):
        open_images(tmp_path)


def test_what_is_not_there_is_reported_with_the_way_out(tmp_path, monkeypatch) -> None:
    with pytest.raises(SpecError, match=r"has no data_batch_1\.bin, .* and test_batch\.bin"):
        open_images(tmp_path)
    monkeypatch.delenv("TERSOR_DATA", raising=False)
    with pytest.raises(SpecError, match="there is no cifar10; name a folder"):
        open_images("cifar10")


def test_made_up_images_are_the_same_everywhere() -> None:
    source = SyntheticImages(num_train=50, num_test=20)
    # the first images do not depend on how many there are
    assert (source.images("train")[:20] == SyntheticImages(num_train=20).images("train")).all()
    assert not (source.images("test")[:20] == source.images("train")[:20]).all()
    assert set(source.labels("train").tolist()) <= set(range(10))
    with pytest.raises(SpecError, match="images to train on"):
        SyntheticImages(num_train=0)


def test_images_are_flipped_before_they_are_shifted() -> None:
    images = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).view(2, 3, 4, 5)
    flips, shifts = torch.tensor([False, True]), torch.tensor([[1, -2], [0, 3]])
    found = augmented(ImageBatch(images, torch.zeros(2), flips, shifts))
    wanted = torch.zeros_like(images)
    wanted[0, :, 1:, :-2] = images[0, :, :-1, 2:]
    wanted[1, :, :, 3:] = images[1].flip(2)[:, :, :-3]
    assert torch.equal(found, wanted)


def test_an_alexnet_has_the_published_layout() -> None:
    model = AlexNet()
    shapes = [tuple(p.shape) for p in model.parameters() if p.dim() > 1]
    assert [shape[0] for shape in shapes] == [64, 192, 384, 256, 256, 4096, 4096, 10]
    assert shapes[5] == (4096, 1024)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_a_resnet34_has_the_published_number_of_weights() -> None:
    model = ResNet(1000, "imagenet").eval()
    with torch.no_grad():
        features = model.stages(model.stem(torch.zeros(1, 3, 224, 224)))
        output = ResNet(10, "cifar", (1,)).stem(torch.zeros(1, 3, 32, 32))
    # as torchvision's resnet34
    assert sum(p.numel() for p in model.parameters()) == 21_797_672
    assert features.shape == (1, 512, 7, 7)
    assert output.shape == (1, 64, 32, 32)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stem": "vgg"}, "stem must be one of cifar, imagenet"),
        ({"blocks": (1, 0)}, "blocks in every"),
    ],
)
def test_an_impossible_resnet_is_refused(options, words) -> None:
    with pytest.raises(SpecError, match=words):
        ResNet(**options)
