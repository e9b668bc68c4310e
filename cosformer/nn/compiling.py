"""Whether code is compiled to be run here."""

import torch


def compiled_to_run() -> bool:
    """Under torch.compile, and not for an export, which other programs are to load.

    By the flag itself: torch.compiler.is_exporting() is always true under the compiler of torch 2.11.
    """
    return torch.compiler.is_dynamo_compiling() and not torch.compiler._is_exporting_flag
