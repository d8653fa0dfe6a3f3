#!/bin/sh
# Trains data-efficient Rainbow for 400K frames and plays 100 episodes with its last weights.
set -eu
for game in ${GAMES:-pong qbert}; do
  python -m rainbow_tf.main --preset=atari100k --game="$game" --threads=1
  python -m rainbow_tf.evaluate --run_dir="runs/$game/n20_data_efficient/seed_1" \
    --snapshot=latest --episodes=100
done
