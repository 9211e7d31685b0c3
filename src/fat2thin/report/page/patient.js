// A typed patient: the band of all seeds together, limits, and whether the policy refers.

const LEAST_OVERLAP = 1e-6; // as in the Python package

// The networks of all seeds; they share their matrices.
function membersOf(policy) {
  if (!policy.networks) {
    const decoded = policy.arrays.map(decodedArray);
    policy.networks = policy.members.map((member) => ({ ...member, transforms: policy.transforms, decoded }));
  }
  return policy.networks;
}

// Outputs of a network as the band that they mean: [centres, log half-widths], fitted to the box.
function fitted({ kind, box }, [centre, logScale]) {
  if (kind !== "sparse" || box !== "inside") return [centre, logScale];
  const widths = logScale.map((value) => Math.min(Math.exp(value), 1));
  return [centre.map((at, i) => clip(at, widths[i] - 1, 1 - widths[i])), widths.map(Math.log)];
}

function median(values) {
  const sorted = [...values].sort((one, two) => one - two);
  const half = sorted.length / 2;
  return sorted.length % 2 ? sorted[Math.floor(half)] : (sorted[half - 1] + sorted[half]) / 2;
}

// What all seeds together do, in half-ranges, and how far they agree.
function together(policy, state) {
  const heads = membersOf(policy).map((member) => fitted(policy.family, headOf(member, "actor", state)));
  if (heads.length === 1) return { head: heads[0], heads, apart: 0, overlap: true };
  const places = policy.low.map((_, i) => i);
  const squash = policy.family.kind === "squashed" ? Math.tanh : (value) => value;
  const apart = Math.max(...places.map((i) => {
    const centres = heads.map(([centre]) => squash(centre[i]));
    return (Math.max(...centres) - Math.min(...centres)) / 2;
  }));
  const middle = [0, 1].map((part) => places.map((i) => median(heads.map((head) => head[part][i]))));
  if (policy.family.kind !== "sparse") return { head: middle, heads, apart, overlap: true };
  const low = places.map((i) => Math.max(...heads.map(([centre, width]) => centre[i] - Math.exp(width[i]))));
  const high = places.map((i) => Math.min(...heads.map(([centre, width]) => centre[i] + Math.exp(width[i]))));
  const overlap = places.every((i) => high[i] - low[i] > LEAST_OVERLAP);
  if (policy.rule !== "consensus" || !overlap) return { head: middle, heads, apart, overlap };
  const head = [places.map((i) => (low[i] + high[i]) / 2), places.map((i) => Math.log((high[i] - low[i]) / 2))];
  return { head, heads, apart, overlap };
}

// The law of each action, from [centres, log scales].
function lawsOf(policy, [centre, logScale], allowed) {
  return policy.low.map((low, i) => rawLawOf(
    policy.family, centre[i], logScale[i], low, policy.high[i], policy.actions[i].transform, allowed && [allowed.low[i], allowed.high[i]],
  ));
}

// Distance of a state from the log in thresholds, and the mean action near it.
function fromLog({ mean, whitening, centroids, radius, action, threshold, transforms }, state) {
  const seen = transforms ? state.map((value, i) => forward(transforms[i], value)) : state;
  const away = seen.map((value, i) => value - mean[i]);
  const placed = mean.map((_, j) => away.reduce((sum, value, i) => sum + value * whitening[i][j], 0));
  const squares = centroids.map((centre, k) => centre.reduce((sum, value, j) => sum + (placed[j] - value) ** 2, 0) / radius[k] ** 2);
  const nearest = squares.reduce((best, value, k) => (value < squares[best] ? k : best), 0);
  return { distance: Math.sqrt(squares[nearest]) / threshold, practice: action[nearest] };
}

// Everything the policy says about a state: its laws, and reasons to refer it.
function decided(policy, state) {
  const found = together(policy, state);
  const near = fromLog(policy.coverage, state);
  const allowed = policy.limits ? allowedIn(policy, state) : null;
  const reasons = [];
  if (!(near.distance <= policy.thresholds.distance)) reasons.push(`outside the log, at ${words(near.distance, 3)} times the distance that is still covered`);
  if (found.apart > policy.thresholds.disagreement) reasons.push(`the seeds disagree, by ${words(100 * found.apart, 3)} % of the action box`);
  else if (policy.rule === "consensus" && !found.overlap) reasons.push("the seeds disagree: their bands have no action in common");
  if (allowed && allowed.none.length) reasons.push(`limits leave no action: ${limitList(allowed.none)}`);
  return { ...found, ...near, allowed, reasons, laws: lawsOf(policy, found.head, allowed) };
}

const patient = { inputs: [] };

function typedPatient() {
  const state = [...found.policy.start];
  for (const { place, input } of patient.inputs) state[place] = input.valueAsNumber;
  return state;
}

function drawPatient() {
  const { policy } = found;
  const state = typedPatient();
  const wrong = policy.observations.flatMap(({ transform }, i) => (Number.isFinite(forward(transform, state[i])) ? [] : [i]));
  for (const { place, input } of patient.inputs) input.setAttribute("aria-invalid", String(wrong.includes(place)));
  if (wrong.length) {
    byId("patient-sentence").textContent = `Enter a number that the policy can read: ${wrong.map((i) => policy.observations[i].label).join(", ")}.`;
    for (const id of ["patient-plots", "patient-key", "patient-table", "patient-data"]) byId(id).replaceChildren();
    return;
  }
  const answer = decided(policy, state);
  byId("patient-sentence").textContent = patientWords(policy, state, answer);
  byId("patient-sentence").className = `sentence ${answer.reasons.length ? "refers" : "acts"}`;
  const headings = ["action", "decision", "lowest", "centre", "highest", "mean given in similar states", "allowed from", "allowed to"];
  const rows = policy.actions.map(({ label }, i) => {
    const law = answer.laws[i];
    const range = answer.allowed ? [answer.allowed.low[i], answer.allowed.high[i]] : [policy.low[i], policy.high[i]];
    const band = answer.reasons.length ? [null, null, null] : [Math.max(law.low, policy.low[i]), clip(law.centre, policy.low[i], policy.high[i]), Math.min(law.high, policy.high[i])];
    return [label, answer.reasons.length ? "refer" : "act", ...band, answer.practice[i], ...range];
  });
  table(byId("patient-table"), headings, rows);
  byId("patient-data").replaceChildren(saveButton("patient.csv", () => [headings, rows]));
  const panels = panelsIn(byId("patient-plots"), policy.actions.map(({ label }) => label));
  policy.actions.forEach((_, i) => drawPatientAction(panels[i], policy, answer, i));
  key(byId("patient-key"), [
    ...(answer.heads.length > 1 ? [["line", "var(--c6)", "each seed alone; dot: centre"]] : []),
    ...(answer.reasons.length ? [] : [["solid", "var(--thin)", answer.heads.length > 1 ? "all seeds together" : "the policy"]]),
    ["line", "var(--logged)", "mean given in similar states", "5 3"],
    ["edge", null, "end of the action box"],
    ...(answer.allowed ? [["zero", null, "excluded by limits"]] : []),
  ]);
}

function patientWords(policy, state, answer) {
  const far = policy.observations.filter(({ range: [low, high] }, i) => state[i] < low || state[i] > high).map(({ label, range: [low, high] }) => `${label} (${words(low)} to ${words(high)})`);
  const outside = far.length ? ` Outside the logged range: ${far.join(", ")}.` : "";
  const given = policy.actions.map(({ name, unit }, i) => `${words(answer.practice[i], 3)}${unit ? ` ${unit}` : ""} of ${name}`).join(", ");
  const done = ` In similar states of the log, ${given} was given on average.`;
  if (answer.reasons.length) return `The policy refers this patient to a person: ${answer.reasons.join("; ")}.${done}${outside}`;
  const gives = policy.actions.map(({ name, unit }, i) => {
    const law = answer.laws[i];
    const [low, high] = [Math.max(law.low, policy.low[i]), Math.min(law.high, policy.high[i])];
    return `${name} between ${words(low, 3)} and ${words(high, 3)}${unit ? ` ${unit}` : ""}, centre ${words(law.centre, 3)}`;
  });
  return `The policy gives ${gives.join("; ")}.${limitWords(policy, state)}${done}${outside}`;
}

// The bands of each seed and of all together, on the action box.
function drawPatientAction(panel, policy, answer, i) {
  const [low, high] = [policy.low[i], policy.high[i]];
  const seeds = answer.heads.map((head) => lawsOf(policy, head, answer.allowed)[i]);
  const shown = [...(seeds.length > 1 ? seeds : []), answer.laws[i]];
  const margin = 0.04 * (high - low);
  const { label } = policy.actions[i];
  const law = answer.laws[i];
  const plot = new Plot(panel, {
    x: [low - margin, high + margin], y: [0, shown.length + 0.6], yTicks: [], xLabel: label, height: 70 + 18 * shown.length,
    label: answer.reasons.length ? `${label}: the patient is referred` : `${label}: from ${words(law.low, 3)} to ${words(law.high, 3)}`,
  });
  if (answer.allowed && !answer.allowed.none.length) {
    plot.span(low - margin, answer.allowed.low[i]);
    plot.span(answer.allowed.high[i], high + margin);
  }
  for (const edge of [low, high]) plot.vertical(edge, "edge");
  shown.forEach((one, row) => {
    const all = row === shown.length - 1;
    if (all && answer.reasons.length) return;
    const y = shown.length - row - 0.2;
    const name = all ? "all seeds together" : `seed ${row + 1}`;
    const ends = [Math.max(one.low, low), Math.min(one.high, high)];
    const text = `${name}: ${words(ends[0], 4)} to ${words(ends[1], 4)}, centre ${words(one.centre, 4)}`;
    const bar = plot.line([[ends[0], y], [ends[1], y]], { colour: all ? "var(--thin)" : "var(--c6)", width: all ? 9 : 3 });
    bar.setAttribute("data-tip", text);
    bar.setAttribute("stroke-linecap", "butt");
    const dot = shape("circle", { cx: plot.px(one.centre), cy: plot.py(y), r: all ? 4 : 2.5, class: "centre", "data-tip": text }, plot.over);
    dot.setAttribute("aria-label", text);
  });
  const mean = shape("path", { d: `M${plot.px(answer.practice[i])} ${plot.top}V${plot.bottom}`, class: "practice", "data-tip": `mean given in similar states: ${words(answer.practice[i], 4)}` }, plot.over);
  mean.setAttribute("fill", "none");
}

function startPatient() {
  const { policy } = found;
  if (typeof policy === "string") {
    byId("patient-note").textContent = `A patient cannot be typed here: ${policy}.`;
    byId("patient-reset").hidden = true;
    return;
  }
  patient.inputs = policy.order.map((place) => {
    const { label, range: [low, high] } = policy.observations[place];
    const input = make("input", { type: "number", step: "any", value: String(policy.start[place]) });
    input.addEventListener("input", drawPatient);
    return { place, input, label: make("label", {}, label, input, make("small", { textContent: `logged: ${words(low, 3)} to ${words(high, 3)}` })) };
  });
  byId("patient-inputs").replaceChildren(...patient.inputs.map(({ label }) => label));
  byId("patient-reset").addEventListener("click", () => {
    for (const { place, input } of patient.inputs) input.value = String(policy.start[place]);
    drawPatient();
  });
  const left = policy.observations.length - patient.inputs.length;
  byId("patient-note").textContent = "It starts with the median of every column; those that move the band most come first. The page computes the answer with weights of 16 bits."
    + (left ? ` ${left} more columns stay at their median.` : "");
  drawPatient();
}
