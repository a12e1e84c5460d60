"use strict";
// Folding: nodes are grouped by the scopes of their metadata, and long lists into parts by their order.

View.LIMIT = 32; // more members than this are divided into parts
View.PARTS = 14; // about as many

class Group {
  constructor(id, label, parent) {
    this.id = id;
    this.label = label;
    this.parent = parent;
    this.groups = new Map();
    this.nodes = [];
    this.children = null; // groups and nodes in order, after `finish`
    this.count = 0;
    this.time = 0;
    this.order = Infinity;
  }
}

View.buildTree = function (program, sequence, showInputs) {
  const root = new Group("", sequence.name, null);
  const scopes = program.data.scopes;
  const groupOf = new Map([[0, root]]);
  const groupFor = (scope) => {
    if (!groupOf.has(scope)) {
      const [outer, name] = scopes[scope];
      const parent = groupFor(outer);
      const group = new Group(`${parent.id}/${name}`, name, parent);
      parent.groups.set(name, group);
      groupOf.set(scope, group);
    }
    return groupOf.get(scope);
  };
  for (const node of sequence.nodes.values()) {
    const op = program.root(sequence, node);
    if (!showInputs && (op.opcode === "parameter" || sequence.isAlias(node))) continue;
    const leaf = { node, op, order: Math.max(...node.outs), time: program.time(sequence, node) || 0, parent: null };
    groupFor(op.scope).nodes.push(leaf);
  }
  finish(root);
  return root;
};

function finish(group) {
  for (const g of group.groups.values()) finish(g);
  let children = [...group.nodes];
  for (const g of group.groups.values()) {
    if (g.count === 0) continue;
    if (g.count === 1) children.push(...g.children); // a group of one node tells nothing
    else children.push(g);
  }
  if (children.length === 1 && children[0] instanceof Group && group.parent) {
    const only = children[0];
    group.label += `/${only.label}`;
    children = only.children;
  }
  children.sort((a, b) => a.order - b.order);
  group.children = children;
  measure(group);
  divide(group);
}

function measure(group) {
  group.count = 0;
  group.time = 0;
  group.order = Infinity;
  for (const child of group.children) {
    child.parent = group;
    group.count += child instanceof Group ? child.count : 1;
    group.time += child.time;
    group.order = Math.min(group.order, child.order);
  }
}

// Divides a long list of children into parts of neighbours, which are parts again if there are many.
function divide(group) {
  const all = group.children;
  if (all.length <= View.LIMIT) return;
  const size = Math.max(Math.ceil(all.length / View.PARTS), 8);
  const parts = [];
  for (let start = 0; start < all.length; start += size) {
    const number = parts.length + 1;
    const part = new Group(`${group.id}#${number}`, "", group);
    part.children = all.slice(start, start + size);
    part.isPart = true;
    measure(part);
    part.label = partLabel(part);
    divide(part);
    parts.push(part);
  }
  if (parts.length < 2) return;
  group.children = parts;
  for (const part of parts) part.parent = group;
}

// The scopes in a part, or else its operations.
function partLabel(part) {
  const names = part.children.filter(View.isGroup).map((g) => g.label.split("/").at(-1));
  if (!names.length) return View.contents(part);
  return names.slice(0, 2).join(", ") + (names.length > 2 ? ` and ${names.length - 2} more` : "");
}

// The most frequent operations of a group: "dot ×4, reduce, 12 others".
View.contents = function (group) {
  const counts = new Map();
  for (const leaf of View.leaves(group)) {
    const name = leaf.op.opcode;
    counts.set(name, (counts.get(name) || 0) + 1);
  }
  const weight = ([name, n]) => (LIBRARY.has(name) || CONTROL.has(name) ? 1000 : LEAF.has(name) ? -1000 : 0) + n;
  const sorted = [...counts].sort((a, b) => weight(b) - weight(a));
  return sorted.slice(0, 3).map(([name, n]) => (n > 1 ? `${name} ×${n}` : name)).join(", ");
};

View.leaves = function* (group) {
  for (const child of group.children) {
    if (child instanceof Group) yield* View.leaves(child);
    else yield child;
  }
};

View.isGroup = (thing) => thing instanceof Group;

// Unfolds groups, the largest share of time first, until some `wanted` things are visible.
View.unfoldSome = function (root, unfolded, wanted) {
  let visible = root.children.length;
  const queue = root.children.filter(View.isGroup);
  while (queue.length) {
    queue.sort((a, b) => a.children.length - b.children.length);
    const group = queue.shift();
    if (visible + group.children.length - 1 > wanted) break;
    unfolded.add(group.id);
    visible += group.children.length - 1;
    queue.push(...group.children.filter(View.isGroup));
  }
};

// Marks edges of folded groups that follow from others: where a longer path leads from source to target as well.
View.markImplied = function (edges, isFolded) {
  const next = new Map();
  for (const e of edges) next.set(e.source, [...(next.get(e.source) || []), e]);
  if (edges.length > 4000) return;
  for (const edge of edges) {
    if (!isFolded(edge.source) && !isFolded(edge.target)) continue;
    const seen = new Set([edge.source]);
    const stack = (next.get(edge.source) || []).filter((e) => e !== edge && !e.implied).map((e) => e.target);
    while (stack.length && !edge.implied) {
      const at = stack.pop();
      if (at === edge.target) edge.implied = true;
      if (seen.has(at)) continue;
      seen.add(at);
      for (const e of next.get(at) || []) if (!e.implied) stack.push(e.target);
    }
  }
};
