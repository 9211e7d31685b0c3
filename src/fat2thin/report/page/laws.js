"use strict";
// Networks and densities, as in the Python package, to evaluate a policy in one state.

const LANCZOS = [
  0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
  -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
  1.5056327351493116e-7,
];
const FINE = 400; // points of a density that is drawn
const LAYER_NORM_EPSILON = 1e-6; // added to the variance, as in networks.py

// For x of at least 1/2, which is enough for the densities below.
function logGamma(x) {
  const shifted = x - 1;
  let sum = LANCZOS[0];
  for (let term = 1; term < LANCZOS.length; term += 1) sum += LANCZOS[term] / (shifted + term);
  const t = shifted + 7.5;
  return 0.5 * Math.log(2 * Math.PI) + (shifted + 0.5) * Math.log(t) - t + Math.log(sum);
}

function logQGaussian(action, centre, scale, index) {
  const half = ((action - centre) / scale) ** 2 / 2;
  const away = Math.abs(1 - index);
  if (away < 1e-6) return -half - Math.log(scale * Math.sqrt(2 * Math.PI));
  const exponent = 1 / away;
  const spread = Math.log(scale) + 0.5 * Math.log((2 * Math.PI) / away);
  if (index > 1) {
    const normaliser = spread + logGamma(exponent - 0.5) - logGamma(exponent);
    return -exponent * Math.log1p(away * half) - normaliser;
  }
  const base = 1 - away * half;
  if (base <= 0) return -Infinity;
  const normaliser = spread + logGamma(exponent + 1) - logGamma(exponent + 1.5);
  return exponent * Math.log(base) - normaliser;
}

function clip(x, low, high) {
  return Math.min(Math.max(x, low), high);
}

// The distribution of one coordinate: centre, ends of its support, width around the centre, and log
// density. `centre` and `logScale` are outputs of the network, in half-ranges. `allowed` is the
// interval that limits leave: a band slides into it, then shrinks, and other distributions are cut.
function lawOf(family, centre, logScale, low, high, allowed = null) {
  if (allowed && (family.kind !== "sparse" || !(allowed[0] < allowed[1]))) {
    return cutLaw(lawOf(family, centre, logScale, low, high), ...allowed);
  }
  const middle = (low + high) / 2;
  const reach = (high - low) / 2;
  const placed = middle + reach * centre;
  const scale = reach * Math.exp(logScale);
  const line = { low: -Infinity, high: Infinity };
  if (family.kind === "sparse") {
    let width = Math.exp(logScale);
    let at = centre;
    if (family.box === "inside") {
      width = Math.min(width, 1);
      at = clip(centre, width - 1, 1 - width);
    }
    let [mean, half] = [middle + reach * at, reach * width];
    if (allowed) {
      half = Math.min(half, (allowed[1] - allowed[0]) / 2);
      mean = clip(mean, allowed[0] + half, allowed[1] - half);
    }
    const spread = half * Math.sqrt((1 - family.index) / 2);
    return {
      centre: mean, width: half, low: clip(mean - half, low, high), high: clip(mean + half, low, high),
      logDensity: (a) => logQGaussian(a, mean, spread, family.index),
    };
  }
  if (family.kind === "heavy") {
    return {
      centre: placed, width: scale, ...line,
      logDensity: (a) => logQGaussian(a, placed, scale, family.index),
    };
  }
  if (family.kind === "student") {
    const index = (family.freedom + 3) / (family.freedom + 1);
    const spread = scale * Math.sqrt((3 - index) / 2);
    return {
      centre: placed, width: scale, ...line,
      logDensity: (a) => logQGaussian(a, placed, spread, index),
    };
  }
  if (family.kind === "squashed") {
    const spread = Math.exp(logScale);
    return {
      centre: middle + reach * Math.tanh(centre), width: scale, low, high,
      logDensity: (a) => {
        const u = (a - middle) / reach;
        if (Math.abs(u) >= 1) return -Infinity;
        const gaussian = logQGaussian(Math.atanh(u), centre, spread, 1);
        return gaussian - Math.log(reach * (1 - u * u));
      },
    };
  }
  if (family.kind === "beta") {
    const strength = Math.exp(-2 * logScale);
    const share = (1 + centre) / 2;
    const [above, below] = [1 + share * strength, 1 + (1 - share) * strength];
    const normaliser = logGamma(above) + logGamma(below) - logGamma(above + below);
    return {
      centre: placed, width: scale, low, high,
      logDensity: (a) => {
        const u = (a - low) / (high - low);
        if (u <= 0 || u >= 1) return -Infinity;
        const kernel = (above - 1) * Math.log(u) + (below - 1) * Math.log1p(-u);
        return kernel - normaliser - Math.log(high - low);
      },
    };
  }
  return { centre: placed, width: 0, low: placed, high: placed, logDensity: null };
}

// Transforms of columns, as in the Python package; a value that a logarithm does not allow is NaN.
function forward(transform, value) {
  if (!transform) return value;
  if (transform.kind === "scale") return value * transform.number;
  return value + transform.number > 0 ? Math.log(value + transform.number) : NaN;
}

function backward(transform, value) {
  if (!transform) return value;
  return transform.kind === "scale" ? value / transform.number : Math.exp(value) - transform.number;
}

function logSlope(transform, value) {
  return transform.kind === "scale" ? Math.log(transform.number) : -Math.log(value + transform.number);
}

// The distribution of a raw action; `lawOf` is that of its transformed value.
function rawLawOf(family, centre, logScale, low, high, transform, allowed = null) {
  if (!transform) return lawOf(family, centre, logScale, low, high, allowed);
  const box = [forward(transform, low), forward(transform, high)];
  const law = lawOf(family, centre, logScale, ...box, allowed && allowed.map((end) => forward(transform, end)));
  const raw = (value) => backward(transform, value);
  return {
    centre: raw(law.centre), width: (raw(law.centre + law.width) - raw(law.centre - law.width)) / 2,
    low: law.low === box[0] ? low : raw(law.low), high: law.high === box[1] ? high : raw(law.high),
    logDensity: law.logDensity && ((action) => {
      const value = forward(transform, action);
      return Number.isNaN(value) ? -Infinity : law.logDensity(value) + logSlope(transform, action);
    }),
  };
}

// A distribution that is known only on a grid.
function drawnLaw(drawn, state, coordinate) {
  const end = (value, infinite) => (value === null ? infinite : value);
  const centre = drawn.centre[state][coordinate];
  const low = end(drawn.low[state][coordinate], -Infinity);
  const high = end(drawn.high[state][coordinate], Infinity);
  const width = Number.isFinite(high - low) ? (high - low) / 2 : 0;
  const grid = drawn.actions && { actions: drawn.actions[state], density: drawn.density[state] };
  return { centre, low, high, width, logDensity: null, grid, unknown: !grid };
}

function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer;
}

function decodedArray(encoded) {
  const view = new DataView(bytesOf(encoded.levels));
  const steps = new DataView(bytesOf(encoded.steps));
  const outputs = steps.byteLength / 4;
  const rows = [];
  for (let row = 0; row < outputs; row += 1) {
    const step = steps.getFloat32(4 * row, true);
    const weights = new Float64Array(encoded.inputs);
    for (let column = 0; column < encoded.inputs; column += 1) {
      weights[column] = step * view.getInt16(2 * (row * encoded.inputs + column), true);
    }
    rows.push(weights);
  }
  return rows;
}

// The matrices of a run, decoded on first use.
function arraysOf(weights) {
  if (!weights.decoded) weights.decoded = weights.arrays.map(decodedArray);
  return weights.decoded;
}

function linear(layer, arrays, x) {
  return arrays[layer.weight].map((row, output) => {
    let sum = layer.bias[output];
    for (let input = 0; input < row.length; input += 1) sum += row[input] * x[input];
    return sum;
  });
}

function trunk(layers, arrays, x) {
  return layers.reduce((features, layer) => {
    const hidden = linear(layer, arrays, features).map((value) => Math.max(value, 0));
    return layer.norm ? normalised(layer.norm, hidden) : hidden;
  }, x);
}

// Layer normalisation: mean 0 and variance 1, then scale and shift.
function normalised([scale, shift], x) {
  const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
  const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
  return x.map((value, i) => ((value - mean) / Math.sqrt(variance + LAYER_NORM_EPSILON)) * scale[i] + shift[i]);
}

function standardised(weights, state) {
  const seen = weights.transforms ? state.map((value, column) => forward(weights.transforms[column], value)) : state;
  if (!weights.mean) return seen;
  return seen.map((value, column) => (value - weights.mean[column]) / weights.scale[column]);
}

// Outputs of a policy's network in a state: [centres, log scales].
function headOf(weights, name, state) {
  const network = weights[name];
  const arrays = arraysOf(weights);
  const features = trunk(network.trunk, arrays, standardised(weights, state));
  const centre = linear(network.centre, arrays, features);
  const raw = network.fixed || linear(network.log_scale, arrays, features);
  let logScale = raw.map((value) => clip(value, ...network.bounds));
  if (network.ratio !== undefined) {
    logScale = logScale.map((value) => clip(value + network.ratio, ...network.ratio_bounds));
  }
  return [network.tanh ? centre.map(Math.tanh) : centre, logScale];
}

// The smallest of all critics; `action` is in half-ranges of the transformed box.
function smallestQ(weights, state, action) {
  const arrays = arraysOf(weights);
  const input = [...standardised(weights, state), ...action];
  const values = weights.critics.map((critic) => linear(critic.head, arrays, trunk(critic.trunk, arrays, input))[0]);
  return Math.min(...values);
}

// Actions at which a density is drawn: even over the view, and dense around its centre.
function gridOf(law, view) {
  const [from, to] = [Math.max(view[0], law.low), Math.min(view[1], law.high)];
  if (!(to > from)) return [];
  const even = Array.from({ length: FINE + 1 }, (_, i) => from + ((to - from) * i) / FINE);
  const dense = Array.from({ length: 161 }, (_, i) => law.centre + law.width * Math.sinh((i - 80) / 20));
  return [...even, ...dense.filter((action) => action > from && action < to)].sort((a, b) => a - b);
}
