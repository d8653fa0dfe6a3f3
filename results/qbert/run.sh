#!/bin/sh
# How fast parts of Rainbow learn Q*bert in the first million frames, with sticky actions. One agent
# at a time on one core, stopped after its evaluation at 1M frames: the default of 200M frames keeps
# the schedules. Run it again to resume. AGENTS selects some, so that two copies can run side by side.
set -eu
three_parts="--nodouble --nodueling --nonoisy --epsilon_decay_frames=1000000"  # Dopamine's Rainbow
for agent in ${AGENTS:-kl ce small_noisy_0.5 small_noisy_0.1}; do
  case $agent in
    small_noisy_*) flags="--network=data_efficient --noisy_sigma=${agent#small_noisy_}" ;;
    *) flags="$three_parts --priority=$agent" ;;
  esac
  run=runs/qbert/$agent
  if grep -q "^1000" "$run/eval.csv" 2> /dev/null; then continue; fi
  # shellcheck disable=SC2086  # several flags
  python -m rainbow_tf.main --game=qbert --preset=sticky $flags --threads=1 \
    --eval_period_frames=1000000 --eval_frames=125000 --run_dir="$run" &
  until grep -q "^1000" "$run/eval.csv" 2> /dev/null || ! kill -0 $!; do sleep 10; done
  kill -INT $! 2> /dev/null || true
  wait $! || true
  if ! grep -q "^1000" "$run/eval.csv"; then exit 1; fi  # stopped: run it again to resume
done
