"""What `bench train` can be asked: models of three sizes, attentions, lengths; what fills a CPU and what a GPU."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cosformer.models import CosformerConfig, register_attention
from cosformer.models.configuration_checks import POSITIONS
from cosformer.models.layout import Layout
from cosformer.models.softmax_kind import SoftmaxKind

OURS, SOFTMAX, CUDNN = "cosformer", "softmax", "softmax_cudnn"
ATTENTIONS = {
    OURS: "our operator",
    SOFTMAX: "SDPA with the kernel that torch chooses",
    CUDNN: "SDPA with the kernel of cuDNN (CUDA only)",
}
COMPILED = ("none", "default", "reduce-overhead", "max-autotune-no-cudagraphs")


class CudnnSoftmaxKind(SoftmaxKind):
    """The same attention by the other kernel torch has for it: a comparison is with the faster of the two."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Any | None) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return super().attend(q, k, v, layout, cache)


register_attention(CUDNN, CudnnSoftmaxKind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A model, and how many tokens fill the device in a step."""

    layers: int
    width: int
    heads: int
    vocab: int
    tokens: int


PRESETS = {
    "2m": Size(layers=3, width=256, heads=4, vocab=256, tokens=4_096),  # for a CPU
    "25m": Size(layers=8, width=512, heads=8, vocab=256, tokens=524_288),  # bytes
    "350m": Size(layers=24, width=1_024, heads=16, vocab=32_768, tokens=65_536),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainBench:
    preset: str = "2m"
    size: Size = PRESETS["2m"]
    lengths: tuple[int, ...] = (512, 2_048, 4_096)
    attentions: tuple[str, ...] = (OURS, SOFTMAX)
    steps: int = 1
    """Steps in a sample: the clock is read before the first and after the last."""
    repeats: int = 5
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    """Of products and attention; weights and sums are fp32."""
    compiled: str = "none"
    """Mode of torch.compile for the whole model."""
    positions: str = "sinusoidal"
    """Of every model; rotary costs a pass over queries and keys in each block."""
    profiled: bool = False
    """Say for every cell which kernels its time goes to."""

    def __post_init__(self) -> None:
        if min(self.steps, self.repeats, *self.lengths) < 1:
            raise ValueError("lengths, steps and repeats: each at least 1")
        if unknown := sorted(set(self.attentions) - set(ATTENTIONS)):
            raise ValueError(f"attention {', '.join(unknown)} is unknown: use some of {','.join(ATTENTIONS)}")
        if CUDNN in self.attentions and not self.device.startswith("cuda"):
            raise ValueError(f"{CUDNN} needs a CUDA device, and this is {self.device}: leave it out")
        if self.compiled not in COMPILED:
            raise ValueError(f"compile={self.compiled!r} is unknown: use one of {', '.join(COMPILED)}")
        if self.positions not in POSITIONS:
            raise ValueError(f"positions={self.positions!r} is unknown: use one of {', '.join(POSITIONS)}")
        if self.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError("dtype: training is measured in fp32 or bf16; fp16 would need a scaled loss")

    def batch(self, length: int) -> int:
        """As many sequences as make up the tokens of a step, at least one."""
        return max(1, self.size.tokens // length)

    def config(self, attention: str, length: int) -> CosformerConfig:
        size = self.size
        return CosformerConfig(
            vocab_size=size.vocab, hidden_size=size.width, num_hidden_layers=size.layers,
            num_attention_heads=size.heads, horizon=length, positions=self.positions,
            scale_embeddings=self.positions == "sinusoidal", mlp="swiglu", norm="rmsnorm", attention_bias=False,
            mlp_bias=False, residual_in_fp32=False, attention=attention, architectures=["CosformerForCausalLM"],
        )  # fmt: skip


def defaults(device: str, preset: str | None) -> TrainBench:
    """What fills a device of this kind: bf16, compiled, three systems on CUDA; a small model as it is on a CPU."""
    on_cuda = device.startswith("cuda")
    preset = preset or ("25m" if on_cuda else "2m")
    if preset not in PRESETS:
        raise ValueError(f"preset {preset!r} is unknown: use one of {', '.join(PRESETS)}")
    base = TrainBench(preset=preset, size=PRESETS[preset], device=device)
    if not on_cuda:
        return base
    lengths = (8_192,) if preset == "350m" else (2_048, 8_192, 32_768)
    return replace(
        base, lengths=lengths, attentions=tuple(ATTENTIONS), steps=5, repeats=7, dtype=torch.bfloat16,
        compiled="default",
    )  # fmt: skip
