"""Draws the samples of docs/lra.md: `python docs/lra_pictures.py [--out docs/figures/lra-pathfinder.png]`."""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from cosformer.tasks.lra.pathfinder import PictureMaker

COLUMNS, ROWS, SCALE, FRAME, GREY = 10, 2, 3, 1, 90


def pathfinder() -> Image.Image:
    """The first pictures of validation: two rows whose dots are joined, then two whose dots are not."""
    pictures, labels = PictureMaker().pictures("valid", 0, 6 * COLUMNS * ROWS)
    bands = []
    for label in (1, 0):
        chosen = [np.pad(picture, FRAME, constant_values=GREY) for picture in pictures[labels == label]]
        bands += [np.concatenate(chosen[r * COLUMNS : (r + 1) * COLUMNS], 1) for r in range(ROWS)]
    bands.insert(ROWS, np.full((4, bands[0].shape[1]), 255, np.uint8))
    whole = np.concatenate(bands)
    return Image.fromarray(whole.repeat(SCALE, 0).repeat(SCALE, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures" / "lra-pathfinder.png")
    place = parser.parse_args().out
    pathfinder().save(place, optimize=True)
    print(place)


if __name__ == "__main__":
    main()
