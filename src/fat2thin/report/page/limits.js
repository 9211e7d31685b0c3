// Limits: the allowed actions of a state, as in the Python package. No last action is known here,
// so limits on changes do not apply.

function linearValue({ constant, terms }, state) {
  return terms.reduce((sum, [place, factor]) => sum + factor * (place < state.length ? state[place] : NaN), constant);
}

// A comparison with a last action is false, and so is its opposite.
function conditionHolds(condition, state) {
  if (!condition) return true;
  if (condition.parts) {
    const parts = condition.parts.map((part) => conditionHolds(part, state));
    return condition.every ? parts.every(Boolean) : parts.some(Boolean);
  }
  const value = linearValue(condition.difference, state);
  return condition.strict ? value > 0 : value >= 0;
}

// The lowest and the highest allowed value of each action, and the limits that set them. If no action
// is allowed, `none` lists the limits that are why, and both ends are the fallback, or NaN.
function allowedIn({ limits, low, high }, state) {
  const bottom = [...low];
  const top = [...high];
  const owners = low.map(() => ({ bottom: null, top: null }));
  const applying = limits.parsed.filter(({ condition }) => conditionHolds(condition, state));
  for (const limit of applying) {
    for (const { action, upper, end } of limit.bounds) {
      const value = linearValue(end, state);
      if (upper && value < top[action]) [top[action], owners[action].top] = [value, limit];
      if (!upper && value > bottom[action]) [bottom[action], owners[action].bottom] = [value, limit];
    }
  }
  const forbids = applying.filter(({ bounds }) => !bounds.length);
  const conflicts = owners.filter((_, action) => bottom[action] > top[action]);
  const named = (several) => [...new Set(several.flatMap((one) => [one.bottom, one.top]).filter(Boolean))];
  const none = [...forbids, ...named(conflicts)];
  if (!none.length) return { low: bottom, high: top, none, setting: named(owners) };
  const instead = limits.fallback || low.map(() => NaN);
  return { low: instead, high: instead, none, setting: [] };
}

// A distribution cut to an interval and renormalised; a band is placed there by `lawOf`.
function cutLaw(law, low, high) {
  const centre = clip(law.centre, low, high);
  if (law.low === law.high || !(low < high)) return { ...law, centre, width: 0, low: centre, high: centre, logDensity: null };
  const cut = { ...law, centre, low: Math.max(law.low, low), high: Math.min(law.high, high) };
  if (!law.logDensity) return cut;
  // Relative to the density at the centre, so that an interval in a tail does not underflow.
  const most = law.logDensity(centre);
  const points = gridOf({ ...cut, low, high }, [low, high]).map((action) => [action, Math.exp(law.logDensity(action) - most)]);
  const mass = points.slice(1).reduce((sum, [action, height], i) => sum + ((action - points[i][0]) * (height + points[i][1])) / 2, 0);
  cut.logDensity = (action) => (action < low || action > high ? -Infinity : law.logDensity(action) - most - Math.log(mass));
  return cut;
}

function limitList(limits) {
  return limits.map(({ name, text }) => `${name} (${text})`).join("; ");
}

// What limits do in a state, in words.
function limitWords(policies, state) {
  if (!policies.limits) return "";
  const { none, setting } = allowedIn(policies, state);
  const rates = policies.limits.rates ? " Limits on changes are left out, since no last action is known." : "";
  if (none.length) {
    const instead = policies.limits.fallback ? " The fallback of the limits is shown." : "";
    return ` No action is allowed here, by ${limitList(none)}: the state is referred.${instead}${rates}`;
  }
  return (setting.length ? ` The allowed range here is set by ${limitList(setting)}.` : " No limit narrows the allowed range here.") + rates;
}

function drawLimits(run) {
  const { limits } = run;
  byId("limits").hidden = !limits;
  if (!limits) return;
  const share = (value) => (value === null ? "–" : `${words(100 * value, 3)} %`);
  table(byId("limits-table"), ["limit", "text", "applies", "excludes", "binds"],
    limits.limits.map(({ name, text, applies, excluded, binds }) => [name, text, share(applies), share(excluded), share(binds)]));
  const without = limits.without_action ? ` No action is allowed in ${counted(limits.without_action)} of the logged states.` : "";
  byId("limits-note").textContent =
    `Shares of ${counted(limits.rows)} logged steps: states in which a limit applies, logged actions that it excludes, and states in which it excludes actions that the policy could take otherwise (mean over seeds). Together, the limits exclude ${counted(limits.excluded)} logged actions.${without}`;
}

// How far apart the seeds are in a state, and whether their bands have an action in common.
function agreementWords(run, lawsOf) {
  const several = run.policies.filter(({ stopped }) => !stopped);
  const { policies } = chosenRun();
  if (!run.one_log || several.length < 2) return "";
  const laws = several.map(lawsOf);
  if (laws.some((one) => !one)) return "";
  const on = (value, coordinate) => forward(policies.actions[coordinate].transform, value);
  const apart = policies.low.map((low, coordinate) => {
    const centres = laws.map((one) => on(one[coordinate].centre, coordinate));
    return (Math.max(...centres) - Math.min(...centres)) / (on(policies.high[coordinate], coordinate) - on(low, coordinate));
  });
  const common = policies.low.every((_, coordinate) => (
    Math.max(...laws.map((one) => one[coordinate].low)) < Math.min(...laws.map((one) => one[coordinate].high))));
  const bands = laws[0].some(({ low, high }, i) => low > policies.low[i] || high < policies.high[i]);
  return ` The ${several.length} seeds differ by ${words(100 * Math.max(...apart), 3)} % of the allowed range${bands ? `; their bands ${common ? "overlap" : "have no action in common"}` : ""}.`;
}
