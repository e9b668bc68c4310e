"""Whether code is compiled to be run here."""

from types import MethodType

import torch
from torch import nn


def compiled_to_run() -> bool:
    """Under torch.compile, and not for an export, which other programs are to load.

    By the flag itself: torch.compiler.is_exporting() is always true under the compiler of torch 2.11.
    """
    return torch.compiler.is_dynamo_compiling() and not torch.compiler._is_exporting_flag


def unchanged(module: nn.Module, name: str) -> bool:
    """Whether a method is that of the class. Looked at as well as looked for: only then the compiler notices when it is
    replaced later."""
    return name not in module.__dict__ and type(getattr(module, name)) is MethodType
