"""Tests of clipping whose gradients pull values back inside their bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fat2thin.policies.families import Head, Sparse, clip_inward, slide_inside


def test_clip_inward_blocks_only_gradients_that_lead_outside():
    bounds = (jnp.asarray(-1.0), jnp.asarray(1.0))

    def gradient(x, target):
        return jax.grad(lambda y: (clip_inward(y, *bounds) - target) ** 2)(jnp.asarray(x))

    assert gradient(2.0, 3.0) == 0.0
    assert gradient(2.0, 0.0) > 0.0
    assert gradient(-2.0, -3.0) == 0.0
    assert gradient(-2.0, 0.0) < 0.0
    np.testing.assert_allclose(gradient(0.5, 0.0), 1.0)


@given(
    centre=st.floats(-2.0, 2.0, width=32),
    width=st.floats(2**-7, 1.0, width=32),
    slope=st.sampled_from([-1.0, 1.0]),
)
def test_slide_inside_returns_the_nearest_centre_and_its_gradients(centre, width, slope):
    slid = float(slide_inside(jnp.float32(centre), jnp.float32(width)))
    assert abs(slid) + width <= 1.0 + 1e-6
    room = np.float32(1.0) - np.float32(width)
    np.testing.assert_allclose(slid, np.clip(np.float32(centre), -room, room), atol=1e-6)
    of_centre, of_width = jax.grad(
        lambda c, w: slope * slide_inside(c, w), argnums=(0, 1)
    )(jnp.float32(centre), jnp.float32(width))  # fmt: skip
    moved = np.sign(centre) if abs(np.float32(centre)) > room else 0.0
    # Gradient descent moves the centre against `slope`.
    assert of_centre == (0.0 if moved and -slope == moved else slope)
    assert of_width == -moved * slope


@pytest.mark.parametrize("start", [(0.9, 0.5), (0.97, 0.3), (0.5, 0.9), (-0.95, 0.9)])
def test_a_band_at_the_edge_of_the_box_can_still_reach_the_optimum(start):
    """The reverse KL to N(0.2, 0.05^2) is smallest at centre 0.2 and half-width sqrt(5) 0.05."""

    def divergence(parameters):
        # A band of index 0 has variance r^2 / 5, and entropy log r plus a constant.
        log_width = clip_inward(parameters[1], jnp.asarray(-5.0), jnp.asarray(0.0))
        centre, half_width = Sparse(0.0).band(Head(parameters[0], log_width))
        spread = (centre - 0.2) ** 2 + half_width**2 / 5.0
        return spread / (2.0 * 0.05**2) - jnp.log(half_width)

    def descend(parameters, _):
        return parameters - 0.002 * jnp.sign(jax.grad(divergence)(parameters)), None

    first = jnp.array([start[0], np.log(start[1])])
    found, _ = jax.jit(lambda first: jax.lax.scan(descend, first, None, 3_000))(first)
    np.testing.assert_allclose(found[0], 0.2, atol=0.01)
    np.testing.assert_allclose(jnp.exp(found[1]), np.sqrt(5.0) * 0.05, rtol=0.02)
