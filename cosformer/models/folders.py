"""A folder that appears whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A scratch folder beside `target` that takes its name when the block ends, and goes when it fails.

    Refuses, before anything is made, a target that holds something: nothing is ever overwritten.
    """
    check_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        yield scratch
        os.chmod(scratch, 0o755)
        if target.is_dir():
            target.rmdir()  # empty, or this says so
        os.replace(scratch, target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def check_free(target: Path) -> None:
    """FileExistsError where there is a file, or a folder with something in it."""
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists():
        raise FileExistsError(
            f"{target} is there already and nothing is overwritten: name another folder, or remove it"
        )
