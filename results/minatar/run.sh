#!/bin/sh
# The ablation study: eight agents on five MinAtar games with three seeds, 200K frames each, one run
# at a time. Run it again to resume: finished runs are skipped. SEEDS and GAMES select some of them,
# so that several copies can run side by side.
set -eu
for seed in ${SEEDS:-1 2 3}; do
  for game in ${GAMES:-Asterix Breakout Freeway Seaquest SpaceInvaders}; do
    for agent in rainbow ablations/no_double ablations/no_priority ablations/no_dueling \
      ablations/no_multi_step ablations/no_distributional ablations/no_noisy baselines/dqn; do
      python -m rainbow_tf.main --preset="$agent" --preset=minatar \
        --environment="MinAtar/$game-v1" --frames=200000 --updates_per_step=0.25 --seed="$seed"
    done
  done
done
