"""Decoding whose step is one launch: embedding, blocks, logits and the choice of the next token in a CUDA graph.

A step of a small model takes a GPU less time than Python takes to ask for it. Captured, everything a step changes
(states, the count of tokens, the token itself) lives at fixed addresses on the device, and Python only says "again".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from cosformer.models.cache import StateLayer
from cosformer.models.language_models import CosformerForCausalLM

LOOK_EVERY = 32  # steps between looks at whether all rows have ended: each look waits for the device


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the next token is chosen. temperature 0: always the likeliest."""

    temperature: float = 0.0
    top_k: int | None = None
    """Only among so many of the likeliest."""
    top_p: float | None = None
    """Only among the likeliest that together reach this probability."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature}: use 0 for the likeliest token, or a positive number")
        if self.temperature == 0 and (self.top_k is not None or self.top_p is not None):
            raise ValueError(
                "top_k or top_p with temperature 0: there is nothing to draw; set a temperature, such as 1"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: it counts tokens; use at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: it is a probability; use a number above 0, at most 1")

    def choose(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """[B] tokens for logits [B, N]. Nothing here waits for the device, so a graph can hold it."""
        if self.temperature == 0:
            return logits.argmax(-1)
        logits = logits.float() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        if self.top_p is not None and self.top_p < 1:
            ordered, places = logits.sort(-1, descending=True)
            p = ordered.softmax(-1)
            beyond = p.cumsum(-1) - p >= self.top_p  # what came before is enough already; never the first
            logits = logits.masked_fill(beyond.scatter(-1, places, beyond), float("-inf"))
        # argmax of p / Exp(1) draws from p, without torch.multinomial's look at the sum
        noise = torch.empty_like(logits).exponential_(generator=generator)
        return (logits.softmax(-1) / noise).argmax(-1)


class GraphDecoder:
    """Writes `batch` rows with one model, a captured step at a time; any number of prompts one after another.

    `capture=True` needs a CUDA device and says so where there is none; `capture=False` is the same step, launched from
    Python. `growing=True` (not captured) keeps keys and values of softmax blocks as `generate()` does by default.
    """

    def __init__(
        self, model: CosformerForCausalLM, *, batch: int = 1, max_length: int | None = None,
        sampling: Sampling | None = None, seed: int = 0, capture: bool = True, growing: bool = False,
    ) -> None:  # fmt: skip
        """`max_length` of prompt and answer; None: the horizon. Softmax blocks reserve room for that many tokens."""
        self.model, self.config, self.device = model, model.config, model.device
        self.sampling, self.growing, self.captured = sampling or Sampling(), growing, capture
        if capture and self.device.type != "cuda":
            raise ValueError(
                f"capture=True with a model on {self.device}: CUDA graphs need a CUDA device; move the model there, or "
                "pass capture=False for the same step launched from Python"
            )
        if capture and growing:
            raise ValueError("capture=True with growing=True: a graph needs fixed addresses, a growing cache has none")
        self.has_keys = "full_attention" in self.config.layer_types
        if max_length is None and not self.config.has_longest:
            raise ValueError("softmax blocks alone have no horizon: say max_length, the tokens to reserve room for")
        self.max_length = self.config.horizon if max_length is None else max_length
        if self.config.has_longest:
            self.max_length = min(self.max_length, self.config.horizon)
        self.batch, self.length = batch, 0
        options: dict[str, Any] = {"device": self.device, "dtype": torch.int64}
        self.token = torch.zeros(batch, 1, **options)
        """The last token of each row, not yet read by the model."""
        self.positions = torch.zeros(batch, 1, **options)
        self.written = torch.zeros(batch, self.max_length + 1, **options)
        self.at = torch.zeros(1, **options)
        self.logits = torch.zeros(batch, self.config.vocab_size, device=self.device, dtype=model.dtype)
        """Of the last step, from which `token` was chosen."""
        kept = self.max_length if self.has_keys and not growing else 0
        self.real = torch.ones(batch, kept, device=self.device, dtype=torch.bool)
        self.places = torch.arange(kept, device=self.device)
        self.mask: Tensor | None = None  # of a growing cache, where there is padding
        self.generator = torch.Generator(self.device)
        self.seed(seed)
        self.cache: Any = self._new_cache()
        self._run = captured(self._step, self.reset, self.generator) if capture else self._step
        self.reset()

    def seed(self, seed: int) -> None:
        """What sampling draws from here on."""
        self.generator.manual_seed(seed)

    def reset(self) -> None:
        """Forgets everything read; addresses stay."""
        if self.growing:
            self.cache = self._new_cache()
        else:
            self.cache.reset()
        for x in (self.token, self.positions, self.written, self.at):
            x.zero_()
        self.real.fill_(True)
        self.mask, self.length = None, 0

    @torch.no_grad()
    def prefill(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Reads prompts [B, T], padded on the left, from the beginning; gives the first new token [B, 1]."""
        if ids.dim() != 2 or ids.shape[0] != self.batch or ids.shape[1] == 0:
            raise ValueError(
                f"prompts have shape {tuple(ids.shape)}: this decoder was made for [{self.batch}, T], T > 0"
            )
        self._check(ids.shape[1])
        self.reset()
        ids, mask, new = ids.to(self.device), None, ids.shape[1]
        if attention_mask is not None and not bool(attention_mask.all()):
            mask = attention_mask.to(self.device)
            if not bool(mask[:, -1].all()):
                raise ValueError("attention_mask ends in padding: pad prompts on the left, so that the text goes on")
        out = self.model(ids, attention_mask=mask, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.positions.fill_(new)
        if mask is not None:
            self.positions.copy_(mask.sum(-1, keepdim=True))
        if mask is not None and self.growing:
            self.mask = mask
        elif mask is not None and self.has_keys:
            self.real[:, :new] = mask.bool()
        self.length = new
        self._forget_counts()
        self._take(out.logits[:, -1])
        return self.token

    @torch.no_grad()
    def step(self) -> Tensor:
        """Reads the last token and chooses the next, [B, 1]; the tensor is overwritten by the next step."""
        self._check(self.length + 1)
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(self.batch, 1)], 1)
        self._run()
        self.length += 1
        return self.token

    def generate(
        self, ids: Tensor, max_new_tokens: int, *, attention_mask: Tensor | None = None,
        eos_token_id: int | None = None, said: Callable[[Tensor], None] | None = None,
    ) -> Tensor:  # fmt: skip
        """[B, T + new]: prompts and answers; after its `eos_token_id` a row repeats it, and when all have, it ends.

        `said` gets each token [B, 1] as it is chosen, which waits for the device at every step.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={max_new_tokens}: use at least 1")
        self._check(ids.shape[-1] + max_new_tokens - 1)
        token, count = self.prefill(ids, attention_mask), 1
        if said is not None:
            said(token)
        every = 1 if said is not None else LOOK_EVERY
        while count < max_new_tokens:
            if eos_token_id is not None and (count == 1 or count % every == 0) and self._all_ended(count, eos_token_id):
                break
            token, count = self.step(), count + 1
            if said is not None:
                said(token)
        new = self.written[:, :count].clone()
        if eos_token_id is not None:
            ended = (new == eos_token_id).cumsum(-1) > 0
            new.masked_fill_(ended, eos_token_id)
            longest = int((~ended).sum(-1).max()) + 1  # with the token that ended it
            new = new[:, :longest]
        return torch.cat([ids.to(self.device), new], 1)

    @torch.no_grad()
    def pretend(self, context: int) -> None:
        """As if `context` tokens had been read: states and caches hold random numbers. For measurements."""
        self._check(context + 1)
        self.reset()
        width, heads = self.config.head_dim, self.config.num_key_value_heads
        assert width is not None
        assert heads is not None
        empty = self.logits.new_empty(self.batch, heads, 0, width)
        for i, layer in enumerate(self.cache.layers):
            if isinstance(layer, StateLayer):
                if not layer.is_initialized:
                    layer.lazy_initialization(empty, empty)
                assert layer.sums is not None
                assert layer.norm is not None
                layer.sums.normal_().mul_(context**0.5)
                layer.norm.uniform_(0.1, 1).mul_(context)
                layer.cumulative_length.fill_(context)
                layer.known_length = context
            else:
                shape = (*empty.shape[:2], context, width)
                k, v = (torch.randn(shape, device=empty.device, dtype=empty.dtype) for _ in range(2))
                self.cache.update(k, v, i)
        self.positions.fill_(context)
        self.length = context
        self._forget_counts()

    @property
    def cache_bytes(self) -> int:
        """Bytes of all states, keys and values."""
        total = 0
        for layer in self.cache.layers:
            if isinstance(layer, StateLayer):
                total += layer.nbytes
            elif layer.is_initialized:
                total += layer.keys.nbytes + layer.values.nbytes
        return total

    def _new_cache(self) -> Any:
        if self.growing:
            return DynamicCache(config=self.config)
        return StaticCache(config=self.config, max_cache_len=self.max_length)

    def _step(self) -> None:
        """What a graph holds: no value is read by Python, every result is written in place."""
        masks: Any = self.mask
        if not self.growing:
            masks = {"keys": None, "softmax": self._allowed(), "positions": self.positions}
        out = self.model(self.token, attention_mask=masks, past_key_values=self.cache, use_cache=True)
        self.positions.add_(1)
        self._take(out.logits[:, -1])

    def _take(self, logits: Tensor) -> None:
        self.logits.copy_(logits)
        self.token.copy_(self.sampling.choose(logits, self.generator)[:, None])
        self.written.index_copy_(1, self.at, self.token)
        self.at.add_(1)

    def _allowed(self) -> Tensor | None:
        """[B, 1, 1, S]: the keys a new token sees in softmax blocks: real ones up to its own place."""
        if not self.has_keys:
            return None
        first: Any = self.cache.layers[self.config.layer_types.index("full_attention")]
        held = first.cumulative_length.to(self.device)
        return (self.real & (self.places <= held))[:, None, None]

    def _forget_counts(self) -> None:
        """Replays advance the device's count of tokens and not Python's copy: the copy goes."""
        if self.captured:
            for layer in self.cache.layers:
                if isinstance(layer, StateLayer):
                    layer.known_length = None

    def _check(self, length: int) -> None:
        if length > self.max_length:
            limit = "the model's horizon" if self.max_length == self.config.horizon else "max_length of this decoder"
            raise ValueError(f"{length} tokens, but {limit} is {self.max_length}: use fewer, nothing has been written")

    def _all_ended(self, count: int, eos: int) -> bool:
        return bool((self.written[:, :count] == eos).any(-1).all())


@torch.no_grad()
def captured(run: Callable[[], None], reset: Callable[[], None], generator: torch.Generator) -> Callable[[], None]:
    """`run` as a CUDA graph: one launch. It runs on the way, each time after `reset`; a last one is the caller's."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # kernels are built, tensors made
            reset()
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    reset()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
