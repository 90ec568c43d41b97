"""The container files as data: what an image is built by, stage by stage, and what a compose file says."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

REPOSITORY = Path(__file__).parents[3]
DOCKER = REPOSITORY / "docker"


class Step(NamedTuple):
    """One instruction of a Dockerfile, its lines joined."""

    name: str
    text: str

    def words(self) -> list[str]:
        """The arguments of an instruction in exec form."""
        return json.loads(self.text)


class Stage(NamedTuple):
    """What stands below one FROM."""

    base: str
    steps: list[Step]

    def all(self, name: str) -> list[Step]:
        return [step for step in self.steps if step.name == name]

    def last(self, name: str) -> Step:
        return self.all(name)[-1]

    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for step in self.all("ENV") for pair in step.text.split())

    def commands(self) -> list[str]:
        """Every single shell command of its RUN lines."""
        return [one.strip() for step in self.all("RUN") for one in step.text.split("&&")]


def steps(path: Path) -> list[Step]:
    """Return the instructions of a Dockerfile."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Step(*line.split(maxsplit=1)) for line in joined.splitlines() if line]


def stages(path: Path) -> dict[str, Stage]:
    """Return the stages of a Dockerfile by name; one without a name is called `""`."""
    found: dict[str, Stage] = {}
    for step in steps(path):
        if step.name == "FROM":
            base, _, name = step.text.partition(" AS ")
            found[name] = Stage(base, [])
        elif found:
            list(found.values())[-1].steps.append(step)
    return found


def compose(name: str = "compose.yml") -> dict[str, Any]:
    """Return a compose file with its anchors resolved."""
    return yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))


def chosen(value: str) -> str:
    """Return a value of a compose file with nothing set in the environment."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value).replace("$$", "$")


def seconds(duration: str) -> int:
    """Return a duration such as 10m in seconds."""
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]
