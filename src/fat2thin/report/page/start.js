// Event handlers, and the tables of claims and runs.

function drawWarnings({ warnings }) {
  byId("warnings").hidden = !warnings.length;
  byId("warnings").replaceChildren(...warnings.map((textContent) => make("li", { textContent })));
}

function newRun() {
  const { run } = groupRuns()[Number(byId("run").value)];
  choices(byId("seed"), run.policies.map(({ seed, stopped }) => `${seed}${stopped ? " (stopped)" : ""}`));
  byId("seed").disabled = run.policies.length === 1;
  drawWarnings(run);
  drawLimits(run);
  newSeed();
}

// Another seed in the same state and step; its log may be another one.
function otherSeed() {
  const ids = ["evolution-state", "explorer-state", "step"];
  const kept = ids.map((id) => byId(id).value);
  const typed = [...byId("typed").querySelectorAll("input")].map(({ value }) => value);
  newSeed();
  ids.forEach((id, i) => {
    byId(id).value = kept[i];
    if (byId(id).value !== kept[i]) byId(id).value = "0";
  });
  if (isTyped(chosenRun().policies)) byId("typed").querySelectorAll("input").forEach((input, i) => { input.value = typed[i]; });
  else fillTyped(chosenRun().policies);
  drawOne();
}

function newSeed() {
  const { policies } = chosenRun();
  for (const id of ["evolution-state", "explorer-state"]) choices(byId(id), policies.names);
  if (policies.weights) byId("explorer-state").append(make("option", { value: String(policies.names.length), textContent: "typed" }));
  byId("step").max = String(policies.steps.length - 1);
  byId("step").value = byId("step").max;
  byId("step").disabled = policies.steps.length === 1;
  if (policies.trajectory) choices(byId("patient"), policies.trajectory.centre.map((_, patient) => `patient ${patient + 1}`));
  fillTyped(policies);
  drawOne();
}

function drawOne() {
  drawHeadline();
  drawEvolution();
  drawExplorer();
  drawDoses();
}

function newGroup() {
  newDataset();
  const group = groupRuns();
  choices(byId("run"), group.map(({ run }) => run.name));
  // Start with a run that has both a fat and a thin policy.
  byId("run").value = String(Math.max(0, group.findIndex(({ run }) => run.policies[0].proposal)));
  newRun();
}

function drawClaims() {
  const headings = ["claim", "statement", "verdict", "effect", "low", "high", "meaning", "seeds", "command"];
  byId("claims").hidden = !found.claims.length;
  const cells = (claim) => headings.map((field) => (field === "command" && claim.command ? make("code", { textContent: claim.command }) : claim[field]));
  table(byId("claims-table"), headings, found.claims.map(cells));
  new DataButtons(byId("claims-data"), "claims.csv", () => [headings, found.claims.map((claim) => headings.map((field) => claim[field]))]);
}

function lastReturn(run) {
  const curve = run.curves.actor_sampled;
  return curve ? curve.mean.at(-1) : null;
}

function drawRuns() {
  const headings = ["run", "data set", "seeds", "updates", "last return", "folder"];
  const row = (run) => [run.name, run.dataset, run.seeds + (run.stopped ? ` (stopped: ${run.stopped})` : ""), run.step, lastReturn(run), run.folder];
  table(byId("runs-table"), headings, found.runs.map((run) => row(run).map((value, i) => (i === 3 ? counted(value) : value))));
  const settings = [...new Set(found.runs.flatMap((run) => Object.keys(run.settings)))];
  new DataButtons(byId("runs-data"), "runs.csv", () => [
    [...headings, ...settings],
    found.runs.map((run) => [...row(run), ...settings.map((name) => run.settings[name])]),
  ]);
}

function start() {
  startCurves();
  one.data.evolution = new DataButtons(byId("evolution-data"), "evolution.csv", evolutionRows);
  one.data.explorer = new DataButtons(byId("explorer-data"), "state.csv", explorerRows);
  one.data.doses = new DataButtons(byId("doses-data"), "doses.csv", doseRows);
  byId("dataset").addEventListener("change", newGroup);
  byId("run").addEventListener("change", newRun);
  byId("seed").addEventListener("change", otherSeed);
  byId("zoom").addEventListener("change", drawOne);
  byId("step").addEventListener("input", drawEvolution);
  byId("evolution-state").addEventListener("change", drawEvolution);
  byId("patient").addEventListener("change", drawDoses);
  byId("explorer-state").addEventListener("change", () => {
    const { policies } = chosenRun();
    if (!isTyped(policies)) fillTyped(policies);
    drawExplorer();
  });
  newGroup();
  drawClaims();
  drawRuns();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    drawCurves();
    drawOne();
  });
}

start();
