#!/bin/sh
# Trains data-efficient Rainbow (or PRESET=drq_eps) for 400K frames on the 26 games of Atari 100K,
# one run at a time on one core, and plays 100 episodes with the last weights of each. Run it again
# to resume; GAMES selects some, so that several copies can run side by side.
set -eu
seed=${SEED:-1}
preset=${PRESET:-atari100k}
case $preset in
  atari100k) agent=n20_data_efficient ;;
  drq_eps) agent=drq_eps_n10 ;;
esac
for game in ${GAMES:-alien amidar assault asterix bank_heist battle_zone boxing breakout \
  chopper_command crazy_climber demon_attack freeway frostbite gopher hero jamesbond kangaroo \
  krull kung_fu_master ms_pacman pong private_eye qbert road_runner seaquest up_n_down}; do
  run=runs/$game/$agent/seed_$seed
  if [ -e "$run/evaluations/paper_noop/summary.json" ]; then continue; fi
  python -m rainbow_tf.main --preset="$preset" --game="$game" --threads=1 --seed="$seed"
  frames=$(tail -n 1 "$run/train.csv" | cut -d, -f1)
  if [ "$frames" -lt 400000 ]; then exit 1; fi  # stopped: run it again to resume
  python -m rainbow_tf.evaluate --run_dir="$run" --snapshot=latest --eval_epsilon=0.001 \
    --episodes=100
done
