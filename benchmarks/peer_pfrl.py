"""PFRL's Rainbow; compare.py runs it in PFRL's virtual environment."""

import sys
import time

import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv
from pfrl import agents, explorers, nn, replay_buffers
from pfrl.q_functions import DistributionalDuelingDQN

HISTORY_STEPS = 1_000


def main() -> None:
    """For every line of input, runs the cycles and prints the seconds per cycle."""
    game, cycles = sys.argv[1], int(sys.argv[2])
    env = AtariVectorEnv(game, 1, use_fire_reset=False, reward_clipping=True, noop_max=31)
    network = DistributionalDuelingDQN(int(env.single_action_space.n), 51, -10, 10)
    nn.to_factorized_noisy(network, sigma_scale=0.5)
    agent = agents.CategoricalDoubleDQN(
        network,
        torch.optim.Adam(network.parameters(), 6.25e-5, eps=1.5e-4),
        replay_buffers.PrioritizedReplayBuffer(
            10**6, alpha=0.5, beta0=0.4, betasteps=5 * 10**7, num_steps=3
        ),
        gamma=0.99,
        explorer=explorers.Greedy(),
        minibatch_size=32,
        replay_start_size=HISTORY_STEPS,
        target_update_interval=32_000,
        update_interval=4,
        batch_accumulator="mean",
        phi=lambda frames: np.asarray(frames, np.float32) / 255,
    )
    observation, _ = env.reset(seed=1)

    def play(steps: int) -> None:
        nonlocal observation
        for _ in range(steps):
            action = agent.act(observation[0])
            observation, reward, over, cut, _ = env.step(np.array([action]))
            agent.observe(observation[0], float(reward[0]), bool(over[0]), bool(cut[0]))

    play(HISTORY_STEPS + 40)
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        play(4 * cycles)
        print((time.perf_counter() - started) / cycles, flush=True)


if __name__ == "__main__":
    main()
