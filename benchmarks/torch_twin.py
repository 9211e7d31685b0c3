"""FtTPO's update in idiomatic PyTorch, for benchmarks only.

It has the same losses in the same order as `fat2thin.algorithms.fttpo` with its default settings,
with the actor's divergence by the same quadrature: value, critics, proposal, actor, targets.
Networks are `nn.Sequential`, each with its own `torch.optim.Adam`.
"""

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from fat2thin.data import Dataset
from fat2thin.distributions.divergences import band_nodes

HIDDEN, BATCH, RATE, TEMPERATURE, POLYAK = 256, 256, 3e-4, 0.5, 0.005
SCALE_BOUNDS, WIDTH_BOUNDS = (1e-3, 10.0), (1e-3, 1.0)


def trunk(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())


def scalar(inputs: int) -> nn.Sequential:
    return nn.Sequential(*trunk(inputs), nn.Linear(HIDDEN, 1))


class Twin(nn.Module):
    """All networks and the log on the device; calling it runs one update."""

    def __init__(self, dataset: Dataset, device: str, capturable: bool = False) -> None:
        super().__init__()
        observations, actions = dataset.observation_size, dataset.action_size
        self.trunk = trunk(observations)
        self.centre, self.log_scale = nn.Linear(HIDDEN, actions), nn.Linear(HIDDEN, actions)
        self.width = nn.Linear(HIDDEN, actions)
        self.value = scalar(observations)
        self.critics = nn.ModuleList(scalar(observations + actions) for _ in range(2))
        self.targets = nn.ModuleList(scalar(observations + actions) for _ in range(2))
        self.targets.load_state_dict(self.critics.state_dict())
        self.to(device)
        nodes, weights = band_nodes(0.0)
        self.nodes = torch.tensor(np.asarray(nodes), dtype=torch.float32, device=device)
        self.weights = torch.tensor(np.asarray(weights), dtype=torch.float32, device=device)
        self.discount = dataset.discount
        fields = ("observation", "action", "reward", "next_observation", "continuation")
        self.rows = [torch.tensor(getattr(dataset, field), device=device) for field in fields]
        proposal = [*self.trunk.parameters(), *self.centre.parameters()]
        proposal += self.log_scale.parameters()
        learned = (
            self.value.parameters(),
            self.critics.parameters(),
            proposal,
            self.width.parameters(),
        )
        self.optimisers = [
            torch.optim.Adam(parameters, lr=RATE, capturable=capturable) for parameters in learned
        ]

    def proposal(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return features, centre and log scale."""
        features = self.trunk(observation)
        low, high = map(math.log, SCALE_BOUNDS)
        log_scale = self.log_scale(features).clamp(low, high)
        return features, torch.tanh(self.centre(features)), log_scale

    def band(self, features: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
        """Return centre and half-width of the actor inside the box."""
        half_width = self.width(features).clamp(*map(math.log, WIDTH_BOUNDS)).exp()
        return torch.clamp(centre, -1.0 + half_width, 1.0 - half_width), half_width

    @torch.no_grad()
    def next_value(self, observation: Tensor) -> Tensor:
        """Return the smaller target value of an action of the actor."""
        features, centre, _ = self.proposal(observation)
        middle, half_width = self.band(features, centre)
        uniform = 2.0 * torch.rand_like(middle) - 1.0
        action = middle + half_width * 2.0 * torch.sin(torch.asin(uniform) / 3.0)
        inputs = torch.cat([observation, action], -1)
        return torch.minimum(*(target(inputs) for target in self.targets)).squeeze(-1)

    def forward(self) -> Tensor:
        """Run one update and return the actor's divergence."""
        draw = torch.randint(len(self.rows[2]), (BATCH,), device=self.rows[2].device)
        observation, action, reward, following, continuation = (rows[draw] for rows in self.rows)
        value_steps, critic_steps, proposal_steps, width_steps = self.optimisers

        target = self.next_value(observation)
        error = 0.5 * (self.value(observation).squeeze(-1) - target).square().mean()
        self.descend(value_steps, error)

        target = reward + self.discount * continuation * self.next_value(following)
        inputs = torch.cat([observation, action], -1)
        losses = [
            0.5 * (critic(inputs).squeeze(-1) - target).square().mean() for critic in self.critics
        ]
        self.descend(critic_steps, 0.5 * (losses[0] + losses[1]))

        with torch.no_grad():
            best = torch.minimum(*(critic(inputs) for critic in self.critics)).squeeze(-1)
            advantage = best - self.value(observation).squeeze(-1)
            weight = (1.0 + advantage / TEMPERATURE).clamp(0.0, 1e4)
        _, centre, log_scale = self.proposal(observation)
        loss = -(weight * self.cauchy(action, centre, log_scale).sum(-1)).mean()
        self.descend(proposal_steps, loss)

        with torch.no_grad():
            features, centre, log_scale = self.proposal(observation)
        middle, half_width = self.band(features, centre)
        actions = middle + half_width * self.nodes.view(-1, 1, 1)
        cross = -torch.tensordot(self.weights, self.cauchy(actions, centre, log_scale), dims=1)
        entropy = half_width.log() + (5.0 / 3.0 - math.log(3.0))
        divergence = (cross - entropy).sum(-1).mean()
        self.descend(width_steps, divergence)

        with torch.no_grad():
            for slow, fast in zip(
                self.targets.parameters(), self.critics.parameters(), strict=True
            ):
                slow.lerp_(fast, POLYAK)
        return divergence.detach()

    @staticmethod
    def cauchy(action: Tensor, centre: Tensor, log_scale: Tensor) -> Tensor:
        """Return the log density of the q-Gaussian with index 2 and this scale."""
        squared = ((action - centre) * torch.exp(-log_scale)).square() / 2.0
        return -torch.log1p(squared) - log_scale - math.log(math.sqrt(2.0) * math.pi)

    @staticmethod
    def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
        """Take one Adam step."""
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()


def graphed(dataset: Dataset) -> Callable[[], object]:
    """Return the update as a CUDA graph to replay."""
    twin = Twin(dataset, "cuda", capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            twin()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        twin()
    return graph.replay


def steps(dataset: Dataset) -> Iterator[tuple[str, Callable[[int], None], float]]:
    """Yield name, a function that runs `count` updates and waits, and the setup seconds."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    makers: dict[str, Callable[[], Callable[[], object]]] = {"eager": lambda: Twin(dataset, device)}
    if device == "cuda":
        makers["CUDA graph"] = lambda: graphed(dataset)
    makers["compiled"] = lambda: torch.compile(Twin(dataset, device))
    for name, make in makers.items():
        began = time.perf_counter()
        update = make()

        def step(count: int, update: Callable[[], object] = update) -> None:
            for _ in range(count):
                update()
            _wait(device)

        step(3)
        yield f"PyTorch, {name}", step, time.perf_counter() - began


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
