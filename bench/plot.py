"""plot.py RESULTS FILE.svg: wall time and peak memory against rows and against partitions, of the newest runs in results.jsonl."""
import json
import statistics
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plot

with open(sys.argv[1]) as file:
    runs = [json.loads(line) for line in file]
matplotlib.rcParams.update({"svg.hashsalt": "restitch", "svg.fonttype": "none", "font.size": 9})  # equal data, equal file
figure, panels = plot.subplots(1, 2, figsize=(9, 3.4))
for panel, line, title in zip(panels, ("rows", "partitions"), ("90 partitions, more rows", "1 million rows, more partitions")):
    newest = max((run["at"] for run in runs if run["line"] == line), default=None)
    if newest is None:
        panel.set_title(f"not measured: {line}")
        continue
    points = {}
    for run in runs:
        if run["line"] == line and run["at"] == newest:
            points.setdefault(int(run["entry"].replace(",", "")), []).append(run)
    x = sorted(points)
    wall = [statistics.median(run["wall_s"] for run in points[at]) for at in x]
    memory = [statistics.median(run["peak_mb"] for run in points[at]) for at in x]
    panel.loglog(x, wall, "o-", color="tab:blue", label="seconds")
    panel.loglog(x, [wall[-1] * at / x[-1] for at in x], ":", color="tab:blue", label="linear")
    other = panel.twinx()
    other.semilogx(x, memory, "s--", color="tab:orange", label="peak MB")
    other.set_ylim(0, max(memory) * 1.25)
    panel.set_xlabel(line)
    panel.set_ylabel("seconds")
    other.set_ylabel("peak MB")
    panel.set_title(title)
    panel.legend(handles=[*panel.lines, *other.lines], loc="upper left", frameon=False)
figure.tight_layout()
figure.savefig(sys.argv[2], metadata={"Date": None})
