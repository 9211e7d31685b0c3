// The state explorer: both densities, the exact support, Q over actions, and logged actions.

const NEAREST = 50;
const Q_GRID = 60;

// An empty field is not 0.
function typedState() {
  return [...byId("typed").querySelectorAll("input")].map((input) => input.valueAsNumber);
}

// Components of a typed state that are not finite numbers, for which no policy is evaluated.
function unusable(policies) {
  if (!isTyped(policies)) return [];
  return typedState().flatMap((value, column) => (Number.isFinite(value) ? [] : [column]));
}

function refuseState(wrong) {
  for (const id of ["explorer-plots", "explorer-key", "explorer-table"]) byId(id).replaceChildren();
  const which = wrong.length > 1 ? `Components ${wrong.join(", ")} of the state are not finite numbers` : `Component ${wrong[0]} of the state is not a finite number`;
  byId("explorer-sentence").textContent = `${which}. Enter a number.`;
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
    const [centre, logScale] = heads[name];
    return lawOf(policies[name].family, centre[coordinate], logScale[coordinate], policies.low[coordinate], policies.high[coordinate]);
  };
  const all = policies.low.map((_, coordinate) => ({ actor: law("actor", coordinate), proposal: law("proposal", coordinate) }));
  return { state, laws: all, values: qCurves(policies, state, place, all) };
}

// [action, Q] along each coordinate, the others at the centre of the policy that acts.
function qCurves(policies, state, place, laws) {
  const { weights, low, high } = policies;
  const unit = laws.map(({ actor }, i) => clip(((actor.centre - low[i]) / (high[i] - low[i])) * 2 - 1, -1, 1));
  return shownCoordinates(policies).map((coordinate) => {
    const at = (share) => low[coordinate] + (high[coordinate] - low[coordinate]) * share;
    if (weights && weights.critics) {
      return Array.from({ length: Q_GRID + 1 }, (_, i) => {
        const action = [...unit];
        action[coordinate] = -1 + (2 * i) / Q_GRID;
        return [at(i / Q_GRID), smallerQ(weights, state, action)];
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
    refuseState(wrong);
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
      coordinate, laws.actor.low, laws.actor.high, laws.actor.centre,
      ...(policies.proposal ? [laws.proposal.centre] : []),
      ...(logged ? [`${actions.filter(inside).length} of ${actions.length}`] : []),
    ]);
  }
  table(byId("explorer-table"), [
    "coordinate", "lowest action", "highest action", "centre",
    ...(policies.proposal ? ["proposal’s centre"] : []), ...(logged ? ["nearby logged actions inside"] : []),
  ], rows);
  explorerWords(run, asked, logged);
  policyKey(byId("explorer-key"), policies, [
    ...(asked.values.some((curve) => curve.length) ? [["line", "var(--value)", "Q: the smaller of two critics"]] : []),
    ...(logged ? [["inside", "var(--logged)", "nearby logged action, possible"], ...(canBeSparse(policies) ? [["outside", "var(--outside)", "nearby logged action, impossible for the policy"]] : [])] : []),
  ]);
  one.data.explorer.update();
}

function drawCoordinate(panel, policies, coordinate, asked, actions, inside) {
  const [low, high] = [policies.low[coordinate], policies.high[coordinate]];
  const laws = asked.laws[coordinate];
  const curve = asked.values[coordinate];
  const plot = drawDensities(panel, laws, {
    low, high, compact: curve.length > 0,
    label: `densities over the actions: the policy acts from ${words(laws.actor.low)} to ${words(laws.actor.high)}`,
  });
  for (const action of actions) plot.mark(action, inside(action));
  if (!curve.length) return;
  const view = viewOf(laws, low, high);
  const seen = curve.filter(([action]) => action >= view[0] && action <= view[1]).map(([, value]) => value);
  const values = new Plot(panel, {
    x: view, y: rangeOf(seen.length ? seen : curve.map(([, value]) => value)), xLabel: "action", yLabel: "Q", height: 190,
    label: `Q over the actions, from ${words(Math.min(...curve.map(([, value]) => value)), 3)} to ${words(Math.max(...curve.map(([, value]) => value)), 3)}`,
  });
  if (isBand(laws.actor, low, high)) {
    values.span(view[0], laws.actor.low);
    values.span(laws.actor.high, view[1]);
  }
  values.line(curve, { colour: "var(--value)" });
}

function explorerWords(run, asked, logged) {
  const { policies } = run;
  const [law, low, high] = [asked.laws[0].actor, policies.low[0], policies.high[0]];
  const share = ((law.high - law.low) / (high - low)) * 100;
  const several = policies.low.length > 1 ? "In coordinate 0, the policy" : "The policy";
  byId("explorer-sentence").textContent = isBand(law, low, high) && law.low < law.high
    ? `${several} acts only between ${words(law.low)} and ${words(law.high)}, ${words(share, 3)} % of the action box.`
    : law.low === law.high ? `${several} always acts with ${words(law.centre)}.` : `${several} can take any action in the box; its centre is ${words(law.centre)}.`;
  const far = policies.weights ? " A typed state is evaluated in the page, with weights rounded to 16 bits." : "";
  const notes = [
    `Seed ${policies.seed}, after ${counted(policies.steps.at(-1))} updates.${far}`,
    asked.values.some((curve) => curve.length)
      ? `Q is drawn inside the box${policies.low.length > 1 ? ", the other coordinates at the policy’s centre" : ""}${run.reward_scaled ? "; rewards were scaled" : ""}.`
      : "This run has no critics.",
    logged
      ? `Logged actions are those of the ${logged.actions.length} nearest states among ${counted(logged.of)} of the ${counted(logged.rows)} in the log.`
      : "The page does not contain the log of this run.",
  ];
  byId("explorer-note").textContent = notes.join(" ") + unknownWords(policies) + moreWords(policies);
}

function explorerRows() {
  const { name, policies } = chosenRun();
  const headings = ["run", "coordinate", "what", "action", "value"];
  if (unusable(policies).length) return [headings, []];
  const asked = ask(policies);
  const rows = [];
  for (const coordinate of shownCoordinates(policies)) {
    const laws = asked.laws[coordinate];
    const view = viewOf(laws, policies.low[coordinate], policies.high[coordinate]);
    const put = (what, points) => points.forEach(([action, value]) => rows.push([name, coordinate, what, action, value]));
    rows.push([name, coordinate, "support low", laws.actor.low, null], [name, coordinate, "support high", laws.actor.high, null]);
    for (const which of ["actor", "proposal"]) {
      if (!laws[which]) continue;
      rows.push([name, coordinate, `${which} centre`, laws[which].centre, null]);
      put(`${which} density`, densityOf(laws[which], view));
    }
    put("Q", asked.values[coordinate]);
    const logged = nearestLogged(policies, asked.state);
    if (logged) for (const action of logged.actions) rows.push([name, coordinate, "logged action", action[coordinate], null]);
  }
  return [headings, rows];
}

// Input fields, filled with the selected state; typing selects the typed state.
function fillTyped(policies) {
  const place = Number(byId("explorer-state").value);
  const inputs = policies.states[place].map((value, column) => {
    const input = make("input", { type: "number", step: "any", value: String(value), disabled: !policies.weights, "aria-label": `component ${column} of the state` });
    input.addEventListener("input", () => {
      byId("explorer-state").value = String(policies.names.length);
      drawExplorer();
    });
    return make("label", {}, String(column), input);
  });
  byId("typed").replaceChildren(...inputs);
  const why = policies.unknown_family ? "the page has no formula for this kind of policy" : "the networks of this run are too large for the page";
  byId("typed-note").textContent = policies.weights
    ? "In the units of the log. The plots update as you type."
    : `Only the listed states can be shown: ${why}.`;
}
