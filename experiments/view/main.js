"use strict";
// The page: which sequence, how many decisions, what is unfolded and selected.

View.App = class {
  constructor(program) {
    this.program = program;
    this.sequence = program.sequences[0];
    this.unfolded = new Map(program.sequences.map((s) => [s.number, null])); // null: not chosen yet
    this.selected = null;
    this.showInputs = false;
    this.heat = false;
    this.panel = new View.Panel(this);
    this.picture = new View.Picture(document.getElementById("graph"), (id) => this.choose(id), (id) => this.toggle(id));
    this.drawing = null;
  }

  get open() { return this.unfolded.get(this.sequence.number); }
  isOpen(id) { return this.open.has(id); }

  async draw({ keep = false, changed = null } = {}) {
    const { program, sequence } = this;
    sequence.moveTo(program.position);
    this.tree = View.buildTree(program, sequence, this.showInputs);
    if (this.open === null) {
      this.unfolded.set(sequence.number, new Set());
      View.unfoldSome(this.tree, this.open, 16);
    }
    this.things = new Map(); // id -> leaf or group
    this.visible = new Map(); // name of a node -> id of what shows it
    this.openGroups = [];
    this.collect(this.tree, "");
    const edges = this.visibleEdges();
    this.edgesById = new Map(edges.map((e) => [e.id, e]));
    const slowest = Math.max(...[...this.things.values()].map((t) => t.time), 0);
    const nodes = [...this.openGroups, ...[...this.things].map(([id, thing]) => this.box(id, thing, slowest, changed))];
    const message = document.getElementById("message");
    message.classList.toggle("hidden", nodes.length > 0);
    message.textContent = this.showInputs ? "This computation is empty." : "Nothing is computed here: the results are parameters or constants. Press Show all to see them.";
    const job = (this.drawing = {});
    await this.picture.show(nodes, edges, keep);
    if (job !== this.drawing) return;
    this.select(this.selected);
    this.legend();
  }

  collect(group, parent) {
    for (const child of group.children) {
      const id = View.isGroup(child) ? child.id : child.node.name;
      if (View.isGroup(child) && this.open.has(child.id)) {
        this.openGroups.push({ id: child.id, parent, open: true, label: this.groupLabel(child), classes: "open" });
        this.collect(child, child.id);
        continue;
      }
      this.things.set(id, child);
      child.shownIn = parent;
      for (const leaf of View.isGroup(child) ? View.leaves(child) : [child]) this.visible.set(leaf.node.name, id);
    }
  }

  visibleEdges() {
    const found = new Map();
    this.allEdges = this.sequence.edges(this.showInputs);
    for (const e of this.allEdges) {
      const source = this.visible.get(e.from), target = this.visible.get(e.to);
      if (source === undefined || target === undefined || source === target) continue;
      const id = `edge\n${source}\n${target}`;
      if (!found.has(id)) found.set(id, { id, source, target, list: [], bytes: 0 });
      const edge = found.get(id);
      edge.list.push(e);
      edge.bytes += e.bytes;
    }
    for (const edge of found.values()) {
      edge.width = 1 + Math.min(2.5, Math.max(0, Math.log10(edge.bytes + 1) - 3) * 0.4);
      const boundaries = edge.list.map((e) => this.program.boundary(this.sequence, e)).filter(Boolean);
      edge.classes = boundaries.length && boundaries.every((b) => b[4] < 0) ? "legal" : "";
    }
    const edges = [...found.values()];
    View.markImplied(edges, (id) => View.isGroup(this.things.get(id)));
    return edges;
  }

  groupLabel(group) {
    const name = group.label.split(", ").map((part) => shorten(part, 26)).join(", ");
    return `${name}\n${View.counted(group.count, "node")}${group.time ? ` · ${View.seconds(group.time)}` : ""}`;
  }

  box(id, thing, slowest, changed) {
    const heat = slowest > 0 ? Math.sqrt(thing.time / slowest) : 0;
    const width = 186;
    if (View.isGroup(thing)) {
      const label = this.groupLabel(thing);
      const fresh = changed && [...View.leaves(thing)].some((leaf) => changed.has(leaf.node.name)) ? "new" : "";
      return { id, parent: thing.shownIn, label, width: 210, height: 24 + 16 * lineCount(label, 25), heat,
        classes: `group ${this.heat ? "heat" : ""} ${fresh}` };
    }
    const { node, op } = thing;
    const kind = this.program.kind(this.sequence, node);
    const ops = node.members.reduce((n, m) => n + Math.max(1, this.sequence.ops[m].fused.length), 0);
    const what = ops > 1 ? `${ops} ops → ${this.program.result(this.sequence, node)}` : op.opcode;
    const size = [shorten(op.shape.startsWith("(") ? "several outputs" : op.shape, 18), View.seconds(thing.time)].filter(Boolean);
    const last = size.join(" · ").length > 24 ? size : [size.join(" · ")];
    const label = [shorten(node.name, 25), shorten(what, 25), ...last].join("\n");
    const fresh = changed && changed.has(node.name) ? "new" : "";
    return { id, parent: thing.shownIn, label, width, height: 16 + 15 * label.split("\n").length, heat,
      classes: `${kind} ${this.heat ? "heat" : ""} ${fresh}` };
  }

  choose(id) { this.select(id); }

  select(id) {
    this.selected = id;
    this.picture.select(id);
    const edge = id === null ? null : this.edgesById.get(id);
    const thing = id === null ? null : this.things.get(id) || this.findGroup(this.tree, id);
    if (edge) this.panel.edges(this.program, this.sequence, edge.list);
    else if (!thing) { this.selected = null; this.panel.summary(this.program, this.sequence, this.tree); }
    else if (View.isGroup(thing)) this.panel.group(this.program, thing);
    else this.panel.node(this.program, this.sequence, thing.node, this.allEdges);
  }

  findGroup(group, id) {
    for (const child of group.children) {
      if (!View.isGroup(child)) continue;
      const found = child.id === id ? child : this.findGroup(child, id);
      if (found) return found;
    }
    return null;
  }

  async toggle(id) {
    if (this.open.has(id)) for (const other of [...this.open]) { if (other === id || other.startsWith(`${id}/`) || other.startsWith(`${id}#`)) this.open.delete(other); }
    else this.open.add(id);
    this.selected = id;
    await this.draw({ keep: true });
    this.picture.reveal(id);
  }

  // Shows a node, wherever it is; without a name, the sequence.
  async goTo(name, number) {
    if (number !== undefined && number !== this.sequence.number) {
      this.sequence = this.program.sequences[number];
      document.getElementById("sequence").value = String(number);
      this.selected = null;
      await this.draw();
    }
    if (name === null || name === undefined) return;
    this.sequence.moveTo(this.program.position);
    const node = this.sequence.nodes.get(name);
    const hidden = node && (this.program.root(this.sequence, node).opcode === "parameter" || this.sequence.isAlias(node));
    if (hidden && !this.showInputs) setPressed("inputs", (this.showInputs = true));
    this.tree = View.buildTree(this.program, this.sequence, this.showInputs);
    for (const leaf of View.leaves(this.tree)) {
      if (leaf.node.name !== name) continue;
      for (let g = leaf.parent; g && g.id !== ""; g = g.parent) this.open.add(g.id);
    }
    this.selected = name;
    await this.draw({ keep: true });
    this.picture.reveal(name);
  }

  async moveTo(count, { follow = true } = {}) {
    const program = this.program;
    program.position = Math.max(0, Math.min(program.steps.length, count));
    document.getElementById("slider").value = String(program.position);
    const step = program.position > 0 ? program.steps[program.position - 1] : null;
    document.getElementById("decision").textContent = !program.steps.length ? "no fusion was decided" : step === null
      ? `before the first of ${program.steps.length} decisions` : `${program.position} of ${program.steps.length} · ${View.stepText(step)}`;
    document.getElementById("decision").title = document.getElementById("decision").textContent;
    if (step && follow && program.sequences[step[0]] !== this.sequence) {
      this.sequence = program.sequences[step[0]];
      document.getElementById("sequence").value = String(step[0]);
    }
    const changed = step && !program.atEnd ? new Set(step[4].map((m) => m[0])) : null;
    await this.draw({ keep: changed !== null, changed });
    if (changed && follow) {
      const first = this.visible.get([...changed][0]);
      if (first !== undefined) this.picture.reveal(first);
    }
  }

  legend() {
    const kinds = [["fusion", "fusion"], ["library", "product or library"], ["control", "loop or branch"], ["op", "single op"], ["input", "no work"], ["group", "folded group"]].filter(([kind]) => kind !== "input" || this.showInputs);
    document.getElementById("legend").replaceChildren(...kinds.map(([kind, text]) => {
      const item = View.el("span");
      const dot = View.el("i");
      dot.style.background = View.css(kind);
      dot.style.borderColor = View.css(`${kind}-line`);
      item.append(dot, text);
      return item;
    }), View.el("span", "dashed: a legal fusion was not chosen", { className: "soft" }));
    if ([...this.edgesById.values()].some((e) => e.implied))
      document.getElementById("legend").append(View.el("span", "select a group to see all its values", { className: "soft" }));
  }
};

function shorten(text, length) {
  if (text.length <= length) return text;
  const tail = Math.floor(length / 3);
  return `${text.slice(0, length - tail - 1)}…${text.slice(-tail)}`;
}

function lineCount(label, width) { return label.split("\n").reduce((n, line) => n + Math.max(1, Math.ceil(line.length / width)), 0); }

function setPressed(id, on) { document.getElementById(id).setAttribute("aria-pressed", String(on)); }

View.showTab = function (name, pages, wanted) {
  for (const button of document.querySelectorAll("[data-tab]")) button.setAttribute("aria-pressed", String(button.dataset.tab === name));
  for (const tab of ["graph", "passes", "text"]) document.getElementById(`tab-${tab}`).classList.toggle("hidden", tab !== name);
  document.querySelector("footer").classList.toggle("hidden", name !== "graph");
  return pages[name] ? pages[name](wanted) : Promise.resolve();
};

View.connect = function (app, pages) {
  const on = (id, event, action) => document.getElementById(id).addEventListener(event, action);
  for (const button of document.querySelectorAll("[data-tab]")) button.addEventListener("click", () => View.showTab(button.dataset.tab, pages));
  on("sequence", "change", (e) => app.goTo(null, Number(e.target.value)));
  on("fit", "click", () => app.picture.whole());
  on("fold", "click", () => { app.open.clear(); app.selected = null; app.draw(); });
  on("unfold", "click", () => {
    const before = app.open.size;
    let room = 400 - app.things.size;
    for (const [id, thing] of [...app.things].sort((a, b) => a[1].count - b[1].count))
      if (View.isGroup(thing) && thing.children.length < room) { app.open.add(id); room -= thing.children.length; }
    if (app.open.size > before) app.draw();
  });
  on("inputs", "click", () => { setPressed("inputs", (app.showInputs = !app.showInputs)); app.draw(); });
  on("heat", "click", () => { setPressed("heat", (app.heat = !app.heat)); app.draw({ keep: true }); });
  const step = (n) => app.moveTo(app.program.position + n);
  on("first", "click", () => app.moveTo(0));
  on("back", "click", () => step(-1));
  on("forward", "click", () => step(1));
  on("last", "click", () => app.moveTo(Infinity));
  let waiting = 0;
  on("slider", "input", (e) => { clearTimeout(waiting); waiting = setTimeout(() => app.moveTo(Number(e.target.value)), 60); });
  on("theme", "click", () => {
    View.setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    app.picture.restyle();
    app.legend();
  });
  View.connectSearch(app);
  document.addEventListener("keydown", (e) => {
    if (["INPUT", "SELECT"].includes(e.target.tagName)) return;
    if (e.key === "/") { e.preventDefault(); document.getElementById("search").focus(); }
    if (e.key === "ArrowLeft") step(-1);
    if (e.key === "ArrowRight") step(1);
    if (e.key === "Escape") app.select(null);
  });
};

View.connectSearch = function (app) {
  const box = document.getElementById("search"), results = document.getElementById("results");
  const close = () => results.classList.add("hidden");
  let found = [];
  const take = (n) => { if (found[n]) { close(); View.showTab("graph", {}); app.goTo(found[n].node.name, found[n].sequence.number); } };
  const update = () => {
    found = View.search(app.program, box.value);
    results.replaceChildren(...found.slice(0, 60).map((hit, n) => {
      const row = View.el("div", `${hit.text.slice(0, 220)}${hit.sequence === app.sequence ? "" : `  (in %${hit.sequence.name})`}`);
      row.addEventListener("mousedown", () => take(n));
      return row;
    }));
    if (!found.length && box.value) results.append(View.el("div", "Nothing matches.", { className: "soft" }));
    results.classList.toggle("hidden", !box.value);
  };
  box.addEventListener("input", update);
  box.addEventListener("focus", () => { if (box.value) update(); });
  box.addEventListener("blur", () => setTimeout(close, 150));
  box.addEventListener("keydown", (e) => { if (e.key === "Enter") take(0); if (e.key === "Escape") { box.blur(); close(); } });
};

View.setTheme = function (theme) { document.documentElement.dataset.theme = theme; };

// The part of the address after # opens a state: `step=3&select=fusion.1&tab=passes&theme=dark&search=dot&sequence=1`.
View.wanted = () => new URLSearchParams(location.hash.slice(1));

View.start = async function () {
  const wanted = View.wanted();
  View.setTheme(wanted.get("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  const program = new View.Program(await View.decode("data"));
  document.title = document.getElementById("title").textContent = program.data.name;
  const time = program.measured ? `${View.seconds(program.measured)} measured` : `${View.seconds(program.data.finalSeconds)} estimated`;
  document.getElementById("about").textContent = [
    `${View.counted(program.sequences.reduce((n, s) => n + s.ops.length, 0), "instruction")} before fusion`,
    View.counted(program.steps.length, "fusion"), time].join(" · ");
  const choices = document.getElementById("sequence");
  for (const s of program.sequences) {
    const parent = program.parents[s.number];
    const text = `${s.name} · ${parent ? `${parent.what} of ${parent.op.name}` : "entry"} · ${s.ops.length}`;
    choices.append(View.el("option", shorten(text, 60), { value: String(s.number) }));
  }
  choices.classList.toggle("hidden", program.sequences.length < 2);
  document.getElementById("slider").max = String(program.steps.length);
  const app = (View.app = new View.App(program));
  const pages = {
    passes: View.lazyPage("pass-list", "pass-text", () => View.decode("passes"), (p, n) => [
      View.el("div", `${n + 1}. ${p.name}`), View.el("span", `${p.instructions} instructions `, { className: "soft" }),
      View.el("span", `−${p.removed} `, { className: "minus" }), View.el("span", `+${p.added}`, { className: "plus" })], View.writePass),
    text: View.lazyPage("text-list", "text-body", async () => Object.entries(await View.decode("hlo")), ([name, text]) => [
      View.el("div", name), View.el("span", `${text.split("\n").length} lines`, { className: "soft" })],
    (body, [, text]) => View.writeLines(body, text.split("\n"), 0, (line) => View.el("div", line || " "))),
  };
  View.connect(app, pages);
  if (wanted.has("sequence")) app.sequence = program.sequences[Number(wanted.get("sequence"))] || app.sequence;
  await app.moveTo(wanted.has("step") ? Number(wanted.get("step")) : Infinity, { follow: wanted.has("step") });
  if (wanted.has("select")) await app.goTo(wanted.get("select"));
  if (wanted.has("search")) { document.getElementById("search").value = wanted.get("search"); document.getElementById("search").focus(); }
  if (wanted.has("tab")) await View.showTab(wanted.get("tab"), pages, Number(wanted.get("item") || 0));
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
};

View.start().catch((error) => {
  const message = document.getElementById("message");
  message.classList.remove("hidden");
  message.textContent = `The page could not be drawn: ${error && error.message}. A current version of Chromium, Firefox or Safari is needed.`;
  document.documentElement.dataset.ready = "failed";
});
