"""train(): a recipe becomes a run folder."""

import contextlib
import signal
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import TrainingArguments

from cosformer.bench.clock import clock_for
from cosformer.bench.environment import provenance
from cosformer.bench.floor import matmul_rate
from cosformer.models.blocks import CosformerBlock
from cosformer.models.inspection import training_flops_per_token
from cosformer.rivals.drawn_features import DrawnFeatures
from cosformer.tasks import ResumableBatches
from cosformer.training import checkpoint as saved
from cosformer.training.arguments import arguments_for, check_graphs
from cosformer.training.batches import RunBatches
from cosformer.training.data import RunData, open_data
from cosformer.training.engine import RunTrainer
from cosformer.training.held_out import check_targets, uncompile
from cosformer.training.making import make_model, overruled, overruled_tokenizer, resolved
from cosformer.training.recipe import Recipe
from cosformer.training.recipe_fields import BadRecipe
from cosformer.training.recorder import Recorder, Tally, Watch, memory_bytes, read_metrics
from cosformer.training.run_folder import (
    BEST,
    FINAL,
    SUMMARY,
    RunSummary,
    alone_in,
    check_new,
    check_same,
    check_same_data,
    check_space,
    check_writable,
    finish,
    full_cache_told,
    full_disk_told,
    put_in_place,
    stored_recipe,
    sweep_recipe,
    tidy,
    write_recipe,
)
from cosformer.training.samples import check_samples
from cosformer.training.saved_tokenizer import save_tokenizer
from cosformer.training.sources import check_read, placed


def train(
    recipe: Recipe | None, out: str | Path, *, resume: bool = False, cache: str | Path | None = None,
    device: str = "auto", watch: Watch | None = None, then: Recipe | None = None,
) -> RunSummary:  # fmt: skip
    """Trains, and leaves in `out` a model that from_pretrained loads, its metrics and its card.

    resume: goes on where the run in `out` was; its own recipe is used where `recipe` is None. cache: where prepared
    data lies, `data-cache` beside `out` if None. device: auto, cpu or cuda. watch: told of progress. then: the recipe
    of a run that is to start from this one; where its data make no run, it is refused now. In several processes
    (torchrun, accelerate launch) every process calls this alike; the first one writes.
    """
    run, watch = Path(out), watch or Watch()
    cache = Path(cache) if cache is not None else run.parent / "data-cache"
    stored = stored_recipe(run) if resume else None
    if resume and stored is not None:
        if recipe is not None:
            check_same(stored, _as_stored(placed(recipe), stored))
        recipe = stored if recipe is None else _as_stored(recipe, stored)
        if (run / SUMMARY).is_file():
            tidy(run)
            watch.said(f"{run} is finished: nothing to resume")
            return RunSummary.read(run)
    if recipe is None:
        raise BadRecipe(f"{run} holds no run (there is no recipe.toml): name a recipe")
    if stored is None:
        check_read(recipe.data)
    args = arguments_for(recipe, run, device)
    check_graphs(recipe, args)
    if args.process_index > 0:
        return _train(recipe, run, cache, args, watch, resume=resume, then=then)
    check_writable(run)
    with alone_in(run):
        if stored is None:  # also with resume, where a run may have been killed before it began
            if resume:
                sweep_recipe(run)
            check_new(run)
        check_writable(cache, "--cache")
        saved.sweep(run)
        return _train(recipe, run, cache, args, watch, resume=resume, then=then)


def _train(
    recipe: Recipe, run: Path, cache: Path, args: TrainingArguments, watch: Watch, *, resume: bool, then: Recipe | None
) -> RunSummary:
    data = _checked_data(recipe, cache, args, watch)
    if then is not None:
        _checked_data(then, cache, args, watch, tokenizer=data.tokenizer)
    model = make_model(recipe, data)
    check_samples(recipe, data.tokenizer, model.config)
    for words in (overruled(recipe, model.config), overruled_tokenizer(recipe, data.tokenizer)):
        if words:
            watch.said(words)
    recipe = resolved(recipe, model.config, data.tokenizer)
    data = replace(data, recipe=recipe)  # a model that is started from may say how texts begin (pooling)
    parameters = sum(p.numel() for p in model.parameters())
    last = saved.newest(run) if resume else None
    start = saved.step_of(last) if last else 0
    if last:
        check_same_data(saved.read_progress(last).get("data", {}), data.identity())
    if args.process_index == 0:
        check_space(run, parameters, _kept(recipe, data, args))
        write_recipe(run, placed(recipe))
    with full_disk_told(run):
        return _Run(recipe, run, data, model, args, watch, last, start, parameters).go()


def _checked_data(recipe: Recipe, cache: Path, args: TrainingArguments, watch: Watch, tokenizer: Any = None) -> RunData:
    """Refuses what the first step or the first evaluation would: once the recipe is written, the folder is taken."""
    with full_cache_told(cache), args.main_process_first(local=False, desc="preparing data"):
        data = open_data(recipe, cache, tokenizer=tokenizer, progress=watch.preparing, said=watch.said)
    split = recipe.data.valid_split
    check_targets(data, split, batch=recipe.eval.batch or recipe.train.batch, batches=recipe.eval.batches)
    _batches(recipe, data, args)
    return data


def _batches(recipe: Recipe, data: RunData, args: TrainingArguments) -> ResumableBatches:
    return ResumableBatches(
        len(data.dataset("train")), recipe.train.batch, seed=recipe.seed, rank=args.process_index,
        world_size=args.world_size,
    )  # fmt: skip


def _steps(recipe: Recipe, an_epoch: int) -> int:
    return recipe.train.steps or max(1, round(recipe.train.epochs * an_epoch))


def _kept(recipe: Recipe, data: RunData, args: TrainingArguments) -> int:
    """Checkpoints that will lie there at once: a large train.keep means all."""
    steps = _steps(recipe, _batches(recipe, data, args).batches)
    return min(recipe.train.keep, -(-steps // recipe.train.save_every))


def _flops_per_token(config: Any, length: int) -> float | None:
    """None where there is no formula: other attentions, and an encoder–decoder, whose tokens pass one stack of two."""
    if config.is_encoder_decoder:
        return None
    with contextlib.suppress(ValueError):
        return training_flops_per_token(config, length)
    return None


class _Run:
    """One training process from here to its end."""

    def __init__(
        self, recipe: Recipe, run: Path, data: RunData, model: Any, args: TrainingArguments, watch: Watch,
        last: Path | None, start: int, parameters: int,
    ) -> None:  # fmt: skip
        self.recipe, self.run, self.data, self.model, self.args = recipe, run, data, model, args
        self.watch, self.last, self.start, self.parameters = watch, last, start, parameters
        self.graphs = recipe.train.compile == "graphs"
        self.compiled = self.graphs or recipe.train.compile == "on" or (
            recipe.train.compile == "auto" and args.device.type == "cuda"
        )  # fmt: skip
        self.bf16 = recipe.train.precision == "bf16" or (
            recipe.train.precision == "auto" and args.device.type == "cuda"
        )

    def go(self) -> RunSummary:
        recipe, args = self.recipe, self.args
        batches, steps = self._batches()
        args.max_steps, args.gradient_accumulation_steps = steps, batches.parts
        progress = saved.read_progress(self.last) if self.last else None
        if progress is not None:
            batches.batches.load_state_dict(progress["batches"])  # refuses an order that is another
        tally = Tally(**progress["tally"]) if progress else Tally()
        flops = _flops_per_token(self.model.config, recipe.data.length)
        recorder = Recorder(self.run, step=self.start, writes=args.process_index == 0, watch=self.watch)
        trainer = RunTrainer(
            self.model, args, data=self.data, batches=batches, recorder=recorder, tally=tally,
            best=self._best(progress, steps), latest=progress["latest"] if progress else None,
            untold=progress["untold"] if progress else None, flops_per_token=flops, peak_flops=self._peak(),
            autocast=self.bf16,
        )  # fmt: skip
        if self.compiled:
            # sharded, a block at a time: its weights are gathered before it and dropped after
            blocks = [m for m in self.model.modules() if isinstance(m, CosformerBlock)]
            how: dict[str, Any] = {"mode": "reduce-overhead", "dynamic": False} if self.graphs else {}
            for module in blocks if trainer.is_fsdp_enabled else [self.model]:
                module.compile(**how)
            trainer.drawn = [m for m in self.model.modules() if isinstance(m, DrawnFeatures) and m.redraw]
        if args.process_index == 0:
            self.watch.starting(self._facts(steps, batches))
        event = "resume" if self.start else "start"
        recorder.write(
            "event", self.start, event=event, steps=steps, processes=args.world_size, sharded=trainer.is_fsdp_enabled
        )
        try:
            with _interruptible(trainer), warnings.catch_warnings():
                # of the compiler, about a classifier's few classes: nothing a user could do
                warnings.filterwarnings("ignore", r"\s*Online softmax is disabled", UserWarning)
                if self.start < steps:
                    trainer.train(resume_from_checkpoint=str(self.last) if self.last else None)
                else:  # ended before its model was in place
                    assert self.last is not None
                    saved.load_model_state(self.model, saved.read_weights(self.last))
                    trainer.state.global_step = steps
            stopped = trainer.interrupted and trainer.state.global_step < steps
            recorder.write("event", trainer.state.global_step, event="interrupted" if stopped else "end")
            if not stopped:
                self._final(trainer)
            summary = self._summary(trainer, stopped)
            if args.process_index == 0 and not stopped:
                finish(self.run, recipe, summary, read_metrics(self.run))
        finally:
            recorder.close()
            self.watch.stopped()
            uncompile(self.model)
        if args.world_size > 1:
            trainer.accelerator.wait_for_everyone()
        return summary

    def _batches(self) -> tuple[RunBatches, int]:
        train, args = self.recipe.train, self.args
        batches = _batches(self.recipe, self.data, args)
        steps = _steps(self.recipe, batches.batches)
        share = train.batch // args.world_size
        parts = -(-share // (train.micro_batch or share))
        return RunBatches(batches, steps=steps, parts=parts, start=self.start), steps

    def _best(self, progress: dict[str, Any] | None, steps: int) -> dict[str, Any] | None:
        """The best evaluation so far, if its weights are there: not where the run began with eval.keep=last."""
        best = progress["best"] if progress else None
        if best is None or self.recipe.eval.keep != "best" or self.start >= steps:
            return best
        if (self.run / BEST / "config.json").is_file():
            return best
        self.watch.said(
            f"the weights of step {best['step']}, the best so far, were not kept: the best is of later steps"
        )
        return None

    def _peak(self) -> float | None:
        """Of the GPU in the precision of the run, measured now: a share of a number on paper would flatter nobody."""
        if self.args.device.type != "cuda":
            return None
        clock = clock_for(self.args.device)
        rate = matmul_rate(clock, self.args.device, torch.bfloat16 if self.bf16 else torch.float32)
        del clock
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.args.device)
        return rate

    def _facts(self, steps: int, batches: RunBatches) -> dict[str, Any]:
        return {
            "recipe": self.recipe.name, "task": self.recipe.task, "parameters": self.parameters, "steps": steps,
            "start": self.start, "device": str(self.args.device), "processes": self.args.world_size,
            "precision": "bf16" if self.bf16 else "fp32", "compiled": self.compiled, "parts": batches.parts,
            "steps_per_epoch": batches.batches.batches, "data": self.data.facts(), "out": str(self.run),
        }  # fmt: skip

    def _final(self, trainer: RunTrainer) -> None:
        """The model and its tokenizer into the run folder: the best one known, or the last."""
        with trainer.aside("saving"):
            folder = self.run / (BEST if self.recipe.eval.keep == "best" else FINAL)
            if folder.name == FINAL:
                trainer.write_model(folder)
            if not self.args.should_save:
                return
            if not (folder / "config.json").is_file():
                if (self.run / "model.safetensors").is_file():
                    return  # in place already: the run had ended and lost its summary
                raise FileNotFoundError(f"{folder} is gone, which held the best weights: --set eval.keep=last")
            save_tokenizer(self.data, folder)  # of the run, whoever wrote the folder
            put_in_place(self.run, folder)

    def _summary(self, trainer: RunTrainer, stopped: bool) -> RunSummary:
        tally, rates = trainer.tally, trainer.rates
        rate = statistics.median(rates[1:] or rates) if rates else None
        peak, flops = trainer.peak_flops, trainer.flops_per_token
        best = trainer.best if self.recipe.eval.keep == "best" else trainer.latest
        name = f"cuda:{self.args.device.index or 0}" if self.args.device.type == "cuda" else "cpu"
        return RunSummary(
            recipe=self.recipe.name, task=self.recipe.task, out=str(self.run), data=self.data.facts(),
            parameters=self.parameters, steps=trainer.state.global_step, tokens=tally.tokens, seconds=tally.seconds,
            seconds_waiting_for_data=tally.waiting, seconds_logging=tally.logging, seconds_evaluating=tally.evaluating,
            seconds_saving=tally.saving, tokens_per_second=rate, peak_flops=peak,
            share_of_peak=rate * flops / peak / self.args.world_size if rate and flops and peak else None,
            memory_bytes=memory_bytes(self.args.device), processes=self.args.world_size, sharded=trainer.sharded,
            precision="bf16" if self.bf16 else "fp32", compiled=self.compiled, metrics=best["metrics"] if best else {},
            best_step=best["step"] if best else None, interrupted=stopped, environment=provenance(name),
        )  # fmt: skip


def _as_stored(recipe: Recipe, stored: Recipe) -> Recipe:
    """What was asked for, with the model's fields that the asker left open as the run has them.

    Of a run that began with another's model, the tokenizer too: whatever was asked for, it is that model's.
    """
    from types import MappingProxyType

    config = {**stored.model.config, **{k: v for k, v in recipe.model.config.items() if v is not None}}
    asked = replace(recipe, model=replace(recipe.model, config=MappingProxyType(config)))
    if recipe.model.init and stored.model.init and "task" not in (recipe.tokenizer.kind, stored.tokenizer.kind):
        asked = replace(asked, tokenizer=stored.tokenizer)
    return asked


@contextlib.contextmanager
def _interruptible(trainer: RunTrainer) -> Iterator[None]:
    """Ctrl-C (and SIGTERM) end the run after the step under way, with a checkpoint; the second time, at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        if trainer.interrupted:
            raise KeyboardInterrupt
        trainer.interrupted = True

    before: dict[int, Callable[..., Any] | int | None] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, stop)
    except ValueError:  # not in the main thread: signals are someone else's
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
