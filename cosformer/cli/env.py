"""`cosformer env`: what a bug report needs, and which backend runs here and why."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cosformer.bench import environment


def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """Versions, devices, which backend runs on each and why, and how the Triton kernels are launched by shape."""
    facts = {
        "versions": environment.versions(),
        "devices": environment.devices(),
        "backends": environment.backends(),
        "kernels": environment.configurations(),
        "commit": environment.commit(),
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    table = Table(show_header=False, box=None)
    for name, version in facts["versions"].items():
        table.add_row(name, version)
    for name, words in facts["devices"].items():
        table.add_row(f"device {name}", words)
    for name, choice in facts["backends"].items():
        table.add_row(f"backend on {name}", choice)
    for name, words in facts["kernels"].items():
        table.add_row(f"Triton, {name}", words)
    table.add_row("commit", facts["commit"] or "installed copy")
    Console().print(table)
