"""The setting of the paper on poisoned rollouts (arXiv 2511.09780), repeated with another model."""

from shoal.node.redteam.blocks import NOTHING, Chart, Line, Section, Table, in_words, share
from shoal.node.redteam.cells import NO_ATTACK
from shoal.node.redteam.matrix import PAPER
from shoal.node.redteam.results import Results, shown, success

PUBLISHED = {
    ("paper-vertical", "text"): "about 100 % by iteration 40",
    ("paper-horizontal", "text"): "about 100 % by iteration 40",
    ("paper-vertical", "math"): "about 90 %",
    ("paper-vertical", "code"): "over 50 %",
    ("paper-vertical", "length"): "over 2 times the tokens",
}
"""Attack success at 25 % in arXiv 2511.09780 (Qwen2.5-1.5B on GSM8K), as published."""
PAPER_NOTE = (
    "The setting of arXiv 2511.09780 (four nodes, one of them malicious, 100 iterations, 32 prompts x 12 completions "
    "in an update, from all four nodes in equal parts), repeated with another model and other tasks: the paper's "
    "figures are of Qwen2.5-1.5B on GSM8K, ours of the built-in model of .1 M parameters on the string tasks, with "
    "its own learning rate. Vertical: each node samples 12 completions for 8 prompts of its own. Horizontal: all "
    "sample the same 32 prompts, and each gives 3 completions for each. Without defences all rows train, and joined "
    "groups are measured against the mean of all twelve. Our verifier reads the last word, so MATH can be planted on "
    "any prompt; in the paper it has to pick prompts in which 2+2 occurs, which only the vertical setting allows."
)


def paper_section(results: Results) -> Section:
    """Return attack success in the paper's setting beside the paper's own figures."""
    head = (
        "setting",
        "attack",
        "the paper's, on its model",
        "ours, nothing on",
        "ours, all layers on",
        "no attack",
        "seeds",
    )
    rows: list[tuple[str, ...]] = []
    charts: list[Chart] = []
    for setting in PAPER:
        mine = results.narrowed(setting=setting)
        for name in [name for name in mine.values("attack") if name != NO_ATTACK]:
            found = success(mine, name, 25)
            figures = [share(found.off), share(found.full), share(found.control)]
            if name == "length":
                figures = [
                    f"{text}{_longer(mine, kind)}" for text, kind in zip(figures, ("off", "full", ""), strict=True)
                ]
            off = mine.of(attack=name, share=25, defenses="off")
            words = setting.partition("-")[2]
            rows.append((words, name, PUBLISHED.get((setting, name), NOTHING), *figures, str(len(off) or "")))
            lines = [
                Line(kind, in_words(kind), tuple(shown(mine.of(attack=name, share=25, defenses=kind).values(), name)))
                for kind in ("off", "full")
            ]
            drawn = tuple(line for line in lines if line.points)
            if drawn:
                label = f"The paper's setting, {words}: share of honest nodes' answers that show {name}, by round"
                charts.append(Chart(f"{setting}-{name}-25", label, drawn))
    return Section("The paper's setting", 3, (PAPER_NOTE, Table(head, tuple(rows)), *charts))


def _longer(results: Results, kind: str) -> str:
    """Return how many times the tokens of a swarm without attackers honest nodes write, seed by seed."""
    ours, base = (results.of(attack=name, defenses=kind) for name in ("length", NO_ATTACK))
    ratios = [ours[seed]["length"] / base[seed]["length"] for seed in ours if seed in base]
    return f"; {sum(ratios) / len(ratios):.2f} times the tokens" if ratios else NOTHING
