"""Coverage-guided fuzzing of one target with atheris: `make fuzz GUIDED=60`, or this file with a target's name.

Needs the extra `fuzz`. Other arguments go to libFuzzer, e.g. -max_total_time=60. Half of the changes are libFuzzer's
own, half are ours. What breaks is kept under runs/fuzz and replayed by fuzz_run.py.
"""

import sys
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["shoal.protocol", "shoal.defenses", "shoal.node.bridge"]):
    from fuzz_all import ALL, SCRIPTED
    from fuzz_mutations import mutate

RUNS = Path(__file__).parents[2] / "runs" / "fuzz"
LONGEST = 1 << 16


def main() -> None:
    """Fuzz the target that is named first."""
    if len(sys.argv) < 2 or sys.argv[1] not in ALL:
        sys.exit(f"usage: fuzz_atheris.py TARGET [libFuzzer's options]; targets: {', '.join(ALL)}")
    target = ALL[sys.argv.pop(1)]
    corpus = RUNS / "corpus" / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(data[:LONGEST])

    def changed(data: bytes, most: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        if target.name in SCRIPTED and rng.random() < 0.5:
            return SCRIPTED[target.name][1](rng)[:most]
        return mutate(data, rng, target.seeds)[:most]

    def one(data: bytes) -> None:
        target(data)

    limits = [f"-artifact_prefix={RUNS}/{target.name}-", f"-max_len={LONGEST}", "-timeout=20", "-rss_limit_mb=1024"]
    atheris.Setup([sys.argv[0], str(corpus), *limits, *sys.argv[1:]], one, custom_mutator=changed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
