#!/usr/bin/env bash
# Makes the files of this folder that a GPU makes: bash results/make.sh STAGE DATA, from the root of a checkout.
#
# DATA is a folder with enwik8/, wikitext-2/, imdb/, sst2/, multi30k/ and cifar10-gray/, each as docs/data.md says; the
# stages `speed`, `train`, `profile` and `compare` read none. Started again, a stage of training goes on where it was ended.
#   JOBS   runs at a time (6)         TAG    end of the files' names (cuda_h200_ and the month)
#   RUNS   where runs are kept (runs) PYTHON of the environment (python)
#   EXTRA  fields for every recipe but that of --before, such as 'train.compile=on'
#   ATTENTIONS  of the arena          DEVICE cuda; cpu tries a stage, with EXTRA that make it small
#   TASKS, RATES  of the stage `rates`
#   RESULTS, FIGURES  where files go (results, docs/figures)
set -euo pipefail
stages='speed train profile matched translation pretrained rates listops text image pathfinder selfpretrained larger compare ablations'
stage=${1:?a stage: $stages}
data=${2:-data}
jobs=${JOBS:-6} runs=${RUNS:-runs} tag=${TAG:-cuda_h200_$(date +%Y-%m)} python=${PYTHON:-python} device=${DEVICE:-cuda}
results=${RESULTS:-results} figures=${FIGURES:-docs/figures}
mkdir -p "$results" "$figures"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" # also where the package is not installed
extra=()
for field in ${EXTRA:-}; do extra+=(--set "$field"); done
share=(--device "$device" --jobs "$jobs" --set train.workers=1) # several runs at a time share the processors
# The arena's models are small: steps replayed as graphs, since launching kernels takes longer than running them
small=("${share[@]}" --set train.compile=graphs --set model.residual_in_fp32=false "${extra[@]}")
share+=("${extra[@]}")
rivals=${ATTENTIONS:-cosformer,softmax,linear,cosformer_nocos,performer,linformer}

run() { "$python" -m cosformer.cli.main "$@"; }
# pair QUEUE RECIPE: two matched runs as one file with their curves
pair() {
    "$python" docs/run_results.py "$results/$2-$tag.json" "$runs/$1/runs/$2-cosformer-0" "$runs/$1/runs/$2-softmax-0" \
        --plot "$figures/$2.png"
}
# Small models wait for the CPU to launch kernels: these run side by side
side_by_side() { if command -v nvidia-cuda-mps-control > /dev/null; then nvidia-cuda-mps-control -d || true; fi; }
# arena NAME OPTIONS: a queue of the arena, its table in a file of its own
arena() {
    side_by_side
    run lra run "${small[@]}" --out "$runs/lra-$1" --json "$results/lra-$1-$tag.json" "${@:2}"
}

case $stage in
speed)
    run bench attention --device "$device" --systems ours,sdpa,torch --json "$results/attention-$tag.json"
    run bench attention --device "$device" --systems ours,sdpa --width 128 --json "$results/attention-width128-$tag.json"
    run bench attention --device "$device" --lengths 1048576 --tokens 1048576 --heads 8 --systems ours \
        --json "$results/attention-few-heads-$tag.json"
    run bench decode --device "$device" --json "$results/decode-$tag.json"
    run bench generate --device "$device" --json "$results/generate-$tag.json"
    ;;
train)
    run bench train --device "$device" --steps 1 --repeats 5 --profile --json "$results/train-25m-$tag.json"
    run bench train --device "$device" --preset 350m --lengths 8192 --attentions cosformer,softmax --steps 3 --repeats 5 \
        --profile --json "$results/train-350m-$tag.json"
    ;;
profile)
    for task in listops pathfinder; do
        "$python" results/profile_steps.py "$runs/profile-$task.json" "lra-$task" 'data.sizes=[8192,256,256]' \
            train.compile=graphs model.residual_in_fp32=false ${EXTRA:-}
    done
    ;;
matched)
    recipes=(lm-enwik8 lm-wikitext2 classify-imdb)
    run compare train "${recipes[@]}" --attentions cosformer,softmax "${share[@]}" --data "lm-enwik8=$data/enwik8" \
        --data "lm-wikitext2=$data/wikitext-2" --data "classify-imdb=$data/imdb" --out "$runs/matched"
    for recipe in "${recipes[@]}"; do pair matched "$recipe"; done
    ;;
translation)
    side_by_side
    run compare train translate-multi30k --attentions cosformer,softmax "${share[@]}" \
        --data "translate-multi30k=$data/multi30k" --out "$runs/translation"
    pair translation translate-multi30k
    ;;
pretrained)
    side_by_side
    run compare train classify-sst2 --before mlm-wikitext2 --attentions cosformer,softmax "${share[@]}" \
        --set-before train.workers=1 --data "classify-sst2=$data/sst2" --data "mlm-wikitext2=$data/wikitext-2" \
        --out "$runs/pretrained"
    for recipe in mlm-wikitext2 classify-sst2; do pair pretrained "$recipe"; done
    ;;
listops)
    arena listops --tasks listops --attentions "$rivals"
    ;;
text)
    arena text --tasks text --attentions "$rivals" --data "text=$data/imdb"
    ;;
image)
    # As the rate was told: after 4,000 steps most of what is learned is learned by heart
    arena image --tasks image --attentions "$rivals" --data "image=$data/cifar10-gray" --set train.steps=8000
    ;;
pathfinder)
    # A step takes a GPU about as long as one reader takes for its pictures
    arena pathfinder --tasks pathfinder --attentions "$rivals" --set train.workers=2
    ;;
rates)
    # Told by validation alone: `train` opens no test, a queue would test each. In fewer steps than the recipes have
    side_by_side
    failed=0
    for task in ${TASKS:-image pathfinder}; do
        given=() steps=5000
        case $task in
        image) given=(--data "$data/cifar10-gray") steps=8000 ;;
        pathfinder) steps=20000 ;; # nothing shows before 12,000
        esac
        for rate in ${RATES:-2e-4 5e-4 1e-3}; do
            while (($(jobs -rp | wc -l) >= jobs)); do wait -n || failed=1; done
            run train "lra-$task" "${given[@]}" --device "$device" --out "$runs/rates/$task-$rate" --resume --quiet \
                --set train.workers=2 --set train.compile=graphs --set model.residual_in_fp32=false \
                --set "train.steps=$steps" --set "train.learning_rate=$rate" "${extra[@]}" &
        done
    done
    while [ -n "$(jobs -rp)" ]; do wait -n || failed=1; done
    exit $failed
    ;;
selfpretrained)
    arena selfpretrained --pretrain --tasks listops,text --attentions cosformer --data "text=$data/imdb"
    ;;
larger)
    # Steps cut to what a GPU does in a few minutes
    arena large-listops --large --pretrain --tasks listops --attentions cosformer \
        --set train.steps=10000 --set pretrain.steps=5000 "${extra[@]}"
    arena large-image --large --pretrain --tasks image --attentions cosformer --data "image=$data/cifar10-gray" \
        --set train.steps=20000 --set pretrain.steps=20000 "${extra[@]}"
    ;;
compare)
    run compare speed --device "$device" --lengths 512,2048,8192,32768,131072 --visits 1 --minutes 5 --out "$runs/compare"
    cp "$runs/compare/speed.json" "$results/compare-$tag.json"
    ;;
ablations)
    side_by_side
    each=(--ablation features,cos,positions "${share[@]}" --out "$runs/ablations") # one table: the folder's
    each+=(--json "$results/ablations-$tag.json")
    failed=0
    run compare train lra-listops "${each[@]}" || failed=$?
    [ "$failed" -le 1 ] || exit "$failed" # 1: a run failed, and the others go on; more: it was ended
    run compare train classify-sst2 --set train.epochs=1 "${each[@]}" --data "classify-sst2=$data/sst2" || failed=$?
    exit "$failed"
    ;;
*)
    echo "no stage $stage: $stages" >&2
    exit 2
    ;;
esac
