"""``turtle.example.com``: what to run for a turtle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bullpen.api.paths import Document
from bullpen.api.exporterset import Driver
from bullpen.api.fields import Struct, about
from bullpen.errors import Cause
from bullpen.provisioners import parameters
from bullpen.provisioners.base import Host, Needs, Plugin, Profile, Site

NAME = "turtle.example.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurtleParameters(Struct):
    """Parameters of turtles."""

    speed: int = field(default=1, metadata=about("Metres in an hour.", minimum=1))


class TurtleRecipe:
    name = NAME

    def check(
        self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        return parameters.causes_of(TurtleParameters, given)

    def needs(self, profile: Profile) -> Needs:
        return Needs(memory_bytes=64 << 20, cpus=0.1)

    def export(self, profile: Profile, site: Site) -> Document:
        wanted = parameters.read(TurtleParameters, profile.parameters)
        return {"power": {"type": "turtlelab.driver.Turtle", "config": {"speed": wanted.speed}}}


def recipe(host: Host) -> TurtleRecipe:
    return TurtleRecipe()


PLUGIN = Plugin(name=NAME, recipe=recipe, preload=("turtlelab.driver",))
