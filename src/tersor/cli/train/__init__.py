"""``tersor train``: workloads that show what compression does to training, one file each."""

import typer

from tersor.cli.train.dlrm import dlrm
from tersor.cli.train.gpt import gpt

app = typer.Typer(help="Train a model with compression in the loop.")
app.command()(dlrm)
app.command()(gpt)


@app.callback()
def _train() -> None:
    """Train a model with compression in the loop."""
