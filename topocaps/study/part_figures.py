"""Figures of part-whole models: templates, and images with their parts."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from topocaps.capsules import Capsules, PartWhole, composite, poses
from topocaps.capsules.free_form import optimise
from topocaps.data import geometry
from topocaps.errors import BadInput
from topocaps.study.figures import can_be_drawn, canvas, show_rows, tile

FREE_STEPS = 100  # of free-form inference


@torch.no_grad()
def templates(model: PartWhole) -> Figure:
    """Draw all templates of a model."""
    images = model.templates.images()
    shown = (images[:, :-1] * images[:, -1:]).cpu()
    columns = min(8, len(shown))
    rows = -(-len(shown) // columns)
    blank = shown.new_ones(rows * columns - len(shown), *shown.shape[1:])
    block = torch.cat([shown, blank]).unflatten(0, (rows, columns))
    figure, (axis,) = canvas(1, 1, (0.9 * columns + 0.4, 0.9 * rows + 0.4))
    axis.imshow(tile(block), interpolation="nearest", cmap="gray", vmin=0, vmax=1)
    axis.axis("off")
    return figure


def coloured(model: PartWhole, parts: Capsules) -> Tensor:
    """Return images (…, 3, height, width) in which each part has its own colour."""
    ink, alpha = model.templates.moved(parts)
    count = ink.shape[-4]
    hues = [colorsys.hsv_to_rgb(n / count, 0.85, 1.0) for n in range(count)]
    paint = torch.tensor(hues, dtype=ink.dtype, device=ink.device)[..., None, None]
    return composite(ink.mean(-3, keepdim=True) * paint, alpha)


@torch.no_grad()
def parts(model: PartWhole, x: Tensor) -> Figure:
    """Draw the input, the reconstruction and the coloured parts of images (…, *frame)."""
    x = x.flatten(0, -4)
    inferred = model.parts_of(x)
    rows = [_rgb(x), _rgb(model.templates(inferred)), coloured(model, inferred)]
    return _rows(rows, ("input", "reconstruction", "parts"))


def turned(model: PartWhole, x: Tensor, degrees: Sequence[float]) -> Figure:
    """Draw reconstructions of a rotated image, by the encoder and after free-form inference.

    Args:
        x: an image, (*frame).
        degrees: angles of the rotations.
    """
    if x.numel() != math.prod(x.shape[-3:]):
        raise BadInput(f"expected one image (channels, height, width), not {tuple(x.shape)}")
    x = x.reshape(x.shape[-3:])
    aspect = x.shape[-1] / x.shape[-2]
    angles = torch.stack([poses.rotated(math.radians(d), aspect) for d in degrees]).to(x)
    images = geometry.warp(x, poses.sources(angles, model.templates.grid))
    with torch.no_grad():
        encoded = model.parts_of(images)
    optimised = optimise(model, images, steps=FREE_STEPS).parts(model)
    with torch.no_grad():
        rows = [
            _rgb(images),
            _rgb(model.templates(encoded)),
            _rgb(model.templates(optimised)),
            coloured(model, encoded),
            coloured(model, optimised),
        ]
    labels = ("input", "encoder", "free-form", "encoder, parts", "free-form, parts")
    return _rows(rows, labels, [f"{d:g}°" for d in degrees])


@torch.no_grad()
def samples(model: PartWhole, count: int = 16) -> Figure:
    """Draw ``count`` images that are sampled from the model, and their coloured parts."""
    scene = model.sample(count)
    parts = scene.layers[-1].rotated(scene.rotation)
    return _rows([_rgb(scene.x), coloured(model, parts)], ("image", "parts"))


def _rgb(x: Tensor) -> Tensor:
    if not can_be_drawn(x.shape[-3:]):
        raise BadInput(f"only images of 1 or 3 channels can be drawn, not of {x.shape[-3]}")
    return x.expand(*x.shape[:-3], 3, *x.shape[-2:]) if x.shape[-3] == 1 else x


def _rows(rows: Sequence[Tensor], names: Sequence[str], columns: Sequence[str] = ()) -> Figure:
    block = torch.stack([row.cpu() for row in rows]).clamp(0, 1)
    figure, (axis,) = canvas(1, 1, (0.75 * block.shape[1] + 1.6, 0.75 * len(rows) + 0.4))
    show_rows(axis, block, names, columns)
    return figure
