#!/bin/sh
# Full Rainbow on Pong with the paper's settings, on one core. Ctrl-C stops it with a checkpoint; run
# it again to resume. We stop it by hand: the default of 200M frames keeps the paper's schedules.
set -eu
exec python -m rainbow_tf.main --game=pong --threads=1 --eval_period_frames=500000 \
  --eval_frames=125000
