#!/bin/sh
# Trains the agents of the study one after another, a run of 200K frames each; SEEDS="1 2 3" for
# more seeds. What is finished is skipped and what was stopped goes on, so it can be started again.
set -eu
for seed in ${SEEDS:-1}; do
  for agent in rainbow ablations/no_double ablations/no_priority ablations/no_dueling \
    ablations/no_multi_step ablations/no_distributional ablations/no_noisy baselines/dqn; do
    for game in Breakout SpaceInvaders; do
      python -m rainbow_tf.main --preset="$agent" --preset=minatar \
        --environment="MinAtar/$game-v1" --frames=200000 --updates_per_step=0.25 --seed="$seed"
    done
  done
done
