"""The `cosformer` command."""

import typer

from cosformer.cli.bench import app as bench
from cosformer.cli.compare import app as compare
from cosformer.cli.compare_train import train as compare_train
from cosformer.cli.convert import convert
from cosformer.cli.demo import demo
from cosformer.cli.env import env
from cosformer.cli.eval import evaluate
from cosformer.cli.generate import generate
from cosformer.cli.inspect import inspect
from cosformer.cli.lra import app as lra
from cosformer.cli.recipes import recipes
from cosformer.cli.report import report
from cosformer.cli.tokenizer import app as tokenizer
from cosformer.cli.train import train

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(env)
app.command()(demo)
app.command()(train)
app.command()(recipes)
app.command("eval")(evaluate)
app.command()(convert)
app.command()(generate)
app.command()(inspect)
app.command()(report)
app.add_typer(bench, name="bench")
compare.command("train")(compare_train)
app.add_typer(compare, name="compare")
app.add_typer(tokenizer, name="tokenizer")
app.add_typer(lra, name="lra")


@app.callback()
def cosformer() -> None:
    """Exact cosine-reweighted attention in linear time."""


if __name__ == "__main__":
    app()
