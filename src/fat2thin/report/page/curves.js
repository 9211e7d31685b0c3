// Learning curves, their legend, and the sentence that summarises them.

const found = JSON.parse(byId("found").textContent);
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const COLOURS = 7;
const MOST_BANDS = 12;
const REFERENCES = ["best latent", "best constant", "uniform", "d4rl expert"];
const POLICIES = { actor: "policy that acts", proposal: "fat proposal (training only)" };
const WAY_WORDS = { sampled: "by sampling", centre: "at its centre" };

const curves = { hidden: new Set(), data: null };

function datasets() {
  return [...new Set(found.runs.map((run) => run.dataset))];
}

function shownDataset() {
  return datasets()[Number(byId("dataset").value)];
}

// The runs on the selected data set, each with its fixed colour and dashes.
function groupRuns() {
  const runs = found.runs.filter((run) => run.dataset === shownDataset());
  return runs.map((run, place) => ({
    run,
    colour: `var(--c${place % COLOURS})`,
    dash: DASHES[Math.floor(place / COLOURS) % DASHES.length],
  }));
}

function evaluated() {
  return groupRuns().some(({ run }) => Object.keys(run.curves).length > 0);
}

function metricNames() {
  return [...new Set(groupRuns().flatMap(({ run }) => Object.keys(run.metrics)))];
}

// The panels to draw, each with the curves of the runs that are switched on.
function curvePanels() {
  const group = groupRuns().filter(({ run }) => !curves.hidden.has(run));
  const panel = (title, pick) => ({
    title,
    lines: group.map((entry) => ({ ...entry, curve: pick(entry.run) })).filter(({ curve }) => curve),
  });
  if (!evaluated()) {
    const name = metricNames()[Number(byId("metric").value)];
    return [panel((name || "").replaceAll("_", " "), (run) => run.metrics[name])];
  }
  const way = byId("way").value;
  const has = (policy) => groupRuns().some(({ run }) => run.curves[`${policy}_${way}`]);
  return Object.keys(POLICIES).filter(has)
    .map((policy) => panel(POLICIES[policy], (run) => run.curves[`${policy}_${way}`]));
}

function referencesOf(lines) {
  const all = Object.assign({}, ...lines.map(({ run }) => run.references));
  return REFERENCES.filter((name) => typeof all[name] === "number").map((name) => [name, all[name]]);
}

function rangeOf(values) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (!known.length) return [0, 1];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const margin = 0.06 * (high - low || Math.abs(high) || 1);
  return [low - margin, high + margin];
}

function drawCurves() {
  const panels = curvePanels();
  const all = panels.flatMap(({ lines }) => lines);
  const references = evaluated() ? referencesOf(all) : [];
  const y = rangeOf([
    ...all.flatMap(({ curve }) => [...curve.mean, ...(all.length <= MOST_BANDS ? [...curve.low, ...curve.high] : [])]),
    ...references.map(([, value]) => value),
  ]);
  const last = Math.max(1, ...all.map(({ curve }) => curve.steps.at(-1) || 0));
  const places = panelsIn(byId("curve-plots"), panels.map(({ title }) => title));
  panels.forEach(({ title, lines }, number) => {
    const plot = new Plot(places[number], {
      x: [0, last], y, xLabel: "updates", height: 300,
      yLabel: evaluated() ? "return of an episode" : "mean over the seeds",
      label: `${title}: ${lines.map(({ run, curve }) => `${run.name} ends at ${words(curve.mean.at(-1))}`).join("; ") || "no run is switched on"}`,
    });
    for (const { run, curve, colour, dash } of lines) {
      if (all.length <= MOST_BANDS) {
        plot.band(curve.steps.map((step, i) => [step, curve.low[i], curve.high[i]]), { colour, opacity: 0.18 });
      }
      plot.line(curve.steps.map((step, i) => [step, curve.mean[i]]), { colour, dash, name: run.name });
    }
    nameReferences(plot, references);
  });
  curveWords(panels, all.length > MOST_BANDS);
  if (curves.data) curves.data.update();
}

function nameReferences(plot, references) {
  let free = -Infinity;
  for (const [name, value] of [...references].sort((one, two) => two[1] - one[1])) {
    plot.horizontal(value, "reference");
    const y = Math.max(plot.py(value) - 4, free);
    plot.text(plot.right - 2, y, `${name} ${words(value, 3)}`, "end");
    free = y + 13;
  }
}

function interval(curve, seeds) {
  const [low, high] = [curve.low.at(-1), curve.high.at(-1)];
  if (low === null || high === null) return `${seeds === 1 ? "one seed" : `${seeds} seeds`}, no interval`;
  return `95 % interval ${words(low, 3)} to ${words(high, 3)}, ${seeds} seeds`;
}

function curveWords(panels, withoutBands) {
  const seeds = groupRuns().length ? Math.max(...groupRuns().map(({ run }) => run.seed_count)) : 0;
  const many = seeds > 1
    ? `Lines are means over the seeds. Shaded: 95 % bootstrap intervals over the seeds (${counted(found.resamples)} draws).`
    : "There is one seed, so there is no interval.";
  const fewer = withoutBands ? ` Intervals are hidden with more than ${MOST_BANDS} lines: switch some off to see them.` : "";
  byId("curve-note").textContent = evaluated()
    ? `${many}${fewer}`
    : `These runs were not evaluated on a task, so their metrics are shown. ${sentence(panels)} ${many}${fewer}`;
  // Without a task, `drawHeadline` describes the selected policy instead.
  if (evaluated()) byId("sentence").textContent = sentence(panels);
}

function sentence(panels) {
  const where = `On ${shownDataset()}`;
  const lines = panels[0] ? panels[0].lines.filter(({ curve }) => Number.isFinite(curve.mean.at(-1) ?? NaN)) : [];
  if (!evaluated() && !metricNames().length) return `${where}, nothing was measured during training.`;
  if (!lines.length && panels[0] && panels[0].lines.length) return `${where}, “${panels[0].title}” ${missingWords(panels[0].title)}.`;
  if (!lines.length) return `${where}, no run is switched on.`;
  if (!evaluated()) return `${where}, the mean of “${panels[0].title}” ends at ${lines.slice(0, 3).map(({ run, curve }) => `${words(curve.mean.at(-1), 3)} for ${run.name}`).join(", ")}.`;
  const order = [...lines].sort((one, two) => two.curve.mean.at(-1) - one.curve.mean.at(-1));
  const [best, next] = order;
  const says = ({ run, curve }) => `${words(curve.mean.at(-1), 3)} (${interval(curve, run.seed_count)})`;
  const how = WAY_WORDS[byId("way").value];
  if (!next) return `${where}, the policy of ${best.run.name}, acting ${how}, has a mean return of ${says(best)} after ${counted(best.curve.steps.at(-1))} updates.`;
  const ends = [best.curve.low.at(-1), next.curve.high.at(-1)];
  const apart = ends.includes(null) ? "" : ends[0] > ends[1] ? " The two intervals do not overlap." : " The two intervals overlap.";
  return `${where}, the highest of ${order.length} final mean returns is that of ${best.run.name}, acting ${how}: ${says(best)}. Next is ${next.run.name} with ${says(next)}.${apart}`;
}

function missingWords(title) {
  return title.startsWith("held out value")
    ? "is not estimable at the end: outside the range that the rewards allow"
    : "has no finite value at the end";
}

function curveRows() {
  const rows = [];
  for (const { title, lines } of curvePanels()) {
    for (const { run, curve } of lines) {
      curve.steps.forEach((step, i) => rows.push([run.dataset, run.name, title, step, curve.mean[i], curve.low[i], curve.high[i]]));
    }
  }
  return [["data set", "run", evaluated() ? "policy" : "metric", "updates", "mean", "low", "high"], rows];
}

function drawLegend() {
  const group = groupRuns();
  const blocks = [...new Set(group.map(({ run }) => run.algorithm))].map((algorithm) => {
    const members = group.filter(({ run }) => run.algorithm === algorithm);
    const runs = members.map(({ run }) => run);
    const block = make("div", { className: "group" });
    if (members.length > 1) block.append(legendSwitch(`all ${algorithm}`, runs, null, "whole"));
    for (const entry of members) block.append(legendSwitch(entry.run.name, [entry.run], entry, ""));
    return block;
  });
  byId("legend").replaceChildren(...blocks);
}

function legendSwitch(text, runs, look, className) {
  const shown = runs.filter((run) => !curves.hidden.has(run)).length;
  const box = make("input", { type: "checkbox", checked: shown > 0, indeterminate: shown > 0 && shown < runs.length });
  box.addEventListener("change", () => {
    for (const run of runs) box.checked ? curves.hidden.delete(run) : curves.hidden.add(run);
    syncLegend();
    drawCurves();
  });
  const mark = look ? [swatch("line", look.colour, look.dash)] : [];
  const label = make("label", { className }, box, ...mark, text);
  label.runs = runs;
  return label;
}

// The check boxes are updated in place, so that the keyboard focus stays.
function syncLegend() {
  for (const label of byId("legend").querySelectorAll("label")) {
    const shown = label.runs.filter((run) => !curves.hidden.has(run)).length;
    const box = label.querySelector("input");
    box.checked = shown > 0;
    box.indeterminate = shown > 0 && shown < label.runs.length;
  }
}

function newDataset() {
  byId("way-label").hidden = !evaluated();
  byId("metric-label").hidden = evaluated();
  choices(byId("metric"), metricNames().map((name) => name.replaceAll("_", " ")));
  byId("metric").value = String(Math.max(0, metricNames().indexOf("actor_loss")));
  drawLegend();
  drawCurves();
}

function startCurves() {
  choices(byId("dataset"), datasets());
  byId("way").replaceChildren(...Object.entries(WAY_WORDS).map(([value, textContent]) => make("option", { value, textContent })));
  for (const id of ["way", "metric"]) byId(id).addEventListener("change", drawCurves);
  byId("all").addEventListener("click", () => switchAll(true));
  byId("none").addEventListener("click", () => switchAll(false));
  curves.data = new DataButtons(byId("curve-data"), "learning-curves.csv", curveRows);
  newDataset();
}

function switchAll(on) {
  for (const { run } of groupRuns()) on ? curves.hidden.delete(run) : curves.hidden.add(run);
  syncLegend();
  drawCurves();
}
