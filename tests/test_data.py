"""Sprites have the geometry of dSprites, orbits are held out, and draws are balanced."""

import inspect
import os
import pkgutil
from pathlib import Path

import numpy as np
import pytest
import torch

from topocaps import BadInput, Sequences, data
from topocaps.data import render, sprite_images, sprites
from topocaps.data.sprite_images import (
    FRAMES,
    NAMES,
    ORIENTATIONS,
    POSITIONS,
    SCALES,
    render_subset,
)

CHECK = os.environ.get("TOPOCAPS_SPRITES_CHECK", "")


@pytest.fixture(scope="module")
def small():
    return sprites(16)


@pytest.mark.skipif(not Path(CHECK).is_file(), reason="TOPOCAPS_SPRITES_CHECK names no file")
def test_rendering_agrees_with_real_frames():
    real = np.load(CHECK)
    frames = np.unpackbits(real["frames"], axis=1).reshape(-1, 64, 64).astype(bool)
    exact, overlap = [], []
    for (shape, scale, orientation, x, y), place in zip(real["labels"], real["order"], strict=True):
        at = POSITIONS[[x]], POSITIONS[[y]]
        ours = render(shape, SCALES[scale], ORIENTATIONS[orientation], *at)[0]
        exact.append((ours == frames[place]).all())
        overlap.append((ours & frames[place]).sum() / (ours | frames[place]).sum())
    assert np.mean(exact) > 0.95 and np.mean(overlap) > 0.999


def inside_by_crossing(corners, px, py):
    """Even-odd rule, edge by edge: slow, and knows nothing of wedges."""
    inside = np.zeros(px.shape, bool)
    for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        spans = (y1 > py) != (y2 > py)
        with np.errstate(divide="ignore", invalid="ignore"):
            cross = x1 + (py - y1) / (y2 - y1) * (x2 - x1)
        inside ^= spans & (px < cross)
    return inside


@pytest.mark.parametrize("shape", range(3))
@pytest.mark.parametrize("resolution", [17, 64])
def test_a_pixel_is_on_iff_its_centre_is_inside_the_outline(shape, resolution):
    outline = sprite_images._outlines()[shape]
    scale, angle, x, y = 0.83, 0.7, 0.3, 0.6
    # counter-clockwise on a screen whose y points down
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    corners = scale * outline @ turn.T + [16 + 32 * x, 16 + 32 * y]
    centres = (np.arange(resolution) + 0.5) * 64 / resolution
    px, py = np.meshgrid(centres, centres)
    expected = inside_by_crossing(corners, px, py)
    found = render(shape, scale, angle, np.array([x]), np.array([y]), resolution)[0]
    assert expected.any() and (found == expected).all()


def test_the_subset_of_the_papers(small):
    train, held_out = small
    assert train.images.shape == (50_625, 1, 16, 16) and train.names == NAMES
    assert len(train) + len(held_out) == 20_250
    assert len(held_out) == 4_050
    assert train.factors.amax(0).tolist() == [2, 4, 14, 14, 14]
    assert set(train.images.unique().tolist()) == {0, 255}


def test_one_factor_takes_all_its_values_and_the_others_are_constant(small):
    for sequences in small:
        batch = sequences.draw(200, torch.Generator().manual_seed(0))
        assert batch.x.shape == (200, FRAMES, 1, 16, 16) and batch.x.max() == 1
        changes = (batch.factors != batch.factors[:, :1]).any(1)
        assert (changes.sum(1) == 1).all() and not changes[:, 0].any()
        for row, moving in zip(batch.factors, changes.long().argmax(1), strict=True):
            values = row[:, moving]
            period = 5 if NAMES[moving] == "scale" else 15
            assert ((values[1:] - values[:-1]) % period == 1).all()


def test_factors_are_those_of_the_image(small):
    """x and y move the centre of mass the way they say."""
    batch = small[0].balanced(30, seed=0)
    one = next(batch.batches(len(batch)))
    mass = one.x.sum((2, 3, 4))
    grid = torch.arange(16.0)
    centre_x = (one.x.sum((2, 3)) * grid).sum(-1) / mass
    centre_y = (one.x.sum((2, 4)) * grid).sum(-1) / mass
    for column, centre in ((3, centre_x), (4, centre_y)):
        pairs = torch.stack([one.factors[..., column].flatten().float(), centre.flatten()])
        assert torch.corrcoef(pairs)[0, 1] > 0.98


def test_held_out_orbits_are_not_trained_on_and_never_change(small):
    train, held_out = small
    seen = {tuple(orbit) for orbit in train.order.tolist()}
    assert not seen & {tuple(orbit) for orbit in held_out.order.tolist()}
    again, _ = sprites(16)
    assert again.order.equal(train.order)


def test_every_factor_is_drawn_equally_often(small):
    batch = small[0].draw(4000, torch.Generator().manual_seed(0))
    counts = (batch.factors != batch.factors[:, :1]).any(1).sum(0)[1:]
    assert (counts - 1000).abs().max() < 5 * 1000**0.5


def test_a_balanced_set_is_fixed_by_its_seed(small):
    one, same, other = (small[1].balanced(20, seed) for seed in (3, 3, 4))
    assert one.order.equal(same.order) and not one.order.equal(other.order)
    assert one.moving.bincount().tolist() == [0, 20, 20, 20, 20]
    starts = one.factors[one.order][:, 0]
    assert len(starts[one.moving == 3][:, 3].unique()) > 5


def test_rendered_images_are_cached_and_a_broken_cache_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOCAPS_CACHE", str(tmp_path))
    images = sprites(8)[0].images
    (file,) = tmp_path.iterdir()
    assert sprites(8)[0].images.equal(images)
    assert (torch.from_numpy(render_subset(8))[:, None] == images).all()
    file.write_bytes(file.read_bytes()[:-100])
    assert sprites(8)[0].images.equal(images)
    monkeypatch.setenv("TOPOCAPS_CACHE", str(file))  # not a folder: renders all the same
    assert sprites(8)[0].images.equal(images)


def test_sequences_of_arrays():
    x = np.random.default_rng(0).random((6, 5, 1, 4, 4))
    sequences = Sequences.of(x)
    assert (len(sequences), sequences.frames, sequences.frame_shape) == (6, 5, (1, 4, 4))
    shown = torch.cat([batch.x for batch in sequences.batches(4)])
    torch.testing.assert_close(shown, torch.from_numpy(x).float())
    assert sequences.draw(3, torch.Generator()).factors is None
    as_bytes = Sequences.of((255 * x).astype(np.uint8))
    assert next(as_bytes.batches(6)).x.sub(shown).abs().max() < 1 / 255 + 1e-6
    with pytest.raises(BadInput, match="sequences, time"):
        Sequences.of(x[0, 0, 0])
    with pytest.raises(BadInput, match="no frames"):
        Sequences.of(x[:0])
    with pytest.raises(BadInput, match="floating point"):
        Sequences.of(x.astype(int))
    with pytest.raises(BadInput, match="all 0 or 1"):
        Sequences.of((x > 0.5).astype(np.uint8))
    assert next(Sequences.of(x > 0.5).batches(6)).x.max() == 1
    with pytest.raises(BadInput, match="array or a tensor"):
        Sequences.of(None)
    with pytest.raises(BadInput, match="at least 8"):
        sprites(4)


def test_the_file_of_dsprites_is_read_if_given(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sprite_images, "SUBSET", (range(3), range(1, 6), range(0, 30, 15), range(2), [0])
    )
    monkeypatch.setattr(sprite_images, "ALL", (3, 6, 40, 2, 2))
    images = np.zeros((3 * 6 * 40 * 2 * 2, 64, 64), np.uint8)
    place = np.ravel_multi_index((2, 3, 15, 1, 0), sprite_images.ALL)
    images[place] = 1
    archive = tmp_path / "dsprites_64x64.npz"
    np.savez_compressed(archive, imgs=images)
    found = sprite_images.read_subset(archive)
    expected = np.ravel_multi_index((2, 2, 1, 1, 0), (3, 5, 2, 2, 1))
    assert found.shape == (60, 64, 64) and found[expected].min() == 255
    assert np.delete(found, expected, 0).max() == 0
    np.savez_compressed(archive, imgs=images[:5])
    with pytest.raises(BadInput, match=r"dsprites_64x64.npz is not the dSprites file: imgs has"):
        sprite_images.read_subset(archive)
    with pytest.raises(BadInput, match="dSprites has resolution 64 and speeds 1 and 2, not 32"):
        sprites(32, archive)


def test_no_module_has_the_name_of_an_exported_object():
    """Else ``import topocaps.data.sprites as module`` gives the function."""
    modules = {found.name for found in pkgutil.iter_modules(data.__path__)}
    assert {"sprite_images", "mnist_files"} <= modules and not modules & set(data.__all__)
    for name in modules:
        assert inspect.ismodule(getattr(data, name, data)), name
    assert data.sprites is sprite_images.sprites and data.mnist is data.mnist_files.mnist
