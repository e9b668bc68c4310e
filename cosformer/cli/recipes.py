"""`cosformer recipes`: what can be trained, what it needs, what to expect."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cosformer.cli.models import refusals


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe's TOML, to read or to change.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the recipes that are shipped, or print one."""
    with refusals():
        from cosformer.training.shipped import find_recipe, listing

        if name is not None:
            typer.echo(find_recipe(name).read_text(encoding="utf-8"), nl=False)
            return
        found = listing()
    if as_json:
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    shown = Table(title="cosformer train RECIPE")
    for heading in ("recipe", "what", "needs", "expect"):
        shown.add_column(heading, overflow="fold", no_wrap=heading == "recipe")
    for one in found:
        shown.add_row(one["name"], one["about"], one["needs"], one["expect"])
    out = Console()
    (out if out.is_terminal else Console(width=200)).print(shown)
