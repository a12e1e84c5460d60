"use strict";
// The side panel, the list of passes, the HLO text and the search.

View.el = function (tag, text, attributes) {
  const found = document.createElement(tag);
  if (text !== undefined && text !== null) found.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) found[name] = value;
  return found;
};

View.Panel = class {
  constructor(app) { this.app = app; this.element = document.getElementById("panel"); }

  fill(parts) { this.element.replaceChildren(...parts.filter(Boolean)); this.element.scrollTop = 0; }

  facts(rows) {
    const list = View.el("dl");
    for (const [name, value] of rows) if (value !== "" && value !== null && value !== undefined)
      list.append(View.el("dt", name), View.el("dd", value));
    return list;
  }

  link(text, id, sequence) {
    const link = View.el("a", text, { className: "to", tabIndex: 0 });
    link.addEventListener("click", () => this.app.goTo(id, sequence));
    link.addEventListener("keydown", (e) => { if (e.key === "Enter") this.app.goTo(id, sequence); });
    return link;
  }

  bars(leaves, total) {
    return leaves.map((leaf) => {
      const row = View.el("div", null, { className: "bar" });
      const fill = View.el("div", null, { className: "fill" });
      fill.style.width = `${Math.min(100, (100 * leaf.time) / (total || 1))}%`;
      row.append(fill, this.link(leaf.node.name, leaf.node.name), View.el("span", View.seconds(leaf.time), { className: "soft" }));
      return row;
    });
  }

  summary(program, sequence, tree) {
    const data = program.data;
    const leaves = [...View.leaves(tree)];
    const slowest = leaves.filter((l) => l.time > 0).sort((a, b) => b.time - a.time).slice(0, 12);
    const reasons = new Map();
    for (const b of program.atEnd ? data.boundaries : []) {
      if (b[0] !== sequence.number) continue;
      const reason = b[4] < 0 ? "legal, not chosen" : general(program.words[b[4]]);
      reasons.set(reason, (reasons.get(reason) || 0) + 1);
    }
    const who = Object.entries(data.decidedBy).map(([phase, by]) => `${phase}: ${by}`).join(", ");
    const parts = [
      View.el("h2", sequence.entry ? data.name : sequence.name),
      this.facts([
        ["estimate", `${View.seconds(data.baseSeconds)} before fusion, ${View.seconds(data.finalSeconds)} after (${data.costModel}, ${data.device})`],
        ["measured", View.seconds(program.measured)], ["decided by", who || "the rules of the compiler"], ["fusions", data.steps.length],
        ["here", `${View.counted(leaves.length, "node")} of ${View.counted(sequence.ops.length, "instruction")}`],
      ]),
    ];
    const parent = program.parents[sequence.number];
    if (parent) {
      const row = View.el("div", `${parent.what} of `);
      row.append(this.link(`%${parent.op.name}`, parent.op.name, parent.sequence.number));
      parts.push(row);
    }
    if (slowest.length) parts.push(View.el("h3", "Most time"), ...this.bars(slowest, slowest[0].time));
    if (reasons.size) {
      parts.push(View.el("h3", "Why kernels are separate"));
      for (const [reason, n] of [...reasons].sort((a, b) => b[1] - a[1]).slice(0, 12))
        parts.push(View.el("div", `${n} × ${reason}`, { className: `reason ${reason.startsWith("legal") ? "legal" : "illegal"}` }));
    }
    parts.push(View.el("p", "Click for details. Double-click a group to unfold or fold it. / searches, ← and → step through the decisions.", { className: "soft" }));
    this.fill(parts);
  }

  group(program, group) {
    const leaves = [...View.leaves(group)].sort((a, b) => b.time - a.time);
    const toggle = View.el("button", this.app.isOpen(group.id) ? "Fold" : "Unfold");
    toggle.addEventListener("click", () => this.app.toggle(group.id));
    this.fill([
      View.el("h2", group.label || "part"), toggle,
      this.facts([["scope", group.id.replace(/#\d+/g, "").replace(/^\//, "")], ["nodes", group.count], ["time", View.seconds(group.time)],
        ["contains", View.contents(group)]]),
      View.el("h3", "Most time"), ...this.bars(leaves.slice(0, 20), leaves[0] ? leaves[0].time : 0),
    ]);
  }

  node(program, sequence, node, edges) {
    const op = program.root(sequence, node);
    const facts = program.facts(sequence, node);
    const lines = node.members.flatMap((m) => {
      const inner = sequence.ops[m].fused.map((n) => `    ${program.words[n]}`);
      return [program.words[sequence.ops[m].line], ...inner];
    });
    const parts = [
      View.el("h2", `%${node.name}`),
      this.facts([
        ["computes", `${op.opcode} ${op.shape}`], ["instructions", node.members.length],
        ["estimated", View.seconds(facts ? facts.estimated : node.seconds)], ["measured", facts ? View.seconds(facts.measured) : ""],
        ["moves", facts && facts.bytes ? View.bytes(facts.bytes) : ""], ["computed by", facts ? facts.implementation : ""],
        ["schedule", facts ? facts.choice || "default" : ""], ["scope", scopeText(program, op.scope)],
        ["loop", op.flags.includes("k") ? "runs inside one kernel" : ""],
      ]),
    ];
    for (const [what, n] of op.inner) {
      const row = View.el("div");
      row.append(this.link(`open ${what} %${program.sequences[n].name}`, null, n));
      parts.push(row);
    }
    parts.push(...this.reasons(program, sequence, node, edges));
    if (node.steps.length) {
      parts.push(View.el("h3", `Decisions that made it (${node.steps.length})`));
      const shown = node.steps.slice(-30);
      if (shown.length < node.steps.length) parts.push(View.el("div", `after ${node.steps.length - shown.length} earlier ones`, { className: "soft" }));
      for (const n of shown) {
        const row = View.el("div");
        const link = View.el("a", `${n + 1}`, { className: "to" });
        link.addEventListener("click", () => this.app.moveTo(n + 1));
        row.append(link, ` ${View.stepText(program.steps[n])}`);
        parts.push(row);
      }
    }
    parts.push(View.el("h3", "Instructions"), View.el("pre", lines.slice(0, 400).join("\n") + (lines.length > 400 ? `\n… ${lines.length - 400} more` : "")));
    if (facts && facts.source) parts.push(View.el("h3", "Source of the kernel"), View.el("pre", facts.source));
    this.fill(parts);
  }

  reasons(program, sequence, node, edges) {
    const parts = [];
    for (const [title, other, list] of [["Reads from", "from", edges.filter((e) => e.to === node.name)],
      ["Read by", "to", edges.filter((e) => e.from === node.name)]]) {
      if (!list.length) continue;
      parts.push(View.el("h3", `${title} (${list.length})`));
      for (const e of list.slice(0, 40)) parts.push(this.reason(program, sequence, e, e[other]));
      if (list.length > 40) parts.push(View.el("div", `and ${list.length - 40} more`, { className: "soft" }));
    }
    return parts;
  }

  reason(program, sequence, edge, name) {
    const b = program.boundary(sequence, edge);
    const box = View.el("div", null, { className: `reason ${!b ? "" : b[4] < 0 ? "legal" : "illegal"}` });
    box.append(this.link(`%${name}`, name), View.el("span", ` ${View.bytes(edge.bytes)}`, { className: "soft" }));
    if (b) box.append(View.el("div", View.reasonText(program, b)));
    return box;
  }

  edges(program, sequence, list) {
    const parts = [View.el("h2", "Values between kernels")];
    for (const e of list.slice(0, 60)) {
      const box = this.reason(program, sequence, e, e.to);
      box.prepend(this.link(`%${e.from}`, e.from), " → ");
      parts.push(box);
    }
    if (list.length > 60) parts.push(View.el("div", `and ${list.length - 60} more`, { className: "soft" }));
    this.fill(parts);
  }
};

function general(reason) {
  return reason.replace(/%[^\s,:;()]+/g, "%…").replace(/\b[a-z]+\d*\[[\d,<=]*\](\{[^}]*\})?/g, "…").replace(/\b\d+\b/g, "N");
}

function scopeText(program, scope) {
  const parts = [];
  for (let s = scope; s > 0; s = program.data.scopes[s][0]) parts.unshift(program.data.scopes[s][1]);
  return parts.join("/");
}

View.reasonText = function (program, b) {
  if (b[4] >= 0) return `illegal: ${program.words[b[4]]}`;
  const difference = View.seconds(Math.abs(b[7] - b[6]));
  const change = !difference ? "would change nothing" : b[7] < b[6] ? `would save ${difference}` : `would lose ${difference}`;
  return `not chosen: ${b[5]} ${change} (analytic estimate: ${View.seconds(b[6])} → ${View.seconds(b[7])})`;
};

View.stepText = function (step) {
  const [, kind, producer, consumers, made, , saving] = step;
  const many = consumers.length > 3 ? `${consumers.slice(0, 3).map((c) => `%${c}`).join(", ")} and ${consumers.length - 3} more` : consumers.map((c) => `%${c}`).join(", ");
  const gain = saving ? `, ${saving > 0 ? "saves" : "loses"} ${View.seconds(Math.abs(saving))}` : "";
  return `${kind}: %${producer} → ${many} makes %${made[made.length - 1][0]}${gain}`;
};

// ---- passes and text

View.lazyPage = function (listId, bodyId, load, describe, write) {
  let items = null;
  const list = document.getElementById(listId), body = document.getElementById(bodyId);
  const choose = (n) => {
    [...list.children].forEach((row, k) => row.classList.toggle("on", k === n));
    body.replaceChildren();
    write(body, items[n]);
    body.scrollTop = 0;
  };
  return async (wanted) => {
    if (!items) {
      items = await load();
      list.replaceChildren(...items.map((item, n) => {
        const row = View.el("div", null, { tabIndex: 0 });
        row.append(...describe(item, n));
        row.addEventListener("click", () => choose(n));
        row.addEventListener("keydown", (e) => { if (e.key === "Enter") choose(n); });
        return row;
      }));
      if (!items.length) body.append(View.el("p", "No pass changed the program.", { className: "soft" }));
    }
    if (items.length) choose(Math.min(wanted || 0, items.length - 1));
  };
};

View.writeLines = function (body, lines, start, make) {
  const page = 2000;
  for (const line of lines.slice(start, start + page)) body.append(make(line));
  if (start + page < lines.length) {
    const more = View.el("button", `Show ${Math.min(page, lines.length - start - page)} of ${lines.length - start - page} more lines`);
    more.addEventListener("click", () => { more.remove(); View.writeLines(body, lines, start + page, make); });
    body.append(more);
  }
};

View.writePass = function (body, change) {
  let where = null;
  const lines = [];
  for (const [sign, computation, text] of change.lines) {
    if (computation !== where) lines.push(["where", `%${computation}`]);
    where = computation;
    lines.push([sign === "+" ? "added" : "removed", `${sign} ${text}`]);
  }
  View.writeLines(body, lines, 0, ([kind, text]) => View.el("div", text, { className: kind }));
  const left = change.removed + change.added - change.lines.length;
  if (left > 0) body.append(View.el("p", `${left} more changed lines are not in this page.`, { className: "soft" }));
};

// ---- search

View.search = function (program, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  if (!words.length) return found;
  for (const sequence of program.sequences) {
    const homes = new Map();
    sequence.moveTo(program.position);
    for (const node of sequence.nodes.values()) for (const m of node.members) if (!homes.has(m) || node.outs.includes(m)) homes.set(m, node);
    for (const node of sequence.nodes.values())
      if (words.every((w) => node.name.toLowerCase().includes(w))) found.push({ sequence, node, text: `%${node.name}`, rank: node.name.toLowerCase() === text.toLowerCase() ? 0 : 1 });
    for (const op of sequence.ops) {
      const node = homes.get(op.index);
      if (!node || op.name === node.name) continue;
      const line = program.words[op.line].toLowerCase();
      if (words.every((w) => line.includes(w))) found.push({ sequence, node, text: `%${node.name}: ${program.words[op.line]}`, rank: 2 });
      if (found.length > 4000) break;
    }
  }
  return found.sort((a, b) => a.rank - b.rank).slice(0, 200);
};
