"use strict";
// The program's data, and the nodes of a sequence after any number of decisions. All text of the program is shown
// through textContent or drawn on a canvas, never parsed as HTML.

const View = {};

View.decode = async function (id) {
  const text = document.getElementById(id).textContent.trim();
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

View.seconds = function (s) {
  if (!(s > 0)) return "";
  const [scale, unit] = s >= 1 ? [1, "s"] : s >= 1e-3 ? [1e-3, "ms"] : s >= 1e-6 ? [1e-6, "µs"] : [1e-9, "ns"];
  return `${Number((s / scale).toPrecision(3))} ${unit}`;
};

View.counted = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

View.bytes = function (n) {
  let unit = 0;
  while (n >= 1024 && unit < 4) { n /= 1024; unit++; }
  return `${Number(n.toPrecision(3))} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
};

const HIDDEN = new Set(["constant", "tuple", "get-tuple-element", "after-all"]);
const CONTROL = new Set(["while", "conditional", "call"]);
const LIBRARY = new Set(["dot", "convolution", "custom-call", "fft", "sort", "cholesky", "triangular-solve"]);
const ALIAS = new Set(["reshape", "bitcast", "copy"]);
const LEAF = new Set(["parameter", "iota", ...ALIAS]);

// One instruction before fusion.
class Op {
  constructor(row, index, words) {
    [this.name, this.opcode, this.shape, this.operands, this.scope, this.bytes, this.seconds, this.line, this.flags,
      this.inner, this.fused] = row;
    this.index = index;
    this.opcode = words[this.opcode];
    this.shape = words[this.shape];
  }
  get hidden() { return HIDDEN.has(this.opcode) || this.flags.includes("b"); }
}

class Sequence {
  constructor(data, number, words) {
    this.name = data.name;
    this.number = number;
    this.entry = data.entry;
    this.ops = data.rows.map((row, n) => new Op(row, n, words));
    this.sources = this.ops.map((op) => this.sourcesOf(op));
    this.position = 0; // how many of `steps` are in `nodes`
    this.steps = []; // [number of the decision, decision]
    this.nodes = null;
  }

  // The instructions whose values an instruction reads, through tuples; constants are left out.
  sourcesOf(op) {
    const found = new Set();
    const stack = [...op.operands];
    const seen = new Set(stack);
    while (stack.length) {
      const n = stack.pop();
      const source = this.ops[n];
      if (!source.hidden) { found.add(n); continue; }
      for (const o of source.operands) if (!seen.has(o)) { seen.add(o); stack.push(o); }
    }
    return [...found];
  }

  restart() {
    this.nodes = new Map();
    this.position = 0;
    for (const op of this.ops) {
      if (op.hidden) continue;
      this.nodes.set(op.name, this.single(op));
    }
  }

  single(op) { return { name: op.name, members: [op.index], outs: [op.index], steps: [], seconds: op.seconds }; }

  // A node by name; constants and broadcasts of them become nodes when a decision names them.
  find(name) {
    const op = this.nodes.has(name) ? null : this.ops.find((o) => o.hidden && o.name === name);
    return op ? this.single(op) : this.nodes.get(name);
  }

  // Makes `nodes` those after the first `count` decisions of the whole plan.
  moveTo(count) {
    let wanted = 0;
    while (wanted < this.steps.length && this.steps[wanted][0] < count) wanted++;
    if (!this.nodes || wanted < this.position) this.restart();
    for (; this.position < wanted; this.position++) this.apply(this.steps[this.position]);
  }

  apply([number, [, kind, producer, consumers, made, remains]]) {
    const p = this.find(producer);
    const both = kind !== "producer-consumer" && kind !== "producer-into-all-users";
    consumers.forEach((name, n) => {
      const c = this.find(name);
      if (!c) return;
      this.nodes.delete(name);
      const members = p ? [...new Set([...p.members, ...c.members])].sort((a, b) => a - b) : c.members;
      const outs = both && p ? [...new Set([...p.outs, ...c.outs])] : c.outs;
      const steps = p ? [...new Set([...p.steps, ...c.steps])].sort((a, b) => a - b) : c.steps;
      this.nodes.set(made[n][0], { name: made[n][0], members, outs, steps: [...steps, number], seconds: made[n][1] });
    });
    if (!remains && made.every((m) => m[0] !== producer)) this.nodes.delete(producer);
  }

  isAlias(node) { return node.members.length === 1 && ALIAS.has(this.ops[node.outs[0]].opcode); }

  // Edges between nodes, with the size of the values. Without `all`, changes of shape are looked through; `via` is the
  // one next to the consumer, to which the reason of the boundary belongs.
  edges(all) {
    const provider = new Map();
    for (const node of this.nodes.values()) for (const o of node.outs) provider.set(o, node);
    const found = new Map();
    for (const node of this.nodes.values()) {
      if (!all && this.isAlias(node)) continue;
      const inside = new Set(node.members);
      for (const m of node.members) for (const s of this.sources[m]) {
        if (inside.has(s)) continue;
        const via = provider.get(s);
        let from = via;
        while (!all && from && this.isAlias(from)) from = provider.get(this.sources[from.outs[0]][0]);
        if (!from || from === node) continue;
        const key = `${from.name}\n${node.name}`;
        if (!found.has(key)) found.set(key, { from: from.name, to: node.name, via: via.name, values: new Set(), bytes: 0 });
        const edge = found.get(key);
        if (!edge.values.has(s)) { edge.values.add(s); edge.bytes += this.ops[s].bytes; }
      }
    }
    return [...found.values()];
  }
}

class Program {
  constructor(data) {
    this.data = data;
    this.words = data.words;
    this.steps = data.steps;
    this.position = data.steps.length;
    this.sequences = data.sequences.map((s, n) => new Sequence(s, n, data.words));
    data.steps.forEach((step, n) => this.sequences[step[0]].steps.push([n, step]));
    this.reasons = new Map(); // sequence, producer, consumer -> boundary
    for (const b of data.boundaries) this.reasons.set(`${b[0]}\n${b[1]}\n${b[2]}`, b);
    this.parents = this.sequences.map(() => null);
    for (const s of this.sequences) for (const op of s.ops) for (const [what, n] of op.inner)
      if (!this.parents[n]) this.parents[n] = { sequence: s, op, what };
  }

  // Seconds per call of all kernels that were measured; 0: none was.
  get measured() { return Object.values(this.data.kernels).reduce((sum, k) => sum + (k[1] || 0), 0); }

  get atEnd() { return this.position === this.steps.length; }

  facts(sequence, node) {
    const row = this.atEnd ? this.data.kernels[`${sequence.name}/${node.name}`] : null;
    return row ? { estimated: row[0], measured: row[1], implementation: row[2], choice: row[3], bytes: row[4], source: this.words[row[5]] } : null;
  }

  // Seconds per call, measured if known.
  time(sequence, node) {
    const facts = this.facts(sequence, node);
    return facts ? facts.measured || facts.estimated : node.seconds;
  }

  boundary(sequence, edge) {
    const key = (from) => `${sequence.number}\n${from}\n${edge.to}`;
    return this.atEnd ? this.reasons.get(key(edge.via)) || this.reasons.get(key(edge.from)) : null;
  }

  kind(sequence, node) {
    const ops = node.members.map((m) => sequence.ops[m]);
    const root = sequence.ops[node.outs[node.outs.length - 1]];
    if (ops.some((op) => op.flags.includes("c") || LIBRARY.has(op.opcode))) return "library";
    if (ops.length > 1 || root.opcode === "fusion") return "fusion";
    if (CONTROL.has(root.opcode)) return "control";
    return LEAF.has(root.opcode) ? "input" : "op";
  }

  // The opcode that yields the value of a node, looking into a fusion that was there before.
  result(sequence, node) {
    const op = this.root(sequence, node);
    if (op.opcode !== "fusion" || !op.fused.length) return op.opcode;
    const found = /^(?:ROOT )?%\S+ = (?:\([^)]*\)|\S+) ([\w-]+)\(/.exec(this.words[op.fused.at(-1)]);
    return !found || found[1] === "tuple" ? "several" : found[1];
  }

  root(sequence, node) { return sequence.ops[node.outs[node.outs.length - 1]]; }
}

View.Program = Program;
