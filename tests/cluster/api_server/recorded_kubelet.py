"""A kubelet for pods of time lines: recorded logs, and commands by WebSocket (kubectl 1.31 or newer)."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

from api_server.time_lines import PROBE, TimeLines

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_CLOSE, _BINARY = 8, 2  # opcodes
_STDOUT, _STDERR, _STATUS = 1, 2, 3  # channels of v5.channel.k8s.io
_POLL_S = 0.1


class RecordedKubelet(ThreadingHTTPServer):
    """Serves the pods of all nodes at a port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, lines: TimeLines, certificate: Path, key: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lines = lines
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
        self.socket = tls.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RecordedKubelet

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlparse(self.path)
        given = parse_qs(url.query)
        match url.path.strip("/").split("/"):
            case ["containerLogs", _, pod, _]:
                self._send_log(pod, follow=given.get("follow") == ["true"])
            case ["exec", _, pod, _] if self.headers.get("Upgrade", "").lower() == "websocket":
                self._send_answer(pod, given["command"])
            case _:
                self.send_error(400, "only containerLogs, and exec by WebSocket")

    do_POST = do_GET

    def _send_log(self, pod: str, *, follow: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent, goes_on = 0, True
        while goes_on:
            text, runs = self._log(pod)
            goes_on = follow and runs
            if new := text[sent:].encode():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(new), new))
            sent = len(text)
            time.sleep(_POLL_S if goes_on else 0)
        self.wfile.write(b"0\r\n\r\n")

    def _log(self, name: str) -> tuple[str, bool]:
        """Return what a pod has printed so far, and whether it still runs."""
        if name.startswith(PROBE):
            return "written, read and deleted: s3://results/validate-setup/1\n", False
        frame, pod = self.server.lines.pods[name]
        return frame.log(pod), pod["status"]["phase"] == "Running"

    def _send_answer(self, name: str, program: list[str]) -> None:
        key = hashlib.sha1(
            (self.headers["Sec-WebSocket-Key"] + _MAGIC).encode(), usedforsecurity=False
        ).digest()
        protocol = self.headers.get("Sec-WebSocket-Protocol", "").partition(",")[0]
        self.send_response_only(101, "Switching Protocols")
        for header, value in (
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", base64.b64encode(key).decode()),
            ("Sec-WebSocket-Protocol", protocol),
        ):
            self.send_header(header, value)
        self.end_headers()
        frame, pod = self.server.lines.pods[name]
        code, out, errors = frame.answer(pod, program)
        for channel, text in ((_STDOUT, out), (_STDERR, errors), (_STATUS, json.dumps(_status(code)))):
            self._send_frame(_BINARY, bytes([channel]) + text.encode())
        self._send_frame(_CLOSE, struct.pack(">H", 1000))
        time.sleep(0.2)  # for the API server to pass it on, before the connection is closed
        self.close_connection = True

    def _send_frame(self, opcode: int, data: bytes) -> None:
        size = len(data)
        length = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size)
        self.wfile.write(bytes([0x80 | opcode]) + length + data)


def _status(code: int) -> dict[str, object]:
    """Return how a program has ended, as Kubernetes says it."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
