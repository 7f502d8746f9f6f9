"""A plain topographic VAE, as research code is usually written: the reference for the engine.

It trains one model eagerly, with ``nn.Linear`` layers, autograd and ``torch.optim``. Each sequence
is transformed on the host by its own ``grid_sample`` call, and its colours in HSV. Nothing is slow
on purpose, and nothing uses ``topocaps``.
"""

import math

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import affine_grid, binary_cross_entropy_with_logits, grid_sample

SCALES = torch.linspace(0.60, 1.26, 18)
STEPS = 18


class Encoder(nn.Module):
    def __init__(self, pixels, hidden, latents):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(pixels, hidden[0]), nn.ReLU(),
            nn.Linear(hidden[0], hidden[1]), nn.ReLU(),
            nn.Linear(hidden[1], 2 * latents),
        )  # fmt: skip

    def forward(self, x):
        mean, log_variance = self.layers(x).chunk(2, -1)
        return Normal(mean, (0.5 * log_variance).exp())


class Decoder(nn.Module):
    def __init__(self, pixels, hidden, latents):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(latents, hidden[1]), nn.ReLU(),
            nn.Linear(hidden[1], hidden[0]), nn.ReLU(),
            nn.Linear(hidden[0], pixels),
        )  # fmt: skip

    def forward(self, t):
        return self.layers(t)


class TopographicVAE(nn.Module):
    """The model of Eq. 6-12; W sums ``reach`` sites of ``window`` frames, one site a frame."""

    def __init__(self, pixels, capsules, sites, window, reach, mu=-30.0):
        super().__init__()
        latents = capsules * sites
        hidden = (3 * latents, 2 * latents)
        self.capsules, self.sites, self.window, self.reach = capsules, sites, window, reach
        self.z_given_x = Encoder(pixels, hidden, latents)
        self.u_given_x = Encoder(pixels, hidden, latents)
        self.x_given_t = Decoder(pixels, hidden, latents)
        self.mu = nn.Parameter(torch.tensor(mu))

    def energy(self, u):
        u2 = u.square().unflatten(-1, (self.capsules, self.sites))  # batch time capsule site
        over_sites = sum(u2.roll(-k, -1) for k in range(-(self.reach // 2), (self.reach + 1) // 2))
        over_time = sum(
            over_sites.roll((-d, -d), (1, -1))
            for d in range(-(self.window // 2), (self.window + 1) // 2)
        )
        return over_time.flatten(-2)

    def forward(self, x):  # batch time pixels
        q_z, q_u = self.z_given_x(x), self.u_given_x(x)
        z, u = q_z.rsample(), q_u.rsample()
        t = (z - self.mu) / self.energy(u).sqrt()
        standard = Normal(torch.zeros_like(z), torch.ones_like(z))
        log_px = log_likelihood(self.x_given_t(t), x)
        return log_px, kl_divergence(q_z, standard).sum(-1), kl_divergence(q_u, standard).sum(-1)


class VAE(nn.Module):
    def __init__(self, pixels, capsules, sites):
        super().__init__()
        latents = capsules * sites
        hidden = (3 * latents, 2 * latents)
        self.z_given_x = Encoder(pixels, hidden, latents)
        self.x_given_t = Decoder(pixels, hidden, latents)

    def forward(self, x):
        q_z = self.z_given_x(x)
        z = q_z.rsample()
        standard = Normal(torch.zeros_like(z), torch.ones_like(z))
        log_px = log_likelihood(self.x_given_t(z), x)
        return log_px, kl_divergence(q_z, standard).sum(-1), torch.zeros_like(log_px)


def log_likelihood(logits, x):
    return -binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)


class TransformedDigits(torch.utils.data.Dataset):
    """A sequence for each image: a random pose whose rotation, scale or hue takes 18 values."""

    def __init__(self, images):
        self.images = images  # (images, 28, 28) bytes

    def __len__(self):
        return len(self.images)

    def __getitem__(self, n):
        image = torch.zeros(3, 28, 28)
        image[0] = self.images[n] / 255
        pose = torch.randint(STEPS, (3,)).repeat(STEPS, 1)
        moving = torch.randint(3, ()).item()
        pose[:, moving] = (pose[:, moving] + torch.arange(STEPS)) % STEPS
        angle = pose[:, 0] * (2 * math.pi / STEPS)
        scale = SCALES[pose[:, 1]]
        cos, sin, zero = angle.cos() / scale, angle.sin() / scale, torch.zeros(STEPS)
        theta = torch.stack([cos, -sin, zero, sin, cos, zero], 1).view(STEPS, 2, 3)
        grid = affine_grid(theta, (STEPS, 3, 28, 28), align_corners=False)
        frames = grid_sample(image.expand(STEPS, 3, 28, 28), grid, align_corners=False)
        return turn_hue(frames, pose[:, 2] / STEPS)


def turn_hue(frames, turns):
    """Return frames (time, 3, height, width) with the hue of each turned by a part of a circle."""
    r, g, b = frames.unbind(1)
    value, least = frames.amax(1), frames.amin(1)
    chroma = value - least
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    not_red = torch.where(value == g, (b - r) / safe + 2, (r - g) / safe + 4)
    hue = torch.where(value == r, (g - b) / safe % 6, not_red) / 6
    hue = (hue + turns[:, None, None]) % 1
    k = (torch.tensor([5.0, 3.0, 1.0])[:, None, None] + hue[:, None] * 6) % 6
    return value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)


def train(model, sequences, steps, batch=8, lr=1e-4, device="cpu"):
    """Train a model, and return the bound per frame of each step."""
    model.to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    loader = torch.utils.data.DataLoader(sequences, batch_size=batch, shuffle=True, drop_last=True)
    bounds = []
    while len(bounds) < steps:
        for x in loader:
            log_px, kl_z, kl_u = model(x.flatten(2).to(device))
            loss = (kl_z + kl_u - log_px).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            bounds.append(-loss.item())
            if len(bounds) == steps:
                break
    return bounds
