"""What arguments the handlers of a workflow take, as its workers declared them (sdk-wire 2.1).

Only what is certain is refused: too few or too many arguments, and names nobody takes. Types are the
worker's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of one handler in order; ``variadic``: more may follow."""

    names: tuple[str, ...]
    required: frozenset[str]
    variadic: bool

    def faults(self, arguments: Any) -> list[str]:
        """What is wrong with ``arguments``, a list of positional or an object of named ones."""
        if isinstance(arguments, Mapping):
            return self._named_faults(arguments)
        if not isinstance(arguments, list):
            return []
        missing = [name for name in self.names[len(arguments) :] if name in self.required]
        faults = [f"The argument {name} is required." for name in missing]
        if len(arguments) > len(self.names) and not self.variadic:
            faults.append(f"At most {len(self.names)} arguments are taken, not {len(arguments)}.")
        return faults

    def _named_faults(self, arguments: Mapping[str, Any]) -> list[str]:
        faults = [
            f"The argument {name} is required."
            for name in self.names
            if name in self.required and name not in arguments
        ]
        if not self.variadic:
            faults += [f"There is no argument {name}." for name in arguments if name not in self.names]
        return faults


def signature(contract: Any) -> Signature | None:
    """The signature a worker declared, or None when it is not one we can read."""
    parameters = contract.get("parameters") if isinstance(contract, Mapping) else None
    if not isinstance(parameters, list) or not all(_is_parameter(each) for each in parameters):
        return None
    ordered = sorted(parameters, key=lambda each: int(each.get("position", 0)))
    plain = [each for each in ordered if not each.get("variadic")]
    return Signature(
        names=tuple(each["name"] for each in plain),
        required=frozenset(
            each["name"] for each in plain if each.get("required") and not each.get("default_available")
        ),
        variadic=len(plain) < len(ordered),
    )


def faults_of_all(signatures: Sequence[Signature | None], arguments: Any) -> list[str]:
    """Why no worker would take ``arguments``; nothing as soon as one would, or did not say."""
    found: list[str] = []
    for each in signatures:
        faults = [] if each is None else each.faults(arguments)
        if not faults:
            return []
        found = found or faults
    return found


def _is_parameter(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("position", 0), int)
    )
