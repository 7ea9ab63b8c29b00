"""One rank of a training run on images: model, optimizer and training step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
from torch.nn import functional

from tersor.errors import SpecError
from tersor.workloads.classification import ClassMetrics, class_sums
from tersor.workloads.data.images import ImageBatch, ImageSource, augmented, training_batch
from tersor.workloads.models.alexnet import AlexNet
from tersor.workloads.models.resnet import ResNet
from tersor.workloads.training.activations import num_probed
from tersor.workloads.training.run import TrainingRun
from tersor.workloads.vision.config import VisionConfig

_MOMENTUM: Final = 0.9
_MEAN: Final = 0.45
"""Mean of pixels in 0..1, approximately that of photographs."""
_EVAL_BATCH: Final = 500
_LEAST_PROBED: Final = 8
"""Images of a probe, if a rank has as many. Batch norm over fewer scores worse than a whole batch does: 0.978 with 8 of 32,
0.969 with 4, 0.914 with 2, and 0.983 with all (ResNet34, 16 pixels, one seed)."""


class VisionRun(TrainingRun[ImageBatch, ClassMetrics]):
    """Model and optimizer of one rank; all ranks must step together.

    Ranks share a batch and average their gradients. Batch norm uses the samples of its own rank, as with
    DistributedDataParallel, and its running statistics are averaged.
    """

    config: VisionConfig

    def __init__(
        self, config: VisionConfig, source: ImageSource, device: torch.device | str = "cpu"
    ) -> None:
        """Create the model; a collective call.

        Raises:
            SpecError: the batch cannot be shared evenly, or the source has fewer images than a batch.
        """
        super().__init__(config, source.name, device)
        self.source = source
        num_images = len(source.labels("train"))
        if num_images < config.batch:
            raise SpecError(
                f"{source.name} has {num_images} training images, fewer than a batch of {config.batch}"
            )
        self._epoch_size = num_images // config.batch * config.batch
        torch.manual_seed(config.seed)
        self.model = _made_model(config, source.num_classes).to(self.device)
        # the default implementation passes over the weights once per operation: 47 ms of an AlexNet's step of 140 on
        # one core, 8 fused
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=config.learning_rate, momentum=_MOMENTUM,
            weight_decay=config.weight_decay, fused=True,
        )  # fmt: skip
        self.learning_rate = config.rate()
        self.compress_activations(config.activations, self.loss, _probed_part)

    def batch(self, step: int) -> ImageBatch:
        """Return this rank's images of a step."""
        own = self.ranks.share(self.config.batch)
        first, count = step * self.config.batch + own.start, own.stop - own.start
        return training_batch(
            self.source, self.config.seed, first, count, self._epoch_size,
            augment=self.config.augment,
        )  # fmt: skip

    def take_step(self, batch: ImageBatch) -> float:
        """Compute gradients and update the weights; return the mean loss of this rank's images."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(batch)
        loss.backward()
        self._average()
        self.optimizer.step()
        return float(loss.detach())

    def loss(self, batch: ImageBatch) -> torch.Tensor:
        """Return the mean loss of this rank's images, attached to the autograd graph."""
        batch = batch.to(self.device)
        return functional.cross_entropy(self._logits(augmented(batch)), batch.labels)

    def _logits(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images uint8 [B, 3, height, width], float32 [B, classes]."""
        scaled = images.float() / 255 - _MEAN
        side = self.config.side
        if tuple(scaled.shape[2:]) != (side, side):
            scaled = functional.interpolate(scaled, (side, side), mode="bilinear")
        with self._computing(), self.saving():
            logits: torch.Tensor = self.model(scaled)
        return logits.float()

    def _computing(self) -> AbstractContextManager[object]:
        if self.config.dtype == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def _average(self) -> None:
        """Average gradients and running statistics over all ranks, in one collective."""
        if self.ranks.world_size == 1:
            return
        parts = [p.grad for p in self.model.parameters() if p.grad is not None]
        parts += [x for x in self.model.buffers() if x.is_floating_point()]
        flat = torch.cat([part.view(-1) for part in parts])
        self.ranks.add_up(flat)
        flat /= self.ranks.world_size
        for part, mean in zip(parts, flat.split([p.numel() for p in parts]), strict=True):
            part.copy_(mean.view_as(part))

    def step_values(self, seconds: float) -> dict[str, float]:
        """Return the images per second of all ranks, in addition to the inherited values."""
        speed = round(self.config.batch / seconds) if seconds else 0
        return {"images_per_s": speed, **super().step_values(seconds)}

    def evaluate(self, max_samples: int | None = None) -> ClassMetrics:
        """Evaluate the model on the test images, without augmentation; the same result on every rank."""
        images, labels = self.source.images("test"), self.source.labels("test")
        count = len(labels) if max_samples is None else min(max_samples, len(labels))
        if count < 1:
            raise SpecError(f"an evaluation needs at least one image, not {count}")
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.model.eval()
        with torch.no_grad():
            # batches alternate between ranks; no collective, so ranks may have different numbers of them
            for start in range(
                self.ranks.rank * _EVAL_BATCH, count, self.ranks.world_size * _EVAL_BATCH
            ):
                part = slice(start, min(count, start + _EVAL_BATCH))
                pixels = torch.from_numpy(images[part]).to(self.device)
                sums += class_sums(
                    self._logits(pixels), torch.from_numpy(labels[part]).to(self.device)
                )
        self.model.train()
        self.ranks.add_up(sums)
        return ClassMetrics.of(sums)


def _probed_part(batch: ImageBatch) -> ImageBatch:
    return batch.first(num_probed(len(batch.labels), _LEAST_PROBED))


def _made_model(config: VisionConfig, num_classes: int) -> torch.nn.Module:
    if config.model == "alexnet":
        return AlexNet(num_classes, config.dropout)
    model = ResNet(num_classes, config.stem)
    if config.side < model.smallest_side:
        raise SpecError(
            f"a ResNet with the stem {config.stem!r} takes images of at least {model.smallest_side} "
            f"pixels a side, not {config.side}"
        )
    return model
