// The state explorer: both densities, the exact support, Q over actions, and logged actions.

const NEAREST = 50;
const Q_GRID = 60;

// An empty field is not 0.
function typedState() {
  return [...byId("typed").querySelectorAll("input")].map((input) => input.valueAsNumber);
}

// Columns of a typed state for which no policy is evaluated: no finite number, or no logarithm.
function unusable(policies) {
  if (!isTyped(policies)) return [];
  return typedState().flatMap((value, column) => (Number.isFinite(forward(policies.observations[column].transform, value)) ? [] : [column]));
}

function refuseState(policies, wrong) {
  for (const id of ["explorer-plots", "explorer-key", "explorer-table"]) byId(id).replaceChildren();
  const state = typedState();
  const why = wrong.map((column) => {
    const { label, transform } = policies.observations[column];
    if (!Number.isFinite(state[column]) || !transform) return `${label} is not a finite number. Enter a number.`;
    return `${label} must be above ${words(-transform.number)}, since the policy learned its logarithm.`;
  });
  byId("explorer-sentence").textContent = why.join(" ");
  byId("explorer-note").textContent = "";
}

function isTyped(policies) {
  return Number(byId("explorer-state").value) >= policies.names.length;
}

// Distributions of both policies per coordinate, and Q along each coordinate.
function ask(policies) {
  const place = Number(byId("explorer-state").value);
  const { weights } = policies;
  const typed = isTyped(policies);
  const state = typed ? typedState() : policies.states[place];
  const last = policies.steps.length - 1;
  const heads = {};
  if (typed) for (const name of ["actor", "proposal"]) if (weights[name]) heads[name] = headOf(weights, name, state);
  const law = (name, coordinate) => {
    if (!typed) return keptLaw(policies, name, last, place, coordinate);
    if (!heads[name]) return null;
    return placedLaw(policies, name, ...heads[name], coordinate, state);
  };
  const all = policies.low.map((_, coordinate) => ({ actor: law("actor", coordinate), proposal: law("proposal", coordinate) }));
  return { state, laws: all, values: qCurves(policies, state, place, all) };
}

// [action, Q] along each coordinate, the others at the centre of the policy that acts.
function qCurves(policies, state, place, laws) {
  const { weights, actions } = policies;
  // Critics take half-ranges of the transformed box.
  const on = (value, i) => forward(actions[i].transform, value);
  const [low, high] = [policies.low.map(on), policies.high.map(on)];
  const unit = laws.map(({ actor }, i) => clip(((on(clip(actor.centre, policies.low[i], policies.high[i]), i) - low[i]) / (high[i] - low[i])) * 2 - 1, -1, 1));
  return shownCoordinates(policies).map((coordinate) => {
    const at = (share) => backward(actions[coordinate].transform, low[coordinate] + (high[coordinate] - low[coordinate]) * share);
    if (weights && weights.critics) {
      return Array.from({ length: Q_GRID + 1 }, (_, i) => {
        const action = [...unit];
        action[coordinate] = -1 + (2 * i) / Q_GRID;
        return [at(i / Q_GRID), smallestQ(weights, state, action)];
      });
    }
    const kept = policies.values && policies.values[place] && policies.values[place][coordinate];
    return kept ? kept.map((value, i) => [at(i / (kept.length - 1)), value]) : [];
  });
}

// Logged actions of the nearest states; distances are in standard deviations of the log.
function nearestLogged(policies, state) {
  const log = policies.log === null ? null : found.logs[policies.log];
  if (!log) return null;
  const distance = (logged) => logged.reduce((sum, value, i) => sum + ((value - state[i]) / log.spread[i]) ** 2, 0);
  const order = log.states.map((logged, row) => [distance(logged), row]).sort((one, two) => one[0] - two[0]);
  return { of: log.states.length, rows: log.rows, actions: order.slice(0, NEAREST).map(([, row]) => log.actions[row]) };
}

function drawExplorer() {
  const run = chosenRun();
  const { policies } = run;
  const wrong = unusable(policies);
  byId("typed").querySelectorAll("input").forEach((input, column) => input.setAttribute("aria-invalid", String(wrong.includes(column))));
  if (wrong.length) {
    refuseState(policies, wrong);
    one.data.explorer.update();
    return;
  }
  const asked = ask(policies);
  const logged = nearestLogged(policies, asked.state);
  const panels = panelsIn(byId("explorer-plots"), coordinateTitles(policies));
  const rows = [];
  for (const coordinate of shownCoordinates(policies)) {
    const laws = asked.laws[coordinate];
    const actions = logged ? logged.actions.map((action) => action[coordinate]) : [];
    const inside = (action) => action >= laws.actor.low && action <= laws.actor.high;
    drawCoordinate(panels[coordinate], policies, coordinate, asked, actions, inside);
    rows.push([
      policies.actions[coordinate].label, laws.actor.low, laws.actor.high, laws.actor.centre,
      ...(policies.proposal ? [laws.proposal.centre] : []),
      ...(logged ? [`${actions.filter(inside).length} of ${actions.length}`] : []),
    ]);
  }
  table(byId("explorer-table"), [
    "action", "lowest", "highest", "centre",
    ...(policies.proposal ? ["proposal’s centre"] : []), ...(logged ? ["nearby logged actions inside"] : []),
  ], rows);
  explorerWords(run, asked, logged);
  policyKey(byId("explorer-key"), policies, [
    ...(asked.values.some((curve) => curve.length) ? [["line", "var(--value)", "Q: the smallest of all critics"]] : []),
    ...(logged ? [["inside", "var(--logged)", "nearby logged action, possible"], ...(canBeSparse(policies) ? [["outside", "var(--outside)", "nearby logged action, impossible for the policy"]] : [])] : []),
  ]);
  one.data.explorer.update();
}

function drawCoordinate(panel, policies, coordinate, asked, actions, inside) {
  const [low, high] = [policies.low[coordinate], policies.high[coordinate]];
  const laws = asked.laws[coordinate];
  const curve = asked.values[coordinate];
  const plot = drawDensities(panel, laws, {
    low, high, compact: curve.length > 0, action: policies.actions[coordinate].label,
    label: `densities of ${policies.actions[coordinate].name}: the policy acts from ${words(laws.actor.low)} to ${words(laws.actor.high)}`,
  });
  for (const action of actions) plot.mark(action, inside(action));
  if (!curve.length) return;
  const view = viewOf(laws, low, high);
  const seen = curve.filter(([action]) => action >= view[0] && action <= view[1]).map(([, value]) => value);
  const values = new Plot(panel, {
    x: view, y: rangeOf(seen.length ? seen : curve.map(([, value]) => value)), xLabel: policies.actions[coordinate].label, yLabel: "Q", height: 190,
    label: `Q over ${policies.actions[coordinate].name}, from ${words(Math.min(...curve.map(([, value]) => value)), 3)} to ${words(Math.max(...curve.map(([, value]) => value)), 3)}`,
  });
  if (isBand(laws.actor, low, high)) {
    values.span(view[0], laws.actor.low);
    values.span(laws.actor.high, view[1]);
  }
  values.line(curve, { colour: "var(--value)" });
}

function explorerWords(run, asked, logged) {
  const { policies } = run;
  const doings = shownCoordinates(policies).map((coordinate) => {
    const law = asked.laws[coordinate].actor;
    const [low, high] = [policies.low[coordinate], policies.high[coordinate]];
    const share = isBand(law, low, high) && law.low < law.high ? `, ${words(((law.high - law.low) / (high - low)) * 100, 3)} % of the allowed range` : "";
    return actionWords(policies, coordinate, law) + share;
  });
  const impossible = policies.limits && Number.isNaN(allowedIn(policies, asked.state).low[0]);
  const gives = impossible ? "The policy gives no action." : `The policy gives: ${doings.join("; ")}.`;
  byId("explorer-sentence").textContent = gives + limitWords(policies, asked.state) + agreementWords(groupRuns()[Number(byId("run").value)].run, seedLaws(policies, asked.state));
  const far = policies.weights ? " A typed state is evaluated in the page, with weights rounded to 16 bits." : "";
  const notes = [
    `Seed ${policies.seed}, ${stepWords(policies, policies.steps.length - 1, " updates")}.${far}${outsideWords(policies, asked.state)}`,
    asked.values.some((curve) => curve.length)
      ? `Q is drawn inside the box${policies.low.length > 1 ? ", the other actions at the policy’s centre" : ""}${run.reward_scaled ? "; rewards were scaled" : ""}.`
      : "This run has no critics.",
    logged
      ? `Logged actions are those of the ${logged.actions.length} nearest states among ${counted(logged.of)} of the ${counted(logged.rows)} in the log.`
      : "The page does not contain the log of this run.",
  ];
  byId("explorer-note").textContent = notes.join(" ") + unknownWords(policies) + moreWords(policies);
}

// A function that returns the bands of a seed in the selected state, without limits.
function seedLaws(policies, state) {
  const place = Number(byId("explorer-state").value);
  const last = policies.steps.length - 1;
  return (of) => {
    const typed = isTyped(policies);
    if (!of.actor.family || (typed && !of.weights) || String(of.states[place]) !== String(policies.states[place])) return null;
    const head = typed ? headOf(of.weights, "actor", state) : of.actor.heads[last][place];
    return of.low.map((_, coordinate) => placedLaw(of, "actor", ...head, coordinate, null));
  };
}

// Columns of a state beyond what the log had, where a policy extrapolates.
function outsideWords(policies, state) {
  const far = policies.observations.filter(({ range: [low, high] }, column) => low !== null && (state[column] < low || state[column] > high));
  if (!far.length) return "";
  const each = far.map(({ label, range: [low, high] }) => `${label} (${words(low)} to ${words(high)})`);
  return ` Outside the logged range: ${each.join(", ")}.`;
}

function explorerRows() {
  const { name, policies } = chosenRun();
  const headings = ["run", "coordinate", "name", "what", "action", "value"];
  if (unusable(policies).length) return [headings, []];
  const asked = ask(policies);
  const rows = [];
  for (const coordinate of shownCoordinates(policies)) {
    const laws = asked.laws[coordinate];
    const view = viewOf(laws, policies.low[coordinate], policies.high[coordinate]);
    const add = (what, action, value = null) => rows.push([name, coordinate, policies.actions[coordinate].label, what, action, value]);
    const put = (what, points) => points.forEach(([action, value]) => add(what, action, value));
    add("support low", laws.actor.low);
    add("support high", laws.actor.high);
    for (const which of ["actor", "proposal"]) {
      if (!laws[which]) continue;
      add(`${which} centre`, laws[which].centre);
      put(`${which} density`, densityOf(laws[which], view));
    }
    put("Q", asked.values[coordinate]);
    const logged = nearestLogged(policies, asked.state);
    if (logged) for (const action of logged.actions) add("logged action", action[coordinate]);
  }
  return [headings, rows];
}

// Input fields, filled with the selected state; typing selects the typed state.
function fillTyped(policies) {
  const place = Number(byId("explorer-state").value);
  const inputs = policies.states[place].map((value, column) => {
    const { label, range: [low, high] } = policies.observations[column];
    const input = make("input", { type: "number", step: "any", value: String(value), disabled: !policies.weights });
    input.addEventListener("input", () => {
      byId("explorer-state").value = String(policies.names.length);
      drawExplorer();
    });
    const logged = low === null ? [] : [make("small", { textContent: `logged: ${words(low, 3)} to ${words(high, 3)}` })];
    return make("label", {}, label, input, ...logged);
  });
  byId("typed").replaceChildren(...inputs);
  const why = policies.unknown_family ? "the page has no formula for this kind of policy" : "the networks of this run are too large for the page";
  byId("typed-note").textContent = policies.weights
    ? "In the units of the log. The plots update as you type."
    : `Only the listed states can be shown: ${why}.`;
}
