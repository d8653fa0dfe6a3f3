#!/bin/sh
# Ape-X with one actor against one process, three seeds each; then with three actors.
set -eu
for seed in 1 2 3; do
  for actors in 0 1; do
    python -m rainbow_tf.main --preset=cartpole --frames=25000 --eval_period_frames=0 \
      --seed="$seed" --actors="$actors"
  done
done
python -m rainbow_tf.main --preset=cartpole --actors=3 --eval_period_frames=10000 \
  --run_dir=runs/three_actors/cartpole_v1/apex/seed_1
python -m rainbow_tf.main --preset=minatar --run_dir=runs/three_actors/minatar_breakout_v1/rainbow/seed_1
python -m rainbow_tf.main --preset=minatar --actors=3 \
  --run_dir=runs/three_actors/minatar_breakout_v1/apex/seed_1
