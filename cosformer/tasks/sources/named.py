"""The sources that have a name."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cosformer.tasks.lra.image import LraImage
from cosformer.tasks.lra.listops import ListOps
from cosformer.tasks.lra.pathfinder import Pathfinder
from cosformer.tasks.lra.retrieval import LraRetrieval
from cosformer.tasks.lra.text import LraText
from cosformer.tasks.sources.amazon import Amazon
from cosformer.tasks.sources.enwik8 import Enwik8
from cosformer.tasks.sources.glue import Glue
from cosformer.tasks.sources.imdb import Imdb
from cosformer.tasks.sources.parallel import multi30k
from cosformer.tasks.sources.source import Source
from cosformer.tasks.sources.stdlib import StandardLibrary
from cosformer.tasks.sources.wikitext import WikiText

NAMED: dict[str, Callable[..., Source]] = {
    "stdlib": StandardLibrary,
    "enwik8": Enwik8,
    "wikitext-2": lambda path: WikiText(path, size=2),
    "wikitext-103": lambda path: WikiText(path, size=103),
    "sst2": lambda path: Glue(path, task="sst2"),
    "qqp": lambda path: Glue(path, task="qqp"),
    "mnli": lambda path: Glue(path, task="mnli"),
    "imdb": Imdb,
    "amazon": Amazon,
    "multi30k": multi30k,
    "lra-listops": ListOps,
    "lra-text": LraText,
    "lra-retrieval": LraRetrieval,
    "lra-image": LraImage,
    "lra-pathfinder": Pathfinder,
}


def open_source(name: str, path: str | Path | None = None, **options: Any) -> Source:
    """A source by name; path: where its files are (none is needed for stdlib, none taken by what is generated).

    options: multi30k has source, target; lra-listops and lra-pathfinder have seed, sizes, workers.
    """
    if name not in NAMED:
        near = difflib.get_close_matches(name, NAMED, 1)
        guess = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"source {name!r} is unknown{guess} There are {', '.join(NAMED)}")
    return NAMED[name](path, **options)
