"""Operations and bytes by formula: what a run must do at least, to set measured times against."""

CHUNK = 64  # the tile inside the chunk is counted at this size, whatever a kernel uses


def flops_per_token(key_width: int, value_width: int, *, causal: bool) -> int:
    """Floating-point operations of the forward pass per token and head (a multiply-add counts two).

    A state of 2K × V is written and read; causal attention adds the tile of its own chunk. At K = V = 64 that is 32,768
    for attention in both directions and 49,152 for causal.
    """
    state = 2 * (2 * 2 * key_width * value_width)
    return state + (2 * CHUNK * (key_width + value_width) if causal else 0)


def bytes_moved(batch: int, heads: int, length: int, key_width: int, value_width: int, itemsize: int) -> int:
    """q, k and v read once, o written once."""
    return batch * heads * length * 2 * (key_width + value_width) * itemsize


def state_bytes(batch: int, heads: int, key_width: int, value_width: int, itemsize: int = 4) -> int:
    """An AttentionState, whatever the length of the past."""
    return batch * heads * 2 * key_width * (value_width + 1) * itemsize
