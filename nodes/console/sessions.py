"""Who a browser is. Everything a node has to know is in the cookie, so any node can answer.

The cookie names no secret. It holds a random id and, after a login, a *proof*: the HMAC of the credential
that was pasted, under a key that only the nodes of this cluster know. A request is of whoever's credential
makes the same proof now, so a credential that is changed or taken away ends its sessions at once.

Where a provider of the operator's own decides (``DW_AUTH_PROVIDER``) nobody logs in here: what stands in
front of the nodes adds to every request what the provider wants to see, and the cookie only guards forms.

Forms carry a token made from the id (:attr:`Session.form_token`). A page of another site can neither read
it nor, as the cookie is ``SameSite=Strict``, have it go with a request of its own.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Final

from itsdangerous import BadSignature, URLSafeTimedSerializer
from werkzeug.http import dump_cookie, parse_cookie

from cluster.errors import Refused
from cluster.settings.schema import AuthDriver, Settings
from cluster.shared_secret import SharedSecret
from nodes.api.auth import ANYBODY, Principal, credentials, holder
from nodes.api.messages import Request
from nodes.api.providers import provided_access

LIFETIME_SECONDS: Final = 12 * 3600
COOKIE: Final = "headrace_console"
_LONGEST_CREDENTIAL: Final = 8192


@dataclass(frozen=True, slots=True)
class Session:
    """A browser. ``principal`` is None until it logged in; ``is_new`` ones need their cookie set."""

    id: str
    proof: str
    principal: Principal | None
    form_token: str = field(repr=False)
    is_new: bool = False


class Sessions:
    """Reads and seals the sessions of one cluster."""

    def __init__(self, secret: SharedSecret, settings: Settings) -> None:
        self._secret = secret
        self._driver = settings.auth_driver
        self._provider = provided_access(settings)
        self._credentials = credentials(settings)

    @property
    def is_open(self) -> bool:
        """Whether nobody has to log in."""
        return self._driver is AuthDriver.NONE and self._provider is None

    @property
    def is_provided(self) -> bool:
        """Whether each request itself says who sends it, to a provider of the operator's own."""
        return self._provider is not None

    async def of(self, request: Request) -> Session:
        """The session of a request; a new one when it has none, or one that is over. Raises StoreError."""
        cookies = parse_cookie("; ".join(v.decode("latin-1") for k, v in request.headers if k == b"cookie"))
        for anew in (False, True):
            key = await self._secret.read(anew=anew)
            sealed = cookies.get(_cookie_name(key))
            known = None if sealed is None else _unseal(key, sealed)
            if known is not None:
                return self._session(key, *known, self._principal(key, known[1], request))
            if not cookies:
                break
            # The cookie may have been sealed by a node that knows a newer key than this one remembers.
        return self._new(key, "", self._principal(key, "", request))

    async def log_in(self, credential: str) -> Session | None:
        """A new session of whoever has this token, or signature key; None when nobody has."""
        given = credential.strip().encode()[:_LONGEST_CREDENTIAL]
        principal = holder(self._credentials, self._driver, lambda own: hmac.compare_digest(own, given))
        if principal is None:
            return None
        key = await self._secret.read()
        return self._new(key, _proof(key, given), principal)

    async def log_out(self) -> Session:
        """A new session of nobody."""
        return self._new(await self._secret.read(), "", None)

    async def cookie(self, session: Session, *, secure: bool) -> bytes:
        """The header value that keeps a session.

        It names no path: the browser then takes that of the page, as it knows it behind whatever proxy.
        """
        key = await self._secret.read()
        return dump_cookie(
            _cookie_name(key),
            _serializer(key).dumps([session.id, session.proof]),
            path=None,
            max_age=LIFETIME_SECONDS,
            httponly=True,
            secure=secure,
            samesite="Strict",
        ).encode()

    def _new(self, key: bytes, proof: str, principal: Principal | None) -> Session:
        return self._session(key, token_urlsafe(16), proof, principal, is_new=True)

    @staticmethod
    def _session(
        key: bytes, identity: str, proof: str, principal: Principal | None, *, is_new: bool = False
    ) -> Session:
        token = hmac.new(key, b"form:" + identity.encode(), hashlib.sha256).hexdigest()
        return Session(identity, proof, principal, token, is_new)

    def _principal(self, key: bytes, proof: str, request: Request) -> Principal | None:
        if self.is_open:
            return ANYBODY
        if self._provider is not None:
            try:
                return self._provider.authenticate(request)
            except Refused:
                return None
        if not proof:
            return None
        return holder(
            self._credentials, self._driver, lambda own: hmac.compare_digest(_proof(key, own), proof)
        )


def _proof(key: bytes, credential: bytes) -> str:
    return hmac.new(key, b"credential:" + credential, hashlib.sha256).hexdigest()


def _cookie_name(key: bytes) -> str:
    """Browsers keep one jar for all ports of a host, so each cluster has a name of its own."""
    return f"{COOKIE}_{hashlib.sha256(key).hexdigest()[:8]}"


def _serializer(key: bytes) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(key, salt="console", signer_kwargs={"digest_method": hashlib.sha256})


def _unseal(key: bytes, sealed: str) -> tuple[str, str] | None:
    """Id and proof, or None for what this cluster did not seal within the last LIFETIME_SECONDS."""
    try:
        match _serializer(key).loads(sealed, max_age=LIFETIME_SECONDS):
            case [str(identity), str(proof)]:
                return identity, proof
    except BadSignature:
        pass
    return None
