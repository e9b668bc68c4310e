"""Data sets by name through the `datasets` package, streamed: nothing is ever whole in memory."""

from collections.abc import Iterator
from typing import Any

from cosformer.tasks.errors import BadData, SourceMissing
from cosformer.tasks.optional import need
from cosformer.tasks.pieces import Example, Piece, Place
from cosformer.tasks.sources.labels import checked_classes, label_number
from cosformer.tasks.sources.own_text import in_pieces
from cosformer.tasks.sources.source import TRAIN, VALID, ExampleSource, TextSource
from cosformer.tasks.sources.tables import Row, checked_columns, text_column

SPELLINGS = {VALID: ("valid", "validation", "val", "dev")}


class Hub:
    """Which splits there are, and the rows of one in their order. revision: pin it, or a change is not noticed."""

    def __init__(self, name: str, config: str | None, revision: str | None, options: dict[str, Any]) -> None:
        self.name, self.config, self.revision, self.options = name, config, revision, options
        library = need("datasets", f"the data set {name} by name")
        try:
            there = library.get_dataset_split_names(name, config, revision=revision, **options)
        except Exception as error:  # whatever the network, the hub or a builder raises
            raise SourceMissing(
                f"{name} (configuration {config}): `datasets` cannot find it: {type(error).__name__}: {error}. "
                "Check the name, the configuration and the network, or download files and name them with --data"
            ) from error
        wanted = {split: SPELLINGS.get(split, (split,)) for split in (TRAIN, VALID, "test")}
        self.splits = {s: n for s, names in wanted.items() for n in names if n in there}
        self.splits |= {n: n for n in there if n not in self.splits.values()}

    def rows(self, split: str) -> Iterator[tuple[Place, Row]]:
        library = need("datasets", f"the data set {self.name} by name")
        rows = library.load_dataset(
            self.name, self.config, split=self.splits[split], revision=self.revision, streaming=True, **self.options
        )
        for number, row in enumerate(rows, 1):
            yield Place(f"{self.name}/{self.splits[split]}", number), row

    def stamp(self, split: str) -> Any:
        shown = {key: str(value) for key, value in self.options.items()}
        return [self.name, self.config, self.revision, self.splits[split], shown]


class HubText(TextSource):
    """A column of text; each row is a document."""

    def __init__(
        self, name: str, config: str | None = None, *, column: str = "text", revision: str | None = None, **options: Any
    ) -> None:
        self.hub = Hub(name, config, revision, options)
        self.name, self.column, self.splits = name, column, tuple(self.hub.splits)

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        return [self.column, self.hub.stamp(split)]

    def pieces(self, split: str) -> Iterator[Piece]:
        self.check_split(split)
        for place, row in self.hub.rows(split):
            yield from in_pieces(text_column(place, row, self.column), place)


class HubExamples(ExampleSource):
    """One or two columns of text and a label (None: sequence to sequence). classes: from the features if not named."""

    def __init__(
        self, name: str, config: str | None = None, *, columns: tuple[str, ...] = ("text",),
        label: str | None = "label", classes: tuple[str, ...] = (), revision: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        checked_columns(columns, label)
        self.hub = Hub(name, config, revision, options)
        self.name, self.columns, self.label, self.splits = name, columns, label, tuple(self.hub.splits)
        self.texts = len(columns)
        self.classes = () if label is None else checked_classes(classes) if classes else self._named_classes(label)

    def _named_classes(self, label: str) -> tuple[str, ...]:
        library = need("datasets", self.name)
        builder = library.load_dataset_builder(
            self.name, self.hub.config, revision=self.hub.revision, **self.hub.options
        )
        names = getattr((builder.info.features or {}).get(label), "names", None)
        if not names:
            raise BadData(f"{self.name}: column {label!r} does not name its classes: name them with --classes")
        return tuple(names)

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        return [list(self.columns), self.label, list(self.classes), self.hub.stamp(split)]

    def examples(self, split: str) -> Iterator[Example]:
        self.check_split(split)
        for place, row in self.hub.rows(split):
            texts = tuple(text_column(place, row, column) for column in self.columns)
            label = None if self.label is None else label_number(place, row, self.label, self.classes)
            yield Example(texts, label, place)
