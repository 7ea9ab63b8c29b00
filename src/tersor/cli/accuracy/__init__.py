"""``tersor bench accuracy``: the effect of compression on what a model learns; one module per kind."""

import typer

from tersor.cli.accuracy.activations import activations
from tersor.cli.accuracy.dlrm import dlrm
from tersor.cli.accuracy.gpt import gpt

app = typer.Typer(help="Train the same model with and without compression, over several seeds.")
app.command()(activations)
app.command()(dlrm)
app.command()(gpt)


@app.callback()
def _accuracy() -> None:
    """Train the same model with and without compression, over several seeds."""
