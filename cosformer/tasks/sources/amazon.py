"""Amazon reviews, positive or negative, in either of the two forms that are in use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosformer.tasks.errors import BadData, SourceMissing
from cosformer.tasks.pieces import Example, Place
from cosformer.tasks.sources.files import Found, find_files, first_of
from cosformer.tasks.sources.labels import label_number
from cosformer.tasks.sources.source import TEST, TRAIN, ExampleSource, split_by_hash, stamp_files
from cosformer.tasks.sources.tables import Row, read_csv, read_rows, text_column

HELD_OUT = 0.05


class Amazon(ExampleSource):
    """Polarity (Zhang et al. 2015): {train,test}.csv of class 1/2, title, text; valid is 5% of train by hash.

    Or reviews by category (Ni et al. 2019): *.json.gz with reviewText and overall; 1–2 stars are negative, 4–5 are
    positive, 3 left out; valid and test are 5% each by hash.
    """

    name = "amazon"
    classes = ("negative", "positive")

    def __init__(self, path: str | Path | None) -> None:
        folder = None if path is None else Path(path).expanduser()
        self.tables: dict[str, Path] = {}
        self.reviews: list[Found] = []
        if folder is not None:
            parts = {part: first_of(folder, [f"{part}.csv"]) for part in (TRAIN, TEST)}
            self.tables = {part: file for part, file in parts.items() if file is not None}
            if len(self.tables) < 2 and folder.exists():
                self.tables = {}
                found = find_files([folder]) if folder.is_file() or any(folder.rglob("*.json*")) else []
                self.reviews = [file for file in found if file.kind == "jsonl"]
        if not self.tables and not self.reviews:
            looked = f"looked for {{train,test}}.csv or *.json.gz in {path}" if path else "no path was given"
            raise SourceMissing(
                f"amazon: {looked}. Get amazon_review_polarity_csv.tgz (Zhang et al. 2015, linked from "
                "https://huggingface.co/datasets/fancyzhx/amazon_polarity) or a category of "
                "https://nijianmo.github.io/amazon, unpack it, and name the folder with --data"
            )

    def stamp(self, split: str) -> Any:
        self.check_split(split)
        part = TEST if split == TEST else TRAIN
        return [split, stamp_files([self.tables[part]] if self.tables else [f.path for f in self.reviews])]

    def examples(self, split: str) -> Iterator[Example]:
        self.check_split(split)
        some = False
        for example in self._polarity(split) if self.tables else self._categories(split):
            some = True
            yield example
        if not some:
            raise BadData(f"amazon: no reviews for split {split!r} in the files given")

    def _polarity(self, split: str) -> Iterator[Example]:
        rows = read_csv(self.tables[TEST if split == TEST else TRAIN], ["class", "title", "text"])
        for number, (place, row) in enumerate(rows):
            if split != TEST and split_by_hash(f"amazon:{number}", (HELD_OUT, 0.0)) != split:
                continue
            if row["class"] not in ("1", "2"):
                raise BadData(f"{place}: class {row['class']!r}: 1 (negative) or 2 (positive) was expected")
            yield Example((f"{row['title']}\n{row['text']}",), int(row["class"]) - 1, place)

    def _categories(self, split: str) -> Iterator[Example]:
        for file in self.reviews:
            for number, (place, row) in enumerate(read_rows(file.path, "jsonl")):
                if not row.get("reviewText"):
                    continue  # stars without words: common, and nothing to read
                if split_by_hash(f"{file.path.name}:{number}", (HELD_OUT, HELD_OUT)) != split:
                    continue
                stars = _stars(place, row)
                if stars != 3:
                    label = label_number(place, {"overall": int(stars > 3)}, "overall", self.classes)
                    yield Example((text_column(place, row, "reviewText"),), label, place)


def _stars(place: Place, row: Row) -> float:
    stars = row.get("overall")
    if not isinstance(stars, int | float) or not 1 <= stars <= 5:
        raise BadData(f"{place}: overall is {stars!r}: 1 to 5 stars were expected")
    return stars
