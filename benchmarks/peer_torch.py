"""A lean Rainbow update in PyTorch, with no library around it; compare.py runs it.

The same arithmetic as rainbow_tf's: noise folded into the weights, three passes with noise of their
own, double Q-learning, projection, KL divergence and Adam.
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional

ATOMS, ACTIONS, BATCH = 51, 6, 32
# Planes and pixels of an observation, convolutions (filters, kernel, stride), units of the head.
NETWORKS = {
    "nature": (4, 84, ((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    "data_efficient": (4, 84, ((32, 5, 5), (64, 5, 5)), 256),
    "minatar": (4, 10, ((16, 3, 1),), 128),
}


class Noisy(nn.Module):
    """A dense layer with factorised noise on its weights."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), 0.5 * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), 0.5 * bound))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Draws fresh noise."""
        outputs, inputs = self.weight.shape
        noise = torch.randn(outputs + inputs)
        noise = noise.sign() * noise.abs().sqrt()
        to, of = noise[:outputs], noise[outputs:]
        weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(to, of))
        return functional.linear(features, weight, self.bias + self.bias_sigma * to)


class Network(nn.Module):
    """Observations [B, C, H, W] -> logits [B, A, N]."""

    def __init__(self, planes: int, pixels: int, convolutions: tuple, units: int):
        super().__init__()
        layers: list[nn.Module] = []
        for filters, kernel, stride in convolutions:
            layers += [nn.Conv2d(planes, filters, kernel, stride), nn.ReLU()]
            planes, pixels = filters, (pixels - kernel) // stride + 1
        self.torso = nn.Sequential(*layers, nn.Flatten())
        self.streams = nn.ModuleList(
            nn.Sequential(Noisy(planes * pixels**2, units), nn.ReLU(), Noisy(units, outputs))
            for outputs in (ATOMS, ACTIONS * ATOMS)
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Bytes are scaled to [0, 1]."""
        features = self.torso(observations.to(torch.float32) / 255)
        value, advantage = (stream(features) for stream in self.streams)
        advantage = advantage.view(-1, ACTIONS, ATOMS)
        return value[:, None] + advantage - advantage.mean(dim=1, keepdim=True)


class Learner:
    """Online and target network, and the update."""

    def __init__(self, name: str):
        self.online, self.target = Network(*NETWORKS[name]), Network(*NETWORKS[name])
        self.support = torch.linspace(-10, 10, ATOMS)
        parameters = self.online.parameters()
        self.optimizer = torch.optim.Adam(parameters, 6.25e-5, eps=1.5e-4, fused=True)

    def update(self, observation_tm1, action_tm1, reward_t, discount_t, observation_t, weight):
        """One gradient step; returns the KL divergence of every example."""
        rows = torch.arange(len(action_tm1))
        with torch.no_grad():
            target = torch.softmax(self.target(observation_t), dim=-1)
            chosen = (torch.softmax(self.online(observation_t), -1) @ self.support).argmax(dim=1)
            atoms = (reward_t[:, None] + discount_t[:, None] * self.support).clamp(-10, 10)
            spacing = self.support[1] - self.support[0]
            distance = (atoms[:, None, :] - self.support[None, :, None]).abs() / spacing
            near = (1 - distance).clamp(0, 1)
            target = (near * target[rows, chosen][:, None, :]).sum(dim=-1)
        logits = torch.log_softmax(self.online(observation_tm1)[rows, action_tm1], dim=-1)
        divergence = (torch.xlogy(target, target) - target * logits).sum(dim=-1)
        self.optimizer.zero_grad(set_to_none=True)
        (weight * divergence).mean().backward()
        self.optimizer.step()
        return divergence.detach().numpy()


def main() -> None:
    """For every line of input, makes the updates and prints the seconds of one."""
    name, updates, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    learner = Learner(name)
    planes, pixels, *_ = NETWORKS[name]
    frames = torch.randint(256, (2, BATCH, planes, pixels, pixels), dtype=torch.uint8)
    actions = torch.randint(ACTIONS, (BATCH,))
    batch = frames[0], actions, torch.randn(BATCH), torch.full((BATCH,), 0.97), frames[1]
    for _ in range(5):
        learner.update(*batch, torch.ones(BATCH))
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        for _ in range(updates):
            learner.update(*batch, torch.ones(BATCH))
        print((time.perf_counter() - started) / updates, flush=True)


if __name__ == "__main__":
    main()
