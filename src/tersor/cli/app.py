"""Assembly of the verbs into one command, and execution of a command line."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tersor.cli import (
    accuracy,
    bench,
    bench_activations,
    bench_compare,
    bench_embeddings,
    bench_import,
    bench_programs,
    bench_shards,
    codecs,
    compress,
    decompress,
    inspect,
    plan,
    quickstart,
    report,
    train,
    verify,
    warmup,
)
from tersor.cli.options import option

app = typer.Typer(
    name="tersor",
    help="Lossy tensor compression with a promised error.",
    add_completion=False,
    no_args_is_help=False,
)
app.command()(compress.compress)
app.command()(decompress.decompress)
app.command()(inspect.inspect)
app.command()(verify.verify)
app.command()(codecs.codecs)
app.command("warmup")(warmup.warm_up)
app.command()(quickstart.quickstart)
app.command()(report.report)
app.command()(plan.plan)
bench.app.command()(bench_embeddings.embeddings)
bench.app.command()(bench_shards.shards)
bench.app.command()(bench_activations.activations)
bench.app.add_typer(accuracy.app, name="accuracy")
bench.app.command()(bench_compare.compare)
bench.app.command()(bench_import.import_log)
bench.app.command()(bench_programs.programs)
app.add_typer(bench.app, name="bench")
app.add_typer(train.app, name="train")


def _show_version(wanted: bool) -> None:
    if wanted:
        from tersor import __version__

        typer.echo(f"tersor {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        option("--version", "Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Compress tensors and arrays within a promised error."""
    del version


def command() -> Any:
    """Return the command tree as a click command."""
    return typer.main.get_command(app)


def run(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code; errors are raised, not printed."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    tree = command()
    # tree.main would handle interrupts, closed pipes and wrong usage with its own messages
    with tree.make_context("tersor", arguments) as context:
        return int(tree.invoke(context) or 0)
