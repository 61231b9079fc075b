"""Whether a Ray cluster takes this process's token and certificates: asked before `ray.init`, which waits
without a word where it does not. Import `connect` first: it sets what Ray reads when it is imported.

A head with a token (RAY_AUTH_MODE=token) answers no call that does not show it. One with TLS (RAY_USE_TLS=1)
shows a certificate that must name the address that it is reached at, and asks for one of the same authority.

Also what a private cluster keeps in files, for its user alone: the token, with which one can run code as the
user who started the cluster, and the folder of its session. Ray lets all read the one and write to the other.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import ssl
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import grpc  # type: ignore[import-untyped]
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray._private.grpc_utils import init_grpc_channel
from ray._private.services import canonicalize_bootstrap_address
from ray.core.generated.gcs_service_pb2 import CheckAliveRequest  # type: ignore[attr-defined]
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

from dsgd.core.protocol import ClusterError

_KEPT_S = 3600.0  # a session's folder: why it did not start is in its logs
_ANSWER_S = 2.0  # as a rule it takes some milliseconds
_OF_TLS = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


def uses_tls() -> bool:
    """Whether Ray's calls are encrypted in this process, by what it was started with."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def show_credentials(address: str | None) -> None:
    """Show a head, at HOST:PORT or where Ray finds one, the token and the certificates of the environment.

    It takes some seconds at most. Raises ClusterError, in one line with the remedy, if the head refuses them,
    or if they cannot be used. What does not answer like a cluster at all is left to `ray.init`.
    """
    own = _own_certificates() if uses_tls() else None
    found = canonicalize_bootstrap_address(address)  # type: ignore[arg-type]
    if found is None:
        return
    # Where TLS would fail, no call is made: gRPC writes its own lines to the terminal.
    why = _about_tls(found, own) if own else ""
    refused = None if why else _called(found)
    if refused == grpc.StatusCode.UNAUTHENTICATED:
        why = _about_token()
    elif refused == grpc.StatusCode.UNAVAILABLE and not own:
        why = _about_tls(found, own)
    if why:
        raise ClusterError(f"RAY_ADDRESS={address}: {why}")


def _called(address: str) -> grpc.StatusCode | None:
    """Return why a head does not answer a call, None if it does."""
    with init_grpc_channel(address) as channel:
        try:
            head = NodeInfoGcsServiceStub(channel)  # type: ignore[no-untyped-call]
            head.CheckAlive(CheckAliveRequest(), timeout=_ANSWER_S)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return None


def _about_token() -> str:
    """Return what to do about a token that a head did not take."""
    remedy = "`ray get-auth-token`, run where the head was started, prints the right one"
    if not is_token_auth_enabled():
        mode = os.environ.get("RAY_AUTH_MODE")
        now = f"RAY_AUTH_MODE={mode}" if mode else "RAY_AUTH_MODE is not set"
        return f"it asks for a token, and {now}: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN; {remedy}"
    for variable in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        if variable in os.environ:
            return f"it refuses the token of {variable}: correct it; {remedy}"
    return f"it refuses the token of ~/.ray/auth_token: set RAY_AUTH_TOKEN to the cluster's; {remedy}"


def _own_certificates() -> ssl.SSLContext:
    """Return the certificates that RAY_TLS_… name, as a client shows and checks them."""
    if missing := [name for name in _OF_TLS if not os.environ.get(name)]:
        raise ClusterError(
            f"RAY_USE_TLS: {missing[0]} is not set; give the files of certificate, "
            f"key and authority in {', '.join(_OF_TLS)}, or unset RAY_USE_TLS"
        )
    certificate, key, authority = (os.environ[name] for name in _OF_TLS)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    own.set_alpn_protocols(["h2"])
    try:
        own.load_verify_locations(authority)
    except OSError as error:
        raise ClusterError(
            f"RAY_TLS_CA_CERT={authority}: no certificates can be read there ({error})"
        ) from None
    try:
        own.load_cert_chain(certificate, key)
    except OSError as error:
        raise ClusterError(
            f"RAY_TLS_SERVER_CERT={certificate}, RAY_TLS_SERVER_KEY={key}: must be a certificate and its "
            f"key, as PEM ({error})"
        ) from None
    return own


def _about_tls(address: str, own: ssl.SSLContext | None) -> str:
    """Return why a head and this process do not agree on TLS; empty if that is not the reason.

    own: the certificates of this process, None without TLS.
    """
    context = own
    if context is None:  # to learn whether the head speaks TLS
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        bare = socket.create_connection((host, int(port)), timeout=_ANSWER_S)
    except OSError:
        return ""
    with bare:
        try:
            link = context.wrap_socket(bare, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            return (
                f"its certificate is not accepted ({error.verify_message.rstrip('.')}): RAY_TLS_CA_CERT must "
                f"be of the authority that signed it, and the certificate must name {host}"
            )
        except (OSError, ValueError):
            return "it does not speak TLS: unset RAY_USE_TLS, or start the head with it" if own else ""
        with link:
            if own is None:
                return f"it speaks TLS: set RAY_USE_TLS=1 and {', '.join(_OF_TLS)} to files of its authority"
            try:
                if link.recv(1):  # TLS 1.3: a server looks at a client's certificate only now
                    return ""
            except OSError:
                pass
    return "it does not accept RAY_TLS_SERVER_CERT: it must be signed by the authority of the head's"


def session_folder() -> str:
    """Return a folder for Ray, cleared, that no other user gets into, or the one that the environment names.

    Raises OSError if another user has made a folder of this name.
    """
    if named := os.environ.get("RAY_TMPDIR"):
        return named
    outer = Path("/tmp", f"dsgd-{os.getuid()}")  # a short path: the names of sockets have 107 bytes
    outer.mkdir(mode=0o700, exist_ok=True)
    found = outer.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(
            f"{outer} is not a folder of this user alone; remove it, or set RAY_TMPDIR to one that is"
        )
    forget_ended(outer / "ray")
    return str(outer / "ray")


def forget_ended(folder: Path) -> None:
    """Remove what Ray's sessions have left there that began over an hour ago and do not answer any more."""
    for session in folder.glob("session_*_*"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            is_old = time.time() - session.stat().st_mtime > _KEPT_S
            if is_old and link.connect_ex(str(session / "sockets/raylet")):
                shutil.rmtree(session, ignore_errors=True)


def guard_token() -> None:
    """Have a token, where the environment names none, that only this user can read."""
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}.isdisjoint(os.environ):
        return
    token = Path.home() / ".ray/auth_token"
    token.parent.mkdir(exist_ok=True)
    if not token.exists():
        descriptor, new = tempfile.mkstemp(dir=token.parent)  # which is this user's
        try:
            with open(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
            with suppress(FileExistsError):  # another process was faster
                os.link(new, token)  # whole, or not there
        finally:
            os.unlink(new)
    if token.stat().st_mode & 0o077:
        token.chmod(0o600)
