"use strict";
// The picture: cytoscape draws it, and dagre computes positions in a worker.

View.css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

View.Picture = class {
  constructor(container, onSelect, onToggle) {
    this.cy = cytoscape({
      container, elements: [], style: this.style(), wheelSensitivity: 0.4, minZoom: 0.03, maxZoom: 3,
      boxSelectionEnabled: false, autoungrabify: true, textureOnViewport: false, hideEdgesOnViewport: true,
    });
    this.cy.on("tap", (e) => { if (e.target === this.cy) onSelect(null); });
    this.cy.on("tap", "node", (e) => onSelect(e.target.id()));
    this.cy.on("tap", "edge", (e) => onSelect(e.target.id()));
    this.cy.on("dbltap", "node.group, node.open", (e) => onToggle(e.target.id()));
    this.job = 0;
    this.worker = this.makeWorker();
  }

  makeWorker() {
    const handler = `onmessage = (e) => postMessage({ job: e.data.job, result: layOut(dagre, e.data.graph) });`;
    const source = [document.getElementById("dagre").textContent, layOut.toString(), handler].join("\n");
    try {
      return new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    } catch { return null; }
  }

  layOut(graph) {
    const job = ++this.job;
    if (!this.worker) return Promise.resolve(layOut(dagre, graph));
    return new Promise((resolve, reject) => {
      const listener = (e) => {
        if (e.data.job !== job) return;
        this.worker.removeEventListener("message", listener);
        resolve(e.data.result);
      };
      this.worker.addEventListener("message", listener);
      this.worker.addEventListener("error", () => {
        this.worker = null;
        try { resolve(layOut(dagre, graph)); } catch (error) { reject(error); }
      }, { once: true });
      this.worker.postMessage({ job, graph });
    });
  }

  // nodes: {id, parent, label, classes, width, height, heat}; edges: {id, source, target, label, width}.
  async show(nodes, edges, keep) {
    const { places, points } = await this.layOut({ nodes: nodes.map(({ id, parent, width, height, open }) =>
      ({ id, parent, width, height, open })), edges: edges.filter((e) => !e.implied).map(({ id, source, target }) => ({ id, source, target })) });
    const elements = nodes.map((n) => ({
      group: "nodes", classes: n.classes, position: n.open ? undefined : places[n.id],
      data: { id: n.id, parent: n.parent || undefined, label: n.label, width: n.width, height: n.height, heat: n.heat || 0 },
    }));
    for (const e of edges) {
      const bend = bends(places[e.source], places[e.target], points[e.id] || []);
      elements.push({
        group: "edges", classes: [e.classes || "", bend ? "bent" : "", e.implied ? "implied" : ""].join(" "),
        data: { id: e.id, source: e.source, target: e.target, width: e.width, label: e.label || "", ...bend },
      });
    }
    this.cy.batch(() => { this.cy.elements().remove(); this.cy.add(elements); });
    if (!keep) this.fit();
  }

  fit() {
    this.whole();
    if (this.cy.zoom() >= 0.5) return;
    // A large graph is shown from its top, at a size at which labels can be read.
    const box = this.cy.elements().boundingBox();
    this.cy.zoom(Math.min(0.75, Math.max(0.5, (this.cy.width() - 60) / box.w)));
    const top = this.cy.nodes().min((n) => n.position("y")).ele;
    const zoom = this.cy.zoom(), width = this.cy.width(), room = width - zoom * box.w;
    const x = room > 0 ? room / 2 - zoom * box.x1
      : Math.max(width - 30 - zoom * box.x2, Math.min(30 - zoom * box.x1, width / 2 - zoom * top.position("x")));
    this.cy.pan({ x, y: 30 - zoom * box.y1 });
  }

  whole() { this.cy.fit(undefined, 34); if (this.cy.zoom() > 1.3) { this.cy.zoom(1.3); this.cy.center(); } }

  select(id) {
    this.cy.elements().removeClass("chosen near");
    if (id === null) return;
    const chosen = this.cy.getElementById(id);
    chosen.addClass("chosen");
    if (chosen.isNode()) chosen.connectedEdges().addClass("near");
  }

  reveal(id) {
    const found = this.cy.getElementById(id);
    if (!found.length) return;
    if (this.cy.zoom() < 0.6) this.cy.zoom(0.8);
    this.cy.center(found);
  }

  restyle() { this.cy.style(this.style()); }

  style() {
    const c = View.css;
    const kind = (name) => ({ "background-color": c(name), "border-color": c(`${name}-line`) });
    return [
      { selector: "node", style: {
        shape: "round-rectangle", width: "data(width)", height: "data(height)", label: "data(label)", color: c("text"),
        "font-family": "system-ui, sans-serif", "font-size": 12, "text-wrap": "wrap", "text-max-width": (n) => n.data("width") - 8,
        "text-valign": "center", "text-halign": "center", "border-width": 1, "line-height": 1.25, "min-zoomed-font-size": 5,
        ...kind("op") } },
      ...["fusion", "library", "control", "input"].map((k) => ({ selector: `node.${k}`, style: kind(k) })),
      { selector: "node.group", style: { ...kind("group"), "border-width": 2, "border-style": "double", "font-weight": 600 } },
      { selector: "node.heat", style: { "background-color": `mapData(heat, 0, 1, ${c("op")}, ${c("heat")})` } },
      { selector: "node.open", style: {
        "background-color": c("group-line"), "background-opacity": 0.07, "border-color": c("group-line"), "border-width": 1,
        "text-valign": "top", "text-halign": "center", "text-margin-y": -3, "font-weight": 600, color: c("soft"),
        padding: 14, "text-max-width": 600, "text-background-color": c("page"), "text-background-opacity": 0.85,
        "text-background-padding": 2, "text-background-shape": "round-rectangle" } },
      { selector: "edge", style: {
        width: "data(width)", "line-color": c("edge"), "target-arrow-color": c("edge"), "target-arrow-shape": "triangle",
        "arrow-scale": 0.8, "curve-style": "bezier", opacity: 0.6 } },
      { selector: "edge.bent", style: {
        "curve-style": "round-segments", "segment-weights": "data(weights)", "segment-distances": "data(distances)",
        "segment-radii": 12, "edge-distances": "node-position" } },
      { selector: "edge.legal", style: { "line-style": "dashed" } },
      { selector: "edge.implied", style: { display: "none" } },
      { selector: "edge.implied.near", style: { display: "element" } },
      { selector: "edge.near", style: { "line-color": c("accent"), "target-arrow-color": c("accent"), opacity: 1, "z-index": 9 } },
      { selector: ".chosen", style: { "border-color": c("select"), "border-width": 3, "line-color": c("select"),
        "target-arrow-color": c("select"), opacity: 1 } },
      { selector: "node.new", style: { "border-color": c("select"), "border-width": 3 } },
    ];
  }
};

// Runs in the worker too: it may use nothing but its arguments.
function layOut(dagre, graph) {
  const compound = graph.nodes.some((n) => n.open);
  const make = (withParents) => {
    const g = new dagre.graphlib.Graph({ compound: withParents, multigraph: true });
    g.setGraph({ rankdir: "TB", nodesep: 26, ranksep: 46, edgesep: 14, marginx: 10, marginy: 10,
      ranker: graph.nodes.length > 400 ? "longest-path" : "network-simplex" });
    g.setDefaultEdgeLabel(() => ({}));
    for (const n of graph.nodes) if (withParents || !n.open) g.setNode(n.id, n.open ? {} : { width: n.width, height: n.height });
    if (withParents) for (const n of graph.nodes) if (n.parent) g.setParent(n.id, n.parent);
    for (const e of graph.edges) g.setEdge(e.source, e.target, {}, e.id);
    dagre.layout(g);
    return g;
  };
  let g;
  try { g = make(compound); } catch { g = make(false); }
  const places = {};
  for (const n of graph.nodes) if (!n.open && g.hasNode(n.id)) { const p = g.node(n.id); places[n.id] = { x: p.x, y: p.y }; }
  const points = {};
  for (const e of graph.edges) points[e.id] = (g.edge(e.source, e.target, e.id) || {}).points || [];
  return { places, points };
}

// The bends of an edge as cytoscape wants them: along and across the line from source to target.
function bends(from, to, points) {
  const inner = points.slice(1, -1);
  if (!from || !to || inner.length === 0) return null;
  const dx = to.x - from.x, dy = to.y - from.y, length = Math.hypot(dx, dy);
  if (length < 1) return null;
  const weights = [], distances = [];
  for (const p of inner) {
    const px = p.x - from.x, py = p.y - from.y;
    weights.push((px * dx + py * dy) / (length * length));
    distances.push((px * -dy + py * dx) / length);
  }
  return distances.some((d) => Math.abs(d) > 3) ? { weights, distances } : null;
}
