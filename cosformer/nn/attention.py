"""The operator between its projections, with the names, shapes and calls of nn.MultiheadAttention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.nn.masks import check_causal_mask, kept_keys
from cosformer.ops.attention import attention_step, cosformer_attention
from cosformer.ops.checks import check_horizon, check_options
from cosformer.ops.features import sum_dtype
from cosformer.ops.reference import attention_weights
from cosformer.ops.state import AttentionState


class CosformerAttention(nn.Module):
    """nn.MultiheadAttention in linear time: out_proj(cosformer_attention(q, k, v)), q, k, v projected from the inputs.

    Arguments up to `dtype` are those of nn.MultiheadAttention, in its order. Parameters have its names, shapes and
    initial values, so its state dict loads; with fewer key/value heads in_proj has E + 2·num_kv_heads·K rows (K the
    width of a head) instead of 3·E. Put it in place of `self_attn` or `multihead_attn` of torch's transformer layers.

    dropout       on the attended values, before out_proj: there are no weights to drop.
    add_bias_kv, add_zero_attn   refused: they add a key that has no position.
    num_kv_heads  key/value heads, a divisor of num_heads; None: num_heads.
    causal        every call is causal; otherwise the calls that say so (is_causal, or a causal attn_mask) are.
    horizon       M, at least the longest sequence. None follows the length of each call, so a longer sequence changes
                  the outputs of its own prefix, and there is no state to continue from.
    feature_map, normalize, eps, backend   as in `cosformer_attention`.
    """

    in_proj_weight: nn.Parameter | None  # [E + 2·Hkv·K, E]: q, k, v one below another
    q_proj_weight: nn.Parameter | None  # instead of it where kdim or vdim differ from embed_dim
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None

    # Torch's encoder layers ask for this before a path of theirs for eval mode that never calls self_attn: it takes
    # in_proj_weight and runs softmax. False keeps them off it, whatever our widths are.
    _qkv_same_embed_dim = False

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
        num_kv_heads: int | None = None, causal: bool = False, horizon: int | None = None, feature_map: str = "relu",
        normalize: bool = True, eps: float = 1e-6, backend: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.causal, self.horizon, self.backend = causal, horizon, backend
        self.feature_map, self.normalize, self.eps = feature_map, normalize, eps
        for name, asked in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if asked:
                raise ValueError(
                    f"{name}=True: it adds a key that has no position, and the weights here depend on positions; "
                    "leave it out, or append your own token to key and value"
                )
        self._check_sizes()
        check_options(feature_map, backend, eps)
        check_horizon(horizon, 1, 0)
        self.head_dim = embed_dim // num_heads
        rows = (embed_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim)
        packed = self.kdim == self.vdim == embed_dim

        def parameter(wanted: bool, *shape: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if wanted else None

        self.register_parameter("in_proj_weight", parameter(packed, sum(rows), embed_dim))
        self.register_parameter("q_proj_weight", parameter(not packed, rows[0], embed_dim))
        self.register_parameter("k_proj_weight", parameter(not packed, rows[1], self.kdim))
        self.register_parameter("v_proj_weight", parameter(not packed, rows[2], self.vdim))
        self.register_parameter("in_proj_bias", parameter(bias, sum(rows)))
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None,
        key_padding_mask: Tensor | None = None, need_weights: bool = False, attn_mask: Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False, *, state: AttentionState | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, Tensor | AttentionState | None]:  # fmt: skip
        """(output, weights or None), as nn.MultiheadAttention; (output, state) with return_state=True.

        query [T,B,E], key [S,B,kdim], value [S,B,vdim]; [B,T,E] … with batch_first; [T,E] … without a batch. No key:
        self attention. No value: the key. Causal queries are the last T of S positions.

        key_padding_mask   [B,S] bool, True where a key is ignored; or float, 0 and −inf only. A float mask is read to
                           make sure, which on a GPU waits for the queue.
        need_weights       also return the weights [B,T,S] ([B,H,T,S] if not average_attn_weights), without dropout.
                           False by default, unlike nn.MultiheadAttention: they alone cost O(T·S) time and memory.
        attn_mask          the causal mask and no other: [T,S] or [B·H,T,S], bool (True ignores) or 0 and −inf.
        is_causal          causal, with or without that mask.
        state              what came before the first key, for causal calls; `return_state` gives what comes after the
                           last. Pieces of a sequence passed on this way equal one call on the whole.
        """
        key = query if key is None else key
        value = key if value is None else value
        self._check_inputs(query, key, value)
        q, k, v = self._project(query, key, value)
        keep = None
        if key_padding_mask is not None:
            keep = kept_keys(key_padding_mask, (k.shape[0], k.shape[2]), query.dim() == 3)
        if attn_mask is not None:
            check_causal_mask(attn_mask, q, k)
        causal = self.causal or is_causal or attn_mask is not None
        if state is not None and not causal:
            raise ValueError(
                "state was passed to a call that is not causal: the keys of one piece would then see each other but "
                "not the next piece; pass is_causal=True, or make the module with causal=True"
            )
        if need_weights and (state is not None or return_state):
            raise ValueError(
                "need_weights=True with a state: the keys behind a state are summed up and have no weights of their "
                "own; ask for one of the two"
            )
        result = cosformer_attention(
            q, k, v, causal=causal, horizon=self.horizon, key_mask=keep, state=state, return_state=return_state,
            feature_map=self.feature_map, normalize=self.normalize, eps=self.eps, backend=self.backend,
        )  # fmt: skip
        o, after = result if isinstance(result, tuple) else (result, None)
        output = self._merge(o, query.dim() == 3)
        if not need_weights:
            return output, after
        weights = attention_weights(
            q, k, causal=causal, horizon=self.horizon, attn_mask=None if keep is None else keep[:, None, None],
            feature_map=self.feature_map, normalize=self.normalize, eps=self.eps,
        )  # fmt: skip
        weights = (weights.mean(1) if average_attn_weights else weights).to(q.dtype)
        return output, weights if query.dim() == 3 else weights[0]

    def step(self, x: Tensor, state: AttentionState) -> Tensor:
        """One more token x of a causal sequence, in the layout of `forward` with T = 1; updates `state` in place.

        Costs the same at every position. Run it under torch.no_grad(); `forward` with state= records gradients.
        """
        self._check_inputs(x, x, x)
        q, k, v = self._project(x, x, x)
        o = attention_step(
            q, k, v, state, feature_map=self.feature_map, normalize=self.normalize, eps=self.eps, backend=self.backend
        )
        return self._merge(o, x.dim() == 3)

    def initial_state(self, batch: int = 1) -> AttentionState:
        """The state before the first token of `batch` sequences."""
        if self.horizon is None:
            raise ValueError(
                "a state needs a horizon and this module has none: its phases are made for one; "
                "make the module with horizon= the longest sequence you will ever continue to"
            )
        like = self.out_proj.weight
        return AttentionState.zeros(
            batch, self.num_kv_heads, self.head_dim, self.head_dim, horizon=self.horizon, dtype=sum_dtype(like.dtype),
            device=like.device,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"{self.embed_dim}, {self.num_heads}, num_kv_heads={self.num_kv_heads}, causal={self.causal}, "
            f"horizon={self.horizon}, feature_map={self.feature_map!r}, batch_first={self.batch_first}"
        )

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [B,H,T,K], k and v [B,Hkv,S,K]: views of the projections, in their memory order."""
        rows = [self.embed_dim] + [self.num_kv_heads * self.head_dim] * 2
        if self.in_proj_weight is not None and query is key and key is value:
            q, k, v = F.linear(query, self.in_proj_weight, self.in_proj_bias).split(rows, -1)
        else:
            biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.split(rows)
            if self.in_proj_weight is not None:
                weights = self.in_proj_weight.split(rows)
            else:
                weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            inputs = (query, key, value)
            q, k, v = (F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True))  # pyright: ignore[reportArgumentType]
        return self._heads(q), self._heads(k), self._heads(v)

    def _heads(self, x: Tensor) -> Tensor:
        x = x.unflatten(-1, (-1, self.head_dim))  # [B, T, H, K], [T, B, H, K] or [T, H, K]
        if x.dim() == 3:
            x = x[None]
        elif not self.batch_first:
            x = x.transpose(0, 1)
        return x.transpose(1, 2)

    def _merge(self, o: Tensor, batched: bool) -> Tensor:
        o = F.dropout(o.transpose(1, 2).flatten(2), self.dropout, self.training)  # [B, T, E]
        o = self.out_proj(o)
        if not batched:
            return o[0]
        return o if self.batch_first else o.transpose(0, 1)

    def _check_sizes(self) -> None:
        e, h, kv = self.embed_dim, self.num_heads, self.num_kv_heads
        sizes = {"embed_dim": e, "num_heads": h, "num_kv_heads": kv, "kdim": self.kdim, "vdim": self.vdim}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name}={size}: it must be positive")
        if e % h:
            raise ValueError(
                f"embed_dim={e} with num_heads={h}: the heads share the width equally; {e} % {h} must be 0"
            )
        if h % kv:
            raise ValueError(
                f"num_heads={h} with num_kv_heads={kv}: each key/value head serves the same number of heads; "
                f"{h} % {kv} must be 0"
            )
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout={self.dropout}: it is a probability; use a number from 0 to 1")

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        inputs = (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim))
        for name, x, width in inputs:
            if x.is_nested:
                raise ValueError(
                    f"{name} is a nested tensor: sequences are padded here and come with key_padding_mask. If "
                    "nn.TransformerEncoder made it, build that with enable_nested_tensor=False, or set its "
                    "use_nested_tensor to False"
                )
            if x.dim() not in (2, 3) or x.dim() != query.dim():
                layout = "[B, T, E]" if self.batch_first else "[T, B, E]"
                raise ValueError(
                    f"{name} has {x.dim()} dimensions, shape {tuple(x.shape)}: query, key and value are all {layout} "
                    f"(batch_first={self.batch_first}), or all [T, E] without a batch"
                )
            if x.shape[-1] != width:
                raise ValueError(
                    f"{name} has width {x.shape[-1]}, shape {tuple(x.shape)}, but this module takes {width} (an omitted"
                    f" key is the query, an omitted value the key): pass a {name} of that width, or set kdim and vdim"
                )
