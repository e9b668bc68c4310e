"""An encoder as an ONNX file of standard operators, for any batch and length: no PyTorch where it runs."""

from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from cosformer.models.model import CosformerPreTrainedModel
from cosformer.ops.features import FEATURE_MAPS, angle, clamp_norm, sum_dtype


def export_onnx(model: CosformerPreTrainedModel, path: str | PathLike[str]) -> None:
    """Writes `model`, an encoder with any head, as path: (input_ids, attention_mask) [B, T] to its first output.

    onnxruntime gives the model's own numbers, to rounding, for every B and T up to the horizon.
    """
    if model.config.causal or model.config.is_encoder_decoder:
        raise ValueError(
            "ONNX export of a causal model: its linear form is a loop over the length, which has no counterpart among "
            "the standard operators; export an encoder (causal=False)"
        )
    was_training = model.training
    model.eval()
    ids = torch.zeros(2, 8, dtype=torch.int64)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=model.config.horizon)
    shapes = {"input_ids": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}
    with torch.no_grad():
        exported = torch.export.export(_FirstOutput(model), (ids, torch.ones_like(ids)), dynamic_shapes=shapes)
        table = torch.export.default_decompositions()
        table[torch.ops.cosformer.attention.default] = _plain_attention
        exported = exported.run_decompositions(table)
        torch.onnx.export(
            exported, f=path, dynamo=True, external_data=False, verbose=False,
            input_names=["input_ids", "attention_mask"], output_names=["output"],
        )  # fmt: skip
    model.train(was_training)


class _FirstOutput(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids, attention_mask, return_dict=True)[0]


def _plain_attention(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, cu_q: Any, cu_k: Any, state: Any, norm: Any, past: Any,
    causal: bool, horizon: int, feature_map: str, normalize: bool, eps: float, return_state: bool, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The operator both ways in one product each: Φ(q) (Φ(k)ᵀ [v, 1]), with Φ(x) = [φ(x) cos θt, φ(x) sin θt]."""
    assert not causal
    assert cu_q is None
    assert state is None
    dtype, group = sum_dtype(q.dtype), q.shape[1] // k.shape[1]
    phi_q, phi_k = (_phi(x.to(dtype), feature_map, horizon) for x in (q, k))  # [B, H, T, 2K], [B, Hkv, S, 2K]
    if key_mask is not None:
        phi_k = torch.where(key_mask[:, None, :, None], phi_k, 0)
    sums, ones = phi_k.mT @ v.to(dtype), phi_k.sum(2)[..., None]  # [B, Hkv, 2K, V], [B, Hkv, 2K, 1]
    if group > 1:
        sums, ones = sums.repeat_interleave(group, 1), ones.repeat_interleave(group, 1)
    o, empty = phi_q @ sums, q.new_zeros(0, dtype=dtype)
    z = (phi_q @ ones)[..., 0] if normalize else empty
    if normalize:
        o = o / clamp_norm(z, eps)[..., None]
    return o.to(q.dtype), z, empty, empty


def _phi(x: Tensor, feature_map: str, horizon: int) -> Tensor:
    x = FEATURE_MAPS[feature_map](x)
    angles = torch.arange(x.shape[2], dtype=x.dtype, device=x.device)[:, None] * angle(horizon)
    return torch.cat([x * angles.cos(), x * angles.sin()], -1)
