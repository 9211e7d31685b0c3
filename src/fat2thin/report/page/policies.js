// One run: its policies during training, and doses during a treatment.

const MOST_COORDINATES = 12;
const one = { data: {} };

// The selected run, with the policies of the selected seed.
function chosenRun() {
  const { run } = groupRuns()[Number(byId("run").value)];
  return { ...run, policies: run.policies[Number(byId("seed").value)] || run.policies[0] };
}

function shownCoordinates(policies) {
  return policies.low.slice(0, MOST_COORDINATES).map((_, coordinate) => coordinate);
}

function coordinateTitles(policies) {
  return shownCoordinates(policies).map((coordinate) => (policies.low.length > 1 ? policies.actions[coordinate].label : ""));
}

// The distribution of a policy in a listed state after a saved step.
function keptLaw(policies, name, step, state, coordinate) {
  const policy = policies[name];
  if (!policy) return null;
  if (!policy.family) return drawnLaw(policy.drawn[step], state, coordinate);
  const [centre, logScale] = policy.heads[step][state];
  return placedLaw(policies, name, centre, logScale, coordinate, policies.states[state]);
}

// The distribution of one action in a state, from the outputs of a network for all actions. Without a
// state, limits are left out.
function placedLaw(policies, name, centre, logScale, coordinate, state) {
  const { low, high, actions } = policies;
  const interval = policies.limits && state ? allowedIn(policies, state) : null;
  const allowed = interval && [interval.low[coordinate], interval.high[coordinate]];
  return rawLawOf(policies[name].family, centre[coordinate], logScale[coordinate], low[coordinate], high[coordinate], actions[coordinate].transform, allowed);
}

function isBand(law, low, high) {
  return Number.isFinite(law.low) && (law.low > low || law.high < high);
}

// The range of actions shown: slightly more than the box, or the band and its surroundings.
function viewOf(laws, low, high) {
  const [middle, reach] = [(low + high) / 2, (high - low) / 2];
  const law = laws.actor;
  if (byId("zoom").checked && isBand(law, low, high)) {
    const half = Math.max((law.high - law.low) / 2, 1e-6 * reach);
    const at = (law.low + law.high) / 2;
    return [at - 2 * half, at + 2 * half];
  }
  return [middle - found.view * reach, middle + found.view * reach];
}

// [action, density] of a distribution; empty for a single action.
function densityOf(law, view) {
  if (law.grid) return law.grid.actions.map((action, i) => [action, law.grid.density[i]]);
  if (!law.logDensity) return [];
  return gridOf(law, view).map((action) => [action, Math.exp(law.logDensity(action))]);
}

// Both densities of a coordinate, each divided by its own maximum, since their heights differ much.
function drawDensities(panel, laws, { low, high, action, label, compact }) {
  const view = viewOf(laws, low, high);
  const plot = new Plot(panel, {
    x: view, y: [0, 1.08], yTicks: [0, 0.5, 1], xLabel: compact ? "" : action, compact,
    yLabel: "density / its maximum", height: 230, label,
  });
  if (isBand(laws.actor, low, high)) {
    plot.span(view[0], laws.actor.low);
    plot.span(laws.actor.high, view[1]);
  }
  for (const edge of [low, high]) if (edge >= view[0] && edge <= view[1]) plot.vertical(edge, "edge");
  for (const [name, law] of [["proposal", laws.proposal], ["actor", laws.actor]]) {
    if (law) drawDensity(plot, law, name === "actor", view, { low, high });
  }
  return plot;
}

function drawDensity(plot, law, thin, view, { low, high }) {
  const sparse = isBand(law, low, high);
  const colour = thin ? "var(--thin)" : "var(--fat)";
  const dash = thin ? "" : "7 4";
  if (law.low === law.high) {
    plot.line([[law.low, 0], [law.low, 1]], { colour, dash, width: 3 });
    return;
  }
  const points = densityOf(law, view);
  if (!points.length) {
    if (sparse) plot.band([[law.low, 0, 1], [law.high, 0, 1]], { colour, opacity: 0.15 });
    return;
  }
  // Inside the box only: a heavy tail in the logarithm of an action is infinitely dense far below it.
  const most = points.reduce((peak, [action, density]) => (action >= low && action <= high ? Math.max(peak, density) : peak), 0) || 1;
  const outline = points.map(([action, density]) => [action, density / most]);
  if (thin) plot.band(outline.map(([action, height]) => [action, 0, height]), { colour, opacity: 0.25 });
  // Draw the outline down to zero at both ends of a band.
  const ends = sparse ? [[[law.low, 0]], [[law.high, 0]]] : [[], []];
  plot.line([...ends[0], ...outline, ...ends[1]], { colour, dash });
}

function canBeSparse(policies) {
  return Boolean(policies.limits) || !policies.actor.family || ["sparse", "deterministic"].includes(policies.actor.family.kind);
}

function policyKey(host, policies, more = []) {
  key(host, [
    ["line", "var(--thin)", policies.proposal ? "thin actor" : "policy"],
    ...(policies.proposal ? [["line", "var(--fat)", "fat proposal", "7 4"]] : []),
    ...(canBeSparse(policies) ? [["zero", null, "exactly zero"]] : []),
    ["edge", null, "end of the action box"],
    ...more,
  ]);
}

function unknownWords(policies) {
  const several = policies.low.length > 1;
  const unknown = ["actor", "proposal"].filter((name) => policies[name] && !policies[name].family);
  if (!unknown.length || !several) return "";
  return ` Only the support of the ${unknown.join(" and the ")} is shown, since the density of each action is not known.`;
}

function moreWords(policies) {
  const left = policies.low.length - MOST_COORDINATES;
  return left > 0 ? ` ${left} more actions are not shown.` : "";
}

// When the policy at a place of the slider was reached; the last one may have been selected earlier.
function stepWords(policies, place, unit = "") {
  const [step, { selected }] = [policies.steps[place], policies];
  const last = place === policies.steps.length - 1;
  if (last && selected !== null && selected !== step) return `after ${counted(selected)} of ${counted(step)}${unit} (selected)`;
  return step === 0 ? "before training" : `after ${counted(step)}${unit}`;
}

function withUnit(text, unit) {
  return unit ? `${text} ${unit}` : text;
}

// What a policy can do in one action dimension, such as "dose between 0.31 and 0.44 mg".
function actionWords(policies, coordinate, law) {
  const { name, unit } = policies.actions[coordinate];
  const [low, high] = [policies.low[coordinate], policies.high[coordinate]];
  if (law.low === law.high) return withUnit(`${name} ${words(law.centre, 3)}`, unit);
  if (isBand(law, low, high)) return withUnit(`${name} between ${words(law.low, 3)} and ${words(law.high, 3)}`, unit);
  return withUnit(`any ${name} between ${words(low, 3)} and ${words(high, 3)}`, unit) + `, around ${words(law.centre, 3)}`;
}

// A log without a task: there are no returns, and the dossier of a run says what its policy does.
function drawHeadline() {
  if (evaluated()) return;
  const { dataset, name } = chosenRun();
  byId("sentence").textContent = `${name} on ${dataset} was never tried on a task: nothing here is a return. The command \`fat2thin dossier\` makes a page about what its policy does and is worth.`;
}

function drawEvolution() {
  const { policies } = chosenRun();
  const [step, state] = [Number(byId("step").value), Number(byId("evolution-state").value)];
  const when = stepWords(policies, step);
  byId("step-text").textContent = when;
  byId("step").setAttribute("aria-valuetext", stepWords(policies, step, " updates"));
  const panels = panelsIn(byId("evolution-plots"), coordinateTitles(policies));
  for (const coordinate of shownCoordinates(policies)) {
    const laws = {
      actor: keptLaw(policies, "actor", step, state, coordinate),
      proposal: keptLaw(policies, "proposal", step, state, coordinate),
    };
    drawDensities(panels[coordinate], laws, {
      low: policies.low[coordinate], high: policies.high[coordinate], action: policies.actions[coordinate].label,
      label: `${stepWords(policies, step, " updates")}: ${policies.actions[coordinate].name} of the policy is centred at ${words(laws.actor.centre)}, from ${words(laws.actor.low)} to ${words(laws.actor.high)}`,
    });
  }
  const only = policies.steps.length === 1 ? " The run saved its policies only after the last update; the option `snapshots` saves more." : "";
  const best = policies.selected === null ? "" : " At each step this is the best policy so far, by the held-out signal.";
  byId("evolution-note").textContent = `Seed ${policies.seed}. Each density is divided by its own maximum in the box.${best}${only}${unknownWords(policies)}${moreWords(policies)}`;
  policyKey(byId("evolution-key"), policies);
  one.data.evolution.update();
}

function evolutionRows() {
  const { name, policies } = chosenRun();
  const state = Number(byId("evolution-state").value);
  const rows = [];
  policies.steps.forEach((updates, step) => {
    for (const coordinate of shownCoordinates(policies)) {
      for (const which of ["actor", "proposal"]) {
        const law = keptLaw(policies, which, step, state, coordinate);
        if (law) rows.push([name, policies.seed, policies.names[state], updates, coordinate, policies.actions[coordinate].label, which, law.low, law.centre, law.high, law.width]);
      }
    }
  });
  return [["run", "seed", "state", "updates", "coordinate", "name", "policy", "support low", "centre", "support high", "half-width or scale"], rows];
}

function drawDoses() {
  const { policies } = chosenRun();
  const course = policies.trajectory;
  byId("doses").hidden = !course;
  if (!course) return;
  const patient = Number(byId("patient").value);
  const [panel] = panelsIn(byId("doses-plots"), [""]);
  const [low, high] = [policies.low[0], policies.high[0]];
  const margin = 0.05 * (high - low);
  const centre = course.centre[patient];
  const plot = new Plot(panel, {
    x: [0.5, centre.length + 0.5], y: [low - margin, high + margin], xLabel: "step of the treatment", yLabel: "dose", height: 280,
    label: `doses at ${centre.length} steps: the centre changes from ${words(centre[0], 3)} to ${words(centre.at(-1), 3)}`,
  });
  // Steps instead of lines, since there is nothing between two doses.
  const steps = (lows, highs) => lows.flatMap((value, i) => [[i + 0.5, value, highs[i]], [i + 1.5, value, highs[i]]]);
  const single = course.low[patient].every((value, i) => value === course.high[patient][i]);
  const central = course.fat_low && (policies.proposal || !single);
  if (central) plot.band(steps(course.fat_low[patient], course.fat_high[patient]), { colour: policies.proposal ? "var(--fat)" : "var(--thin)", opacity: 0.2 });
  const sparse = !single && course.low[patient].some((value, i) => value > low || course.high[patient][i] < high);
  if (sparse) plot.band(steps(course.low[patient], course.high[patient]), { colour: "var(--thin)", opacity: 0.45 });
  plot.line(centre.map((value, i) => [i + 1, value]), { colour: "var(--ink)", width: 1.6 });
  for (const edge of [low, high]) plot.horizontal(edge, "edge");
  const fat = policies.proposal ? "fat proposal: central 90 %" : "policy: central 90 %";
  key(byId("doses-key"), [
    ...(sparse ? [["area", "var(--thin)", "every dose the policy can give"]] : []),
    ...(central ? [["area", policies.proposal ? "var(--fat)" : "var(--thin)", fat]] : []),
    ["line", "var(--ink)", "centre: the dose given here"],
  ]);
  byId("doses-note").textContent = `Seed ${policies.seed}. A simulated patient who receives the centre at every step; the patients are the same for every run.`;
  one.data.doses.update();
}

function doseRows() {
  const { name, policies } = chosenRun();
  const course = policies.trajectory;
  if (!course) return [["run"], []];
  const rows = course.centre.flatMap((doses, patient) => doses.map((centre, i) => [
    name, policies.seed, patient, i + 1, course.low[patient][i], centre, course.high[patient][i],
    course.fat_low ? course.fat_low[patient][i] : null, course.fat_high ? course.fat_high[patient][i] : null,
  ]));
  return [["run", "seed", "patient", "step", "support low", "centre", "support high", "central 90 % low", "central 90 % high"], rows];
}
