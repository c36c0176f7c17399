"""What one party of a run shows to the others, and what it demands of them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from tidegate.security.credentials import Credentials, Role

if TYPE_CHECKING:
    from tidegate.security.authority import Authority

VARIABLE = "TIDEGATE_SECURITY"
"""In the environment of a process that gets its `Security` as text: other users cannot read it there."""


@dataclass(frozen=True, slots=True)
class Security:
    """A token always, and TLS or none. The driver makes one for its run, and others of it by `party`.

    Nothing secret is in its repr. Pickled or as text it is without the authority, whose key stays in the
    driver.
    """

    token: str = field(repr=False)
    """What requests carry."""
    tls: Credentials | None = None
    plain: bool = False
    """Whether the user wants addresses to be used without TLS."""
    authority: Authority | None = field(default=None, repr=False, compare=False)
    """In the driver, if the run makes its certificates itself."""

    @classmethod
    def of_run(cls, pipeline: str, *, tls: bool, plain: bool = False) -> Security:
        """The driver's, with an authority of its own if there is to be TLS; that needs the extra `tls`."""
        token = secrets.token_urlsafe(32)
        if not tls:
            return cls(token, plain=plain)
        from tidegate.security.authority import Authority

        authority = Authority.of_run(pipeline)
        return cls(token, authority.issue("driver"), authority=authority)

    def party(self, role: Role, hosts: Iterable[str] = ()) -> Security:
        """For somebody else in the run, who is reached at these names and addresses as well. Certificates
        that were given are the same for everybody."""
        if self.authority is None:
            return self
        return replace(self, tls=self.authority.issue(role, hosts), authority=None)

    def as_text(self) -> str:
        """For the environment of a process; see `from_text`."""
        tls = None if self.tls is None else asdict(self.tls)
        return json.dumps({"token": self.token, "plain": self.plain, "tls": tls})

    @classmethod
    def from_text(cls, text: str) -> Security:
        told = json.loads(text)
        tls = told["tls"]
        return cls(told["token"], None if tls is None else Credentials(**tls), told["plain"])

    def __reduce__(self) -> tuple[object, ...]:
        return Security, (self.token, self.tls, self.plain)
