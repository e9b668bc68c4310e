"""transformers.Trainer with our batches, optimizer, checkpoints and logs. What is not overridden is its own."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from cosformer.rivals.drawn_features import DrawnFeatures
from cosformer.tasks.datasets.windows import IGNORED
from cosformer.training import checkpoint as saved
from cosformer.training.batches import Key, RunBatches, as_is
from cosformer.training.cadence import Cadence, seed_step
from cosformer.training.data import RunData
from cosformer.training.held_out import held_out, on_device, score, uncompile
from cosformer.training.not_finite import NORM, Guard, NotFinite, find_gradient, find_tensor, in_words
from cosformer.training.readers import read_until_ended
from cosformer.training.recipe import Recipe
from cosformer.training.recorder import Recorder, Stopwatch, Tally, memory_bytes
from cosformer.training.run_folder import BEST
from cosformer.training.samples import write_samples
from cosformer.training.saved_tokenizer import save_tokenizer
from cosformer.training.schedule import rate_share


class RunTrainer(Trainer):
    """One run of a recipe. `batches` say what each step reads; `best` is the best evaluation so far."""

    model: Any
    optimizer: Any
    lr_scheduler: Any
    accelerator: Any
    _tr_loss: Any

    def __init__(
        self, model: Any, args: TrainingArguments, *, data: RunData, batches: RunBatches, recorder: Recorder,
        tally: Tally, best: dict[str, Any] | None = None, latest: dict[str, Any] | None = None,
        untold: dict[str, Any] | None = None, flops_per_token: float | None = None,
        peak_flops: float | None = None, autocast: bool = False,
    ) -> None:  # fmt: skip
        self.data, self.recipe, self.batches, self.recorder = data, data.recipe, batches, recorder
        self.tally, self.best, self.latest, self.bf16_autocast = tally, best, latest, autocast
        self.run, self.untold = recorder.run, untold
        self.flops_per_token, self.peak_flops = flops_per_token, peak_flops
        self.interrupted = False
        self.drawn: list[DrawnFeatures] = []
        """Of a compiled model, which cannot count its passes: what is drawn again after some of them."""
        self.window_tokens, self.window_begin = 0, time.perf_counter()
        self.rates: list[float] = []
        super().__init__(model=model, args=args, callbacks=[Cadence(self)])
        self.remove_callback(PrinterCallback)
        if self.is_fsdp_enabled and model.config.is_encoder_decoder and model.config.tie_word_embeddings:
            # one module of both stacks, with the head in one group: FSDP2 takes no weight that two groups share
            model.set_input_embeddings(model.get_input_embeddings())
        # sharded weights and a plain found_inf do not mix in one kernel
        self.guard = Guard(lambda: self.optimizer, deferred=args.device.type == "cuda" and not self.is_fsdp_enabled)
        self.model_accepts_loss_kwargs = True  # every head of ours divides by num_items_in_batch
        model.config.use_cache = True  # Trainer would save a model that generates without one

    def create_accelerator_and_postprocess(self) -> None:
        """On a CPU accelerate makes DDP of FSDP without a word (its list of kinds leaves MULTI_CPU out): not here."""
        super().create_accelerator_and_postprocess()
        if fsdp_wanted(self.recipe) and not self.is_fsdp_enabled:
            from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

            options: dict[str, Any] = self.args.fsdp_plugin_args or {"fsdp_version": 2}
            plugin = FullyShardedDataParallelPlugin(**options)
            self.accelerator.state.distributed_type = DistributedType.FSDP
            self.accelerator.state.fsdp_plugin = plugin
            self.is_fsdp_enabled = True

    @property
    def sharded(self) -> bool:
        return any(hasattr(p, "device_mesh") for p in self.model.parameters())

    # ---- what each step reads ----

    def get_train_dataloader(self) -> DataLoader:
        workers = self.args.dataloader_num_workers
        return DataLoader(
            self.data.training_set(), batch_sampler=self.batches, collate_fn=as_is, num_workers=workers,
            pin_memory=self.args.device.type == "cuda", persistent_workers=workers > 0,
            worker_init_fn=read_until_ended if workers else None,
            generator=torch.Generator().manual_seed(0),  # or it would draw from the generator of dropout
        )  # fmt: skip

    def get_batch_samples(
        self, epoch_iterator: Iterator[dict[str, Tensor]], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Tensor]], Tensor | None]:
        """The micro-batches of a step, and what its loss is divided by: targets of all of them, of all processes."""
        begin = time.perf_counter()
        found = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        self.tally.waiting += time.perf_counter() - begin
        if not found:
            return [], None
        targets = sum(int((batch.get("shift_labels", batch.get("labels")) != IGNORED).sum()) for batch in found)
        read = sum(_tokens(batch) for batch in found)
        counts = torch.full((2,), float(targets), device=device, dtype=torch.float64)  # filled there: nothing waits
        if self.args.world_size > 1:
            counts[1] = float(read)
            counts = self.accelerator.reduce(counts, "sum")
            # on a GPU, reading the sum would wait for it: there, others are taken to have read as much
            read = int(counts[1]) if device.type == "cpu" else read * self.args.world_size
        self.window_tokens += read
        self.tally.tokens += read
        return found, counts[0].clamp(min=1).to(torch.float32)  # where nothing is to be predicted: 0, not 0/0

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        # non_blocking: a plain copy would wait for every kernel launched so far
        return on_device(inputs, self.args.device)

    # ---- how a step is made ----

    def compute_loss_context_manager(self) -> Any:
        """bf16 here and not through accelerate, which would copy all logits to fp32."""
        return self.autocast()

    def autocast(self) -> Any:
        if not self.bf16_autocast:
            return contextlib.nullcontext()
        return torch.autocast(self.args.device.type, dtype=torch.bfloat16)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        for features in self.drawn:
            features.count()
        return super().training_step(model, inputs, num_items_in_batch)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW; matrices decay, norms and biases do not."""
        if self.optimizer is None:
            train, params = self.recipe.train, [p for p in (model or self.model).parameters() if p.requires_grad]
            groups = [
                {"params": [p for p in params if p.ndim >= 2], "weight_decay": train.weight_decay},
                {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
            ]
            self.optimizer = torch.optim.AdamW(
                groups, lr=train.learning_rate, betas=(train.beta1, train.beta2), eps=train.eps,
                fused=self.args.device.type == "cuda" or None,
            )  # fmt: skip
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:
            train, steps = self.recipe.train, num_training_steps
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer or self.optimizer, lambda step: rate_share(min(step, steps - 1), steps, train)
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # ours are counted by formula, once

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if (step := self.guard.see(norm, self.state.global_step)) is not None:
            self.stop_not_finite(step)
        return norm

    def stop_not_finite(self, step: int) -> None:
        keys = self.batches.of_step(step)
        found = self._find_not_finite(step, keys)
        epoch, indices = keys[0][0], [index for _, index in keys]
        if self.args.world_size > 1:  # the bad batch may be another process's
            told = gather_object([(found, epoch, indices)])
            found, epoch, indices = next((x for x in told if not x[0].startswith(NORM)), told[0])
        self.recorder.write("event", step, event="not finite", tensor=found, epoch=epoch, examples=indices)
        raise NotFinite(in_words(step, found, epoch, indices, saved.newest(self.run), self.recipe.model.init))

    def _find_not_finite(self, step: int, keys: list[Key]) -> str:
        """Computes the step again, each module watched. Calls of a sharded model are collective: there, by gradient."""
        if self.sharded:
            return find_gradient(self.model)
        uncompile(self.model)  # hooks see inside what is not compiled
        dataset, found = self.data.training_set(), NORM
        for part in self.batches.split(keys):
            inputs = self._prepare_inputs(dataset.__getitems__(part))
            seed_step(self.recipe.seed, step, self.args.process_index, self.args.device)

            def loss(inputs: dict[str, Any] = inputs) -> Tensor:
                with self.autocast():
                    return self.model(**inputs).loss

            found = find_tensor(self.model, loss)
            if not found.startswith(NORM):
                break
        return found

    # ---- what is told ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" not in logs:  # the summary at the end: run.json has its own
            return
        if (step := self.guard.look()) is not None:
            self.stop_not_finite(step)
        now = time.perf_counter()
        passed = max(now - self.window_begin, 1e-9)
        self.tally.seconds += passed
        rate = self.window_tokens / passed
        self.rates.append(rate)
        share = None
        if self.flops_per_token is not None and self.peak_flops is not None:
            share = rate * self.flops_per_token / self.peak_flops / self.args.world_size
        self.recorder.write(
            "train", self.state.global_step, loss=logs["loss"], learning_rate=logs["learning_rate"],
            grad_norm=logs.get("grad_norm"), tokens=self.tally.tokens, seconds=self.tally.seconds,
            tokens_per_second=rate, memory_bytes=memory_bytes(self.args.device), share_of_peak=share,
        )  # fmt: skip
        self.window_tokens, self.window_begin = 0, now
        self.tally.logging += time.perf_counter() - now

    @contextlib.contextmanager
    def aside(self, field: str) -> Iterator[None]:
        """Work that is not training: its time is counted apart."""
        begin = time.perf_counter()
        with Stopwatch(self.tally, field):
            yield
        self.window_begin += time.perf_counter() - begin

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if (step := self.guard.look()) is not None:
            self.stop_not_finite(step)
        recipe, split = self.recipe, self.recipe.data.valid_split
        with self.aside("evaluating"):
            metrics = held_out(
                self.model, self.data, split, batch=recipe.eval.batch or recipe.train.batch,
                batches=recipe.eval.batches, device=self.args.device, autocast=self.autocast,
                rank=self.args.process_index, world=self.args.world_size,
                total=lambda x: self.accelerator.reduce(x, "sum") if self.args.world_size > 1 else x,
            )  # fmt: skip
            step = self.state.global_step
            self.recorder.write("eval", step, split=split, **metrics)
            for prompt, text in write_samples(self, seed=step):
                self.recorder.write("sample", step, prompt=prompt, text=text)
            self.latest = {"step": step, "metrics": metrics}
            if self.best is None or score(recipe.task, metrics) > score(recipe.task, self.best["metrics"]):
                self.best = self.latest
                self.keep_best()
        return {f"eval_{name}": value for name, value in metrics.items()}

    def keep_best(self) -> None:
        if self.recipe.eval.keep == "best":
            self.write_model(self.run / BEST)
        elif self.args.should_save:  # from before --resume with eval.keep=last: no longer the best
            shutil.rmtree(self.run / BEST, ignore_errors=True)

    def write_model(self, folder: Path) -> None:
        """Config and weights into a folder that is whole or not there; all processes gather, the first writes."""
        state = saved.model_state(self.model)
        if self.args.should_save:
            saved.write_folder(folder, lambda scratch: self._write_usable(scratch, state))

    def _write_usable(self, folder: Path, state: dict[str, Tensor]) -> None:
        """With its tokenizer, so that another run or `cosformer generate` can start from it."""
        self.model.save_pretrained(folder, state_dict=state)
        save_tokenizer(self.data, folder)

    # ---- checkpoints ----

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if (step := self.guard.look()) is not None:
            self.stop_not_finite(step)
        with self.aside("saving"):
            step = self.state.global_step
            weights, moments = saved.model_state(self.model), saved.optimizer_state(self.model, self.optimizer)
            untold = self.accelerator.gather(self._tr_loss.detach().reshape(1)).mean().item()
            if self.args.should_save:
                progress = {
                    "step": step, "batches": self.batches.batches.state_after(step), "tally": self.tally.table(),
                    "best": self.best, "latest": self.latest, "schedule": self.lr_scheduler.state_dict(),
                    "untold": {"loss": untold, "since": self._globalstep_last_logged}, "data": self.data.identity(),
                }  # fmt: skip

                def write(folder: Path) -> None:
                    self._write_usable(folder, weights)
                    torch.save(moments, folder / saved.OPTIMIZER)
                    (folder / saved.PROGRESS).write_text(json.dumps(progress, indent=1), encoding="utf-8")
                    self.state.save_to_json(str(folder / saved.TRAINER_STATE))

                saved.write_folder(self.run / f"checkpoint-{step}", write)
                saved.remove_old(self.run, self.recipe.train.keep)
            self.accelerator.wait_for_everyone()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        saved.load_model_state(model or self.model, saved.read_weights(Path(resume_from_checkpoint)))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        saved.load_optimizer_state(self.model, self.optimizer, saved.read_optimizer(Path(checkpoint)))
        self.lr_scheduler.load_state_dict(saved.read_progress(Path(checkpoint))["schedule"])
        rates = self.lr_scheduler.get_last_lr()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def restore_untold(self) -> None:
        """Losses since the last line of the log, so that the next line is the one that would have been."""
        if self.untold is not None:
            self._tr_loss += self.untold["loss"]
            self._globalstep_last_logged = self.untold["since"]

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Nothing to load: the generators are seeded by step."""


def fsdp_wanted(recipe: Recipe) -> bool:
    """By the recipe, or by the configuration of `accelerate launch`."""
    return recipe.train.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def _tokens(batch: dict[str, Tensor]) -> int:
    """Tokens the model reads, without padding."""
    total = 0
    for name, value in batch.items():
        if name.endswith("input_ids"):
            mask = batch.get(name.removesuffix("input_ids") + "attention_mask")
            total += value.numel() if mask is None else int(mask.sum())
    return total
