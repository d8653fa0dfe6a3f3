#!/bin/sh
# What came after Rainbow, on the games, frames and update ratio of run.sh: implicit quantiles,
# Rainbow with Munchausen targets, and the parts of `beyond` with the small network and Rainbow's
# batch (Adam's epsilon is 0.005 divided by the batch size, as in the preset). Run it again to resume.
set -eu
beyond="--preset=beyond --network=auto --num_envs=4 --batch_size=32 --adam_epsilon=0.00015625"
for seed in ${SEEDS:-1 2 3}; do
  for game in ${GAMES:-Asterix Breakout Freeway Seaquest SpaceInvaders}; do
    for agent in --preset=iqn --munchausen "$beyond"; do
      # shellcheck disable=SC2086
      python -m rainbow_tf.main $agent --preset=minatar --environment="MinAtar/$game-v1" \
        --frames=200000 --updates_per_step=0.25 --seed="$seed"
    done
  done
done
