"""What generation remembers of the past in a cosFormer block: one state of fixed size, whatever the length.

`DynamicCache(config=...)`, `StaticCache(config=...)` and `EncoderDecoderCache` of transformers hold one layer of this
kind for each cosFormer block, beside ordinary layers of keys and values for the softmax blocks of a hybrid model.
"""

import torch
from torch import Tensor
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING, Cache, CacheLayerMixin, EncoderDecoderCache

from cosformer.ops.features import sum_dtype
from cosformer.ops.state import AttentionState

STATE_LAYER_TYPE = "cosformer_attention"


class StateLayer(CacheLayerMixin):
    """sums [B,Hkv,2,K,V] and norm [B,Hkv,2,K] of an AttentionState, at fixed addresses, and how many tokens they saw.

    The count lives on the device (`cumulative_length`), so that a compiled or captured step advances it by itself. A
    copy in Python (`known_length`) spares eager steps from waiting for the device; it is None after a compiled step.
    """

    _layer_type = STATE_LAYER_TYPE
    is_compileable = True
    is_croppable = False
    is_sliding = False
    supports_early_init = True

    def __init__(self, **_: object) -> None:
        super().__init__()
        self.sums: Tensor | None = None
        self.norm: Tensor | None = None
        self.cumulative_length = torch.zeros((), dtype=torch.int64)
        self.known_length: int | None = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The state before the first token, for keys [B,Hkv,*,K] and values [B,Hkv,*,V]."""
        b, h, _, k = key_states.shape
        self.dtype, self.device, self.batch_size = sum_dtype(key_states.dtype), key_states.device, b
        self.sums = key_states.new_zeros(b, h, 2, k, value_states.shape[-1], dtype=self.dtype)
        self.norm = key_states.new_zeros(b, h, 2, k, dtype=self.dtype)
        self.cumulative_length = self.cumulative_length.to(self.device)
        if not torch.compiler.is_compiling():  # CUDA graphs of a compiled step then update them in place
            for x in (self.sums, self.norm, self.cumulative_length):
                torch._dynamo.mark_static_address(x)
        self.is_initialized = True

    def state(self, horizon: int) -> AttentionState:
        """A view of the tensors for the operator. Its length is 0: the model counts, and checks, before it calls."""
        assert self.sums is not None
        assert self.norm is not None
        return AttentionState(sums=self.sums, norm=self.norm, length=0, horizon=horizon)

    def keep(self, state: AttentionState) -> None:
        """Takes over what `state` holds."""
        if not self.is_initialized:
            b, h, _, k, v = state.sums.shape
            empty = state.sums.new_empty(b, h, 0, 1)
            self.lazy_initialization(empty.expand(b, h, 0, k), empty.expand(b, h, 0, v))
        if state.sums.requires_grad:  # in place would cut the path of the gradient
            self.sums, self.norm = state.sums, state.norm
        else:
            assert self.sums is not None
            assert self.norm is not None
            self.sums.copy_(state.sums)
            self.norm.copy_(state.norm)

    def advance(self, tokens: int) -> None:
        """Counts tokens that the state has now seen."""
        self.cumulative_length.add_(tokens)
        if is_traced(self.cumulative_length):
            self.known_length = None
        elif self.known_length is not None:
            self.known_length += tokens

    def get_seq_length(self) -> int:
        """Tokens seen. A tensor where a graph is being made, since there it is a value and not a number."""
        if is_traced(self.cumulative_length):
            return self.cumulative_length  # pyright: ignore[reportReturnType]  (as transformers' own StaticLayer)
        if self.known_length is None:
            self.known_length = int(self.cumulative_length)
        return self.known_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    @property
    def nbytes(self) -> int:
        """Bytes held: the same at every length."""
        return sum(x.nbytes for x in (self.sums, self.norm, self.cumulative_length) if x is not None)

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object) -> tuple:
        raise TypeError(
            "Cache.update was called for a cosFormer block: it keeps a state and no keys or values; make the cache "
            "with the config of the model that uses it, as in DynamicCache(config=model.config)"
        )

    def offload(self) -> None:
        if self.sums is not None and self.norm is not None:
            self.sums, self.norm = self.sums.to("cpu", non_blocking=True), self.norm.to("cpu", non_blocking=True)

    def prefetch(self) -> None:
        if self.sums is not None and self.norm is not None and self.sums.device != self.device:
            self.sums, self.norm = self.sums.to(self.device), self.norm.to(self.device)

    def reset(self) -> None:
        if self.sums is not None and self.norm is not None:
            self.sums.zero_()
            self.norm.zero_()
        self.cumulative_length.zero_()
        self.known_length = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """The given rows in place of those there are, at the same addresses."""
        if self.sums is not None and self.norm is not None:
            rows = beam_idx.to(self.sums.device)
            self.sums.copy_(self.sums.index_select(0, rows))
            self.norm.copy_(self.norm.index_select(0, rows))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times: one prompt, many continuations."""
        if self.sums is not None and self.norm is not None:
            self.sums = self.sums.repeat_interleave(repeats, 0)
            self.norm = self.norm.repeat_interleave(repeats, 0)
            self.batch_size = self.sums.shape[0]

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.sums is not None and self.norm is not None:
            self.sums, self.norm = self.sums[indices], self.norm[indices]
            self.batch_size = self.sums.shape[0]

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise RuntimeError(
                f"crop({tokens_to_remove}) on a cosFormer state: a sum does not know its single tokens, so none can be "
                "taken back; keep a copy (copy.deepcopy(cache)) at the place you want to return to"
            )


STATIC_LAYER_TYPE_MAPPING[STATE_LAYER_TYPE] = StateLayer  # a state is as static as it is dynamic


def is_traced(x: Tensor) -> bool:
    """Whether Python runs once while the step runs many times: a compiler traces, or a CUDA graph captures."""
    return torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing())


def self_attention_cache(cache: Cache | None) -> Cache | None:
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def past_length(cache: Cache | None) -> int | Tensor:
    """Tokens behind the new ones: a number, or a tensor where only the device knows. A state knows by itself."""
    own = self_attention_cache(cache)
    if own is None:
        return 0
    states = (layer for layer in own.layers if isinstance(layer, StateLayer))
    return next(states, own).get_seq_length()
