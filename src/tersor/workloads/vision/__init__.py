"""Training of AlexNet and ResNet34 on labelled images."""

from tersor.workloads.vision.config import PRESETS, VisionConfig, VisionPreset
from tersor.workloads.vision.run import VisionRun

__all__ = ["PRESETS", "VisionConfig", "VisionPreset", "VisionRun"]
