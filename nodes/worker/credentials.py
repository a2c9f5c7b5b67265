"""The token that opens streams or serves a client (R100)."""

from __future__ import annotations

from typing import Final

import trio

from nodes.worker.errors import CredentialError, WorkerConfigurationError

RECHECK_SECONDS: Final = 1.0
"""A token file is read at most this often."""


class Credential:
    """No token, a fixed one, or the content of a file that may change."""

    def __init__(self, token: str | None = None, token_file: str | None = None) -> None:
        if token is not None and token_file is not None:
            raise WorkerConfigurationError("give token or token_file, not both")
        if token is not None and not token.strip():
            raise WorkerConfigurationError("token must not be empty")
        self._token = token and token.strip()
        self._file = token_file and trio.Path(token_file)
        self._read_at = -RECHECK_SECONDS

    async def headers(self) -> dict[str, str]:
        """What to send. Raises CredentialError rather than send an old token."""
        if self._file:
            now = trio.current_time()
            if now - self._read_at >= RECHECK_SECONDS or not self._token:
                self._token = await self._read(self._file)
                self._read_at = now
        return {"authorization": f"Bearer {self._token}"} if self._token else {}

    async def _read(self, file: trio.Path) -> str:
        try:
            token = (await file.read_text()).strip()
        except (OSError, UnicodeDecodeError) as error:
            self._token = None
            raise CredentialError(f"cannot read the token file {file}: {error}") from error
        if not token:
            self._token = None
            raise CredentialError(f"the token file {file} is empty")
        return token
