"""A client of Kubernetes' API: JSON objects, by their paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3

Body = dict[str, Any]

_MERGE = "application/merge-patch+json"


class ApiRefused(Exception):
    """The API server has refused a call, with the code and the message that it gave."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ApiAway(Exception):
    """No API server answers, or one that is not ready."""


class ApiClient:
    """Calls the API at a URL with a token. Calls raise ApiRefused, and ApiAway if nothing answers."""

    def __init__(self, url: str, certificate: Path, token: str) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._pool = urllib3.PoolManager(
            ca_certs=str(certificate), maxsize=8, retries=False, timeout=urllib3.Timeout(10)
        )

    def find(self, path: str) -> Body | None:
        """Return the object at a path, if there is one."""
        return self._unless(404, "GET", path)

    def items(self, path: str) -> list[Body]:
        """Return the objects of a collection; none where its kind is not served."""
        found = self.find(path)
        items: list[Body] = (found or {}).get("items") or []
        return items

    def create(self, path: str, body: Mapping[str, Any]) -> Body | None:
        """Create an object in the collection at a path and return it; None if it is there already."""
        return self._unless(409, "POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Body | None:
        """Merge into the object at a path; None if it is gone."""
        return self._unless(404, "PATCH", path, body, _MERGE)

    def replace(self, path: str, body: Mapping[str, Any]) -> Body | None:
        """Put an object in the place of the one at a path; None if that is gone."""
        return self._unless(404, "PUT", path, body)

    def set_status(self, path: str, status: Mapping[str, Any]) -> Body | None:
        """Merge into an object's status; None if it is gone."""
        return self.patch(f"{path}/status", {"status": status})

    def delete(self, path: str, **options: Any) -> None:
        """Delete an object, with DeleteOptions; it may be gone already."""
        self._unless(404, "DELETE", path, options)

    def answers(self, path: str) -> bool:
        """Whether a path is served to this user."""
        try:
            return self._call("GET", path).status == 200
        except ApiAway:
            return False

    def _unless(
        self, code: int, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> Body | None:
        answer = self._call(method, path, body, kind)
        if answer.status == code:
            return None
        content: Body = json.loads(answer.data)
        if answer.status >= 300:
            raise ApiRefused(answer.status, content.get("message", ""))
        return content

    def _call(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> urllib3.BaseHTTPResponse:
        sent = None if body is None else json.dumps(body).encode()
        headers = self._headers | {"Content-Type": kind}
        try:
            answer = self._pool.request(method, self.url + path, body=sent, headers=headers)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiAway(f"{method} {path}: {error}") from None
        if answer.status >= 500 or answer.status == 429:
            raise ApiAway(f"{method} {path}: {answer.status}")
        return answer
