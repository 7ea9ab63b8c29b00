"""``tersor train``: trainings with compression, one module per workload."""

import typer

from tersor.cli.train.dlrm import dlrm
from tersor.cli.train.gcn import gcn
from tersor.cli.train.gpt import gpt
from tersor.cli.train.vision import vision_command

app = typer.Typer(help="Train a model with compression in the loop.")
app.command()(dlrm)
app.command()(gpt)
app.command()(gcn)
app.command("alexnet", help="Train AlexNet on images; alone, or one rank of torchrun.")(
    vision_command("alexnet", "one-cycle")
)
app.command("resnet34", help="Train ResNet34 on images; alone, or one rank of torchrun.")(
    vision_command("resnet34", "cifar")
)


@app.callback()
def _train() -> None:
    """Train a model with compression in the loop."""
