"""Training of a GPT, on one process or sharded over ranks."""

from tersor.workloads.gpt.config import GptConfig
from tersor.workloads.gpt.metrics import GptMetrics
from tersor.workloads.gpt.run import GptRun

__all__ = ["GptConfig", "GptMetrics", "GptRun"]
