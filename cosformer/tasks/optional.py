"""Imports packages that only some data needs, or says how to get them."""

import importlib
from typing import Any

from cosformer.tasks.errors import MissingPackage


def need(package: str, why: str) -> Any:
    """The imported package; where it is absent, an error that names the extra."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackage(
            f"{why} needs {package.partition('.')[0]}, which is not installed: pip install 'cosformer[data]'"
        ) from error
