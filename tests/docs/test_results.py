"""The figures in the README are those of the pages that it names."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| .* \| ([\d.]+)x? \| \[\w+\]\((results/[\w/.]+)\) \|$", re.MULTILINE)
WHERE = {
    "results/kernels/kernels.md": r"against the better peer: ([\d.]+)x",
    "results/kernels/models.md": r"against the better peer: ([\d.]+)x",
    "results/kernels/kernels_amd.md": r"against the better peer: ([\d.]+)x",
    "results/kernels/models_amd.md": r"against the better peer: ([\d.]+)x",
    "results/kernels/kernels_avx2.md": r"against the better peer: ([\d.]+)x",
    "results/kernels/models_avx2.md": r"against the better peer: ([\d.]+)x",
    "results/kernels/filters.md": r"geometric mean [| ]+([\d.]+)x",
    "results/reach/xla_passes.md": r"geometric mean ([\d.]+)x",
    "results/learning/learned.md": r"geometric mean: ([\d.]+)x",
    "results/learning/test_families.md": r"geometric mean: ([\d.]+)x",
    "results/yardstick/agreement.md": r"rank correlation over all plans: ([\d.]+)",
}


def _figure(page: str) -> float:
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.endswith(".json"):
        return float(json.loads(text)["speedup_over_xla"][0])
    found = re.search(WHERE[page], text)
    assert found is not None, f"{page} has no such figure"
    return float(found[1])


def test_the_figures_of_the_readme_are_those_of_the_pages() -> None:
    rows = ROW.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(rows) == len(WHERE) + 1
    for shown, page in rows:
        digits = len(shown.partition(".")[2])
        assert float(shown) == round(_figure(page), digits), page
